package security_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/test/harness"
)

// syncing is secret sync, with the place that secrets go to, and whoever uses it.
type syncing struct {
	user
	place *cloud1smtest.Server
}

// newSyncing starts nodes that reach the place, with the mount kv.
func newSyncing(t *testing.T, nodes int) (*harness.Cluster, syncing) {
	t.Helper()
	place := cloud1smtest.New(t)
	c := harness.NewCluster(t, nodes, harness.Options{
		Config: fmt.Sprintf("sync {\n  allow_private_addresses = true\n  endpoint \"cloud1-sm\" { url = %q }\n}\n", place.URL),
	})
	s := syncing{user{t, c.Leader(), c.RootToken, ""}, place}
	s.kv()
	return c, s
}

func (s syncing) as(u user) syncing { s.user = u; return s }

// kv mounts kv, with the secrets mine/a and theirs/b.
func (s syncing) kv() {
	s.t.Helper()
	s.must("POST", "sys/mounts/kv", fields{"type": "kv", "options": fields{"version": "2"}})
	for _, name := range []string{"mine/a", "theirs/b"} {
		s.secret(name, hidden)
	}
}

func (s syncing) secret(name, value string) {
	s.t.Helper()
	s.must("POST", "kv/data/"+name, fields{"data": fields{"k": value}})
}

// store is the path of a destination.
func store(name string) string { return "sys/sync/destinations/cloud1-sm/" + name }

// destination makes one; what goes there is called after it.
func (s syncing) destination(name string) string {
	s.t.Helper()
	id, key := s.place.Root()
	s.must("POST", store(name), fields{
		"access_key_id": id, "secret_access_key": key, "region": s.place.Region, "secret_name_template": "vault/" + name + "/{{ .SecretPath }}",
	})
	return store(name)
}

// statuses of a destination's secrets, by name.
func (s syncing) statuses(d string) map[string]string {
	s.t.Helper()
	var out struct {
		Data struct {
			Secrets map[string]struct {
				Name   string `json:"secret_name"`
				Status string `json:"sync_status"`
				Code   string
			} `json:"associated_secrets"`
		}
	}
	s.must("GET", d+"/associations", nil).Decode(s.t, &out)
	all := map[string]string{}
	for _, e := range out.Data.Secrets {
		all[e.Name] = strings.TrimSpace(e.Status + " " + e.Code)
	}
	return all
}

func (s syncing) await(d, secret, status string) {
	s.t.Helper()
	harness.Await(s.t, secret+" to be "+status, time.Minute, func() error {
		if got := s.statuses(d)[secret]; got != status {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// operations returns what is documented of secret sync, parameters filled in.
func (s syncing) operations() [][2]string {
	s.t.Helper()
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct{ Name, In string }
		}
	}
	s.must("GET", "sys/internal/specs/openapi", nil).Decode(s.t, &doc)
	fill := strings.NewReplacer("{type}", "cloud1-sm", "{name}", "theirs", "{destination}", "theirs", "{mount}", "kv", "{secret_name}", "mine/a")
	var out [][2]string
	for _, template := range slices.Sorted(maps.Keys(doc.Paths)) {
		if !strings.HasPrefix(template, "/sys/sync/") {
			continue
		}
		path := strings.Trim(fill.Replace(template), "/")
		for method, op := range doc.Paths[template] {
			method = strings.ToUpper(method)
			for _, p := range op.Parameters {
				if p.In == "query" && p.Name == "list" {
					method = "LIST"
				}
			}
			out = append(out, [2]string{method, path})
		}
	}
	if len(out) < 30 {
		s.t.Fatalf("only %d operations are documented: %q", len(out), out)
	}
	return out
}

// state is everything that is answered about a destination.
func (s syncing) state(d string) string {
	s.t.Helper()
	destination := dataOf(s.t, s.must("GET", d, nil))
	delete(destination, "health") // counts what the associations say, some of it a moment later
	text := encode(s.t, []any{destination, dataOf(s.t, s.must("GET", d+"/associations", nil))})
	return string(text)
}

// TestSyncPolicies: no path of secret sync does anything without a policy, on any node, and no place hears of it; a policy about one
// destination is about that one, however it is spelled and whatever the body says.
func TestSyncPolicies(t *testing.T) {
	t.Parallel()
	c, root := newSyncing(t, 3)
	theirs, mine := root.destination("theirs"), root.destination("mine")
	root.must("POST", theirs+"/associations/set", fields{"mount": "kv", "secret_name": "theirs/b"})
	root.must("POST", theirs+"/pause", nil)
	before := root.state(theirs)
	root.policy("elsewhere", strings.ReplaceAll(`path "sys/sync" C path "sys/sync/destination/*" C path "+/sys/sync/*" C path "sync/*" C path "kv/*" C
		path "sys/synchronised/*" C`, "C", "{ capabilities = [\"create\", \"read\", \"update\", \"patch\", \"delete\", \"list\", \"sudo\"] }\n"))
	root.place.Actions() // forgets those
	body := fields{"mount": "kv", "secret_name": "mine/a", "region": "us-east-1", "disabled": true}
	operations := root.operations()
	for who, u := range map[string]user{"nobody": root.nobody(), "default": root.having("default"), "somebody elsewhere": root.having("elsewhere")} {
		for i, o := range operations {
			header := []string{}
			if o[0] == "PATCH" {
				header = append(header, "Content-Type", "application/merge-patch+json")
			}
			if a := u.at(c.Nodes[i%len(c.Nodes)]).do(o[0], o[1], body, header...); a.Status != 403 {
				t.Errorf("%s: %s %s: status %d: %.200s", who, o[0], o[1], a.Status, a.Body)
			}
		}
	}

	const all = `{ capabilities = ["create", "read", "update", "patch", "delete", "list"] }`
	root.policy("mine", fmt.Sprintf("path \"kv/data/*\" %[1]s\npath %[2]q %[1]s\npath \"%[2]s/*\" %[1]s", all, mine))
	root.policy("all-but-theirs", fmt.Sprintf("path \"kv/data/*\" %[1]s\npath \"sys/sync/*\" %[1]s\npath %[2]q { capabilities = [\"deny\"] }\npath \"%[2]s/*\" { capabilities = [\"deny\"] }", all, theirs))
	spellings := []string{
		"cloud1-sm/theirs", "cloud1-sm//theirs", "/cloud1-sm/theirs", "cloud1-sm/./theirs", "cloud1-sm/mine/../theirs", "cloud1-sm/mine/%2e%2e/theirs", "cloud1-sm%2ftheirs",
		"cloud1-sm/%74heirs", "cloud1-sm/THEIRS", "Cloud1-SM/theirs", "cloud1-sm/theirs%20", "cloud1-sm/%20theirs", "cloud1-sm/theirs%00", "cloud1-sm/theirs;", "cloud1-sm/theirs%2f",
		"cloud1-sm/mine%2f..%2ftheirs", "cloud1-sm/the\u0131rs", "cloud1-sm/+", "cloud1-sm/*", "aws-sm/theirs", "cloud1_sm/theirs", "cloud2-kv/../cloud1-sm/theirs",
	}
	requests := [][2]string{
		{"GET", ""}, {"GET", "/"}, {"DELETE", ""}, {"DELETE", "?force_delete=true"}, {"POST", ""}, {"PATCH", ""}, {"POST", "/resume"}, {"POST", "/verify"}, {"POST", "/drift"}, {"POST", "/plan"}, {"GET", "/associations"},
		{"POST", "/associations/set"}, {"POST", "/associations/remove"}, {"POST", "/associations/adopt"}, {"POST", "/associations/resume"}, {"POST", "/associations/retry"}, {"POST", "/associations/history"},
	}
	for _, policy := range []string{"mine", "all-but-theirs"} {
		u := root.having(policy)
		for _, spelling := range spellings {
			for _, r := range requests {
				a := u.do(r[0], "sys/sync/destinations/"+spelling+r[1], fields{"mount": "kv", "secret_name": "theirs/b"})
				if a.Status < 300 && strings.Contains(string(a.Body), "vault/theirs/") || a.Status >= 500 {
					t.Errorf("%s: %s %s%s: status %d: %.300s", policy, r[0], spelling, r[1], a.Status, a.Body)
				}
			}
		}
		for _, r := range requests { // what is in the path counts
			if r[0] == "DELETE" {
				continue // it would be mine
			}
			for _, query := range []string{"", "?name=theirs&destination=theirs&type=cloud1-sm"} {
				if strings.HasPrefix(r[1], "?") {
					continue
				}
				a := u.do(r[0], mine+r[1]+query, fields{"name": "theirs", "destination": "theirs", "type": "cloud1-sm"})
				if a.Status >= 500 || strings.Contains(string(a.Body), "vault/theirs/") {
					t.Errorf("%s: %s mine%s%s with another name in the body: status %d: %.300s", policy, r[0], r[1], query, a.Status, a.Body)
				}
			}
		}
	}
	if now := root.state(theirs); now != before {
		t.Errorf("the destination of somebody else was changed:\n%s\nwas\n%s", now, before)
	}
	for _, call := range root.place.Calls() {
		if strings.Contains(fmt.Sprint(call), "vault/theirs/") {
			t.Errorf("the place was asked: %v", call)
		}
	}
}

// byVendorsName returns the path of a destination by the vendor's name of its type.
func byVendorsName(d string) string { return strings.Replace(d, "/cloud1-sm/", "/aws-sm/", 1) }

// TestSyncTypeNames: a destination has two paths, and policies, capabilities and quotas take them for one.
func TestSyncTypeNames(t *testing.T) {
	t.Parallel()
	_, root := newSyncing(t, 1)
	for _, name := range []string{"theirs", "mine"} {
		d := root.destination(name)
		for _, names := range [][2]string{{d, byVendorsName(d)}, {byVendorsName(d), d}} {
			rule, used := names[0], names[1]
			root.policy("granted", fmt.Sprintf(`path %q { capabilities = ["read"] }`, rule))
			root.policy("denied", fmt.Sprintf(`path "sys/sync/*" { capabilities = ["read"] } path %q { capabilities = ["deny"] }`, rule))
			for policy, want := range map[string]int{"granted": 200, "denied": 403} {
				u := root.having(policy)
				if a := u.do("GET", used, nil); a.Status != want {
					t.Errorf("%s on %s: GET %s is %d", policy, rule, used, a.Status)
				}
				told := dataOf(t, u.must("POST", "sys/capabilities-self", fields{"paths": []string{used}}))[used]
				if reads := strings.Contains(fmt.Sprint(told), "read"); reads != (want == 200) {
					t.Errorf("%s on %s: the capabilities on %s are %v", policy, rule, used, told)
				}
			}
			root.must("POST", "sys/quotas/rate-limit/one", fields{"path": rule, "rate": 1, "interval": "1h"})
			root.must("GET", used, nil)
			for _, path := range names {
				if a := root.do("GET", path, nil); a.Status != 429 {
					t.Errorf("a quota of one request on %s: GET %s is %d after it", rule, path, a.Status)
				}
			}
			root.must("DELETE", "sys/quotas/rate-limit/one", nil)
		}
	}
}

// TestSyncParameterRules: a policy that allows to associate one secret allows no other, by no other field, spelling or default.
func TestSyncParameterRules(t *testing.T) {
	t.Parallel()
	_, root := newSyncing(t, 1)
	d := root.destination("store")
	root.policy("one", fmt.Sprintf(`path "kv/data/*" { capabilities = ["read"] }
		path "%s/associations/set" { capabilities = ["update"] allowed_parameters = { "mount" = ["kv"] "secret_name" = ["mine/a"] } }`, d))
	u := root.as(root.having("one"))
	for _, raw := range []string{
		`{"mount":"kv","secret_name":"theirs/b"}`, `{"mount":"kv","name":"theirs/b"}`, `{"mount":"kv","secret_name":"mine/a","name":"theirs/b"}`, `{"mount":"kv","secret_prefix":"*"}`,
		`{"mount":"kv","secret_prefix":"theirs/"}`, `{"mount":"kv","secret_name":"mine/a","secret_prefix":"*"}`, `{"mount":"kv","Secret_Name":"theirs/b"}`, `{"mount":"kv","secret_name":"mine/a","SECRET_NAME":"theirs/b"}`,
		`{"mount":"kv","secret_name":"mine/a","secret_name":"theirs/b"}`, `{"mount":"kv/","secret_name":"mine/b"}`, `{"mount":"kv","secret_name":"mine/a","secret_name_template":"x"}`,
		`{"mount":"kv","secret_name":"mine/a","deletion_policy":"retain"}`, `{"mount":"kv","\u0073ecret_name":"theirs/b"}`, `{"mount":"kv","secret_name":["mine/a","theirs/b"]}`, `{"mount":"kv","secret_name":"mine/../theirs/b"}`,
	} {
		u.refused(raw, "POST", d+"/associations/set", []byte(raw))
		u.refused(raw, "POST", byVendorsName(d)+"/associations/set", []byte(raw))
	}
	for _, query := range []string{"?secret_name=theirs/b", "?secret_prefix=*", "?name=theirs/b"} {
		u.do("POST", d+"/associations/set"+query, fields{"mount": "kv"})
		u.do("POST", d+"/associations/set"+query, nil)
	}
	if got := root.statuses(d); len(got) > 0 {
		t.Errorf("what is associated: %v", got)
	}
	u.must("POST", d+"/associations/set", fields{"mount": "kv/", "name": "mine/a"}) // the same in other words
	if got := root.statuses(d); len(got) != 1 || got["mine/a"] != "SYNCED" {
		t.Errorf("what is associated: %v", got)
	}
}

// TestSyncNamespaces: whoever may do everything in one namespace reaches neither destinations nor secrets of another, nor what secret
// sync is as a whole.
func TestSyncNamespaces(t *testing.T) {
	t.Parallel()
	_, root := newSyncing(t, 1)
	admins := map[string]syncing{}
	for _, ns := range []string{"a", "a/sub", "b"} {
		root.must("POST", "sys/namespaces/"+ns, nil)
		here := root.as(root.in(ns))
		here.policy("all", everything)
		here.kv()
		admins[ns] = root.as(here.having("all"))
	}
	stores := map[string]string{}
	for _, ns := range []string{"", "b"} {
		here := root.as(root.in(ns))
		d := here.destination("store" + ns)
		here.must("POST", d+"/associations/set", fields{"mount": "kv", "secret_name": "theirs/b"})
		stores[ns] = here.state(d)
	}
	accessor := func(ns string) string {
		a, _ := dataOf(t, root.in(ns).must("GET", "sys/mounts/kv", nil))["accessor"].(string)
		return a
	}
	for _, ns := range []string{"a", "a/sub"} {
		u := admins[ns]
		own := u.destination("own" + strings.ReplaceAll(ns, "/", "-"))
		for _, mount := range []string{accessor(""), accessor("b"), "../kv", "b/kv", "/b/kv", "root/kv", "../b/kv", "a/../kv", "..%2fkv", "kv/../../kv", "sys", "identity", "cubbyhole", "auth/token"} {
			for _, op := range []string{"/associations/set", "/associations/adopt", "/associations/retry", "/associations/history", "/associations/pause", "/plan"} {
				u.refused("mount "+mount, "POST", own+op, fields{"mount": mount, "secret_name": "theirs/b"})
			}
			u.refused("mount "+mount, "POST", own+"/associations/set", fields{"mount": mount, "secret_prefix": "*"})
			u.refused("mount "+mount, "GET", "sys/sync/associations/destinations?secret_name=theirs/b&mount="+mount, nil)
		}
		if got := u.statuses(own); len(got) > 0 {
			t.Errorf("%s has associated %v", ns, got)
		}
		for _, name := range []string{"store", "storeb", "../store", "b/store"} {
			for _, r := range [][2]string{{"GET", ""}, {"GET", "/associations"}, {"POST", "/pause"}, {"POST", "/verify"}, {"POST", "/drift"}, {"POST", "/plan"}, {"PATCH", ""}} {
				u.refused(name, r[0], store(name)+r[1], nil)
			}
			u.do("DELETE", store(name)+"?force_delete=true", nil) // as in its own, where there is none
		}
		for _, header := range []string{"", "/", "b", "root", "a/../b", "..", "a/.."} {
			for _, name := range []string{"store", "storeb"} {
				u.as(u.in(header)).refused("header "+header, "GET", store(name)+"/associations", nil)
				u.as(u.in(header)).refused("header "+header, "DELETE", store(name)+"?force_delete=true", nil)
			}
			u.as(u.in(header)).refused("header "+header, "LIST", "sys/sync/associations", nil)
		}
		for _, method := range []string{"GET", "POST", "PATCH", "DELETE"} {
			u.refused("configuration", method, "sys/sync/config", fields{"disabled": true})
			u.as(u.in("")).refused("configuration of root", method, "sys/sync/config", fields{"disabled": true})
		}
		if a := u.do("LIST", "sys/sync/associations", nil); a.Status != 404 {
			t.Errorf("%s lists %d: %s", ns, a.Status, a.Body)
		}
		u.must("DELETE", own, nil)
	}
	for ns, before := range stores {
		if now := root.as(root.in(ns)).state(store("store" + ns)); now != before {
			t.Errorf("the destination of %q was changed:\n%s\nwas\n%s", ns, now, before)
		}
	}
	if config := dataOf(t, root.must("GET", "sys/sync/config", nil)); config["disabled"] != false {
		t.Errorf("the configuration is %v", config)
	}
}

// TestSyncOwners: what somebody has associated is synced while they can read it. Taking that away, in whichever way, stops it, and
// leaves what is there; a token that ends does not.
func TestSyncOwners(t *testing.T) {
	t.Parallel()
	_, root := newSyncing(t, 1)
	d := root.destination("store")
	root.policy("sync", fmt.Sprintf(`path "%s/associations/*" { capabilities = ["update"] }`, d))
	reads := `path "kv/data/+/a" { capabilities = ["read"] } path "kv/data/+/b" { capabilities = ["read"] }`
	tests := map[string]struct {
		policies []string
		take     func(entity string)
	}{
		"the policy is gone":          {[]string{"sync", "p1"}, func(string) { root.must("DELETE", "sys/policies/acl/p1", nil) }},
		"the policy says less":        {[]string{"sync", "p2"}, func(string) { root.policy("p2", `path "kv/data/mine/*" { capabilities = ["read"] }`) }},
		"the policy denies":           {[]string{"sync", "p3"}, func(string) { root.policy("p3", reads+` path "kv/data/theirs/*" { capabilities = ["deny"] }`) }},
		"the entity has no policy":    {[]string{"sync"}, func(id string) { root.must("POST", "identity/entity/id/"+id, fields{"policies": "default"}) }},
		"the entity is disabled":      {[]string{"sync", "p4"}, func(id string) { root.must("POST", "identity/entity/id/"+id, fields{"disabled": true}) }},
		"the entity is gone":          {[]string{"sync"}, func(id string) { root.must("DELETE", "identity/entity/id/"+id, nil) }},
		"somebody leaves their group": {[]string{"sync"}, func(string) { root.must("POST", "identity/group/name/readers", fields{"member_entity_ids": ""}) }},
	}
	for i := range 4 {
		root.policy(fmt.Sprintf("p%d", i+1), reads)
	}
	root.policy("of-entities", reads)
	n := 0
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			n++
			root := root.as(user{t, root.n, root.token, ""})
			name, secret := fmt.Sprintf("person%d", n), fmt.Sprintf("theirs/%d/b", n)
			root.secret(secret, "first")
			root.policy("sync", fmt.Sprintf(`path "%s/associations/*" { capabilities = ["update"] }`, d))
			root.people(name, tt.policies...)
			login := root.login(name)
			switch {
			case strings.Contains(what, "group"):
				root.policy("of-group", `path "kv/data/theirs/*" { capabilities = ["read"] }`)
				root.must("POST", "identity/group/name/readers", fields{"policies": "of-group", "member_entity_ids": login.Entity})
			case !slices.ContainsFunc(tt.policies, func(p string) bool { return strings.HasPrefix(p, "p") }):
				root.policy("of-entities", `path "kv/data/theirs/*" { capabilities = ["read"] }`)
				root.must("POST", "identity/entity/id/"+login.Entity, fields{"policies": "of-entities"})
			default:
				for _, p := range tt.policies[1:] {
					root.policy(p, `path "kv/data/theirs/*" { capabilities = ["read"] }`)
				}
			}
			person := root.as(root.with(login.Token))
			person.must("POST", d+"/associations/set", fields{"mount": "kv", "secret_name": secret})
			root.await(d, secret, "SYNCED")
			root.must("POST", "auth/token/revoke", fields{"token": login.Token}) // which changes nothing
			root.secret(secret, "second")
			at := "vault/store/" + secret
			harness.Await(t, "the second version", time.Minute, func() error {
				if value, _ := root.place.Get(at); string(value) != `{"k":"second"}` {
					return errors.New("it is not there")
				}
				return nil
			})
			tt.take(login.Entity)
			root.secret(secret, hidden)
			root.await(d, secret, "CLIENT_SIDE_ERROR owner_lost_access")
			if value, ok := root.place.Get(at); !ok || string(value) != `{"k":"second"}` {
				t.Errorf("afterwards %q is there: %v", value, ok)
			}
			root.must("POST", d+"/associations/remove", fields{"mount": "kv", "name": secret})
		})
	}
}

// TestSyncFailsClosed: what secret sync would do of its own accord is not done while it cannot be recorded.
func TestSyncFailsClosed(t *testing.T) {
	t.Parallel()
	_, root := newSyncing(t, 1)
	file := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": file}})
	d := root.destination("store")
	root.must("POST", d+"/associations/set", fields{"mount": "kv", "secret_name": "mine/a"})
	const at = "vault/store/mine/a"
	first, _ := root.place.Get(at)
	root.place.Fail(func(cloud1smtest.Call) awstest.Fault { return awstest.Fault{Status: 503, Code: "ServiceUnavailable"} })
	root.secret("mine/a", "second")
	root.await(d, "mine/a", "EXTERNAL_SERVICE_ERROR unavailable")

	// The disk under the trail is full from now on, and the place is well again.
	root.fillDisk(file)
	root.place.Fail(nil)
	root.place.Actions()
	harness.Await(t, "an attempt", time.Minute, func() error {
		if !strings.Contains(root.n.Log(), "a secret could not be synced") {
			return errors.New("there was none")
		}
		return nil
	})
	for _, action := range root.place.Actions() {
		if !strings.HasPrefix(action, "Describe") && !strings.HasPrefix(action, "Get") && !strings.HasPrefix(action, "List") {
			t.Errorf("without a trail: %s", action)
		}
	}
	if now, _ := root.place.Get(at); string(now) != string(first) {
		t.Errorf("without a trail the place got %q", now)
	}

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	root.n.Reload()
	harness.Await(t, "the trail to be back", time.Minute, func() error {
		if a := root.do("POST", d+"/associations/retry", fields{"mount": "kv", "secret_name": "mine/a"}); a.Status != 200 {
			return errors.New("requests are still refused")
		}
		return nil
	})
	harness.Await(t, "the second version", time.Minute, func() error {
		if now, _ := root.place.Get(at); string(now) != `{"k":"second"}` {
			return errors.New("it is not there")
		}
		return nil
	})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(text)) {
		var r struct {
			Type    string
			Request struct{ Path string }
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		found = found || r.Request.Path == d+"/associations/sync"
	}
	if !found {
		t.Errorf("nothing is recorded of it:\n%s", text)
	}
}
