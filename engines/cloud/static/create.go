package static

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/accesskey"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

// LeftPrefix has, by the name of the static role, what is left at the provider of roles that are being made or are gone.
const LeftPrefix storage.Key = "static-left/"

// leftover is stored, as JSON, before a static role's first key is made and goes when the role is stored; a role that is
// deleted becomes one. Its keys are to be deleted, then it is, too. A name has a static role or a leftover, never both,
// and no two names have the same user.
type leftover struct {
	Format   int                `json:"format"` // 1
	Username string             `json:"username"`
	UserID   string             `json:"user_id,omitempty"` // "": nothing has been done yet
	Account  string             `json:"account,omitempty"` // that the user is in
	Way      way                `json:"way,omitzero"`
	Keys     []string           `json:"keys,omitempty"`
	Pending  *accesskey.Attempt `json:"pending,omitempty"`

	Since     time.Time `json:"since,omitzero"` // the first try to remove it
	Tries     int       `json:"tries,omitempty"`
	NextTry   time.Time `json:"next_try"`
	LastError string    `json:"last_error,omitempty"`

	name      string    // where it is stored
	known     []string  // keys that stay, whatever Pending says
	claimedAt time.Time // the begin of this try to remove it
}

func (l *leftover) RecordFormat() *int { return &l.Format }

func getLeftover(ctx context.Context, s engines.Getter, name string) (*leftover, error) {
	l := &leftover{name: name}
	found, err := engines.GetRecord(ctx, s, LeftPrefix+storage.Key(name), l)
	if !found || err != nil {
		return nil, err
	}
	return l, nil
}

func (l *leftover) put(t *storage.Txn) error {
	return engines.PutRecord(t, LeftPrefix+storage.Key(l.name), l)
}

// create makes a key for the user and stores the static role. It needs the name's lock.
func (roles *Roles) create(ctx context.Context, m engines.Mount, in *writeStaticIn) (*engines.Response, error) {
	ctx, done := context.WithTimeout(ctx, accesskey.TryTime)
	defer done()
	if err := roles.clean(ctx, m, in.Name); err != nil {
		return nil, accesskey.ForClient(err)
	}
	l, err := claimName(ctx, m, in)
	if err != nil {
		return nil, accesskey.ForClient(err)
	}
	r, dropped, err := roles.firstKey(ctx, m, l, in)
	if err != nil {
		ctx, done := failure.Detached(ctx)
		defer done()
		if cleanErr := roles.clean(ctx, m, in.Name); cleanErr != nil {
			roles.log.Warn("what is left of a static role that could not be made stays until it can be removed", "role", in.Name, "err", failure.RecordText(cleanErr))
		}
		return nil, accesskey.ForClient(err)
	}
	roles.rotated.Add(1)
	answer := &engines.Response{Data: r.data()}
	if dropped {
		answer.Warnings = []string{"the IAM user had as many access keys as there can be: the oldest was deleted"}
	}
	return answer, nil
}

// claimName notes that a static role is being made, before anything is asked of the provider. It goes on with what is left
// of the same before.
func claimName(ctx context.Context, m engines.Mount, in *writeStaticIn) (l *leftover, err error) {
	_, err = storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		r, err := Get(ctx, t, in.Name)
		if err != nil {
			return err
		}
		if l, err = getLeftover(ctx, t, in.Name); err != nil {
			return err
		}
		if l == nil {
			l = &leftover{Username: in.Username, Way: way{RoleARN: in.AssumeRoleARN}, name: in.Name}
		}
		if r != nil || l.Username != in.Username || l.Way.RoleARN != in.AssumeRoleARN || len(l.Keys) > 0 {
			return accesskey.ErrOvertaken
		}
		now := accesskey.Now()
		l.Way.Session, l.Way.ExternalID = in.Session, in.ExternalID
		l.Pending, l.NextTry = accesskey.NextAttempt(l.Pending, now), now.Add(2*accesskey.TryTime)
		return l.put(t)
	})
	return l, err
}

// firstKey makes the key of a new static role and stores it; dropped reports whether another one had to go.
func (roles *Roles) firstKey(ctx context.Context, m engines.Mount, l *leftover, in *writeStaticIn) (r *Role, dropped bool, err error) {
	api, err := roles.clients.API(ctx, m, l.Way.roles()...)
	if err != nil {
		return nil, false, err
	}
	user, err := api.GetUser(ctx, l.Username)
	if aws.KindOf(err) == aws.NotFound {
		return nil, false, engines.Invalid("field \"username\": there is no IAM user %q: make the user first", l.Username)
	}
	if err != nil {
		return nil, false, err
	}
	if l.UserID != "" && l.UserID != user.ID {
		return nil, false, accesskey.ErrOvertaken // removed and made again since the last try, which is cleaned up first
	}
	rootKey, err := rootID(ctx, m)
	if err != nil {
		return nil, false, err
	}
	keys, _, err := accesskey.DeleteLost(ctx, api, l.Username, l.Pending, rootKey)
	if err != nil {
		return nil, false, err
	}
	if err := rejectRootUser(rootKey, l.Username, keys); err != nil {
		return nil, false, err
	}
	if err := roles.claimUser(ctx, m, l, user, keys); err != nil {
		return nil, false, err
	}
	key, kept, err := accesskey.Make(ctx, api, l.Username, keys, "")
	if err != nil {
		ctx, done := failure.Detached(ctx)
		defer done()
		noted := changeLeftover(ctx, m, l, func(t *storage.Txn, stored *leftover) error {
			stored.Pending.Listed = l.Pending.Listed || accesskey.MaybeMade(err)
			stored.Pending.Ended(accesskey.Now())
			return stored.put(t)
		})
		return nil, false, errors.Join(err, noted)
	}
	period := time.Duration(in.RotationPeriod)
	r = &Role{
		Username: l.Username, UserID: user.ID, Account: root.AccountOf(user.ARN), Period: period, Way: l.Way, SingleKey: in.SingleKey, Key: key,
		NextRotation: key.CreatedAt.Add(period), name: l.name,
	}
	return r, len(kept) < len(keys), roles.store(ctx, m, api, l, r)
}

// claimUser reserves the user for the name, and notes the keys there are. What another name has left there goes first.
func (roles *Roles) claimUser(ctx context.Context, m engines.Mount, l *leftover, user aws.User, keys []aws.Key) error {
	for tries := 0; ; tries++ {
		var other string
		err := changeLeftover(ctx, m, l, func(t *storage.Txn, stored *leftover) error {
			key := userPrefix + storage.Key(user.ID)
			has := &userHolder{}
			found, err := engines.GetRecord(ctx, t, key, has)
			if err != nil {
				return err
			}
			if other = ""; found && has.Name != l.name {
				other = has.Name
				return accesskey.ErrOvertaken
			}
			stored.UserID, stored.Account = user.ID, root.AccountOf(user.ARN)
			if !stored.Pending.Listed {
				stored.Pending.See(keys)
			}
			if err := stored.put(t); err != nil {
				return err
			}
			return engines.PutRecord(t, key, &userHolder{Name: l.name})
		})
		if err == nil {
			l.UserID, l.Account = user.ID, root.AccountOf(user.ARN)
			return nil
		}
		if other == "" || tries > 0 {
			return err
		}
		if err := roles.adoptUser(ctx, m, other, user.Name); err != nil {
			return err
		}
	}
}

// adoptUser removes what another name has left of a user, and fails if that name is in use.
func (roles *Roles) adoptUser(ctx context.Context, m engines.Mount, other, user string) error {
	unlock := roles.locks.TryLock(other)
	if unlock == nil {
		return accesskey.ErrOvertaken
	}
	defer unlock()
	r, err := Get(ctx, m.Storage, other)
	if err != nil {
		return err
	}
	if r != nil {
		return engines.Invalid("field \"username\": the IAM user %q has the static role %q already: two would delete each other's keys", user, other)
	}
	return roles.clean(ctx, m, other)
}

// store stores the new static role in place of its leftover.
func (roles *Roles) store(ctx context.Context, m engines.Mount, api aws.API, l *leftover, r *Role) error {
	ctx, done := failure.Detached(ctx)
	defer done()
	err := changeLeftover(ctx, m, l, func(t *storage.Txn, _ *leftover) error {
		t.Delete(LeftPrefix + storage.Key(l.name))
		return r.Put(t)
	})
	if errors.Is(err, accesskey.ErrOvertaken) {
		return errors.Join(err, accesskey.Drop(ctx, api, l.Username, r.Key.ID))
	}
	return err
}

// changeLeftover runs fn in a transaction with what is stored of a leftover, if l's attempt is still the one of it.
func changeLeftover(ctx context.Context, m engines.Mount, l *leftover, fn func(t *storage.Txn, stored *leftover) error) error {
	_, err := storage.Update(ctx, m.Storage, func(t *storage.Txn) error {
		stored, err := getLeftover(ctx, t, l.name)
		if err != nil {
			return err
		}
		if stored == nil || stored.Pending == nil || stored.Pending.ID != l.Pending.ID {
			return accesskey.ErrOvertaken
		}
		return fn(t, stored)
	})
	return err
}

// rootID returns the id of the root key, "" if there is none.
func rootID(ctx context.Context, m engines.Mount) (string, error) {
	r, _, err := root.Get(ctx, m.Storage)
	return r.AccessKey, err
}

// rejectRootUser rejects a user who has the root key: a rotation would delete the oldest of its keys, which may be the root key.
func rejectRootUser(rootKey, user string, keys []aws.Key) error {
	if rootKey == "" || !slices.ContainsFunc(keys, func(k aws.Key) bool { return k.ID == rootKey }) {
		return nil
	}
	return engines.Invalid("the IAM user %q has the key of config/root, which a static role would replace some day: config/rotate-root rotates that one", user)
}
