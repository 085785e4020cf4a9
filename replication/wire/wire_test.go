package wire

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/coffer-project/coffer/proto/replicationpb"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// randomMessages makes messages of every kind; empty slices are nil.
type randomMessages struct{ *rand.Rand }

func many[T any](r randomMessages, of func() T) []T {
	var out []T
	for range r.IntN(4) {
		out = append(out, of())
	}
	return out
}

func (r randomMessages) flag() bool             { return r.IntN(2) == 1 }
func (r randomMessages) text() string           { return strings.Repeat("é", r.IntN(20)) + "x" }
func (r randomMessages) unit() replication.Unit { return replication.Unit("mount/" + r.text()) }
func (r randomMessages) key() storage.Key {
	return storage.Key("s/" + r.text() + "/" + r.text())
}
func (r randomMessages) position() storage.Position {
	if r.IntN(4) == 0 {
		return storage.Position{}
	}
	return r.mod()
}
func (r randomMessages) mod() storage.Position {
	return storage.Position{Epoch: 1 + r.Uint32N(1<<31), Index: storage.Index(r.Uint64())}
}
func (r randomMessages) lineage() storage.Lineage {
	var l storage.Lineage
	for i := range r.IntN(4) {
		l = append(l, storage.Branch{Epoch: uint32(i + 1), ClusterID: r.text(), From: r.position(), Base: storage.Index(r.Uint64())})
	}
	return l
}
func (r randomMessages) value() []byte {
	if r.flag() {
		return nil
	}
	return []byte(r.text())
}
func (r randomMessages) item() replication.Item {
	return replication.Item{Key: r.key(), Value: r.value(), Mod: r.mod()}
}
func (r randomMessages) op() replication.Op { return replication.Op{Item: r.item(), Delete: r.flag()} }
func (r randomMessages) entry() replication.Entry {
	return replication.Entry{At: r.mod(), TimeMS: r.Int64(), Ops: many(r, r.op)}
}
func (r randomMessages) sum() digest.Sum {
	return digest.Sum{A: r.Uint64(), B: r.Uint64(), Count: r.Uint64()}
}
func (r randomMessages) buckets() *digest.Buckets {
	if r.flag() {
		return nil
	}
	var b digest.Buckets
	for range r.IntN(100) {
		b.Add(r.IntN(digest.Groups * digest.Groups))
	}
	return &b
}
func (r randomMessages) sums() []digest.Sum {
	out := make([]digest.Sum, digest.Groups)
	for i := range out {
		out[i] = r.sum()
	}
	return out
}
func (r randomMessages) group() int { return r.IntN(digest.Groups+1) - 1 }

func (r randomMessages) fromSecondary() []replication.Message {
	return []replication.Message{
		replication.Hello{SetID: r.text(), ClusterID: r.text(), Cursor: r.position(), Lineage: r.lineage(), ProtoMin: r.Uint32(), ProtoMax: r.Uint32()},
		replication.Ack{Cursor: r.position(), Bytes: r.Int64(), TimeMS: r.Int64(), Exact: r.flag(), Repaired: r.flag()},
		replication.AskSums{Unit: r.unit(), Group: r.group()},
		replication.AskPage{Unit: r.unit(), After: r.key(), Buckets: r.buckets(), Values: r.flag()},
		replication.AskPage{Unit: r.unit()},
		replication.AskItems{Unit: r.unit(), Keys: many(r, r.key)},
	}
}

func (r randomMessages) fromPrimary() []replication.Message {
	roots := map[replication.Unit]digest.Sum{}
	for range r.IntN(4) {
		roots[r.unit()] = r.sum()
	}
	return []replication.Message{
		replication.Welcome{
			SetID: r.text(), ClusterID: r.text(), Lineage: r.lineage(), Start: r.position(), Resume: r.flag(), Diverged: r.flag(),
			Common: r.position(), Scope: r.Uint64(), Units: many(r, r.unit), Proto: r.Uint32(),
		},
		replication.Scope{Version: r.Uint64(), Add: many(r, r.unit), New: many(r, r.unit), Drop: many(r, r.unit)},
		replication.Batch{Prev: r.position(), Last: r.position(), Entries: many(r, r.entry), Bytes: r.Int64()},
		replication.Heartbeat{Head: r.position(), Through: r.position(), Oldest: r.position(), NowMS: r.Int64(), Addrs: many(r, r.text)},
		replication.Checkpoint{At: r.position(), Roots: roots},
		replication.Sums{Unit: r.unit(), Group: r.group(), Sums: r.sums(), At: r.position()},
		replication.Page{Unit: r.unit(), After: r.key(), Items: many(r, r.item), Last: r.key(), Done: r.flag(), At: r.position()},
		replication.Items{Unit: r.unit(), Items: many(r, r.item), N: r.IntN(1000), At: r.position()},
		replication.Gone{Unit: r.unit()},
		replication.Final{At: r.position()},
		replication.Reject{Reason: r.text(), Fenced: r.flag(), Set: r.flag()},
	}
}

func TestMessagesTravel(t *testing.T) {
	for seed := range uint64(300) {
		r := randomMessages{rand.New(rand.NewPCG(seed, 1))}
		for _, m := range r.fromSecondary() {
			p, err := EncodeSecondary(m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := DecodeSecondary(overTheWire(t, p)); err != nil || !reflect.DeepEqual(got, m) {
				t.Fatalf("seed %d: %#v arrived as %#v, %v", seed, m, got, err)
			}
			if _, err := EncodePrimary(m); err == nil {
				t.Fatalf("a primary sent %T", m)
			}
		}
		for _, m := range r.fromPrimary() {
			p, err := EncodePrimary(m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := DecodePrimary(overTheWire(t, p)); err != nil || !reflect.DeepEqual(got, m) {
				t.Fatalf("seed %d: %#v arrived as %#v, %v", seed, m, got, err)
			}
			if _, err := EncodeSecondary(m); err == nil {
				t.Fatalf("a secondary sent %T", m)
			}
		}
	}
}

func overTheWire[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out.(M)
}

// Every message that travels has a number of its own, and none was forgotten.
func TestEveryMessageTravels(t *testing.T) {
	r := randomMessages{rand.New(rand.NewPCG(1, 1))}
	for _, tt := range []struct {
		of   proto.Message
		have []replication.Message
	}{{&pb.FromSecondary{}, r.fromSecondary()}, {&pb.FromPrimary{}, r.fromPrimary()}} {
		kinds := map[reflect.Type]bool{}
		for _, m := range tt.have {
			kinds[reflect.TypeOf(m)] = true
		}
		if n := tt.of.ProtoReflect().Descriptor().Oneofs().ByName("message").Fields().Len(); n != len(kinds) {
			t.Errorf("%T: %d kinds of messages, %d in the tests", tt.of, n, len(kinds))
		}
	}
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	mod := &pb.Position{Epoch: 1, Index: 1}
	batch := func(items ...*pb.Item) *pb.FromPrimary {
		var ops []*pb.Op
		for _, i := range items {
			ops = append(ops, &pb.Op{Item: i})
		}
		return &pb.FromPrimary{Message: &pb.FromPrimary_Batch{Batch: &pb.Batch{Entries: []*pb.Entry{{At: mod, Ops: ops}}}}}
	}
	primary := map[string]*pb.FromPrimary{
		"nothing":            {},
		"local key":          batch(&pb.Item{Key: "l/seal/config", Mod: mod}),
		"private key":        batch(&pb.Item{Key: "n/a/b", Mod: mod}),
		"no key":             batch(&pb.Item{Mod: mod}),
		"no item":            batch(nil),
		"key too long":       batch(&pb.Item{Key: "s/a/" + strings.Repeat("x", storage.MaxKeyBytes), Mod: mod}),
		"value too long":     batch(&pb.Item{Key: "s/a/b", Mod: mod, Value: make([]byte, storage.MaxValueBytes+1)}),
		"no position":        batch(&pb.Item{Key: "s/a/b"}),
		"position's epoch 0": batch(&pb.Item{Key: "s/a/b", Mod: &pb.Position{Index: 4}}),
		"local key in page": {Message: &pb.FromPrimary_Page{Page: &pb.Page{
			Unit: "u", Items: []*pb.Item{{Key: "l/a/b", Mod: mod}},
		}}},
		"local key in items": {Message: &pb.FromPrimary_Items{Items: &pb.Items{
			Unit: "u", Items: []*pb.Item{{Key: "l/a/b", Mod: mod}},
		}}},
		"unit without a name": {Message: &pb.FromPrimary_Gone{Gone: &pb.Gone{}}},
		"too few sums":        {Message: &pb.FromPrimary_Sums{Sums: &pb.Sums{Unit: "u", Sums: make([]*pb.Sum, 3)}}},
		"epochs out of order": {Message: &pb.FromPrimary_Welcome{Welcome: &pb.Welcome{Lineage: []*pb.Branch{{Epoch: 4}, {Epoch: 2}}}}},
		"negative size":       {Message: &pb.FromPrimary_Batch{Batch: &pb.Batch{Bytes: -1}}},
	}
	for name, m := range primary {
		if got, err := DecodePrimary(m); err == nil {
			t.Errorf("%s: accepted as %#v", name, got)
		}
	}
	secondary := map[string]*pb.FromSecondary{
		"local key":          {Message: &pb.FromSecondary_AskItems{AskItems: &pb.AskItems{Unit: "u", Keys: []string{"l/a/b"}}}},
		"group":              {Message: &pb.FromSecondary_AskSums{AskSums: &pb.AskSums{Unit: "u", Group: 256}}},
		"negative group":     {Message: &pb.FromSecondary_AskSums{AskSums: &pb.AskSums{Unit: "u", Group: -2}}},
		"half a bucket set":  {Message: &pb.FromSecondary_AskPage{AskPage: &pb.AskPage{Unit: "u", Buckets: make([]byte, 100)}}},
		"after too long":     {Message: &pb.FromSecondary_AskPage{AskPage: &pb.AskPage{Unit: "u", After: strings.Repeat("x", 5000)}}},
		"unit too long":      {Message: &pb.FromSecondary_AskSums{AskSums: &pb.AskSums{Unit: strings.Repeat("x", 5000)}}},
		"id too long":        {Message: &pb.FromSecondary_Hello{Hello: &pb.Hello{SetId: strings.Repeat("x", 5000)}}},
		"negative credit":    {Message: &pb.FromSecondary_Ack{Ack: &pb.Ack{Bytes: -1}}},
		"position's epoch 0": {Message: &pb.FromSecondary_Ack{Ack: &pb.Ack{Cursor: &pb.Position{Index: 1}}}},
	}
	for name, m := range secondary {
		if got, err := DecodeSecondary(m); err == nil {
			t.Errorf("%s: accepted as %#v", name, got)
		}
	}
	if got, err := DecodeSecondary(&pb.FromSecondary{NowMs: 1}); got != nil || err != nil {
		t.Errorf("a sign of life is %#v, %v", got, err)
	}
}

func FuzzFromPrimary(f *testing.F) {
	seeds(f, randomMessages.fromPrimary, EncodePrimary)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p pb.FromPrimary
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		m, err := DecodePrimary(&p)
		if err != nil {
			return
		}
		sent, err := EncodePrimary(m)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := DecodePrimary(sent); err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%#v, sent on, is %#v, %v", m, again, err)
		}
	})
}

func FuzzFromSecondary(f *testing.F) {
	seeds(f, randomMessages.fromSecondary, EncodeSecondary)
	f.Fuzz(func(t *testing.T, b []byte) {
		var p pb.FromSecondary
		if proto.Unmarshal(b, &p) != nil {
			return
		}
		m, err := DecodeSecondary(&p)
		if err != nil || m == nil {
			return
		}
		sent, err := EncodeSecondary(m)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := DecodeSecondary(sent); err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%#v, sent on, is %#v, %v", m, again, err)
		}
	})
}

func seeds[P proto.Message](f *testing.F, all func(randomMessages) []replication.Message, encode func(replication.Message) (P, error)) {
	for seed := range uint64(3) {
		for _, m := range all(randomMessages{rand.New(rand.NewPCG(seed, 1))}) {
			p, err := encode(m)
			if err != nil {
				f.Fatal(err)
			}
			b, err := proto.Marshal(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
}
