package transport

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// fakePipeline answers as the test says and, like Raft's, blocks when the answers are not taken.
type fakePipeline struct {
	answers chan raft.AppendFuture
	success bool
	err     error
}

type fakeFuture struct {
	raft.AppendFuture
	resp *raft.AppendEntriesResponse
	err  error
}

func (f fakeFuture) Request() *raft.AppendEntriesRequest { return &raft.AppendEntriesRequest{} }

func (f fakeFuture) Error() error                          { return f.err }
func (f fakeFuture) Response() *raft.AppendEntriesResponse { return f.resp }

func (f *fakePipeline) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	answer := fakeFuture{resp: &raft.AppendEntriesResponse{Success: f.success}, err: f.err}
	f.answers <- answer
	return answer, nil
}

func (f *fakePipeline) Consumer() <-chan raft.AppendFuture { return f.answers }
func (f *fakePipeline) Close() error                       { return nil }

func TestPipelineNeverBlocksOnItsReader(t *testing.T) {
	tests := []struct {
		name      string
		success   bool
		err       error
		delivered int // answers that Raft gets to see
		refuses   bool
	}{
		{"good answers", true, nil, 1000, false},
		{"bad answers", false, nil, 1, true},
		{"no answers", false, errors.New("timeout"), 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			owner := New(nil, "", func() bool { return false })
			inner := &fakePipeline{answers: make(chan raft.AppendFuture), success: tt.success, err: tt.err}
			p := &pipeline{inner: inner, owner: owner, out: make(chan raft.AppendFuture), done: make(chan struct{})}
			go p.pump()
			defer p.Close()
			var err error
			sent := 0
			for ; sent < 1000 && err == nil; sent++ { // p.Consumer is not read
				_, err = p.AppendEntries(nil, nil)
			}
			if refused := err != nil; refused != tt.refuses {
				t.Fatalf("after %d sends: %v", sent, err)
			}
			for range tt.delivered {
				<-p.Consumer()
			}
		})
	}
}
