// Package wire turns the messages of package replication into Protocol Buffers and back.
//
// It promises that what is decoded arrives as it was encoded, and that nothing which another cluster sent is accepted
// unchecked: sizes, keys that do not replicate, positions that cannot be. The messages are in replication/messages.go.
package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// EncodeSecondary makes a secondary's message what travels. The message is not copied: do not change it.
func EncodeSecondary(m replication.Message) (*pb.FromSecondary, error) {
	switch m := m.(type) {
	case replication.Hello:
		return &pb.FromSecondary{Message: &pb.FromSecondary_Hello{Hello: &pb.Hello{
			SetId: m.SetID, ClusterId: m.ClusterID, Cursor: EncodePosition(m.Cursor), Lineage: EncodeLineage(m.Lineage),
			ProtoMin: m.ProtoMin, ProtoMax: m.ProtoMax,
		}}}, nil
	case replication.Ack:
		return &pb.FromSecondary{Message: &pb.FromSecondary_Ack{Ack: &pb.Ack{
			Cursor: EncodePosition(m.Cursor), Bytes: m.Bytes, TimeMs: m.TimeMS, Exact: m.Exact, Repaired: m.Repaired,
		}}}, nil
	case replication.AskSums:
		return &pb.FromSecondary{Message: &pb.FromSecondary_AskSums{AskSums: &pb.AskSums{Unit: string(m.Unit), Group: int32(m.Group)}}}, nil
	case replication.AskPage:
		return &pb.FromSecondary{Message: &pb.FromSecondary_AskPage{AskPage: &pb.AskPage{
			Unit: string(m.Unit), After: string(m.After), Buckets: encodeBuckets(m.Buckets), Values: m.Values,
		}}}, nil
	case replication.AskItems:
		return &pb.FromSecondary{Message: &pb.FromSecondary_AskItems{AskItems: &pb.AskItems{Unit: string(m.Unit), Keys: texts(m.Keys)}}}, nil
	}
	return nil, fmt.Errorf("a secondary does not send a %T", m)
}

// EncodePrimary makes a primary's message what travels. The message is not copied: do not change it.
func EncodePrimary(m replication.Message) (*pb.FromPrimary, error) {
	switch m := m.(type) {
	case replication.Welcome:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Welcome{Welcome: &pb.Welcome{
			SetId: m.SetID, ClusterId: m.ClusterID, Lineage: EncodeLineage(m.Lineage), Start: EncodePosition(m.Start), Resume: m.Resume,
			Diverged: m.Diverged, Common: EncodePosition(m.Common), Scope: m.Scope, Units: texts(m.Units), Proto: m.Proto,
		}}}, nil
	case replication.Scope:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Scope{Scope: &pb.Scope{
			Version: m.Version, Add: texts(m.Add), New: texts(m.New), Drop: texts(m.Drop),
		}}}, nil
	case replication.Batch:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Batch{Batch: &pb.Batch{
			Prev: EncodePosition(m.Prev), Last: EncodePosition(m.Last), Entries: encodeEntries(m.Entries), Bytes: m.Bytes,
		}}}, nil
	case replication.Heartbeat:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Heartbeat{Heartbeat: &pb.Heartbeat{
			Head: EncodePosition(m.Head), Through: EncodePosition(m.Through), Oldest: EncodePosition(m.Oldest), NowMs: m.NowMS, Addrs: m.Addrs,
		}}}, nil
	case replication.Checkpoint:
		roots := make(map[string]*pb.Sum, len(m.Roots))
		for unit, s := range m.Roots {
			roots[string(unit)] = encodeSum(s)
		}
		return &pb.FromPrimary{Message: &pb.FromPrimary_Checkpoint{Checkpoint: &pb.Checkpoint{At: EncodePosition(m.At), Roots: roots}}}, nil
	case replication.Sums:
		sums := make([]*pb.Sum, len(m.Sums))
		for i, s := range m.Sums {
			sums[i] = encodeSum(s)
		}
		return &pb.FromPrimary{Message: &pb.FromPrimary_Sums{Sums: &pb.Sums{
			Unit: string(m.Unit), Group: int32(m.Group), Sums: sums, At: EncodePosition(m.At),
		}}}, nil
	case replication.Page:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Page{Page: &pb.Page{
			Unit: string(m.Unit), After: string(m.After), Items: encodeItems(m.Items), Last: string(m.Last), Done: m.Done, At: EncodePosition(m.At),
		}}}, nil
	case replication.Items:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Items{Items: &pb.Items{
			Unit: string(m.Unit), Items: encodeItems(m.Items), N: uint32(m.N), At: EncodePosition(m.At),
		}}}, nil
	case replication.Gone:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Gone{Gone: &pb.Gone{Unit: string(m.Unit)}}}, nil
	case replication.Final:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Final{Final: &pb.Final{At: EncodePosition(m.At)}}}, nil
	case replication.Reject:
		return &pb.FromPrimary{Message: &pb.FromPrimary_Reject{Reject: &pb.Reject{Reason: m.Reason, Fenced: m.Fenced, Set: m.Set}}}, nil
	}
	return nil, fmt.Errorf("a primary does not send a %T", m)
}

// EncodePosition returns nil for the zero position.
func EncodePosition(p storage.Position) *pb.Position {
	if p.IsZero() {
		return nil
	}
	return &pb.Position{Epoch: p.Epoch, Index: uint64(p.Index)}
}

// EncodeLineage encodes a history.
func EncodeLineage(l storage.Lineage) []*pb.Branch {
	out := make([]*pb.Branch, len(l))
	for i, b := range l {
		out[i] = &pb.Branch{Epoch: b.Epoch, ClusterId: b.ClusterID, From: EncodePosition(b.From), Base: uint64(b.Base)}
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

func encodeItem(i replication.Item) *pb.Item {
	return &pb.Item{Key: string(i.Key), Value: i.Value, Mod: EncodePosition(i.Mod)}
}

func encodeItems(items []replication.Item) []*pb.Item {
	out := make([]*pb.Item, len(items))
	for i := range items {
		out[i] = encodeItem(items[i])
	}
	return out
}

// encodeEntries leaves out Op.Fresh, which is for the sender only.
func encodeEntries(entries []replication.Entry) []*pb.Entry {
	out := make([]*pb.Entry, len(entries))
	for i, e := range entries {
		ops := make([]*pb.Op, len(e.Ops))
		for j, op := range e.Ops {
			ops[j] = &pb.Op{Item: encodeItem(op.Item), Delete: op.Delete}
		}
		out[i] = &pb.Entry{At: EncodePosition(e.At), TimeMs: e.TimeMS, Ops: ops}
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

// EncodeOtherPrimary encodes the name of a primary.
func EncodeOtherPrimary(o replication.OtherPrimary) *pb.OtherPrimary {
	return &pb.OtherPrimary{Epoch: o.Number, ClusterId: o.ClusterID, ApiAddr: o.APIAddr}
}
