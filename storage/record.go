package storage

// Record is what one applied log entry did to the shared keys, for consumers that come later: other clusters. Nothing in
// it may be modified.
type Record struct {
	Index  Index
	TimeMS int64 // the leader's clock, Unix milliseconds
	Ops    []RecordOp
}

// RecordOp is the last state that an entry gave to a key. A key that did not exist may be deleted: a secondary applies
// several entries of its primary as one of its own, and for a secondary that has only some of them the key may exist.
type RecordOp struct {
	Key     Key
	Value   []byte // as stored, so sealed where the store holds sealed values; nil when Deleted
	Deleted bool
	// Origin is where the value was first written, if in another cluster; zero: here, at the record's index.
	Origin Position
	// Prior is the position of what the key held before: its origin, or {0, version} if it was written here; zero if it
	// did not exist.
	Prior Position
}
