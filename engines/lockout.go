package engines

import (
	"cmp"
	"context"
	"time"
)

// Lockout says when wrong passwords lock a user of an auth method out. Zero values are the defaults.
type Lockout struct {
	Threshold    int           // wrong passwords for one name from one address; default 5
	Duration     time.Duration // of the lock; default 15m
	CounterReset time.Duration // without a wrong password, after which the earlier ones do not count; default 15m
	Disabled     bool
}

// OrDefault returns the settings with the defaults filled in.
func (l Lockout) OrDefault() Lockout {
	l.Threshold = cmp.Or(l.Threshold, 5)
	l.Duration = cmp.Or(l.Duration, 15*time.Minute)
	l.CounterReset = cmp.Or(l.CounterReset, 15*time.Minute)
	return l
}

// Locker is an auth method that locks users out. Both methods run on the active node.
type Locker interface {
	// LockedUsers returns the users that are locked now, by name.
	LockedUsers(ctx context.Context, m Mount) ([]LockedUser, error)
	// UnlockUser ends all locks of a user, and forgets the wrong passwords. There may be none.
	UnlockUser(ctx context.Context, m Mount, name string) error
}

// LockedUser is a user that cannot log in, from some addresses or from all.
type LockedUser struct {
	Name string
	// Sources are the addresses, or networks, that the user is locked at; Everywhere says that it is locked at all of them.
	Sources    []string
	Everywhere bool
	Until      time.Time // when the last of the locks ends
}

// LockoutTypes are the types of auth methods that are Lockers.
var LockoutTypes = []string{"userpass"}

// LockoutSettings are what one place says about lockouts: a mount, or a stanza of the server's configuration. Zero values
// leave it to the next place.
type LockoutSettings struct {
	Threshold    int           `json:"lockout_threshold,omitempty"`
	Duration     time.Duration `json:"lockout_duration,omitempty"`
	CounterReset time.Duration `json:"lockout_counter_reset,omitempty"`
	Disabled     *bool         `json:"lockout_disable,omitempty"`
}

// Limits of the settings. The threshold bounds how many wrong passwords are counted for a name at all addresses, too.
const (
	MaxLockoutThreshold = 1000
	MaxLockoutTime      = 365 * 24 * time.Hour
)

// Validate names the field that is out of bounds.
func (l LockoutSettings) Validate() error {
	switch {
	case l.Threshold < 0 || l.Threshold > MaxLockoutThreshold:
		return Invalid("field \"lockout_threshold\": must be from 1 to %d, or 0 for the default", MaxLockoutThreshold)
	case l.Duration < 0 || l.Duration > MaxLockoutTime || l.Duration%time.Second != 0:
		return Invalid("field \"lockout_duration\": must be whole seconds, at most 8760h, or 0 for the default")
	case l.CounterReset < 0 || l.CounterReset > MaxLockoutTime || l.CounterReset%time.Second != 0:
		return Invalid("field \"lockout_counter_reset\": must be whole seconds, at most 8760h, or 0 for the default")
	}
	return nil
}

// LockoutDefaults are what the server's operator says about lockouts.
type LockoutDefaults struct {
	// ByType has the settings of each of LockoutTypes, and under "all" those of all of them.
	ByType map[string]LockoutSettings
	// Disabled wins over everything else, if it is not nil.
	Disabled *bool
}

// For returns what is in force for a mount: each setting is the mount's own, or else the one of its type, or else the one
// of all types, or else the default.
func (d LockoutDefaults) For(kind string, own LockoutSettings) Lockout {
	byType, all := d.ByType[kind], d.ByType["all"]
	disabled := cmp.Or(d.Disabled, own.Disabled, byType.Disabled, all.Disabled)
	return Lockout{
		Threshold:    cmp.Or(own.Threshold, byType.Threshold, all.Threshold),
		Duration:     cmp.Or(own.Duration, byType.Duration, all.Duration),
		CounterReset: cmp.Or(own.CounterReset, byType.CounterReset, all.CounterReset),
		Disabled:     disabled != nil && *disabled,
	}.OrDefault()
}
