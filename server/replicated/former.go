package replicated

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// A primary whose place another cluster has taken may not know it: it was away, or a link was cut. The cluster that was
// promoted announces itself at the addresses that it followed, with the certificate it had there, until the former primary
// is fenced or demoted. It does so in every role, of which a later one may be announced, and on every active node.

// formerPrimary is the entry of a primary that has not confirmed yet that it is none any more.
type formerPrimary struct {
	Format   int       `json:"format"` // 1
	Upstream Upstream  `json:"upstream"`
	Since    time.Time `json:"since"`
}

func formerKey(clusterID string) storage.Key {
	return formerKeys + storage.Key(hex.EncodeToString([]byte(clusterID)))
}

const (
	announceInterval    = time.Second // before the second attempt, doubled with each
	maxAnnounceInterval = time.Minute
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

// formerPrimaries returns those that have not confirmed yet.
func (s *Store) formerPrimaries(ctx context.Context) ([]formerPrimary, error) {
	entries, err := s.store.Scan(ctx, formerKeys, "", 0)
	if err != nil {
		return nil, err
	}
	var out []formerPrimary
	for _, e := range entries {
		f, err := decodeEntry[formerPrimary](e)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// announce tells former primaries of the latest one that this cluster knows of, again and again, until ctx ends.
func (s *Store) announce(ctx context.Context) {
	wait := announceInterval
	for ctx.Err() == nil {
		left, err := s.announceAll(ctx)
		var again <-chan time.Time
		if left > 0 || err != nil {
			again, wait = time.After(wait), min(2*wait, maxAnnounceInterval)
		}
		select {
		case <-again:
		case <-s.formers:
			wait = announceInterval
		case <-ctx.Done():
		}
	}
}

// announceAll makes one attempt at each former primary, and returns how many have not confirmed.
func (s *Store) announceAll(ctx context.Context) (left int, err error) {
	formers, err := s.formerPrimaries(ctx)
	if err != nil {
		return 0, err
	}
	for i := range formers {
		f := &formers[i]
		id := f.Upstream.PrimaryID
		done, err := s.announceTo(ctx, f)
		if done {
			_, err = s.store.Commit(ctx, storage.Batch{Deletes: []storage.Key{formerKey(id)}})
		}
		if ctx.Err() != nil {
			return len(formers), ctx.Err()
		}
		news := s.attempts.note(id, s.opts.Now(), err)
		switch {
		case err == nil && done:
			s.log.Info("the former primary knows of the later one", "cluster", id)
			continue
		case news:
			s.log.Warn("the former primary does not know of the later one yet: it may still take writes; trying again",
				"cluster", id, "addresses", strings.Join(f.Upstream.Addrs, ", "), "err", err)
		}
		left++
	}
	return left, nil
}

// announceTo makes one attempt. done: the former primary is none any more, or is the later one itself.
func (s *Store) announceTo(ctx context.Context, f *formerPrimary) (done bool, err error) {
	r, err := s.Current(ctx)
	if err != nil {
		return false, err
	}
	if r.Mode == Disabled || r.SetID != f.Upstream.SetID {
		return true, nil // it is no longer this cluster's business
	}
	latest, err := s.latest(ctx, &r)
	if err != nil {
		return false, err
	}
	if latest.ClusterID == f.Upstream.PrimaryID {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	reply, err := s.link.Announce(ctx, f.Upstream, Announcement{SetID: r.SetID, OtherPrimary: latest})
	if err != nil {
		return false, err
	}
	if err := s.meetAll(ctx, f.Upstream.APIAddr, &reply); err != nil {
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

// meetAll keeps the primaries that a reply names, the cluster itself among them if it is one.
func (s *Store) meetAll(ctx context.Context, apiAddr string, reply *AnnounceReply) error {
	others := reply.Others
	if reply.Primary && !reply.Fenced {
		others = append(others, OtherPrimary{EpochID: reply.EpochID, APIAddr: apiAddr})
	}
	return s.meet(ctx, others...)
}
