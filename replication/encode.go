package replication

import (
	"encoding/binary"
	"fmt"
	"slices"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// encodeSecondary makes a secondary's message what travels. The message is not copied: do not change it.
func encodeSecondary(m Message) (*pb.FromSecondary, error) {
	switch m := m.(type) {
	case Hello:
		return &pb.FromSecondary{Message: &pb.FromSecondary_Hello{Hello: &pb.Hello{
			SetId: m.SetID, ClusterId: m.ClusterID, Cursor: encodePosition(m.Cursor), Lineage: encodeLineage(m.Lineage),
			ProtoMin: m.ProtoMin, ProtoMax: m.ProtoMax,
		}}}, nil
	case Ack:
		return &pb.FromSecondary{Message: &pb.FromSecondary_Ack{Ack: &pb.Ack{
			Cursor: encodePosition(m.Cursor), Bytes: m.Bytes, TimeMs: m.TimeMS, Exact: m.Exact, Repaired: m.Repaired,
		}}}, nil
	case AskSums:
		return &pb.FromSecondary{Message: &pb.FromSecondary_AskSums{AskSums: &pb.AskSums{Unit: string(m.Unit), Group: int32(m.Group)}}}, nil
	case AskPage:
		return &pb.FromSecondary{Message: &pb.FromSecondary_AskPage{AskPage: &pb.AskPage{
			Unit: string(m.Unit), After: string(m.After), Buckets: encodeBuckets(m.Buckets), Values: m.Values,
		}}}, nil
	case AskItems:
		return &pb.FromSecondary{Message: &pb.FromSecondary_AskItems{AskItems: &pb.AskItems{Unit: string(m.Unit), Keys: texts(m.Keys)}}}, nil
	}
	return nil, fmt.Errorf("a secondary does not send a %T", m)
}

// encodePrimary makes a primary's message what travels. The message is not copied: do not change it.
func encodePrimary(m Message) (*pb.FromPrimary, error) {
	switch m := m.(type) {
	case Welcome:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Welcome{Welcome: &pb.Welcome{
			SetId: m.SetID, ClusterId: m.ClusterID, Lineage: encodeLineage(m.Lineage), Start: encodePosition(m.Start), Resume: m.Resume,
			Diverged: m.Diverged, Common: encodePosition(m.Common), Scope: m.Scope, Units: texts(m.Units), Proto: m.Proto,
		}}}, nil
	case Scope:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Scope{Scope: &pb.Scope{
			Version: m.Version, Add: texts(m.Add), New: texts(m.New), Drop: texts(m.Drop),
		}}}, nil
	case Batch:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Batch{Batch: &pb.Batch{
			Prev: encodePosition(m.Prev), Last: encodePosition(m.Last), Entries: encodeEntries(m.Entries), Bytes: m.Bytes,
		}}}, nil
	case Heartbeat:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Heartbeat{Heartbeat: &pb.Heartbeat{
			Head: encodePosition(m.Head), Through: encodePosition(m.Through), Oldest: encodePosition(m.Oldest), NowMs: m.NowMS, Addrs: m.Addrs,
		}}}, nil
	case Checkpoint:
		roots := make(map[string]*pb.Sum, len(m.Roots))
		for unit, s := range m.Roots {
			roots[string(unit)] = encodeSum(s)
		}
		return &pb.FromPrimary{Message: &pb.FromPrimary_Checkpoint{Checkpoint: &pb.Checkpoint{At: encodePosition(m.At), Roots: roots}}}, nil
	case Sums:
		sums := make([]*pb.Sum, len(m.Sums))
		for i, s := range m.Sums {
			sums[i] = encodeSum(s)
		}
		return &pb.FromPrimary{Message: &pb.FromPrimary_Sums{Sums: &pb.Sums{
			Unit: string(m.Unit), Group: int32(m.Group), Sums: sums, At: encodePosition(m.At),
		}}}, nil
	case Page:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Page{Page: &pb.Page{
			Unit: string(m.Unit), After: string(m.After), Items: encodeItems(m.Items), Last: string(m.Last), Done: m.Done, At: encodePosition(m.At),
		}}}, nil
	case Items:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Items{Items: &pb.Items{
			Unit: string(m.Unit), Items: encodeItems(m.Items), N: uint32(m.N), At: encodePosition(m.At),
		}}}, nil
	case Gone:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Gone{Gone: &pb.Gone{Unit: string(m.Unit)}}}, nil
	case Final:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Final{Final: &pb.Final{At: encodePosition(m.At)}}}, nil
	case Reject:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Reject{Reject: &pb.Reject{Reason: m.Reason, Fenced: m.Fenced, Set: m.Set}}}, nil
	}
	return nil, fmt.Errorf("a primary does not send a %T", m)
}

func encodePosition(p storage.Position) *pb.Position {
	if p.IsZero() {
		return nil
	}
	return &pb.Position{Epoch: p.Epoch, Index: uint64(p.Index)}
}

func encodeLineage(l storage.Lineage) []*pb.Branch {
	out := make([]*pb.Branch, len(l))
	for i, b := range l {
		out[i] = &pb.Branch{Epoch: b.Epoch, ClusterId: b.ClusterID, From: encodePosition(b.From), Base: uint64(b.Base)}
	}
	return out
}

func encodeSum(s digest.Sum) *pb.Sum { return &pb.Sum{A: s.A, B: s.B, Count: s.Count} }

func encodeBuckets(b *digest.Buckets) []byte {
	if b == nil {
		return nil
	}
	out := make([]byte, 0, 8*len(b))
	for _, word := range b {
		out = binary.BigEndian.AppendUint64(out, word)
	}
	return out
}

func encodeItem(i Item) *pb.Item {
	return &pb.Item{Key: string(i.Key), Value: i.Value, Mod: encodePosition(i.Mod)}
}

func encodeItems(items []Item) []*pb.Item {
	out := make([]*pb.Item, len(items))
	for i := range items {
		out[i] = encodeItem(items[i])
	}
	return out
}

// encodeEntries leaves out Op.Fresh, which is for the sender only.
func encodeEntries(entries []Entry) []*pb.Entry {
	out := make([]*pb.Entry, len(entries))
	for i, e := range entries {
		ops := make([]*pb.Op, len(e.Ops))
		for j, op := range e.Ops {
			ops[j] = &pb.Op{Item: encodeItem(op.Item), Delete: op.Delete}
		}
		out[i] = &pb.Entry{At: encodePosition(e.At), TimeMs: e.TimeMS, Ops: ops}
	}
	return out
}

// texts converts a slice of one kind of text to plain strings.
func texts[T ~string](in []T) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return slices.Clip(out)
}

func encodeOther(o OtherPrimary) *pb.OtherPrimary {
	return &pb.OtherPrimary{Epoch: o.Number, ClusterId: o.ClusterID, ApiAddr: o.APIAddr}
}
