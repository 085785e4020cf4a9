package chaos_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage/boltstore"
	"github.com/coffer-project/coffer/test/harness"
)

// openState opens the state file of a node that is stopped.
func openState(t *testing.T, n *harness.Node) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(filepath.Join(n.Dir, "fsm.db"), "", boltstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// recordsBelow returns the records of a stopped node whose keys begin with a prefix.
func recordsBelow(t *testing.T, n *harness.Node, prefix string) map[string][]byte {
	t.Helper()
	s := openState(t, n)
	defer s.Close()
	v, err := s.View()
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	records := map[string][]byte{}
	if err := v.Scan(t.Context(), prefix, "", func(key string, rec []byte) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		records[key] = append([]byte(nil), rec...)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return records
}

// rewrite changes records of a stopped node, nil removes one, and has the file add up to them.
func rewrite(t *testing.T, n *harness.Node, records map[string][]byte) {
	t.Helper()
	s := openState(t, n)
	w, err := s.Begin()
	if err != nil {
		t.Fatal(err)
	}
	pos := w.Position()
	for key, rec := range records {
		if rec == nil {
			w.Delete(key)
		} else {
			w.Put(key, rec)
		}
	}
	w.Commit(pos)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTamperedDisk restores a revoked token and removes an audit device on the disk of one node, with checksums that are
// right. The node has to notice soon after its start, and until then to serve nothing of it, also when all nodes start at once.
func TestTamperedDisk(t *testing.T) {
	harness.LongOnly(t)
	c := harness.NewCluster(t, 3, harness.Options{})
	root := c.Leader()
	root.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	root.MustDo("POST", "/v1/ack/secret", map[string]any{"v": "secret"})
	root.MustDo("POST", "/v1/sys/policies/acl/reader", map[string]any{"policy": `path "ack/*" { capabilities = ["read"] }`})
	root.MustDo("POST", "/v1/sys/audit/file", map[string]any{"type": "file", "options": map[string]any{"file_path": "audit.log"}})
	var created struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	root.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"reader"}, "ttl": "1h"}).Decode(t, &created)
	token := created.Auth.Token

	victim := c.Standbys()[0]
	victim.Stop()
	tokens := recordsBelow(t, victim, "l/token/")
	victim.Start()
	victim.WaitHealth(200, 429)
	c.WaitVoters(3)
	c.Leader().MustDo("POST", "/v1/auth/token/revoke", map[string]any{"token": token})

	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint("all nodes start: ", all), func(t *testing.T) {
			if all {
				for _, n := range c.Nodes {
					if n != victim {
						n.Stop()
					}
				}
			}
			victim.Stop()
			changes := recordsBelow(t, victim, "s/sys/audit/")
			maps.Copy(changes, recordsBelow(t, victim, "l/sys/audit/"))
			if len(changes) == 0 {
				t.Fatal("the state has no audit device: the test does not test")
			}
			for key := range changes {
				changes[key] = nil
			}
			for key, rec := range tokens {
				changes[key] = rec
			}
			rewrite(t, victim, changes)
			logged := len(victim.Log())
			victim.Start()
			if all {
				for _, n := range c.Nodes {
					if n != victim {
						n.Start()
					}
				}
			}
			harness.Await(t, "the node to notice and to move its data aside", time.Minute, func() error {
				if a, err := victim.Do(t.Context(), "GET", "/v1/ack/secret", token, nil); err == nil && a.Status == 200 {
					t.Fatalf("a revoked token reads the secret: %s", a.Body)
				}
				text := victim.Log()[logged:]
				if !strings.Contains(text, "not those of the majority") || !strings.Contains(text, "moved aside") {
					return fmt.Errorf("its log does not say so")
				}
				return nil
			})
			victim.WaitHealth(200, 429)
			c.WaitVoters(3)
			for _, n := range c.Nodes {
				if a, err := n.Do(t.Context(), "GET", "/v1/ack/secret", token, nil); err != nil || a.Status != 403 {
					t.Errorf("%s: the revoked token: %v, %v", n.ID, a.Status, err)
				}
				if a := n.MustDo("GET", "/v1/sys/audit", nil); !strings.Contains(string(a.Body), "audit.log") {
					t.Errorf("%s has no audit device: %s", n.ID, a.Body)
				}
			}
		})
	}
}
