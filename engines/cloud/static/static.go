package static

import (
	"context"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

const (
	minRotationPeriod = time.Minute

	Prefix     storage.Key = "static/"      // Prefix has the roles, by name
	userPrefix storage.Key = "static-user/" // by the user's id: which name has it
)

// Role is the stored form of one, as JSON: an existing user, and the key of it that is ours.
type Role struct {
	Format   int           `json:"format"` // 1
	Username string        `json:"username"`
	UserID   string        `json:"user_id"` // never used again at the provider, unlike the name
	Account  string        `json:"account,omitempty"`
	Period   time.Duration `json:"rotation_period"`
	Way      way           `json:"way,omitzero"`

	Key      accesskey.Own `json:"key"`
	Previous string        `json:"previous,omitempty"` // id of the key before, which is good until the next rotation

	SingleKey   bool      `json:"single_key,omitempty"` // or until the one after it works
	RetireTries int       `json:"retire_tries,omitempty"`
	RetireAt    time.Time `json:"retire_at,omitzero"` // when Previous is to go; zero: now

	NextRotation time.Time          `json:"next_rotation"`
	Failures     int                `json:"failures,omitempty"` // since the last rotation
	LastError    string             `json:"last_error,omitempty"`
	RetryAt      time.Time          `json:"retry_at,omitzero"`
	Pending      *accesskey.Attempt `json:"pending,omitempty"`

	name       string // where it is stored
	retireOnly bool   // only the deletion of Previous is due
	settled    bool   // nothing is left of the tries before this one
}

func (r *Role) RecordFormat() *int { return &r.Format }

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
func (r *Role) due() time.Time {
	at := r.rotationDue()
	if r.retires() && r.RetireAt.Before(at) {
		return r.RetireAt
	}
	return at
}

func (r *Role) rotationDue() time.Time {
	switch {
	case !r.RetryAt.IsZero():
		return r.RetryAt
	case r.Pending != nil: // cut short
		return r.Pending.Since
	}
	return r.NextRotation
}

// Get returns a static role, nil if there is none.
func Get(ctx context.Context, s engines.Getter, name string) (*Role, error) {
	r := &Role{name: name}
	found, err := engines.GetRecord(ctx, s, Prefix+storage.Key(name), r)
	if !found || err != nil {
		return nil, err
	}
	return r, nil
}

// Put stores the role under its name.
func (r *Role) Put(t *storage.Txn) error {
	return engines.PutRecord(t, Prefix+storage.Key(r.name), r)
}

// data is the response to a read.
func (r *Role) data() map[string]any {
	return map[string]any{
		"name":                     r.name,
		"id":                       r.UserID,
		"username":                 r.Username,
		"rotation_period":          int64(r.Period / time.Second),
		"assume_role_arn":          r.Way.RoleARN,
		"assume_role_session_name": r.Way.Session,
		"external_id":              r.Way.ExternalID,
		"single_key":               r.SingleKey,
		"key_created_at":           root.TimeOrNil(r.Key.CreatedAt),
		"last_rotation":            root.TimeOrNil(r.Key.CreatedAt),
		"next_rotation":            root.TimeOrNil(r.next()),
		"rotation_failures":        r.Failures,
		"last_error":               r.LastError,
	}
}

// next is when the key is replaced, as far as that is known.
func (r *Role) next() time.Time {
	if !r.RetryAt.IsZero() {
		return r.RetryAt
	}
	return r.NextRotation
}

// userHolder says which name has a user: that of a static role, or of what is left of one.
type userHolder struct {
	Format int    `json:"format"` // 1
	Name   string `json:"name"`
}

func (u *userHolder) RecordFormat() *int { return &u.Format }

type staticIn struct {
	Name string `json:"name" help:"Name of the static role."`
}

type staticsIn struct {
	After string `json:"after" help:"Only names after this one."`
	Limit int    `json:"limit" help:"At most this many names; 0 is all."`
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
	iamUserName = engines.Pattern(`^[A-Za-z0-9_+=,.@-]{1,64}$`)
	sessionWord = engines.Pattern(`^[A-Za-z0-9_+=,.@-]{2,64}$`)
)

// check returns everything that is wrong with what the request gives.
func (in *writeStaticIn) check(req *engines.Request) error {
	var p engines.Problems
	if in.Username != "" && !iamUserName().MatchString(in.Username) {
		p.Add("username", "must be the name of an IAM user: letters, digits and +=,.@_- only")
	}
	if req.Given("rotation_period") && time.Duration(in.RotationPeriod) < minRotationPeriod {
		p.Add("rotation_period", "must be at least a minute")
	}
	if in.AssumeRoleARN != "" && !role.IsRoleARN(in.AssumeRoleARN) {
		p.Add("assume_role_arn", "must be the ARN of a role")
	}
	if in.Session != "" && !sessionWord().MatchString(in.Session) {
		p.Add("assume_role_session_name", "must have 2 to 64 letters, digits or +=,.@_-")
	}
	if in.ExternalID != "" && !role.IsExternalID(in.ExternalID) {
		p.Add("external_id", "must have 2 to 1224 letters, digits or +=,.@:/_-")
	}
	return p.Err()
}

// complete rejects a new static role with missing fields.
func (in *writeStaticIn) complete(req *engines.Request) error {
	var p engines.Problems
	if in.Username == "" {
		p.Add("username", "is required: the name of an IAM user who exists")
	}
	if !req.Given("rotation_period") {
		p.Add("rotation_period", "is required")
	}
	if in.AssumeRoleARN == "" && (in.Session != "" || in.ExternalID != "") {
		p.Add("assume_role_arn", "is required with assume_role_session_name and external_id")
	}
	return p.Err()
}

// apply changes what the request gives. Every change restarts the rotation period.
func (in *writeStaticIn) apply(req *engines.Request, r *Role, now time.Time) error {
	var p engines.Problems
	if in.Username != "" && in.Username != r.Username {
		p.Add("username", "cannot be changed: delete the static role, or make another one for the other user")
	}
	if req.Given("assume_role_arn") && in.AssumeRoleARN != r.Way.RoleARN {
		p.Add("assume_role_arn", "cannot be changed: delete the static role and make it again")
	}
	if err := p.Err(); err != nil {
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

func exists(ctx context.Context, req *engines.Request) (bool, error) {
	name := req.Param("name")
	if err := role.CheckName(name); err != nil {
		return false, err
	}
	r, err := Get(ctx, req.Mount.Storage, name)
	return r != nil, err
}

func list(ctx context.Context, req *engines.Request, in *staticsIn) (*engines.Response, error) {
	return engines.Listed(req.Mount.Storage.List(ctx, Prefix, in.After, in.Limit))
}

func read(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	r, err := Get(ctx, req.Mount.Storage, in.Name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: r.data()}, nil
}

// readCreds returns the current key, without a request to the provider.
func readCreds(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	r, err := Get(ctx, req.Mount.Storage, in.Name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{
		"access_key": r.Key.ID, "secret_key": r.Key.Secret, "expiration": root.TimeOrNil(r.next()),
	}}, nil
}

func (roles *Roles) write(ctx context.Context, req *engines.Request, in *writeStaticIn) (*engines.Response, error) {
	in.Username, in.AssumeRoleARN = strings.TrimSpace(in.Username), strings.TrimSpace(in.AssumeRoleARN)
	if err := role.CheckName(in.Name); err != nil {
		return nil, err
	}
	if err := in.check(req); err != nil {
		return nil, err
	}
	unlock, err := roles.locks.Lock(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := Get(ctx, req.Mount.Storage, in.Name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		if err := in.complete(req); err != nil {
			return nil, err
		}
		return roles.create(ctx, req.Mount, in)
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		if r, err = Get(ctx, t, in.Name); err != nil {
			return err
		}
		if r == nil {
			return storage.ErrConflict // deleted just now
		}
		if err := in.apply(req, r, accesskey.Now()); err != nil {
			return err
		}
		return r.Put(t)
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: r.data()}, nil
}

// rotateNow replaces the key now.
func (roles *Roles) rotateNow(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	r, err := roles.Rotate(ctx, req.Mount, in.Name, nil)
	if err != nil {
		return nil, accesskey.ForClient(err)
	}
	answer := &engines.Response{Data: r.data()}
	if r.retires() {
		answer.Warnings = []string{"the key before could not be deleted yet, which is tried again"}
	}
	return answer, nil
}

// remove forgets a static role and deletes its key at the provider. The user stays.
func (roles *Roles) remove(ctx context.Context, req *engines.Request, in *staticIn) (*engines.Response, error) {
	unlock, err := roles.locks.Lock(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var r *Role
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		if r, err = Get(ctx, t, in.Name); err != nil || r == nil {
			return err
		}
		l := &leftover{Username: r.Username, UserID: r.UserID, Account: r.Account, Way: r.Way, Keys: []string{r.Key.ID}, Pending: r.Pending, NextTry: accesskey.Now(), name: in.Name}
		if r.Previous != "" {
			l.Keys = append(l.Keys, r.Previous)
		}
		t.Delete(Prefix + storage.Key(in.Name))
		return l.put(t)
	})
	if err != nil || r == nil {
		return nil, err
	}
	warnings := []string{"the IAM user \"" + r.Username + "\" is still there: remove it by hand if it is not needed any more"}
	ctx, done := failure.Detached(ctx)
	defer done()
	if err := roles.clean(ctx, req.Mount, in.Name); err != nil {
		warnings = append(warnings, "the key of the static role could not be deleted yet, which is tried again: "+failure.RecordText(err))
	}
	return &engines.Response{Warnings: warnings}, nil
}
