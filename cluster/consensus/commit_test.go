package consensus

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
)

func newOp(bytes int) *op { return &op{bytes: bytes, done: make(chan struct{})} }

func TestQueueFillsEntries(t *testing.T) {
	tests := []struct {
		name  string
		sizes []int
		want  []int // operations in each entry
	}{
		{"nothing", nil, nil},
		{"few", []int{1, 1, 1}, []int{3}},
		{"by number", make([]int, 300), []int{128, 128, 44}},
		{"by size", []int{100 << 10, 100 << 10, 100 << 10, 10}, []int{2, 2}},
		{"a big one alone", []int{10, 1 << 20, 10}, []int{1, 1, 1}},
		{"big ones first", []int{1 << 20, 1 << 20}, []int{1, 1}},
	}
	for _, tt := range tests {
		q := newQueue()
		for _, size := range tt.sizes {
			if err := q.put(newOp(size)); err != nil {
				t.Fatal(err)
			}
		}
		var got []int
		for ops := q.take(); len(ops) > 0; ops = q.take() {
			got = append(got, len(ops))
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) || q.bytes != 0 {
			t.Errorf("%s: entries of %v operations, %d bytes left, want %v", tt.name, got, q.bytes, tt.want)
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	q := newQueue()
	big := newOp(maxQueueBytes)
	if err := q.put(big); err != nil {
		t.Fatal(err)
	}
	if err := q.put(newOp(1)); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("put into a full queue = %v, want ErrUnavailable", err)
	}
	if !q.withdraw(big) || q.withdraw(big) {
		t.Error("a waiting operation can be withdrawn, once")
	}
	small := newOp(1)
	if err := q.put(small); err != nil {
		t.Errorf("put after the withdrawal = %v", err)
	}
	q.take()
	if q.withdraw(small) {
		t.Error("an operation was withdrawn from an entry")
	}
	last := newOp(1)
	q.put(last)
	q.close()
	if <-last.done; !errors.Is(last.err, storage.ErrUnavailable) {
		t.Errorf("an operation that waits when the node closes gets %v", last.err)
	}
	if err := q.put(newOp(1)); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("put into a closed queue = %v", err)
	}
}

func TestCommitErrors(t *testing.T) {
	tests := []struct {
		err, want error
	}{
		{raft.ErrNotLeader, storage.ErrReadOnly},
		{raft.ErrEnqueueTimeout, storage.ErrUnavailable},
		{raft.ErrLeadershipTransferInProgress, storage.ErrUnavailable},
		{raft.ErrLeadershipLost, storage.ErrOutcomeUnknown},
		{raft.ErrAbortedByRestore, storage.ErrOutcomeUnknown},
		{raft.ErrRaftShutdown, storage.ErrOutcomeUnknown},
		{errors.New("the disk is full"), storage.ErrOutcomeUnknown},
	}
	for _, tt := range tests {
		if got := commitError(tt.err); !errors.Is(got, tt.want) {
			t.Errorf("commitError(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}
