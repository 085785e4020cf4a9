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
