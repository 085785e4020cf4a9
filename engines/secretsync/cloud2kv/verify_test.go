package cloud2kv

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// verdicts returns what Verify found, as "read ok", "write unknown", "delete no".
func verdicts(checks []destination.Check) []string {
	var all []string
	for _, c := range checks {
		verdict := "no"
		switch {
		case c.OK:
			verdict = "ok"
		case c.Unknown:
			verdict = "unknown"
		}
		all = append(all, c.Name+" "+verdict)
	}
	return all
}

func TestVerifyFindsMissingPermissions(t *testing.T) {
	for permissions, want := range map[string][]string{
		"get list set delete recover": {"reachable ok", "credentials ok", "read ok", "write unknown", "delete ok", "clock ok"},
		"list set delete recover":     {"reachable ok", "credentials ok", "read no", "write unknown", "delete ok", "clock ok"},
		"get set delete recover":      {"reachable ok", "credentials ok", "read no", "write unknown", "delete ok", "clock ok"},
		"get list delete recover":     {"reachable ok", "credentials ok", "read ok", "write no", "delete ok", "clock ok"},
		"get list set delete":         {"reachable ok", "credentials ok", "read ok", "write no", "delete ok", "clock ok"},
		"get list set recover":        {"reachable ok", "credentials ok", "read ok", "write unknown", "delete no", "clock ok"},
		"":                            {"reachable ok", "credentials ok", "read no", "write no", "delete no", "clock ok"},
	} {
		p := newFaultyVault(t)
		p.Allow(strings.Fields(permissions)...)
		checks := p.Open(t).Verify(t.Context())
		if got := verdicts(checks); !slices.Equal(got, want) {
			t.Errorf("with %q: %v, want %v", permissions, got, want)
		}
		for _, c := range checks {
			if c.Text == "" || !c.OK && !c.Unknown && !strings.Contains(c.Text, "secrets/") {
				t.Errorf("with %q: %+v does not say what to do", permissions, c)
			}
		}
		if names := p.Names(); len(names) != 0 {
			t.Errorf("it leaves %v behind", names)
		}
	}
}

func TestVerifyOfCredentials(t *testing.T) {
	p := newFaultyVault(t)
	c := config()
	c.ClientSecret = "wrong"
	checks := opened(t, c, destination.Env{Client: p.Client()}).Verify(t.Context())
	if got := verdicts(checks); !slices.Equal(got, []string{"reachable ok", "credentials no"}) || !strings.Contains(checks[1].Text, "client_secret") {
		t.Errorf("%+v", checks)
	}
}

func TestVerifyOfVaultsOutOfReach(t *testing.T) {
	p := newFaultyVault(t)
	c := config()
	c.KeyVaultURI = "https://another-vault.vault.azure.net"
	checks := opened(t, c, destination.Env{Client: p.Client()}).Verify(t.Context())
	if got := verdicts(checks); !slices.Equal(got, []string{"reachable no"}) || !strings.Contains(checks[0].Text, "no such vault") {
		t.Errorf("%+v", checks)
	}
	p.Fail(desttest.Fault{Kind: desttest.Trouble})
	if got := verdicts(p.Open(t).Verify(t.Context())); !slices.Equal(got, []string{"reachable no"}) {
		t.Errorf("in trouble: %v", got)
	}
	// Clients without any trust.
	checks = opened(t, config(), destination.Env{Client: &http.Client{Transport: &http.Transport{DialContext: p.Client().Transport.(*http.Transport).DialContext}}}).Verify(t.Context())
	if got := verdicts(checks); !slices.Equal(got, []string{"reachable no"}) || !strings.Contains(checks[0].Text, "certificate") {
		t.Errorf("%+v", checks)
	}
}

func TestVerifyOfClocks(t *testing.T) {
	p := newFaultyVault(t)
	p.Advance(-time.Hour)
	checks := p.Open(t).Verify(t.Context())
	if last := checks[len(checks)-1]; last.Name != "clock" || last.OK || !strings.Contains(last.Text, "1h") && !strings.Contains(last.Text, "59m") {
		t.Errorf("%+v", last)
	}
}
