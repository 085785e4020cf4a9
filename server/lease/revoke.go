package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/queue"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/storage"
)

const (
	maxTries     = 6
	firstBackOff = 10 * time.Second // doubles, and up to a fifth more or less
	callTimeout  = time.Minute      // of one call of an engine
	syncCalls    = 8                // at a time, for a waiting caller
	scanPage     = 256
)

// Revoke ends a lease of namespace ns or one below it; ErrNotFound if there is none. It returns when that is
// certain, or with wait when it is done; then an error of the engine is returned, and it is tried again later.
func (m *Manager) Revoke(ctx context.Context, ns, id string, wait bool) error {
	rec, err := m.find(ctx, ns, id)
	if err != nil {
		return err
	}
	_, err = m.markAndRevoke(ctx, []index.Ref{{Namespace: rec.Namespace, ID: rec.ID}}, byHand, wait)
	return err
}

// RevokePrefix ends all leases of exactly the namespace ns whose id is prefix or begins with prefix and a slash;
// "" is all of them. It returns how many, when that is certain, or with wait when it is done; then the first error
// is returned after everything was tried.
func (m *Manager) RevokePrefix(ctx context.Context, ns, prefix string, wait bool) (n int, err error) {
	return m.revokePrefix(ctx, ns, prefix, wait, byHand)
}

// RevokeForce is RevokePrefix that waits, and removes leases even if the engine fails: then what they stand for may
// live on, and the log says so.
func (m *Manager) RevokeForce(ctx context.Context, ns, prefix string) (n int, err error) {
	return m.revokePrefix(ctx, ns, prefix, true, byForce)
}

func (m *Manager) revokePrefix(ctx context.Context, ns, prefix string, wait bool, how marking) (n int, err error) {
	if ns == "" {
		ns = record.RootNamespace
	}
	prefix = strings.TrimSuffix(prefix, "/")
	if prefix != "" {
		if n, err = m.markAndRevoke(ctx, []index.Ref{{Namespace: ns, ID: prefix}}, how, wait); n > 0 || err != nil {
			return n, err
		}
		prefix += "/"
	}
	var first error
	from := record.KeyOf(ns, prefix)
	for after := storage.Key(""); ; {
		page, err := m.store.Scan(ctx, from, after, scanPage)
		if err != nil {
			return n, err
		}
		var refs []index.Ref
		for _, e := range page {
			refs = append(refs, index.Ref{Namespace: ns, ID: strings.TrimPrefix(string(e.Key), string(record.KeyOf(ns, "")))})
			after = e.Key
		}
		ended, err := m.markAndRevoke(ctx, refs, how, wait)
		if n += ended; err != nil && !isRefusal(err) {
			return n, err
		} else if first == nil {
			first = err
		}
		if len(page) < scanPage {
			return n, first
		}
	}
}

// RevokeToken ends all leases of a token. It returns when that is certain, not when it is done.
func (m *Manager) RevokeToken(ctx context.Context, tokenKey string) error {
	if tokenKey == "" {
		return nil
	}
	prefix := record.TokenPrefix + storage.Key(tokenKey+"/")
	for after := ""; ; {
		page, err := m.store.List(ctx, prefix, after, scanPage)
		if err != nil {
			return fmt.Errorf("listing the leases of a token: %w", err)
		}
		var refs []index.Ref
		for _, name := range page {
			after = name
			if ns, id, ok := index.ParseShort(name); ok {
				refs = append(refs, index.Ref{Namespace: ns, ID: id})
			}
		}
		if _, err := m.markAndRevoke(ctx, refs, byHand, false); err != nil {
			return fmt.Errorf("ending the leases of a token: %w", err)
		}
		if len(page) < scanPage {
			return nil
		}
	}
}

// RevokeMount ends all leases of a mount, wherever they are, and waits: everything is tried once, while the engine
// still has its configuration. The first error says that some are left.
func (m *Manager) RevokeMount(ctx context.Context, uuid string) (n int, err error) {
	var first error
	var refs []index.Ref
	tried := map[string]bool{} // a postponed lease is re-indexed later in the range, so skip it there
	flush := func() error {
		ended, err := m.markAndRevoke(ctx, refs, byHand, true)
		for _, r := range refs {
			if err != nil {
				tried[r.ID] = true
			}
		}
		refs = nil
		if n += ended; err != nil && !isRefusal(err) {
			return err
		} else if first == nil {
			first = err
		}
		return nil
	}
	for _, prefix := range []storage.Key{index.ExpPrefix, index.StuckPrefix} {
		for name, err := range m.names(ctx, prefix, "") {
			if err != nil {
				return n, err
			}
			r, ok := index.Parse(name)
			if !ok || r.Mount != uuid || tried[r.ID] {
				continue
			}
			if refs = append(refs, index.Ref{Namespace: r.Namespace, ID: r.ID}); len(refs) == scanPage {
				if err := flush(); err != nil {
					return n, err
				}
			}
		}
	}
	if err := flush(); err != nil {
		return n, err
	}
	return n, first
}

// markAndRevoke marks leases, and with wait revokes them. It returns how many there were, and with wait the first error of an
// engine after everything was tried.
func (m *Manager) markAndRevoke(ctx context.Context, refs []index.Ref, how marking, wait bool) (n int, err error) {
	for len(refs) > 0 {
		batch := refs[:min(len(refs), queue.MarkBatch)]
		refs = refs[len(batch):]
		ended, e := m.endBatch(ctx, batch, how, wait)
		if n += ended; e != nil && !isRefusal(e) {
			return n, e
		} else if err == nil {
			err = e
		}
	}
	return n, err
}

// endBatch claims what it waits for before it marks, so that no other caller begins with it.
func (m *Manager) endBatch(ctx context.Context, refs []index.Ref, how marking, wait bool) (n int, err error) {
	claimed := map[string]bool{}
	if wait {
		for _, r := range refs {
			if m.claim(r.ID) == nil {
				claimed[r.ID] = true
			}
		}
	}
	marked, err := m.mark(ctx, refs, how)
	var mine, others []*record.Record
	for _, rec := range marked {
		if claimed[rec.ID] {
			mine = append(mine, rec)
			delete(claimed, rec.ID)
		} else {
			others = append(others, rec)
		}
	}
	for id := range claimed {
		m.release(id)
	}
	if err != nil {
		err = fmt.Errorf("marking leases: %w", err)
	}
	if !wait {
		return len(marked), err
	}
	// First the leases without another holder: two callers may each be about what the other one wants.
	err = cmp.Or(err, forEachLimited(mine, func(rec *record.Record) error {
		defer m.release(rec.ID)
		return m.finish(ctx, rec)
	}))
	return len(marked), cmp.Or(err, forEachLimited(others, func(rec *record.Record) error { return m.await(ctx, rec) }))
}

// isRefusal reports whether the error is about one lease, so that the others can go on.
func isRefusal(err error) bool {
	var e *engines.Error
	return errors.As(err, &e)
}

// forEachLimited does something with each record, a few at a time, and returns the first error.
func forEachLimited(recs []*record.Record, do func(*record.Record) error) (first error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, syncCalls) // holds one element for each call
	for _, rec := range recs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := do(rec); err != nil {
				mu.Lock()
				defer mu.Unlock()
				first = cmp.Or(first, err)
			}
		})
	}
	wg.Wait()
	return first
}

// await waits for the holder of a marked lease, and then does what is left to do.
func (m *Manager) await(ctx context.Context, rec *record.Record) error {
	for {
		busy := m.claim(rec.ID)
		if busy == nil {
			break
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer m.release(rec.ID)
	now, err := record.Get(ctx, m.store, rec.Namespace, rec.ID)
	if errors.Is(err, storage.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	return m.finish(ctx, now)
}

// finish revokes a marked lease that is claimed.
func (m *Manager) finish(ctx context.Context, rec *record.Record) error {
	if err := m.attempt(ctx, rec); err != nil {
		if e := m.postpone(ctx, rec, err); e != nil {
			return e
		}
		return &engines.Error{Kind: engines.KindUpstream, Err: err,
			Detail: fmt.Sprintf("lease %s could not be revoked now, it is tried again later: %s", rec.ID, clientText(err))}
	}
	if err := m.removeOne(ctx, rec); err != nil {
		return fmt.Errorf("removing a revoked lease: %w", err)
	}
	m.revoked.Add(1)
	return nil
}

// claim makes the caller the only one to be about a lease, until release; or it returns a channel that is closed
// when another one is done.
func (m *Manager) claim(id string) (busy <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.busy[id]; c != nil {
		return c
	}
	m.busy[id] = make(chan struct{})
	return nil
}

func (m *Manager) release(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.busy[id])
	delete(m.busy, id)
}

// attempt asks the engine of a marked lease, in the time it has. What is to be removed by force has no errors, but
// for those of the context.
func (m *Manager) attempt(ctx context.Context, rec *record.Record) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := m.revokeAtEngine(call, rec)
	if err != nil && rec.Force && ctx.Err() == nil {
		m.log.Warn("a lease is removed although its engine failed: what it stands for may live on", "mount", rec.MountPath, "lease", rec.ID, "err", err)
		return nil
	}
	return err
}

// revokeAtEngine has the engine revoke what the lease stands for. An engine that panics has failed.
func (m *Manager) revokeAtEngine(ctx context.Context, rec *record.Record) (err error) {
	engine, mount, ok := m.opts.Mounts.EngineOf(ctx, rec.Mount)
	if err := ctx.Err(); err != nil {
		return err
	}
	if !ok {
		return nil // gone, and what it stood for with it
	}
	if engine == nil {
		return fmt.Errorf("finding the engine of a lease: %w", storage.ErrUnavailable)
	}
	leaser, ok := engine.(engines.Leaser)
	if !ok {
		return fmt.Errorf("engines of type %s do not revoke leases", mount.Type)
	}
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the engine panicked")
		}
	}()
	return leaser.RevokeLease(ctx, mount, rec.ForEngine())
}

// clientText is what clients may see of an engine's error.
func clientText(err error) string {
	var e *engines.Error
	if errors.As(err, &e) && e.Kind != engines.KindInternal {
		return e.Detail
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "the engine took too long"
	}
	return "the engine failed, the server's log says how"
}

// postpone stores when a marked lease that could not be revoked is tried again, or that it was given up. What is
// not the engine's fault does not count as a try.
func (m *Manager) postpone(ctx context.Context, rec *record.Record, cause error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if isOutage(cause) {
		return cause
	}
	m.failed.Add(1)
	var gaveUp *record.Record
	err := m.update(ctx, func(t *storage.Txn) ([]step, error) {
		gaveUp = nil
		now, err := record.Get(ctx, t, rec.Namespace, rec.ID)
		if errors.Is(err, storage.ErrNotFound) || err == nil && now.State != record.Revoking {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		before := now.IndexKey()
		now.Tries++
		now.Reason = clientText(cause)
		now.IndexedAt = m.clock.Now()
		if now.Tries >= maxTries {
			now.State = record.Irrevocable
			gaveUp = now
		} else {
			now.IndexedAt = now.IndexedAt.Add(backOff(now.Tries))
		}
		record.Put(t, now, before)
		return []step{{before, now.IndexKey()}}, nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("storing when to try again: %w", err)
	case gaveUp != nil:
		m.warn("a lease is irrevocable: remove the cause and revoke it again, or remove it with sys/leases/revoke-force", gaveUp, cause)
	default:
		m.warn("revoking a lease failed", rec, cause)
	}
	return nil
}

// backOff returns how long to wait after so many tries.
func backOff(tries int) time.Duration {
	d := firstBackOff << (tries - 1)
	return d - d/5 + rand.N(2*d/5) //nolint:gosec // jitter, not a secret
}

// isOutage reports whether the error is about our own storage or leadership, so that the next write will meet it too.
func isOutage(err error) bool {
	return errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrReadOnly) ||
		errors.Is(err, storage.ErrSealed) || errors.Is(err, storage.ErrOutcomeUnknown)
}
