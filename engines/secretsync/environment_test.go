package secretsync_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// TestCredentialsOfTheEnvironment: the operator says whose destinations may use them.
func TestCredentialsOfTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		says, ns string
		rejected bool
	}{
		{"", "n1", false}, {connection.EnvironmentAll, "n1", false}, {connection.EnvironmentRoot, "root", false},
		{connection.EnvironmentRoot, "n1", true}, {connection.EnvironmentNone, "root", true}, {connection.EnvironmentNone, "n1", true}, {"typo", "root", true},
	} {
		r := newRig(t, connection.Operator{EnvironmentCredentials: c.says})
		r.Mount.Mount.NamespaceID = c.ns
		const path = "sync/destinations/test-marked/"
		body := map[string]any{"site": "one"}
		if c.rejected {
			text := r.Fails(engines.KindInvalid, engines.Update, path+"without", body)
			if !strings.Contains(text, "environment_credentials") {
				t.Errorf("%q in %s: %s", c.says, c.ns, text)
			}
		} else {
			r.Must(engines.Update, path+"without", body)
		}
		body["token"] = "mine"
		r.Must(engines.Update, path+"with", body)
		if c.rejected { // nor are they taken away afterwards
			r.Fails(engines.KindInvalid, engines.Patch, path+"with", map[string]any{"token": nil})
		}
	}
}

// TestIdentityTokens: the subject of a destination's token is its own, whatever the caller of the API says.
func TestIdentityTokens(t *testing.T) {
	w := syncsim.NewWorld()
	pool := connection.NewPool(connection.Options{
		Types: map[string]destination.Type{"probe": {
			Name: "probe", New: func() destination.Config { return &syncsim.Config{} },
			Open: func(_ destination.Config, env destination.Env) (destination.Destination, error) {
				token, err := env.Identity(t.Context(), "their.audience", 0)
				if want := "plugin-identity:ns1:sync:probe/prod for their.audience"; err != nil || token != want {
					t.Errorf("token %q, %v, want %q", token, err, want)
				}
				return nil, errors.New("that is all")
			},
		}},
		Tokens: w.Node(),
	})
	if _, err := pool.Open(&state.Destination{NS: "ns1", Type: "probe", Name: "prod"}); err == nil || err.Error() != "that is all" {
		t.Error(err)
	}
}
