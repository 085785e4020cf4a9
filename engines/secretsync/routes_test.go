package secretsync_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/secretsync"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// sys is the engine that the paths of secret sync are part of.
type sys struct{ router *engines.Router }

func (s *sys) Router() *engines.Router { return s.router }

// rig is a service on a node, with the paths as clients see them.
type rig struct {
	*enginetest.Mount
	t     *testing.T
	w     *syncsim.World
	kv    *syncsim.KV
	sites *syncsim.Sites
	svc   *secretsync.Service
	logs  bytes.Buffer
	stop  func() // ends the service; start begins it again, as on another node
}

// caller may do everything, or what may says.
type caller struct{ may func(path string) bool }

func (c caller) Allowed(_ engines.Operation, path string) bool { return c.may == nil || c.may(path) }
func (c caller) AllowedAlways(op engines.Operation, path string) bool {
	return c.Allowed(op, path) && !strings.HasSuffix(path, "/conditional")
}
func (c caller) Sudo(string) bool            { return false }
func (c caller) AnyUnder(prefix string) bool { return c.may == nil || c.may(prefix) }

func newRig(t *testing.T, operator ...connection.Operator) *rig {
	t.Helper()
	sites := syncsim.NewSites()
	options := secretsync.Options{Types: sites.Types()}
	for _, says := range operator {
		options.Operator = says
	}
	return rigOf(t, sites, options)
}

// rigOf is a rig with other types of destinations.
func rigOf(t *testing.T, sites *syncsim.Sites, options secretsync.Options) *rig {
	t.Helper()
	w := syncsim.NewWorld()
	r := &rig{t: t, w: w, kv: w.Mount("root", "kv/"), sites: sites}
	options.Host, options.Logger = w.Node(), slog.New(slog.NewTextHandler(&r.logs, nil))
	r.svc = secretsync.New(options)
	router := engines.NewRouter()
	r.svc.Routes(router)
	r.Mount = enginetest.New(t, func(engines.Mount) (engines.Engine, error) { return &sys{router}, nil }, enginetest.Options{
		Type: "system", Path: "sys/", Caller: engines.Caller{Accessor: "a", DisplayName: "caller", TokenPolicies: []string{"p"}, NamespaceID: "root", Access: caller{}},
	})
	r.Mount.Mount.NamespaceID = "root"
	return r
}

// run runs a test in a bubble, in which the service runs.
func run(t *testing.T, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		synctest.Wait()
		r.kv.Put("a", "k", "v")
		r.kv.Put("folder/b", "k", "w")
		test(r)
		r.stop()
	})
}

// start has the service run until r.stop, which it returns, is called.
func (r *rig) start() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	unhear := r.w.Store.OnChange(r.svc.Changed)
	done := make(chan struct{}) // closed when Run has returned
	go func() { defer close(done); r.svc.Run(ctx) }()
	r.stop = func() { cancel(); <-done; unhear() }
	return r.stop
}

// dest makes a destination.
func (r *rig) dest(kind, name string, more map[string]any) string {
	r.t.Helper()
	body := map[string]any{"site": "one", "label": name}
	maps.Copy(body, more)
	r.Must(engines.Update, "sync/destinations/"+kind+"/"+name, body)
	return "sync/destinations/" + kind + "/" + name
}

// post returns the data of an update.
func (r *rig) post(path string, body any) map[string]any {
	r.t.Helper()
	return r.do(engines.Update, path, body)
}

func (r *rig) patch(path string, body any) map[string]any {
	r.t.Helper()
	return r.do(engines.Patch, path, body)
}

func (r *rig) do(op engines.Operation, path string, body any) map[string]any {
	r.t.Helper()
	data := r.Data(r.Must(op, path, body))
	synctest.Wait()
	return data
}

func (r *rig) entries(path string) map[string]any {
	r.t.Helper()
	synctest.Wait()
	all, _ := r.Data(r.Must(engines.Read, path+"/associations", nil))["associated_secrets"].(map[string]any)
	return all
}

// statuses are those of entries, by secret and key.
func statuses(entries any) map[string]string {
	out := map[string]string{}
	all, _ := entries.(map[string]any)
	for key, e := range all {
		_, name, _ := strings.Cut(key, "/")
		out[name] = fmt.Sprint(e.(map[string]any)["sync_status"])
	}
	return out
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		t.Errorf("%s: %s, want %s", what, g, w)
	}
}

func TestRoutesAreDocumented(t *testing.T) { enginetest.Documented(t, newRig(t).Mount) }

func TestRoutesRefuseNonsense(t *testing.T) { enginetest.Hostile(t, newRig(t).Mount) }

// TestRoutesRunOnThePrimary: what is queued and open is on one node.
func TestRoutesRunOnThePrimary(t *testing.T) {
	for _, route := range newRig(t).Engine.Router().Routes() {
		if !route.Flags.Has(engines.Primary | engines.Active) {
			t.Errorf("%s %s runs elsewhere, too", route.Op, route.Pattern)
		}
		if config := route.Pattern == "sync/config"; config != route.Flags.Has(engines.RootNamespace) {
			t.Errorf("%s %s: in the root namespace only: %v", route.Op, route.Pattern, !config)
		}
	}
}

// TestSetAndRemove: entries are there at once, and nothing is left.
func TestSetAndRemove(t *testing.T) {
	run(t, func(r *rig) {
		for _, kind := range []string{syncsim.Marked, syncsim.Plain} {
			d := r.dest(kind, "store", map[string]any{"granularity": "secret-path"})
			for range 2 {
				got := r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
				same(t, kind, statuses(got["associated_secrets"]), map[string]string{"a": "SYNCED"})
			}
			same(t, "read", statuses(r.entries(d)), map[string]string{"a": "SYNCED"})
			if text := r.Fails(engines.KindInvalid, engines.Delete, d, nil); !strings.Contains(text, "associations (1)") {
				t.Errorf("deleting says %q", text)
			}
			got := r.post(d+"/associations/remove", map[string]any{"mount": "kv", "name": "a"})
			same(t, kind, statuses(got["associated_secrets"]), map[string]string{"a": "UNSYNCED"})
			same(t, "left", r.entries(d), map[string]any{})
			r.Must(engines.Delete, d, nil)
		}
	})
}

// TestCallersReadWhatTheyAssociate: and no other principal reads for them.
func TestCallersReadWhatTheyAssociate(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", nil)
		r.Caller.Access = caller{func(path string) bool { return strings.HasPrefix(path, "kv/data/folder/") }}
		for _, op := range []string{"/associations/set", "/associations/adopt", "/plan"} {
			text := r.Fails(engines.KindDenied, engines.Update, d+op, map[string]any{"mount": "kv", "secret_name": "a"})
			if !strings.Contains(text, `"a"`) || !strings.Contains(text, `"kv/"`) {
				t.Errorf("%s: %q does not name secret and mount", op, text)
			}
		}
		r.Fails(engines.KindDenied, engines.Update, d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "x/"})
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b"})
		same(t, "associated", statuses(r.entries(d)), map[string]string{"folder/b": "SYNCED"})
		r.w.SetMayRead(func(who engines.Principal, _, path string) bool {
			return !slices.Equal(who.Policies, []string{"p"}) || path != "kv/data/folder/b"
		})
		r.kv.Put("folder/b", "k", "x")
		time.Sleep(time.Second)
		same(t, "lost", statuses(r.entries(d)), map[string]string{"folder/b": "CLIENT_SIDE_ERROR"})
		r.Caller.Access, r.Caller.TokenPolicies = caller{}, []string{"q"}
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "folder/b"})
		same(t, "taken over", statuses(r.entries(d)), map[string]string{"folder/b": "SYNCED"})
	})
}

// TestSelectorsAreReachedBySecret: adopt, retry, history and the look-up by secret find what a prefix covers.
func TestSelectorsAreReachedBySecret(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", map[string]any{"secret_name_template": "{{ .SecretPath }}"})
		r.sites.Site(syncsim.Marked, "one").Put("folder/b", "theirs")
		r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_prefix": "*"})
		time.Sleep(time.Second)
		same(t, "set", statuses(r.entries(d)), map[string]string{"a": "SYNCED", "folder/b": "CONFLICT"})
		of := map[string]any{"mount": "kv", "secret_name": "folder/b"}
		to := r.Data(r.Must(engines.Read, "sync/associations/kv/folder/b", nil))["associated_destinations"]
		same(t, "to", slices.Sorted(maps.Keys(to.(map[string]any))), []string{syncsim.Marked + "/store"})
		r.sites.Site(syncsim.Marked, "one").Allow("folder/b")
		got := r.post(d+"/associations/adopt", of)
		same(t, "adopted", statuses(got["associated_secrets"]), map[string]string{"folder/b": "SYNCED"})
		if events, _ := r.post(d+"/associations/history", of)["events"].([]any); len(events) != 2 {
			t.Errorf("the history is %v", events)
		}
		same(t, "retried", statuses(r.post(d+"/associations/retry", of)["associated_secrets"]), map[string]string{"folder/b": "SYNCED"})
		if text := r.Fails(engines.KindInvalid, engines.Update, d+"/associations/remove", of); !strings.Contains(text, `"*"`) {
			t.Errorf("removing one says %q", text)
		}
		r.Fails(engines.KindNotFound, engines.Update, d+"/associations/pause", of)
		r.post(d+"/associations/pause", map[string]any{"mount": "kv", "secret_prefix": "*"})
		r.kv.Put("a", "k", "new")
		time.Sleep(time.Second)
		same(t, "paused", statuses(r.entries(d)), map[string]string{"a": "PENDING", "folder/b": "SYNCED"})
	})
}

// TestRefreshingWidensNothing: what an association has said itself stays, what it has from its destination does not.
func TestRefreshingWidensNothing(t *testing.T) {
	run(t, func(r *rig) {
		r.kv.Put("keys", "k", "1", "l", "2")
		d := r.dest(syncsim.Marked, "store", nil)
		set := func(more map[string]any) map[string]string {
			body := map[string]any{"mount": "kv", "secret_name": "keys"}
			maps.Copy(body, more)
			return statuses(r.post(d+"/associations/set", body)["associated_secrets"])
		}
		one := map[string]string{"keys/k": "SYNCED"}
		same(t, "chosen", set(map[string]any{"granularity": "secret-key", "include": "k"}), one)
		same(t, "refreshed", set(nil), one)
		r.Must(engines.Patch, d, map[string]any{"secret_name_template": "x/{{ .SecretPath }}/{{ .SecretKey }}"})
		same(t, "another template", set(nil), one)
		if all := r.entries(d); len(all) != 1 || !strings.Contains(fmt.Sprint(all), "x/keys/k") {
			t.Errorf("the entries are %v", all)
		}
		same(t, "all keys", set(map[string]any{"include": nil}), map[string]string{"keys/k": "SYNCED", "keys/l": "SYNCED"})
	})
}

// TestRemoveWithoutAMount: what was synced from a mount that is gone can still be removed, and what never was, too.
func TestRemoveWithoutAMount(t *testing.T) {
	run(t, func(r *rig) {
		d := r.dest(syncsim.Marked, "store", nil)
		other := r.w.Mount("root", "other/")
		other.Put("x", "k", "v")
		r.post(d+"/associations/set", map[string]any{"mount": "other", "secret_name": "x"})
		r.Must(engines.Update, d+"/pause", nil)
		if err := r.svc.MountGone(t.Context(), other.Describe().UUID); err != nil {
			t.Fatal(err)
		}
		if err := r.w.Unmount(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		got := r.post(d+"/associations/remove", map[string]any{"mount": "other", "name": "x"})
		same(t, "paused", statuses(got["associated_secrets"]), map[string]string{"x": "UNSYNCING"})
		r.Must(engines.Update, d+"/resume", nil)
		time.Sleep(time.Minute)
		same(t, "left", r.entries(d), map[string]any{})
		for _, mount := range []string{"other", "never"} {
			got := r.post(d+"/associations/remove", map[string]any{"mount": mount, "name": "x"})
			same(t, mount, statuses(got["associated_secrets"]), map[string]string{"x": "UNSYNCED"})
		}
		r.Must(engines.Delete, d, nil)
	})
}

// TestWithoutTheService: on a node where nothing runs, requests fail or do not wait, and change only what is stored.
func TestWithoutTheService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.kv.Put("a", "k", "v")
		d := r.dest(syncsim.Marked, "store", nil)
		got := r.post(d+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		same(t, "set", statuses(got["associated_secrets"]), map[string]string{"a": "PENDING"})
		if calls := r.sites.Calls(); len(calls) > 0 {
			t.Errorf("there were calls: %v", calls)
		}
		r.w.OnCommit(nil)
		r.w.FailAudit(errors.New("full"))
	})
}
