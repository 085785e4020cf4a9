package userpass

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
)

type loginIn struct {
	Username string            `json:"username" help:"Name of the user, in any case."`
	Password engines.Sensitive `json:"password" required:"true" max:"1024" help:"The password."`
}

func errLogin() error { return engines.Invalid("invalid username or password") }

// login does the same work whoever asks: what differs is only found out at the end.
func (e *engine) login(ctx context.Context, req *engines.Request, in *loginIn) (*engines.Response, error) {
	name, err := normalName(in.Username)
	if err != nil {
		name = "" // nobody's
	}
	u, err := getUser(ctx, req.Mount.Storage, name)
	if err != nil {
		return nil, err
	}
	known := u != nil
	if !known {
		u = &user{Hash: nobody}
	}
	release, err := acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	// Asked with a slot in hand: otherwise any number of guesses could pass here before the first one fails.
	if e.locks.locked(name, time.Now()) {
		return nil, engines.Denied(errors.New("the user is locked after too many wrong passwords"))
	}
	ok, err := e.hasher.matches(u.Hash, in.Password.Reveal())
	if err != nil {
		return nil, err
	}
	// From an address that the user is not bound to, no password is right: the answer must not tell which one is.
	if !ok || !known || !u.Token.Allows(req.RemoteIP) {
		e.locks.fail(name, time.Now())
		return nil, errLogin()
	}
	e.locks.reset(name)
	return &engines.Response{Auth: &engines.Auth{Login: &engines.Login{
		DisplayName: name,
		Alias:       engines.Alias{Name: name},
		Metadata:    map[string]string{"username": name},
		Token:       u.Token,
		Role:        name,
	}}}, nil
}

// RenewLogin implements engines.Renewer. A token whose policies are no longer the user's has to be replaced.
func (e *engine) RenewLogin(ctx context.Context, m engines.Mount, login engines.RenewedLogin) (engines.TokenFields, error) {
	u, err := getUser(ctx, m.Storage, login.Role)
	if err != nil {
		return engines.TokenFields{}, err
	}
	if u == nil {
		return engines.TokenFields{}, engines.Invalid("the token cannot be renewed: its user does not exist any more")
	}
	if !slices.Equal(ownPolicies(u.Token.TokenPolicies), ownPolicies(login.Policies)) {
		return engines.TokenFields{}, engines.Invalid("policies have changed, not renewing: log in again")
	}
	return u.Token, nil
}

// ownPolicies returns the names, sorted and without the one that is added to nearly every token.
func ownPolicies(names []string) []string {
	own := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "default" })
	slices.Sort(own)
	return slices.Compact(own)
}

// When a name is locked.
const (
	maxFailures  = 5
	lockDuration = 15 * time.Minute // also how long a failure counts if no other follows
	maxCounted   = 16384            // names counted in memory; more drop the one that failed the longest ago
)

// attempts are the recent failures of one name.
type attempts struct {
	failed int
	last   time.Time
}

func (a attempts) stale(now time.Time) bool { return now.Sub(a.last) >= lockDuration }

// lockout counts wrong passwords by name. Names without a user are counted, too: that somebody is locked must not
// tell that they exist.
type lockout struct {
	mu    sync.Mutex
	names map[string]attempts
}

func (l *lockout) locked(name string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.names[name]
	return a.failed >= maxFailures && !a.stale(now)
}

func (l *lockout) fail(name string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.names[name]
	if !ok && len(l.names) >= maxCounted {
		l.makeRoomLocked(now)
	}
	if a.stale(now) {
		a.failed = 0
	}
	l.names[name] = attempts{failed: a.failed + 1, last: now}
}

// makeRoomLocked drops what does not count any more, or else the name that failed the longest ago.
func (l *lockout) makeRoomLocked(now time.Time) {
	oldest := ""
	for name, a := range l.names {
		if a.stale(now) {
			delete(l.names, name)
		} else if oldest == "" || a.last.Before(l.names[oldest].last) {
			oldest = name
		}
	}
	if len(l.names) >= maxCounted {
		delete(l.names, oldest)
	}
}

func (l *lockout) reset(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.names, name)
}
