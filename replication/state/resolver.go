package state

import (
	"cmp"
	"slices"

	"github.com/coffer-project/coffer/storage"
)

// resolver makes positions of the own log positions of the set.
type resolver struct {
	clusterID string
	lineage   storage.Lineage
	before    []storage.Branch // of this cluster's own, also those that are not part of the lineage any more
}

func (l *Local) resolver() resolver {
	self := l.o.Cluster.Self()
	r := resolver{clusterID: self.ClusterID, lineage: self.Lineage}
	for _, b := range l.progress.own(l.o.Store) {
		if b.ClusterID == self.ClusterID {
			r.before = append(r.before, b)
		}
	}
	return r
}

// PositionOf returns the position of an index of this node's log.
func (l *Local) PositionOf(i storage.Index) storage.Position { return l.resolver().index(i) }

// position resolves what was written here by the epoch that had begun last then.
func (r resolver) position(p storage.Position) storage.Position {
	if p.Epoch != 0 || p.Index == 0 || len(r.before) == 0 {
		return r.lineage.Resolve(r.clusterID, p)
	}
	return storage.Lineage(r.own()).Resolve(r.clusterID, p)
}

func (r resolver) index(i storage.Index) storage.Position {
	return r.position(storage.Position{Index: i})
}

// mod returns the position of a value that was written at an index of the own log.
func (r resolver) mod(origin storage.Position, at storage.Index) storage.Position {
	if origin.IsZero() {
		return r.index(at)
	}
	return origin
}

// own returns the epochs in which this cluster was the primary, in the order of its log: what decides how positions are
// understood.
func (r resolver) own() []storage.Branch {
	out := slices.Clone(r.before)
	for _, b := range r.lineage {
		if b.ClusterID == r.clusterID && !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	slices.SortStableFunc(out, func(a, b storage.Branch) int { return cmp.Compare(a.Base, b.Base) })
	return out
}

// wrote reports whether this cluster was the primary in an epoch of the history.
func (r resolver) wrote(epoch uint32) bool {
	return slices.ContainsFunc(r.lineage, func(b storage.Branch) bool { return b.Epoch == epoch && b.ClusterID == r.clusterID })
}

// began reports whether an entry of the own log made this cluster a primary.
func (r resolver) began(at storage.Index) bool {
	return slices.ContainsFunc(r.own(), func(b storage.Branch) bool { return b.Base == at })
}
