// Package syncsim is what secret sync works with, for tests: a World with a store, mounts of secrets and an audit log, which
// each Node sees as its engines.Host; and Sites, where destinations of two types keep what they receive, with faults.
//
//	w := syncsim.NewWorld()
//	kv := w.Mount("root", "kv/")
//	sites := syncsim.NewSites()
//	s := secretsync.New(secretsync.Options{Host: w.Node(), Types: sites.Types()})
//	defer w.Store.OnChange(s.Changed)()
//	go s.Run(ctx)
//
// It measures time by the clock, so that tests run it in a bubble of testing/synctest.
package syncsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// World is a cluster, as far as secret sync knows one. Safe for concurrent use.
type World struct {
	Store *Store

	mu         sync.Mutex
	namespaces map[string]string // path by id
	mounts     map[string]*KV    // by uuid
	made       int
	secondary  bool
	audited    []engines.Event
	deaf       error // what Record fails with
	older      bool  // a node is of an earlier version
	mayRead    func(who engines.Principal, ns, path string) bool
	commits    func(storage.Batch) error
}

// NewWorld returns a world with the root namespace, on the primary, in which everybody may read everything.
func NewWorld() *World {
	return &World{Store: new(Store), namespaces: map[string]string{"root": ""}, mounts: map[string]*KV{}}
}

// Namespace makes a namespace; path ends in "/".
func (w *World) Namespace(id, path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.namespaces[id] = path
}

// SetOwner makes the cluster a primary, or a secondary. Tell the service by RoleChanged.
func (w *World) SetOwner(owner bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secondary = !owner
}

// SetOlderMember says whether a node of the cluster is of an earlier version.
func (w *World) SetOlderMember(is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.older = is
}

// SetMayRead says who may read what; nil: everybody everything.
func (w *World) SetMayRead(may func(who engines.Principal, ns, path string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mayRead = may
}

// FailAudit has the audit log fail; nil: it works again.
func (w *World) FailAudit(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deaf = err
}

// OnCommit is asked before every commit of a node, and fails it if it returns an error; nil: all succeed.
func (w *World) OnCommit(ask func(storage.Batch) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.commits = ask
}

// Audited returns what was recorded in the audit log.
func (w *World) Audited() []engines.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.audited)
}

// Mount mounts a KV version 2 engine. path ends in "/" and is relative to the namespace.
func (w *World) Mount(ns, path string) *KV {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made++
	m := engines.Mount{
		UUID: fmt.Sprintf("00000000-0000-4000-8000-%012d", w.made), Accessor: fmt.Sprintf("kv_%08d", w.made), Type: "kv", Path: path,
		Namespace: w.namespaces[ns], NamespaceID: ns, Options: map[string]string{"version": "2"}, Storage: w.Store, ClusterStorage: w.Store,
	}
	k := &KV{mount: m, store: w.Store}
	w.mounts[m.UUID] = k
	return k
}

// Unmount removes a mount with its data. Before, tell the service by MountGone, as the server does.
func (w *World) Unmount(ctx context.Context, k *KV) error {
	w.mu.Lock()
	delete(w.mounts, k.mount.UUID)
	w.mu.Unlock()
	return storage.DeletePrefix(ctx, w.Store, storage.NewKey(storage.Shared, k.mount.UUID, ""))
}

// Move gives a mount another path, and changes its record as the server does.
func (w *World) Move(ctx context.Context, k *KV, path string) error {
	k.mu.Lock()
	k.mount.Path = path
	k.mu.Unlock()
	key := storage.NewKey(storage.Shared, "sys", k.mount.NamespaceID+"/mounts/"+k.mount.UUID)
	_, err := w.Store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte(path)}}})
	return err
}

// Node returns a node of the world. It is an engines.Host.
func (w *World) Node() *Node { return &Node{w: w} }

// Node is what one node's service sees of a World. Safe for concurrent use.
type Node struct {
	w    *World
	mu   sync.Mutex
	dead bool
}

var errDead = fmt.Errorf("the node was stopped: %w", storage.ErrReadOnly)

// Stop has everything fail from now on, as for a node that is not the active one any more.
func (n *Node) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = true
}

// Stopped reports whether the node was stopped.
func (n *Node) Stopped() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead
}

// nodeStore is the store through a node.
type nodeStore struct {
	*Store
	n *Node
}

func (s nodeStore) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	s.n.w.mu.Lock()
	ask := s.n.w.commits
	s.n.w.mu.Unlock()
	if ask != nil && !s.n.Stopped() {
		if err := ask(b); err != nil {
			return 0, err
		}
	}
	if s.n.Stopped() {
		return 0, errDead
	}
	return s.Store.Commit(ctx, b)
}

// Store implements engines.Host.
func (n *Node) Store() storage.Store { return nodeStore{n.w.Store, n} }

// Owner implements engines.Host.
func (n *Node) Owner() bool {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return !n.w.secondary
}

// FormatsAgreed implements engines.Host.
func (n *Node) FormatsAgreed() bool {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return !n.w.older
}

// MountAt implements engines.Host.
func (n *Node) MountAt(_ context.Context, ns, path string) (*engines.Mounted, error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	for _, k := range n.w.mounts {
		if m := k.Describe(); m.NamespaceID == ns && (m.Path == strings.TrimSuffix(path, "/")+"/" || m.Accessor == path) {
			return &engines.Mounted{Mount: m, Engine: k}, nil
		}
	}
	return nil, nil
}

// MountOf implements engines.Host.
func (n *Node) MountOf(_ context.Context, uuid string) (*engines.Mounted, error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	k := n.w.mounts[uuid]
	if k == nil {
		return nil, nil
	}
	return &engines.Mounted{Mount: k.Describe(), Engine: k}, nil
}

// Namespaces implements engines.Host.
func (n *Node) Namespaces(context.Context) ([]string, error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	ids := slices.Sorted(maps.Keys(n.w.namespaces))
	slices.SortStableFunc(ids, func(a, b string) int {
		switch {
		case a == "root" && b != "root":
			return -1
		case b == "root" && a != "root":
			return 1
		}
		return 0
	})
	return ids, nil
}

// NamespacePath implements engines.Host.
func (n *Node) NamespacePath(id string) string {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.w.namespaces[id]
}

// IdentityToken implements engines.Host. The token is what it is for.
func (n *Node) IdentityToken(_ context.Context, ns, subject, audience string, _ time.Duration) (engines.Sensitive, error) {
	return engines.Sensitive("plugin-identity:" + ns + ":" + subject + " for " + audience), nil
}

// MayRead implements engines.Host.
func (n *Node) MayRead(_ context.Context, who engines.Principal, ns, path string) (bool, error) {
	n.w.mu.Lock()
	may := n.w.mayRead
	n.w.mu.Unlock()
	return may == nil || may(who, ns, path), nil
}

// Record implements engines.Host.
func (n *Node) Record(_ context.Context, e engines.Event) error {
	if n.Stopped() {
		return errDead
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if n.w.deaf != nil {
		return n.w.deaf
	}
	n.w.audited = append(n.w.audited, e)
	return nil
}

// KV is a mount of secrets with versions. It is an engines.Engine and an engines.SecretSource.
type KV struct {
	mu    sync.Mutex
	mount engines.Mount
	store *Store
}

// version is what is stored of a secret: the newest one, as nothing asks for others. Number 0 is a secret that is not there.
type version struct {
	Number    int
	At        time.Time
	DeletedAt time.Time
	Destroyed bool
	Data      json.RawMessage
}

// Describe returns the mount.
func (k *KV) Describe() engines.Mount {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mount
}

// Router implements engines.Engine: secrets can be created.
func (k *KV) Router() *engines.Router {
	type in struct {
		Path    string                     `json:"path"`
		Data    json.RawMessage            `json:"data"`
		Options map[string]json.RawMessage `json:"options"`
	}
	r := engines.NewRouter()
	engines.On(r, engines.Update, "data/{path...}", "Write a secret.", 0, func(ctx context.Context, _ *engines.Request, in *in) (*engines.Response, error) {
		if had, err := k.load(ctx, in.Path); err != nil || had.Number > 0 && string(in.Options["cas"]) == "0" {
			return nil, engines.Invalid("check-and-set parameter did not match the current version")
		}
		k.PutJSON(in.Path, in.Data)
		return nil, nil
	})
	return r
}

func (k *KV) key(name string) storage.Key {
	return storage.NewKey(storage.Shared, k.mount.UUID, "secret/"+name)
}

func (k *KV) load(ctx context.Context, name string) (version, error) {
	var v version
	e, err := k.store.Get(ctx, k.key(name))
	if errors.Is(err, storage.ErrNotFound) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	return v, json.Unmarshal(e.Value, &v)
}

// change stores a secret after a change to it. Test code calls it through the methods below, which cannot fail.
func (k *KV) change(name string, do func(*version)) {
	ctx := context.Background()
	v, err := k.load(ctx, name)
	if err != nil {
		panic(err)
	}
	if do(&v); v.Number == 0 {
		return
	}
	value, err := json.Marshal(v)
	if err == nil {
		_, err = k.store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: k.key(name), Value: value}}})
	}
	if err != nil {
		panic(err)
	}
}

// Put writes a new version: keys and values in turn.
func (k *KV) Put(name string, pairs ...string) {
	data := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		data[pairs[i]] = pairs[i+1]
	}
	raw, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	k.PutJSON(name, raw)
}

// PutJSON writes a new version.
func (k *KV) PutJSON(name string, data json.RawMessage) {
	k.change(name, func(v *version) { *v = version{Number: v.Number + 1, At: time.Now().UTC(), Data: data} })
}

// Delete deletes the newest version softly.
func (k *KV) Delete(name string) { k.change(name, func(v *version) { v.DeletedAt = time.Now().UTC() }) }

// DeleteAt has the newest version delete itself.
func (k *KV) DeleteAt(name string, at time.Time) {
	k.change(name, func(v *version) { v.DeletedAt = at })
}

// Undelete brings the newest version back.
func (k *KV) Undelete(name string) { k.change(name, func(v *version) { v.DeletedAt = time.Time{} }) }

// Destroy destroys the newest version.
func (k *KV) Destroy(name string) {
	k.change(name, func(v *version) { v.Destroyed, v.Data = true, nil })
}

// Drop deletes a secret with its metadata.
func (k *KV) Drop(name string) {
	if _, err := k.store.Commit(context.Background(), storage.Batch{Deletes: []storage.Key{k.key(name)}}); err != nil {
		panic(err)
	}
}

// LatestSecret implements engines.SecretSource.
func (k *KV) LatestSecret(ctx context.Context, _ engines.Mount, name string) (engines.Secret, error) {
	v, err := k.load(ctx, name)
	if err != nil || v.Number == 0 {
		return engines.Secret{}, err
	}
	out := engines.Secret{Version: v.Number, CreatedAt: v.At, DeletedAt: v.DeletedAt}
	if !v.Destroyed && (v.DeletedAt.IsZero() || v.DeletedAt.After(time.Now())) {
		out.Live, out.Data = true, v.Data
	}
	return out, nil
}

// SecretNames implements engines.SecretSource.
func (k *KV) SecretNames(ctx context.Context, _ engines.Mount, prefix, after string, limit int) ([]string, error) {
	from := storage.Key("")
	if after != "" {
		from = k.key(after)
	}
	entries, err := k.store.Scan(ctx, k.key(prefix), from, limit)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimPrefix(string(e.Key), string(k.key("")))
	}
	return names, err
}

// SecretOf implements engines.SecretSource.
func (k *KV) SecretOf(key storage.Key) (string, bool) {
	return strings.CutPrefix(string(key), "secret/")
}

// ReadPath implements engines.SecretSource.
func (k *KV) ReadPath(name string) string { return "data/" + name }
