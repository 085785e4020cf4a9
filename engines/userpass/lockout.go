package userpass

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/fairqueue"
	"github.com/coffer-project/coffer/storage"
)

const (
	// anywhere is the source of what counts, or locks, whatever address a login comes from.
	anywhere = "*"
	// anywhereFactor times the threshold is how many wrong passwords lock a name at all addresses.
	anywhereFactor = 10

	maxCounted    = 1 << 16          // counters in memory; more drop the one that was not used for the longest time
	maxNameLocks  = 64               // sources that one name is locked at; more drop the lock that ends first
	unknownSlots  = 1024             // records for the locks of names without a user
	maxSlotLocks  = 16               // of one such record
	sweepInterval = 15 * time.Minute // of what is stored and has ended
	storeTimeout  = 10 * time.Second
)

const (
	lockedPrefix  storage.Key = "locked/"         // by name of the user
	unknownPrefix storage.Key = "locked-unknown/" // by slot
)

// lock is one stored lock.
type lock struct {
	Name   string    `json:"name"`
	Source string    `json:"source"` // or anywhere
	Until  time.Time `json:"until"`
	// Password is the fingerprint of the user's password hash: a new password is not locked. "" of a name without a user.
	Password string `json:"password,omitempty"`
}

type lockRecord struct {
	Format int    `json:"format"` // 1
	Locks  []lock `json:"locks"`
}

// RecordFormat implements engines.Record.
func (r *lockRecord) RecordFormat() *int { return &r.Format }

// attempt is what a lock depends on.
type attempt struct {
	mount    engines.Mount
	name     string
	source   string
	known    bool
	password string // fingerprint
	now      time.Time
}

func newAttempt(req *engines.Request, name string, u *user) attempt {
	a := attempt{mount: req.Mount, name: name, source: sourceName(req), known: u != nil, now: time.Now()}
	if u != nil {
		a.password = fingerprint(u.Hash)
	}
	return a
}

// sourceName returns the address that a request counts for, as people write it.
func sourceName(req *engines.Request) string {
	switch network := fairqueue.Network(req.RemoteIP); {
	case !network.IsValid():
		return "unknown"
	case network.IsSingleIP():
		return network.Addr().String()
	default:
		return network.String()
	}
}

func fingerprint(hash string) string {
	sum := sha256.Sum256([]byte(hash))
	return hex.EncodeToString(sum[:8])
}

// key returns where the locks of the name are stored. Strangers choose the names without a user: these share a fixed
// number of records, which no stranger can choose, because the mount's UUID is not told without a token.
func (a *attempt) key() storage.Key {
	if a.known {
		return lockedPrefix + storage.Key(a.name)
	}
	sum := sha256.Sum256([]byte(a.mount.UUID + "\x00" + a.name))
	return unknownPrefix + storage.Key(fmt.Sprintf("%04d", binary.BigEndian.Uint16(sum[:])%unknownSlots))
}

func (a *attempt) lockedBy(l lock) bool {
	return l.Name == a.name && l.Password == a.password && a.now.Before(l.Until) && (l.Source == a.source || l.Source == anywhere)
}

// counter names what wrong passwords are counted for: a name, from one source or anywhere.
type counter struct{ name, source string }

// failures are the wrong passwords of one counter.
type failures struct {
	counter
	count int
	last  time.Time
}

// lockout counts wrong passwords, in memory, and stores the locks that follow: those are the cluster's, and outlive a
// change of the active node. Names without a user are treated alike, so that a lock does not tell who exists.
type lockout struct {
	mu       sync.Mutex
	counters map[counter]*list.Element // of *failures
	byAge    list.List                 // the one that was not used for the longest time first

	sweptAt time.Time // by the one goroutine that works for the mount
}

func newLockout() *lockout { return &lockout{counters: map[counter]*list.Element{}} }

// count returns how many wrong passwords count for c.
func (l *lockout) count(c counter, now time.Time, reset time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.counters[c]
	if e == nil || now.Sub(e.Value.(*failures).last) >= reset {
		return 0
	}
	return e.Value.(*failures).count
}

// add counts one more.
func (l *lockout) add(c counter, now time.Time, reset time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.counters[c]
	if e == nil {
		if len(l.counters) >= maxCounted {
			delete(l.counters, l.byAge.Remove(l.byAge.Front()).(*failures).counter)
		}
		e = l.byAge.PushBack(&failures{counter: c})
		l.counters[c] = e
	}
	l.byAge.MoveToBack(e)
	f := e.Value.(*failures)
	if now.Sub(f.last) >= reset {
		f.count = 0
	}
	f.count, f.last = f.count+1, now
	return f.count
}

// forget drops counters.
func (l *lockout) forget(which ...counter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range which {
		if e := l.counters[c]; e != nil {
			l.byAge.Remove(e)
			delete(l.counters, c)
		}
	}
}

// forgetName drops all counters of a name.
func (l *lockout) forgetName(name string) {
	l.mu.Lock()
	var which []counter
	for c := range l.counters {
		if c.name == name {
			which = append(which, c)
		}
	}
	l.mu.Unlock()
	l.forget(which...)
}

// locked reports whether the password is not even looked at.
func (l *lockout) locked(ctx context.Context, a attempt) (bool, error) {
	set := a.mount.Lockout.OrDefault()
	if set.Disabled {
		return false, nil
	}
	// A lock that could not be stored yet.
	if l.count(counter{a.name, a.source}, a.now, set.CounterReset) >= set.Threshold ||
		l.count(counter{a.name, anywhere}, a.now, set.CounterReset) >= anywhereFactor*set.Threshold {
		return true, nil
	}
	r, err := getLocks(ctx, a.mount.ClusterStorage, a.key())
	return err == nil && slices.ContainsFunc(r.Locks, a.lockedBy), err
}

// failed counts a wrong password, and locks the name when it was one too many.
func (l *lockout) failed(ctx context.Context, a attempt) (locks bool, err error) {
	set := a.mount.Lockout.OrDefault()
	if set.Disabled {
		return false, nil
	}
	own, all := counter{a.name, a.source}, counter{a.name, anywhere}
	var reached []counter
	if l.add(own, a.now, set.CounterReset) >= set.Threshold {
		reached = append(reached, own)
	}
	if l.add(all, a.now, set.CounterReset) >= anywhereFactor*set.Threshold {
		reached = append(reached, all)
	}
	if len(reached) == 0 {
		return false, nil
	}
	// A client that goes away must not keep its lock from being stored.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	_, err = storage.Update(ctx, a.mount.ClusterStorage, func(t *storage.Txn) error {
		r, err := getLocks(ctx, t, a.key())
		if err != nil {
			return err
		}
		for _, c := range reached {
			r.add(lock{Name: a.name, Source: c.source, Until: a.now.Add(set.Duration), Password: a.password}, a)
		}
		return r.put(t, a.key())
	})
	if err == nil {
		l.forget(reached...)
	}
	return true, err
}

// succeeded forgets what counted against the login.
func (l *lockout) succeeded(a attempt) {
	l.forget(counter{a.name, a.source}, counter{a.name, anywhere})
}

func getLocks(ctx context.Context, s engines.Getter, key storage.Key) (*lockRecord, error) {
	r := new(lockRecord)
	_, err := engines.GetRecord(ctx, s, key, r)
	return r, err
}

// add puts a lock in, in place of one for the same, of those that have ended and of those too many.
func (r *lockRecord) add(l lock, a attempt) {
	r.Locks = slices.DeleteFunc(r.Locks, func(old lock) bool {
		return !a.now.Before(old.Until) || old.Name == l.Name && (old.Source == l.Source || old.Password != l.Password)
	})
	most := maxNameLocks
	if !a.known {
		most = maxSlotLocks
	}
	r.Locks = append(r.Locks, l)
	slices.SortStableFunc(r.Locks, func(a, b lock) int { return a.Until.Compare(b.Until) })
	r.Locks = r.Locks[max(0, len(r.Locks)-most):]
}

// put stores the record, if there is still a lock in it.
func (r *lockRecord) put(t *storage.Txn, key storage.Key) error {
	if len(r.Locks) == 0 {
		t.Delete(key)
		return nil
	}
	return engines.PutRecord(t, key, r)
}

// LockedUsers implements engines.Locker.
func (e *engine) LockedUsers(ctx context.Context, m engines.Mount) ([]engines.LockedUser, error) {
	names, err := m.ClusterStorage.List(ctx, lockedPrefix, "", 0)
	if err != nil {
		return nil, err
	}
	var out []engines.LockedUser
	for _, name := range names {
		u, err := getUser(ctx, m.Storage, name)
		if err != nil {
			return nil, err
		}
		r, err := getLocks(ctx, m.ClusterStorage, lockedPrefix+storage.Key(name))
		if err != nil {
			return nil, err
		}
		if u == nil {
			continue
		}
		locked := engines.LockedUser{Name: name}
		for _, l := range r.Locks {
			a := attempt{name: name, source: l.Source, password: fingerprint(u.Hash), now: time.Now()}
			switch {
			case !a.lockedBy(l):
				continue
			case l.Source == anywhere:
				locked.Everywhere = true
			default:
				locked.Sources = append(locked.Sources, l.Source)
			}
			if l.Until.After(locked.Until) {
				locked.Until = l.Until
			}
		}
		if !locked.Until.IsZero() {
			slices.Sort(locked.Sources)
			out = append(out, locked)
		}
	}
	return out, nil
}

// UnlockUser implements engines.Locker.
func (e *engine) UnlockUser(ctx context.Context, m engines.Mount, name string) error {
	name, err := normalName(name)
	if err != nil {
		return err
	}
	_, err = m.ClusterStorage.Commit(ctx, storage.Batch{Deletes: []storage.Key{lockedPrefix + storage.Key(name)}})
	if err == nil {
		e.locks.forgetName(name)
	}
	return err
}

// Work implements engines.Worker: it removes the locks that have ended, and those of users that are gone.
func (e *engine) Work(ctx context.Context, m engines.Mount, _ bool) error {
	now := time.Now()
	if now.Sub(e.locks.sweptAt) < sweepInterval {
		return nil
	}
	for _, prefix := range []storage.Key{lockedPrefix, unknownPrefix} {
		names, err := m.ClusterStorage.List(ctx, prefix, "", 0)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := sweep(ctx, m.ClusterStorage, prefix+storage.Key(name), now); err != nil {
				return err
			}
		}
	}
	e.locks.sweptAt = now
	return nil
}

func sweep(ctx context.Context, s storage.Store, key storage.Key, now time.Time) error {
	ended := func(l lock) bool { return !now.Before(l.Until) }
	if r, err := getLocks(ctx, s, key); err != nil || !slices.ContainsFunc(r.Locks, ended) {
		return err
	}
	_, err := storage.Update(ctx, s, func(t *storage.Txn) error {
		r, err := getLocks(ctx, t, key)
		if err != nil {
			return err
		}
		r.Locks = slices.DeleteFunc(r.Locks, ended)
		return r.put(t, key)
	})
	return err
}
