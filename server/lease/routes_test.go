package lease_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/lease/api"
)

// routed is the lease paths as an engine.
type routed struct{ router *engines.Router }

func (e routed) Router() *engines.Router { return e.router }

func (r *rig) router() *engines.Router {
	router := engines.NewRouter()
	api.Routes(router, r.m, r.tokens)
	return router
}

// ask sends a request as the server does. body and query may be "".
func (r *rig) ask(ns string, op engines.Operation, path, query, body string) (*engines.Response, error) {
	r.t.Helper()
	values, err := url.ParseQuery(query)
	if err != nil {
		r.t.Fatal(err)
	}
	req := &engines.Request{Op: op, Path: path, Query: values, Mount: engines.Mount{NamespaceID: ns, Path: "sys/"}}
	if body != "" {
		req.Body = json.RawMessage(body)
	}
	return r.router().Handle(context.Background(), req)
}

func data(t *testing.T, response *engines.Response) map[string]any {
	t.Helper()
	text, err := json.Marshal(response.Data)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRoutesAreDocumented(t *testing.T) {
	r := newRig(t)
	router := r.router()
	m := enginetest.New(t, func(engines.Mount) (engines.Engine, error) { return routed{router}, nil }, enginetest.Options{Path: "sys/"})
	enginetest.Documented(t, m)
	sudo := map[string]bool{}
	for _, route := range router.Routes() {
		sudo[string(route.Op)+" "+route.Pattern] = route.Flags.Has(engines.Sudo)
	}
	for _, p := range []string{
		"list leases/lookup/{prefix...?}", "read leases", "update leases/tidy", "update leases/revoke-prefix/{prefix...}",
		"update leases/revoke-force/{prefix...}", "update revoke-prefix/{prefix...}", "update revoke-force/{prefix...}",
	} {
		if !sudo[p] {
			t.Errorf("%s does not need sudo", p)
		}
	}
}

// TestHostileRoutes sends what no client should send.
func TestHostileRoutes(t *testing.T) {
	r := newRig(t)
	router := r.router()
	enginetest.Hostile(t, enginetest.New(t, func(engines.Mount) (engines.Engine, error) { return routed{router}, nil }, enginetest.Options{Path: "sys/"}))
}

func TestLookupRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		info := r.issue("u1", "creds/a", time.Hour)
		pass(time.Minute)
		body := fmt.Sprintf(`{"lease_id":%q}`, info.ID)
		res, err := r.ask("", engines.Update, "leases/lookup", "", body)
		if err != nil {
			t.Fatal(err)
		}
		got := data(t, res)
		issued := time.Now().Add(-time.Minute).UTC()
		want := map[string]any{
			"id": info.ID, "issue_time": issued.Format(time.RFC3339Nano), "expire_time": issued.Add(time.Hour).Format(time.RFC3339Nano),
			"last_renewal": nil, "renewable": true, "ttl": 3540.0,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("lookup = %v, want %v", got, want)
		}
		res, err = r.ask("root", engines.Update, "leases/renew", "", fmt.Sprintf(`{"lease_id":%q,"increment":"2h"}`, info.ID))
		if err != nil || res.Held == nil || *res.Held != (engines.HeldLease{ID: info.ID, Seconds: 7200, Renewable: true}) || res.Lease != nil {
			t.Errorf("renew = %+v, %v", res, err)
		}
		if res, err = r.ask("", engines.Update, "leases/lookup", "", body); err != nil || data(t, res)["last_renewal"] != time.Now().UTC().Format(time.RFC3339Nano) {
			t.Errorf("after a renewal: %v, %v", res, err)
		}
		if res, err := r.ask("", engines.List, "leases/lookup/aws/creds/", "", ""); err != nil || fmt.Sprint(data(t, res)["keys"]) != "[a/]" {
			t.Errorf("list = %+v, %v", res, err)
		}
		if res, err := r.ask("", engines.List, "leases/lookup", "", ""); err != nil || fmt.Sprint(data(t, res)["keys"]) != "[aws/]" {
			t.Errorf("list = %+v, %v", res, err)
		}
	})
}

func TestRouteAnswers(t *testing.T) {
	tests := []struct {
		path, body string // ID stands for the lease's
		op         engines.Operation
		status     int          // 0: no content
		kind       engines.Kind // of the error
		text       string
		gone       bool
	}{
		{path: "leases/lookup", body: `{"lease_id":"aws/no"}`, kind: engines.KindInvalid, text: "invalid lease"},
		{path: "leases/lookup", body: `{}`, kind: engines.KindInvalid, text: `field "lease_id": must be given`},
		{path: "leases/renew", body: `{"lease_id":"aws/no"}`, kind: engines.KindInvalid, text: "lease not found"},
		{path: "leases/renew", body: `{}`, kind: engines.KindInvalid, text: `field "lease_id": must be given`},
		{path: "leases/renew/ID", status: 200},
		{path: "renew/ID", body: `{"increment":60}`, status: 200},
		{path: "renew", body: `{"lease_id":"ID"}`, status: 200},
		{path: "leases/revoke", body: `{"lease_id":"ID"}`, status: 202, gone: true},
		{path: "leases/revoke", body: `{"lease_id":"ID","sync":true}`, gone: true},
		{path: "leases/revoke/ID", status: 202, gone: true},
		{path: "revoke/ID", body: `{"sync":true}`, gone: true},
		{path: "leases/revoke", body: `{"lease_id":"aws/no"}`, status: 202},
		{path: "leases/revoke", body: `{}`, kind: engines.KindInvalid, text: `field "lease_id": must be given`},
		{path: "leases/revoke-prefix/aws", status: 202, gone: true},
		{path: "leases/revoke-prefix/aws/creds", body: `{"sync":true}`, gone: true},
		{path: "revoke-prefix/aws/creds/a/", status: 202, gone: true},
		{path: "leases/revoke-prefix/gcp", status: 202},
		{path: "leases/revoke-force/aws", gone: true},
		{path: "revoke-force/aws/creds/a", gone: true},
		{path: "leases/tidy", status: 202},
		{path: "leases/lookup/gcp", op: engines.List, kind: engines.KindNotFound},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			id := r.issue("u1", "creds/a", time.Hour).ID
			stop := r.run(r.m)
			defer stop()
			op := tt.op
			if op == "" {
				op = engines.Update
			}
			res, err := r.ask("root", op, replaceID(tt.path, id), "", replaceID(tt.body, id))
			var e *engines.Error
			if errors.As(err, &e); tt.kind != 0 && (e == nil || e.Kind != tt.kind || e.Detail != tt.text) || tt.kind == 0 && err != nil {
				t.Errorf("%s %s: error %v, want %q of kind %v", tt.path, tt.body, err, tt.text, tt.kind)
			}
			status := 0
			if res != nil {
				if status = res.Status; status == 0 {
					status = 200
				}
			}
			if status != tt.status {
				t.Errorf("%s %s: status %d, want %d", tt.path, tt.body, status, tt.status)
			}
			pass(time.Second)
			if _, err := r.m.Lookup(t.Context(), "", id); errors.Is(err, lease.ErrNotFound) != tt.gone {
				t.Errorf("%s %s: afterwards %v, want it gone: %v", tt.path, tt.body, err, tt.gone)
			}
		})
	}
}

func replaceID(s, id string) string {
	for i := 0; i+1 < len(s); i++ {
		if s[i:i+2] == "ID" {
			return s[:i] + id + s[i+2:]
		}
	}
	return s
}

// TestTokensBelowPrefixes hands prefixes of auth methods on.
func TestTokensBelowPrefixes(t *testing.T) {
	var asked []string
	failure := error(nil)
	r := newRig(t)
	r.tokens = func(_ context.Context, ns, prefix string) (int, error) {
		asked = append(asked, ns+":"+prefix)
		return 1, failure
	}
	for _, p := range []string{"aws/creds", "auth/userpass/login/bob", "auth", "authority/x"} {
		if _, err := r.ask("", engines.Update, "leases/revoke-prefix/"+p, "", ""); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.ask("nsx", engines.Update, "leases/revoke-force/auth/github/", "", ""); err != nil {
		t.Error(err)
	}
	if got, want := fmt.Sprint(asked), "[root:auth/userpass/login/bob root:auth nsx:auth/github/]"; got != want {
		t.Errorf("asked for %v, want %v", got, want)
	}
	failure = errBackend
	if _, err := r.ask("", engines.Update, "leases/revoke-prefix/auth/x", "", ""); !errors.Is(err, errBackend) {
		t.Errorf("error %v, want that of the tokens", err)
	}
}

func TestCountAndIrrevocableRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.add("ua", "aa", "aws/")
		r.engine("u1").FailRevoke(-1, errBackend)
		r.engine("ua").FailRevoke(-1, errBackend)
		for range 3 {
			r.issue("u1", "creds/a", time.Minute)
			r.issue("u1", "creds/b", 10*time.Hour)
			r.issue("ua", "creds/a", time.Minute)
		}
		stop := r.run(r.m)
		defer stop()
		pass(time.Hour)
		tests := []struct{ ns, path, query, want string }{
			{"root", "leases/count", "", "map[counts:map[leases_u1:6] lease_count:6]"},
			{"root", "leases/count", "include_child_namespaces=true", "map[counts:map[leases_u1:6 leases_ua:3] lease_count:9]"},
			{"root", "leases/count", "type=irrevocable", "map[counts:map[leases_u1:3] lease_count:3]"},
			{"", "leases/count", "type=irrevocable&include_child_namespaces=true", "map[counts:map[leases_u1:3 leases_ua:3] lease_count:6]"},
			{"aa", "leases/count", "", "map[counts:map[leases_ua:3] lease_count:3]"},
		}
		for _, tt := range tests {
			res, err := r.ask(tt.ns, engines.Read, tt.path, tt.query, "")
			if err != nil || fmt.Sprint(data(t, res)) != tt.want {
				t.Errorf("%s?%s in %s = %+v, %v; want %s", tt.path, tt.query, tt.ns, res, err, tt.want)
			}
		}
		for query, want := range map[string]int{"type=irrevocable": 3, "type=irrevocable&limit=2": 2, "limit=none": 3, "include_child_namespaces=true": 6} {
			res, err := r.ask("", engines.Read, "leases", query, "")
			if err != nil {
				t.Fatal(err)
			}
			leases := data(t, res)["leases"].([]any)
			first := leases[0].(map[string]any)
			if len(leases) != want || first["error"] != errBackend.Detail || first["mount_id"] == "" || (len(res.Warnings) > 0) != (want == 2) {
				t.Errorf("leases?%s = %v, warnings %q; want %d", query, leases, res.Warnings, want)
			}
		}
		for _, query := range []string{"limit=0", "limit=x", "type=living"} {
			if _, err := r.ask("", engines.Read, "leases", query, ""); err == nil {
				t.Errorf("leases?%s was accepted", query)
			}
		}
	})
}
