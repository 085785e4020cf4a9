package policy_test

import (
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/policy"
)

// subject fills templates from a map.
type subject map[string]string

func (s subject) FillIn(_, name string) (string, bool) { v, ok := s[name]; return v, ok }
func (s subject) Tag() string                          { return s["tag"] }

func TestScopes(t *testing.T) {
	ctx := t.Context()
	s, _ := newStore(t)
	for ns, text := range map[string]string{
		"root": rule("secret/*", "read") + rule("team/secret/shared", "read") + rule("team/sys/policies/acl/Locked", "deny") + rule("team/sys/policies/acl/*", "read"),
		"t1":   rule("secret/*", "read", "update") + rule("secret/hidden", "deny") + rule("sub/secret/*", "list"),
	} {
		if err := s.Set(ctx, ns, "p", text); err != nil {
			t.Fatal(err)
		}
	}
	inRoot := policy.Scope{Namespace: "root", Names: []string{"p"}}
	inTeam := policy.Scope{Namespace: "t1", Path: "team/", Names: []string{"p"}}
	tests := []struct {
		name   string
		scopes []policy.Scope
		ns     string
		op     engines.Operation
		path   string
		want   bool
	}{
		{"of root, in root", []policy.Scope{inRoot}, "", engines.Read, "secret/a", true},
		{"of root, in the namespace, not named", []policy.Scope{inRoot}, "team/", engines.Read, "secret/a", false},
		{"of root, in the namespace, named", []policy.Scope{inRoot}, "team/", engines.Read, "secret/shared", true},
		{"of the namespace, in it", []policy.Scope{inTeam}, "team/", engines.Update, "secret/a", true},
		{"of the namespace, in root", []policy.Scope{inTeam}, "", engines.Update, "secret/a", false},
		{"of the namespace, in another that begins alike", []policy.Scope{inTeam}, "team2/", engines.Update, "secret/a", false},
		{"of the namespace, below it", []policy.Scope{inTeam}, "team/sub/", engines.List, "secret/", true},
		{"both: deny stays", []policy.Scope{inRoot, inTeam}, "team/", engines.Read, "secret/hidden", false},
		{"both: they add up", []policy.Scope{inRoot, inTeam}, "", engines.Read, "secret/a", true},
		{"a policy's name has no case, from above either", []policy.Scope{inRoot}, "team/", engines.Read, "sys/policies/acl/lockeD", false},
		{"another policy", []policy.Scope{inRoot}, "team/", engines.Read, "sys/policies/acl/Other", true},
	}
	for _, tt := range tests {
		acl, err := s.ACL(ctx, nil, tt.scopes...)
		if err != nil {
			t.Fatal(err)
		}
		if got := acl.In(tt.ns).Allow(tt.op, tt.path); got != tt.want {
			t.Errorf("%s: Allow(%s, %s) in %q = %v", tt.name, tt.op, tt.path, tt.ns, got)
		}
	}
	acl, _ := s.ACL(ctx, nil, policy.Scope{Namespace: "t1", Path: "team/", Names: []string{"root"}})
	if acl.Root() || acl.Allow(engines.Read, "secret/a") {
		t.Error("the name root means something outside the root namespace")
	}
	acl, _ = s.ACL(ctx, nil, inTeam)
	if acl.AnyUnder("secret/") || !acl.In("team/").AnyUnder("secret/") || !acl.AnyUnder("team/") {
		t.Error("AnyUnder does not look from the namespace")
	}
}

// TestTemplates also is the test against names that would widen a policy.
func TestTemplates(t *testing.T) {
	ctx := t.Context()
	s, _ := newStore(t)
	text := rule("secret/{{identity.entity.name}}/*", "read") + rule("plain/*", "read") + rule("x/{{ identity.entity.id }}", "read")
	if err := s.Set(ctx, "root", "p", text); err != nil {
		t.Fatal(err)
	}
	scope := policy.Scope{Namespace: "root", Names: []string{"p"}}
	allow := func(who policy.Subject, path string) bool {
		t.Helper()
		acl, err := s.ACL(ctx, who, scope)
		if err != nil {
			t.Fatal(err)
		}
		return acl.Allow(engines.Read, path)
	}
	bob := subject{"tag": "1", "identity.entity.name": "bob", "identity.entity.id": "e1"}
	eve := subject{"tag": "2", "identity.entity.name": "eve", "identity.entity.id": "e2"}
	for range 2 { // the second time from what is remembered
		if allow(nil, "secret/bob/a") || !allow(nil, "plain/a") {
			t.Error("an entity has another's rules, or not its own")
		}
		if !allow(bob, "secret/bob/a") || allow(bob, "secret/eve/a") || !allow(bob, "x/e1") || allow(bob, "x/e2") {
			t.Error("bob's rules are wrong")
		}
		if !allow(eve, "secret/eve/a") || allow(eve, "secret/bob/a") {
			t.Error("eve's rules are wrong")
		}
	}
	bob["tag"], bob["identity.entity.name"] = "3", "robert"
	if allow(bob, "secret/bob/a") || !allow(bob, "secret/robert/a") {
		t.Error("a new name does not count")
	}
	for i, name := range []string{"", "*", "+", "a*", "bob/..", "..", ".", "bob/x", "eve+", "a\x00b"} {
		who := subject{"tag": "evil" + string(rune('a'+i)), "identity.entity.name": name}
		for _, path := range []string{"secret/bob/a", "secret/eve/a", "secret/a", "secret/" + name + "/a", "secret/../a"} {
			if allow(who, path) {
				t.Errorf("the entity %q may read %q", name, path)
			}
		}
	}
}

// TestDenyingTemplates: a name that cannot be filled in is no way round a rule that denies.
func TestDenyingTemplates(t *testing.T) {
	ctx := t.Context()
	s, _ := newStore(t)
	text := rule("kv/*", "read") + rule("kv/x/{{identity.entity.name}}", "deny") + rule("kv/y/a-{{identity.entity.name}}*", "deny")
	if err := s.Set(ctx, "root", "p", text); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		want       bool
	}{
		{"bob", "kv/x/bob", false}, {"bob", "kv/x/eve", true}, {"bob", "kv/y/a-bob", false}, {"bob", "kv/y/b", true},
		{"a/b", "kv/x/anything", false}, {"a/b", "kv/y/anything", false}, {"a/b", "kv/z", true},
		{"*", "kv/x/anything", false}, {"*", "kv/z", true},
		{"", "kv/x/anything", true}, // no such value: no entity matches
	}
	for i, tt := range tests {
		who := subject{"tag": string(rune('a' + i))}
		if tt.name != "" {
			who["identity.entity.name"] = tt.name
		}
		acl, err := s.ACL(ctx, who, policy.Scope{Namespace: "root", Names: []string{"p"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := acl.Allow(engines.Read, tt.path); got != tt.want {
			t.Errorf("%q may read %s: %v", tt.name, tt.path, got)
		}
	}
}

// TestScopesAreNotMixedUp: names that run into each other must not be taken for others.
func TestScopesAreNotMixedUp(t *testing.T) {
	ctx := t.Context()
	s, _ := newStore(t)
	if err := s.Set(ctx, "root", "b", rule("*", "read")); err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{"a", "b"}, {"a\x00b"}, {"a\x01b"}, {"ab"}} {
		acl, err := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: names})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := acl.Allow(engines.Read, "x"), len(names) == 2; got != want {
			t.Errorf("%q: %v", names, got)
		}
	}
}
