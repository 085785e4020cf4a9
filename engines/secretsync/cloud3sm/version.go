package cloud3sm

import (
	"context"
	"errors"
	"hash/crc32"
	"math"
	"strconv"
	"strings"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// version is a version of a secret; its number is 0 if there is none.
type version struct {
	n     int64
	state string // "" is enabled
	value []byte
	known bool
}

// id is the version as Found.Version: its number, and its state unless it is enabled.
func (v version) id() string {
	if v.state == "" {
		return strconv.FormatInt(v.n, 10)
	}
	return strconv.FormatInt(v.n, 10) + " " + v.state
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) *int64 {
	sum := int64(crc32.Checksum(b, castagnoli))
	return &sum
}

// latest reads the version made last, whatever its state. What the service answers for "latest" may be old for minutes and
// more, but not what it answers for a number, so the newest of ours is asked for where it is newer. A secret that is not there
// has no version either.
func (p *dest) latest(ctx context.Context, o op, s *secretmanagerpb.Secret) (version, error) {
	name := last(s.Name)
	v, err := p.version(ctx, o, name, "latest")
	if ours := p.newest(s); err == nil && v.n < ours {
		w, err := p.version(ctx, o, name, strconv.FormatInt(ours, 10))
		if err != nil || w.n == ours {
			return w, err
		}
	}
	return v, err
}

// newest returns the number of the newest version of ours that is known of, 0 if there is none. Known are those that this
// process has made, and those noted.
func (p *dest) newest(s *secretmanagerpb.Secret) int64 {
	var n int64
	if made, ok := p.made.Load(last(s.Name)); ok && made.(destination.Held).ID == identity(s) {
		n, _ = strconv.ParseInt(made.(destination.Held).Version, 10, 64)
	}
	noted := versionsOf(s.Annotations[versionsKey], math.MaxInt64)
	if len(noted) > 1 {
		n = max(n, noted[len(noted)-2])
	}
	return n
}

// version reads a version. A service account that may not read values learns its number and state all the same.
func (p *dest) version(ctx context.Context, o op, name, which string) (version, error) {
	path := p.path(name) + "/versions/" + which
	got, err := call(ctx, p, o, func(ctx context.Context) (*secretmanagerpb.AccessSecretVersionResponse, error) {
		return p.api.AccessSecretVersion(ctx, &secretmanagerpb.AccessSecretVersionRequest{Name: path})
	})
	switch {
	case err == nil:
		n, err := number(got.GetName(), name)
		data := got.GetPayload().GetData()
		if sum := got.GetPayload().DataCrc32C; err == nil && sum != nil && *sum != *checksum(data) {
			err = unexpected("a value from Secret Manager does not fit its checksum")
		}
		return version{n: n, value: data, known: true}, err
	case errors.Is(err, errNotFound):
		return version{}, nil
	case !errors.Is(err, errPrecondition) && !errors.Is(err, errDenied):
		return version{}, err
	}
	denied := err
	about := opGetVersion
	about.writes = o.writes
	v, err := call(ctx, p, about, func(ctx context.Context) (*secretmanagerpb.SecretVersion, error) {
		return p.api.GetSecretVersion(ctx, &secretmanagerpb.GetSecretVersionRequest{Name: path})
	})
	switch {
	case errors.Is(err, errNotFound):
		return version{}, nil
	case errors.Is(err, errDenied):
		return version{}, denied
	case err != nil:
		return version{}, err
	}
	var state string
	if v.GetState() != secretmanagerpb.SecretVersion_ENABLED {
		state = strings.ToLower(v.GetState().String())
	}
	n, err := number(v.GetName(), name)
	return version{n: n, state: state}, err
}

// number takes a version's number from its full name.
func number(path, secret string) (int64, error) {
	rest, ok := strings.CutSuffix(path, "/versions/"+last(path))
	n, err := strconv.ParseInt(last(path), 10, 64)
	if !ok || err != nil || n < 1 || last(rest) != secret {
		return 0, unexpected("Secret Manager answers with a version that has no number, or of another secret")
	}
	return n, nil
}
