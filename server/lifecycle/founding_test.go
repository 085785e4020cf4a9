package lifecycle_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
)

// peers are nodes that all have the same retry_join, which names each of them.
func peers(t *testing.T, ids ...string) (nodes []*node, targets []join.Target) {
	t.Helper()
	for i := range ids {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/sys/seal-status" {
				http.NotFound(w, r)
				return
			}
			s := nodes[i].Status(r.Context())
			json.NewEncoder(w).Encode(map[string]any{"initialized": s.Initialized, "initializing": s.Founding})
		}))
		t.Cleanup(server.Close)
		targets = append(targets, join.Target{LeaderAPIAddr: server.URL})
	}
	for _, id := range ids {
		nodes = append(nodes, newNode(t, id, lifecycletest.NewState(), func(o *lifecycle.Options) { o.RetryJoin = targets }))
	}
	return nodes, targets
}

// One node founds the cluster, also if the others are away or its own address is among those to join; the others then do not.
func TestFoundingByOneConfiguration(t *testing.T) {
	nodes, targets := peers(t, "n1", "n2", "n3")
	alone := newNode(t, "n4", lifecycletest.NewState(), func(o *lifecycle.Options) {
		o.RetryJoin = []join.Target{{LeaderAPIAddr: "http://127.0.0.1:1"}}
	})
	alone.init(1, 1)
	nodes[1].init(1, 1)
	for _, n := range []*node{nodes[0], nodes[2]} {
		_, err := n.Init(t.Context(), 1, 1)
		if err == nil || !strings.Contains(err.Error(), targets[1].LeaderAPIAddr) || n.Initialized(t.Context()) {
			t.Errorf("a second Init = %v, want an error that names the first node", err)
		}
		if s := n.Status(t.Context()); s.Founding != "" {
			t.Error("it still says that it is being initialized")
		}
	}
}

// Of nodes that are initialized at the same moment at most one founds a cluster.
func TestFoundingRace(t *testing.T) {
	nodes, _ := peers(t, "n1", "n2", "n3")
	// The worst moment: the first has asked the others, and is about to write.
	entered, leave := make(chan struct{}), make(chan struct{})
	nodes[0].onToken = func() { close(entered); <-leave }
	done := make(chan error, 1)
	go func() {
		_, err := nodes[0].Init(t.Context(), 1, 1)
		done <- err
	}()
	<-entered
	if _, err := nodes[1].Init(t.Context(), 1, 1); err == nil || !strings.Contains(err.Error(), "is being initialized") {
		t.Errorf("Init during another one = %v", err)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Errorf("the first Init = %v", err)
	}
	for range 10 {
		nodes, _ := peers(t, "n1", "n2", "n3")
		results := make(chan error, len(nodes))
		for _, n := range nodes {
			go func() {
				_, err := n.Init(t.Context(), 1, 1)
				results <- err
			}()
		}
		founded := 0
		for range nodes {
			if err := <-results; err == nil {
				founded++
			}
		}
		if founded > 1 {
			t.Fatalf("%d clusters were founded", founded)
		}
	}
}

// A node that is in no cluster says which nodes it tries to join, and why that fails; a founder no longer does.
func TestJoiningStatus(t *testing.T) {
	const away = "http://127.0.0.1:1"
	n := newNode(t, "n1", lifecycletest.NewState(), func(o *lifecycle.Options) { o.RetryJoin = []join.Target{{LeaderAPIAddr: away}} })
	if s := n.Status(t.Context()); !slices.Equal(s.JoinTargets, []string{away}) || s.JoinError != "" {
		t.Errorf("JoinTargets = %q, JoinError = %q before the first attempt", s.JoinTargets, s.JoinError)
	}
	if _, err := n.Unseal(t.Context(), "none", false); err == nil { // tries to join first
		t.Error("a node without a seal took a key share")
	}
	if s := n.Status(t.Context()); s.JoinError == "" {
		t.Error("JoinError is empty after a failed attempt")
	}
	n.init(1, 1)
	if s := n.Status(t.Context()); s.JoinTargets != nil || s.JoinError != "" {
		t.Errorf("JoinTargets = %q, JoinError = %q in a cluster of its own", s.JoinTargets, s.JoinError)
	}
}
