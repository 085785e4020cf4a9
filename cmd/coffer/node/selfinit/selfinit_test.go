package selfinit_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/config/initialize"
	"github.com/coffer-project/coffer/cmd/coffer/node/selfinit"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/join"
)

type node struct{ initialized bool }

func (n *node) Initialized(context.Context) bool { return n.initialized }
func (n *node) Active() bool                     { return n.initialized }
func (n *node) Init(context.Context, int, int) (lifecycle.InitResult, error) {
	n.initialized = true
	return lifecycle.InitResult{RootToken: "root"}, nil
}

// An attempt that does not reach the end revokes the root token, ends the server, and is not taken for a success at the next start.
func TestAttemptThatFails(t *testing.T) {
	var paths []string
	status := http.StatusForbidden
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Vault-Token") != "root" {
			t.Errorf("the token of %s is %q", r.URL.Path, r.Header.Get("X-Vault-Token"))
		}
		paths = append(paths, r.Method+" "+r.URL.Path)
		if strings.HasSuffix(r.URL.Path, "/userpass") {
			w.WriteHeader(status)
			w.Write([]byte(`{"errors": ["because"]}`))
		}
	})
	o := selfinit.Options{
		Requests: []initialize.Request{{Block: "a", Name: "b", Operation: "update", Path: "sys/auth/userpass"}, {Block: "a", Name: "c", Operation: "list", Path: "x"}},
		Node:     &node{}, API: api, Marker: filepath.Join(t.TempDir(), "marker"), Logger: slog.New(slog.DiscardHandler),
	}
	if err := selfinit.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `request "b" of initialize "a": status 403: [because]`) {
		t.Fatal(err)
	}
	if want := []string{"POST /v1/sys/auth/userpass", "POST /v1/auth/token/revoke-self"}; !slices.Equal(paths, want) {
		t.Errorf("requests %q, want %q", paths, want)
	}
	if err := selfinit.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.Marker) {
		t.Errorf("the next start: %v", err)
	}
	if err := os.Remove(o.Marker); err != nil {
		t.Fatal(err)
	}
	if err := selfinit.Run(t.Context(), o); err != nil {
		t.Errorf("without the marker: %v", err)
	}
	status, paths, o.Node = http.StatusNoContent, nil, &node{}
	if err := selfinit.Run(t.Context(), o); err != nil || len(paths) != 3 || paths[1] != "LIST /v1/x" {
		t.Errorf("requests %q, %v", paths, err)
	}
	if _, err := os.Stat(o.Marker); err == nil {
		t.Error("the marker is left after a success")
	}
}

// A cluster is not founded while a node of it cannot be asked, nor when one of them has one.
func TestOtherNodes(t *testing.T) {
	var asked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Write([]byte(`{"initialized": true}`))
	}))
	defer other.Close()
	n := &node{}
	err := selfinit.Run(ctx, selfinit.Options{
		Node: n, Others: []join.Target{{LeaderAPIAddr: other.URL}}, Marker: filepath.Join(t.TempDir(), "marker"), Logger: slog.New(slog.DiscardHandler),
	})
	cancel()
	if err != nil || n.initialized || asked.Load() != 2 {
		t.Errorf("initialized %v after %d questions, %v", n.initialized, asked.Load(), err)
	}
}
