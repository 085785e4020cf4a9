package transport

import (
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/certs"
	"github.com/coffer-project/coffer/cluster/port"
)

func TestUrgentMessagesDoNotWait(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	ca, err := certs.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	trust, err := certs.NewTrust(ca)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := port.NewIdentity("a", nil, trust, func() (certs.CA, error) { return ca, nil })
	if err != nil {
		t.Fatal(err)
	}
	s := NewStreams(port.NewInbox(dead.Addr()), identity)
	in := NewInbound(s, 50*time.Millisecond, raft.NetworkTransportConfig{MaxPool: 1, Timeout: time.Hour})
	defer in.Close()
	to := Target("b", raft.ServerAddress(dead.Addr().String()))
	for name, send := range map[string]func() error{
		"a heartbeat": func() error {
			return in.AppendEntries("b", to, &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
		},
		"a vote": func() error {
			return in.RequestVote("b", to, &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{})
		},
		"a pre-vote": func() error {
			return in.RequestPreVote("b", to, &raft.RequestPreVoteRequest{}, &raft.RequestPreVoteResponse{})
		},
		"a transfer": func() error {
			return in.TimeoutNow("b", to, &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
		},
	} {
		ended := make(chan error, 1)
		go func() { ended <- send() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s was answered by no one", name)
			}
		case <-time.After(20 * time.Second):
			s.Cut()
			t.Errorf("%s waits for a node that is silent", name)
		}
	}
}

// Looking for the leader changes nothing while it is there, and each voter has its own moment for it.
