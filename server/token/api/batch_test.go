package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
)

func TestBatchPaths(t *testing.T) {
	d := newDesk(t)
	r := d.Must(engines.Update, "create", `{"type": "batch", "policies": "app", "ttl": "30m", "meta": {"k": "v"}}`)
	a := r.Auth
	if !strings.HasPrefix(a.ClientToken, "hvb.") || a.Accessor != "" || a.TokenType != "batch" || a.Renewable || a.LeaseDuration != 1800 || a.Orphan {
		t.Errorf("auth = %+v", a)
	}
	data := d.lookup(a.ClientToken)
	for key, want := range map[string]string{
		"id": a.ClientToken, "accessor": "", "type": "batch", "renewable": "false", "policies": "[app default]", "creation_ttl": "1800", "orphan": "false", "num_uses": "0",
	} {
		if got := fmt.Sprint(data[key]); got != want {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
	tok := map[string]any{"token": a.ClientToken}
	for _, path := range []string{"revoke", "revoke-orphan", "renew"} {
		if got := d.Fails(engines.KindInvalid, engines.Update, path, tok); !strings.Contains(got, "batch tokens cannot be") {
			t.Errorf("%s: %q", path, got)
		}
	}
	entry, err := d.tokens.Lookup(t.Context(), a.ClientToken)
	if err != nil {
		t.Fatal(err)
	}
	d.as(token.Created{Token: engines.Sensitive(a.ClientToken), Entry: entry})
	if got := d.Data(d.Must(engines.Read, "lookup-self", nil)); got["id"] != a.ClientToken || got["type"] != "batch" {
		t.Errorf("lookup-self = %v", got)
	}
	for path, want := range map[string]string{
		"create": "batch tokens cannot create tokens", "create-orphan": "batch tokens cannot create tokens",
		"renew-self": "batch tokens cannot be renewed", "revoke-self": "batch tokens cannot be revoked",
	} {
		if got := d.Fails(engines.KindInvalid, engines.Update, path, nil); !strings.Contains(got, want) {
			t.Errorf("%s: %q", path, got)
		}
	}
	d.as(d.root)
	for _, body := range []string{`{"num_uses": 1}`, `{"period": "1h"}`, `{"id": "mine"}`} {
		d.Fails(engines.KindInvalid, engines.Update, "create", strings.Replace(body, "{", `{"type": "batch", "policies": "app", `, 1))
	}
}
