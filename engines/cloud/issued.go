package cloud

import (
	"context"
	"encoding/json"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/cloud/root"
	"github.com/coffer-project/coffer/storage"
)

const issuedPrefix storage.Key = "issued/"

// issued stands for a user of a role, from before it is made until it is removed, as JSON under issued/<role>/<user>.
type issued struct {
	Format int `json:"format"` // 1
	// Ends is when its lease ends at the latest. A user whose lease was removed by force counts until then.
	Ends time.Time `json:"ends"`
}

func (i *issued) RecordFormat() *int { return &i.Format }

// issuedKey is where a user is counted, "" for one of an earlier version.
func (u *made) issuedKey() storage.Key {
	if u.Role == "" {
		return ""
	}
	return issuedPrefix + storage.Key(u.Role+"/"+u.Name)
}

// admit stores the rollback of a user that is about to be made, due at next, and counts the user. The error is an Error of KindInvalid if there are as
// many users as the role or the mount may have.
func (e *engine) admit(ctx context.Context, m engines.Mount, r *role.Role, conf *root.Root, u made, ends, next time.Time) (storage.Key, error) {
	e.counting.Lock() // only this node, which is the active one, issues for the cluster
	defer e.counting.Unlock()
	for _, limit := range []struct {
		most  int
		below storage.Key
		of    string
	}{{r.MaxUsers, issuedPrefix + storage.Key(r.Name+"/"), "role"}, {conf.MaxUsers, issuedPrefix, "mount"}} {
		if limit.most == 0 {
			continue
		}
		n, err := countIssued(ctx, m, limit.below)
		if err != nil {
			return "", err
		}
		if n >= limit.most {
			return "", engines.Invalid("the %s has %d users, and max_users is %d: revoke leases that are not needed, or raise max_users", limit.of, n, limit.most)
		}
	}
	return noteCounted(ctx, m, u, next, &issued{Ends: ends.Round(0).UTC()})
}

// countIssued counts users, and forgets those whose leases ended long ago.
func countIssued(ctx context.Context, m engines.Mount, below storage.Key) (int, error) {
	n, now := 0, time.Now()
	var over []storage.Key
	for after := storage.Key(""); ; {
		entries, err := m.ClusterStorage.Scan(ctx, below, after, scanCount)
		if err != nil {
			return 0, err
		}
		if len(entries) == 0 {
			break
		}
		for _, entry := range entries {
			after = entry.Key
			var i issued
			if engines.DecodeRecord(entry, &i) == nil && now.After(i.Ends.Add(settleTime)) {
				over = append(over, entry.Key)
				continue
			}
			n++
		}
	}
	if over == nil {
		return n, nil
	}
	_, err := m.ClusterStorage.Commit(ctx, storage.Batch{Deletes: over})
	return n, err
}

// extend counts the user of a lease until ends, if it is counted and that is later than it was.
func extend(ctx context.Context, m engines.Mount, l engines.LeaseRecord, ends time.Time) error {
	var u userLease
	if err := json.Unmarshal(l.Internal, &u); err != nil || u.issuedKey() == "" {
		return err
	}
	_, err := storage.Update(ctx, m.ClusterStorage, func(tx *storage.Txn) error {
		var i issued
		found, err := engines.GetRecord(ctx, tx, u.issuedKey(), &i)
		if err != nil || !found || !ends.After(i.Ends.Add(settleTime)) {
			return err
		}
		i.Ends = ends.Round(0).UTC()
		return engines.PutRecord(tx, u.issuedKey(), &i)
	})
	return err
}

// release counts a user no longer.
func release(ctx context.Context, m engines.Mount, u *made) error {
	key := u.issuedKey()
	if key == "" {
		return nil
	}
	_, err := m.ClusterStorage.Commit(ctx, storage.Batch{Deletes: []storage.Key{key}})
	return err
}
