package primaries

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// FormerKeys is below what the former primaries are that may not know it yet: + hex of a cluster id. Local to the cluster.
const FormerKeys storage.Key = "l/replication/former/"

// A primary whose place another cluster has taken may not know it: it was away, or a link was cut. The cluster that was
// promoted announces itself at the addresses that it followed, with the certificate it had there, until the former primary
// is fenced or demoted. It does so in every role, of which a later one may be announced, and on every active node. A primary
// goes on asking a former one that has confirmed: by that it hears of a sibling that was promoted by force, too, and
// whose announcement came later.

// Former is the entry of a primary that this cluster was promoted without, until that enrols here.
type Former struct {
	Format      int              `json:"format"` // 1
	Upstream    traffic.Upstream `json:"upstream"`
	Since       time.Time        `json:"since"`
	ConfirmedAt time.Time        `json:"confirmed_at,omitzero"` // zero: it has not confirmed yet that it is no primary any more
}

func formerKey(clusterID string) storage.Key {
	return FormerKeys + storage.Key(hex.EncodeToString([]byte(clusterID)))
}

// PutFormer is part of the commit of a promotion: the primary that this cluster followed is to be told of it.
func PutFormer(tx *storage.Txn, up *traffic.Upstream, since time.Time) {
	tx.Put(formerKey(up.PrimaryID), entry.Encode(Former{Format: 1, Upstream: *up, Since: since}))
}

const (
	announceInterval    = time.Second // before the second attempt, doubled with each
	maxAnnounceInterval = time.Minute
	askConfirmedFor     = 7 * 24 * time.Hour
	announceTimeout     = 20 * time.Second
)

// attempts is how the announcements of this node went, by cluster id.
type attempts struct {
	mu   sync.Mutex
	last map[string]attempt
}

type attempt struct {
	at  time.Time
	err error
}

func (a *attempts) note(id string, now time.Time, err error) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[string]attempt{}
	}
	before, known := a.last[id]
	a.last[id] = attempt{now, err}
	return !known || fmt.Sprint(before.err) != fmt.Sprint(err)
}

func (a *attempts) of(id string) attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[id]
}

// formerPrimaries returns the entries, also of those that have confirmed.
func (k *Known) formerPrimaries(ctx context.Context) ([]Former, error) {
	entries, err := k.o.Store.Scan(ctx, FormerKeys, "", 0)
	if err != nil {
		return nil, err
	}
	var out []Former
	for _, e := range entries {
		f, err := entry.Decode[Former](e)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// Unconfirmed returns the former primaries that may still take writes.
func (k *Known) Unconfirmed(ctx context.Context) ([]Former, error) {
	all, err := k.formerPrimaries(ctx)
	return slices.DeleteFunc(all, func(f Former) bool { return !f.ConfirmedAt.IsZero() }), err
}

// Announce tells former primaries of the latest one that this cluster knows of, again and again, until ctx ends.
func (k *Known) Announce(ctx context.Context) {
	wait := announceInterval
	for ctx.Err() == nil {
		left, confirmed, err := k.announceAll(ctx)
		var again <-chan time.Time
		switch {
		case left > 0 || err != nil:
			again, wait = time.After(wait), min(2*wait, maxAnnounceInterval)
		case confirmed > 0:
			again = time.After(maxAnnounceInterval)
		}
		select {
		case <-again:
		case <-k.wake:
			wait = announceInterval
		case <-ctx.Done():
		}
	}
}

// announceAll makes one attempt at each former primary, and returns how many have not confirmed, and how many have and
// are asked again.
func (k *Known) announceAll(ctx context.Context) (left, confirmed int, err error) {
	formers, err := k.formerPrimaries(ctx)
	if err != nil {
		return 0, 0, err
	}
	for i := range formers {
		f := &formers[i]
		id := f.Upstream.PrimaryID
		done, err := k.announceTo(ctx, f)
		again := false
		if done || !f.ConfirmedAt.IsZero() {
			again, err = k.confirmed(ctx, f)
		}
		if ctx.Err() != nil {
			return len(formers), 0, ctx.Err()
		}
		if again {
			confirmed++
		}
		if err == nil && !f.ConfirmedAt.IsZero() {
			continue
		}
		news := k.attempts.note(id, time.Now(), err)
		switch {
		case err == nil && done:
			k.o.Logger.Info("the former primary knows of the later one", "cluster", id)
			continue
		case news:
			k.o.Logger.Warn("the former primary does not know of the later one yet: it may still take writes; trying again",
				"cluster", id, "addresses", strings.Join(f.Upstream.Addrs, ", "), "err", err)
		}
		left++
	}
	return left, confirmed, nil
}

// confirmed keeps the entry of a former primary that has confirmed while there may be something to hear of it, and reports
// whether that is so. Otherwise it deletes the entry. An entry that was deleted meanwhile stays so.
func (k *Known) confirmed(ctx context.Context, f *Former) (again bool, err error) {
	key := formerKey(f.Upstream.PrimaryID)
	_, err = storage.Update(ctx, k.o.Store, func(tx *storage.Txn) error {
		again = false
		now, err := entry.Fetch[Former](ctx, tx, key)
		if errors.Is(err, storage.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		r, err := roles.Read(ctx, tx)
		if err != nil {
			return err
		}
		switch {
		case r.Mode != roles.Primary || r.Fenced != 0 || r.SetID != f.Upstream.SetID:
			tx.Delete(key)
			return nil
		case now.ConfirmedAt.IsZero():
			now.ConfirmedAt = time.Now().UTC()
			tx.Put(key, entry.Encode(now))
		case time.Since(now.ConfirmedAt) > askConfirmedFor:
			tx.Delete(key)
			return nil
		}
		again = true
		return nil
	})
	return again && err == nil, err
}

// announceTo makes one attempt. done: the former primary is none any more, or is the later one itself.
func (k *Known) announceTo(ctx context.Context, f *Former) (done bool, err error) {
	r, err := k.o.Cluster.Current(ctx)
	if err != nil {
		return false, err
	}
	if r.Mode == roles.Disabled || r.SetID != f.Upstream.SetID {
		return true, nil // it is no longer this cluster's business
	}
	latest, err := k.Latest(ctx, &r)
	if err != nil {
		return false, err
	}
	if latest.ClusterID == f.Upstream.PrimaryID {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	reply, err := k.o.Link.Announce(ctx, f.Upstream, replication.Announcement{SetID: r.SetID, OtherPrimary: latest})
	if err != nil {
		return false, err
	}
	if err := k.meetAll(ctx, &f.Upstream, &reply); err != nil {
		return false, err
	}
	switch {
	case !reply.Primary || reply.Fenced:
		return true, nil
	case reply.After(latest.EpochID):
		return true, nil // and this cluster is fenced by it
	}
	return false, fmt.Errorf("it still is a primary, in epoch %d", reply.Number)
}

// meetAll keeps the primaries that the reply of a former one names: itself if it is one still, and the one that it follows.
func (k *Known) meetAll(ctx context.Context, former *traffic.Upstream, reply *replication.AnnounceReply) error {
	others := reply.Others
	switch {
	case reply.Primary && !reply.Fenced:
		others = append(others, replication.OtherPrimary{EpochID: reply.EpochID, APIAddr: former.APIAddr})
	case !reply.Primary && reply.ClusterID != former.PrimaryID:
		others = append(others, replication.OtherPrimary{EpochID: reply.EpochID})
	}
	return k.Meet(ctx, others...)
}

// LastAttempt returns when a former primary was last told of a later one, and why that has failed.
func (k *Known) LastAttempt(clusterID string) (at time.Time, err error) {
	last := k.attempts.of(clusterID)
	return last.at, last.err
}
