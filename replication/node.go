package replication

import (
	"context"

	"github.com/coffer-project/coffer/storage"
)

// StateMachine is this node's replicated state with sealed values.
type StateMachine interface {
	storage.Feed
	AppliedIndex() storage.Index
	WaitApplied(ctx context.Context, i storage.Index) error
	// BeginLog calls begin between two entries.
	BeginLog(begin func(applied storage.Index) error) error
	// Freeze returns the state as of now.
	Freeze(ctx context.Context) (Frozen, error)
}

// Store is the plaintext over a StateMachine, with no fence in front of it. *barrier.Barrier fulfils it.
type Store interface {
	storage.Store
	// OpenValue opens a sealed value of a Record or of a Frozen.
	OpenValue(ctx context.Context, key storage.Key, sealed []byte) ([]byte, error)
}

// Frozen is the state as it was at one index. *fsm.Frozen fulfils it.
type Frozen interface {
	Index() storage.Index
	// Get returns an entry, or storage.ErrNotFound.
	Get(key storage.Key) (storage.Entry, error)
	// Walk calls fn, in byte order, for each key that begins with prefix and is greater than after, until fn returns
	// false. The value is valid during the call.
	Walk(ctx context.Context, prefix, after storage.Key, fn func(key storage.Key, mod storage.Position, value []byte) bool) error
	Close()
}
