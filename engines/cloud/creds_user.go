package cloud

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/engines/cloud/username"
	"github.com/coffer-project/coffer/storage"
)

const (
	visibleTime  = 20 * time.Second // for a new user to be found everywhere
	firstPause   = 250 * time.Millisecond
	maxPause     = 2 * time.Second
	undoUserTime = 15 * time.Second
)

// issueUser makes a user with a key. From the note on, whatever happens, either a lease stands for the user or it is
// removed.
func (e *engine) issueUser(ctx context.Context, req *engines.Request, r *role.Role, _ role.Grant) (*engines.Response, error) {
	end, err := e.locks.Begin()
	if err != nil {
		return nil, err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, makeTime)
	defer cancel()
	m := req.Mount
	terms, err := getLease(ctx, m.Storage, m)
	if err != nil {
		return nil, err
	}
	conf, _, err := root.Get(ctx, m.Storage)
	if err != nil {
		return nil, err
	}
	name, err := username.New(conf.UsernameTemplate, username.IAM, req.Caller.DisplayName, r.Name)
	if err != nil {
		return nil, err
	}
	api, err := e.clients.For(ctx, conf, through(r.AssumeRoleARNs))
	if err != nil {
		return nil, err
	}
	u := made{Name: name, Role: r.Name, Account: e.clients.Account(ctx, conf, api, r.AssumeRoleARNs), Through: r.AssumeRoleARNs}
	if len(r.IAMTags) < role.MaxTags {
		u.Tag = rand.Text()
	}
	begun := time.Now()
	u.Since = begun.Round(0).UTC()
	noted, err := e.admit(ctx, m, r, conf, u, begun.Add(terms.Max), begun.Add(settleTime))
	if err != nil {
		return nil, err
	}
	key, err := makeUser(ctx, api, r, &u, begun)
	if err != nil {
		e.undoUser(ctx, m, api, &u, noted, err)
		return nil, err
	}
	l := userLease{made: u}
	*l.RecordFormat() = 1
	internal, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return &engines.Response{
		Data: map[string]any{
			"access_key": key.AccessKey, "secret_key": key.SecretKey.Reveal(), "security_token": nil, "session_token": nil,
		},
		Warnings: accesskey.WaitUntilValid(ctx, api, key, r.WaitUntilValid),
		Lease: &engines.Lease{
			Kind: kindUser, TTL: terms.Lease, MaxTTL: terms.Max, Renewable: true, Internal: internal, Done: []storage.Key{noted},
		},
	}, nil
}

// makeUser makes the user with everything that the role gives it, its key last. It completes u once there is a user.
func makeUser(ctx context.Context, api aws.API, r *role.Role, u *made, begun time.Time) (aws.Credentials, error) {
	var key aws.Credentials
	// By the clock on the wall, which goes on while the machine is asleep.
	if time.Now().Round(0).Sub(begun.Round(0)) > makeTime {
		return key, context.DeadlineExceeded
	}
	tags := maps.Clone(r.IAMTags)
	if u.Tag != "" {
		if tags == nil {
			tags = map[string]string{}
		}
		tags[role.IssueTag] = u.Tag
	}
	user, err := api.CreateUser(ctx, aws.NewUser{Name: u.Name, Path: r.UserPath, BoundaryARN: r.BoundaryARN, Tags: tags})
	if err != nil {
		return key, err
	}
	u.ID, u.Account = user.ID, cmp.Or(root.AccountOf(user.ARN), u.Account)
	var steps []func() error
	for _, arn := range r.PolicyARNs {
		steps = append(steps, func() error { return api.AttachUserPolicy(ctx, u.Name, arn) })
	}
	if r.PolicyDocument != "" {
		steps = append(steps, func() error { return api.PutUserPolicy(ctx, u.Name, r.Name, r.PolicyDocument) })
	}
	for _, group := range r.IAMGroups {
		steps = append(steps, func() error { return api.AddUserToGroup(ctx, u.Name, group) })
	}
	steps = append(steps, func() (err error) {
		key, err = accesskey.ForNewUser(ctx, api, u.Name)
		return err
	})
	until := time.Now().Add(visibleTime)
	for _, step := range steps {
		if err := whenVisible(ctx, api, u.Name, until, step); err != nil {
			return key, err
		}
	}
	return key, nil
}

// whenVisible repeats a step on a new user while the provider does not find it everywhere, or is still about it.
func whenVisible(ctx context.Context, api aws.API, user string, until time.Time, step func() error) error {
	seen := false
	for wait := firstPause; ; wait = min(2*wait, maxPause) {
		err := step()
		switch aws.KindOf(err) {
		case aws.Conflict:
		case aws.NotFound: // the user, or else a policy or group
			if seen {
				return err
			}
			_, e := api.GetUser(ctx, user)
			if e != nil && aws.KindOf(e) != aws.NotFound {
				return err
			}
			seen = e == nil // once more: the provider's replicas differ
		default:
			return err
		}
		if time.Now().Add(wait).After(until) || failure.Pause(ctx, wait) != nil {
			return err
		}
	}
}

// undoUser removes what was created of a user, as far as that is possible now. The note stays, unless there can be no user, or it was seen
// and removed: a new user may not be visible yet, and would be left behind.
func (e *engine) undoUser(ctx context.Context, m engines.Mount, api aws.API, u *made, noted storage.Key, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoUserTime)
	defer cancel()
	kind := aws.KindOf(cause)
	if u.ID == "" && slices.Contains([]aws.Kind{aws.Exists, aws.Denied, aws.Invalid, aws.NotFound}, kind) {
		e.forget(ctx, m, u, noted)
		return
	}
	if u.ID == "" || kind == aws.Throttled {
		return // not known to be ours, or not now
	}
	// Only a user that is seen can be known to be gone.
	found, err := api.GetUser(ctx, u.Name)
	seen := err == nil && u.is(found)
	if err := api.RemoveUser(ctx, u.Name); err != nil {
		e.log.Debug("a user that was not finished is removed later", "user", u.Name, "err", err)
	} else if seen {
		e.forget(ctx, m, u, noted)
	}
}

// forget drops the note of a user of which nothing is left.
func (e *engine) forget(ctx context.Context, m engines.Mount, u *made, noted storage.Key) {
	if _, err := m.ClusterStorage.Commit(ctx, storage.Batch{Deletes: u.done(noted)}); err != nil {
		e.log.Debug("a rollback without anything to undo stays", "err", err)
	}
}
