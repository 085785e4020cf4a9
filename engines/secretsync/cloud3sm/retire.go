package cloud3sm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
)

const (
	kept       = 2  // versions of ours that stay
	maxRetired = 3  // versions that one write destroys, so that it ends
	maxNoted   = 20 // versions in the note; those before are left alone for ever
)

// retire notes that version n is ours, and destroys the older ones of ours but the newest. The write is done already: what
// fails here is tried again by the next. s is the secret as it was just before the version was added, which leaves its etag
// as it is.
func (p *dest) retire(ctx context.Context, s *secretmanagerpb.Secret, n int64) {
	ours := versionsOf(s.Annotations[versionsKey], n)
	for range min(len(ours)-kept, maxRetired) {
		if !p.destroy(ctx, last(s.Name), ours[0]) {
			break
		}
		ours = ours[1:]
	}
	ours = ours[max(0, len(ours)-maxNoted):]
	note := versionsText(ours)
	if note == s.Annotations[versionsKey] {
		return
	}
	annotations := maps.Clone(s.Annotations)
	annotations[versionsKey] = note
	// A failure leaves a version that is not destroyed later, which does no harm.
	_, _ = p.update(ctx, &secretmanagerpb.Secret{Name: p.path(last(s.Name)), Etag: s.Etag, Annotations: annotations}, "annotations")
}

// destroy reports whether a version is not to be thought of any more.
func (p *dest) destroy(ctx context.Context, name string, n int64) bool {
	_, err := call(ctx, p, opDestroy, func(ctx context.Context) (*secretmanagerpb.SecretVersion, error) {
		return p.api.DestroySecretVersion(ctx, &secretmanagerpb.DestroySecretVersionRequest{
			Name: p.path(name) + "/versions/" + strconv.FormatInt(n, 10),
		})
	})
	return err == nil || errors.Is(err, errNotFound) || errors.Is(err, errPrecondition) // gone, or destroyed before
}

// versionsOf reads the note of the versions that are ours, and adds n. Anybody who may annotate the secret can have changed
// the note: what does not look as we write it counts for nothing, and nothing after n is in it.
func versionsOf(note string, n int64) []int64 {
	var ours []int64
	for text := range strings.SplitSeq(note, " ") {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil || v < 1 || len(ours) > 0 && v <= ours[len(ours)-1] || len(ours) == maxNoted {
			ours = nil
			break
		}
		ours = append(ours, v)
	}
	ours = slices.DeleteFunc(ours, func(v int64) bool { return v >= n })
	return append(ours, n)
}

func versionsText(versions []int64) string {
	texts := make([]string, len(versions))
	for i, v := range versions {
		texts[i] = strconv.FormatInt(v, 10)
	}
	return strings.Join(texts, " ")
}
