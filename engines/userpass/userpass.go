// Package userpass is the auth method of users with passwords.
//
// Passwords are kept as argon2id hashes only. A bcrypt hash can be imported; the user's first right login replaces it. A
// wrong password and an unknown user get the same response after the same work, whatever hashes the mount has. Wrong
// passwords lock a name, known or not, first at the address they come from; the locks are the cluster's, in storage. Start
// reading at New, then login.go, then hash.go and lockout.go.
package userpass

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
	"github.com/coffer-project/coffer/storage"
)

// engine is one mount on one node.
type engine struct {
	router *engines.Router
	hasher hasher
	locks  *lockout
	pacer  fairqueue.Pacer
	recent *recent
	// imported are the users whose hashes cost something else than ours.
	imported imported
}

// Router implements engines.Engine.
func (e *engine) Router() *engines.Router { return e.router }

// New is the engines.Factory. The engine is an engines.Renewer, a Locker, a Worker and an Invalidator.
func New(engines.Mount) (engines.Engine, error) { return newEngine(), nil }

func newEngine() *engine {
	e := &engine{router: engines.NewRouter(), hasher: newHasher(), locks: newLockout(), recent: newRecent()}
	e.imported.stale.all = true
	r := e.router
	engines.On(r, engines.List, "users", "List the users.", 0, listUsers).Returns("keys: [string]")
	engines.On(r, engines.Read, "users/{username}", "Read what a user's tokens are like.", 0, readUser).
		Returns(`alias_metadata: {*: string}, bound_cidrs: [string], max_ttl: integer, policies: [string], token_bound_cidrs: [string],
			token_explicit_max_ttl: integer, token_max_ttl: integer, token_no_default_policy: boolean, token_num_uses: integer,
			token_period: integer, token_policies: [string], token_ttl: integer, token_type, ttl: integer`)
	engines.On(r, engines.Delete, "users/{username}", "Delete a user. Tokens of the user live on until they expire.", 0, deleteUser)
	engines.On(r, engines.Update, "users/{username}", "Create a user, or change what is given.", engines.Active, e.writeUser).Exists = userExists
	engines.On(r, engines.Update, "users/{username}/password", "Change a user's password.", engines.Active, e.writePassword)
	engines.On(r, engines.Update, "users/{username}/policies", "Change the policies of a user's tokens.", 0, writePolicies)
	engines.On(r, engines.Update, "login/{username}", "Log in.", engines.Unauthenticated|engines.Active, e.login).Returns("auth;")
	return e
}

// counts are what the mounts of this node have done since it started.
var counts struct{ locks atomic.Int64 }

// Numbers returns the counts by name, for the metrics.
func Numbers() map[string]float64 {
	waiting, rejected := hashing.Stats()
	return map[string]float64{
		"userpass_logins_waiting": float64(waiting), "userpass_logins_overload_total": float64(rejected),
		"userpass_locks_total": float64(counts.locks.Load()),
	}
}

// user is the stored form of one, as JSON below users/.
type user struct {
	Format int                 `json:"format"` // 1
	Hash   string              `json:"hash"`
	Token  engines.TokenFields `json:"token"`
	// Older are the older names of token fields that were used last: reads answer these, too.
	Older engines.Older `json:"older,omitempty"`
}

const usersPrefix storage.Key = "users/"

// normalName returns the form of a user's name that is stored and compared.
func normalName(name string) (string, error) { return engines.FoldName("username", name, "_-.@+") }

// getUser returns a user by normal name, nil if there is none.
func getUser(ctx context.Context, s engines.Getter, name string) (*user, error) {
	e, err := s.Get(ctx, usersPrefix+storage.Key(name))
	if errors.Is(err, storage.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeUser(e)
}

func decodeUser(e storage.Entry) (*user, error) {
	u := new(user)
	if err := json.Unmarshal(e.Value, u); err != nil || u.Format != 1 {
		return nil, fmt.Errorf("stored user %q has an unknown format", strings.TrimPrefix(string(e.Key), string(usersPrefix)))
	}
	return u, nil
}

func putUser(t *storage.Txn, name string, u *user) error {
	u.Format = 1
	value, err := json.Marshal(u)
	if err != nil {
		return err
	}
	t.Put(usersPrefix+storage.Key(name), value)
	return nil
}

// userIn is the input of routes that need nothing but the name.
type userIn struct {
	Username string `json:"username" help:"Name of the user, in any case."`
}

type listIn struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
}

// credentials are the two ways to give a password.
type credentials struct {
	Password     engines.Sensitive `json:"password" max:"1024" help:"The password. A new user needs one, or a password_hash."`
	PasswordHash engines.Sensitive `json:"password_hash" max:"128" help:"A bcrypt hash to import instead of a password."`
}

// olderFields are older names of the token fields.
type olderFields struct {
	Policies   engines.StringList `json:"policies" alias:"token_policies" form:"name" max:"1024" help:"Older name of token_policies."`
	TTL        engines.Duration   `json:"ttl" alias:"token_ttl" help:"Older name of token_ttl."`
	MaxTTL     engines.Duration   `json:"max_ttl" alias:"token_max_ttl" help:"Older name of token_max_ttl."`
	BoundCIDRs engines.StringList `json:"bound_cidrs" alias:"token_bound_cidrs" form:"network" max:"256" help:"Older name of token_bound_cidrs."`
}

// apply sets what came under an older name and not under the newer one.
func (o *olderFields) apply(req *engines.Request, u *user) {
	take := func(older string, set func()) { u.Older.Take(req, older, "token_"+older, set) }
	take("policies", func() { u.Token.TokenPolicies = o.Policies })
	take("ttl", func() { u.Token.TokenTTL = o.TTL })
	take("max_ttl", func() { u.Token.TokenMaxTTL = o.MaxTTL })
	take("bound_cidrs", func() { u.Token.TokenBoundCIDRs = o.BoundCIDRs })
}

type writeIn struct {
	userIn
	credentials
	engines.TokenFields
	olderFields
}

type passwordIn struct {
	userIn
	credentials
}

type policiesIn struct {
	userIn
	TokenPolicies engines.StringList `json:"token_policies" form:"name" max:"256" help:"Policies of the user's tokens."`
	Policies      engines.StringList `json:"policies" alias:"token_policies" form:"name" max:"256" help:"Older name of token_policies."`
}

func listUsers(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return engines.Listed(req.Mount.Storage.List(ctx, usersPrefix, in.After, in.Limit))
}

func userExists(ctx context.Context, req *engines.Request) (bool, error) {
	name, err := normalName(req.Param("username"))
	if err != nil {
		return false, err
	}
	u, err := getUser(ctx, req.Mount.Storage, name)
	return u != nil, err
}

func readUser(ctx context.Context, req *engines.Request, in *userIn) (*engines.Response, error) {
	name, err := normalName(in.Username)
	if err != nil {
		return nil, err
	}
	u, err := getUser(ctx, req.Mount.Storage, name)
	if err != nil {
		return nil, err
	}
	if u == nil {
		return nil, engines.NotFound("")
	}
	data := u.Token.Data()
	for _, older := range u.Older {
		data[older] = data["token_"+older]
	}
	return &engines.Response{Data: data}, nil
}

func deleteUser(ctx context.Context, req *engines.Request, in *userIn) (*engines.Response, error) {
	name, err := normalName(in.Username)
	if err != nil {
		return nil, err
	}
	_, err = req.Mount.Storage.Commit(ctx, storage.Batch{Deletes: []storage.Key{usersPrefix + storage.Key(name)}})
	return nil, err
}

func (e *engine) writeUser(ctx context.Context, req *engines.Request, in *writeIn) (*engines.Response, error) {
	name, err := normalName(in.Username)
	if err != nil {
		return nil, err
	}
	hash, err := e.hashOf(ctx, req, &in.credentials)
	if err != nil {
		return nil, err
	}
	var fields engines.TokenFields
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		u, err := getUser(ctx, t, name)
		if err != nil {
			return err
		}
		switch {
		case hash != "" && u == nil:
			u = &user{Hash: hash}
		case u == nil:
			return engines.Invalid("missing password: a new user needs the field \"password\" or \"password_hash\"")
		case hash != "":
			u.Hash = hash
		}
		fields = in.TokenFields
		fields.Keep(req, u.Token)
		u.Token = fields
		in.apply(req, u)
		if err := u.Token.Validate(); err != nil {
			return err
		}
		fields = u.Token
		return putUser(t, name, u)
	})
	if err != nil {
		return nil, err
	}
	if hash != "" {
		e.locks.forgetName(name)
		e.recent.add(name, in.Password)
	}
	if limit := req.Mount.MaxLeaseTTL; limit > 0 && fields.TokenMaxTTL > engines.Duration(limit) {
		return &engines.Response{Warnings: []string{"token_max_ttl is greater than the mount's maximum: tokens get the mount's"}}, nil
	}
	return nil, nil
}

func (e *engine) writePassword(ctx context.Context, req *engines.Request, in *passwordIn) (*engines.Response, error) {
	hash, err := e.hashOf(ctx, req, &in.credentials)
	if err != nil {
		return nil, err
	}
	if hash == "" {
		return nil, engines.Invalid("missing password: give the field \"password\" or \"password_hash\"")
	}
	return change(ctx, req, in.Username, func(name string, u *user) error {
		u.Hash = hash
		e.locks.forgetName(name)
		e.recent.add(name, in.Password)
		return nil
	})
}

func writePolicies(ctx context.Context, req *engines.Request, in *policiesIn) (*engines.Response, error) {
	if !req.Given("token_policies") && !req.Given("policies") {
		return nil, engines.Invalid("field \"token_policies\": is required")
	}
	return change(ctx, req, in.Username, func(_ string, u *user) error {
		u.Token.TokenPolicies = in.TokenPolicies
		(&olderFields{Policies: in.Policies}).apply(req, u)
		return u.Token.Validate()
	})
}

// change rewrites a user that must be there.
func change(ctx context.Context, req *engines.Request, name string, fn func(name string, u *user) error) (*engines.Response, error) {
	name, err := normalName(name)
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		u, err := getUser(ctx, t, name)
		if err != nil {
			return err
		}
		if u == nil {
			return engines.NotFound("username does not exist")
		}
		if err := fn(name, u); err != nil {
			return err
		}
		return putUser(t, name, u)
	})
	return nil, err
}

// StoredPath returns a path with the user's name in it as it is stored: in lower case. Policies and quotas go by it, and
// what revokes tokens by path.
func (e *engine) StoredPath(path string) string { return engines.FoldPath(path, "users", "login") }
