package policy

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const (
	maxNameBytes = 512
	maxPolicies  = 16384 // kept parsed in memory
	maxACLs      = 16384 // kept joined in memory
)

// Store keeps the policies of all namespaces, one entry each, and the ACLs made of them. Namespaces are
// given by id ("root" for the root namespace). Give Changed every change of the feed. Safe for concurrent use.
type Store struct {
	store    storage.Store
	policies *storage.Cache[*Policy]

	mu   sync.RWMutex
	acls map[string]*ACL
	// personal tells of which scopes the ACL depends on its subject, whose tag is then part of its key in acls.
	personal map[string]bool
	changes  uint64 // announced changes to policies, so that an ACL built from older ones is not kept
}

// NewStore returns a Store over the decrypted store.
func NewStore(s storage.Store) *Store {
	return &Store{store: s, policies: storage.NewCache[*Policy](maxPolicies), acls: map[string]*ACL{}, personal: map[string]bool{}}
}

// record is what is stored.
type record struct {
	Format int    `json:"format"` // 1
	Text   string `json:"text"`
}

func encode(text string) []byte {
	value, err := json.Marshal(record{Format: 1, Text: text})
	if err != nil {
		panic(err) // a number and a string
	}
	return value
}

// A name may hold slashes, which would make it a folder in storage.
var (
	escapeName   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescapeName = strings.NewReplacer("%25", "%", "%2F", "/")
)

func prefix(ns string) storage.Key { return storage.NewKey(storage.Shared, "sys", ns+"/policies/") }

func key(ns, name string) storage.Key { return prefix(ns) + storage.Key(escapeName.Replace(name)) }

// isPolicyKey reports whether a key holds a policy of some namespace.
func isPolicyKey(k storage.Key) bool {
	rest, ok := strings.CutPrefix(string(k), "s/sys/")
	if !ok {
		return false
	}
	_, rest, _ = strings.Cut(rest, "/")
	return strings.HasPrefix(rest, "policies/")
}

// Changed forgets what a change made stale. It is meant for storage.Feed's OnChange.
func (s *Store) Changed(ch storage.Change) {
	stale := ch.Reset
	for i := range ch.Entries {
		stale = stale || isPolicyKey(ch.Entries[i].Key)
	}
	if !stale {
		return
	}
	// First the policies: an ACL that is built between the two steps is built from new ones.
	s.policies.Apply(ch)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	clear(s.acls)
	clear(s.personal)
}

// Clear forgets everything, for instance when the server seals.
func (s *Store) Clear() { s.Changed(storage.Change{Reset: true}) }

// NormalName returns the form of a policy name that is stored and compared, or an engines.Error that says
// what is wrong with it.
func NormalName(name string) (string, error) {
	name = strings.ToLower(strings.TrimSpace(name))
	switch {
	case name == "":
		return "", engines.Invalid("a policy name is empty")
	case len(name) > maxNameBytes:
		return "", engines.Invalid("a policy name is longer than %d bytes", maxNameBytes)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) || strings.Contains(name, ","):
		return "", engines.Invalid("a policy name contains a comma or a control character")
	}
	return name, nil
}

// Get returns a policy, or storage.ErrNotFound. Policies are shared: do not modify them.
func (s *Store) Get(ctx context.Context, ns, name string) (*Policy, error) {
	name, err := NormalName(name)
	switch {
	case err != nil:
		return nil, err
	case name == RootName:
		return Root(), nil
	case name == WrappingName:
		return wrapping, nil
	}
	k := key(ns, name)
	return s.policies.Get(ctx, k, func(ctx context.Context) (*Policy, error) {
		e, err := s.store.Get(ctx, k)
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(e.Value, &r); err != nil || r.Format != 1 {
			return nil, fmt.Errorf("reading policy %q: unknown format", name)
		}
		p, err := parseStored(name, r.Text)
		if err != nil {
			return nil, fmt.Errorf("reading policy %q: %w", name, err)
		}
		return p, nil
	})
}

// Exists reports whether a policy has this name.
func (s *Store) Exists(ctx context.Context, ns, name string) (bool, error) {
	_, err := s.Get(ctx, ns, name)
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Assignable reports whether a token may be given the policy on request.
func (s *Store) Assignable(name string) bool { return name != WrappingName }

// Set stores a policy, whatever was there. Text that does not parse and names that are reserved are an
// engines.Error of KindInvalid.
func (s *Store) Set(ctx context.Context, ns, name, text string) error {
	name, err := NormalName(name)
	if err != nil {
		return err
	}
	if name == RootName || name == WrappingName {
		return engines.Invalid("cannot update %q policy", name)
	}
	p, err := Decode(name, text)
	if err != nil {
		return engines.Invalid("failed to parse policy: %v", err)
	}
	_, err = s.store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: key(ns, name), Value: encode(p.Text)}}})
	return err
}

// Delete removes a policy; one that is not there is fine. The built-in ones are an engines.Error of KindInvalid.
func (s *Store) Delete(ctx context.Context, ns, name string) error {
	name, err := NormalName(name)
	if err != nil {
		return err
	}
	if name == RootName || name == DefaultName || name == WrappingName {
		return engines.Invalid("cannot delete %q policy", name)
	}
	_, err = s.store.Commit(ctx, storage.Batch{Deletes: []storage.Key{key(ns, name)}})
	return err
}

// List returns the sorted names of all policies, with "root".
func (s *Store) List(ctx context.Context, ns string) ([]string, error) {
	stored, err := s.store.List(ctx, prefix(ns), "", 0)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(stored)+1)
	for _, n := range stored {
		names = append(names, unescapeName.Replace(n))
	}
	names = append(names, RootName)
	slices.Sort(names)
	return names, nil
}

// Scope is a token's policies of one namespace. They count there and in the namespaces below.
type Scope struct {
	Namespace string // id
	Path      string // of the namespace: "" for root, else it ends in "/"
	Names     []string
}

// ACL joins the named policies. Names without a policy add nothing. A policy that cannot be read fails the whole: it
// may be the one that denies. subject fills templates; without one they match nothing.
func (s *Store) ACL(ctx context.Context, subject Subject, scopes ...Scope) (*ACL, error) {
	var buf [256]byte
	id := scopesID(buf[:0], scopes)
	s.mu.RLock()
	key, before := id, s.changes
	if subject != nil && s.personal[string(id)] {
		key = append(key, subject.Tag()...)
	}
	acl := s.acls[string(key)]
	s.mu.RUnlock()
	if acl != nil && acl.current() {
		return acl, nil
	}
	acl, err := s.build(ctx, subject, scopes)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes != before {
		return acl, nil // correct for this caller, not for later ones
	}
	for len(s.acls) >= maxACLs || len(s.personal) >= maxACLs {
		clear(s.acls)
		clear(s.personal)
	}
	text := string(id)
	if acl.personal {
		s.personal[text] = true
		if subject != nil {
			text += subject.Tag()
		}
	}
	s.acls[text] = acl
	return acl, nil
}

// scopesID names a list of scopes; no two lists have the same. It brings the names of each in order.
func scopesID(id []byte, scopes []Scope) []byte {
	id = binary.AppendUvarint(id, uint64(len(scopes)))
	for i := range scopes {
		scope := &scopes[i]
		if !slices.IsSorted(scope.Names) {
			scope.Names = slices.Sorted(slices.Values(scope.Names))
		}
		id = append(binary.AppendUvarint(id, uint64(len(scope.Namespace))), scope.Namespace...)
		id = binary.AppendUvarint(id, uint64(len(scope.Names)))
		for _, n := range scope.Names {
			id = append(binary.AppendUvarint(id, uint64(len(n))), n...)
		}
	}
	return id
}

// Simulate is ACL of policies of one namespace and, unless text is empty, of one that is not stored. The paths begin in that namespace.
func (s *Store) Simulate(ctx context.Context, ns string, names []string, text string) (*ACL, error) {
	var drafts []*Policy
	if text != "" {
		p, err := Decode("draft", text)
		if err != nil {
			return nil, engines.Invalid("failed to parse policy: %v", err)
		}
		drafts = append(drafts, p)
	}
	return s.build(ctx, nil, []Scope{{Namespace: ns, Names: names}}, drafts...)
}

// build joins the policies of scopes; more are policies of the last one that are not stored.
func (s *Store) build(ctx context.Context, subject Subject, scopes []Scope, more ...*Policy) (*ACL, error) {
	var b builder
	for i, scope := range scopes {
		policies := make([]*Policy, 0, len(scope.Names)+len(more))
		for _, n := range scope.Names {
			p, err := s.Get(ctx, scope.Namespace, n)
			var invalid *engines.Error
			switch {
			case err == nil:
				policies = append(policies, p)
			case errors.Is(err, storage.ErrNotFound) || errors.As(err, &invalid): // no policy has such a name
			default:
				return nil, err
			}
		}
		if i == len(scopes)-1 {
			policies = append(policies, more...)
		}
		b.add(scope, subject, policies)
	}
	return b.acl(), nil
}
