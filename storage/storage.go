// Package storage holds the contract between everything that keeps state and everything that stores it.
//
// It promises one thing: a Batch is applied completely or not at all, in one order that every node of a
// cluster agrees on. It knows neither encryption (storage/barrier adds it, by wrapping a Store in a Store),
// nor Raft (package cluster provides it), nor files (storage/fsm and storage/boltstore). Start reading at
// Store, then Batch, then Update.
package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Index is a position in the cluster's Raft log. It only grows. Zero is before the first entry.
type Index uint64

// Class says how far a key travels. It is the first byte of every Key.
type Class byte

const (
	// Shared data replicates from a primary cluster to its secondaries.
	Shared Class = 's'
	// Local data belongs to one cluster and never leaves it.
	Local Class = 'l'
	// Private data belongs to one node and is not in the replicated state at all.
	Private Class = 'n'
)

// Limits of what one entry and one batch may hold.
const (
	MaxKeyBytes   = 4 << 10 // a whole Key
	MaxValueBytes = 1 << 20 // one value, before encryption
	MaxBatchBytes = 8 << 20 // all keys and values of one Batch
)

// Key names one entry: "<class>/<area>/<path>". The area is a mount's UUID, or the name of a part of the
// server ("sys", "token", …). Below a View, keys are relative to the View's prefix and carry no class.
type Key string

// NewKey joins class, area and path. It does not validate: Batch.Validate does.
func NewKey(class Class, area, path string) Key {
	return Key(string(class) + "/" + area + "/" + path)
}

// Class returns the key's class, or 0 if the key is too short to have one.
func (k Key) Class() Class {
	if len(k) < 2 || k[1] != '/' {
		return 0
	}
	return Class(k[0])
}

// Area returns the part between the first and the second slash, or "" if there is none.
func (k Key) Area() string {
	if len(k) < 2 || k[1] != '/' {
		return ""
	}
	area, _, ok := strings.Cut(string(k[2:]), "/")
	if !ok {
		return ""
	}
	return area
}

// Path returns the part after the area, or "" if there is none.
func (k Key) Path() string {
	if area := k.Area(); area != "" {
		return string(k[len(area)+3:])
	}
	return ""
}

// Validate reports what is wrong with a whole (not relative) key, or nil.
func (k Key) Validate() error { return validateKeys(k) }

// validateKeys is Validate of the first key that is wrong.
func validateKeys(keys ...Key) error {
	for _, k := range keys {
		class, rest, hasClass := strings.Cut(string(k), "/")
		area, _, hasArea := strings.Cut(rest, "/")
		switch {
		case !hasClass || class != string(Shared) && class != string(Local):
			return fmt.Errorf("key class must be %q or %q", Shared, Local)
		case !hasArea || area == "":
			return errors.New("key has no area")
		case len(k) > MaxKeyBytes:
			return fmt.Errorf("key is %d bytes, the limit is %d: %w", len(k), MaxKeyBytes, ErrTooLarge)
		case !utf8.ValidString(string(k)):
			return errors.New("key is not valid UTF-8")
		case strings.IndexByte(string(k), 0) >= 0:
			return errors.New("key contains a NUL byte")
		}
	}
	return nil
}

// Entry is one stored value. Version is the index of the log entry that last wrote it, never 0.
// Value is shared with the store: read it, do not change it.
//
// Origin is where the value was first written if that was another cluster, else zero.
type Entry struct {
	Key     Key
	Value   []byte
	Version Index
	Origin  Position
}

// Read is a precondition of a Batch: Key must still have exactly this Version. Version 0 means that the key
// must not exist.
type Read struct {
	Key     Key
	Version Index
}

// Put stores Value under Key, whatever was there. Origin is set, epoch and index, for what was first written in another
// cluster.
type Put struct {
	Key    Key
	Value  []byte
	Origin Position
}

// Batch is one optimistic transaction. If every Read still holds, all Puts and Deletes happen at one index;
// otherwise nothing happens and Commit returns ErrConflict. Deleting a key that does not exist is fine.
// A key may appear at most once among Puts and Deletes together.
type Batch struct {
	Reads   []Read
	Puts    []Put
	Deletes []Key
}

// Empty reports whether the batch would change nothing.
func (b *Batch) Empty() bool { return len(b.Puts) == 0 && len(b.Deletes) == 0 }

// Keys returns the keys of the puts, of the deletes and of the reads, in this order.
func (b *Batch) Keys() []Key {
	keys := make([]Key, 0, len(b.Puts)+len(b.Deletes)+len(b.Reads))
	for i := range b.Puts {
		keys = append(keys, b.Puts[i].Key)
	}
	keys = append(keys, b.Deletes...)
	for i := range b.Reads {
		keys = append(keys, b.Reads[i].Key)
	}
	return keys
}

// Writes reports whether the batch puts or deletes a key with one of these prefixes.
func (b *Batch) Writes(prefixes ...Key) bool {
	for _, prefix := range prefixes {
		for i := range b.Puts {
			if strings.HasPrefix(string(b.Puts[i].Key), string(prefix)) {
				return true
			}
		}
		for _, key := range b.Deletes {
			if strings.HasPrefix(string(key), string(prefix)) {
				return true
			}
		}
	}
	return false
}

// Bytes returns the size of all keys and values in the batch.
func (b *Batch) Bytes() int {
	n := 0
	for _, r := range b.Reads {
		n += len(r.Key)
	}
	for _, p := range b.Puts {
		n += len(p.Key) + len(p.Value)
	}
	for _, k := range b.Deletes {
		n += len(k)
	}
	return n
}

// Validate reports the first key or size in the batch that no store may accept, or nil. Keys are whole keys.
// slack is that of CheckSize.
func (b *Batch) Validate(slack int) error {
	keys := b.Keys()
	writes := keys[:len(b.Puts)+len(b.Deletes)]
	seen := make(map[Key]bool, len(writes))
	for _, k := range writes {
		if seen[k] {
			return fmt.Errorf("key %q is written twice in one batch", k)
		}
		seen[k] = true
	}
	if err := validateKeys(keys...); err != nil {
		return err
	}
	for _, p := range b.Puts {
		if (p.Origin.Epoch == 0) != (p.Origin.Index == 0) {
			return fmt.Errorf("the origin of key %q is incomplete", p.Key)
		}
	}
	return b.CheckSize(slack)
}

// CheckSize reports the first value that is too large, or that the batch is, or nil. slack is added to the limit of each
// value, and once for each value to that of the batch; callers that store sealed values pass at least the sealing overhead.
func (b *Batch) CheckSize(slack int) error {
	for _, p := range b.Puts {
		if len(p.Value) > MaxValueBytes+slack {
			return fmt.Errorf("value is %d bytes, the limit is %d: %w", len(p.Value), MaxValueBytes, ErrTooLarge)
		}
	}
	if n := b.Bytes() - slack*len(b.Puts); n > MaxBatchBytes {
		return fmt.Errorf("batch is %d bytes, the limit is %d: %w", n, MaxBatchBytes, ErrTooLarge)
	}
	return nil
}

// Reader reads the state. Each call sees the state as of one index, never half of a batch; two calls may see
// two indexes. A context that has ended makes a call return its error. Safe for concurrent use.
type Reader interface {
	// Get returns the entry, or ErrNotFound.
	Get(ctx context.Context, key Key) (Entry, error)

	// List returns what stands directly below prefix, in byte order: "name" for a key, "folder/" for keys
	// further down (each folder once, at the cost of one seek however much it holds). Only names greater
	// than after are returned, at most limit of them; limit ≤ 0 means all. Nil when there is nothing. The
	// prefix must be "" (in a View) or end in "/"; a key that is the prefix itself is not in its own list.
	List(ctx context.Context, prefix Key, after string, limit int) ([]string, error)

	// Scan returns the entries whose key begins with prefix and is greater than after, in byte order, at
	// most limit of them; limit ≤ 0 means all. The slice is the caller's, the values in it are not.
	Scan(ctx context.Context, prefix, after Key, limit int) ([]Entry, error)
}

// Committer applies batches.
type Committer interface {
	// Commit applies b and returns the index it was applied at; reads on this node then include it. Errors:
	// ErrConflict (a precondition failed, nothing changed), ErrTooLarge or a validation error (nothing
	// changed), ErrReadOnly (not the leader, nothing changed), ErrUnavailable (no room or no leader, nothing
	// changed), ErrOutcomeUnknown (it may or may not have been applied, now or later), the context's error if
	// it had ended before the call (nothing changed). An empty batch with Reads is only checked. The values
	// belong to the store from the call on: do not modify them. Safe for concurrent use.
	Commit(ctx context.Context, b Batch) (Index, error)
}

// Store is a Reader and a Committer over the same state.
type Store interface {
	Reader
	Committer
}

// Change is what one applied log entry changed, in log order. Nothing in it may be modified.
type Change struct {
	Index Index
	// Entries are the keys that were written, each once, with their values as stored: sealed where the store holds sealed values.
	// Version 0 is a deletion.
	Entries []Entry
	// Areas are those of the keys, each once; a Feed fills them in. Most changes are of one.
	Areas []string
	// Reset is set when the whole state was replaced (a snapshot was installed): forget everything.
	Reset bool
}

// Touches reports whether the change wrote or deleted a key with one of these prefixes, or replaced everything.
func (c *Change) Touches(prefixes ...Key) bool {
	for i := range c.Entries {
		for _, prefix := range prefixes {
			if strings.HasPrefix(string(c.Entries[i].Key), string(prefix)) {
				return true
			}
		}
	}
	return c.Reset
}

// Sentinels. Use errors.Is.
var (
	ErrNotFound       = errors.New("not found")
	ErrConflict       = errors.New("conflict: the data changed since it was read")
	ErrReadOnly       = errors.New("this node takes no writes")
	ErrPrimaryOnly    = errors.New("shared data is written on the primary cluster")
	ErrUnavailable    = errors.New("storage is unavailable")
	ErrOutcomeUnknown = errors.New("outcome unknown: the write may or may not have been applied")
	ErrTooLarge       = errors.New("too large")
	ErrSealed         = errors.New("sealed")
	ErrTooSlow        = errors.New("consumer fell too far behind the change stream")
)

// CorruptError says that a file's content is not what was written. The node must not serve from it.
type CorruptError struct {
	File   string // path of the damaged file
	Detail string // what was found; no values
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is corrupt: %s", e.File, e.Detail)
}
