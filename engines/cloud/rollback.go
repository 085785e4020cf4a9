package cloud

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/failure"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

const (
	rollbackPrefix storage.Key = "rollback/"

	// kindUser is the kind of rollbacks and of leases.
	kindUser = "user"

	// A user is made within makeTime of its note, or not any more; notes are due after settleTime, when everything has
	// reached all of the provider. The difference between the two allows for clocks that differ.
	makeTime   = 2 * time.Minute
	settleTime = 5 * time.Minute

	undoTime  = time.Minute          // for one attempt
	roundTime = engines.WorkInterval // after which the others have to wait for the next round
	patience  = 20                   // attempts until an administrator has to act
	dailyNews = 24 * time.Hour       // between two such log lines
	minBack   = time.Minute          // between attempts
	maxBack   = time.Hour            //
	scanCount = 100                  // notes read at once
)

// made is a user at the provider, as notes and leases keep it.
type made struct {
	Name    string   `json:"user"`
	ID      string   `json:"user_id,omitempty"` // "" until the provider has returned it
	Account string   `json:"account,omitempty"` // that it is in; "" if unknown
	Tag     string   `json:"tag,omitempty"`     // value of role.IssueTag; "" if there was no room for it
	Role    string   `json:"role,omitempty"`    // that it was made for; "" with earlier versions
	Through []string `json:"through,omitempty"` // ARNs of the roles that lead to its account
	// Since is when it was about to be made. It tells users apart by their age if there is neither ID nor Tag.
	Since time.Time `json:"since,omitzero"`
}

// is reports whether a user of the name is the one.
func (u *made) is(found aws.User) bool {
	switch at := root.AccountOf(found.ARN); {
	case at != "" && u.Account != "" && at != u.Account:
		return false
	case u.ID != "":
		return found.ID == u.ID
	case u.Tag != "":
		return found.Tags[role.IssueTag] == u.Tag
	}
	return !found.CreatedAt.Before(u.Since.Add(-settleTime)) && found.CreatedAt.Before(u.Since.Add(makeTime+settleTime))
}

// rollback notes what is about to be made at the provider, as JSON. The commit that stores the lease deletes it; what is
// left of others is undone.
type rollback struct {
	Format int    `json:"format"` // 1
	Kind   string `json:"kind"`
	made
	CreatedAt  time.Time `json:"created_at"`
	Attempts   int       `json:"attempts,omitempty"`
	Next       time.Time `json:"next"`
	LastError  string    `json:"last_error,omitempty"`
	ReportedAt time.Time `json:"reported_at,omitzero"`
}

func (n *rollback) RecordFormat() *int { return &n.Format }

// note stores a rollback under a new id, due at next.
func note(ctx context.Context, m engines.Mount, u made, next time.Time) (storage.Key, error) {
	return noteCounted(ctx, m, u, next, nil)
}

// noteCounted is note for a user that counts from then on, if count is not nil.
func noteCounted(ctx context.Context, m engines.Mount, u made, next time.Time, count *issued) (storage.Key, error) {
	key := rollbackPrefix + storage.Key(rand.Text())
	n := rollback{Kind: kindUser, made: u, CreatedAt: time.Now().Round(0).UTC(), Next: next.Round(0).UTC()}
	_, err := storage.Update(ctx, m.ClusterStorage, func(t *storage.Txn) error {
		if count != nil {
			if err := engines.PutRecord(t, u.issuedKey(), count); err != nil {
				return err
			}
		}
		return engines.PutRecord(t, key, &n)
	})
	return key, err
}

// rollBack undoes what is due.
func (e *engine) rollBack(ctx context.Context, m engines.Mount) error {
	start := time.Now()
	for after := storage.Key(""); ; {
		entries, err := m.ClusterStorage.Scan(ctx, rollbackPrefix, after, scanCount)
		if err != nil || len(entries) == 0 {
			return err
		}
		for _, entry := range entries {
			after = entry.Key
			if time.Since(start) > roundTime {
				return nil
			}
			if err := e.rollBackOne(ctx, m, entry); aws.KindOf(err) == aws.Throttled {
				return nil // so would be the others
			} else if err != nil {
				return err
			}
		}
	}
}

// rollBackOne undoes one note if it is due. Its error is one of the storage, or that the provider throttles.
func (e *engine) rollBackOne(ctx context.Context, m engines.Mount, entry storage.Entry) error {
	n, ok := decodeNote(entry)
	if !ok {
		e.log.Debug("a rollback of another version stays", "key", string(entry.Key))
		return nil
	}
	if n.Next.After(time.Now()) {
		return nil
	}
	was, err := e.undo(ctx, m, n)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return e.postpone(ctx, m, entry.Key, err)
	}
	return e.undone(ctx, m, entry, n, was)
}

// decodeNote reads a note, and reports whether it is of a kind that can be undone.
func decodeNote(entry storage.Entry) (n rollback, ok bool) {
	err := json.Unmarshal(entry.Value, &n)
	return n, err == nil && n.Format == 1 && n.Kind == kindUser
}

func (e *engine) undo(ctx context.Context, m engines.Mount, n rollback) (was bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	return e.removeUser(ctx, m, n.made)
}

// undone deletes a note, if it is still what was undone.
func (e *engine) undone(ctx context.Context, m engines.Mount, entry storage.Entry, n rollback, was bool) error {
	_, err := m.ClusterStorage.Commit(ctx, storage.Batch{
		Reads: []storage.Read{{Key: entry.Key, Version: entry.Version}}, Deletes: n.done(entry.Key),
	})
	if errors.Is(err, storage.ErrConflict) {
		return nil // a lease has it, or another node was about it
	}
	if err == nil && !was && n.Account == "" {
		e.log.Warn("a user that may have been made is not there, and it is not known in which account it would be", "user", n.Name)
	}
	if err == nil && was {
		e.counts.RolledBack.Add(1)
		e.log.Info("a user that belonged to nothing was removed", "user", n.Name)
	}
	return err
}

// done are the keys that go when nothing is left of a user.
func (u *made) done(noted storage.Key) []storage.Key {
	if key := u.issuedKey(); key != "" {
		return []storage.Key{noted, key}
	}
	return []storage.Key{noted}
}

// removeUser removes a user if it is there, and is the one that is meant.
func (e *engine) removeUser(ctx context.Context, m engines.Mount, u made) (was bool, err error) {
	api, err := e.clients.API(ctx, m, through(u.Through)...)
	if err != nil {
		return false, err
	}
	found, err := api.GetUser(ctx, u.Name)
	switch kind := aws.KindOf(err); {
	case err == nil && u.is(found):
		return true, api.RemoveUser(ctx, u.Name)
	case err == nil:
		if err := root.SameAccount(ctx, api, u.Name, u.Account); err != nil {
			return false, err
		}
		e.log.Warn("a user has the name of one that was made here, and stays", "user", u.Name)
		return false, nil
	case kind == aws.Denied && u.ID != "": // who may remove what was made need not be allowed to look
		if err := root.SameAccount(ctx, api, u.Name, u.Account); err != nil {
			return false, err
		}
		return true, api.RemoveUser(ctx, u.Name)
	case kind == aws.NotFound:
		return false, root.SameAccount(ctx, api, u.Name, u.Account)
	}
	return false, err
}

// postpone stores when to try again. It returns the cause if it is not one of this note alone.
func (e *engine) postpone(ctx context.Context, m engines.Mount, key storage.Key, cause error) error {
	if failure.OfStore(cause) {
		return cause
	}
	var n rollback
	report := false
	_, err := storage.Update(ctx, m.ClusterStorage, func(t *storage.Txn) error {
		n = rollback{}
		if found, err := engines.GetRecord(ctx, t, key, &n); !found || err != nil {
			return err
		}
		now := time.Now().Round(0).UTC()
		n.Attempts++
		n.LastError = failure.Detail(cause)
		n.Next = now.Add(backOff(n.Attempts))
		if report = n.Attempts >= patience && now.Sub(n.ReportedAt) >= dailyNews; report {
			n.ReportedAt = now
		}
		return engines.PutRecord(t, key, &n)
	})
	if err != nil {
		return err
	}
	switch {
	case report:
		e.log.Error("a user that belongs to nothing cannot be removed: remove the cause: it is retried", "user", n.Name, "attempts", n.Attempts, "err", cause)
	case n.Attempts < patience:
		e.log.Warn("a user that belongs to nothing could not be removed: it is retried", "user", n.Name, "attempts", n.Attempts, "err", cause)
	}
	if aws.KindOf(cause) == aws.Throttled {
		return cause
	}
	return nil
}

// backOff returns how long to wait after so many attempts.
func backOff(attempts int) time.Duration {
	d := engines.Backoff(minBack, maxBack, attempts)
	return d - d/5 + mathrand.N(d/5+1) //nolint:gosec // jitter, not a secret
}

type rollbackIn struct {
	ID string `json:"id" help:"Id of the rollback."`
}

func listRollbacks(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	entries, err := req.Mount.ClusterStorage.Scan(ctx, rollbackPrefix, "", 0)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, engines.NotFound("")
	}
	keys := make([]string, 0, len(entries))
	info := make(map[string]any, len(entries))
	for _, entry := range entries {
		var n rollback
		if err := json.Unmarshal(entry.Value, &n); err != nil {
			return nil, fmt.Errorf("decoding %q: unknown format", entry.Key)
		}
		id := string(entry.Key[len(rollbackPrefix):])
		keys = append(keys, id)
		info[id] = n.data(id)
	}
	return &engines.Response{Data: map[string]any{"keys": keys, "key_info": info}}, nil
}

func readRollback(ctx context.Context, req *engines.Request, in *rollbackIn) (*engines.Response, error) {
	var n rollback
	found, err := engines.GetRecord(ctx, req.Mount.ClusterStorage, rollbackPrefix+storage.Key(in.ID), &n)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: n.data(in.ID)}, nil
}

func (n *rollback) data(id string) map[string]any {
	return map[string]any{
		"id": id, "kind": n.Kind, "user": n.Name, "account": n.Account, "created_at": root.TimeOrNil(n.CreatedAt), "attempts": n.Attempts,
		"next_attempt": root.TimeOrNil(n.Next), "last_error": n.LastError,
	}
}
