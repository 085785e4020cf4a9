package secretsync_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
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
