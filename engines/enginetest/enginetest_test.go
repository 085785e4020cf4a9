package enginetest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// note is an engine that stores one text for each name and remembers what changed.
type note struct {
	router *engines.Router

	mu      sync.Mutex
	changed []storage.Key
}

type noteIn struct {
	Name string `json:"name"`
	Text string `json:"text" required:"true" max:"16"`
}

func newNote(engines.Mount) (engines.Engine, error) {
	n := &note{router: engines.NewRouter()}
	engines.On(n.router, engines.Update, "notes/{name}", "Write a note.", 0, n.write).Exists = n.exists
	engines.On(n.router, engines.Update, "fail", "Write and fail.", 0, n.fail)
	return n, nil
}

func (n *note) Router() *engines.Router { return n.router }

func (n *note) Initialize(ctx context.Context, m engines.Mount) error {
	_, err := m.ClusterStorage.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "ready", Value: []byte("1")}}})
	return err
}

func (n *note) Changed(_ storage.Class, keys []storage.Key, _ bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = append(n.changed, keys...)
}

func (n *note) exists(ctx context.Context, req *engines.Request) (bool, error) {
	_, err := req.Mount.Storage.Get(ctx, storage.Key(req.Param("name")))
	if errors.Is(err, storage.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (n *note) write(ctx context.Context, req *engines.Request, in *noteIn) (*engines.Response, error) {
	put := storage.Put{Key: storage.Key(in.Name), Value: []byte(in.Text)}
	_, err := req.Mount.Storage.Commit(ctx, storage.Batch{Puts: []storage.Put{put}})
	return &engines.Response{Data: map[string]any{"op": req.Op}}, err
}

func (n *note) fail(context.Context, *engines.Request, *struct{}) (*engines.Response, error) {
	return nil, engines.Denied(nil)
}

func TestHarness(t *testing.T) {
	m := enginetest.New(t, newNote, enginetest.Options{})
	peer := m.Peer()
	if m.Snapshot()["l/"+storage.Key(m.Mount.UUID)+"/ready"] != "1" {
		t.Error("Initialize did not run")
	}
	if m.Exists("notes/a") {
		t.Error("notes/a exists")
	}
	for _, want := range []string{"create", "update"} {
		if got := m.Data(m.Must(engines.Update, "notes/a", map[string]string{"text": "x"}))["op"]; got != want {
			t.Errorf("the engine saw operation %v, want %s", got, want)
		}
	}
	m.Fails(engines.KindDenied, engines.Update, "fail", nil)
	changed := peer.Engine.(*note).changed
	if !slices.Contains(changed, "a") {
		t.Errorf("the other node heard of %q, want the relative key a", changed)
	}
	enginetest.Hostile(t, m)
}
