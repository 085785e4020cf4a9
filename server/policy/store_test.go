package policy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/policy"
	"github.com/coffer-project/coffer/server/policy/api"
	"github.com/coffer-project/coffer/storage"
)

// newStore returns a policy store that follows its storage, with the entries of a new root namespace.
func newStore(t testing.TB) (*policy.Store, *storage.Memory) {
	t.Helper()
	mem := new(storage.Memory)
	if _, err := mem.Commit(t.Context(), storage.Batch{Puts: policy.Defaults("root")}); err != nil {
		t.Fatal(err)
	}
	s := policy.NewStore(mem)
	t.Cleanup(mem.OnChange(s.Changed))
	return s, mem
}

func isInvalid(err error) bool {
	var e *engines.Error
	return errors.As(err, &e) && e.Kind == engines.KindInvalid
}

func TestStore(t *testing.T) {
	ctx := t.Context()
	s, mem := newStore(t)
	text := rule("secret/*", "read")
	if err := s.Set(ctx, "root", "Team/One", text); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Get(ctx, "s/sys/root/policies/default"); err != nil {
		t.Errorf("the default policy is not where it belongs: %v", err)
	}
	p, err := s.Get(ctx, "root", "TEAM/one")
	if err != nil || p.Text != text || p.Name != "team/one" {
		t.Errorf("Get = %+v, %v", p, err)
	}
	if _, err := s.Get(ctx, "other", "team/one"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Get in another namespace = %v", err)
	}
	if names, _ := s.List(ctx, "root"); !slices.Equal(names, []string{"default", "root", "team/one"}) {
		t.Errorf("List = %v", names)
	}
	if err := s.Delete(ctx, "root", "team/one"); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(ctx, "root", "team/one"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Get after Delete = %v", err)
	}
}

func TestStoreRefuses(t *testing.T) {
	ctx := t.Context()
	s, _ := newStore(t)
	for _, name := range []string{"root", "ROOT", "response-wrapping", "", " ", "a,b", "a\nb", strings.Repeat("x", 513)} {
		if err := s.Set(ctx, "root", name, rule("*", "read")); !isInvalid(err) {
			t.Errorf("Set(%.20q) = %v", name, err)
		}
	}
	for _, name := range []string{"root", "default", "Default", "response-wrapping"} {
		if err := s.Delete(ctx, "root", name); !isInvalid(err) {
			t.Errorf("Delete(%q) = %v", name, err)
		}
	}
	if err := s.Set(ctx, "root", "x", "nonsense {"); !isInvalid(err) {
		t.Errorf("Set of bad text = %v", err)
	}
	if err := s.Set(ctx, "root", "default", rule("x", "read")); err != nil {
		t.Errorf("the default policy cannot be edited: %v", err)
	}
}

func TestStoreACL(t *testing.T) {
	ctx := t.Context()
	s, mem := newStore(t)
	capabilities := func(path string, names ...string) string {
		t.Helper()
		acl, err := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: names})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(acl.Capabilities(path), " ")
	}
	if got := capabilities("secret/a", "missing", "default"); got != "deny" {
		t.Errorf("without the policy: %s", got)
	}
	if err := s.Set(ctx, "root", "missing", rule("secret/*", "read")); err != nil {
		t.Fatal(err)
	}
	if got := capabilities("secret/a", "missing", "default"); got != "read" {
		t.Errorf("after writing the policy: %s", got)
	}
	if got := capabilities("cubbyhole/x", "missing", "default"); got != "create delete list read update" {
		t.Errorf("default on the cubbyhole: %s", got)
	}
	if got := capabilities("secret/a", "root", "default"); got != "root" {
		t.Errorf("with root: %s", got)
	}
	if got := capabilities("sys/wrapping/unwrap", "response-wrapping"); got != "update" {
		t.Errorf("response-wrapping: %s", got)
	}
	names := []string{"missing", "default"}
	first, _ := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: names})
	second, _ := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: []string{"default", "missing"}})
	if first != second || names[0] != "missing" {
		t.Error("the ACL is not kept by sorted names, or the caller's names were sorted")
	}
	if _, err := mem.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "l/token/x", Value: []byte("x")}}}); err != nil {
		t.Fatal(err)
	}
	if third, _ := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: names}); third != first {
		t.Error("a change elsewhere dropped the ACL")
	}
	// A policy that cannot be read might be the one that denies.
	if _, err := mem.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "s/sys/root/policies/broken", Value: []byte("x")}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: []string{"default", "broken"}}); err == nil {
		t.Error("an unreadable policy was skipped")
	}
}

// After a write is acknowledged no request is decided by the policy it replaced.
func TestStoreACLIsNeverStale(t *testing.T) {
	ctx := t.Context()
	s, _ := newStore(t)
	var readers sync.WaitGroup
	done := make(chan struct{}) // closed when the writer is through
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					if _, err := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: []string{"p"}}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range 100 {
		if err := s.Set(ctx, "root", "p", rule(fmt.Sprintf("secret/%d", i), "read")); err != nil {
			t.Fatal(err)
		}
		acl, err := s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: []string{"p"}})
		if err != nil || !acl.Allow(engines.Read, fmt.Sprintf("secret/%d", i)) {
			t.Errorf("write %d is not in the ACL (%v)", i, err)
			break
		}
	}
	close(done)
	readers.Wait()
}

func TestDefaultPolicyIsText(t *testing.T) {
	s, _ := newStore(t)
	acl, err := s.ACL(t.Context(), nil, policy.Scope{Namespace: "root", Names: []string{"default"}})
	if err != nil {
		t.Fatal(err)
	}
	for path, op := range map[string]engines.Operation{
		"auth/token/lookup-self": engines.Read, "auth/token/renew-self": engines.Update, "auth/token/revoke-self": engines.Update,
		"sys/capabilities-self": engines.Update, "sys/internal/ui/resultant-acl": engines.Read, "sys/leases/renew": engines.Update,
		"sys/leases/lookup": engines.Update, "cubbyhole/a/b": engines.Create, "cubbyhole/": engines.List,
		"sys/wrapping/unwrap": engines.Update, "sys/tools/hash/sha2-512": engines.Update,
	} {
		if !acl.Allow(op, path) {
			t.Errorf("%s of %s is refused", op, path)
		}
	}
	for _, path := range []string{"auth/token/create", "auth/token/lookup", "sys/mounts", "secret/a", "sys/raw/x"} {
		if !slices.Equal(acl.Capabilities(path), []string{"deny"}) {
			t.Errorf("the default policy allows %v on %s", acl.Capabilities(path), path)
		}
	}
}

type tokens map[string][]string

func (m tokens) acl(ctx context.Context, s *policy.Store, name string) (*policy.ACL, error) {
	if p, ok := m[name]; ok {
		return s.ACL(ctx, nil, policy.Scope{Namespace: "root", Names: p})
	}
	return nil, errors.New("no such token")
}

func TestRoutes(t *testing.T) {
	s, _ := newStore(t)
	r := engines.NewRouter()
	known := tokens{"t1": {"p"}, "acc": {"root"}, "": {"default", "p", "reader"}}
	named := func(ctx context.Context, _ *engines.Request, name string) (*policy.ACL, error) {
		return known.acl(ctx, s, name)
	}
	api.Routes(r, api.Deps{Store: s, OfToken: named, OfAccessor: named,
		OfCaller: func(ctx context.Context, _ *engines.Request) (*policy.ACL, error) { return known.acl(ctx, s, "") }})
	do := func(op engines.Operation, path, body string) (string, error) {
		t.Helper()
		req := &engines.Request{Op: op, Path: path}
		if body != "" {
			req.Body = json.RawMessage(body)
		}
		resp, err := r.Handle(t.Context(), req)
		if err != nil || resp == nil {
			return "", err
		}
		out, _ := json.Marshal([]any{resp.Data, resp.Top})
		return string(out), nil
	}
	text := `path \"kv/*\" { capabilities = [\"read\", \"list\"] }`
	resultant := `[{"exact_paths":{},"glob_paths":{"kv/":{"capabilities":["list","read"]}},"root":false},null]`
	tests := []struct {
		op         engines.Operation
		path, body string
		want       string // data and top, or the error
	}{
		{engines.Read, "policies/acl/p", ``, `!`},
		{engines.Update, "policies/acl/p", `{}`, `!'policy' parameter not supplied or empty`},
		{engines.Update, "policies/acl/p", `{"policy": "x"}`, `!failed to parse policy`},
		{engines.Update, "policies/acl/P", `{"policy": "` + text + `"}`, ``},
		{engines.Read, "policies/acl/p", ``, `[{"name":"p","policy":"` + text + `"},null]`},
		{engines.Read, "policies/acl/root", ``, `[{"name":"root","policy":""},null]`},
		{engines.List, "policies/acl/", ``, `[{"keys":["default","p","root"]},null]`},
		{engines.Read, "policies/acl", ``, `[{"keys":["default","p","root"]},null]`},
		{engines.Read, "policy", ``, `[{"keys":["default","p","root"],"policies":["default","p","root"]},{"keys":["default","p","root"],"policies":["default","p","root"]}]`},
		{engines.Read, "policy/p", ``, `[{"name":"p","rules":"` + text + `"},{"name":"p","rules":"` + text + `"}]`},
		{engines.Update, "policy/q", `{"rules": "# nothing"}`, ``},
		{engines.Update, "policy/q", `{"rules": "# a", "policy": "# b"}`, `!differ`},
		{engines.Read, "policies/acl/q", ``, `[{"name":"q","policy":"# nothing"},null]`},
		{engines.Delete, "policy/q", ``, ``},
		{engines.Delete, "policies/acl/root", ``, `!cannot delete "root" policy`},
		{engines.Update, "capabilities-self", `{"paths": ["kv/a", "x"]}`, `[{"capabilities":["list","read"],"kv/a":["list","read"],"x":["deny"]},{"capabilities":["list","read"]}]`},
		{engines.Update, "capabilities-self", `{"path": "kv/a"}`, `[{"capabilities":["list","read"],"kv/a":["list","read"]},{"capabilities":["list","read"]}]`},
		{engines.Update, "capabilities-self", `{}`, `!paths must be supplied`},
		{engines.Update, "capabilities", `{"token": "t1", "path": "kv/a"}`, `[{"capabilities":["list","read"],"kv/a":["list","read"]},{"capabilities":["list","read"]}]`},
		{engines.Update, "capabilities", `{"token": "t2", "path": "kv/a"}`, `!invalid token`},
		{engines.Update, "capabilities", `{"path": "kv/a"}`, `!token must be supplied`},
		{engines.Update, "capabilities", `{"token": "t1", "policies": "reader", "path": "kv/a"}`, `!give one of them`},
		{engines.Update, "policies/acl/reader", `{"policy": "path \"sys/policies/acl/p\" { capabilities = [\"read\"] }"}`, ``},
		{engines.Update, "capabilities", `{"policies": "p", "path": "kv/a"}`, `[{"capabilities":["list","read"],"kv/a":["list","read"]},{"capabilities":["list","read"]}]`},
		{engines.Update, "capabilities", `{"policies": "P,none", "path": "kv/a"}`, `!permission denied`},
		{engines.Update, "capabilities", `{"policies": "root", "path": "kv/a"}`, `!permission denied`},
		{engines.Update, "capabilities", `{"policy": "path \"kv/a\" { capabilities = [\"deny\"] }", "policies": "p", "paths": ["kv/a", "kv/b"]}`, `[{"capabilities":["deny"],"kv/a":["deny"],"kv/b":["list","read"]},{"capabilities":["deny"]}]`},
		{engines.Update, "capabilities", `{"policy": "path \"kv/a\" {\n  capabilities = [\"reed\"]\n}", "path": "kv/a"}`, `!line 2: path "kv/a": unknown capability`},
		{engines.Update, "policies/acl/reader", `{"policy": "# none"}`, ``},
		{engines.Update, "capabilities-accessor", `{"accessor": "acc", "path": "kv/a"}`, `[{"capabilities":["root"],"kv/a":["root"]},{"capabilities":["root"]}]`},
		{engines.Update, "capabilities-accessor", `{"accessor": "no", "path": "kv/a"}`, `!invalid accessor`},
		{engines.Update, "policies/acl/default", `{"policy": "# empty"}`, ``},
		{engines.Read, "internal/ui/resultant-acl", ``, resultant},
	}
	for _, tt := range tests {
		got, err := do(tt.op, tt.path, tt.body)
		if text, wantErr := strings.CutPrefix(tt.want, "!"); wantErr {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s %s %s = %v, want the error %q", tt.op, tt.path, tt.body, err, text)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%s %s %s = %s, %v\nwant %s", tt.op, tt.path, tt.body, got, err, tt.want)
		}
	}
}

func BenchmarkStoreACL(b *testing.B) {
	s, _ := newStore(b)
	names := []string{"default", "team-one", "team-two"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.ACL(b.Context(), nil, policy.Scope{Namespace: "root", Names: names}); err != nil {
			b.Fatal(err)
		}
	}
}

// sys is an engine of the policy paths alone.
type sys struct{ r *engines.Router }

func (s sys) Router() *engines.Router { return s.r }

func TestHostile(t *testing.T) {
	enginetest.Hostile(t, enginetest.New(t, func(m engines.Mount) (engines.Engine, error) {
		r := engines.NewRouter()
		s := policy.NewStore(m.Storage)
		named := func(ctx context.Context, _ *engines.Request, name string) (*policy.ACL, error) {
			return tokens{}.acl(ctx, s, name)
		}
		api.Routes(r, api.Deps{Store: s, OfToken: named, OfAccessor: named,
			OfCaller: func(ctx context.Context, _ *engines.Request) (*policy.ACL, error) { return s.ACL(ctx, nil) }})
		return sys{r}, nil
	}, enginetest.Options{Type: "system", Path: "sys/"}))
}

// TestOldPolicyThatBreaksOff: what an older version accepted and stored still means what it meant there.
func TestOldPolicyThatBreaksOff(t *testing.T) {
	s, mem := newStore(t)
	const text = `path "a" { capabilities = ["read"] } foo =`
	if err := s.Set(t.Context(), "root", "old", text); err == nil {
		t.Error("it can still be written")
	}
	value, _ := json.Marshal(map[string]any{"format": 1, "text": text})
	if _, err := mem.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: "s/sys/root/policies/old", Value: value}}}); err != nil {
		t.Fatal(err)
	}
	p, err := s.Get(t.Context(), "root", "old")
	if err != nil || p.Text != text || !policy.NewACL(p).Allow(engines.Read, "a") {
		t.Errorf("Get = %+v, %v", p, err)
	}
}
