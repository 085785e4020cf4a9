package policy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/storage"
)

// TestLevels: policies of a lower namespace add to what those of higher ones grant, and take nothing from it.
func TestLevels(t *testing.T) {
	for _, tt := range []struct{ name, above, below, path, want string }{
		{"a deny below", `path "a/*" { capabilities = ["read"] }`, `path "*" { capabilities = ["deny"] }`, "kv/x", "read"},
		{"a stronger pattern below", `path "a/*" { capabilities = ["read", "sudo"] }`, `path "kv/x" { capabilities = ["list"] }`, "kv/x", "list read sudo"},
		{"the same pattern below", `path "a/kv/x" { capabilities = ["read"] }`, `path "kv/x" { capabilities = ["deny"] }`, "kv/x", "read"},
		{"more below", `path "a/*" { capabilities = ["read"] }`, `path "kv/*" { capabilities = ["update"] }`, "kv/x", "read update"},
		{"a deny above, a stronger pattern below", `path "a/*" { capabilities = ["deny"] }`, `path "kv/x" { capabilities = ["read"] }`, "kv/x", "read"},
		{"a stronger deny above", `path "a/kv/x" { capabilities = ["deny"] }`, `path "kv/*" { capabilities = ["read"] }`, "kv/x", "deny"},
		{"elsewhere", `path "a/*" { capabilities = ["read"] }`, `path "kv/*" { capabilities = ["update"] }`, "other", "read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := policy.NewStore(&storage.Memory{})
			for ns, text := range map[string]string{"root": tt.above, "id-a": tt.below} {
				if err := s.Set(t.Context(), ns, "p", text); err != nil {
					t.Fatal(err)
				}
			}
			acl, err := s.ACL(t.Context(), nil, policy.Scope{Namespace: "root", Names: []string{"p"}}, policy.Scope{Namespace: "id-a", Path: "a/", Names: []string{"p"}})
			if err != nil {
				t.Fatal(err)
			}
			acl = acl.In("a/")
			if got := strings.Join(acl.Capabilities(tt.path), " "); got != tt.want {
				t.Errorf("capabilities %q, want %q", got, tt.want)
			}
			if got := acl.Allow(engines.Read, tt.path); got != strings.Contains(tt.want, "read") {
				t.Errorf("Allow(read) = %v", got)
			}
			if got := acl.Sudo(tt.path); got != strings.Contains(tt.want, "sudo") {
				t.Errorf("Sudo = %v", got)
			}
			exact, glob := acl.Summary()
			for pattern, c := range exact {
				if got := strings.Join(c.Capabilities, " "); got != strings.Join(acl.Capabilities(pattern), " ") {
					t.Errorf("summary of %q: %q", pattern, got)
				}
			}
			if len(exact)+len(glob) == 0 {
				t.Error("the summary is empty")
			}
		})
	}
}

// TestLevelsOfParameters: neither rules about parameters nor about wrapping of a lower namespace narrow what a higher one grants.
func TestLevelsOfParameters(t *testing.T) {
	s := policy.NewStore(&storage.Memory{})
	for ns, text := range map[string]string{
		"root": `path "a/*" { capabilities = ["read"] }`,
		"id-a": `path "kv/x" { capabilities = ["read"] min_wrapping_ttl = "1m" required_parameters = ["never"] }`,
	} {
		if err := s.Set(t.Context(), ns, "p", text); err != nil {
			t.Fatal(err)
		}
	}
	acl, err := s.ACL(t.Context(), nil, policy.Scope{Namespace: "root", Names: []string{"p"}}, policy.Scope{Namespace: "id-a", Path: "a/", Names: []string{"p"}})
	if err != nil {
		t.Fatal(err)
	}
	r := engines.NewRouter()
	engines.On(r, engines.Read, "x", "", 0, func(context.Context, *engines.Request, *struct{}) (*engines.Response, error) { return nil, nil })
	route, params, err := r.Match(engines.Read, "x")
	if err != nil {
		t.Fatal(err)
	}
	var allowed []bool
	for level := range acl.In("a/").Levels() {
		d := level.Check(engines.Read, "kv/x", func() (*input.Input, error) {
			return route.Input(&engines.Request{Op: engines.Read, Path: "x"}, params)
		})
		allowed = append(allowed, d.Allowed && d.AllowsWrap(0))
	}
	if len(allowed) != 2 || !allowed[0] || allowed[1] {
		t.Errorf("allowed at each level: %v", allowed)
	}
}
