package secretsync_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/test/harness"
)

// login returns the site of a caller with a policy of these rules, path and capabilities in turn.
func (s *site) login(name string, rules ...string) *site {
	s.t.Helper()
	return s.as(s.newToken(name, rules...))
}

func (s *site) newToken(name string, rules ...string) string {
	s.t.Helper()
	s.policy(name, rules...)
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	s.do("POST", "auth/token/create", object{"policies": name}).Decode(s.t, &out)
	if out.Auth.Token == "" {
		s.t.Fatal("there is no token")
	}
	return out.Auth.Token
}

func (s *site) policy(name string, rules ...string) {
	s.t.Helper()
	var b strings.Builder
	for i := 0; i+1 < len(rules); i += 2 {
		fmt.Fprintf(&b, "path %q { capabilities = [%s] }\n", rules[i], rules[i+1])
	}
	s.must("POST", "sys/policies/acl/"+name, object{"policy": b.String()})
}

const everyCapability = `"create", "read", "update", "patch", "delete", "list"`

// TestAccess is about who may do what.
func TestAccess(t *testing.T) {
	t.Parallel()
	all := newSite(t, "access")
	accessor := all.mount("kv")
	all.secret("kv", "mine/a", "k", "v")
	all.secret("kv", "theirs/b", "k", "v")
	d := all.dest("cloud1-sm", "store")
	t.Run("every path needs a policy", func(t *testing.T) {
		s := all.in(t)
		outsider := s.login("outsider", "kv/*", everyCapability)
		var doc struct {
			Paths map[string]map[string]struct{ Security []any }
		}
		s.do("GET", "sys/internal/specs/openapi", nil).Decode(t, &doc)
		n := 0
		fill := strings.NewReplacer("{type}", "cloud1-sm", "{name}", "store", "{destination}", "store", "{mount}", "kv", "{secret_name}", "mine/a")
		for path, about := range doc.Paths {
			if !strings.HasPrefix(path, "/sys/sync/") {
				continue
			}
			for verb := range about {
				if verb = strings.ToUpper(verb); !slices.Contains([]string{"GET", "POST", "DELETE", "PATCH", "LIST"}, verb) {
					continue
				}
				n++
				path := strings.TrimPrefix(fill.Replace(path), "/")
				outsider.rejected(403, verb, path, object{}, "permission denied")
				s.as("").rejected(403, verb, path, object{})
			}
		}
		if n < 30 {
			t.Errorf("only %d operations", n)
		}
		s.must("GET", d, nil)
	})
	t.Run("each operation has its capability", func(t *testing.T) {
		s := all.in(t)
		reader := s.login("reader", "sys/sync/*", `"read", "list"`, "kv/*", everyCapability)
		reader.must("GET", d, nil)
		reader.must("LIST", "sys/sync/destinations", nil)
		reader.must("GET", d+"/associations", nil)
		reader.must("GET", "sys/sync/config", nil)
		for _, op := range []string{"/verify", "/pause", "/resume", "/plan", "/drift", "/associations/set", "/associations/remove", "/associations/adopt", "/associations/retry", "/associations/history"} {
			reader.rejected(403, "POST", d+op, object{"mount": "kv", "secret_name": "mine/a"}, "permission denied")
		}
		reader.rejected(403, "POST", d, object{})
		reader.rejected(403, "PATCH", d, object{})
		reader.rejected(403, "DELETE", d, nil)
		reader.rejected(403, "PATCH", "sys/sync/config", object{})
		creator := s.login("creator", "sys/sync/destinations/cloud1-sm/*", `"create"`)
		creator.must("POST", destinations+"cloud1-sm/new", s.fields("cloud1-sm"))
		creator.rejected(403, "POST", destinations+"cloud1-sm/new", s.fields("cloud1-sm"))
		s.must("DELETE", destinations+"cloud1-sm/new", nil)
	})
	t.Run("to associate one must be able to read the secret", func(t *testing.T) {
		s := all.in(t)
		syncer := s.login("syncer", "sys/sync/*", everyCapability, "kv/data/mine/*", `"read"`)
		for _, op := range []string{"/associations/set", "/associations/adopt", "/plan"} {
			syncer.rejected(403, "POST", d+op, object{"mount": "kv", "secret_name": "theirs/b"}, "permission denied", "theirs/b", "kv/")
			syncer.rejected(403, "POST", d+op, object{"mount": "kv", "secret_name": "theirs/missing"}, "permission denied")
		}
		for _, prefix := range []string{"theirs/"} {
			syncer.rejected(403, "POST", d+"/associations/set", object{"mount": "kv", "secret_prefix": prefix}, "permission denied")
		}
		if e := only(t, syncer.associate(d, "kv", "mine/a")); e.Status != "SYNCED" {
			t.Errorf("%+v", e)
		}
		writer := s.login("writer", "sys/sync/*", everyCapability, "kv/data/mine/*", `"create", "update"`)
		writer.rejected(403, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "mine/a"}, "permission denied")
		s.must("POST", d+"/associations/remove", object{"mount": "kv", "name": "mine/a"})
	})
	t.Run("a selector takes what its owner can read and nothing else", func(t *testing.T) {
		s := all.in(t)
		syncer := s.login("some", "sys/sync/*", everyCapability, "kv/data/mine/*", `"read"`)
		syncer.must("POST", d+"/associations/set", object{"mount": "kv", "secret_prefix": "*"})
		s.has("cloud1-sm", "vault/"+accessor+"/mine/a", `{"k":"v"}`)
		if e, ok := s.entries(d)[accessor+"/theirs/b"]; ok {
			t.Errorf("the name of what they cannot read is told: %+v", e)
		}
		if _, ok := s.get("cloud1-sm", "vault/"+accessor+"/theirs/b"); ok {
			t.Error("it was synced")
		}
		s.must("POST", d+"/associations/remove", object{"mount": "kv", "secret_prefix": "*"})
		s.has("cloud1-sm", "vault/"+accessor+"/mine/a", "")
	})
	t.Run("who loses access loses the association", func(t *testing.T) {
		s := all.in(t)
		syncer := s.login("losing", "sys/sync/*", everyCapability, "kv/data/mine/*", `"read"`)
		store := s.dest("repohost", "losing", object{"granularity": "secret-path"})
		e := only(t, syncer.associate(store, "kv", "mine/a"))
		s.policy("losing", "sys/sync/*", everyCapability)
		s.secret("kv", "mine/a", "k", "hidden from them")
		now := only(t, s.await(store, "CLIENT_SIDE_ERROR", "cannot read the secret any more"))
		if now.Code != "owner_lost_access" {
			t.Errorf("%+v", now)
		}
		s.has("repohost", e.Name, `{"k":"v"}`)
		if e := only(t, s.associate(store, "kv", "mine/a")); e.Status != "SYNCED" {
			t.Errorf("taken over: %+v", e)
		}
		s.has("repohost", e.Name, `{"k":"hidden from them"}`)
		s.must("DELETE", store+"?purge=true", nil)
		s.vanishes(store)
	})
	t.Run("namespaces are apart", func(t *testing.T) {
		s := all.in(t)
		for _, ns := range []string{"left", "right"} {
			s.must("POST", "sys/namespaces/"+ns, nil)
			in := s.within(ns)
			in.mount("kv")
			in.secret("kv", "a", "k", ns)
			in.dest("repohost", "store", object{"granularity": "secret-path", "secret_name_template": ns + "_{{ .SecretPath }}"})
		}
		left, right := s.within("left"), s.within("right")
		store := destinations + "repohost/store"
		only(t, left.associate(store, "kv", "a"))
		equal(t, "right", right.entries(store), object{})
		right.rejected(404, "LIST", "sys/sync/associations", nil)
		s.rejected(404, "GET", store, nil)
		s.has("repohost", "LEFT_A", `{"k":"left"}`)
		right.rejected(400, "POST", store+"/associations/set", object{"mount": "left/kv", "secret_name": "a"}, "mount")
		right.rejected(400, "POST", store+"/associations/set", object{"mount": left.accessor("kv"), "secret_name": "a"}, "mount")
		right.rejected(400, "POST", store+"/associations/set", object{"mount": accessor, "secret_name": "mine/a"}, "mount")
		left.rejected(400, "POST", store+"/associations/set", object{"mount": "../kv", "secret_name": "mine/a"})
		if e := only(t, right.associate(store, "kv", "a", object{"secret_name_template": "left_{{ .SecretPath }}"})); e.Status != "CONFLICT" || !strings.Contains(e.Cause, "another namespace") || strings.Contains(e.Cause, "store") {
			t.Errorf("another namespace's name: %+v", e)
		}
		s.has("repohost", "LEFT_A", `{"k":"left"}`)
		s.must("DELETE", "sys/namespaces/left", nil)
		harness.Await(t, "what the namespace has synced to go", 60e9, func() error {
			if value, ok := s.repo.Get(repohosttest.Repository("acme", "web"), "LEFT_A"); ok && value == `{"k":"left"}` {
				return fmt.Errorf("it is there")
			}
			return nil
		})
	})
	t.Run("the configuration is that of the root namespace", func(t *testing.T) {
		s := all.in(t)
		s.must("POST", "sys/namespaces/inner", nil)
		for _, verb := range []string{"GET", "POST", "PATCH", "DELETE"} {
			if a := s.within("inner").do(verb, "sys/sync/config", object{}); a.Status != 400 && a.Status != 404 {
				t.Errorf("%s: status %d: %s", verb, a.Status, a.Body)
			}
		}
	})
}

// TestNetwork is about where calls may go when the operator has not said that they may go anywhere.
func TestNetwork(t *testing.T) {
	t.Parallel()
	p := newPlaces(t)
	c := harness.NewCluster(t, 1, harness.Options{Prefix: "net", Config: p.stanza(t, false)})
	s := &site{places: p, t: t, c: c, n: c.Nodes[0], token: c.RootToken}
	s.mount("kv")
	s.secret("kv", "a", "k", "v")
	open := object{"disable_strict_networking": true, "allowed_ipv4_addresses": []string{"0.0.0.0/0"}, "allowed_ipv6_addresses": "::/0"}
	for name, change := range map[string]object{"strict": nil, "loose": {"disable_strict_networking": true}, "open": open} {
		for _, kind := range kinds {
			apart := object{}
			if kind == "webhook" { // one that cannot be read claims its names before it is called
				apart["url"] = "https://hooks.example.com/" + name
			}
			d := s.dest(kind, name, change, apart)
			data := s.must("POST", d+"/verify", nil)
			if text := fmt.Sprint(data["checks"]); data["ok"] != false || !strings.Contains(text, "does not connect to") {
				t.Errorf("%s %s: %v", kind, name, data)
			}
			for _, e := range s.associate(d, "kv", "a") {
				if e.Status != "CLIENT_SIDE_ERROR" || e.Code != "blocked" {
					t.Errorf("%s %s: %+v", kind, name, e)
				}
			}
		}
	}
	calls := [][]string{p.one.Actions(), p.two.Calls(), p.three.Calls(), p.repo.Calls(), p.web.Calls()}
	for _, at := range p.plain {
		calls = append(calls, at.calls())
	}
	if got := slices.Concat(calls...); len(got) > 0 || p.two.Issued() > 0 {
		t.Errorf("there were calls: %q", got)
	}
}
