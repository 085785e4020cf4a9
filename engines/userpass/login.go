package userpass

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
	"github.com/coffer-project/coffer/storage"
)

type loginIn struct {
	Username string            `json:"username" help:"Name of the user, in any case."`
	Password engines.Sensitive `json:"password" required:"true" max:"1024" help:"The password."`
}

// errLocked is for the logs: a client gets 403 as for anything else that it may not do.
var errLocked = errors.New("the user is locked after too many wrong passwords")

func errLogin() *engines.Error { return engines.Invalid("invalid username or password") }

// login does the same work for every rejected login: what differs is only found out at the end.
func (e *engine) login(ctx context.Context, req *engines.Request, in *loginIn) (*engines.Response, error) {
	name, err := normalName(in.Username)
	if err != nil {
		name = "" // no user's
	}
	u, err := getUser(ctx, req.Mount.Storage, name)
	if err != nil {
		return nil, err
	}
	a := newAttempt(req, name, u)
	ok, err := e.check(ctx, req, a, u, in.Password)
	switch {
	case errors.Is(err, errLocked):
		e.pacer.Hold(ctx, fairqueue.SourceOf(req))
		denied := engines.Denied(err)
		denied.Reason = err.Error()
		return nil, denied
	case err != nil:
		return nil, err
	case !ok:
		rejected := errLogin()
		locked, err := e.locks.failed(ctx, a)
		if err != nil {
			return nil, err
		}
		if locked {
			counts.locks.Add(1)
			rejected.Reason = "one wrong password too many: the name is locked now" // for the audit log alone
		}
		e.pacer.Hold(ctx, fairqueue.SourceOf(req))
		return nil, rejected
	}
	e.locks.succeeded(a)
	return &engines.Response{Auth: &engines.Auth{Login: &engines.Login{
		DisplayName: name,
		Alias:       engines.Alias{Name: name, Metadata: u.Token.AliasMetadata},
		Metadata:    map[string]string{"username": name},
		Token:       u.Token,
		Role:        name,
	}}}, nil
}

// check reports whether the login is accepted: u, nil if the name has no user, has this password and may log in from this
// address. For all others the work is the same.
func (e *engine) check(ctx context.Context, req *engines.Request, a attempt, u *user, given engines.Sensitive) (bool, error) {
	stored := unknownUser
	if u != nil {
		stored = u.Hash
	}
	most, err := e.imported.most(ctx, req.Mount.Storage)
	if err != nil {
		return false, err
	}
	acquire := hashing.Acquire
	// Only of logins that will be accepted: that a right password is put first must not show where it is rejected.
	if u != nil && e.recent.has(a.name, given) && u.Token.Allows(req.RemoteIP) {
		if locked, err := e.locks.locked(ctx, a); err == nil && !locked {
			acquire = hashing.AcquireFirst
		}
	}
	release, err := acquire(ctx, fairqueue.SourceOf(req))
	if err != nil {
		return false, err
	}
	defer release()
	// Checked with a slot in hand: otherwise any number of guesses could pass here before the first one fails.
	if locked, err := e.locks.locked(ctx, a); err != nil || locked {
		return false, cmp.Or(err, errLocked)
	}
	password := given.Reveal()
	ok, err := e.hasher.matches(stored, password)
	if err != nil {
		return false, err
	}
	// From an address that the user is not bound to, no password is right: the response must not tell which one is.
	if !ok || u == nil || !u.Token.Allows(req.RemoteIP) {
		e.hasher.pad(stored, password, most)
		return false, nil
	}
	e.recent.add(a.name, given)
	if isBcrypt(stored) {
		return true, e.rehash(ctx, req, a.name, stored, password)
	}
	return true, nil
}

// rehash replaces an imported hash with one of ours, now that the password is known. Only the cluster that writes the
// mount can: a login at a secondary leaves the hash as it is.
func (e *engine) rehash(ctx context.Context, req *engines.Request, name, stored, password string) error {
	hash := e.hasher.of(password)
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		u, err := getUser(ctx, t, name)
		if err != nil || u == nil || u.Hash != stored {
			return err // changed meanwhile
		}
		u.Hash = hash
		return putUser(t, name, u)
	})
	if errors.Is(err, storage.ErrPrimaryOnly) {
		return nil
	}
	return err
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
