// Package transport carries Raft's messages over the cluster's port, and keeps defects of the library's transport away from Raft.
//
// It promises that a message is in the name of the node that sent it, that what is meant for one node never reaches another, that no
// pipeline waits for ever, and that a node whose log has stalled sends nothing by which others take it for a leader.
//
// Start reading at Transport; inbound.go has the receiving side.
package transport

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

var (
	errStalled = errors.New("the local log does not answer, or this node's state cannot be compared: sending nothing, so that another node can lead")
	errBroken  = errors.New("the pipeline broke at an earlier append")
)

// network is what Transport needs below: Raft's network or in-memory transport.
type network interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// Transport puts right what Raft's transport and its use of it get wrong.
//
// The pipeline: Raft stops reading responses after the first bad one, while its sender waits for room; both
// then wait for ever, and heartbeats hide it. Here responses are always read, and a pipeline that saw a bad
// one refuses to send (type pipeline).
//
// A leader whose disk hangs keeps sending heartbeats, so no other node takes over. Here everything that resets a
// follower's timer fails while the local log is stalled (W1).
//
// A follower that was away for long gets its first entries late, because Raft waits up to 10 s between attempts.
// Here an append waits for a node that cannot be reached, and goes through as soon as it can (patience).
//
// A snapshot is this node's state: it is sent only when that has been compared with the other voters' (Give).
//
// Node ids: what is meant for one node never reaches another at the same address (target).
type Transport struct {
	network
	local   raft.ServerAddress
	stalled func() bool                                                // W1
	address func(raft.ServerID, raft.ServerAddress) raft.ServerAddress // for the network below
	Stop    <-chan struct{}                                            // closed when Raft is to end; nil: never
	Give    func(stop <-chan struct{}) error                           // waits until this node's state may go to another; nil: it may

	Acked acked

	mu         sync.Mutex
	pipelines  map[*pipeline]raft.ServerID
	installing map[raft.ServerID]int
	installed  uint64 // snapshots sent
}

// New returns a transport over another one. local is what the others dial; stalled reports whether the local log hangs.
func New(inner network, local raft.ServerAddress, stalled func() bool) *Transport {
	return &Transport{
		network: inner, local: local, stalled: stalled, address: Target,
		pipelines: map[*pipeline]raft.ServerID{}, installing: map[raft.ServerID]int{},
	}
}

// LocalAddr implements raft.Transport.
func (t *Transport) LocalAddr() raft.ServerAddress { return t.local }

// EncodePeer implements raft.Transport. It is only asked for this node.
func (t *Transport) EncodePeer(_ raft.ServerID, addr raft.ServerAddress) []byte {
	return []byte(addr)
}

// DecodePeer implements raft.Transport.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// AppendEntries implements raft.Transport.
func (t *Transport) AppendEntries(id raft.ServerID, addr raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.stalled() {
		return errStalled
	}
	again := time.NewTicker(appendRetry)
	defer again.Stop()
	for giveUp := time.After(patience); ; {
		before := t.Acked.At(id, req.Term)
		err := t.network.AppendEntries(id, t.address(id, addr), req, resp)
		if err == nil {
			t.Acked.saw(id, before, req, resp)
		}
		if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" || isHeartbeat(req) {
			return err
		}
		select {
		case <-again.C:
		case <-giveUp:
			return err
		case <-t.Stop:
			return err
		}
		if t.stalled() {
			return errStalled
		}
	}
}

// Tell sends an append without waiting for it: once, or not at all.
func (t *Transport) Tell(id raft.ServerID, addr raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.stalled() {
		return errStalled
	}
	return t.network.AppendEntries(id, t.address(id, addr), req, resp)
}

// How long an append waits for a node that cannot be reached, and how often it tries.
const (
	patience    = 30 * time.Second
	appendRetry = 100 * time.Millisecond
)

// isHeartbeat tells the appends of Raft's heartbeat loop, which say nothing about the log. Their failing is
// how a leader notices that it has lost its majority.
func isHeartbeat(req *raft.AppendEntriesRequest) bool {
	return len(req.Entries) == 0 && req.PrevLogEntry == 0 && req.LeaderCommitIndex == 0
}

// RequestVote implements raft.Transport.
func (t *Transport) RequestVote(id raft.ServerID, addr raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.network.RequestVote(id, t.address(id, addr), req, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *Transport) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.network.RequestPreVote(id, t.address(id, addr), req, resp)
}

// TimeoutNow implements raft.Transport.
func (t *Transport) TimeoutNow(id raft.ServerID, addr raft.ServerAddress, req *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.network.TimeoutNow(id, t.address(id, addr), req, resp)
}

// InstallSnapshot implements raft.Transport.
func (t *Transport) InstallSnapshot(id raft.ServerID, addr raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	t.mu.Lock()
	t.installing[id]++
	t.installed++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.installing[id]--; t.installing[id] == 0 {
			delete(t.installing, id)
		}
	}()
	if t.Give != nil {
		if err := t.Give(t.Stop); err != nil {
			return err
		}
	}
	return t.network.InstallSnapshot(id, t.address(id, addr), req, resp, data)
}

// IsInstalling reports whether a snapshot is on its way to the node.
func (t *Transport) IsInstalling(id raft.ServerID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.installing[id] > 0
}

// SnapshotsSent returns how many snapshots were sent.
func (t *Transport) SnapshotsSent() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.installed
}

// AppendEntriesPipeline implements raft.Transport.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	if t.stalled() {
		return nil, errStalled
	}
	inner, err := t.network.AppendEntriesPipeline(id, t.address(id, addr))
	if err != nil {
		return nil, err
	}
	p := &pipeline{inner: inner, owner: t, id: id, out: make(chan raft.AppendFuture), done: make(chan struct{})}
	t.mu.Lock()
	t.pipelines[p] = id
	t.mu.Unlock()
	go p.pump()
	return p, nil
}

// Reset closes the pipelines to a node, whatever they wait for. Raft then starts over with it.
func (t *Transport) Reset(id raft.ServerID) {
	t.mu.Lock()
	var all []*pipeline
	for p, to := range t.pipelines {
		if to == id {
			all = append(all, p)
		}
	}
	t.mu.Unlock()
	for _, p := range all {
		p.Close()
	}
}

// pipeline is a raft.AppendPipeline that cannot wedge. Its goroutine ends with Close.
type pipeline struct {
	inner raft.AppendPipeline
	owner *Transport
	id    raft.ServerID
	out   chan raft.AppendFuture // unbuffered, never closed: the queue is in pump
	done  chan struct{}          // closed by Close

	mu     sync.Mutex
	broken bool
	closed bool
}

// pump takes responses off the inner pipeline as they come and hands them to Raft as it asks for them. The
// queue in between is bounded by what was sent.
func (p *pipeline) pump() {
	var queue []raft.AppendFuture
	for {
		var out chan raft.AppendFuture
		var head raft.AppendFuture
		if len(queue) > 0 {
			out, head = p.out, queue[0]
		}
		select {
		case f := <-p.inner.Consumer():
			if f.Error() != nil {
				// Not for Raft: it would count a response that never came as a contact.
				p.fail()
				continue
			}
			if !f.Response().Success {
				p.fail()
			}
			p.owner.Acked.saw(p.id, 0, f.Request(), f.Response())
			queue = append(queue, f)
		case out <- head:
			queue = queue[1:]
		case <-p.done:
			return
		}
	}
}

func (p *pipeline) fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = true
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.mu.Lock()
	broken := p.broken
	p.mu.Unlock()
	switch {
	case broken:
		return nil, errBroken
	case p.owner.stalled():
		return nil, errStalled
	}
	return p.inner.AppendEntries(req, resp)
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.out }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed, p.broken = true, true
	p.mu.Unlock()
	close(p.done)
	p.owner.mu.Lock()
	delete(p.owner.pipelines, p)
	p.owner.mu.Unlock()
	return p.inner.Close()
}
