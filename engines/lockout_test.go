package engines_test

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// TestLockoutPrecedence: mount, type, all types, default; and a switch above everything.
func TestLockoutPrecedence(t *testing.T) {
	yes, no := true, false
	lockout := func(threshold int, duration, reset time.Duration, disabled bool) engines.Lockout {
		return engines.Lockout{Threshold: threshold, Duration: duration, CounterReset: reset, Disabled: disabled}
	}
	server := engines.LockoutDefaults{ByType: map[string]engines.LockoutSettings{
		"all":      {Threshold: 9, Duration: time.Minute, CounterReset: time.Hour, Disabled: &yes},
		"userpass": {Threshold: 8, Duration: 2 * time.Minute, Disabled: &no},
	}}
	own := engines.LockoutSettings{Threshold: 7, Disabled: &yes}
	for name, tt := range map[string]struct{ got, want engines.Lockout }{
		"default": {engines.LockoutDefaults{}.For("userpass", engines.LockoutSettings{}), lockout(5, 15*time.Minute, 15*time.Minute, false)},
		"all":     {server.For("other", engines.LockoutSettings{}), lockout(9, time.Minute, time.Hour, true)},
		"type":    {server.For("userpass", engines.LockoutSettings{}), lockout(8, 2*time.Minute, time.Hour, false)},
		"mount":   {server.For("userpass", own), lockout(7, 2*time.Minute, time.Hour, true)},
		"switch":  {engines.LockoutDefaults{ByType: server.ByType, Disabled: &no}.For("userpass", own), lockout(7, 2*time.Minute, time.Hour, false)},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, tt.got, tt.want)
		}
	}
}
