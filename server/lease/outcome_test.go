package lease_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/storage"
)

// silent is a store whose commits happen, and say nothing of it, while quiet is set.
type silent struct {
	storage.Store
	quiet atomic.Bool
}

func (s *silent) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	idx, err := s.Store.Commit(ctx, b)
	if err == nil && s.quiet.Load() {
		return 0, fmt.Errorf("%w: the client hung up", storage.ErrOutcomeUnknown)
	}
	return idx, err
}

// TestUnknownOutcomes makes each kind of write whose outcome is unknown, on a node that stays the active one, and
// looks that the lease still ends when it should and is counted right.
func TestUnknownOutcomes(t *testing.T) {
	ctx := context.Background()
	tests := []struct {
		name string
		do   func(*rig, *lease.Manager, string) error
		left int // outstanding credentials afterwards
	}{
		{"registered", func(r *rig, m *lease.Manager, _ string) error {
			reg, _ := r.registration("u1", "creds/b", time.Minute)
			_, err := m.Register(ctx, reg)
			return err
		}, 1},
		{"renewed", func(_ *rig, m *lease.Manager, id string) error {
			_, err := m.Renew(ctx, "root", id, 3*time.Minute)
			return err
		}, 0},
		{"marked", func(_ *rig, m *lease.Manager, id string) error { return m.Revoke(ctx, "root", id, false) }, 0},
		{"ended with its token", func(_ *rig, m *lease.Manager, _ string) error { return m.RevokeToken(ctx, "token-1") }, 0},
		{"revoked", func(_ *rig, m *lease.Manager, id string) error { return m.Revoke(ctx, "root", id, true) }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &silent{}
				r := newRig(t, func(o *lease.Options) { s.Store = o.Store; o.Store = s })
				stop := r.run(r.m)
				defer stop()
				ttl := time.Hour
				if tt.name == "renewed" {
					ttl = 2 * time.Minute
				}
				info := r.issue("u1", "creds/a", ttl)
				s.quiet.Store(true)
				if err := tt.do(r, r.m, info.ID); !errors.Is(err, storage.ErrOutcomeUnknown) {
					t.Errorf("%v, want storage.ErrOutcomeUnknown", err)
				}
				s.quiet.Store(false)
				pass(5 * time.Minute)
				if got := len(r.engine("u1").Outstanding()); got != tt.left {
					t.Errorf("%d credentials are left, want %d", got, tt.left)
				}
				r.wantKeys(3 * tt.left)
				r.wantNumber(r.m, "leases", float64(tt.left))
				if !r.m.Counted() {
					t.Error("the leases are not counted")
				}
			})
		})
	}
}

// late is a store whose commits happen when it is told so, if held is set.
type late struct {
	storage.Store
	held    atomic.Bool
	mu      sync.Mutex
	batches []storage.Batch
}

func (l *late) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if !l.held.Load() {
		return l.Store.Commit(ctx, b)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches = append(l.batches, b)
	return 0, storage.ErrOutcomeUnknown
}

// TestMarkedAgain looks that who revokes again finds what an earlier attempt left long after it was given up.
func TestMarkedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &late{}
		r := newRig(t, func(o *lease.Options) { l.Store = o.Store; o.Store = l })
		stop := r.run(r.m)
		defer stop()
		info := r.issue("u1", "creds/a", time.Hour)
		l.held.Store(true)
		if err := r.m.Revoke(t.Context(), "root", info.ID, false); !errors.Is(err, storage.ErrOutcomeUnknown) {
			t.Errorf("%v, want storage.ErrOutcomeUnknown", err)
		}
		l.held.Store(false)
		pass(50 * time.Second)
		l.mu.Lock()
		batches := l.batches
		l.mu.Unlock()
		for _, b := range batches {
			if _, err := l.Store.Commit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.m.Revoke(t.Context(), "root", info.ID, false); err != nil {
			t.Error(err)
		}
		pass(2 * time.Second)
		r.wantKeys(0)
	})
}

// stumbling is a store that cannot list irrevocable leases for once.
type stumbling struct {
	storage.Store
	fell atomic.Bool
}

func (s *stumbling) List(ctx context.Context, prefix storage.Key, after string, limit int) ([]string, error) {
	if prefix == "l/lease/stuck/" && s.fell.CompareAndSwap(false, true) {
		return nil, storage.ErrUnavailable
	}
	return s.Store.List(ctx, prefix, after, limit)
}

// TestCountFailsHalfway looks that a first count that was interrupted counts nothing twice.
func TestCountFailsHalfway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stumbling{}
		r := newRig(t, func(o *lease.Options) { s.Store = o.Store; o.Store = s })
		r.issue("u1", "creds/a", time.Hour)
		stop := r.run(r.m)
		defer stop()
		r.issue("u1", "creds/b", time.Hour)
		pass(time.Minute)
		if !s.fell.Load() || !r.m.Counted() {
			t.Fatalf("the count failed: %v, is complete: %v", s.fell.Load(), r.m.Counted())
		}
		r.wantNumber(r.m, "leases", 2)
	})
}
