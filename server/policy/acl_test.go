package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/storage"
)

// rule writes one path block.
func rule(path string, capabilities ...string) string {
	list, _ := json.Marshal(capabilities)
	return fmt.Sprintf("path %q { capabilities = %s }\n", path, list)
}

func newACL(t testing.TB, texts ...string) *policy.ACL {
	t.Helper()
	var policies []*policy.Policy
	for _, text := range texts {
		policies = append(policies, mustParse(t, text))
	}
	return policy.NewACL(policies...)
}

func TestWhichPatternDecides(t *testing.T) {
	tests := []struct {
		name     string
		policies []string
		path     string
		want     string
	}{
		{"nothing", nil, "secret/a", "deny"},
		{"exact", []string{rule("secret/a", "read")}, "secret/a", "read"},
		{"exact is not a prefix", []string{rule("secret/a", "read")}, "secret/ab", "deny"},
		{"leading slash", []string{rule("secret/a", "read")}, "/secret/a", "read"},
		{"glob", []string{rule("secret/*", "read")}, "secret/a/b", "read"},
		{"glob matches nothing more", []string{rule("secret/*", "read")}, "secret/", "read"},
		{"glob needs its slash", []string{rule("secret/*", "read")}, "secret", "deny"},
		{"glob inside a segment", []string{rule("secret/te*", "read")}, "secret/team/x", "read"},
		{"glob for all", []string{rule("*", "read")}, "anything/at/all", "read"},
		{"glob for all and the root path", []string{rule("*", "read")}, "", "read"},
		{"star in the middle is a letter", []string{rule("secret/*/x", "read")}, "secret/a/x", "deny"},
		{"plus", []string{rule("secret/+/x", "read")}, "secret/a/x", "read"},
		{"plus is one segment", []string{rule("secret/+/x", "read")}, "secret/a/b/x", "deny"},
		{"plus at the end", []string{rule("secret/+", "read")}, "secret/a", "read"},
		{"plus in a word is a letter", []string{rule("secret/a+/x", "read")}, "secret/ab/x", "deny"},
		{"plus first", []string{rule("+/x", "read")}, "secret/x", "read"},
		{"plus and glob", []string{rule("secret/+/x*", "read")}, "secret/a/xyz/q", "read"},
		{"exact beats glob", []string{rule("secret/*", "read"), rule("secret/a", "list")}, "secret/a", "list"},
		{"exact beats a denying glob", []string{rule("secret/*", "deny"), rule("secret/a", "list")}, "secret/a", "list"},
		{"losers add nothing", []string{rule("secret/*", "read", "update"), rule("secret/a*", "list")}, "secret/ab", "list"},
		{"longer glob", []string{rule("secret/*", "deny"), rule("secret/a*", "read")}, "secret/ab", "read"},
		{"1: later wildcard", []string{rule("secret/+/b", "read"), rule("secret/a/*", "list")}, "secret/a/b", "list"},
		{"1: later wildcard, plus", []string{rule("secret/a/+", "read"), rule("secret/*", "list")}, "secret/a/b", "read"},
		{"2: no glob at the end", []string{rule("secret/+/b", "read"), rule("secret/+/b*", "list")}, "secret/a/b", "read"},
		{"3: fewer plus segments", []string{rule("secret/+/+", "read"), rule("secret/+/b", "list")}, "secret/a/b", "list"},
		{"3: before length", []string{rule("secret/+/+/*", "read"), rule("secret/+/b*", "list")}, "secret/a/bcd/e", "list"},
		{"4: longer", []string{rule("secret/+/b*", "read"), rule("secret/+/bc*", "list")}, "secret/a/bcd", "list"},
		{"5: greater", []string{rule("secret/+/a/+", "read"), rule("secret/+/+/b", "list")}, "secret/x/a/b", "read"},
		{"union", []string{rule("secret/*", "read"), rule("secret/*", "list", "update")}, "secret/a", "list read update"},
		{"deny wins", []string{rule("secret/*", "read"), rule("secret/*", "deny"), rule("secret/*", "list")}, "secret/a", "deny"},
		{"deny wins in one rule", []string{rule("secret/*", "read", "deny")}, "secret/a", "deny"},
		{"list reaches the name", []string{rule("secret/a", "list"), rule("secret/*", "deny")}, "secret/a/", "list"},
		{"list prefers its own path", []string{rule("secret/a", "list"), rule("secret/a/", "read")}, "secret/a/", "read"},
		{"template matches nothing", []string{rule("secret/{{identity.entity.id}}", "read")}, "secret/{{identity.entity.id}}", "deny"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			acl := newACL(t, tt.policies...)
			if got := strings.Join(acl.Capabilities(tt.path), " "); got != tt.want {
				t.Errorf("Capabilities(%q) = %q, want %q", tt.path, got, tt.want)
			}
		})
	}
}

func TestOperations(t *testing.T) {
	acl := newACL(t, rule("all/*", "create", "read", "update", "patch", "delete", "list"), rule("none/*", "sudo"), rule("name", "list", "sudo"))
	for _, op := range []engines.Operation{engines.Create, engines.Read, engines.Update, engines.Patch, engines.Delete, engines.List} {
		if !acl.Allow(op, "all/x") || !acl.Check(op, "all/x", nil).Allowed {
			t.Errorf("%s is refused with all capabilities", op)
		}
		if acl.Allow(op, "none/x") || acl.Check(op, "none/x", nil).Allowed {
			t.Errorf("%s is allowed by sudo alone", op)
		}
		one := newACL(t, rule("x", string(op)))
		for _, other := range []engines.Operation{engines.Create, engines.Read, engines.Update, engines.Patch, engines.Delete, engines.List} {
			if got := one.Allow(other, "x"); got != (op == other) {
				t.Errorf("with only %s, %s is allowed: %v", op, other, got)
			}
		}
	}
	if acl.Allow("unheard-of", "all/x") {
		t.Error("an unknown operation is allowed")
	}
	if d := acl.Check(engines.List, "name/", nil); !d.Allowed || !d.Sudo || !acl.Sudo("name/") {
		t.Errorf("LIST name/ = %+v, want it ruled by name", d)
	}
	if acl.Allow(engines.Read, "name/") {
		t.Error("only LIST falls back to the path without slash")
	}
	if !newACL(t, rule("a/", "list")).Allow(engines.List, "a") {
		t.Error("LIST of a is LIST of a/")
	}
	if acl.Sudo("all/x") || !acl.Sudo("none/x") {
		t.Error("sudo is given where it is not, or the other way round")
	}
}

func TestRoot(t *testing.T) {
	acl := policy.NewACL(mustParse(t, rule("*", "deny")), policy.Root())
	d := acl.Check(engines.Delete, "any/thing", nil)
	if !acl.Root() || !d.Allowed || !d.Sudo || !d.AllowsWrap(0) || !acl.Sudo("x") || !acl.AnyUnder("x/") {
		t.Error("root is not allowed everything")
	}
	if got := acl.Capabilities("x"); !slices.Equal(got, []string{"root"}) {
		t.Errorf("Capabilities = %v", got)
	}
	if policy.NewACL(mustParse(t, rule("*", "sudo"))).Root() {
		t.Error("sudo on everything is root")
	}
}

// freeForm is the input of a route that takes whatever the body holds.
func freeForm(body string) policy.Input {
	type anything struct {
		Data engines.Object `json:"data" body:"true" help:"."`
	}
	r := engines.NewRouter()
	route := engines.On(r, engines.Update, "p", ".", 0, func(context.Context, *engines.Request, *anything) (*engines.Response, error) { return nil, nil })
	if body == "null" {
		body = "" // as the server has it
	}
	return func() (*input.Input, error) {
		return route.Input(&engines.Request{Op: engines.Update, Body: json.RawMessage(body)}, nil)
	}
}

func TestParameters(t *testing.T) {
	tests := []struct {
		name, rules, body string
		want              bool
	}{
		{"no rules", ``, `{"a": 1}`, true},
		{"allowed, any value", `allowed_parameters = { "a" = [] }`, `{"a": "x"}`, true},
		{"not in the list", `allowed_parameters = { "a" = [] }`, `{"a": "x", "b": 1}`, false},
		{"null is a parameter too", `allowed_parameters = { "a" = [] }`, `{"b": null}`, false},
		{"no body", `allowed_parameters = { "a" = ["x"] }`, ``, true},
		{"null body", `allowed_parameters = { "a" = ["x"] }`, `null`, true},
		{"body is a list", `allowed_parameters = { "a" = ["x"] }`, `["a"]`, false},
		{"body is broken", `denied_parameters = { "a" = ["x"] }`, `{"b"`, false},
		{"star", `allowed_parameters = { "*" = [] }`, `{"b": 1}`, true},
		{"star with values", `allowed_parameters = { "*" = [], "a" = ["x"] }`, `{"b": 1, "a": "y"}`, false},
		{"value", `allowed_parameters = { "a" = ["x", "y"] }`, `{"a": "y"}`, true},
		{"other value", `allowed_parameters = { "a" = ["x", "y"] }`, `{"a": "z"}`, false},
		{"case of the name", `allowed_parameters = { "TTL" = [] }`, `{"ttl": 1}`, true},
		{"case of the field", `denied_parameters = { "ttl" = [] }`, `{"TTL": 1}`, false},
		{"both cases, one bad", `allowed_parameters = { "a" = ["x"] }`, `{"a": "x", "A": "y"}`, false},
		{"front glob", `allowed_parameters = { "a" = ["*-dev"] }`, `{"a": "x-dev"}`, true},
		{"back glob", `allowed_parameters = { "a" = ["dev-*"] }`, `{"a": "x-dev-"}`, false},
		{"inner glob", `denied_parameters = { "a" = ["*root*"] }`, `{"a": "my-root-1"}`, false},
		{"number", `allowed_parameters = { "a" = [60] }`, `{"a": 60.0}`, true},
		{"number as text", `denied_parameters = { "a" = [60] }`, `{"a": "60"}`, false},
		{"text as number", `denied_parameters = { "a" = ["60"] }`, `{"a": 6e1}`, false},
		{"boolean", `allowed_parameters = { "a" = [true] }`, `{"a": false}`, false},
		{"list", `allowed_parameters = { "a" = [["x", 1]] }`, `{"a": ["x", 1]}`, true},
		{"other list", `allowed_parameters = { "a" = [["x", 1]] }`, `{"a": ["x", 2]}`, false},
		{"object", `allowed_parameters = { "a" = [{ k = "v" }] }`, `{"a": {"k": "v"}}`, true},
		{"denied", `denied_parameters = { "a" = [] }`, `{"a": "x"}`, false},
		{"denied other", `denied_parameters = { "a" = [] }`, `{"b": "x"}`, true},
		{"all denied", `denied_parameters = { "*" = [] }`, `{"b": "x"}`, false},
		{"all denied, none given", `denied_parameters = { "*" = [] }`, `{}`, true},
		{"denied beats allowed", `allowed_parameters = { "a" = [] } denied_parameters = { "a" = ["x"] }`, `{"a": "x"}`, false},
		{"required", `required_parameters = ["a", "B"]`, `{"a": 1, "b": 2}`, true},
		{"required is missing", `required_parameters = ["a", "b"]`, `{"a": 1}`, false},
		{"required is null", `required_parameters = ["a"]`, `{"a": null}`, false},
		{"required, no body", `required_parameters = ["a"]`, ``, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			acl := newACL(t, `path "p" { capabilities = ["update", "delete", "read"] `+tt.rules+` }`)
			if got := acl.Check(engines.Update, "p", freeForm(tt.body)).Allowed; got != tt.want {
				t.Errorf("update with %s allowed = %v, want %v", tt.body, got, tt.want)
			}
			if !acl.Check(engines.Delete, "p", freeForm(tt.body)).Allowed {
				t.Error("parameters concern deletes")
			}
			if acl.Check(engines.Create, "p", nil).Allowed {
				t.Error("parameters replace capabilities")
			}
		})
	}
}

func TestParametersAddUp(t *testing.T) {
	acl := newACL(t,
		`path "p" { capabilities = ["update"] allowed_parameters = { "a" = ["x"], "b" = ["x"] } required_parameters = ["a"] }`,
		`path "p" { capabilities = ["read"]   allowed_parameters = { "a" = ["y"], "b" = [] } }`)
	for body, want := range map[string]bool{
		`{"a": "x"}`: true, `{"a": "y", "b": "q"}`: true, `{"a": "z"}`: false, `{"b": "x"}`: false, `{"a": "x", "c": 1}`: false,
	} {
		if got := acl.Check(engines.Update, "p", freeForm(body)).Allowed; got != want {
			t.Errorf("update with %s allowed = %v, want %v", body, got, want)
		}
	}
}

func TestWrapping(t *testing.T) {
	acl := newACL(t,
		`path "p" { capabilities = ["read"] min_wrapping_ttl = "1m" max_wrapping_ttl = "2h" }`,
		`path "p" { capabilities = ["read"] min_wrapping_ttl = 120 max_wrapping_ttl = "5400" }`)
	d := acl.Check(engines.Read, "p", nil)
	for ttl, want := range map[time.Duration]bool{
		0: false, 59 * time.Second: false, time.Minute: true, 90 * time.Minute: true, 91 * time.Minute: false,
	} {
		if d.AllowsWrap(ttl) != want {
			t.Errorf("AllowsWrap(%v) = %v, want %v", ttl, !want, want)
		}
	}
}

func TestExpiration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := policy.NewStore(new(storage.Memory))
		at := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		text := fmt.Sprintf("path \"a\" { capabilities = [\"read\"] expiration = %q }\n%s", at, rule("*", "list"))
		if err := store.Set(t.Context(), "root", "p", text); err != nil {
			t.Fatal(err)
		}
		capabilities := func() string {
			acl, err := store.ACL(t.Context(), nil, policy.Scope{Namespace: "root", Names: []string{"p"}})
			if err != nil {
				t.Fatal(err)
			}
			return strings.Join(acl.Capabilities("a"), " ")
		}
		if got := capabilities(); got != "read" {
			t.Errorf("before the expiration: %s, want read", got)
		}
		time.Sleep(time.Hour) // of the bubble's clock
		if got := capabilities(); got != "list" {
			t.Errorf("after the expiration: %s, want list from the weaker pattern", got)
		}
	})
}

func TestAnyUnder(t *testing.T) {
	tests := []struct {
		name   string
		text   string
		prefix string
		want   bool
	}{
		{"nothing", "", "secret/", false},
		{"exact below", rule("secret/a/b", "read"), "secret/", true},
		{"the mount itself", rule("secret/", "list"), "secret/", true},
		{"the mount without slash", rule("secret", "list"), "secret/", true},
		{"another mount", rule("other/a", "read"), "secret/", false},
		{"a longer name", rule("secrets/a", "read"), "secret/", false},
		{"denied below", rule("secret/a", "deny"), "secret/", false},
		{"glob above", rule("sec*", "read"), "secret/", true},
		{"glob below", rule("secret/a/b*", "read"), "secret/", true},
		{"glob above but denied here", rule("*", "read") + rule("secret/*", "deny"), "secret/", false},
		{"denied here but for one", rule("secret/*", "deny") + rule("secret/a", "read"), "secret/", true},
		{"plus", rule("+/a", "read"), "secret/", true},
		{"plus with glob", rule("+/a*", "read"), "secret/", true},
		{"plus alone is not below", rule("+", "read"), "secret/", false},
		{"plus but denied here", rule("+/a", "read") + rule("secret/*", "deny"), "secret/", false},
		{"two levels", rule("auth/+/login", "read"), "auth/app/", true},
		{"two levels, other", rule("auth/+/login", "read"), "secret/app/", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := newACL(t, tt.text).AnyUnder(tt.prefix); got != tt.want {
				t.Errorf("AnyUnder(%q) = %v, want %v", tt.prefix, got, tt.want)
			}
		})
	}
}

func TestAllowedAlways(t *testing.T) {
	for what, want := range map[string]bool{
		``: true, `allowed_parameters = { "a" = [] }`: false, `denied_parameters = { "a" = [] }`: false, `required_parameters = ["a"]`: false,
		`min_wrapping_ttl = "1m"`: false, `max_wrapping_ttl = "1m"`: false,
	} {
		acl := newACL(t, `path "p/*" { capabilities = ["create"] `+what+` }`)
		if !acl.Allowed(engines.Create, "p/a") || acl.AllowedAlways(engines.Create, "p/a") != want {
			t.Errorf("%q: allowed always is %v", what, !want)
		}
		if acl.AllowedAlways(engines.Update, "p/a") || acl.AllowedAlways(engines.Create, "q") {
			t.Errorf("%q: what is not allowed is allowed always", what)
		}
	}
}

// model decides in the slow and obvious way.
type model map[string][]string // pattern to capabilities

func (m model) capabilities(path string) []string {
	if caps, ok := m[path]; ok && !wild(path) {
		return caps
	}
	if caps, ok := m[strings.TrimSuffix(path, "/")]; ok && !wild(strings.TrimSuffix(path, "/")) {
		return caps
	}
	var matching []string
	for pattern := range m {
		if wild(pattern) && matches(pattern, path) {
			matching = append(matching, pattern)
		}
	}
	if len(matching) == 0 {
		return []string{"deny"}
	}
	return m[slices.MaxFunc(matching, byPriority)]
}

func wild(pattern string) bool {
	return strings.HasSuffix(pattern, "*") || slices.Contains(strings.Split(pattern, "/"), "+")
}

func matches(pattern, path string) bool {
	front, glob := strings.CutSuffix(pattern, "*")
	want, have := strings.Split(front, "/"), strings.Split(path, "/")
	if len(have) < len(want) || !glob && len(have) != len(want) {
		return false
	}
	for i := range want {
		last := glob && i == len(want)-1
		if want[i] != "+" && want[i] != have[i] && !(last && strings.HasPrefix(have[i], want[i])) {
			return false
		}
	}
	return true
}

func byPriority(a, b string) int {
	score := func(p string) []int {
		first := len(p)
		pos := 0
		pluses := 0
		for _, s := range strings.Split(p, "/") {
			if s == "+" {
				pluses++
				first = min(first, pos)
			}
			pos += len(s) + 1
		}
		exact := 1
		if strings.HasSuffix(p, "*") {
			exact, first = 0, min(first, len(p)-1)
		}
		return []int{first, exact, -pluses, len(p)}
	}
	if c := slices.Compare(score(a), score(b)); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

func TestACLAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	words := []string{"a", "b", "ab", "+", "+", "abc", ""}
	randomPath := func() string {
		parts := make([]string, 1+rng.IntN(4))
		for i := range parts {
			parts[i] = words[rng.IntN(len(words))]
		}
		return strings.TrimLeft(strings.Join(parts, "/"), "/")
	}
	caps := []string{"create", "delete", "deny", "list", "patch", "read", "sudo", "update"}
	for range 1000 {
		m := model{}
		var texts []string
		for range 1 + rng.IntN(12) {
			pattern := randomPath()
			if rng.IntN(2) == 0 && !strings.HasSuffix(pattern, "+") {
				pattern += "*"
			}
			given := caps[rng.IntN(len(caps))]
			texts = append(texts, rule(pattern, given))
			have := append(slices.Clone(m[pattern]), given)
			slices.Sort(have)
			if m[pattern] = slices.Compact(have); slices.Contains(have, "deny") {
				m[pattern] = []string{"deny"}
			}
		}
		acl := newACL(t, texts...)
		for range 20 {
			path := strings.ReplaceAll(randomPath(), "+", "c")
			if got, want := acl.Capabilities(path), m.capabilities(path); !slices.Equal(got, want) {
				t.Fatalf("seed %d: Capabilities(%q) = %v, want %v, with\n%s", seed, path, got, want, strings.Join(texts, ""))
			}
			if prefix := path + "/"; !slices.Equal(m.capabilities(prefix+"abc"), []string{"deny"}) && !acl.AnyUnder(prefix) {
				// AnyUnder may miss paths only where stronger patterns hide the one path it tries.
				if !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "deny") }) {
					t.Fatalf("seed %d: AnyUnder(%q) = false, but %sabc is allowed by\n%s", seed, prefix, prefix, strings.Join(texts, ""))
				}
			}
		}
	}
}

func BenchmarkAllow(b *testing.B) {
	var policies []*policy.Policy
	for i := range 100 {
		policies = append(policies, mustParse(b, fmt.Sprintf("path \"secret/data/team-%d/*\" { capabilities = [\"read\"] }\n"+
			"path \"secret/+/app-%d/+\" { capabilities = [\"read\"] }\npath \"kv/exact/%d\" { capabilities = [\"list\"] }\n", i, i, i)))
	}
	acl := policy.NewACL(policies...)
	for _, path := range []string{"secret/data/team-42/db/password", "secret/data/app-7/db", "kv/exact/99", "secret/other"} {
		b.Run(strings.ReplaceAll(path, "/", "_"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				acl.Check(engines.Read, path, nil)
			}
		})
	}
}

// The names of policies have no case, so rules about them have none either.
func TestPolicyNamesHaveNoCase(t *testing.T) {
	for _, tt := range []struct {
		pattern, path string
		want          bool
	}{
		{"sys/policies/acl/admin", "sys/policies/acl/ADMIN", true},
		{"sys/policies/acl/Admin", "sys/policies/acl/admin", true},
		{"sys/policies/acl/Team-*", "sys/policies/acl/tEAM-a", true},
		{"sys/policies/acl/admin", "sys/policies/acl/ admin ", true},
		{"+/policies/+/Admin", "sys/policies/acl/aDmin", true},
		{"sys/+/Admin", "sys/policy/aDmin", true},
		{"/sys/policy/Admin", "/sys/policy/admin", true},
		{"sys/policies/acl/admin", "sys/policies/acl/admins", false},
		{"secret/policies/acl/Admin", "secret/policies/acl/admin", false},
		{"secret/data/App", "secret/data/app", false},
		{"sys/mounts/App", "sys/mounts/app", false},
		{"sys/+/App", "sys/mounts/App", true},
		{"sys/+/App", "sys/mounts/app", false},
	} {
		p, err := policy.Parse("p", `path "`+tt.pattern+`" { capabilities = ["read"] }`)
		if err != nil {
			t.Fatal(err)
		}
		if got := policy.NewACL(p).Allow(engines.Read, tt.path); got != tt.want {
			t.Errorf("rule %q on %q allows: %v, want %v", tt.pattern, tt.path, got, tt.want)
		}
	}
}

// What a policy says of one name of a path's segment holds for requests by its other name, too; a pattern that is not about that segment
// has been asked about the request's own path, where a more specific one may win.
func TestSynonyms(t *testing.T) {
	none := func() (*input.Input, error) { return nil, nil }
	const read = `{ capabilities = ["read"] }`
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"by the name of the request", `path "d/vendor/a" ` + read, true},
		{"by both", `path "d/+/a" ` + read, true},
		{"by the other name only", `path "d/neutral/a" ` + read, true},
		{"more by the other name", `path "d/*" { capabilities = ["list"] } path "d/neutral/a" ` + read, true},
		{"less by the name of the request", `path "d/vendor/a" { capabilities = ["list"] } path "d/neutral/a" ` + read, false},
		{"denied by the name of the request", `path "d/vendor/a" { capabilities = ["deny"] } path "d/neutral/a" ` + read, false},
		{"by neither", `path "d/other/a" ` + read, false},
		{"denied by the other name", `path "d/*" ` + read + ` path "d/neutral/*" { capabilities = ["deny"] }`, false},
		{"denied by a part of the other name", `path "d/*" ` + read + ` path "d/neut*" { capabilities = ["deny"] }`, false},
		{"less by the other name", `path "d/*" ` + read + ` path "d/neutral/a" { capabilities = ["list"] }`, false},
		{"more than what is general", `path "d/*" { capabilities = ["list"] } path "d/vendor/a" ` + read, true},
		{"denied elsewhere", `path "d/vendor/a" ` + read + ` path "d/neutral/b" { capabilities = ["deny"] }`, true},
	} {
		acl := newACL(t, tt.text)
		for _, names := range [][2]string{{"d/vendor/a", "d/neutral/a"}, {"d/neutral/a", "d/vendor/a"}} {
			neutral := "d/" + engines.Unnamed + "/a"
			if got := acl.CheckSynonym(engines.Read, names[0], names[1], neutral, none).Allowed; got != tt.want {
				t.Errorf("%s: %s is allowed: %v, want %v", tt.name, names[0], got, tt.want)
			}
			if got := slices.Contains(acl.CapabilitiesSynonym(names[0], names[1], neutral), "read"); got != tt.want {
				t.Errorf("%s: the capabilities on %s have read: %v, want %v", tt.name, names[0], got, tt.want)
			}
		}
	}
}
