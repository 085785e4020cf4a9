package secretsync_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
	"github.com/coffer-project/coffer/storage"
)

// alias is the vendor's name of the type that tests use most.
const alias = "vendor-marked"

// TestVendorTypeNames: both names of a type lead to the same destination, a response has the one that the request used, and a list the
// one that the destination was created by.
func TestVendorTypeNames(t *testing.T) {
	run(t, func(r *rig) {
		theirs, ours := "sync/destinations/"+alias+"/store", "sync/destinations/"+syncsim.Marked+"/store"
		if r.Exists(theirs) || r.Exists(ours) {
			t.Error("the destination exists before it is created")
		}
		same(t, "created", r.post(theirs, map[string]any{"site": "one", "label": "store"})["type"], alias)
		if !r.Exists(theirs) || !r.Exists(ours) {
			t.Error("the destination does not exist by both names")
		}
		for path, want := range map[string]string{theirs: alias, ours: syncsim.Marked} {
			same(t, "read", r.Data(r.Must(engines.Read, path, nil))["type"], want)
			same(t, "patched", r.Data(r.Must(engines.Patch, path, map[string]any{"label": want}))["type"], want)
			body := map[string]any{"mount": "kv", "secret_name": "a"}
			for _, what := range []string{"set", "retry", "remove"} {
				if what != "retry" {
					same(t, what, r.post(path+"/associations/"+what, body)["store_type"], want)
				}
			}
			same(t, "associations", r.Data(r.Must(engines.Read, path+"/associations", nil))["store_type"], want)
			same(t, "paused", r.post(path+"/pause", nil)["type"], want)
			same(t, "resumed", r.post(path+"/resume", nil)["type"], want)
		}
		r.dest(syncsim.Marked, "other", nil)
		r.patch("sync/destinations/"+syncsim.Marked+"/store", map[string]any{"label": "store"})
		list := r.Data(r.Must(engines.List, "sync/destinations", nil))
		same(t, "types", list["key_info"], map[string][]string{alias + "/": {"store"}, syncsim.Marked + "/": {"other"}})
		same(t, "total", list["total_destinations"], 2)
		for _, kind := range []string{alias, syncsim.Marked} {
			same(t, "names", r.Data(r.Must(engines.List, "sync/destinations/"+kind, nil))["keys"], []string{"other", "store"})
		}
		r.post(ours+"/associations/set", map[string]any{"mount": "kv", "secret_name": "a"})
		to, _ := r.Data(r.Must(engines.Read, "sync/associations/kv/a", nil))["associated_destinations"].(map[string]any)
		if e, _ := to[alias+"/store"].(map[string]any); len(to) != 1 || e["type"] != alias || e["name"] != "store" {
			t.Errorf("a goes to %v", to)
		}
		// Names at the destination, claims and tags do not depend on the name that was used.
		if _, ok := r.sites.Site(syncsim.Marked, "one").Get("vault/kv_00000001/a"); !ok {
			t.Errorf("there is %v", r.sites.Site(syncsim.Marked, "one").Objects())
		}
		r.Must(engines.Delete, theirs, map[string]any{"force_delete": true})
		r.Fails(engines.KindNotFound, engines.Read, ours, nil)
	})
}

// TestVendorTypeNamesOff: the operator may not want them; what was created by them is there by its own name.
func TestVendorTypeNamesOff(t *testing.T) {
	r := newRig(t)
	r.Must(engines.Update, "sync/destinations/"+alias+"/store", map[string]any{"site": "one"})
	off := newRig(t, connection.Operator{NoAliases: true})
	e, err := r.w.Store.Scan(t.Context(), "s/sys/root/sync/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range e {
		if _, err := off.w.Store.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: e.Key, Value: e.Value}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, op := range []engines.Operation{engines.Read, engines.Update, engines.Delete} {
		if text := off.Fails(engines.KindInvalid, op, "sync/destinations/"+alias+"/store", nil); strings.Contains(text, alias) {
			t.Errorf("the error lists it: %q", text)
		}
	}
	off.Fails(engines.KindInvalid, engines.List, "sync/destinations/"+alias, nil)
	same(t, "types", off.Data(off.Must(engines.List, "sync/destinations", nil))["keys"], []string{syncsim.Marked + "/"})
	// A policy that denies by a vendor's name goes on denying.
	if other, _ := off.Engine.Router().Synonym("sync/destinations/" + syncsim.Marked + "/store"); other != "sync/destinations/"+alias+"/store" {
		t.Errorf("policies are asked about %q, too", other)
	}
	same(t, "read", off.Data(off.Must(engines.Read, "sync/destinations/"+syncsim.Marked+"/store", nil))["type"], syncsim.Marked)
}

// TestVendorTypeNamesAndPolicies: the router tells the other name of a path, for policies that speak of that.
func TestVendorTypeNamesAndPolicies(t *testing.T) {
	synonym := newRig(t).Engine.Router().Synonym
	for path, want := range map[string]string{
		"sync/destinations/" + alias + "/a/associations/set": "sync/destinations/" + syncsim.Marked + "/a/associations/set",
		"sync/destinations/" + syncsim.Marked + "/a":         "sync/destinations/" + alias + "/a",
		"sync/destinations/" + alias:                         "sync/destinations/" + syncsim.Marked,
		"sync/destinations/":                                 "",
		"sync/destinations/other/a":                          "",
		"sync/associations/" + alias:                         "",
	} {
		if got, _ := synonym(path); got != want {
			t.Errorf("%s is also %q, want %q", path, got, want)
		}
	}
}
