package cloud

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
)

// SPEC 4.D: "defaults exist and configuring the lease is optional".
func TestLeaseDefaultsAreThoseOfTheMount(t *testing.T) {
	m := enginetest.New(t, New(Options{}), enginetest.Options{Type: "aws", DefaultLeaseTTL: 90 * time.Minute, MaxLeaseTTL: 48 * time.Hour})
	data := m.Data(m.Must(engines.Read, "config/lease", nil))
	if data["lease"] != "1h30m0s" || data["lease_max"] != "48h0m0s" || len(data) != 2 {
		t.Errorf("config/lease = %v, want 1h30m0s and 48h0m0s", data)
	}
}

func TestLeaseIsReadBack(t *testing.T) {
	m := testMount(t)
	if resp := m.Must(engines.Update, "config/lease", `{"lease":" 30m","lease_max":"12h"}`); resp != nil {
		t.Errorf("write answers %+v, want nothing", resp)
	}
	data := m.Data(m.Must(engines.Read, "config/lease", nil))
	if data["lease"] != "30m0s" || data["lease_max"] != "12h0m0s" {
		t.Errorf("config/lease = %v", data)
	}
	l, err := getLease(t.Context(), m.Mount.Storage, m.Mount)
	if err != nil || l.Lease != 30*time.Minute || l.Max != 12*time.Hour {
		t.Errorf("getLease = %+v, %v", l, err)
	}
	m.Must(engines.Update, "config/lease", `{"lease":"1h","lease_max":"1h"}`)
	if data := m.Data(m.Must(engines.Read, "config/lease", nil)); data["lease"] != "1h0m0s" {
		t.Errorf("config/lease = %v after the second write", data)
	}
}

func TestLeaseBeyondTheMountsMaximumIsWarnedOf(t *testing.T) {
	m := testMount(t)
	resp := m.Must(engines.Update, "config/lease", `{"lease":"1h","lease_max":"25h"}`)
	if resp == nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "24h0m0s") {
		t.Errorf("write answers %+v, want a warning that names the maximum", resp)
	}
}

// SPEC 4.D: "lease (string, required), lease_max (string, required); duration strings with time suffix, h the largest suffix".
func TestLeaseRules(t *testing.T) {
	tests := []struct {
		name, body string
		want       []string
	}{
		{"lease required", `{"lease_max":"1h"}`, []string{`"lease": is required`}},
		{"lease_max required", `{"lease":"1h"}`, []string{`"lease_max": is required`}},
		{"both required", ``, []string{`"lease": is required`, `"lease_max": is required`}},
		{"time suffix", `{"lease":"3600","lease_max":7200}`, []string{`"lease": must have a unit, such as`, `"lease_max": must have a unit`}},
		{"h the largest suffix", `{"lease":"1d","lease_max":"1w"}`, []string{`"lease": must be a duration such as "30m" or "12h": h is the largest unit, a day is "24h"`, `"lease_max": must be a duration`}},
		{"d after h", `{"lease":"1h","lease_max":"1d12h"}`, []string{`"lease_max": must be a duration`}},
		{"a word", `{"lease":"soon","lease_max":"1h"}`, []string{`"lease": must be a duration`}},
		{"negative", `{"lease":"-1h","lease_max":"1h"}`, []string{`"lease": must be at least a second`}},
		{"zero", `{"lease":"0s","lease_max":"0h"}`, []string{`"lease": must be at least a second`, `"lease_max": must be at least`}},
		{"less than a second", `{"lease":"999ms","lease_max":"1h"}`, []string{`"lease": must be at least a second`}},
		{"overflow", `{"lease":"1h","lease_max":"99999999h"}`, []string{`"lease_max": must be a duration`}},
		{"lease beyond lease_max", `{"lease":"61m","lease_max":"1h"}`, []string{`"lease": must not be longer than lease_max`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := testMount(t).Fails(engines.KindInvalid, engines.Update, "config/lease", tt.body)
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q, want %q in it", text, want)
				}
			}
		})
	}
}

func TestRootAndLeaseTakeHostileRequests(t *testing.T) {
	m := testMount(t)
	m.Must(engines.Update, "config/root", `{"access_key":"AKIATESTTESTTESTTEST","secret_key":"not-to-be-seen/not+to+be+seen/not-to-be+"}`)
	m.Must(engines.Update, "config/lease", `{"lease":"1h","lease_max":"2h"}`)
	enginetest.Hostile(t, m)
	enginetest.Documented(t, m)
}
