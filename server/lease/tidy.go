package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coffer-project/coffer/server/lease/index"
	"github.com/coffer-project/coffer/server/lease/record"
	"github.com/coffer-project/coffer/storage"
)

// TidyResult counts what Tidy saw and mended.
type TidyResult struct {
	Leases  int // seen
	Indexes int // index entries that led nowhere, removed, or were missing, added
	Retried int // irrevocable leases that are tried again
	Orphans int // leases of mounts that are gone, to be removed
}

// StartTidy lifts the brake and runs Tidy beside everything else, until Run ends. It reports whether one was running
// already. storage.ErrReadOnly means that Run is not at work here.
func (m *Manager) StartTidy() (running bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.work
	if w == nil || w.closed {
		return false, storage.ErrReadOnly
	}
	if w.brake != nil {
		w.brake = nil
		m.log.Info("the brake is off: an operator says that the clock is right")
		w.alert()
	}
	if w.tidying {
		return true, nil
	}
	w.tidying = true
	w.wg.Go(func() {
		r, err := m.Tidy(w.ctx)
		if err != nil {
			m.logTrouble(w.ctx, "tidying leases", err)
		} else {
			m.log.Info("leases tidied", "leases", r.Leases, "index_entries", r.Indexes, "retried", r.Retried, "orphans", r.Orphans)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		w.tidying = false
	})
	return false, nil
}

// Tidy compares all leases with their index entries and mends what does not fit, gives irrevocable leases another
// six tries, and ends those of mounts that are gone. Nothing should ever need the first: all entries of a lease change
// together. It reads everything, and checks each finding again in the transaction that mends it.
func (m *Manager) Tidy(ctx context.Context) (TidyResult, error) {
	var r TidyResult
	for _, part := range []func(context.Context, *TidyResult) error{m.tidyRecords, m.tidyIndexes, m.tidyTokens} {
		if err := part(ctx, &r); err != nil {
			return r, fmt.Errorf("tidying leases: %w", err)
		}
	}
	return r, nil
}

func (m *Manager) tidyRecords(ctx context.Context, r *TidyResult) error {
	mounts := map[string]bool{} // whether they are there
	for after := storage.Key(""); ; {
		page, err := m.store.Scan(ctx, record.IDPrefix, after, scanPage)
		if err != nil {
			return err
		}
		for _, e := range page {
			after = e.Key
			rec, err := record.Decode(e.Value)
			if err != nil {
				return err
			}
			if err := m.tidyRecord(ctx, rec, mounts, r); err != nil {
				return err
			}
		}
		if len(page) < scanPage {
			return nil
		}
	}
}

func (m *Manager) tidyRecord(ctx context.Context, rec *record.Record, mounts map[string]bool, r *TidyResult) error {
	r.Leases++
	if err := m.addIndexes(ctx, rec, r); err != nil {
		return err
	}
	there, known := mounts[rec.Mount]
	if !known {
		_, _, there = m.opts.Mounts.EngineOf(ctx, rec.Mount)
		if err := ctx.Err(); err != nil {
			return err
		}
		mounts[rec.Mount] = there
	}
	switch {
	case !there && rec.State != record.Revoking:
		r.Orphans++
	case rec.State == record.Irrevocable:
		r.Retried++
	default:
		return nil
	}
	_, err := m.markAndRevoke(ctx, []index.Ref{{Namespace: rec.Namespace, ID: rec.ID}}, byHand, false)
	return err
}

// addIndexes adds the index entries that the lease lacks.
func (m *Manager) addIndexes(ctx context.Context, rec *record.Record, r *TidyResult) error {
	for _, key := range []storage.Key{rec.IndexKey(), rec.TokenKey()} {
		if key == "" {
			continue
		}
		if _, err := m.store.Get(ctx, key); !errors.Is(err, storage.ErrNotFound) {
			if err != nil {
				return err
			}
			continue
		}
		added := 0
		err := m.update(ctx, func(t *storage.Txn) ([]step, error) {
			added = 0
			now, err := record.Get(ctx, t, rec.Namespace, rec.ID)
			if errors.Is(err, storage.ErrNotFound) || err == nil && now.IndexKey() != rec.IndexKey() {
				return nil, nil
			} else if err != nil {
				return nil, err
			}
			if _, err := t.Get(ctx, key); !errors.Is(err, storage.ErrNotFound) {
				return nil, err
			}
			added = 1
			t.Put(key, record.Present)
			if key == rec.TokenKey() {
				return nil, nil
			}
			return []step{{is: key}}, nil
		})
		if err != nil {
			return err
		}
		r.Indexes += added
	}
	return nil
}

// tidyIndexes removes entries that lead nowhere.
func (m *Manager) tidyIndexes(ctx context.Context, r *TidyResult) error {
	for _, prefix := range []storage.Key{index.ExpPrefix, index.StuckPrefix} {
		for name, err := range m.names(ctx, prefix, "") {
			if err != nil {
				return err
			}
			p, ok := index.Parse(name)
			fits := func(rec *record.Record) bool { return ok && rec.IndexKey() == prefix+storage.Key(name) }
			if err := m.dropUnless(ctx, prefix+storage.Key(name), p.Namespace, p.ID, fits, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Manager) tidyTokens(ctx context.Context, r *TidyResult) error {
	for folder, err := range m.names(ctx, record.TokenPrefix, "") {
		if err != nil {
			return err
		}
		prefix := record.TokenPrefix + storage.Key(folder)
		for name, err := range m.names(ctx, prefix, "") {
			if err != nil {
				return err
			}
			ns, id, ok := index.ParseShort(name)
			fits := func(rec *record.Record) bool { return ok && rec.TokenKey() == prefix+storage.Key(name) }
			if err := m.dropUnless(ctx, prefix+storage.Key(name), ns, id, fits, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropUnless removes an index entry unless its lease is there and fits.
func (m *Manager) dropUnless(ctx context.Context, key storage.Key, ns, id string, fits func(*record.Record) bool, r *TidyResult) error {
	if rec, err := record.Get(ctx, m.store, ns, id); err == nil && fits(rec) {
		return nil
	} else if err != nil && !errors.Is(err, storage.ErrNotFound) {
		return err
	}
	dropped := 0
	err := m.update(ctx, func(t *storage.Txn) ([]step, error) {
		dropped = 0
		rec, err := record.Get(ctx, t, ns, id)
		if err == nil && fits(rec) {
			return nil, nil
		} else if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return nil, err
		}
		was := drop(ctx, t, key)
		if was == "" {
			return nil, nil
		}
		dropped = 1
		if strings.HasPrefix(string(key), string(record.TokenPrefix)) {
			return nil, nil
		}
		return []step{{was: was}}, nil
	})
	r.Indexes += dropped
	return err
}
