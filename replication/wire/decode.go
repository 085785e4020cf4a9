package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Limits of what is accepted from another cluster. A message as a whole has maxMessageBytes.
const (
	MaxMessageBytes = 32 << 20
	maxUnitBytes    = 256
	maxIDBytes      = 256
	maxAddrs        = 1024
	maxLineage      = 100_000
)

// Decoder keeps the first thing that is wrong, so that what follows can be written without a look at errors.
type Decoder struct{ Err error }

func (d *Decoder) fail(format string, args ...any) {
	if d.Err == nil {
		d.Err = fmt.Errorf(format, args...)
	}
}

// DecodeSecondary is the inverse of EncodeSecondary. nil without an error is a sign of life. The other side is a
// cluster with a certificate, but nothing that it sends is accepted unchecked.
func DecodeSecondary(m *pb.FromSecondary) (replication.Message, error) {
	var d Decoder
	var out replication.Message
	switch m := m.GetMessage().(type) {
	case *pb.FromSecondary_Hello:
		h := m.Hello
		out = replication.Hello{
			SetID: d.ID(h.GetSetId()), ClusterID: d.ID(h.GetClusterId()), Cursor: d.Position(h.GetCursor()), Lineage: d.Lineage(h.GetLineage()),
			ProtoMin: h.GetProtoMin(), ProtoMax: h.GetProtoMax(),
		}
	case *pb.FromSecondary_Ack:
		a := m.Ack
		if a.GetBytes() < 0 {
			d.fail("a negative size")
		}
		out = replication.Ack{Cursor: d.Position(a.GetCursor()), Bytes: a.GetBytes(), TimeMS: a.GetTimeMs(), Exact: a.GetExact(), Repaired: a.GetRepaired()}
	case *pb.FromSecondary_AskSums:
		out = replication.AskSums{Unit: d.unit(m.AskSums.GetUnit()), Group: d.group(m.AskSums.GetGroup())}
	case *pb.FromSecondary_AskPage:
		a := m.AskPage
		out = replication.AskPage{Unit: d.unit(a.GetUnit()), After: d.keyOrNone(a.GetAfter()), Buckets: d.buckets(a.GetBuckets()), Values: a.GetValues()}
	case *pb.FromSecondary_AskItems:
		ask := replication.AskItems{Unit: d.unit(m.AskItems.GetUnit())}
		for _, k := range m.AskItems.GetKeys() {
			ask.Keys = append(ask.Keys, d.key(k))
		}
		out = ask
	default:
		return nil, nil
	}
	if d.Err != nil {
		return nil, fmt.Errorf("the secondary sent what cannot be: %w", d.Err)
	}
	return out, nil
}

// DecodePrimary is the inverse of EncodePrimary. A key that is not shared is refused: no primary can make a secondary
// write what is its own.
func DecodePrimary(m *pb.FromPrimary) (replication.Message, error) {
	var d Decoder
	var out replication.Message
	switch m := m.GetMessage().(type) {
	case *pb.FromPrimary_Welcome:
		w := m.Welcome
		out = replication.Welcome{
			SetID: d.ID(w.GetSetId()), ClusterID: d.ID(w.GetClusterId()), Lineage: d.Lineage(w.GetLineage()), Start: d.Position(w.GetStart()),
			Resume: w.GetResume(), Diverged: w.GetDiverged(), Common: d.Position(w.GetCommon()), Scope: w.GetScope(), Units: d.units(w.GetUnits()),
			Proto: w.GetProto(),
		}
	case *pb.FromPrimary_Scope:
		s := m.Scope
		out = replication.Scope{Version: s.GetVersion(), Add: d.units(s.GetAdd()), New: d.units(s.GetNew()), Drop: d.units(s.GetDrop())}
	case *pb.FromPrimary_Batch:
		b := m.Batch
		if b.GetBytes() < 0 {
			d.fail("a negative size")
		}
		out = replication.Batch{Prev: d.Position(b.GetPrev()), Last: d.Position(b.GetLast()), Entries: d.entries(b.GetEntries()), Bytes: b.GetBytes()}
	case *pb.FromPrimary_Heartbeat:
		h := m.Heartbeat
		out = replication.Heartbeat{
			Head: d.Position(h.GetHead()), Through: d.Position(h.GetThrough()), Oldest: d.Position(h.GetOldest()), NowMS: h.GetNowMs(),
			Addrs: d.Addrs(h.GetAddrs()),
		}
	case *pb.FromPrimary_Checkpoint:
		roots := make(map[replication.Unit]digest.Sum, len(m.Checkpoint.GetRoots()))
		for unit, s := range m.Checkpoint.GetRoots() {
			roots[d.unit(unit)] = decodeSum(s)
		}
		out = replication.Checkpoint{At: d.Position(m.Checkpoint.GetAt()), Roots: roots}
	case *pb.FromPrimary_Sums:
		out = d.sums(m.Sums)
	case *pb.FromPrimary_Page:
		p := m.Page
		out = replication.Page{
			Unit: d.unit(p.GetUnit()), After: d.keyOrNone(p.GetAfter()), Items: d.items(p.GetItems()), Last: d.keyOrNone(p.GetLast()),
			Done: p.GetDone(), At: d.Position(p.GetAt()),
		}
	case *pb.FromPrimary_Items:
		i := m.Items
		out = replication.Items{Unit: d.unit(i.GetUnit()), Items: d.items(i.GetItems()), N: int(i.GetN()), At: d.Position(i.GetAt())}
	case *pb.FromPrimary_Gone:
		out = replication.Gone{Unit: d.unit(m.Gone.GetUnit())}
	case *pb.FromPrimary_Final:
		out = replication.Final{At: d.Position(m.Final.GetAt())}
	case *pb.FromPrimary_Reject:
		out = replication.Reject{Reason: m.Reject.GetReason(), Fenced: m.Reject.GetFenced(), Set: m.Reject.GetSet()}
	default:
		return nil, errors.New("the primary sent a message of a kind that is not known here: upgrade this cluster")
	}
	if d.Err != nil {
		return nil, fmt.Errorf("the primary sent what cannot be: %w", d.Err)
	}
	return out, nil
}

// Position decodes a position.
func (d *Decoder) Position(p *pb.Position) storage.Position {
	pos := storage.Position{Epoch: p.GetEpoch(), Index: storage.Index(p.GetIndex())}
	if pos.Epoch == 0 && pos.Index != 0 {
		d.fail("a position without an epoch")
	}
	return pos
}

// OtherPrimary decodes the name of a primary.
func (d *Decoder) OtherPrimary(o *pb.OtherPrimary) replication.OtherPrimary {
	return replication.OtherPrimary{EpochID: storage.EpochID{Number: o.GetEpoch(), ClusterID: d.ID(o.GetClusterId())}, APIAddr: ClipAddr(o.GetApiAddr())}
}

// ClipAddr bounds an address that another cluster says about itself.
func ClipAddr(s string) string { return s[:min(len(s), 300)] }

// Lineage decodes a history.
func (d *Decoder) Lineage(branches []*pb.Branch) storage.Lineage {
	if len(branches) > maxLineage {
		d.fail("a history of %d epochs", len(branches))
		return nil
	}
	var out storage.Lineage
	for _, b := range branches {
		next := storage.Branch{
			Epoch: b.GetEpoch(), ClusterID: d.ID(b.GetClusterId()), From: d.Position(b.GetFrom()), Base: storage.Index(b.GetBase()),
		}
		if next.Epoch == 0 || next.Epoch <= out.Epoch() {
			d.fail("epoch %d after epoch %d", next.Epoch, out.Epoch())
		}
		out = append(out, next)
	}
	return out
}

// ID returns the id of a cluster, a set or a secondary.
func (d *Decoder) ID(s string) string {
	if len(s) > maxIDBytes {
		d.fail("an id of %d bytes", len(s))
	}
	return s
}

func (d *Decoder) unit(s string) replication.Unit {
	if s == "" || len(s) > maxUnitBytes {
		d.fail("a name of a unit of %d bytes", len(s))
	}
	return replication.Unit(s)
}

func (d *Decoder) units(all []string) []replication.Unit {
	var out []replication.Unit
	for _, s := range all {
		out = append(out, d.unit(s))
	}
	return out
}

// Addrs returns addresses.
func (d *Decoder) Addrs(all []string) []string {
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

func (d *Decoder) key(s string) storage.Key {
	k := storage.Key(s)
	if err := k.Validate(); err != nil {
		d.fail("%v", err)
	} else if k.Class() != storage.Shared {
		d.fail("a key that is not shared")
	}
	return k
}

// keyOrNone is for bounds, which need not be keys that exist: they only have to be short enough.
func (d *Decoder) keyOrNone(s string) storage.Key {
	if len(s) > storage.MaxKeyBytes {
		d.fail("a key of %d bytes", len(s))
	}
	return storage.Key(s)
}

func (d *Decoder) group(g int32) int {
	if g < replication.AllGroups || g >= digest.Groups {
		d.fail("group %d", g)
	}
	return int(g)
}

func (d *Decoder) buckets(b []byte) *digest.Buckets {
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

func (d *Decoder) sums(s *pb.Sums) replication.Sums {
	out := replication.Sums{Unit: d.unit(s.GetUnit()), Group: d.group(s.GetGroup()), At: d.Position(s.GetAt())}
	if len(s.GetSums()) != digest.Groups {
		d.fail("%d sums", len(s.GetSums()))
		return out
	}
	for _, sum := range s.GetSums() {
		out.Sums = append(out.Sums, decodeSum(sum))
	}
	return out
}

func (d *Decoder) item(i *pb.Item) replication.Item {
	out := replication.Item{Key: d.key(i.GetKey()), Value: i.GetValue(), Mod: d.Position(i.GetMod())}
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

func (d *Decoder) items(items []*pb.Item) []replication.Item {
	var out []replication.Item
	for _, i := range items {
		out = append(out, d.item(i))
	}
	return out
}

func (d *Decoder) entries(entries []*pb.Entry) []replication.Entry {
	var out []replication.Entry
	for _, e := range entries {
		entry := replication.Entry{At: d.Position(e.GetAt()), TimeMS: e.GetTimeMs()}
		for _, op := range e.GetOps() {
			entry.Ops = append(entry.Ops, replication.Op{Item: d.item(op.GetItem()), Delete: op.GetDelete()})
		}
		out = append(out, entry)
	}
	return out
}
