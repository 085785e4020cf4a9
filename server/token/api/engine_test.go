package api_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/token/api"
	"github.com/coffer-project/coffer/storage"
)

// desk is a mounted token engine. Callers with the policy "admin" have sudo everywhere, and the policies
// that exist are default, admin, app and ops.
type desk struct {
	*enginetest.Mount
	t      *testing.T
	tokens *token.Store
	root   token.Created
}

// access is what a caller may do.
type access struct {
	engines.Access
	policies []string
}

func (a access) Sudo(path string) bool {
	return strings.HasPrefix(path, "auth/token/") && slices.Contains(a.policies, "admin")
}

func (d *desk) Exists(_ context.Context, namespace, name string) (bool, error) {
	return namespace != "" && slices.Contains([]string{"root", "default", "admin", "app", "ops"}, name), nil
}

func (d *desk) Assignable(name string) bool { return name != "response-wrapping" }

func newDesk(t *testing.T, change ...func(*token.Options)) *desk {
	t.Helper()
	d := &desk{t: t}
	d.Mount = enginetest.New(t, func(m engines.Mount) (engines.Engine, error) {
		if _, err := m.ClusterStorage.Commit(t.Context(), storage.Batch{Puts: token.InitPuts()}); err != nil {
			return nil, err
		}
		o := token.Options{Store: m.ClusterStorage, BatchKeys: batchKey{}, Namespaces: spaces{}}
		for _, fn := range change {
			fn(&o)
		}
		d.tokens = token.New(o)
		return api.New(api.Options{Tokens: d.tokens, Policies: d}), nil
	}, enginetest.Options{Type: "token", Path: "auth/token/"})
	t.Cleanup(d.Memory.OnChange(func(storage.Change) { d.tokens.Clear() }))
	d.root = d.issue(token.Params{Policies: []string{"root"}, Path: "auth/token/root", DisplayName: "root"})
	d.as(d.root)
	return d
}

func (d *desk) issue(p token.Params) token.Created {
	d.t.Helper()
	c, err := d.tokens.Create(d.t.Context(), p)
	if err != nil {
		d.t.Fatal(err)
	}
	return c
}

// in makes the next requests go to a namespace.
func (d *desk) in(namespace string) { d.Mount.Mount.NamespaceID = namespace }

// spaces are token.Namespaces: their ids are paths with a dash for each slash.
type spaces struct{}

func (spaces) Below(_ context.Context, ancestor, id string) bool {
	return ancestor == "root" || ancestor == id || strings.HasPrefix(id, ancestor+"-")
}

func (spaces) Path(id string) string {
	if id == "root" {
		return ""
	}
	return strings.ReplaceAll(id, "-", "/") + "/"
}

// batchKey is token.BatchKeys.
type batchKey struct{}

func (batchKey) Batch() ([]byte, error) {
	return []byte("a key of thirty-two bytes, no more"[:32]), nil
}

// as makes c the caller of the next requests.
func (d *desk) as(c token.Created) {
	d.Caller = engines.Caller{
		Accessor: c.Entry.Accessor, DisplayName: c.Entry.DisplayName, Policies: c.Entry.Policies,
		Root: c.Entry.Root(), NamespaceID: c.Entry.Namespace, Access: access{policies: c.Entry.Policies},
		TokenKey: c.Entry.Key, Token: c.Token,
	}
}

func (d *desk) lookup(tok string) map[string]any {
	d.t.Helper()
	return d.Data(d.Must(engines.Update, "lookup", map[string]any{"token": tok}))
}

func (d *desk) wantGone(tok string) {
	d.t.Helper()
	if _, err := d.tokens.Lookup(d.t.Context(), tok); err == nil {
		d.t.Error("the token is still valid")
	}
}

func TestCreatePath(t *testing.T) {
	d := newDesk(t)
	r := d.Must(engines.Update, "create", `{"policies": ["ops", "APP", "nowhere"], "meta": {"k": "v"}, "ttl": "30m", "display_name": "ci job #1!", "num_uses": 5}`)
	a := r.Auth
	if !strings.HasPrefix(a.ClientToken, "hvs.") || a.Accessor == "" || a.TokenType != "service" || a.Orphan || !a.Renewable ||
		a.LeaseDuration != 1800 || a.NumUses != 5 || a.Metadata["k"] != "v" || a.EntityID != "" ||
		!slices.Equal(a.Policies, []string{"app", "default", "nowhere", "ops"}) || !slices.Equal(a.TokenPolicies, a.Policies) {
		t.Errorf("auth = %+v", a)
	}
	if !slices.Equal(r.Warnings, []string{`Policy "nowhere" does not exist`}) {
		t.Errorf("warnings = %q", r.Warnings)
	}
	data := d.lookup(a.ClientToken)
	for key, want := range map[string]string{
		"id": a.ClientToken, "accessor": a.Accessor, "display_name": "token-ci-job--1", "num_uses": "5", "orphan": "false",
		"path": "auth/token/create", "policies": "[app default nowhere ops]", "renewable": "true", "type": "service",
		"creation_ttl": "1800", "ttl": "1800", "explicit_max_ttl": "0", "meta": "map[k:v]", "entity_id": "", "namespace_path": "",
	} {
		if got := fmt.Sprint(data[key]); got != want {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
	for _, key := range []string{"period", "role", "bound_cidrs", "last_renewal", "last_renewal_time"} {
		if v, ok := data[key]; ok {
			t.Errorf("%s = %v, want it left out", key, v)
		}
	}
	at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(data["expire_time"]))
	issued, err2 := time.Parse(time.RFC3339Nano, fmt.Sprint(data["issue_time"]))
	if err != nil || err2 != nil || at.Sub(issued) != 30*time.Minute || fmt.Sprint(data["creation_time"]) != fmt.Sprint(issued.Unix()) {
		t.Errorf("issued %v, expires %v, created %v", data["issue_time"], data["expire_time"], data["creation_time"])
	}
}

func TestCreateDefaults(t *testing.T) {
	d := newDesk(t)
	if a := d.Must(engines.Update, "create", nil).Auth; !slices.Equal(a.Policies, []string{"root"}) || a.LeaseDuration != 0 || a.Renewable || a.Metadata != nil {
		t.Errorf("a child of root without anything = %+v", a)
	}
	data := d.Data(d.Must(engines.Read, "lookup-self", nil))
	if data["expire_time"] != nil || data["meta"] != nil || data["orphan"] != true || fmt.Sprint(data["ttl"]) != "0" || data["id"] != d.root.Token.Reveal() {
		t.Errorf("lookup of root = %v", data)
	}
	d.as(d.issue(token.Params{Policies: []string{"default", "app"}, EntityID: "e1", BoundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}))
	a := d.Must(engines.Update, "create", `{}`).Auth
	if !slices.Equal(a.Policies, []string{"app", "default"}) || a.LeaseDuration != 3600 || a.EntityID != "e1" {
		t.Errorf("a child without anything = %+v", a)
	}
	d.as(d.root)
	if got := fmt.Sprint(d.lookup(a.ClientToken)["bound_cidrs"]); got != "[10.0.0.0/8]" {
		t.Errorf("bound_cidrs of a child = %v", got)
	}
	r := d.Must(engines.Update, "create", `{"policies": "app", "lease": "48h", "renewable": false}`)
	if r.Auth.LeaseDuration != 86400 || r.Auth.Renewable || len(r.Warnings) != 1 {
		t.Errorf("more than the mount's maximum = %+v, %q", r.Auth, r.Warnings)
	}
	if a := d.Must(engines.Update, "create", `{"policies": "app", "period": 60, "type": "service", "unknown": 1}`); a.Auth.LeaseDuration != 60 || len(a.Warnings) != 1 {
		t.Errorf("periodic = %+v, %q", a.Auth, a.Warnings)
	}
}

// Who may give what to whom.
func TestCreateAuthority(t *testing.T) {
	tests := []struct {
		name   string
		caller []string // policies
		path   string
		body   string
		want   string // policies, or "!" and the error
	}{
		{"own policy", []string{"default", "app"}, "create", `{"policies": ["app"]}`, "app default"},
		{"own policy, other case", []string{"default", "app"}, "create", `{"policies": [" APP "]}`, "app default"},
		{"own policy without default", []string{"default", "app"}, "create", `{"policies": ["app"], "no_default_policy": true}`, "app"},
		{"all without default", []string{"default", "app"}, "create", `{"no_default_policy": true}`, "app"},
		{"default is not added to who lacks it", []string{"app"}, "create", `{"policies": ["app"]}`, "app"},
		{"default is not given by who lacks it", []string{"app"}, "create", `{"policies": ["default"]}`, "!child policies must be subset of parent"},
		{"another policy", []string{"default", "app"}, "create", `{"policies": ["app", "ops"]}`, "!child policies must be subset of parent"},
		{"sudo gives any", []string{"admin"}, "create", `{"policies": ["ops"]}`, "default ops"},
		{"sudo is no root", []string{"admin"}, "create", `{"policies": ["ops", "root"]}`, "!root tokens may not be created without parent token being root"},
		{"root in capitals", []string{"admin"}, "create", `{"policies": ["ROOT"]}`, "!root tokens may not be created without parent token being root"},
		{"root gives root", []string{"root"}, "create", `{"policies": ["app", "root"]}`, "root"},
		{"root gives less", []string{"root"}, "create", `{"policies": ["app"]}`, "app default"},
		{"no token gives wrapping", []string{"root"}, "create", `{"policies": ["response-wrapping"]}`, `!cannot assign policy "response-wrapping"`},
		{"orphan", []string{"default"}, "create", `{"no_parent": true}`, "!root or sudo privileges required to create orphan token"},
		{"orphan by sudo", []string{"admin"}, "create", `{"no_parent": true}`, "admin"},
		{"orphan by path", []string{"default", "app"}, "create-orphan", `{"policies": ["app"]}`, "app default"},
		{"period", []string{"default"}, "create", `{"period": "1h"}`, "!root or sudo privileges required to create periodic token"},
		{"period by path", []string{"default"}, "create-orphan", `{"period": "1h"}`, "!root or sudo privileges required to create periodic token"},
		{"no period", []string{"default"}, "create", `{"period": "0"}`, "default"},
		{"id", []string{"default"}, "create", `{"id": "mine"}`, "!root or sudo privileges required to specify token id"},
		{"id by sudo", []string{"admin"}, "create", `{"id": "mine"}`, "admin"},
		{"id like ours", []string{"root"}, "create", `{"id": "hvs.mine"}`, "!a custom token ID cannot contain a dot"},
		{"batch root", []string{"root"}, "create", `{"type": "batch"}`, "!batch tokens cannot be root tokens"},
		{"batch", []string{"default", "app"}, "create", `{"type": "batch"}`, "app default"},
		{"default type", []string{"default"}, "create", `{"type": "default"}`, "default"},
		{"alias", []string{"root"}, "create", `{"entity_alias": "x"}`, "!field \"entity_alias\": is only possible with a token role"},
		{"role", []string{"root"}, "create/ci", `{}`, "!unknown token role"},
		{"negative uses", []string{"root"}, "create", `{"num_uses": -1}`, "!number of uses cannot be negative"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t)
			d.as(d.issue(token.Params{Policies: tt.caller}))
			if text, refused := strings.CutPrefix(tt.want, "!"); refused {
				if got := d.Fails(engines.KindInvalid, engines.Update, tt.path, tt.body); !strings.Contains(got, text) {
					t.Errorf("error %q, want %q", got, text)
				}
				return
			}
			a := d.Must(engines.Update, tt.path, tt.body).Auth
			if got := strings.Join(a.Policies, " "); got != tt.want {
				t.Errorf("policies %q, want %q", got, tt.want)
			}
			orphan := tt.path == "create-orphan" || strings.Contains(tt.body, "no_parent")
			if a.Orphan != orphan {
				t.Errorf("orphan = %v", a.Orphan)
			}
			if strings.Contains(tt.body, `"id"`) && a.ClientToken != "mine" {
				t.Error("the custom id was not used")
			}
		})
	}
}

func TestCreateFromSpecialParents(t *testing.T) {
	d := newDesk(t)
	d.as(d.issue(token.Params{Policies: []string{"root"}, TTL: time.Hour}))
	if got := d.Fails(engines.KindInvalid, engines.Update, "create", nil); !strings.Contains(got, "expiring root tokens") {
		t.Errorf("error %q", got)
	}
	if a := d.Must(engines.Update, "create", `{"ttl": "10m"}`).Auth; a.LeaseDuration != 600 || !slices.Equal(a.Policies, []string{"root"}) {
		t.Errorf("auth = %+v", a)
	}
	limited := d.issue(token.Params{Policies: []string{"root"}, NumUses: 1})
	d.as(limited)
	if _, err := d.tokens.Use(t.Context(), limited.Entry); err != nil { // as the server does before the request
		t.Fatal(err)
	}
	for _, path := range []string{"create", "create-orphan"} {
		if got := d.Fails(engines.KindInvalid, engines.Update, path, nil); !strings.Contains(got, "restricted use token") {
			t.Errorf("error %q", got)
		}
	}
	data := d.Data(d.Must(engines.Read, "lookup-self", nil))
	if fmt.Sprint(data["num_uses"]) != "0" {
		t.Errorf("num_uses during the last use = %v", data["num_uses"])
	}
	d.Caller = engines.Caller{}
	d.Fails(engines.KindDenied, engines.Update, "create", nil)
	d.Fails(engines.KindDenied, engines.Read, "lookup-self", nil)
}

func TestLookupPaths(t *testing.T) {
	d := newDesk(t)
	a := d.Must(engines.Update, "create", `{"policies": "app", "period": "1h"}`).Auth
	data := d.Data(d.Must(engines.Update, "lookup-accessor", map[string]any{"accessor": a.Accessor}))
	if data["id"] != "" || data["accessor"] != a.Accessor || fmt.Sprint(data["period"]) != "3600" {
		t.Errorf("lookup by accessor = %v", data)
	}
	if got := d.Data(d.Must(engines.Read, "lookup", nil)); got["id"] != d.root.Token.Reveal() {
		t.Error("a lookup without token is not that of the caller")
	}
	if got := d.Fails(engines.KindDenied, engines.Update, "lookup", `{"token": "hvs.nobody"}`); got != "bad token" {
		t.Errorf("error %q", got)
	}
	if got := d.Fails(engines.KindInvalid, engines.Update, "lookup-accessor", `{"accessor": "nobody"}`); got != "invalid accessor" {
		t.Errorf("error %q", got)
	}
	d.Fails(engines.KindInvalid, engines.Update, "lookup-accessor", `{}`)
	keys, _ := d.Data(d.Must(engines.List, "accessors/", nil))["keys"].([]any)
	if len(keys) != 2 || !slices.Contains(keys, any(a.Accessor)) {
		t.Errorf("accessors = %v", keys)
	}
}

func TestRenewPaths(t *testing.T) {
	d := newDesk(t)
	if got := d.Fails(engines.KindInvalid, engines.Update, "renew-self", nil); got != "token is not renewable" {
		t.Errorf("renewing root: %q", got)
	}
	a := d.Must(engines.Update, "create", `{"policies": "app", "ttl": "1h"}`).Auth
	r := d.Must(engines.Update, "renew", map[string]any{"token": a.ClientToken, "increment": "10m"})
	if r.Auth.ClientToken != a.ClientToken || r.Auth.LeaseDuration != 600 || r.Auth.Accessor != a.Accessor || !r.Auth.Renewable {
		t.Errorf("renew = %+v", r.Auth)
	}
	data := d.lookup(a.ClientToken)
	if data["last_renewal"] == nil || data["last_renewal_time"] == nil || fmt.Sprint(data["creation_ttl"]) != "3600" {
		t.Errorf("lookup after renew = %v", data)
	}
	r = d.Must(engines.Update, "renew-accessor", map[string]any{"accessor": a.Accessor})
	if r.Auth.ClientToken != "" || r.Auth.LeaseDuration != 3600 {
		t.Errorf("renew-accessor = %+v", r.Auth)
	}
	c := d.issue(token.Params{Policies: []string{"app"}, TTL: time.Hour})
	d.as(c)
	r = d.Must(engines.Update, "renew-self", `{"increment": 1000000000}`)
	if r.Auth.ClientToken != c.Token.Reveal() || r.Auth.LeaseDuration != 24*3600 || len(r.Warnings) != 1 {
		t.Errorf("renew-self = %+v, %q", r.Auth, r.Warnings)
	}
	d.Fails(engines.KindDenied, engines.Update, "renew", `{"token": "hvs.nobody"}`)
	d.Fails(engines.KindInvalid, engines.Update, "renew-accessor", `{"accessor": "nobody"}`)
}

func TestRevokePaths(t *testing.T) {
	d := newDesk(t)
	create := func(body string) *engines.Auth { return d.Must(engines.Update, "create", body).Auth }
	noContent := func(path string, body any) {
		t.Helper()
		if r := d.Must(engines.Update, path, body); r != nil {
			t.Errorf("%s = %+v, want no content", path, r)
		}
	}
	a := create(`{"policies": "app"}`)
	noContent("revoke", map[string]any{"token": a.ClientToken})
	d.wantGone(a.ClientToken)
	noContent("revoke", map[string]any{"token": a.ClientToken}) // again
	a = create(`{"policies": "app"}`)
	noContent("revoke-accessor", map[string]any{"accessor": a.Accessor})
	d.wantGone(a.ClientToken)
	if got := d.Fails(engines.KindInvalid, engines.Update, "revoke-accessor", map[string]any{"accessor": a.Accessor}); got != "invalid accessor" {
		t.Errorf("error %q", got)
	}
	if got := d.Fails(engines.KindInvalid, engines.Update, "revoke-orphan", map[string]any{"token": a.ClientToken}); got != "token to revoke not found" {
		t.Errorf("error %q", got)
	}
	d.Fails(engines.KindInvalid, engines.Update, "revoke", nil)
	d.Fails(engines.KindInvalid, engines.Update, "revoke-orphan", nil)

	parent := d.issue(token.Params{Policies: []string{"app"}})
	d.as(parent)
	kept := create(`{}`)
	d.as(d.root)
	noContent("revoke-orphan", map[string]any{"token": parent.Token.Reveal()})
	d.wantGone(parent.Token.Reveal())
	if data := d.lookup(kept.ClientToken); data["orphan"] != true {
		t.Error("the child of a token revoked alone is no orphan")
	}

	child := create(`{"policies": "app"}`)
	noContent("revoke-self", nil) // root may revoke itself
	d.wantGone(d.root.Token.Reveal())
	d.wantGone(child.ClientToken)
}

// later keeps the work of token.Background for the test to do.
type later struct{ work *[]func(context.Context) }

func (l later) Start(work func(context.Context)) { *l.work = append(*l.work, work) }

func TestTidyPath(t *testing.T) {
	var work []func(context.Context)
	d := newDesk(t, func(o *token.Options) {
		o.Background = later{&work}
	})
	tidy := func(want string) {
		t.Helper()
		r := d.Must(engines.Update, "tidy", nil)
		if r.Status != 202 || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], want) {
			t.Errorf("tidy = %+v, want %q", r, want)
		}
	}
	status := func(want string) map[string]any {
		t.Helper()
		data := d.Data(d.Must(engines.Read, "tidy", nil))
		if data["state"] != want {
			t.Errorf("status %v, want %s", data, want)
		}
		return data
	}
	status("never")
	tidy("has begun")
	tidy("already running")
	status("running")
	if len(work) != 1 {
		t.Fatalf("%d runs", len(work))
	}
	work[0](t.Context())
	if data := status("finished"); fmt.Sprint(data["tokens"]) != "1" || data["finished_at"] == nil {
		t.Errorf("status = %v", data)
	}
	d.in("a")
	status("never") // what root's run saw is not for others
	tidy("has begun")
	status("running")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	work[1](ended)
	status("failed")
	d.in("root")
	tidy("has begun")
}

func TestSudoPaths(t *testing.T) {
	d := newDesk(t)
	want := []string{"accessors", "create-orphan", "revoke-orphan", "tidy", "tidy"}
	var got []string
	for _, r := range d.Engine.Router().Routes() {
		if r.Flags.Has(engines.Sudo) {
			got = append(got, r.Pattern)
		}
		if r.Flags.Has(engines.ClusterLocal) == strings.HasPrefix(r.Pattern, "roles") || r.Flags.Has(engines.Unauthenticated) {
			t.Errorf("%s has the flags %b", r.Pattern, r.Flags)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sudo paths %v, want %v", got, want)
	}
}

func TestHostile(t *testing.T) { enginetest.Hostile(t, newDesk(t).Mount) }
