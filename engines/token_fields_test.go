package engines_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
)

type tokenRole struct {
	Name string `json:"name"`
	engines.TokenFields
}

// decodeRole returns what the handler of a route gets of a body.
func decodeRole(t *testing.T, body string) (got *tokenRole, err error) {
	t.Helper()
	r := engines.NewRouter()
	engines.On(r, engines.Update, "roles/{name}", "", 0, func(_ context.Context, _ *engines.Request, in *tokenRole) (*engines.Response, error) {
		got = in
		return nil, nil
	})
	_, err = r.Handle(t.Context(), &engines.Request{Op: engines.Update, Path: "roles/x", Body: json.RawMessage(body)})
	return got, err
}

func TestTokenFields(t *testing.T) {
	got, err := decodeRole(t, `{"token_ttl":"1h","token_max_ttl":7200,"token_policies":"B, a,b",
		"token_bound_cidrs":["10.1.2.3/8","::1"],"token_num_uses":"3","token_type":"service"}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"token_ttl": int64(3600), "token_max_ttl": int64(7200), "token_explicit_max_ttl": int64(0), "token_period": int64(0),
		"token_policies": engines.StringList{"a", "b"}, "token_bound_cidrs": engines.StringList{"10.0.0.0/8", "::1"}, "alias_metadata": engines.StringMap{},
		"token_no_default_policy": false, "token_num_uses": 3, "token_type": "service",
	}
	if data := got.Data(); !reflect.DeepEqual(data, want) {
		t.Errorf("Data() = %v, want %v", data, want)
	}
	for addr, allowed := range map[string]bool{"10.200.0.1": true, "::ffff:10.200.0.1": true, "::1": true, "11.0.0.1": false, "::2": false} {
		if got.Allows(netip.MustParseAddr(addr)) != allowed {
			t.Errorf("Allows(%s) = %v, want %v", addr, !allowed, allowed)
		}
	}
	if free := (engines.TokenFields{}); !free.Allows(netip.Addr{}) {
		t.Error("without bound networks everybody may log in")
	}
	if data := (&engines.TokenFields{}).Data(); data["token_type"] != "default" || data["token_policies"] == nil {
		t.Errorf("Data() of an empty role: %v", data)
	}
}

func TestTokenFieldsProblems(t *testing.T) {
	got, err := decodeRole(t, `{"token_ttl":"3h","token_max_ttl":"2h","token_explicit_max_ttl":"1h",
		"token_policies":["Root"],"token_bound_cidrs":["nowhere"],"token_num_uses":-1,"token_type":"batch","token_period":60}`)
	if err != nil {
		t.Fatal(err)
	}
	err = got.Validate()
	if kindOf(err) != engines.KindInvalid {
		t.Fatalf("Validate: %v, want KindInvalid", err)
	}
	for _, want := range []string{`"token_policies"`, `"token_bound_cidrs"`, "token_max_ttl", "token_explicit_max_ttl",
		`"token_num_uses": must not be negative`, `"token_period": must not be set for batch tokens`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want %q in it", err, want)
		}
	}
	if strings.Contains(err.Error(), "nowhere") {
		t.Errorf("Validate repeats a value: %v", err)
	}
}

func TestTokenFieldsKeep(t *testing.T) {
	old := engines.TokenFields{TokenTTL: 5, TokenNumUses: 7, TokenPolicies: engines.StringList{"a"}, TokenNoDefaultPolicy: true}
	r := engines.NewRouter()
	var got engines.TokenFields
	engines.On(r, engines.Update, "roles/{name}", "", 0, func(_ context.Context, req *engines.Request, in *tokenRole) (*engines.Response, error) {
		in.Keep(req, old)
		got = in.TokenFields
		return nil, nil
	})
	_, err := r.Handle(t.Context(), &engines.Request{Op: engines.Update, Path: "roles/x",
		Body: json.RawMessage(`{"token_num_uses":0,"token_policies":[]}`)})
	want := engines.TokenFields{TokenTTL: 5, TokenPolicies: engines.StringList{}, TokenNoDefaultPolicy: true}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Keep: %+v, %v, want %+v", got, err, want)
	}
}
