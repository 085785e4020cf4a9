package replication

import (
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Message is one of the types below. Both directions are ordered; what a secondary asks for is answered in order.
type Message interface{ message() }

// From the secondary.
type (
	// Hello opens a stream.
	Hello struct {
		SetID, ClusterID string
		Cursor           storage.Position
		Lineage          storage.Lineage
		ProtoMin         uint32
		ProtoMax         uint32
	}
	// Ack says what is committed, and gives back the credit that it took.
	Ack struct {
		Cursor   storage.Position
		Bytes    int64 // of the batches that were committed since the last one
		TimeMS   int64 // of the last entry applied, on the primary's clock
		Exact    bool  // all units are exact
		Repaired bool  // a repair has ended
	}
	// AskSums wants the sums of a unit's groups (AllGroups) or of one group's buckets.
	AskSums struct {
		Unit  Unit
		Group int
	}
	// AskPage wants keys of a unit.
	AskPage struct {
		Unit    Unit
		After   storage.Key
		Buckets *digest.Buckets // nil: all
		Values  bool
	}
	// AskItems wants the values of keys.
	AskItems struct {
		Unit Unit
		Keys []storage.Key
	}
)

// From the primary.
type (
	// Welcome answers Hello.
	Welcome struct {
		SetID, ClusterID string
		Lineage          storage.Lineage
		Start            storage.Position // the stream begins after it
		// Resume: the stream goes on where the secondary is. Otherwise everything it has is to be compared.
		Resume bool
		// Diverged: the secondary has written behind Common, which its primary's history does not contain.
		Diverged bool
		Common   storage.Position
		Scope    uint64
		Units    []Unit // all of the scope, sorted
		Proto    uint32
	}
	// Scope changes what the secondary has, at this place of the stream.
	Scope struct {
		Version uint64
		Add     []Unit // to be fetched
		New     []Unit // they begin with what follows: nothing to fetch
		Drop    []Unit
	}
	// Batch holds the entries in (Prev, Last], ops of units in scope only; entries without any are left out.
	Batch struct {
		Prev, Last storage.Position
		Entries    []Entry
		Bytes      int64 // what it costs of the credit
	}
	// Heartbeat tells how far the primary is. What is before Through, and was not sent, does not concern the secondary.
	Heartbeat struct {
		Head    storage.Position
		Through storage.Position
		Oldest  storage.Position
		NowMS   int64
		Addrs   []string
	}
	// Checkpoint tells what the secondary has at this place of the stream, if all is well.
	Checkpoint struct {
		At    storage.Position
		Roots map[Unit]digest.Sum // of units in scope; one without keys may be absent
	}
	// Sums answers AskSums.
	Sums struct {
		Unit  Unit
		Group int
		Sums  []digest.Sum
		At    storage.Position
	}
	// Page answers AskPage. Items have no values unless asked for.
	Page struct {
		Unit  Unit
		After storage.Key
		Items []Item
		Last  storage.Key
		Done  bool
		At    storage.Position
	}
	// Items answers AskItems, for the first N keys asked for.
	Items struct {
		Unit  Unit
		Items []Item
		N     int
		At    storage.Position
	}
	// Gone answers an Ask about a unit that is not in scope (any more), or does not exist.
	Gone struct{ Unit Unit }
	// Final ends the stream: the cluster is no longer the primary. Everything up to At was sent.
	Final struct{ At storage.Position }
	// Reject ends the stream: the secondary cannot be served.
	Reject struct {
		Reason string
		// Fenced: the secondary knows of a later epoch than the primary. Set: it belongs to another set.
		Fenced, Set bool
	}
)

func (Hello) message()      {}
func (Ack) message()        {}
func (AskSums) message()    {}
func (AskPage) message()    {}
func (AskItems) message()   {}
func (Welcome) message()    {}
func (Scope) message()      {}
func (Batch) message()      {}
func (Heartbeat) message()  {}
func (Checkpoint) message() {}
func (Sums) message()       {}
func (Page) message()       {}
func (Items) message()      {}
func (Gone) message()       {}
func (Final) message()      {}
func (Reject) message()     {}
