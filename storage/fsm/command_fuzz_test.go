package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/coffer-project/coffer/storage"
)

func FuzzDecodeCommand(f *testing.F) {
	for _, batches := range [][]storage.Batch{
		nil,
		{{}},
		{{Puts: []storage.Put{{Key: "s/a/k", Value: []byte("v")}}}},
		{{Puts: []storage.Put{{Key: "s/a/k", Origin: storage.Position{Epoch: 3, Index: 9}}, {Key: "s/a/l"}}}},
		{{Reads: []storage.Read{{Key: "s/a/k", Version: 7}}, Deletes: []storage.Key{"s/a/k"}}, {}},
	} {
		b, err := EncodeCommand(1700000000000, batches)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, 0x98, 0x06, 0x01)) // an unknown field
	}
	f.Add([]byte{0x08, 0x02})
	f.Add([]byte{0x08, 0x03})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCommand(b)
		if err != nil {
			return
		}
		var batches []storage.Batch
		for _, op := range c.Ops {
			var batch storage.Batch
			for _, r := range op.Reads {
				batch.Reads = append(batch.Reads, storage.Read{Key: storage.Key(r.Key), Version: storage.Index(r.Version)})
			}
			for _, p := range op.Puts {
				batch.Puts = append(batch.Puts, storage.Put{
					Key: storage.Key(p.Key), Value: p.Value,
					Origin: storage.Position{Epoch: p.OriginEpoch, Index: storage.Index(p.OriginIndex)},
				})
			}
			for _, k := range op.Deletes {
				batch.Deletes = append(batch.Deletes, storage.Key(k))
			}
			batches = append(batches, batch)
		}
		again, err := EncodeCommand(c.TimeMs, batches)
		if err != nil {
			t.Fatalf("decoded, but it cannot be encoded: %v", err)
		}
		back, err := decodeCommand(again)
		if back != nil && back.Format < c.Format {
			c.Format = back.Format // it needed no newer one
		}
		if err != nil || !proto.Equal(back, c) {
			t.Errorf("decoded as %v and, encoded again, as %v, %v", c, back, err)
		}
	})
}
