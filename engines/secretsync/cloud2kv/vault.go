package cloud2kv

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// secret is what the vault says of a secret or of one of its versions.
type secret struct {
	name        string
	version     string // "" in listings, which do not have it
	updated     time.Time
	created     time.Time
	enabled     bool
	tags        map[string]string
	contentType *string
	value       *string
	managed     bool // it belongs to a certificate
}

// ownership tag returns whose it is; "" if it is not of ours.
func (s *secret) mark() string {
	if s.managed {
		return ""
	}
	mark, _, _ := strings.Cut(s.tags[markTag], ".")
	return mark
}

// seen is Found.Version: when the secret was changed, and the text that only our last write has. Unlike the vault's versions,
// it shows in lists, and changes when a secret is disabled. The vault dates to the second; what others write in the very
// second of a write of ours lacks the text.
func (s *secret) seen() string {
	if s.updated.IsZero() {
		return ""
	}
	_, text, _ := strings.Cut(s.tags[markTag], ".")
	seen := strconv.FormatInt(s.updated.Unix(), 10) + "." + text
	if !s.enabled {
		seen += ".disabled"
	}
	return seen
}

// is reports whether the secret is still as it was found.
func (s *secret) is(was destination.Found) bool {
	version, ok := was.Handle.(handle)
	return s.seen() == was.Version && (!ok || s.version == string(version))
}

// handle is the vault's own version in a Found.
type handle string

func (s *secret) found(state destination.State) destination.Found {
	f := destination.Found{Name: s.name, State: state, OwnerTag: s.mark(), Version: s.seen(), ChangedAt: s.updated}
	if s.version != "" {
		f.Handle = handle(s.version)
	}
	if state == destination.Present && s.value != nil {
		f.Value, f.Known = []byte(*s.value), true
	}
	return f
}

// parse makes a secret of the parts that all of the vault's answers have.
func parse(id *azsecrets.ID, a *azsecrets.SecretAttributes, tags map[string]*string, contentType *string, managed *bool) (*secret, error) {
	if id == nil {
		return nil, unexpected("Key Vault answers with a secret that has no ID")
	}
	name, version, ok := parseID(string(*id))
	if !ok {
		return nil, unexpected("Key Vault gives an unexpected response: the ID of the secret cannot be parsed")
	}
	s := &secret{name: name, version: version, enabled: true, contentType: contentType, managed: managed != nil && *managed, tags: map[string]string{}}
	if a != nil {
		s.enabled = a.Enabled == nil || *a.Enabled
		if a.Updated != nil {
			s.updated = *a.Updated
		}
		if a.Created != nil {
			s.created = *a.Created
		}
	}
	for key, value := range tags {
		if value != nil {
			s.tags[key] = *value
		}
	}
	return s, nil
}

// parseID takes apart the ID of a secret, https://host/secrets/name or https://host/secrets/name/version. Whose host it is
// does not matter: it is never called.
func parseID(id string) (name, version string, ok bool) {
	u, err := url.Parse(id)
	if err != nil {
		return "", "", false
	}
	parts := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] != "secrets" && parts[0] != "deletedsecrets" || checkName(parts[1]) != "" {
		return "", "", false
	}
	if len(parts) == 3 {
		version = parts[2]
	}
	if len(version) > 64 || strings.ContainsFunc(version, func(r rune) bool { return !legal(r) }) {
		return "", "", false
	}
	return parts[1], version, true
}

// ofName is parse for answers that must be about one name, in one version.
func ofName(name string, id *azsecrets.ID, a *azsecrets.SecretAttributes, tags map[string]*string, contentType *string, managed *bool) (*secret, error) {
	s, err := parse(id, a, tags, contentType, managed)
	if err != nil {
		return nil, err
	}
	if fold(s.name) != fold(name) || s.version == "" {
		return nil, unexpected("Key Vault answers with another secret than the one asked for")
	}
	return s, nil
}

// bounded gives a call without a deadline one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, callTimeout)
}

func illegal(problem string) error {
	return &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: problem}
}

// live returns the secret of a name, nil if there is none.
func (v *vault) live(ctx context.Context, name string) (*secret, error) {
	var s *secret
	err := v.do(ctx, getting, func(ctx context.Context) error {
		got, err := v.secrets.GetSecret(ctx, name, "", nil)
		if err != nil {
			return err
		}
		if s, err = ofName(name, got.ID, got.Attributes, got.Tags, got.ContentType, got.Managed); err == nil {
			s.value = got.Value
		}
		return err
	})
	switch r := refusalOf(err); {
	case err == nil:
		return s, nil
	case r.status == http.StatusNotFound && r.code == codeNotFound:
		return nil, nil
	case r.status == http.StatusForbidden && r.code == codeDisabled:
		return v.disabled(ctx, name)
	}
	return nil, err
}

// disabled returns what the versions of a disabled secret say of it, which cannot be read itself.
func (v *vault) disabled(ctx context.Context, name string) (*secret, error) {
	versions, err := v.versions(ctx, name)
	if e, ok := errors.AsType[*destination.Error](err); ok && e.Code == destination.Denied {
		return &secret{name: name}, nil // it exists; its owner cannot be read without the permission
	}
	if err != nil {
		return nil, err
	}
	versions = slices.DeleteFunc(versions, func(s *secret) bool { return s.enabled })
	if len(versions) == 0 {
		return nil, unexpected("Key Vault says that a secret is disabled, and that none of its versions is")
	}
	return newest(versions), nil
}

// newest returns the newest of one or more versions. The vault dates them to the second; of the same second it may be any,
// but always the same one.
func newest(versions []*secret) *secret {
	return slices.MaxFunc(versions, func(a, b *secret) int {
		if c := a.created.Compare(b.created); c != 0 {
			return c
		}
		return strings.Compare(a.version, b.version)
	})
}

// links are those of a list that were followed.
type links map[string]bool

// follow returns an error for a link that was followed before, and would be for ever.
func (l links) follow(next *string) error {
	if next == nil || *next == "" {
		return nil
	}
	if l[*next] {
		return unexpected("Key Vault lists the same secrets over and over")
	}
	l[*next] = true
	return nil
}

// versions returns all versions of a secret, in no particular order and without values.
func (v *vault) versions(ctx context.Context, name string) ([]*secret, error) {
	var all []*secret
	pager, followed := v.secrets.NewListSecretPropertiesVersionsPager(name, nil), links{}
	for pager.More() {
		err := v.do(ctx, listing, func(ctx context.Context) error {
			page, err := pager.NextPage(ctx)
			if err != nil {
				return err
			}
			for _, p := range page.Value {
				if p == nil {
					continue
				}
				s, err := ofName(name, p.ID, p.Attributes, p.Tags, p.ContentType, p.Managed)
				if err != nil {
					return err
				}
				all = append(all, s)
			}
			return followed.follow(page.NextLink)
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// deleted returns the deleted secret of a name, nil if there is none, or none yet.
func (v *vault) deleted(ctx context.Context, name string) (*secret, error) {
	var s *secret
	err := v.do(ctx, getting, func(ctx context.Context) error {
		got, err := v.secrets.GetDeletedSecret(ctx, name, nil)
		if err != nil {
			return err
		}
		s, err = ofName(name, got.ID, got.Attributes, got.Tags, got.ContentType, got.Managed)
		return err
	})
	if r := refusalOf(err); r.status == http.StatusNotFound && r.code == codeNotFound {
		return nil, nil
	}
	return s, err
}

// Read implements destination.Destination.
func (v *vault) Read(ctx context.Context, name string) (destination.Found, error) {
	if problem := checkName(name); problem != "" {
		return destination.Found{}, illegal(problem)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	s, err := v.live(ctx, name)
	if err != nil {
		return destination.Found{}, err
	}
	if s != nil {
		return s.found(destination.Present), nil
	}
	if s, err = v.deleted(ctx, name); err != nil {
		return destination.Found{}, err
	}
	if s != nil {
		return s.found(destination.Deleted), nil
	}
	return destination.Found{Name: name, State: destination.Absent}, nil
}

// Delete implements destination.Destination. The secret is deleted for those who use it when Delete returns; the vault takes
// some more seconds until it can be recovered.
func (v *vault) Delete(ctx context.Context, was destination.Found) error {
	if was.State != destination.Present {
		return nil
	}
	if problem := checkName(was.Name); problem != "" {
		return illegal(problem)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	s, err := v.live(ctx, was.Name)
	if err != nil || s == nil {
		return err
	}
	if !s.is(was) {
		return changed()
	}
	err = v.do(ctx, deleting, func(ctx context.Context) error {
		_, err := v.secrets.DeleteSecret(ctx, was.Name, nil)
		return err
	})
	switch r := refusalOf(err); {
	case r.status == http.StatusNotFound && r.code == codeNotFound, r.status == http.StatusConflict && r.code == codeBeingDeleted:
		return nil
	}
	return err
}

func changed() error {
	return &destination.Error{Class: destination.Client, Code: destination.Changed, Text: "the secret has changed in Key Vault since it was read"}
}

// List implements destination.Destination. Deleted secrets are not listed.
func (v *vault) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		pager, followed := v.secrets.NewListSecretPropertiesPager(nil), links{}
		for pager.More() {
			var page azsecrets.ListSecretPropertiesResponse
			err := v.page(ctx, func(ctx context.Context) (err error) {
				page, err = pager.NextPage(ctx)
				return err
			})
			if err == nil {
				err = followed.follow(page.NextLink)
			}
			if err != nil {
				yield(destination.Found{}, err)
				return
			}
			for _, p := range page.Value {
				if p == nil {
					continue
				}
				s, err := parse(p.ID, p.Attributes, p.Tags, p.ContentType, p.Managed)
				if err != nil {
					yield(destination.Found{}, err)
					return
				}
				if !yield(s.found(destination.Present), nil) {
					return
				}
			}
		}
	}
}

// page is do for one page of a list, with a deadline of its own.
func (v *vault) page(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	return v.do(ctx, listing, call)
}
