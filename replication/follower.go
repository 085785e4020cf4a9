package replication

import (
	"context"

	"github.com/coffer-project/coffer/storage"
)

// FollowerOptions of NewFollower. Zero values mean the defaults.
type FollowerOptions struct {
	SetID, ClusterID string
	SmallUnit        int // a unit of fewer keys is compared by its whole list; default 1024
	MaxAsk           int // keys in one AskItems; default 512
	// Now is the clock, in Unix milliseconds. Required.
	Now func() int64
	// BeforeDrop reports whether a unit that left the scope may be deleted now. It is asked again by each Next until it
	// may, and must not block. nil: always.
	BeforeDrop func(context.Context, Unit) bool
}

// FollowerProgress describes a follower. The counters are since NewFollower.
type FollowerProgress struct {
	State       SecondaryState   // never Disconnected: that is the caller's to know
	Cursor      storage.Position // everything up to here is applied; it may be ahead of what is stored
	Head        storage.Position // of the primary, as last heard
	Oldest      storage.Position // what the primary keeps
	Addrs       []string         // of the primary, as last heard; shared, not to be modified
	PrimaryID   string
	Lineage     storage.Lineage // shared, not to be modified
	TimeMS      int64           // of the last entry applied, on the primary's clock
	HeardMS     int64           // when the last Heartbeat came, on ours
	PrimaryMS   int64           // what it said about the primary's clock
	Exact       bool            // all units are exact at Cursor
	Entries     uint64          // applied
	Bytes       int64           // of batches
	Repair      *Repair         // running or last; nil: none since NewFollower
	Units       map[Unit]Phase  // the caller's own
	Quarantined int
}

// Follower applies what a primary's Session sends, on the active node of a secondary. One serves all connections, one
// after the other: each begins with Hello. Not safe for concurrent use.
type Follower struct{}

// NewFollower returns a follower that has not said Hello.
func NewFollower(r Replica, layout Layout, o FollowerOptions) *Follower { return &Follower{} }

// Hello forgets the connection before, loads the state, and returns what to open the stream with. ErrBuilding: call again
// later.
func (f *Follower) Hello(ctx context.Context) (Hello, error) { return Hello{}, nil }

// Receive takes a message from the primary, and commits what follows from it. After an error the connection is over:
// ErrFenced, ErrOtherSet and ErrRejected are the primary's answer, after others a new one may help.
func (f *Follower) Receive(ctx context.Context, m Message) error { return nil }

// Next returns what to send now, nil if nothing: then the caller calls again at once if Busy, else after a message or after
// 100 ms. It also does a slice of local work. ErrFinal: the primary was demoted, and everything it had is applied.
func (f *Follower) Next(ctx context.Context) (Message, error) { return nil, nil }

// Busy reports whether Next has local work left.
func (f *Follower) Busy() bool { return false }

// Repair compares everything with the primary, in the current connection and those after it.
func (f *Follower) Repair(ctx context.Context, cause string) error { return nil }

// Status describes the follower.
func (f *Follower) Status() FollowerProgress { return FollowerProgress{State: Connecting} }
