package storage

import (
	"fmt"
	"slices"
)

// Position is a place in the history of a replication set: an index of the log of the cluster that was the primary
// in an epoch. Within an epoch positions are ordered by index, between epochs by a Lineage. The zero Position is before
// everything. One with epoch 0 and an index is of this cluster's own log (see Lineage.Resolve).
type Position struct {
	Epoch uint32 `json:"epoch"`
	Index Index  `json:"index"`
}

// IsZero reports whether p is before everything.
func (p Position) IsZero() bool { return p == Position{} }

// Before reports whether p is earlier than q in one history: of an earlier epoch, or of a smaller index in the same one.
func (p Position) Before(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.Index < q.Index
}

// String returns "epoch:index".
func (p Position) String() string { return fmt.Sprintf("%d:%d", p.Epoch, p.Index) }

// EpochID names an epoch of a replication set. Two clusters that are promoted without knowing of each other take one number:
// the cluster tells them apart, and makes the order total, so that both sides find the same one later.
type EpochID struct {
	Number    uint32 `json:"epoch"`
	ClusterID string `json:"cluster_id"` // of the primary
}

// After reports whether e is the later of two epochs: of a higher number, or of the greater cluster id.
func (e EpochID) After(f EpochID) bool {
	return e.Number > f.Number || e.Number == f.Number && e.ClusterID > f.ClusterID
}

// String returns "number of cluster id".
func (e EpochID) String() string { return fmt.Sprintf("%d of cluster %s", e.Number, e.ClusterID) }

// Branch is the beginning of one epoch.
type Branch struct {
	Epoch     uint32 `json:"epoch"`
	ClusterID string `json:"cluster_id"` // of the primary
	// From is where it left the epoch before: what came there after From is not part of the history. Zero in the first.
	From Position `json:"from"`
	// Base is the index of the primary's own log from which on its writes are of this epoch.
	Base Index `json:"base"`
}

// Lineage is the history of a replication set: its epochs, oldest first, each with a higher number than the one before.
// Numbers between two of them are of epochs that are not part of this history.
type Lineage []Branch

// Epoch returns the current epoch, 0 if there is none.
func (l Lineage) Epoch() uint32 {
	if len(l) == 0 {
		return 0
	}
	return l[len(l)-1].Epoch
}

// Last returns the current epoch, the zero one if there is none.
func (l Lineage) Last() EpochID {
	if len(l) == 0 {
		return EpochID{}
	}
	b := l[len(l)-1]
	return EpochID{Number: b.Epoch, ClusterID: b.ClusterID}
}

// Has reports whether an epoch is one of this history.
func (l Lineage) Has(e EpochID) bool {
	return slices.ContainsFunc(l, func(b Branch) bool { return b.Epoch == e.Number && b.ClusterID == e.ClusterID })
}

// Resolve turns a position of the own log (epoch 0) into one of the set; others stay as they are. clusterID is whose log
// it is. What was written before the first epoch counts to the first.
func (l Lineage) Resolve(clusterID string, p Position) Position {
	if p.Epoch != 0 || p.Index == 0 {
		return p
	}
	epoch := uint32(1)
	for _, b := range l {
		if b.ClusterID == clusterID && b.Base <= p.Index {
			epoch = b.Epoch
		}
	}
	return Position{Epoch: epoch, Index: p.Index}
}

// Contains reports whether p is part of this history: its epoch is one of these, and it is not behind a point where a
// later epoch left it. A cluster that has heard of an epoch may have nothing of it when it is promoted by force: so a
// branch may be from an epoch before the last one.
func (l Lineage) Contains(p Position) bool {
	i := slices.IndexFunc(l, func(b Branch) bool { return b.Epoch == p.Epoch })
	return i >= 0 && l[i+1:].left(p) == p
}

// left returns how much of the history up to p remains after these branches have left it.
func (l Lineage) left(p Position) Position {
	for _, b := range l {
		if b.From.Before(p) {
			p = b.From
		}
	}
	return p
}

// Common returns the last position that two histories share, and false if they have no epoch in common. What one of them
// has written after it is not part of the other.
func (l Lineage) Common(m Lineage) (Position, bool) {
	same := 0
	for same < min(len(l), len(m)) && l[same].Epoch == m[same].Epoch && l[same].ClusterID == m[same].ClusterID && l[same].From == m[same].From {
		same++
	}
	if same == 0 {
		return Position{}, false
	}
	common := Position{Epoch: l[same-1].Epoch, Index: ^Index(0)} // as far as both have come
	return m[same:].left(l[same:].left(common)), true
}
