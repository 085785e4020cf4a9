// Package mfa asks for a second factor at logins: a code of an authenticator app (TOTP, RFC 6238). Methods say
// what codes are like, enforcements say which logins need one, and each entity has a secret of its own for each
// method.
//
// It promises that a code is accepted once, that a held login is redeemed once, and that wrong codes are counted
// for each entity and method whatever node they arrive at: each of these is one transaction. Secrets are shown once,
// to the caller that generates them, and never again. Start reading at Store, then Required, Hold and Take.
package mfa

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/storage"
)

const (
	holdTime      = 5 * time.Minute // how long a login waits for its codes
	attemptWindow = 5 * time.Minute // wrong codes are counted for so long
)

// Options of a Store. All are required.
type Options struct {
	Store      storage.Store // plaintext
	Identity   Identity
	Mounts     Mounts
	Namespaces Namespaces
}

// Identity has the entities and groups: identity.Store.
type Identity interface {
	// Effective returns what an entity is, or storage.ErrNotFound.
	Effective(ctx context.Context, id, ns string) (*identity.Effective, error)
	// InGroup reports whether an entity is in a group, directly or through other groups.
	InGroup(ctx context.Context, entityID, groupID string) (bool, error)
	HasGroup(ctx context.Context, id string) (bool, error)
}

// Mounts are those that logins come from: mount.Table.
type Mounts interface {
	// HasAccessor reports whether a mount of a namespace has this accessor.
	HasAccessor(ctx context.Context, ns, accessor string) (bool, error)
}

// Namespaces are those that enforcements are in: namespace.Store.
type Namespaces interface {
	// Above returns the ids of the namespaces above one. Their enforcements count there too.
	Above(ctx context.Context, ns string) []string
	// Path returns the path of a namespace, "" for root.
	Path(id string) string
}

// Store keeps methods, secrets, enforcements and held logins. Safe for concurrent use.
type Store struct {
	opts  Options
	store storage.Store
}

// New returns a Store.
func New(o Options) *Store { return &Store{opts: o, store: o.Store} }

// enabled returns an entity that is not disabled, or storage.ErrNotFound.
func (s *Store) enabled(ctx context.Context, id string) (identity.Entity, error) {
	who, err := s.opts.Identity.Effective(ctx, id, "")
	switch {
	case err != nil:
		return identity.Entity{}, err
	case who.Entity.Disabled:
		return identity.Entity{}, engines.Denied(errors.New("the entity is disabled"))
	}
	return who.Entity, nil
}

// What is stored. Configuration and secrets are shared; what changes at each login belongs to the cluster.
//
//	s/sys/<ns>/mfa/method/<id>              method
//	s/sys/<ns>/mfa/method-name/<name>       pointer to the method
//	s/sys/<ns>/mfa/enforcement/<name>       enforcement
//	s/sys/<ns>/mfa/secret/<method>/<entity> secret
//	l/sys/<ns>/mfa/attempts/<method>/<entity>  attempts
//	l/mfa/pending/<hash of the request id>  pending
func key(class storage.Class, ns, kind, path string) storage.Key {
	return storage.NewKey(class, "sys", ns+"/mfa/"+kind+"/"+path)
}

func methodKey(id string) storage.Key {
	return key(storage.Shared, namespaceOf(id), "method", id)
}

func methodNameKey(ns, name string) storage.Key {
	return key(storage.Shared, ns, "method-name", strings.ToLower(name))
}

func enforcementKey(ns, name string) storage.Key {
	return key(storage.Shared, ns, "enforcement", name)
}

func secretKey(method, entity string) storage.Key {
	return key(storage.Shared, namespaceOf(method), "secret", method+"/"+entity)
}

func attemptsKey(method, entity string) storage.Key {
	return key(storage.Local, namespaceOf(method), "attempts", method+"/"+entity)
}

// A method's id tells its namespace: outside root it ends in "." and the namespace's id.
const rootNamespace = "root"

func newID(ns string) string {
	if ns == rootNamespace {
		return uuid.NewString()
	}
	return uuid.NewString() + "." + ns
}

func namespaceOf(id string) string {
	if _, ns, ok := strings.Cut(id, "."); ok {
		return ns
	}
	return rootNamespace
}

func namespace(m engines.Mount) string { return cmp.Or(m.NamespaceID, rootNamespace) }

// validID reports whether a text that a client sent can be an id, and so be part of a key.
func validID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

// checkName refuses names that are more than letters, digits, "_", "-" and "." in between.
func checkName(field, name string) error {
	if !validID(name) || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
		return engines.Invalid("field %q: must have 1 to 128 letters, digits, \"_\", \"-\" or, inside, \".\"", field)
	}
	return nil
}

const format = 1

// envelope is how every record is stored.
type envelope[T any] struct {
	Format int `json:"format"`
	Value  T   `json:"value"`
}

// getter is what reads need of a store or of a transaction.
type getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// get returns a record that the caller may change, or storage.ErrNotFound.
func get[T any](ctx context.Context, r getter, k storage.Key) (*T, error) {
	e, err := r.Get(ctx, k)
	if err != nil {
		return nil, err
	}
	return decode[T](e)
}

// decode never repeats what it reads in an error: it may be a secret.
func decode[T any](e storage.Entry) (*T, error) {
	var env envelope[T]
	if json.Unmarshal(e.Value, &env) != nil || env.Format != format {
		return nil, fmt.Errorf("%s is not in a format that this version knows", e.Key)
	}
	return &env.Value, nil
}

func put[T any](t *storage.Txn, k storage.Key, v *T) {
	value, err := json.Marshal(envelope[*T]{format, v})
	if err != nil {
		panic(err) // texts, numbers and times
	}
	t.Put(k, value)
}

func missing(err error) bool { return errors.Is(err, storage.ErrNotFound) }

// found turns the absence of what a request names into what clients expect.
func found(err error) error {
	if missing(err) {
		return engines.NotFound("")
	}
	return err
}

func (s *Store) update(ctx context.Context, fn func(*storage.Txn) error) error {
	_, err := storage.Update(ctx, s.store, fn)
	return err
}
