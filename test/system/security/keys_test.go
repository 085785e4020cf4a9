package security_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/test/harness"
)

// disk is the data directory of a stopped node, read with keys from elsewhere.
type disk struct {
	t     *testing.T
	state *fsm.FSM
}

// copyOf copies a stopped node's data directory and opens the copy.
func copyOf(t *testing.T, n *harness.Node) disk {
	t.Helper()
	dir := filepath.Join(t.TempDir(), n.ID)
	if err := os.CopyFS(dir, os.DirFS(n.Dir)); err != nil {
		t.Fatal(err)
	}
	state, err := fsm.Open(dir, fsm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { state.Close() })
	return disk{t, state}
}

// root returns the root key that shares open on this disk.
func (d disk) root(shares []string) ([]byte, error) {
	d.t.Helper()
	var parts [][]byte
	for _, s := range shares {
		part, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			d.t.Fatal(err)
		}
		parts = append(parts, part)
	}
	kek, err := seal.Combine(parts)
	if err != nil {
		return nil, err
	}
	_, wrapped, err := seal.Load(d.t.Context(), d.state)
	if err != nil {
		d.t.Fatal(err)
	}
	return seal.UnwrapRoot(d.t.Context(), seal.NewKEKWrapper(kek), wrapped)
}

// readsOnly makes a Store of a state that is only read.
type readsOnly struct{ storage.Reader }

func (readsOnly) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrReadOnly
}

func (d disk) barrier() *barrier.Barrier { return barrier.New(readsOnly{d.state}) }

// rekeyed changes the unseal keys to two new shares, and returns them.
func (u user) rekeyed(keys ...string) []string {
	u.t.Helper()
	var s struct {
		Nonce    string
		Complete bool
		Keys     []string `json:"keys_base64"`
	}
	u.must("PUT", "sys/rekey/init", fields{"secret_shares": 2, "secret_threshold": 2}).Decode(u.t, &s)
	for _, k := range keys {
		u.must("PUT", "sys/rekey/update", fields{"key": k, "nonce": s.Nonce}).Decode(u.t, &s)
	}
	if !s.Complete || len(s.Keys) != 2 {
		u.t.Fatalf("rekey: complete %v, %d keys", s.Complete, len(s.Keys))
	}
	return s.Keys
}

// reads waits until the node, which may lag, has a secret.
func (u user) reads(path string) {
	u.t.Helper()
	harness.Await(u.t, u.n.ID+" to have "+path, time.Minute, func() error {
		if a := u.do("GET", path, nil); a.Status != 200 {
			return fmt.Errorf("status %d: %.200s", a.Status, a.Body)
		}
		return nil
	})
}

// TestRekeyEndsFormerKeys: a threshold of the former shares, and a data directory of before, open nothing that was written
// since; and the cluster goes on, with nodes that were there, that restart, that were away, and that join.
func TestRekeyEndsFormerKeys(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{Shamir: true})
	root := user{t, c.Leader(), c.RootToken, ""}
	root.must("PUT", "sys/mounts/kv", fields{"type": "kv"})
	root.must("PUT", "kv/before", fields{"value": "written before"})
	away := c.Standbys()[0]
	away.Stop()
	before := copyOf(t, away)
	former := c.Keys
	formerRoot, err := before.root(former[:2])
	if err != nil {
		t.Fatalf("the shares do not open the disk of before: %v", err)
	}

	c.Keys = root.rekeyed(former[:2]...)
	root.must("PUT", "kv/after", fields{"value": hidden})
	leader, standby := c.Leader(), c.Standbys()[0]
	root.at(standby).reads("kv/after")
	root.must("PUT", "sys/step-down", nil)
	harness.Await(t, "the standby to lead", time.Minute, func() error {
		if c.Leader() != standby {
			return errors.New("it does not")
		}
		return nil
	})
	root.at(standby).must("PUT", "kv/later", fields{"value": hidden})
	leader.Stop()
	after := copyOf(t, leader)

	if _, err := after.root(former[:2]); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("former shares, new wrapped root key: %v", err)
	}
	if err := after.barrier().Unseal(t.Context(), formerRoot); !errors.Is(err, barrier.ErrWrongKey) {
		t.Errorf("former root key, new key ring: %v", err)
	}
	values := before.barrier()
	if err := values.Unseal(t.Context(), formerRoot); err != nil {
		t.Fatal(err)
	}
	if _, err := values.Get(t.Context(), "l/cluster/identity"); err != nil {
		t.Errorf("the former keys do not open what they should: %v", err)
	}
	entries, err := after.state.Scan(t.Context(), "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := after.state.Get(t.Context(), "l/barrier/keyring")
	if err != nil {
		t.Fatal(err)
	}
	since := 0
	for _, e := range entries {
		if e.Version < ring.Version {
			continue // from before the rekey
		}
		since++
		if plain, err := values.OpenValue(t.Context(), e.Key, e.Value); err == nil {
			t.Errorf("the former keys open %s: %d bytes", e.Key, len(plain))
		}
	}
	if since < 5 { // the seal, the ring and two secrets
		t.Errorf("only %d entries were written since the rekey", since)
	}
	kek, err := after.state.Get(t.Context(), seal.UnsealKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := seal.Follow(t.Context(), after.state, values.OpenBytes); err == nil || len(kek.Value) == 0 {
		t.Errorf("the former keys open the new unseal key")
	}
	newRoot, err := after.root(c.Keys)
	if err != nil {
		t.Fatal(err)
	}
	if err := after.barrier().Unseal(t.Context(), newRoot); err != nil {
		t.Errorf("the new root key: %v", err)
	}

	for _, n := range []*harness.Node{leader, away} { // one has the new state, one that of before
		n.Start()
		n.Unseal()
		n.WaitHealth(200, 429)
		root.at(n).reads("kv/after")
	}
	root.at(c.Add("n4")).must("GET", "kv/before", nil)
}
