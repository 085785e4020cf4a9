// Package identity knows who stands behind a token: entities, the aliases that auth methods know them by, and
// the groups they are in. It answers the paths of the builtin mount "identity/" of every namespace.
//
// It promises that what one operation changes is one transaction with all it read as preconditions, so that two
// concurrent first logins of a user make one entity, and that names, aliases and memberships never contradict each other.
// Nothing is held in memory but caches, which follow the change feed. Start reading at Store, then record.go for
// what is stored, then Login and Effective, which is what the server asks for at every login and request.
package identity

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const (
	maxEffective = 65536 // entities kept ready in memory
	maxGroups    = 16384 // groups kept decoded in memory
)

// Options of a Store. All are required.
type Options struct {
	Store      storage.Store // plaintext
	Mounts     Mounts
	Namespaces Namespaces
}

// Mounts are those that aliases are of: mount.Table. Describe finds one of a namespace.
type Mounts interface {
	Describe(ctx context.Context, ns, accessor string) (path, kind string, local, ok bool)
}

// Namespaces has the ids of the namespaces that one lies in, the nearest first: namespace.Store.
type Namespaces interface {
	Above(ctx context.Context, ns string) []string
}

// Store keeps the identities of all namespaces. Give Changed every change of the feed. Safe for concurrent use.
type Store struct {
	opts      Options
	store     storage.Store
	router    *engines.Router
	groups    *storage.Cache[*group]
	effective *storage.Cache[*views] // by the key of the entity
}

// NewStore returns a Store over the decrypted store.
func NewStore(o Options) *Store {
	s := &Store{
		opts: o, store: o.Store, router: engines.NewRouter(),
		groups:    storage.NewCache[*group](maxGroups),
		effective: storage.NewCache[*views](maxEffective),
	}
	s.routes(s.router)
	return s
}

// Router returns the paths of the identity mount. Others may declare more paths on it before the first request.
func (s *Store) Router() *engines.Router { return s.router }

// Engine is the engines.Factory of the identity mounts. All namespaces share one engine: requests say which
// namespace they are in.
func (s *Store) Engine(engines.Mount) (engines.Engine, error) { return s, nil }

// Changed forgets what a change made stale. It is meant for storage.Feed's OnChange.
func (s *Store) Changed(ch storage.Change) {
	if !ch.Touches(area) {
		return
	}
	// First the groups: what is put together between the two steps is made of new ones.
	s.groups.Apply(ch)
	if touchesGroups(ch) {
		s.effective.Clear()
		return
	}
	s.effective.Apply(ch)
}

// Clear forgets everything, for instance when the server seals.
func (s *Store) Clear() {
	s.groups.Clear()
	s.effective.Clear()
}

func touchesGroups(ch storage.Change) bool {
	return ch.Reset || slices.ContainsFunc(ch.Entries, func(e storage.Entry) bool { return isGroupKey(e.Key) })
}

// update runs a transaction on the identity data.
func (s *Store) update(ctx context.Context, fn func(*storage.Txn) error) error {
	_, err := storage.Update(ctx, s.store, fn)
	return err
}

// namespace returns the id of the namespace a request is in.
func namespace(m engines.Mount) string { return cmp.Or(m.NamespaceID, rootNamespace) }

// missing reports whether the error says that something is not there.
func missing(err error) bool { return errors.Is(err, storage.ErrNotFound) }

// found turns the absence of what a request names into what clients expect.
func found(err error) error {
	if missing(err) {
		return engines.NotFound("")
	}
	return err
}

// rootNamespace is the id of the root namespace.
const rootNamespace = "root"

// namespaceOf returns the id of the namespace that an entity, group or alias belongs to: ids outside the root
// namespace end in "." and the namespace's id.
func namespaceOf(id string) string {
	if _, ns, ok := strings.Cut(id, "."); ok {
		return ns
	}
	return rootNamespace
}

// StoredPath returns a path with the name of an entity or group in it as it is compared: in lower case. Policies are
// asked about it, too.
func (s *Store) StoredPath(path string) string {
	for _, prefix := range []string{"entity/name/", "group/name/"} {
		if name, ok := strings.CutPrefix(path, prefix); ok {
			return prefix + strings.ToLower(name)
		}
	}
	return path
}
