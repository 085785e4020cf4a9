// Package record has what is stored of one lease: its record, the keys of it and of its index entries, and how long it may live.
//
// It promises that Put keeps a lease and its place in the index together. When leases are stored, changed and removed is said in
// package lease. Start reading at the keys, then Record.
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/storage"
)

// What is stored, all of class l:
//
//	l/lease/id/<namespace id>/<lease id>     the record
//	l/lease/exp/<name>                       what has to be looked at when; the name begins with the time
//	l/lease/stuck/<name>                     irrevocable leases; the name begins with when they became so
//	l/lease/token/<token>/<short name>       the leases of a token
//	l/lease/clock                            the latest time that the active node is known to have seen
//
// A lease is in exactly one of exp and stuck. All keys of one lease change in one batch. The names tell
// everything that counting and waiting need, so that neither decrypts anything.
const (
	IDPrefix    storage.Key = "l/lease/id/"
	TokenPrefix storage.Key = "l/lease/token/"
	ClockKey    storage.Key = "l/lease/clock"
)

// Present is the value of index entries.
var Present = []byte("1")

// RootNamespace is the id of the root namespace.
const RootNamespace = "root"

// Bounds of what one lease may hold.
const (
	MaxNameBytes     = 2 << 10
	MaxInternalBytes = 64 << 10
)

// State is how far a lease is on its way out.
type State string

const (
	Living      State = ""
	Revoking    State = "revoking"    // it will be revoked, whatever happens; it can no longer be renewed
	Irrevocable State = "irrevocable" // given up after maxTries
)

// Record is the stored form of a lease.
type Record struct {
	Format    int             `json:"format"` // 1
	ID        string          `json:"id"`
	Namespace string          `json:"namespace"` // id
	Mount     string          `json:"mount"`     // uuid
	MountPath string          `json:"mount_path"`
	Path      string          `json:"path"` // below the mount
	Token     string          `json:"token,omitempty"`
	Kind      string          `json:"kind"`
	Internal  json.RawMessage `json:"internal,omitempty"`
	Renewable bool            `json:"renewable,omitempty"`
	TTL       time.Duration   `json:"ttl"` // as last granted
	// MaxTTL is counted from IssuedAt. Until, if set, is another limit that no renewal lifts.
	MaxTTL    time.Duration `json:"max_ttl"`
	Until     time.Time     `json:"until,omitzero"`
	IssuedAt  time.Time     `json:"issued_at"`
	ExpiresAt time.Time     `json:"expires_at"`
	RenewedAt time.Time     `json:"renewed_at,omitzero"`
	// IndexedAt is the time in the index. It may be earlier than ExpiresAt: the lease is then re-indexed.
	IndexedAt time.Time `json:"indexed_at"`
	State     State     `json:"state,omitempty"`
	Force     bool      `json:"force,omitempty"` // remove it whatever the engine says
	Tries     int       `json:"tries,omitempty"`
	Reason    string    `json:"reason,omitempty"` // why the last try failed, for clients
}

// Encode returns what is stored.
func (r *Record) Encode() []byte {
	r.Format = 1
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts, numbers, times, and JSON that has been checked
	}
	return value
}

// Decode returns the record in what is stored.
func Decode(value []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(value, &r); err != nil || r.Format != 1 {
		return nil, errors.New("a stored lease has an unknown format")
	}
	return &r, nil
}

// KeyOf returns where the record of a lease is stored.
func KeyOf(ns, id string) storage.Key { return IDPrefix + storage.Key(ns+"/"+id) }

// Key is where the record is stored.
func (r *Record) Key() storage.Key { return KeyOf(r.Namespace, r.ID) }

// IndexKey is where the lease is in exp or stuck.
func (r *Record) IndexKey() storage.Key {
	if r.State == Irrevocable {
		return index.StuckPrefix + storage.Key(r.Name())
	}
	return index.ExpPrefix + storage.Key(r.Name())
}

// Name is the name of its index entry.
func (r *Record) Name() string {
	return index.Name(r.IndexedAt, r.Namespace, r.Mount, r.MountPath, r.ID)
}

// TokenKey is the lease's entry among those of its token, or "".
func (r *Record) TokenKey() storage.Key {
	if r.Token == "" {
		return ""
	}
	return TokenPrefix + storage.Key(r.Token+"/"+index.ShortName(r.Namespace, r.ID))
}

// Keys are all that the lease has.
func (r *Record) Keys() []storage.Key {
	keys := []storage.Key{r.Key(), r.IndexKey()}
	if k := r.TokenKey(); k != "" {
		keys = append(keys, k)
	}
	return keys
}

// ForEngine is what the engine gets back.
func (r *Record) ForEngine() engines.LeaseRecord {
	return engines.LeaseRecord{
		ID: r.ID, Kind: r.Kind, Path: r.Path, Internal: r.Internal, IssuedAt: r.IssuedAt, ExpiresAt: r.ExpiresAt,
	}
}

// NamespaceOf returns the id of the namespace that a lease id names. Outside the root namespace it is the part
// after a dot in the last segment.
func NamespaceOf(id string) string {
	last := id[strings.LastIndexByte(id, '/')+1:]
	if _, ns, ok := strings.Cut(last, "."); ok && ns != "" {
		return ns
	}
	return RootNamespace
}

// getter is a storage.Reader or a storage.Txn.
type getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// Get reads a record that belongs to the caller, or storage.ErrNotFound.
func Get(ctx context.Context, from getter, ns, id string) (*Record, error) {
	if id == "" || len(id) > MaxNameBytes || strings.ContainsRune(id, 0) {
		return nil, storage.ErrNotFound
	}
	e, err := from.Get(ctx, KeyOf(ns, id))
	if err != nil {
		return nil, err
	}
	return Decode(e.Value)
}

// Put writes the record, and moves it in the index if it is no longer where it was.
func Put(t *storage.Txn, rec *Record, before storage.Key) {
	t.Put(rec.Key(), rec.Encode())
	if now := rec.IndexKey(); now != before {
		t.Delete(before)
		t.Put(now, Present)
	}
}

// Lifetime returns how long the lease may last from now on if wanted is what it should; 0 or less when its
// maximum is reached.
func (r *Record) Lifetime(wanted time.Duration, now time.Time) (ttl time.Duration, warnings []string) {
	left := r.IssuedAt.Add(r.MaxTTL).Sub(now)
	if !r.Until.IsZero() {
		left = min(left, r.Until.Sub(now))
	}
	if wanted > left {
		if left > 0 {
			warnings = append(warnings, fmt.Sprintf("TTL of %q exceeded the effective max_ttl of %q; TTL value is capped accordingly", wanted, left))
		}
		return left, warnings
	}
	return wanted, nil
}

// maxLifetime keeps times of expiry within what the index can order.
const maxLifetime = 100 * 365 * 24 * time.Hour

// Shortest returns the smallest of the limits that are set, and maxLifetime if none is.
func Shortest(limits ...time.Duration) time.Duration {
	least := maxLifetime
	for _, l := range limits {
		if l > 0 {
			least = min(least, l)
		}
	}
	return least
}
