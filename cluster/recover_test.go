package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/storage/fsm"
)

type listed struct {
	ID       string `json:"id"`
	Address  string `json:"address"`
	NonVoter bool   `json:"non_voter,omitempty"`
}

func writePeers(t *testing.T, m *member, peers any) {
	t.Helper()
	text, err := json.Marshal(peers)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(m.opts.Dir, PeersFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(m *member, name string) bool {
	_, err := os.Stat(filepath.Join(m.opts.Dir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

func TestSurvivorOfALostQuorumRecovers(t *testing.T) {
	t.Parallel()
	all := three(t)
	a := all[0]
	for _, key := range []string{"1", "2", "3"} {
		mustCommit(t, a, key, key)
	}
	addr := a.addr
	for _, m := range all {
		m.kill()
	}
	writePeers(t, a, []listed{{ID: "a", Address: addr}})
	a.open()
	until(t, "the survivor to lead", a.IsLeader)
	if exists(a, PeersFile) || !exists(a, PeersDone) {
		t.Error("the peers file was not renamed: it would be followed again")
	}
	mustCommit(t, a, "4", "4")
	for _, key := range []string{"1", "2", "3", "4"} {
		if got := a.value(key); got != key {
			t.Errorf("after the recovery key %s is %q", key, got)
		}
	}
	if peers := a.Peers(); len(peers) != 1 || peers[0].ID != "a" {
		t.Errorf("after the recovery the members are %+v, want a alone", peers)
	}

	// It stays so after a restart, and the cluster can grow again.
	a.stop()
	a.open()
	until(t, "leadership after a restart", a.IsLeader)
	d := start(t, "d")
	if err := a.Join(testContext(t), "d", d.addr, false, true); err != nil {
		t.Fatal(err)
	}
	until(t, "the new member to vote and to have everything", func() bool { return a.raft.OtherVoters() == 1 && d.value("4") == "4" })
}

func TestTwoSurvivorsRecoverTogether(t *testing.T) {
	t.Parallel()
	all := three(t, func(o *Options) { o.TrailingLogs = 1 << 20 })
	a, b := all[0], all[1]
	mustCommit(t, a, "k", "v")
	catchUp(t, b, a)
	all[2].kill()
	b.stop()
	a.stop()
	peers := []listed{{ID: "a", Address: a.opts.ListenAddr}, {ID: "b", Address: b.opts.ListenAddr}}
	for _, m := range []*member{a, b} {
		writePeers(t, m, peers)
		m.open()
	}
	leader := leaderOf(t, all[:2])
	mustCommit(t, leader, "k2", "v2")
	for _, m := range []*member{a, b} {
		until(t, "both to have everything", func() bool { return m.value("k") == "v" && m.value("k2") == "v2" })
	}
}

func TestPeersFileIsChecked(t *testing.T) {
	t.Parallel()
	m := single(t)
	mustCommit(t, m, "k", "v")
	m.stop()
	for _, tt := range []struct {
		name  string
		peers any
		want  string
	}{
		{"not this node", []listed{{ID: "other", Address: "127.0.0.1:1"}}, "does not name this node"},
		{"nobody", []listed{}, "peers.json"},
		{"no voter", []listed{{ID: "a", Address: "127.0.0.1:1", NonVoter: true}}, "peers.json"},
		{"no list", map[string]string{"id": "a"}, "peers.json"},
	} {
		writePeers(t, m, tt.peers)
		machine, err := fsm.Open(m.opts.Dir, fsm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m.opts.Machine = machine
		n, err := Open(m.opts)
		if err == nil {
			n.Close(context.Background())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Open = %v, want an error with %q", tt.name, err, tt.want)
		}
		if !exists(m, PeersFile) {
			t.Errorf("%s: the refused file is gone", tt.name)
		}
		if err := machine.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(m.opts.Dir, PeersFile)); err != nil {
		t.Fatal(err)
	}
	m.open()
	until(t, "the node to be as before", m.IsLeader)
	if got := m.value("k"); got != "v" {
		t.Errorf("the value is %q", got)
	}
}

// What is in the log of a survivor but not yet in its state file counts.
func TestRecoveryKeepsTheLogsTail(t *testing.T) {
	t.Parallel()
	m := single(t)
	index := mustCommit(t, m, "k", "1")
	entry := &raft.Log{}
	if err := m.logs.GetLog(uint64(index), entry); err != nil || entry.Type != raft.LogCommand {
		t.Fatalf("the entry is %v, %v: want the command", entry.Type, err)
	}
	addr := m.opts.ListenAddr
	m.stop()
	l, _, err := raftlog.Open(filepath.Join(m.opts.Dir, raftlog.FileName), false)
	if err != nil {
		t.Fatal(err)
	}
	last, err := l.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	again := *entry
	again.Index = last + 1
	if err := errors.Join(l.StoreLogs([]*raft.Log{&again}), l.Close()); err != nil {
		t.Fatal(err)
	}
	writePeers(t, m, []listed{{ID: "a", Address: addr}})
	m.open()
	until(t, "leadership", m.IsLeader)
	if e, err := m.machine.Get(testContext(t), "l/test/k"); err != nil || uint64(e.Version) != last+1 {
		t.Errorf("the entry has version %d, %v, want %d: the log's tail was not applied", e.Version, err, last+1)
	}
}
