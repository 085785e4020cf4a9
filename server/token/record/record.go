// Package record has what is stored of one token: its entry, and the keys under which it and its index entries stand.
//
// It promises that Put keeps a token and its place in the expiry index together. When a token is made, changed and removed, with
// all its keys in one batch, is said in package token. Start reading at Entry, then the keys.
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/server/token/role"
	"github.com/coffer-project/coffer/storage"
)

// RootNamespace is the id of the root namespace, RootPolicy the policy that gives everything.
const (
	RootNamespace = "root"
	RootPolicy    = "root"
)

// Entry is one token. Entries are shared: do not modify them.
type Entry struct {
	// Key is a keyed hash of the token, which service tokens are stored under. It identifies the token and is
	// not secret, but it is never shown. No Key of a batch token is that of a service token.
	Key string `json:"-"`
	// Version is that of the stored entry that this one was read from; 0 of one that is not stored, or not yet.
	Version  storage.Index `json:"-"`
	Accessor string        `json:"accessor"` // "" for batch tokens
	// Parent is the Key of the token that this one goes with, "" for an orphan.
	Parent      string            `json:"parent,omitempty"`
	Policies    []string          `json:"policies"` // sorted, lower case
	Path        string            `json:"path"`     // of the request that created it
	Meta        map[string]string `json:"meta,omitempty"`
	DisplayName string            `json:"display_name"`
	// NumUses is how often the token can still be used: 0 is without limit, -1 is used up.
	NumUses        int           `json:"num_uses,omitempty"`
	TTL            time.Duration `json:"ttl,omitempty"` // when created; 0: never expires
	MaxTTL         time.Duration `json:"max_ttl,omitempty"`
	ExplicitMaxTTL time.Duration `json:"explicit_max_ttl,omitempty"`
	Period         time.Duration `json:"period,omitempty"`
	CreatedAt      time.Time     `json:"created_at"`
	ExpiresAt      time.Time     `json:"expires_at,omitzero"` // zero: never
	RenewedAt      time.Time     `json:"renewed_at,omitzero"`
	Renewable      bool          `json:"renewable,omitempty"`
	Type           string        `json:"type"` // "service" or "batch"
	EntityID       string        `json:"entity_id,omitempty"`
	Namespace      string        `json:"namespace"` // id
	// BoundCIDRs are the networks the token may be used from; none is everywhere.
	BoundCIDRs []netip.Prefix `json:"bound_cidrs,omitempty"`
	// Mount is the UUID of the auth mount whose login made the token; "" for tokens of the auth/token mount.
	Mount string `json:"mount,omitempty"`
	// Role is what the auth mount calls its role or user, or the token role if Mount is "".
	Role string `json:"role,omitempty"`
	// Internal is what the auth mount keeps with its token. It is never shown.
	Internal json.RawMessage `json:"internal,omitempty"`
	// AskedPeriod is the part of a token role's token that is not the role's: the period its creator asked for.
	AskedPeriod time.Duration `json:"asked_period,omitempty"`
	// Bytes is how much is stored beside the token: a wrapped response.
	Bytes int64 `json:"bytes,omitempty"`
	// Revoking is set once the token is being removed.
	Revoking Revocation `json:"revoking,omitempty"`
}

// Revocation says what becomes of the children of a token that is being removed.
type Revocation int

const (
	WithChildren  Revocation = 1 // they are removed with it
	FreeingOrphan Revocation = 2 // they become orphans
)

// Orphan reports whether the token goes with no other.
func (e *Entry) Orphan() bool { return e.Parent == "" }

// Root reports whether the token has the root policy.
func (e *Entry) Root() bool { return slices.Contains(e.Policies, RootPolicy) }

// Batch reports whether it is a batch token: one that is not stored, has no cubbyhole and cannot be renewed or
// revoked.
func (e *Entry) Batch() bool { return e.Type == role.TypeBatch }

// AllowsIP reports whether the token may be used from addr.
func (e *Entry) AllowsIP(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return len(e.BoundCIDRs) == 0 ||
		slices.ContainsFunc(e.BoundCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Expired reports whether the token's time is over.
func (e *Entry) Expired(now time.Time) bool { return !e.ExpiresAt.IsZero() && !now.Before(e.ExpiresAt) }

// Valid reports whether the token may be used. A used-up token is still valid for its last request.
func (e *Entry) Valid(now time.Time) bool { return e.Revoking == 0 && !e.Expired(now) }

// stored is the stored form of an Entry.
type stored struct {
	Format int `json:"format"` // 1
	Entry
}

func encode(e *Entry) []byte {
	value, err := json.Marshal(stored{Format: 1, Entry: *e})
	if err != nil {
		panic(err) // texts, numbers, times and networks only
	}
	return value
}

// Decode returns the entry that is stored under a key.
func Decode(key string, value []byte) (*Entry, error) {
	var r stored
	if err := json.Unmarshal(value, &r); err != nil || r.Format != 1 {
		return nil, errors.New("a stored token has an unknown format")
	}
	r.Key = key
	return &r.Entry, nil
}

// getter is a storage.Reader or a storage.Txn.
type getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// Get reads an entry that belongs to the caller, or storage.ErrNotFound.
func Get(ctx context.Context, from getter, key string) (*Entry, error) {
	e, err := from.Get(ctx, IDKey(key))
	if err != nil {
		return nil, err
	}
	entry, err := Decode(key, e.Value)
	if err != nil {
		return nil, err
	}
	entry.Version = e.Version
	return entry, nil
}

// Put writes the entry and moves it in the expiry index. before is where it was, zero for nowhere.
func Put(t *storage.Txn, e *Entry, before time.Time) {
	t.Put(IDKey(e.Key), encode(e))
	if !before.IsZero() {
		t.Delete(ExpiryKey(before, e.Key))
	}
	if !e.ExpiresAt.IsZero() {
		t.Put(ExpiryKey(e.ExpiresAt, e.Key), Present)
	}
}

// What is stored:
//
//	l/token/key                        the key of all hashes below
//	l/token/id/<token>                 the Entry
//	l/token/accessor/<accessor>        AccessorRef
//	l/token/child/<parent>/<token>     index of children
//	l/token/expiry/<nanoseconds>/<token>  index of what expires, the time in 20 digits
//	s/sys/<namespace>/token-roles/<name>  a token role
//
// where tokens and accessors are keyed hashes. All keys of one token change in one batch.
const (
	HashKey        storage.Key = "l/token/key"
	IDPrefix       storage.Key = "l/token/id/"
	AccessorPrefix storage.Key = "l/token/accessor/"
	ChildPrefix    storage.Key = "l/token/child/"
	ExpiryPrefix   storage.Key = "l/token/expiry/"
)

// Present is the value of index entries.
var Present = []byte("1")

// Where the entry of a token stands, what its accessor leads to, and its places in the indexes of children and expiry.
func IDKey(key string) storage.Key            { return IDPrefix + storage.Key(key) }
func AccessorKey(hash string) storage.Key     { return AccessorPrefix + storage.Key(hash) }
func ChildrenKey(parent string) storage.Key   { return ChildPrefix + storage.Key(parent) + "/" }
func ChildKey(parent, key string) storage.Key { return ChildrenKey(parent) + storage.Key(key) }

func ExpiryKey(at time.Time, key string) storage.Key {
	return ExpiryPrefix + storage.Key(fmt.Sprintf("%020d/%s", at.UnixNano(), key))
}

// SplitExpiryKey is the inverse of ExpiryKey.
func SplitExpiryKey(k storage.Key) (at time.Time, key string, ok bool) {
	nanos, key, ok := strings.Cut(strings.TrimPrefix(string(k), string(ExpiryPrefix)), "/")
	n, err := strconv.ParseInt(nanos, 10, 64)
	return time.Unix(0, n), key, ok && err == nil && key != ""
}

// AccessorRef is what an accessor leads to.
type AccessorRef struct {
	Format   int    `json:"format"` // 1
	Accessor string `json:"accessor"`
	Token    string `json:"token"` // Key
	// Namespace is that of the token. Entries of the first release have none: they are of the root namespace.
	Namespace string `json:"namespace,omitempty"`
}

// Ref returns what the accessor of the token leads to.
func (e *Entry) Ref() AccessorRef {
	return AccessorRef{Accessor: e.Accessor, Token: e.Key, Namespace: e.Namespace}
}

// Encode returns what is stored.
func (r AccessorRef) Encode() []byte {
	r.Format = 1
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts and a number
	}
	return value
}

// DecodeAccessor returns what is stored under an accessor.
func DecodeAccessor(value []byte) (AccessorRef, error) {
	var r AccessorRef
	if err := json.Unmarshal(value, &r); err != nil || r.Format != 1 {
		return r, errors.New("a stored accessor has an unknown format")
	}
	if r.Namespace == "" {
		r.Namespace = RootNamespace
	}
	return r, nil
}

// Scan yields what is stored below prefix in key order, read in pages.
func Scan(ctx context.Context, s storage.Store, prefix storage.Key) iter.Seq2[storage.Entry, error] {
	const page = 512
	return func(yield func(storage.Entry, error) bool) {
		var after storage.Key
		for {
			entries, err := s.Scan(ctx, prefix, after, page)
			if err != nil {
				yield(storage.Entry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if len(entries) < page {
				return
			}
			after = entries[len(entries)-1].Key
		}
	}
}
