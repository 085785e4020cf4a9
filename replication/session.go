package replication

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/coffer-project/coffer/storage"
)

// Why a stream has ended. Use errors.Is; ErrFenced and ErrRevoked belong to them.
var (
	// ErrFinal says that the primary was demoted, and that everything it had was sent and applied.
	ErrFinal = errors.New("the primary was demoted: the stream is complete")
	// ErrOtherSet says that the two belong to different replication sets.
	ErrOtherSet = errors.New("the clusters belong to different replication sets")
	// ErrRejected says that the primary cannot serve the secondary for another reason.
	ErrRejected = errors.New("the primary rejects the secondary")
	// ErrProtocol says that the other side sent what it must not; a new connection begins anew.
	ErrProtocol = errors.New("the other side broke the replication protocol")
	// ErrBuilding says that the digests are still being built: try again.
	ErrBuilding = errors.New("the digests of the data are being built")
)

// SessionOptions of NewSession. Zero values mean the defaults.
type SessionOptions struct {
	BatchBytes   int   // of one batch or page, about; default 1 MiB
	WindowBytes  int64 // batches under way; default 16 MiB
	HeartbeatMS  int64 // default 1000
	CheckpointMS int64 // default 2000
}

// SessionProgress describes a session.
type SessionProgress struct {
	ClusterID string           // of the secondary; "" before its Hello
	Sent      storage.Position // everything up to here was sent
	Acked     storage.Position // and everything up to here was applied
	AckedAtMS int64            // when that was heard of, on the primary's clock
	TimeMS    int64            // of the last entry applied, on the primary's clock
	InFlight  int64            // bytes of batches that were not acked
	Exact     bool             // as the secondary said last
	Repaired  int              // repairs that ended in this session
	Resumed   bool             // it went on where it was
	Diverged  bool
	Batches   uint64
	Entries   uint64
	Bytes     int64 // of batches and answers
	Answers   uint64
	MetEpoch  uint32 // a later epoch than ours that the secondary knows; 0: none
}

// Session feeds one connected secondary, on the active node of a primary. Not safe for concurrent use, but for
// ScopeChanged.
type Session struct {
	scopeChanged atomic.Bool
}

// NewSession returns a session that waits for Hello.
func NewSession(src Source, layout Layout, o SessionOptions) *Session { return &Session{} }

// ScopeChanged says that Source.Scope may answer differently from now on. Safe for concurrent use.
func (s *Session) ScopeChanged() { s.scopeChanged.Store(true) }

// Demoted says that nothing shared will be written after final. The session sends everything up to it, then Final.
func (s *Session) Demoted(final storage.Index) {}

// Status describes the session.
func (s *Session) Status() SessionProgress { return SessionProgress{} }

// Receive takes a message from the secondary. After an error the session is over.
func (s *Session) Receive(ctx context.Context, m Message) error { return nil }

// Next returns what to send now, nil if nothing: then the caller waits for a message, for a change of the log or the scope,
// or for 100 ms, and calls again. An error ends the session: ErrFinal once the secondary has acked Final, ErrFenced,
// ErrOtherSet or ErrRejected after a Reject was returned, ErrRevoked, or one of the Source.
func (s *Session) Next(ctx context.Context) (Message, error) { return nil, nil }
