package system

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
)

// What clients ask for to decide what they show.
func TestGates(t *testing.T) {
	r := New(Options{Version: Version{API: "1.2.3", Product: "4.5.6"}}).Router()
	list := func(data map[string]any, path ...string) string {
		var v any = data
		for _, p := range path {
			v = v.(map[string]any)[p]
		}
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for _, tt := range []struct {
		op         engines.Operation
		path, want string
		at         []string
	}{
		{engines.Read, "activation-flags", `["secrets-sync"]`, []string{"activated"}},
		{engines.Read, "activation-flags", `[]`, []string{"unactivated"}},
		{engines.Update, "activation-flags/secrets-sync/activate", `["secrets-sync"]`, []string{"activated"}},
		{engines.Read, "internal/ui/feature-flags", `[]`, []string{"feature_flags"}},
		{engines.List, "internal/ui/unauthenticated-messages", `[]`, []string{"keys"}},
		{engines.Read, "internal/ui/authenticated-messages", `[]`, []string{"keys"}},
		{engines.Read, "internal/ui/default-auth-methods", `[]`, []string{"backup_auth_types"}},
		{engines.Read, "internal/ui/version", `"1.2.3"`, []string{"version"}},
		{engines.Read, "license/status", `"none"`, []string{"autoloaded", "license_id"}},
	} {
		if got := list(systemtest.Must(t, r, tt.op, tt.path, ""), tt.at...); got != tt.want {
			t.Errorf("%s %s: %v = %s, want %s", tt.op, tt.path, tt.at, got, tt.want)
		}
	}
	features := list(systemtest.Must(t, r, engines.Read, "license/features", ""), "features")
	for _, want := range []string{"Namespaces", "Performance Replication", "Secrets Sync"} {
		if !strings.Contains(features, `"`+want+`"`) {
			t.Errorf("%s is not among the features %s", want, features)
		}
	}
	systemtest.Refused(t, r, engines.KindInvalid, engines.Update, "activation-flags/none/activate", "")
	for _, path := range []string{"activation-flags", "license/features", "internal/ui/feature-flags", "internal/ui/unauthenticated-messages", "internal/ui/default-auth-methods"} {
		if route, _, err := r.Match(engines.Read, path); err != nil || !route.Flags.Has(engines.Unauthenticated) {
			t.Errorf("%s needs a token", path)
		}
	}
}
