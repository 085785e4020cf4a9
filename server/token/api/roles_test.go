package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/token"
)

func (d *desk) role(name, body string) {
	d.t.Helper()
	d.Must(engines.Update, "roles/"+name, body)
}

func TestRolePaths(t *testing.T) {
	d := newDesk(t)
	if got := d.Fails(engines.KindNotFound, engines.List, "roles/", nil); got != "" {
		t.Errorf("an empty list: %q", got)
	}
	d.Fails(engines.KindNotFound, engines.Read, "roles/ci", nil)
	if d.Mount.Exists("roles/ci") {
		t.Error("the role exists before it is written")
	}
	if r := d.Must(engines.Update, "roles/ci", `{"allowed_policies": "B, a,A", "token_period": "1h", "allowed_entity_aliases": ["Web-*"]}`); r != nil {
		t.Errorf("write = %+v", r)
	}
	if !d.Mount.Exists("roles/ci") {
		t.Error("the role does not exist after it was written")
	}
	check := func(want map[string]string) {
		t.Helper()
		data := d.Data(d.Must(engines.Read, "roles/ci", nil))
		for key, v := range want {
			if got, err := json.Marshal(data[key]); err != nil || string(got) != v {
				t.Errorf("%s = %s, want %s", key, got, v)
			}
		}
	}
	check(map[string]string{
		"name": `"ci"`, "allowed_policies": `["a","b"]`, "allowed_policies_glob": `[]`, "disallowed_policies": `[]`, "disallowed_policies_glob": `[]`,
		"allowed_entity_aliases": `["web-*"]`, "orphan": `false`, "renewable": `true`, "path_suffix": `""`, "token_bound_cidrs": `[]`,
		"token_period": `3600`, "period": `3600`, "token_explicit_max_ttl": `0`, "explicit_max_ttl": `0`, "token_num_uses": `0`,
		"token_no_default_policy": `false`, "token_type": `"default-service"`,
	})
	// What is not given stays; old names are as good as new ones.
	d.role("ci", `{"orphan": true, "bound_cidrs": "10.1.2.3/8, ::1", "explicit_max_ttl": 60, "token_type": "default", "disallowed_policies": ["X", "root"]}`)
	check(map[string]string{
		"allowed_policies": `["a","b"]`, "orphan": `true`, "token_bound_cidrs": `["10.0.0.0/8","::1"]`, "bound_cidrs": `["10.0.0.0/8","::1"]`,
		"token_explicit_max_ttl": `60`, "token_period": `3600`, "token_type": `"default-service"`, "disallowed_policies": `["root","x"]`,
	})
	r := d.Must(engines.Update, "roles/ci", `{"token_period": 120, "period": 60, "renewable": false, "allowed_policies": [], "token_bound_cidrs": []}`)
	if len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "old field period is ignored") {
		t.Errorf("warnings = %q", r.Warnings)
	}
	check(map[string]string{"token_period": `120`, "renewable": `false`, "allowed_policies": `[]`, "token_bound_cidrs": `[]`, "orphan": `true`})
	d.role("other", `{}`)
	if keys := fmt.Sprint(d.Data(d.Must(engines.List, "roles/", nil))["keys"]); keys != "[ci other]" {
		t.Errorf("keys = %s", keys)
	}
	for range 2 { // deleting what is gone is fine
		if r := d.Must(engines.Delete, "roles/ci", nil); r != nil {
			t.Errorf("delete = %+v", r)
		}
	}
	d.Fails(engines.KindNotFound, engines.Read, "roles/ci", nil)
	d.Fails(engines.KindInvalid, engines.Update, "create/ci", nil)
}

func TestRoleRefuses(t *testing.T) {
	d := newDesk(t)
	d.role("ok", `{}`)
	for body, want := range map[string]string{
		`{"token_bound_cidrs": "10.0.0.0/99"}`:      "token_bound_cidrs",
		`{"path_suffix": "a/b"}`:                    "path_suffix",
		`{"token_num_uses": -1}`:                    "token_num_uses",
		`{"token_type": "other"}`:                   "token_type",
		`{"allowed_policies": "response-wrapping"}`: "allowed_policies",
		`{"token_type": "batch"}`:                   "orphan=true",
		`{"token_type": "batch", "orphan": true}`:   "renewable=false",
		`{"token_type": "batch", "orphan": true, "renewable": false, "token_period": 1}`:                             "token_period=0",
		`{"token_type": "batch", "orphan": true, "renewable": false, "token_num_uses": 1}`:                           "token_num_uses=0",
		`{"token_type": "batch", "orphan": true, "renewable": false, "token_explicit_max_ttl": 1, "token_period":0}`: "token_explicit_max_ttl=0",
	} {
		if got := d.Fails(engines.KindInvalid, engines.Update, "roles/ok", body); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q in it", body, got, want)
		}
	}
	for _, name := range []string{"-x", "x.", "a b", "é", strings.Repeat("x", 257)} {
		d.Fails(engines.KindInvalid, engines.Update, "roles/"+name, `{}`)
		d.Fails(engines.KindNotFound, engines.Read, "roles/"+name, nil)
		d.Must(engines.Delete, "roles/"+name, nil)
	}
}

// Which policies a role lets a caller with the policies default and app give.
func TestRolePolicies(t *testing.T) {
	tests := []struct {
		name, role, body string
		want             string // policies, or "!" and the error
	}{
		{"no lists, nothing asked", `{}`, `{}`, "app default"},
		{"no lists, own policy", `{}`, `{"policies": "app"}`, "app default"},
		{"no lists, another policy", `{}`, `{"policies": "ops"}`, "!subset of parent"},
		{"no lists, without default", `{"token_no_default_policy": true}`, `{"policies": "app"}`, "app"},
		{"all that is allowed", `{"allowed_policies": "ops,dev"}`, `{}`, "default dev ops"},
		{"one of those allowed", `{"allowed_policies": "ops,dev"}`, `{"policies": "OPS"}`, "default ops"},
		{"default need not be allowed", `{"allowed_policies": "ops,dev"}`, `{"policies": "ops,default"}`, "default ops"},
		{"not even the own policy", `{"allowed_policies": "ops,dev"}`, `{"policies": "app"}`, "!not among the role's allowed policies"},
		{"none is not all", `{"allowed_policies": "ops,dev"}`, `{"policies": []}`, "default"},
		{"without default", `{"allowed_policies": "ops,dev"}`, `{"no_default_policy": true}`, "dev ops"},
		{"without default by the role", `{"allowed_policies": "ops", "token_no_default_policy": true}`, `{}`, "ops"},
		{"glob", `{"allowed_policies_glob": "team-*"}`, `{"policies": "team-a,team-"}`, "default team- team-a"},
		{"glob does not fit", `{"allowed_policies_glob": "team-*"}`, `{"policies": "ateam-a"}`, "!not among the role's allowed policies"},
		{"glob gives nothing by itself", `{"allowed_policies_glob": "*"}`, `{}`, "default"},
		{"disallowed", `{"allowed_policies_glob": "*", "disallowed_policies": "ops"}`, `{"policies": "ops"}`, "!is disallowed by this role"},
		{"disallowed glob", `{"allowed_policies": "ops", "disallowed_policies_glob": "o*"}`, `{}`, "!is disallowed by this role"},
		{"all but the disallowed", `{"disallowed_policies": "dev"}`, `{"policies": "ops"}`, "default ops"},
		{"the parent's, but the disallowed", `{"disallowed_policies": "dev"}`, `{}`, "app default"},
		{"the parent's are disallowed", `{"disallowed_policies": "app"}`, `{}`, "!is disallowed by this role"},
		{"default is disallowed", `{"allowed_policies": "ops", "disallowed_policies": "default"}`, `{}`, "ops"},
		{"default is asked for and disallowed", `{"allowed_policies": "ops", "disallowed_policies": "default"}`, `{"policies": "default"}`, "!is disallowed by this role"},
		{"never root", `{"allowed_policies": "root"}`, `{}`, "!without parent token being root"},
		{"never root by glob", `{"allowed_policies_glob": "*"}`, `{"policies": "root"}`, "!without parent token being root"},
		{"never root by leaving it out", `{"disallowed_policies": "dev"}`, `{"policies": "ROOT"}`, "!without parent token being root"},
		{"never wrapping", `{"allowed_policies_glob": "*"}`, `{"policies": "response-wrapping"}`, "!cannot assign policy"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t)
			d.role("r", tt.role)
			d.as(d.issue(token.Params{Policies: []string{"default", "app"}}))
			if text, refused := strings.CutPrefix(tt.want, "!"); refused {
				if got := d.Fails(engines.KindInvalid, engines.Update, "create/r", tt.body); !strings.Contains(got, text) {
					t.Errorf("error %q, want %q", got, text)
				}
				return
			}
			if got := strings.Join(d.Must(engines.Update, "create/r", tt.body).Auth.Policies, " "); got != tt.want {
				t.Errorf("policies %q, want %q", got, tt.want)
			}
		})
	}
}

// What a role makes of what is asked for. Callers have sudo.
func TestRoleTerms(t *testing.T) {
	tests := []struct {
		name, role, body string
		want             map[string]string // of the lookup
		warning          string
	}{
		{"plain", `{}`, `{"ttl": 60}`, map[string]string{"path": "auth/token/create/r", "role": "r", "orphan": "false", "renewable": "true", "ttl": "60", "entity_id": "e1"}, ""},
		{"orphan", `{"orphan": true}`, `{}`, map[string]string{"orphan": "true", "entity_id": ""}, ""},
		{"the role decides on orphans", `{}`, `{"no_parent": true}`, map[string]string{"orphan": "false"}, "no_parent is ignored"},
		{"suffix", `{"path_suffix": "v2"}`, `{}`, map[string]string{"path": "auth/token/create/r/v2"}, ""},
		{"not renewable", `{"renewable": false}`, `{}`, map[string]string{"renewable": "false"}, ""},
		{"not renewable as asked", `{}`, `{"renewable": false}`, map[string]string{"renewable": "false"}, ""},
		{"period", `{"token_period": 90}`, `{"ttl": 60}`, map[string]string{"ttl": "90", "period": "90"}, ""},
		{"shorter period", `{"token_period": 90}`, `{"period": 60}`, map[string]string{"ttl": "60", "period": "60"}, ""},
		{"longer period", `{"token_period": 90}`, `{"period": 120}`, map[string]string{"ttl": "90", "period": "90"}, ""},
		{"maximum", `{"token_explicit_max_ttl": 90}`, `{"ttl": 120}`, map[string]string{"ttl": "90", "explicit_max_ttl": "90"}, "TTL of"},
		{"smaller maximum", `{"token_explicit_max_ttl": 90}`, `{"explicit_max_ttl": 60}`, map[string]string{"ttl": "60", "explicit_max_ttl": "60"}, "TTL of"},
		{"greater maximum", `{"token_explicit_max_ttl": 90}`, `{"ttl": 10, "explicit_max_ttl": 120}`, map[string]string{"explicit_max_ttl": "90"}, "that of the role"},
		{"uses", `{"token_num_uses": 3}`, `{}`, map[string]string{"num_uses": "3"}, ""},
		{"fewer uses", `{"token_num_uses": 3}`, `{"num_uses": 2}`, map[string]string{"num_uses": "2"}, ""},
		{"more uses", `{"token_num_uses": 3}`, `{"num_uses": 4}`, map[string]string{"num_uses": "3"}, ""},
		{"batch as asked", `{}`, `{"type": "batch"}`, map[string]string{"type": "batch", "renewable": "false"}, ""},
		{"batch by default", `{"token_type": "default-batch"}`, `{}`, map[string]string{"type": "batch"}, ""},
		{"service as asked", `{"token_type": "default-batch"}`, `{"type": "service"}`, map[string]string{"type": "service"}, ""},
		{"batch by force", `{"token_type": "batch", "orphan": true, "renewable": false}`, `{"type": "service"}`, map[string]string{"type": "batch", "orphan": "true"}, "the role decides"},
		{"service by force", `{"token_type": "service"}`, `{"type": "batch"}`, map[string]string{"type": "service"}, "the role decides"},
		{"networks", `{"token_bound_cidrs": "10.1.0.0/16"}`, `{}`, map[string]string{"bound_cidrs": "[10.1.0.0/16]"}, ""},
		{"wider networks", `{"token_bound_cidrs": "0.0.0.0/0"}`, `{}`, map[string]string{"bound_cidrs": "[10.0.0.0/8]"}, ""},
		{"networks of an orphan", `{"token_bound_cidrs": "11.0.0.0/8", "orphan": true}`, `{}`, map[string]string{"bound_cidrs": "[11.0.0.0/8]"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newDesk(t)
			d.role("r", tt.role)
			d.as(d.issue(token.Params{Policies: []string{"admin"}, EntityID: "e1", BoundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}))
			r := d.Must(engines.Update, "create/r", tt.body)
			if got := strings.Join(r.Warnings, "; "); !strings.Contains(got, tt.warning) || tt.warning == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, tt.warning)
			}
			data := d.lookup(r.Auth.ClientToken)
			for key, want := range tt.want {
				if got := fmt.Sprint(data[key]); got != want {
					t.Errorf("%s = %s, want %s", key, got, want)
				}
			}
		})
	}
	d := newDesk(t)
	d.role("r", `{"token_bound_cidrs": "11.0.0.0/8"}`)
	d.as(d.issue(token.Params{Policies: []string{"app"}, BoundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}))
	if got := d.Fails(engines.KindInvalid, engines.Update, "create/r", nil); !strings.Contains(got, "no address in common") {
		t.Errorf("error %q", got)
	}
	if got := d.Fails(engines.KindInvalid, engines.Update, "create/r", `{"period": 60}`); !strings.Contains(got, "periodic") {
		t.Errorf("a period without sudo: %q", got)
	}
}

// aliases are token.Logins with an entity for every name. They did not make any token.
type aliases struct{ asked *[]string }

func (a aliases) EntityByAlias(_ context.Context, ns, accessor, name string) (string, error) {
	*a.asked = append(*a.asked, ns+" "+accessor+" "+name)
	return "entity of " + name, nil
}

func (aliases) RenewTerms(context.Context, *token.Entry) (token.Terms, error) {
	return token.Terms{}, errors.New("an auth mount was asked about a token that it did not make")
}

// Renewal follows the role as it is now.
func TestRoleRenewal(t *testing.T) {
	synctest.Test(t, testRoleRenewal)
}

func testRoleRenewal(t *testing.T) {
	d := newDesk(t, func(o *token.Options) {
		o.Logins = aliases{}
	})
	d.role("r", `{"allowed_policies": "app", "token_period": "1h"}`)
	a := d.Must(engines.Update, "create/r", `{}`).Auth
	b := d.Must(engines.Update, "create/r", `{"period": "10m"}`).Auth
	time.Sleep(5 * time.Minute)
	renew := func(a *engines.Auth) int64 {
		t.Helper()
		return d.Must(engines.Update, "renew", map[string]any{"token": a.ClientToken}).Auth.LeaseDuration
	}
	if x, y := renew(a), renew(b); x != 3600 || y != 600 {
		t.Errorf("renewed for %d and %d seconds", x, y)
	}
	d.role("r", `{"token_period": "2h"}`)
	if x, y := renew(a), renew(b); x != 7200 || y != 600 {
		t.Errorf("with a longer period renewed for %d and %d seconds", x, y)
	}
	d.role("r", `{"token_period": 0}`) // from now on the mount's maximum of a day counts
	time.Sleep(30 * time.Minute)
	d.role("r", `{"renewable": false}`)
	if got := d.Fails(engines.KindInvalid, engines.Update, "renew", map[string]any{"token": a.ClientToken}); !strings.Contains(got, "no longer lets") {
		t.Errorf("error %q", got)
	}
	d.role("r", `{"renewable": true}`)
	if x := renew(a); x != 3600 { // what it had when it was created
		t.Errorf("without a period renewed for %d seconds", x)
	}
	r := d.Must(engines.Update, "renew", map[string]any{"token": a.ClientToken, "increment": "48h"})
	if want := int64((24*time.Hour - 35*time.Minute) / time.Second); r.Auth.LeaseDuration != want {
		t.Errorf("renewed for %d seconds, want %d up to the mount's maximum", r.Auth.LeaseDuration, want)
	}
	d.Must(engines.Delete, "roles/r", nil)
	if got := d.Fails(engines.KindInvalid, engines.Update, "renew", map[string]any{"token": a.ClientToken}); !strings.Contains(got, "no longer exists") {
		t.Errorf("error %q", got)
	}
}

func TestEntityAlias(t *testing.T) {
	var asked []string
	d := newDesk(t, func(o *token.Options) {
		o.Logins = aliases{&asked}
	})
	d.role("r", `{"allowed_entity_aliases": ["web-*", "BOB"], "orphan": true}`)
	for _, alias := range []string{"Web-1", "bob"} {
		a := d.Must(engines.Update, "create/r", map[string]any{"entity_alias": alias}).Auth
		if a.EntityID != "entity of "+alias {
			t.Errorf("entity %q", a.EntityID)
		}
	}
	if want := []string{"root token_0a1b2c3d Web-1", "root token_0a1b2c3d bob"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	for _, alias := range []string{"bobby", "xweb-1", "web"} {
		d.Fails(engines.KindInvalid, engines.Update, "create/r", map[string]any{"entity_alias": alias})
	}
	none := newDesk(t)
	none.role("r", `{"allowed_entity_aliases": "*"}`)
	if got := none.Fails(engines.KindInvalid, engines.Update, "create/r", `{"entity_alias": "bob"}`); !strings.Contains(got, "there are no entities here") {
		t.Errorf("error %q", got)
	}
}

func TestRolesOfNamespaces(t *testing.T) {
	d := newDesk(t)
	d.role("r", `{}`)
	d.in("a")
	d.Fails(engines.KindNotFound, engines.Read, "roles/r", nil)
	d.Fails(engines.KindInvalid, engines.Update, "create/r", nil)
	d.role("r", `{"orphan": true}`)
	if !d.Mount.Exists("roles/r") {
		t.Error("the role is not there")
	}
	d.Must(engines.Delete, "roles/r", nil)
	d.Fails(engines.KindNotFound, engines.Read, "roles/r", nil)
	d.in("root")
	if data := d.Data(d.Must(engines.Read, "roles/r", nil)); data["orphan"] != false {
		t.Errorf("root's role = %v", data)
	}
	// Configuration is shared data.
	d.in("a-b")
	d.role("s", `{}`)
	found := false
	for k := range d.Snapshot() {
		found = found || strings.HasSuffix(string(k), "/s/sys/a-b/token-roles/s") // below the view of the test
	}
	if !found {
		t.Errorf("the role is not stored where it should be: %v", d.Snapshot())
	}
}

func TestDocumented(t *testing.T) { enginetest.Documented(t, newDesk(t).Mount) }
