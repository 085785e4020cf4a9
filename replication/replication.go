// Package replication carries the shared data of a primary cluster to its secondaries.
//
// It promises that a secondary in state Streaming holds exactly what the primary held at one position, of the units that
// the secondary may have, and that it gets there at a cost proportional to what changed. This package is the contract: units,
// positions, messages, and what the two sides see of their clusters (Source and Replica). Two state machines fulfil it, which
// have neither goroutines nor clock nor network, so that a simulation can run them by seed: primary.Session for each connected
// secondary on the primary's active node, and secondary.Follower on the secondary's active node. Package link runs them on a node, over
// what package state has of its data.
//
// It assumes that one ordered stream of messages connects the two, that Records come in the order of the primary's log,
// and that Replica.Commit is atomic. Start reading at messages.go, then primary and secondary; DESIGN.md says why it is
// correct.
package replication

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Unit names what filters act upon, and what is compared and repaired as a whole: "mount/<uuid>", "ns/<namespace id>" or
// "global". Every shared key that replicates belongs to exactly one.
type Unit string

// Layout knows which key belongs where. All functions are pure.
type Layout struct {
	// Unit returns the unit of a key; false: the key does not replicate.
	Unit func(storage.Key) (Unit, bool)
	// Anchor reports whether the key makes its unit visible: a mount's entry, a namespace's record. On a secondary it is
	// written last when a unit is added, and removed first when it is dropped.
	Anchor func(storage.Key) bool
	// Prefixes returns, in byte order, prefixes that hold all keys of the unit but its anchor. There may be keys of other
	// units below them.
	Prefixes func(Unit) []storage.Key
}

// Item is one entry in plaintext, with the position at which it was written; never the zero one, never with epoch 0.
type Item struct {
	Key   storage.Key
	Value []byte
	Mod   storage.Position
}

// KeyMod is an Item without its value.
type KeyMod struct {
	Key storage.Key
	Mod storage.Position
}

// Op is one change: an Item that was put, or a key (with the position of that) that was deleted. Fresh: the key did not
// exist before.
type Op struct {
	Item
	Delete bool
	Fresh  bool
}

// Entry is what one entry of the primary's log did to shared keys. At is its place in the history of the set: of the
// log's own epoch, or, of an entry that the cluster wrote while it was a secondary itself, where its cursor was after it.
type Entry struct {
	At     storage.Position
	TimeMS int64 // the primary's clock
	Ops    []Op
}

// Sentinels. Use errors.Is.
var (
	// ErrTruncated says that records that old are no longer kept.
	ErrTruncated = errors.New("these records are no longer kept")
	// ErrRevoked says that the secondary may not connect any more.
	ErrRevoked = errors.New("the secondary was revoked")
	// ErrFenced says that there is a primary of a later epoch.
	ErrFenced = errors.New("a primary of a later epoch exists")
)

// Why a stream has ended. Use errors.Is; ErrFenced and ErrRevoked belong to them.
var (
	// ErrFinal says that the primary was demoted, and that everything it had was sent and applied.
	ErrFinal = errors.New("the primary was demoted: the stream is complete")
	// ErrOtherSet says that the two belong to different replication sets.
	ErrOtherSet = errors.New("the clusters belong to different replication sets")
	// ErrRejected says that the primary cannot serve the secondary for another reason.
	ErrRejected = errors.New("the primary rejects the secondary")
	// ErrProtocol says that the other side sent what it must not; a new connection begins from the start.
	ErrProtocol = errors.New("the other side broke the replication protocol")
	// ErrBuilding says that a node is not so far yet: try again.
	ErrBuilding = errors.New("the node is not ready yet")
)

// ProtocolVersion is the version of the messages. There is one.
const ProtocolVersion = 1

// Source is what a primary's active node gives to its sessions. Indexes are of its own log. What Page and Items return was
// read at one index, which is at least every index that Records has answered before. Calls are synchronous, from one
// goroutine for each session.
type Source interface {
	History
	Content
	// Scope returns the units that the secondary may have now, and a number that changes with them. ErrRevoked.
	Scope(ctx context.Context) (units map[Unit]bool, version uint64, err error)
	// NowMS is the clock.
	NowMS() int64
	// Addrs are the cluster addresses of the primary's nodes.
	Addrs() []string
}

// History is what has happened to the shared data, in order.
type History interface {
	// Self returns the set, the cluster and the history.
	Self() (setID, clusterID string, lineage storage.Lineage)
	// Final returns the index of the entry that has demoted this cluster, if it is demoted as of now: what was read before the call
	// may be of a later index.
	Final() (at storage.Index, demoted bool)
	// Records returns entries with an index above after, oldest first, of about maxBytes (at least one if there is any),
	// and the index through which the answer is complete: nothing shared happened between the last entry and it. Ops of
	// every unit are in it, of keys without a unit none. ErrTruncated: not kept that long.
	Records(ctx context.Context, after storage.Index, maxBytes int) (entries []Entry, through storage.Index, err error)
	// Head returns the index of the last applied entry. What Page and Items return later is not older.
	Head() storage.Index
	// Oldest returns the index after which Records are kept.
	Oldest() storage.Index
	// Locate turns a position of an earlier epoch, of this cluster or another one, into an index of its own log: everything
	// after that index, and perhaps a little before it, is what a secondary at the position lacks. false: not known, no
	// longer kept, or this cluster was not exact since.
	Locate(ctx context.Context, p storage.Position) (storage.Index, bool)
}

// Content is the shared data as it is, by unit.
type Content interface {
	// Page lists keys of a unit, in byte order after a key ("" begins): all, or those in the buckets; with values if wanted,
	// of about maxBytes. done: last is the unit's last key. The unit's anchor is in the page with done, wherever it would
	// be in byte order and whatever the buckets are, and does not count for last: if it is not there, there is none.
	Page(ctx context.Context, unit Unit, after storage.Key, buckets *digest.Buckets, values bool, maxBytes int) (items []Item, last storage.Key, done bool, at storage.Index, err error)
	// Items returns what the unit's keys hold, of about maxBytes, in the order of keys. n of the keys are answered; those
	// of them that are not among the items do not exist.
	Items(ctx context.Context, unit Unit, keys []storage.Key, maxBytes int) (items []Item, n int, at storage.Index, err error)
	// Digests returns the roots of all trees at one index; false: they are being built.
	Digests() (at storage.Index, roots map[Unit]digest.Sum, ok bool)
	// Sums returns a unit's sums at one index: of all groups, or of the buckets of one group. false: being built.
	Sums(unit Unit, group int) (sums []digest.Sum, at storage.Index, ok bool)
}

// AllGroups asks Sums for the sums of the groups.
const AllGroups = -1

// UnitState is what a secondary knows of a unit that it has. It is stored.
type UnitState struct {
	Phase Phase `json:"phase"`
	// After is the last key that was dealt with while Adding or Checking.
	After storage.Key `json:"after,omitempty"`
	// Until is the position from which on the unit is exact, once its phase is Whole.
	Until storage.Position `json:"until,omitzero"`
	// Anchor is the anchor that waits until the unit is whole; nil when it is in its place.
	Anchor *Item `json:"anchor,omitempty"`
	// Attempts counts repairs in a row after which a checkpoint still differed.
	Attempts int `json:"attempts,omitempty"`
	// List is set while Checking or Adding after a divergence in which both sides had an epoch of one number, so that a
	// position may mean two values: then no sums are compared, and nothing behind State.Diverged is relied on.
	List bool `json:"list,omitempty"`
}

// Phase of a unit on a secondary.
type Phase string

const (
	Adding      Phase = "adding"      // it is being fetched, and invisible
	Checking    Phase = "checking"    // it is being compared and repaired, and visible
	Whole       Phase = "whole"       // exact once the cursor has passed Until
	Dropping    Phase = "dropping"    // it left the scope, and is being deleted; invisible
	Quarantined Phase = "quarantined" // it differed after two repairs: streamed, but no longer repaired
)

// State is what a secondary has stored of its progress.
type State struct {
	Cursor  storage.Position // everything up to here is applied
	Lineage storage.Lineage  // of the primary it followed last
	// Diverged is the end of the history that this cluster shares with its primary, while it repairs what it had written
	// behind it; zero otherwise.
	Diverged storage.Position
	// Scope is the primary's version of it.
	Scope uint64
	Units map[Unit]UnitState
}

// Change is one atomic step of a secondary. A nil field leaves things as they are.
type Change struct {
	Cursor   *storage.Position
	TimeMS   int64 // of the last entry applied, on the primary's clock
	Lineage  storage.Lineage
	Diverged *storage.Position
	Scope    *uint64
	Puts     []Item
	Deletes  []storage.Key
	Units    map[Unit]*UnitState // nil value: the unit is gone
	Lost     []Conflict
}

// Conflict is a value that this cluster had written behind the point where the history of its primary left it, and that
// a repair replaces. The copy is kept.
type Conflict struct {
	Item
	Theirs storage.Position // zero: the key does not exist there
}

// Replica is a secondary's own state. Calls are synchronous, from one goroutine.
type Replica interface {
	// Load returns what is stored, and makes it what the next Commit builds upon.
	Load(ctx context.Context) (State, error)
	// Commit applies the change all or nothing if the stored state is still what was last loaded or committed. A change
	// that is too large for one write is made in several, the cursor and the units with the last. After an error the
	// outcome is open: Load again.
	Commit(ctx context.Context, c Change) error
	// Keys lists the keys of a unit in (after, until], in byte order, only those in the buckets if given. until "" is the
	// end. The unit's anchor is in the list if until is "".
	Keys(ctx context.Context, unit Unit, after, until storage.Key, buckets *digest.Buckets) ([]KeyMod, error)
	// Get returns an item; storage.ErrNotFound.
	Get(ctx context.Context, key storage.Key) (Item, error)
	// Drop removes keys of a unit, some at a time, its anchor first; done when nothing is left. The unit's state stays.
	Drop(ctx context.Context, unit Unit) (done bool, err error)
	// Digests returns the roots of all trees as of the last commit; false: they are being built.
	Digests(ctx context.Context) (roots map[Unit]digest.Sum, ok bool)
	// Sums is as in Source, as of the last commit.
	Sums(ctx context.Context, unit Unit, group int) (sums []digest.Sum, ok bool)
	// NowMS is the clock.
	NowMS() int64
}

// SecondaryState is what a secondary is doing, as its status says.
type SecondaryState string

const (
	Disconnected SecondaryState = "disconnected"
	Connecting   SecondaryState = "connecting"
	Backfill     SecondaryState = "backfill"    // the first copy
	CatchingUp   SecondaryState = "catching-up" // exact at an earlier position, and behind
	Streaming    SecondaryState = "streaming"   // exact, and no further behind than what is under way
	Repairing    SecondaryState = "repairing"
)

// Repair describes the last or the current comparison of the secondary with its primary.
type Repair struct {
	Cause     string    `json:"cause"`
	StartedAt time.Time `json:"started_at"`
	Seconds   float64   `json:"seconds"`
	Running   bool      `json:"running"`
	Units     int       `json:"units"`      // compared or fetched so far
	UnitsAll  int       `json:"units_all"`  // to compare or fetch
	Buckets   int       `json:"buckets"`    // that differed
	Keys      int       `json:"keys"`       // fetched or deleted
	Bytes     int64     `json:"bytes"`      // received for it
	Estimated int64     `json:"total_keys"` // of the whole, as the primary counts them; 0: not known
}
