package cloud2kv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Write implements destination.Destination.
func (v *vault) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	if err := checkItem(it); err != nil {
		return destination.Held{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	var s *secret
	var err error
	switch was.State {
	case destination.Absent:
		s, err = v.create(ctx, it)
	case destination.Present:
		s, err = v.replace(ctx, it, was)
	case destination.Deleted:
		s, err = v.revive(ctx, it, was)
	}
	if err != nil {
		return destination.Held{}, err
	}
	return destination.Held{Version: s.seen()}, nil
}

// checkItem says what the vault would not take.
func checkItem(it destination.Item) error {
	if problem := checkName(it.Name); problem != "" {
		return illegal(problem)
	}
	if len(it.Value) > maxValueBytes {
		return &destination.Error{
			Class: destination.Client, Code: destination.TooLarge,
			Text: fmt.Sprintf("the value has %d bytes; a Key Vault secret has at most %d", len(it.Value), maxValueBytes),
		}
	}
	if !utf8.Valid(it.Value) {
		return illegal("the value is not text in UTF-8, and Key Vault keeps nothing else: encode it, in base64 for instance")
	}
	for key, value := range it.Tags {
		if problem := checkTag(key, value); problem != "" {
			return illegal(problem)
		}
	}
	return nil
}

func exists(text string) *destination.Error {
	return &destination.Error{Class: destination.Client, Code: destination.Exists, Text: text}
}

// create writes a name that is not there.
func (v *vault) create(ctx context.Context, it destination.Item) (*secret, error) {
	switch s, err := v.live(ctx, it.Name); {
	case err != nil:
		return nil, err
	case s != nil && s.managed:
		return nil, exists("the name is the secret of a certificate in Key Vault")
	case s != nil:
		return nil, exists("the name is there already in Key Vault")
	}
	s, err := v.set(ctx, it, nil)
	switch refusalOf(err).code {
	case codeDeleted, codeBeingDeleted:
		return v.reclaim(ctx, it)
	}
	if err != nil {
		return nil, err
	}
	return s, v.yield(ctx, it, s)
}

// replace writes a new version of what was read.
func (v *vault) replace(ctx context.Context, it destination.Item, was destination.Found) (*secret, error) {
	s, err := v.live(ctx, it.Name)
	if err != nil {
		return nil, err
	}
	if s == nil || !s.is(was) {
		return nil, changed()
	}
	return v.set(ctx, it, s)
}

// revive recovers what was read as deleted and writes a new version of it.
func (v *vault) revive(ctx context.Context, it destination.Item, was destination.Found) (*secret, error) {
	s, err := v.deleted(ctx, it.Name)
	if err != nil {
		return nil, err
	}
	if s == nil || !s.is(was) {
		return nil, changed()
	}
	return v.recover(ctx, it, s)
}

// reclaim is create for a name that turned out to be deleted, or about to be: what has our own ownership tag is recovered.
func (v *vault) reclaim(ctx context.Context, it destination.Item) (*secret, error) {
	var s *secret
	err := v.poll(ctx, false, func(ctx context.Context) (done bool, err error) {
		s, err = v.deleted(ctx, it.Name)
		return s != nil, err
	})
	if err != nil {
		return nil, err
	}
	if s.mark() != it.OwnerTag {
		return nil, exists("a secret of another client with this name is deleted in Key Vault but keeps the name: recover it or purge it")
	}
	return v.recover(ctx, it, s)
}

// recover recovers a deleted secret and writes a new version of it. From its first success on a failure leaves a part of the
// write done: the secret is there again, with its old value.
func (v *vault) recover(ctx context.Context, it destination.Item, deleted *secret) (*secret, error) {
	err := v.do(ctx, recovering, func(ctx context.Context) error {
		_, err := v.secrets.RecoverDeletedSecret(ctx, it.Name, nil)
		return err
	})
	switch r := refusalOf(err); {
	case r.status == http.StatusNotFound && r.code == codeNotFound:
		return nil, changed()
	case err != nil:
		return nil, err
	}
	var old, s *secret
	err = v.poll(ctx, true, func(ctx context.Context) (done bool, err error) {
		old, err = v.live(ctx, it.Name)
		return old != nil, err
	})
	if err == nil && old.version != deleted.version {
		err = changed()
	}
	if err == nil {
		// It can be read some time before it can be written.
		err = v.poll(ctx, true, func(ctx context.Context) (done bool, err error) {
			s, err = v.set(ctx, it, old)
			if code := refusalOf(err).code; code == codeBeingRecovered || code == codeBeingDeleted {
				return false, nil
			}
			return true, err
		})
	}
	if e, ok := errors.AsType[*destination.Error](err); ok {
		e.Unknown = true
	}
	return s, err
}

// poll calls until it is done: at once, and then less and less often. If that takes too long, the vault is still at it.
func (v *vault) poll(ctx context.Context, begun bool, call func(context.Context) (done bool, err error)) error {
	soon, cancel := context.WithTimeout(ctx, v.patience)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		done, err := call(ctx)
		if done || err != nil && ctx.Err() == nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-soon.Done():
			timer.Stop()
			return &destination.Error{
				Class: destination.External, Code: destination.Recovering, Unknown: begun, Err: soon.Err(),
				Text: "Key Vault is still deleting or recovering the secret; that takes some seconds, sometimes minutes",
			}
		case <-timer.C:
		}
	}
}

// set writes a new version. What another client has put around an earlier one stays: its tags and content type.
func (v *vault) set(ctx context.Context, it destination.Item, old *secret) (*secret, error) {
	if old != nil && old.managed {
		return nil, exists("the name is the secret of a certificate in Key Vault, which writes it")
	}
	tags, err := newTags(it, old)
	if err != nil {
		return nil, err
	}
	parameters := azsecrets.SetSecretParameters{Value: to.Ptr(string(it.Value)), Tags: tags}
	if old != nil {
		parameters.ContentType = old.contentType
	}
	return v.put(ctx, it.Name, parameters)
}

// put makes the call of set.
func (v *vault) put(ctx context.Context, name string, parameters azsecrets.SetSecretParameters) (*secret, error) {
	var s *secret
	err := v.do(ctx, setting, func(ctx context.Context) error {
		got, err := v.secrets.SetSecret(ctx, name, parameters, nil)
		if err != nil {
			return err
		}
		s, err = ofName(name, got.ID, got.Attributes, got.Tags, got.ContentType, got.Managed)
		return err
	})
	return s, err
}

// newTags returns the tags of a new version. Tags of a name differ in more than case.
func newTags(it destination.Item, old *secret) (map[string]*string, error) {
	tags := map[string]*string{markTag: to.Ptr(it.OwnerTag + "." + strings.ToLower(rand.Text()))}
	for key, value := range it.Tags {
		tags[key] = to.Ptr(value)
	}
	if old == nil {
		return tags, nil
	}
	ours := append(slices.Collect(maps.Keys(it.Tags)), it.OldTags...)
	ours = append(ours, markTag)
	for key, value := range old.tags {
		if !slices.ContainsFunc(ours, func(o string) bool { return strings.EqualFold(o, key) }) {
			tags[key] = to.Ptr(value)
		}
	}
	if len(tags) > maxTags {
		return nil, illegal(fmt.Sprintf("the secret has %d tags of another client, with ours %d; Key Vault takes at most %d: remove some", len(tags)-len(it.Tags)-1, len(tags), maxTags))
	}
	return tags, nil
}

// yield looks whether another client has created the name at the same moment. Then the secret is theirs: what they wrote is
// put back on top, and the write has failed.
func (v *vault) yield(ctx context.Context, it destination.Item, ours *secret) error {
	all, err := v.versions(ctx, it.Name)
	if err != nil {
		return nil // it cannot be known; the write itself is done
	}
	theirs := slices.DeleteFunc(all, func(s *secret) bool { return s.version == ours.version || s.mark() == it.OwnerTag })
	if len(theirs) == 0 {
		return nil
	}
	e := exists("another client has created the secret in Key Vault at the same moment; what they wrote was put back")
	e.Unknown = true
	if err := v.putBack(ctx, it.Name, newest(theirs).version); err != nil {
		e.Text = "another client has created the secret in Key Vault at the same moment; what they wrote is an earlier version of it now"
	}
	return e
}

// putBack writes a version of a secret once more, as its newest.
func (v *vault) putBack(ctx context.Context, name, version string) error {
	var old azsecrets.GetSecretResponse
	err := v.do(ctx, getting, func(ctx context.Context) (err error) {
		old, err = v.secrets.GetSecret(ctx, name, version, nil)
		return err
	})
	if err != nil {
		return err
	}
	if old.Value == nil {
		return unexpected("Key Vault answers with a secret that has no value")
	}
	parameters := azsecrets.SetSecretParameters{Value: old.Value, ContentType: old.ContentType, Tags: old.Tags}
	if a := old.Attributes; a != nil {
		parameters.SecretAttributes = &azsecrets.SecretAttributes{Enabled: a.Enabled, Expires: a.Expires, NotBefore: a.NotBefore}
	}
	_, err = v.put(ctx, name, parameters)
	return err
}
