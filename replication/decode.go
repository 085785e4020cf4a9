package replication

import (
	"encoding/binary"
	"errors"
	"fmt"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Limits of what is believed of what another cluster sends. A message as a whole has maxMessageBytes.
const (
	maxMessageBytes = 32 << 20
	maxUnitBytes    = 256
	maxIDBytes      = 256
	maxAddrs        = 1024
	maxLineage      = 100_000
)

// decoder keeps the first thing that is wrong, so that what follows can be written without a look at errors.
type decoder struct{ err error }

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// decodeSecondary is the inverse of encodeSecondary. nil without an error is a sign of life. The other side is a
// cluster with a certificate, but nothing it says is believed unseen.
func decodeSecondary(m *pb.FromSecondary) (Message, error) {
	var d decoder
	var out Message
	switch m := m.GetMessage().(type) {
	case *pb.FromSecondary_Hello:
		h := m.Hello
		out = Hello{
			SetID: d.id(h.GetSetId()), ClusterID: d.id(h.GetClusterId()), Cursor: d.position(h.GetCursor()), Lineage: d.lineage(h.GetLineage()),
			ProtoMin: h.GetProtoMin(), ProtoMax: h.GetProtoMax(),
		}
	case *pb.FromSecondary_Ack:
		a := m.Ack
		if a.GetBytes() < 0 {
			d.fail("a negative size")
		}
		out = Ack{Cursor: d.position(a.GetCursor()), Bytes: a.GetBytes(), TimeMS: a.GetTimeMs(), Exact: a.GetExact(), Repaired: a.GetRepaired()}
	case *pb.FromSecondary_AskSums:
		out = AskSums{Unit: d.unit(m.AskSums.GetUnit()), Group: d.group(m.AskSums.GetGroup())}
	case *pb.FromSecondary_AskPage:
		a := m.AskPage
		out = AskPage{Unit: d.unit(a.GetUnit()), After: d.keyOrNone(a.GetAfter()), Buckets: d.buckets(a.GetBuckets()), Values: a.GetValues()}
	case *pb.FromSecondary_AskItems:
		ask := AskItems{Unit: d.unit(m.AskItems.GetUnit())}
		for _, k := range m.AskItems.GetKeys() {
			ask.Keys = append(ask.Keys, d.key(k))
		}
		out = ask
	default:
		return nil, nil
	}
	if d.err != nil {
		return nil, fmt.Errorf("the secondary sent what cannot be: %w", d.err)
	}
	return out, nil
}

// decodePrimary is the inverse of encodePrimary. A key that is not shared is refused: no primary can make a secondary
// write what is its own.
func decodePrimary(m *pb.FromPrimary) (Message, error) {
	var d decoder
	var out Message
	switch m := m.GetMessage().(type) {
	case *pb.FromPrimary_Welcome:
		w := m.Welcome
		out = Welcome{
			SetID: d.id(w.GetSetId()), ClusterID: d.id(w.GetClusterId()), Lineage: d.lineage(w.GetLineage()), Start: d.position(w.GetStart()),
			Resume: w.GetResume(), Diverged: w.GetDiverged(), Common: d.position(w.GetCommon()), Scope: w.GetScope(), Units: d.units(w.GetUnits()),
			Proto: w.GetProto(),
		}
	case *pb.FromPrimary_Scope:
		s := m.Scope
		out = Scope{Version: s.GetVersion(), Add: d.units(s.GetAdd()), New: d.units(s.GetNew()), Drop: d.units(s.GetDrop())}
	case *pb.FromPrimary_Batch:
		b := m.Batch
		if b.GetBytes() < 0 {
			d.fail("a negative size")
		}
		out = Batch{Prev: d.position(b.GetPrev()), Last: d.position(b.GetLast()), Entries: d.entries(b.GetEntries()), Bytes: b.GetBytes()}
	case *pb.FromPrimary_Heartbeat:
		h := m.Heartbeat
		out = Heartbeat{
			Head: d.position(h.GetHead()), Through: d.position(h.GetThrough()), Oldest: d.position(h.GetOldest()), NowMS: h.GetNowMs(),
			Addrs: d.addrs(h.GetAddrs()),
		}
	case *pb.FromPrimary_Checkpoint:
		roots := make(map[Unit]digest.Sum, len(m.Checkpoint.GetRoots()))
		for unit, s := range m.Checkpoint.GetRoots() {
			roots[d.unit(unit)] = decodeSum(s)
		}
		out = Checkpoint{At: d.position(m.Checkpoint.GetAt()), Roots: roots}
	case *pb.FromPrimary_Sums:
		out = d.sums(m.Sums)
	case *pb.FromPrimary_Page:
		p := m.Page
		out = Page{
			Unit: d.unit(p.GetUnit()), After: d.keyOrNone(p.GetAfter()), Items: d.items(p.GetItems()), Last: d.keyOrNone(p.GetLast()),
			Done: p.GetDone(), At: d.position(p.GetAt()),
		}
	case *pb.FromPrimary_Items:
		i := m.Items
		out = Items{Unit: d.unit(i.GetUnit()), Items: d.items(i.GetItems()), N: int(i.GetN()), At: d.position(i.GetAt())}
	case *pb.FromPrimary_Gone:
		out = Gone{Unit: d.unit(m.Gone.GetUnit())}
	case *pb.FromPrimary_Final:
		out = Final{At: d.position(m.Final.GetAt())}
	case *pb.FromPrimary_Reject:
		out = Reject{Reason: m.Reject.GetReason(), Fenced: m.Reject.GetFenced(), Set: m.Reject.GetSet()}
	default:
		return nil, errors.New("the primary sent a message of a kind that is not known here: upgrade this cluster")
	}
	if d.err != nil {
		return nil, fmt.Errorf("the primary sent what cannot be: %w", d.err)
	}
	return out, nil
}

func (d *decoder) position(p *pb.Position) storage.Position {
	pos := storage.Position{Epoch: p.GetEpoch(), Index: storage.Index(p.GetIndex())}
	if pos.Epoch == 0 && pos.Index != 0 {
		d.fail("a position without an epoch")
	}
	return pos
}

func (d *decoder) other(o *pb.OtherPrimary) OtherPrimary {
	return OtherPrimary{EpochID: storage.EpochID{Number: o.GetEpoch(), ClusterID: d.id(o.GetClusterId())}, APIAddr: clip(o.GetApiAddr())}
}

func (d *decoder) lineage(branches []*pb.Branch) storage.Lineage {
	if len(branches) > maxLineage {
		d.fail("a history of %d epochs", len(branches))
		return nil
	}
	var out storage.Lineage
	for _, b := range branches {
		next := storage.Branch{
			Epoch: b.GetEpoch(), ClusterID: d.id(b.GetClusterId()), From: d.position(b.GetFrom()), Base: storage.Index(b.GetBase()),
		}
		if next.Epoch == 0 || next.Epoch <= out.Epoch() {
			d.fail("epoch %d after epoch %d", next.Epoch, out.Epoch())
		}
		out = append(out, next)
	}
	return out
}

func (d *decoder) id(s string) string {
	if len(s) > maxIDBytes {
		d.fail("an id of %d bytes", len(s))
	}
	return s
}

func (d *decoder) unit(s string) Unit {
	if s == "" || len(s) > maxUnitBytes {
		d.fail("a name of a unit of %d bytes", len(s))
	}
	return Unit(s)
}

func (d *decoder) units(all []string) []Unit {
	var out []Unit
	for _, s := range all {
		out = append(out, d.unit(s))
	}
	return out
}

func (d *decoder) addrs(all []string) []string {
	if len(all) > maxAddrs {
		d.fail("%d addresses", len(all))
		return nil
	}
	for _, a := range all {
		if len(a) > 300 {
			d.fail("an address of %d bytes", len(a))
		}
	}
	return all
}

func (d *decoder) key(s string) storage.Key {
	k := storage.Key(s)
	if err := k.Validate(); err != nil {
		d.fail("%v", err)
	} else if k.Class() != storage.Shared {
		d.fail("a key that is not shared")
	}
	return k
}

// keyOrNone is for bounds, which need not be keys that exist: they only have to be short enough.
func (d *decoder) keyOrNone(s string) storage.Key {
	if len(s) > storage.MaxKeyBytes {
		d.fail("a key of %d bytes", len(s))
	}
	return storage.Key(s)
}

func (d *decoder) group(g int32) int {
	if g < AllGroups || g >= digest.Groups {
		d.fail("group %d", g)
	}
	return int(g)
}

func (d *decoder) buckets(b []byte) *digest.Buckets {
	if len(b) == 0 {
		return nil
	}
	var out digest.Buckets
	if len(b) != 8*len(out) {
		d.fail("a set of buckets of %d bytes", len(b))
		return nil
	}
	for i := range out {
		out[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return &out
}

func decodeSum(s *pb.Sum) digest.Sum {
	return digest.Sum{A: s.GetA(), B: s.GetB(), Count: s.GetCount()}
}

func (d *decoder) sums(s *pb.Sums) Sums {
	out := Sums{Unit: d.unit(s.GetUnit()), Group: d.group(s.GetGroup()), At: d.position(s.GetAt())}
	if len(s.GetSums()) != digest.Groups {
		d.fail("%d sums", len(s.GetSums()))
		return out
	}
	for _, sum := range s.GetSums() {
		out.Sums = append(out.Sums, decodeSum(sum))
	}
	return out
}

func (d *decoder) item(i *pb.Item) Item {
	out := Item{Key: d.key(i.GetKey()), Value: i.GetValue(), Mod: d.position(i.GetMod())}
	if out.Mod.IsZero() {
		d.fail("an item without a position")
	}
	switch {
	case len(out.Value) == 0:
		out.Value = nil // the same on the wire
	case len(out.Value) > storage.MaxValueBytes:
		d.fail("a value of %d bytes", len(out.Value))
	}
	return out
}

func (d *decoder) items(items []*pb.Item) []Item {
	var out []Item
	for _, i := range items {
		out = append(out, d.item(i))
	}
	return out
}

func (d *decoder) entries(entries []*pb.Entry) []Entry {
	var out []Entry
	for _, e := range entries {
		entry := Entry{At: d.position(e.GetAt()), TimeMS: e.GetTimeMs()}
		for _, op := range e.GetOps() {
			entry.Ops = append(entry.Ops, Op{Item: d.item(op.GetItem()), Delete: op.GetDelete()})
		}
		out = append(out, entry)
	}
	return out
}
