package fsm

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/coffer-project/coffer/proto/logpb"
	"github.com/coffer-project/coffer/storage"
)

// The formats of a command. Another one comes with each new field, so that an older program stops instead of applying
// half of what a command means; and each command has the oldest that can say it, so that it stops no sooner.
const (
	formatPlain      = 1
	formatOrigin     = 2 // puts may have an origin
	formatCheckpoint = 3 // it may be a checkpoint: written only in a cluster whose members all read it

	newestFormat = formatCheckpoint
)

// formatOf returns the oldest format that can say what c says.
func formatOf(c *logpb.Command) uint32 {
	if c.Checkpoint != nil {
		return formatCheckpoint
	}
	for _, op := range c.Ops {
		for _, p := range op.Puts {
			if p.OriginEpoch != 0 || p.OriginIndex != 0 {
				return formatOrigin
			}
		}
	}
	return formatPlain
}

// sealBytes is how much longer than storage.MaxValueBytes a value may be because it is sealed.
const sealBytes = 64

// EncodeCommand returns the log entry that applies batches one after the other, each all or nothing. timeMS
// is the leader's clock, in Unix milliseconds. Callers validate each batch first (storage.Batch.Validate):
// one that no replica could apply fails the whole command.
func EncodeCommand(timeMS int64, batches []storage.Batch) ([]byte, error) {
	c := logpb.Command{TimeMs: timeMS, Ops: make([]*logpb.Op, len(batches))}
	for i := range batches {
		c.Ops[i] = encodeOp(&batches[i])
	}
	c.Format = formatOf(&c)
	if err := checkCommand(&c); err != nil {
		return nil, fmt.Errorf("encoding a command: %w", err)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&c)
	if err != nil {
		return nil, fmt.Errorf("encoding a command: %w", err)
	}
	return b, nil
}

func encodeOp(b *storage.Batch) *logpb.Op {
	op := &logpb.Op{
		Reads:   make([]*logpb.Read, len(b.Reads)),
		Puts:    make([]*logpb.Put, len(b.Puts)),
		Deletes: make([]string, len(b.Deletes)),
	}
	for i, r := range b.Reads {
		op.Reads[i] = &logpb.Read{Key: string(r.Key), Version: uint64(r.Version)}
	}
	for i, p := range b.Puts {
		op.Puts[i] = &logpb.Put{
			Key: string(p.Key), Value: p.Value,
			OriginEpoch: p.Origin.Epoch, OriginIndex: uint64(p.Origin.Index),
		}
	}
	for i, k := range b.Deletes {
		op.Deletes[i] = string(k)
	}
	return op
}

// decodeCommand accepts only what it understands completely: applying less than that would let replicas of
// different age drift apart.
func decodeCommand(b []byte) (*logpb.Command, error) {
	c := new(logpb.Command)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("decoding a command: %w", err)
	}
	if c.Format < formatPlain || c.Format > newestFormat {
		return nil, fmt.Errorf("decoding a command: its format is %d and this program knows up to %d: upgrade this node", c.Format, newestFormat)
	}
	if needs := formatOf(c); c.Format < needs {
		return nil, fmt.Errorf("decoding a command: its format is %d and what it says needs %d", c.Format, needs)
	}
	if proto.Size(c) != len(b) { // unknown fields were left out, of any part of it
		return nil, errors.New("decoding a command: it has fields that this program does not know: upgrade this node")
	}
	if err := checkCommand(c); err != nil {
		return nil, fmt.Errorf("decoding a command: %w", err)
	}
	return c, nil
}

// checkCommand refuses what the state cannot hold, on both sides of the log.
func checkCommand(c *logpb.Command) error {
	if err := checkCheckpoint(c); err != nil {
		return err
	}
	for _, op := range c.Ops {
		for _, k := range keysOf(op) {
			switch {
			case k == "":
				return errors.New("empty key")
			case len(k) > storage.MaxKeyBytes:
				return fmt.Errorf("key of %d bytes: %w", len(k), storage.ErrTooLarge)
			}
		}
		for _, p := range op.Puts {
			if (p.OriginEpoch == 0) != (p.OriginIndex == 0) {
				return errors.New("a put has an incomplete origin")
			}
			if len(p.Value) > storage.MaxValueBytes+sealBytes {
				return fmt.Errorf("value of %d bytes: %w", len(p.Value), storage.ErrTooLarge)
			}
		}
	}
	return nil
}

// keysOf returns the keys that an operation reads and writes.
func keysOf(op *logpb.Op) []string {
	keys := make([]string, 0, len(op.Reads)+len(op.Puts)+len(op.Deletes))
	for _, r := range op.Reads {
		keys = append(keys, r.Key)
	}
	for _, p := range op.Puts {
		keys = append(keys, p.Key)
	}
	return append(keys, op.Deletes...)
}
