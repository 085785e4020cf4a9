package cloud

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

const (
	staticPrefix     storage.Key = "static/"
	staticUserPrefix storage.Key = "static-user/" // by the user's id: which name has it
)

// staticRole is the stored form of one, as JSON: an existing user, and the key of it that is ours.
type staticRole struct {
	Format   int           `json:"format"` // 1
	Username string        `json:"username"`
	UserID   string        `json:"user_id"` // never used again at the provider, unlike the name
	Account  string        `json:"account,omitempty"`
	Period   time.Duration `json:"rotation_period"`
	Way      way           `json:"way,omitzero"`

	Key      ownKey `json:"key"`
	Previous string `json:"previous,omitempty"` // id of the key before, which is good until the next rotation

	SingleKey   bool      `json:"single_key,omitempty"` // or until the one after it works
	RetireTries int       `json:"retire_tries,omitempty"`
	RetireAt    time.Time `json:"retire_at,omitzero"` // when Previous is to go; zero: now

	NextRotation time.Time `json:"next_rotation"`
	Failures     int       `json:"failures,omitempty"` // since the last rotation
	LastError    string    `json:"last_error,omitempty"`
	RetryAt      time.Time `json:"retry_at,omitzero"`
	Pending      *attempt  `json:"pending,omitempty"`

	name       string // where it is stored
	retireOnly bool   // only the deletion of Previous is due
	settled    bool   // nothing is left of the tries before this one
}

func (r *staticRole) RecordFormat() *int { return &r.Format }

// ownKey is a key of a user with its secret, behind the barrier.
type ownKey struct {
	ID        string    `json:"id"`
	Secret    string    `json:"secret"`
	CreatedAt time.Time `json:"created_at"`
}

// way is how a user elsewhere is reached: by the role to assume there. The zero value is the root credentials' own account.
type way struct {
	RoleARN    string `json:"role_arn,omitempty"`
	Session    string `json:"session,omitempty"`
	ExternalID string `json:"external_id,omitempty"`
}

func (w way) roles() []aws.AssumeRole {
	if w.RoleARN == "" {
		return nil
	}
	session := w.Session
	if session == "" {
		session = "coffer-static-role"
	}
	return []aws.AssumeRole{{RoleARN: w.RoleARN, Session: session, ExternalID: w.ExternalID}}
}

// due is when there is something to do for the role.
func (r *staticRole) due() time.Time {
	at := r.rotationDue()
	if r.retires() && r.RetireAt.Before(at) {
		return r.RetireAt
	}
	return at
}

func (r *staticRole) rotationDue() time.Time {
	switch {
	case !r.RetryAt.IsZero():
		return r.RetryAt
	case r.Pending != nil: // cut short
		return r.Pending.Since
	}
	return r.NextRotation
}

// getStatic returns a static role, nil if there is none.
func getStatic(ctx context.Context, s engines.Getter, name string) (*staticRole, error) {
	r := &staticRole{name: name}
	found, err := engines.GetRecord(ctx, s, staticPrefix+storage.Key(name), r)
	if !found || err != nil {
		return nil, err
	}
	return r, nil
}

func (r *staticRole) put(t *storage.Txn) error {
	return engines.PutRecord(t, staticPrefix+storage.Key(r.name), r)
}

// data is the response to a read.
func (r *staticRole) data() map[string]any {
	return map[string]any{
		"name":                     r.name,
		"id":                       r.UserID,
		"username":                 r.Username,
		"rotation_period":          int64(r.Period / time.Second),
		"assume_role_arn":          r.Way.RoleARN,
		"assume_role_session_name": r.Way.Session,
		"external_id":              r.Way.ExternalID,
		"single_key":               r.SingleKey,
		"key_created_at":           timeOrNil(r.Key.CreatedAt),
		"last_rotation":            timeOrNil(r.Key.CreatedAt),
		"next_rotation":            timeOrNil(r.next()),
		"rotation_failures":        r.Failures,
		"last_error":               r.LastError,
	}
}

// next is when the key is replaced, as far as that is known.
func (r *staticRole) next() time.Time {
	if !r.RetryAt.IsZero() {
		return r.RetryAt
	}
	return r.NextRotation
}

// staticUser says which name has a user: that of a static role, or of what is left of one.
type staticUser struct {
	Format int    `json:"format"` // 1
	Name   string `json:"name"`
}

func (u *staticUser) RecordFormat() *int { return &u.Format }

type staticIn struct {
	Name string `json:"name" help:"Name of the static role."`
}

type writeStaticIn struct {
	staticIn
	Username       string           `json:"username" form:"trim" max:"64" help:"Name of the IAM user, who must exist. It cannot be changed later."`
	RotationPeriod engines.Duration `json:"rotation_period" help:"How often the user's key is replaced: at least a minute."`
	AssumeRoleARN  string           `json:"assume_role_arn" form:"trim" max:"2048" help:"ARN of the role to assume first, for a user in another account. It cannot be changed later."`
	SingleKey      bool             `json:"single_key" help:"Delete the key before as soon as the new one works, not with the next rotation."`
	Session        string           `json:"assume_role_session_name" max:"64" help:"Session name for assume_role_arn."`
	ExternalID     string           `json:"external_id" max:"1224" help:"External id for assume_role_arn."`
}

var (
	iamUserName = regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{1,64}$`)
	sessionWord = regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{2,64}$`)
)

// check returns everything that is wrong with what the request gives.
func (in *writeStaticIn) check(req *engines.Request) error {
	var p problems
	if in.Username != "" && !iamUserName.MatchString(in.Username) {
		p.add("username", "must be the name of an IAM user: letters, digits and +=,.@_- only")
	}
	if req.Given("rotation_period") && time.Duration(in.RotationPeriod) < minRotationPeriod {
		p.add("rotation_period", "must be at least a minute")
	}
	if in.AssumeRoleARN != "" && !isARN(in.AssumeRoleARN, roleARNForm) {
		p.add("assume_role_arn", "must be the ARN of a role")
	}
	if in.Session != "" && !sessionWord.MatchString(in.Session) {
		p.add("assume_role_session_name", "must have 2 to 64 letters, digits or +=,.@_-")
	}
	if in.ExternalID != "" && (len(in.ExternalID) < minExternalID || !externalIDForm.MatchString(in.ExternalID)) {
		p.add("external_id", "must have 2 to 1224 letters, digits or +=,.@:/_-")
	}
	return p.err()
}

// complete rejects a new static role with missing fields.
func (in *writeStaticIn) complete(req *engines.Request) error {
	var p problems
	if in.Username == "" {
		p.add("username", "is required: the name of an IAM user who exists")
	}
	if !req.Given("rotation_period") {
		p.add("rotation_period", "is required")
	}
	if in.AssumeRoleARN == "" && (in.Session != "" || in.ExternalID != "") {
		p.add("assume_role_arn", "is required with assume_role_session_name and external_id")
	}
	return p.err()
}

// apply changes what the request gives. Every change restarts the rotation period.
func (in *writeStaticIn) apply(req *engines.Request, r *staticRole, now time.Time) error {
	var p problems
	if in.Username != "" && in.Username != r.Username {
		p.add("username", "cannot be changed: delete the static role, or make another one for the other user")
	}
	if req.Given("assume_role_arn") && in.AssumeRoleARN != r.Way.RoleARN {
		p.add("assume_role_arn", "cannot be changed: delete the static role and make it again")
	}
	if err := p.err(); err != nil {
		return err
	}
	if req.Given("rotation_period") {
		r.Period = time.Duration(in.RotationPeriod)
	}
	if req.Given("single_key") {
		r.SingleKey = in.SingleKey
	}
	if req.Given("assume_role_session_name") {
		r.Way.Session = in.Session
	}
	if req.Given("external_id") {
		r.Way.ExternalID = in.ExternalID
	}
	r.NextRotation = now.Add(r.Period)
	if r.Pending == nil { // else what was made and lost is not to stay for a period
		r.RetryAt = time.Time{}
	}
	return nil
}

func staticExists(ctx context.Context, req *engines.Request) (bool, error) {
	name := req.Param("name")
	if err := checkRoleName(name); err != nil {
		return false, err
	}
	r, err := getStatic(ctx, req.Mount.Storage, name)
	return r != nil, err
}

func listStatic(ctx context.Context, req *engines.Request, in *rolesIn) (*engines.Response, error) {
	return engines.Listed(req.Mount.Storage.List(ctx, staticPrefix, in.After, in.Limit))
}

func readStatic(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	r, err := getStatic(ctx, req.Mount.Storage, in.Name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: r.data()}, nil
}

// readStaticCreds returns the current key, without a request to the provider.
func readStaticCreds(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	r, err := getStatic(ctx, req.Mount.Storage, in.Name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{
		"access_key": r.Key.ID, "secret_key": r.Key.Secret, "expiration": timeOrNil(r.next()),
	}}, nil
}

func (e *engine) writeStatic(ctx context.Context, req *engines.Request, in *writeStaticIn) (*engines.Response, error) {
	in.Username, in.AssumeRoleARN = strings.TrimSpace(in.Username), strings.TrimSpace(in.AssumeRoleARN)
	if err := checkRoleName(in.Name); err != nil {
		return nil, err
	}
	if err := in.check(req); err != nil {
		return nil, err
	}
	unlock, err := e.lock(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := getStatic(ctx, req.Mount.Storage, in.Name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		if err := in.complete(req); err != nil {
			return nil, err
		}
		return e.createStatic(ctx, req.Mount, in)
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		if r, err = getStatic(ctx, t, in.Name); err != nil {
			return err
		}
		if r == nil {
			return storage.ErrConflict // deleted just now
		}
		if err := in.apply(req, r, clock()); err != nil {
			return err
		}
		return r.put(t)
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: r.data()}, nil
}

// rotateStatic replaces the key now.
func (e *engine) rotateStatic(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	r, err := e.rotate(ctx, req.Mount, in.Name, nil)
	if err != nil {
		return nil, keyError(err)
	}
	answer := &engines.Response{Data: r.data()}
	if r.retires() {
		answer.Warnings = []string{"the key before could not be deleted yet, which is tried again"}
	}
	return answer, nil
}

// keyError is the response to a client whose key could not be created.
func keyError(err error) error {
	if errors.Is(err, errOvertaken) {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "another request was changing the same key: try again", Err: err}
	}
	return clientError(err)
}

// deleteStatic forgets a static role and deletes its key at the provider. The user stays.
func (e *engine) deleteStatic(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	unlock, err := e.lock(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var r *staticRole
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		if r, err = getStatic(ctx, t, in.Name); err != nil || r == nil {
			return err
		}
		l := &leftover{Username: r.Username, UserID: r.UserID, Account: r.Account, Way: r.Way, Keys: []string{r.Key.ID}, Pending: r.Pending, NextTry: clock(), name: in.Name}
		if r.Previous != "" {
			l.Keys = append(l.Keys, r.Previous)
		}
		t.Delete(staticPrefix + storage.Key(in.Name))
		return l.put(t)
	})
	if err != nil || r == nil {
		return nil, err
	}
	warnings := []string{"the IAM user \"" + r.Username + "\" is still there: remove it by hand if it is not needed any more"}
	ctx, done := detached(ctx)
	defer done()
	if err := e.clean(ctx, req.Mount, in.Name); err != nil {
		warnings = append(warnings, "the key of the static role could not be deleted yet, which is tried again: "+recordText(err))
	}
	return &engines.Response{Warnings: warnings}, nil
}

// err is all problems as one error, nil if there are none.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return engines.Invalid("%s", strings.Join(p, "; "))
}
