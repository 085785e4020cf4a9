package replication

import (
	"time"

	"github.com/coffer-project/coffer/storage"
)

// FollowStatus is how a secondary is doing.
type FollowStatus struct {
	State      SecondaryState
	Reason     string // why it is not connected, for people
	Paused     string // why nothing is taken from the primary at the moment, "" if it is
	Terminal   string // "", "revoked", "fenced", "rejected": needs an operator
	Cursor     storage.Position
	Head       storage.Position // of the primary, as last heard
	LagEntries uint64
	LagBytes   int64
	LagSeconds float64
	EntriesIn  uint64  // since the node became active
	BytesIn    int64   // likewise; what copies and repairs have fetched is part of it
	RateIn     float64 // entries each second, lately
	BytesRate  float64 // bytes each second, lately
	ETASeconds float64 // until it has caught up; negative: it does not
	Connected  string  // address
	Final      bool    // the primary has said that it is none any more, and everything that it had is here
	LastHeard  time.Time
	EqualAt    time.Time // the last moment at which everything that the primary had was here; zero: not known
	ClockSkew  time.Duration
	Repair     *Repair
	Exact      bool
	Units      map[string]string // unit: phase
	KeysDone   int64             // of a backfill
	KeysTotal  int64
	CanKeepUp  bool
}

// SessionStatus is one secondary that is connected, or was since this process began.
type SessionStatus struct {
	Peer          Peer
	Addr          string // where it connects from
	APIAddr       string
	ClusterAddr   string
	ConnectedAt   time.Time
	LastHeartbeat time.Time
	Cursor        storage.Position
	LagEntries    uint64
	LagSeconds    float64   // since EqualAt; 0 also if that is not known
	EqualAt       time.Time // the last moment at which both sides are known to have been equal; zero: not known
	EndedAt       time.Time // zero: it is connected
	EntriesOut    uint64
	BytesOut      int64
	RateOut       float64
	ClockSkew     time.Duration
	Exact         bool
}
