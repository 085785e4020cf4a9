package replicated_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/roles"
)

// world is the root with three namespaces, each with what is built in, a secrets mount, an auth method and a local mount.
func world() (mounts []filter.Mount, namespaces []filter.Namespace) {
	namespaces = []filter.Namespace{{ID: "root"}, {ID: "one", Path: "ns1/"}, {ID: "sub", Path: "ns1/sub/"}, {ID: "two", Path: "ns2/"}}
	for _, ns := range namespaces {
		for _, m := range []filter.Mount{
			{Path: "sys/", Builtin: true}, {Path: "cubbyhole/", Builtin: true, Local: true}, {Path: "identity/", Builtin: true}, {Path: "auth/token/", Builtin: true},
			{Path: "kv/"}, {Path: "auth/userpass/"}, {Path: "local/", Local: true},
		} {
			m.NamespaceID, m.NamespacePath, m.UUID = ns.ID, ns.Path, ns.ID+"-"+m.Path
			mounts = append(mounts, m)
		}
	}
	return mounts, namespaces
}

func TestResolve(t *testing.T) {
	mounts, namespaces := world()
	all := []string{"auth/userpass/", "kv/", "ns1/auth/userpass/", "ns1/kv/", "ns1/sub/auth/userpass/", "ns1/sub/kv/", "ns2/auth/userpass/", "ns2/kv/"}
	except := func(kept ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(kept, p) })
	}
	tests := []struct {
		mode       string // "": no filter
		paths      []string
		mounts     []string // excluded
		namespaces []string
	}{
		{"", nil, nil, nil},
		{"allow", nil, all, []string{"ns1/", "ns1/sub/", "ns2/"}},
		{"allow", []string{"kv/"}, except("kv/"), []string{"ns1/", "ns1/sub/", "ns2/"}},
		{"allow", []string{"/auth/userpass"}, except("auth/userpass/"), []string{"ns1/", "ns1/sub/", "ns2/"}},
		{"allow", []string{"ns1"}, except("ns1/kv/", "ns1/auth/userpass/", "ns1/sub/kv/", "ns1/sub/auth/userpass/"), []string{"ns2/"}},
		{"allow", []string{"ns1/sub/"}, except("ns1/sub/kv/", "ns1/sub/auth/userpass/"), []string{"ns2/"}},
		{"allow", []string{"ns1/sub/kv/", "kv/"}, except("ns1/sub/kv/", "kv/"), []string{"ns2/"}},
		{"allow", []string{"local/", "ns2/local/"}, all, []string{"ns1/", "ns1/sub/", "ns2/"}},
		{"allow", []string{"not/there/yet/", "k/"}, all, []string{"ns1/", "ns1/sub/", "ns2/"}},
		{"deny", nil, nil, nil},
		{"deny", []string{"kv"}, []string{"kv/"}, nil},
		{"deny", []string{"ns1/"}, []string{"ns1/auth/userpass/", "ns1/kv/", "ns1/sub/auth/userpass/", "ns1/sub/kv/"}, []string{"ns1/", "ns1/sub/"}},
		{"deny", []string{"ns1/sub/"}, []string{"ns1/sub/auth/userpass/", "ns1/sub/kv/"}, []string{"ns1/sub/"}},
		{"deny", []string{"ns1/sub/kv/"}, []string{"ns1/sub/kv/"}, nil},
		{"deny", []string{"ns/", "n/", "not/there/yet/"}, nil, nil},
		{"deny", []string{"auth/"}, []string{"auth/userpass/"}, nil}, // auth/token/ stays
	}
	for _, tt := range tests {
		var f *filter.Filter
		if tt.mode != "" {
			var err error
			if f, err = filter.New(tt.mode, tt.paths, namespaces); err != nil {
				t.Errorf("%s %q: %v", tt.mode, tt.paths, err)
				continue
			}
		}
		got := filter.Resolve(f, mounts, namespaces)
		if !slices.Equal(got.Mounts, tt.mounts) || !slices.Equal(got.Namespaces, tt.namespaces) {
			t.Errorf("%s %q excludes %q and %q, want %q and %q", tt.mode, tt.paths, got.Mounts, got.Namespaces, tt.mounts, tt.namespaces)
		}
		for i := range mounts {
			m := &mounts[i]
			out := m.Local && !m.Builtin || slices.Contains(tt.mounts, m.FullPath()) || m.Builtin && slices.Contains(tt.namespaces, m.NamespacePath)
			if got.Units["mount/"+m.UUID] == out {
				t.Errorf("%s %q: mount %s, local %v: in scope %v", tt.mode, tt.paths, m.FullPath(), m.Local, !out)
			}
		}
		for _, n := range namespaces {
			if got.Units["ns/"+n.ID] == slices.Contains(tt.namespaces, n.Path) {
				t.Errorf("%s %q: namespace %q is in scope: %v", tt.mode, tt.paths, n.Path, got.Units["ns/"+n.ID])
			}
		}
		if !got.Units["global"] || !got.Units["ns/root"] {
			t.Errorf("%s %q leaves %v", tt.mode, tt.paths, got.Units)
		}
	}
}

// TestResolveStranger: a mount of an unknown namespace is in no scope.
func TestResolveStranger(t *testing.T) {
	mounts := []filter.Mount{{NamespaceID: "gone", NamespacePath: "gone/", Path: "kv/", UUID: "x"}}
	for _, f := range []*filter.Filter{nil, {Mode: filter.Deny}, {Mode: filter.Allow, Paths: []string{"gone/kv/"}}} {
		if got := filter.Resolve(f, mounts, []filter.Namespace{{ID: "root"}}); len(got.Units) != 2 {
			t.Errorf("filter %v gives %v", f, got.Units)
		}
	}
}

// slowScope is what Resolve should give, as one would say it: unit by unit, from the words of the documentation.
func slowScope(f *filter.Filter, mounts []filter.Mount, namespaces []filter.Namespace) map[string]bool {
	listed := func(path string) bool { return slices.Contains(f.Paths, path) }
	listedOrBelow := func(path string) bool {
		for _, p := range f.Paths {
			if strings.HasPrefix(path, p) {
				return true
			}
		}
		return false
	}
	mountIn := func(m filter.Mount) bool { // not built in
		switch {
		case m.Local:
			return false
		case f.Mode == filter.Deny:
			return !listedOrBelow(m.NamespacePath + m.Path)
		}
		return listed(m.NamespacePath+m.Path) || listedOrBelow(m.NamespacePath)
	}
	namespaceIn := func(path string) bool {
		if path == "" {
			return true
		}
		if f.Mode == filter.Deny {
			return !listedOrBelow(path)
		}
		if listedOrBelow(path) {
			return true
		}
		for _, n := range namespaces {
			if strings.HasPrefix(n.Path, path) && listedOrBelow(n.Path) {
				return true
			}
		}
		for _, m := range mounts {
			if strings.HasPrefix(m.NamespacePath, path) && listed(m.NamespacePath+m.Path) && !m.Local {
				return true
			}
		}
		return false
	}
	units := map[string]bool{"global": true}
	for _, n := range namespaces {
		if namespaceIn(n.Path) {
			units["ns/"+n.ID] = true
		}
	}
	for _, m := range mounts {
		if m.Builtin && namespaceIn(m.NamespacePath) || !m.Builtin && mountIn(m) {
			units["mount/"+m.UUID] = true
		}
	}
	return units
}

// TestResolveModel compares Resolve with the slow model on random trees of namespaces, mounts and filters.
func TestResolveModel(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		namespaces := []filter.Namespace{{ID: "root"}}
		for n := range rnd.IntN(6) {
			parent := namespaces[rnd.IntN(len(namespaces))]
			path := parent.Path + string(rune('a'+rnd.IntN(3))) + "/"
			if !slices.ContainsFunc(namespaces, func(n filter.Namespace) bool { return n.Path == path }) {
				namespaces = append(namespaces, filter.Namespace{ID: fmt.Sprint("n", n), Path: path})
			}
		}
		var mounts []filter.Mount
		var candidates []string
		for i, n := range namespaces {
			candidates = append(candidates, n.Path)
			for j, path := range []string{"sys/", "x/", "auth/x/", "y/z/"} {
				m := filter.Mount{NamespaceID: n.ID, NamespacePath: n.Path, Path: path, UUID: fmt.Sprint(i, "-", j), Builtin: j == 0, Local: j > 0 && rnd.IntN(4) == 0, Deleting: rnd.IntN(4) == 0}
				mounts, candidates = append(mounts, m), append(candidates, n.Path+path)
			}
		}
		candidates = slices.DeleteFunc(append(candidates, "a/", "b/b/", "y/", "no/"), func(p string) bool { return p == "" || strings.HasSuffix(p, "sys/") })
		var paths []string
		for range rnd.IntN(4) {
			paths = append(paths, candidates[rnd.IntN(len(candidates))])
		}
		f, err := filter.New([]string{"allow", "deny"}[rnd.IntN(2)], paths, namespaces)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		got := filter.Resolve(f, mounts, namespaces)
		if want := slowScope(f, mounts, namespaces); !maps.Equal(got.Units, want) {
			t.Fatalf("seed %d: %s %q of %v gives %v, want %v", seed, f.Mode, f.Paths, namespaces, got.Units, want)
		}
		again := filter.Resolve(f, mounts, namespaces)
		if got.Version() != again.Version() {
			t.Fatalf("seed %d: one scope has two versions", seed)
		}
	}
}

func TestNewFilterRefuses(t *testing.T) {
	_, namespaces := world()
	tests := []struct {
		mode, path, part string
	}{
		{"Allow", "kv/", `"mode"`},
		{"", "kv/", `"mode"`},
		{"allow", "", "root namespace"},
		{"deny", "/", "root namespace"},
		{"allow", "a//b", "not the path"},
		{"allow", "../x", "not the path"},
		{"allow", "a/ b", "not the path"},
		{"allow", "a\x00b", "characters"},
		{"deny", "sys", "cannot be denied"},
		{"deny", "identity/", "cannot be denied"},
		{"deny", "/cubbyhole/", "cannot be denied"},
		{"deny", "auth/token", "cannot be denied"},
		{"deny", "ns1/sys/", "cannot be denied"},
		{"deny", "ns1/sub/auth/token/", "cannot be denied"},
	}
	for _, tt := range tests {
		_, err := filter.New(tt.mode, []string{tt.path}, namespaces)
		refused(t, tt.mode+" "+tt.path, err, engines.KindInvalid, tt.part)
	}
	long := slices.Repeat([]string{strings.Repeat("x", 4000)}, 200)
	_, err := filter.New("allow", long, nil)
	refused(t, "too much", err, engines.KindInvalid, "limit")
	for _, fine := range []string{"not-a-namespace/sys/", "kv", "team/kv/", "auth/oidc/"} {
		if _, err := filter.New("deny", []string{fine}, namespaces); err != nil {
			t.Errorf("deny %q: %v", fine, err)
		}
	}
}

// FuzzFilter: whatever is accepted is written as it reads back, and decides without failing.
func FuzzFilter(f *testing.F) {
	f.Add("allow", "kv/")
	f.Add("deny", "/ns1/sub")
	f.Add("deny", "auth/token/")
	f.Fuzz(func(t *testing.T, mode, path string) {
		mounts, namespaces := world()
		written, err := filter.New(mode, []string{path}, namespaces)
		if err != nil {
			return
		}
		again, err := filter.New(string(written.Mode), written.Paths, namespaces)
		if err != nil || !slices.Equal(again.Paths, written.Paths) {
			t.Fatalf("%q becomes %q, and that %v, %v", path, written.Paths, again, err)
		}
		got := filter.Resolve(written, mounts, namespaces)
		if !got.Units["ns/root"] || !got.Units["mount/root-auth/token/"] || got.Units["mount/root-local/"] {
			t.Fatalf("%s %q gives %v", mode, path, got.Units)
		}
	})
}

// TestFilterPaths: a filter is written and read by the cluster id or the opaque id, before the secondary exists or after.
func TestFilterPaths(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mounts, p.namespaces = world()
	p.mustPost("primary/enable", "{}")
	none := func(id string) {
		t.Helper()
		for _, path := range []string{"primary/paths-filter/", "primary/dynamic-filter/"} {
			_, err := p.get(path + id)
			refused(t, path+id, err, engines.KindNotFound)
		}
	}
	none("second")
	p.mustPost("primary/paths-filter/second", `{"paths":"/ns1,kv","mode":"deny"}`)
	p.join(c, "second")
	for _, id := range []string{"second", "c"} { // the opaque id and the cluster id
		if got := p.mustGet("primary/paths-filter/" + id); fmt.Sprint(got) != "map[mode:deny paths:[kv/ ns1/]]" {
			t.Errorf("filter of %s: %v", id, got)
		}
		got := p.mustGet("primary/dynamic-filter/" + id)
		if fmt.Sprint(got["dynamic_filtered_namespaces"]) != "[ns1/ ns1/sub/]" ||
			fmt.Sprint(got["dynamic_filtered_mounts"]) != "[kv/ ns1/auth/userpass/ ns1/kv/ ns1/sub/auth/userpass/ ns1/sub/kv/]" {
			t.Errorf("excluded for %s: %v", id, got)
		}
	}
	peer := roles.Peer{ID: "second", ClusterID: "c"}
	units, version, err := p.Scope(t.Context(), peer)
	if err != nil || units["mount/root-kv/"] || !units["mount/two-kv/"] || units["ns/sub"] {
		t.Errorf("scope: %v, %v", units, err)
	}

	p.mustPost("primary/paths-filter/c", `{"paths":["ns2/"]}`) // mode allow by default; replaces
	if got := p.mustGet("primary/paths-filter/second"); fmt.Sprint(got) != "map[mode:allow paths:[ns2/]]" {
		t.Errorf("filter written by the cluster id: %v", got)
	}
	if _, now, _ := p.Scope(t.Context(), peer); now == version {
		t.Error("another scope has the same version")
	}
	if _, err := p.call(engines.Delete, "performance/primary/paths-filter/c", ""); err != nil {
		t.Fatal(err)
	}
	none("second")
	none("c")
	units, _, err = p.Scope(t.Context(), peer)
	if err != nil || !units["mount/root-kv/"] || !units["ns/sub"] || units["mount/root-local/"] {
		t.Errorf("scope without a filter: %v, %v", units, err)
	}
	if _, _, err := p.Scope(t.Context(), roles.Peer{}); err == nil {
		t.Error("nobody has a scope")
	}
}

// TestTwoFilters: two filters for one secondary, of before it was known by both ids, both count.
func TestTwoFilters(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mounts, p.namespaces = world()
	p.mustPost("primary/enable", "{}")
	p.mustPost("primary/paths-filter/second", `{"paths":["kv/"],"mode":"deny"}`)
	p.mustPost("primary/paths-filter/c", `{"paths":["ns2/"],"mode":"deny"}`)
	p.join(c, "second")
	units, _, err := p.Scope(t.Context(), roles.Peer{ID: "second", ClusterID: "c"})
	if err != nil || units["mount/root-kv/"] || units["ns/two"] || !units["ns/one"] {
		t.Errorf("scope: %v, %v", units, err)
	}
	if got := p.mustGet("primary/dynamic-filter/c"); !strings.Contains(fmt.Sprint(got), "kv/ ns2/auth/userpass/ ns2/kv/") {
		t.Errorf("excluded: %v", got)
	}
}

// TestNewTokenSameFilter: under a new token's id a cluster has the filter that was written for that id, or, if there is none,
// the one that it had: what must not leave does not leave because of a new token.
func TestNewTokenSameFilter(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mounts, p.namespaces = world()
	p.mustPost("primary/enable", "{}")
	p.join(c, "first")
	p.mustPost("primary/paths-filter/first", `{"paths":["kv/"],"mode":"deny"}`)
	moves := func(id string) {
		t.Helper()
		c.mustPost("secondary/update-primary", fmt.Sprintf(`{"token":%q}`, p.tokenFor(c, id)))
		if got := p.mustGet("status"); fmt.Sprint(got["known_secondaries"]) != "["+id+"]" {
			t.Errorf("known_secondaries: %v", got["known_secondaries"])
		}
	}
	has := func(id string, kv, two bool) {
		t.Helper()
		units, _, err := p.Scope(t.Context(), roles.Peer{ID: id, ClusterID: "c"})
		if err != nil || units["mount/root-kv/"] != kv || units["ns/two"] != two {
			t.Errorf("the scope of %s: %v, %v", id, units, err)
		}
	}
	p.mustPost("primary/paths-filter/third", `{"paths":["ns2/"],"mode":"deny"}`)
	moves("second")
	has("second", false, true)
	if got := p.mustGet("primary/paths-filter/c"); fmt.Sprint(got["paths"]) != "[kv/]" {
		t.Errorf("by the cluster id, now the second: %v", got)
	}
	moves("third")
	has("third", true, false)
}

// TestDynamicFilterOnTheSecondary: it is told what its operator has named, and no other name.
func TestDynamicFilterOnTheSecondary(t *testing.T) {
	net := network{}
	p, c := newCluster(t, net, "p"), newCluster(t, net, "c")
	p.mounts, p.namespaces = world()
	p.mustPost("primary/enable", "{}")
	p.join(c, "second")
	_, err := c.get("secondary/dynamic-filter/c")
	refused(t, "without a filter", err, engines.KindNotFound)

	p.mustPost("primary/paths-filter/second", `{"paths":["kv/","ns1/","later/"],"mode":"deny"}`)
	for _, id := range []string{"c", "second"} {
		if got := c.mustGet("secondary/dynamic-filter/" + id); fmt.Sprint(got) != "map[dynamic_filtered_mounts:[kv/] dynamic_filtered_namespaces:[ns1/]]" {
			t.Errorf("as %s: %v", id, got)
		}
	}
	_, err = c.get("secondary/dynamic-filter/somebody")
	refused(t, "somebody else's", err, engines.KindNotFound, "cluster_id")

	c.link.set(func(l *fakeLink) { l.down = true })
	if got := c.mustGet("secondary/dynamic-filter/c"); fmt.Sprint(got["dynamic_filtered_mounts"]) != "[kv/]" {
		t.Errorf("while the primary is away: %v", got)
	}
	c.link.set(func(l *fakeLink) { l.down = false })
	p.mustPost("primary/paths-filter/second", `{"paths":["ns2/"],"mode":"allow"}`)
	resp, err := c.call(engines.Read, "performance/secondary/dynamic-filter/c", "")
	if err != nil || len(resp.Warnings) == 0 || strings.Contains(fmt.Sprint(resp.Data), "ns1") || strings.Contains(fmt.Sprint(resp.Data), "kv/") {
		t.Errorf("in mode allow: %v, %v", resp, err)
	}
	_, err = p.get("secondary/dynamic-filter/c")
	refused(t, "on the primary", err, engines.KindInvalid, "primary/dynamic-filter")
	if _, _, err := p.Answer(t.Context(), roles.Peer{ID: "second"}, "unknown", nil); err == nil {
		t.Error("an unknown call is answered")
	}
}
