package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/storage"
)

var errBackend = engines.Invalid("the backend is down")

// TestRevokeWays revokes some of five leases in every way there is, with an engine that works, one that fails once
// and one that always fails.
func TestRevokeWays(t *testing.T) {
	type ids = map[string]string
	ways := []struct {
		name   string
		do     func(context.Context, *lease.Manager, ids) error
		ends   []string // these
		waits  bool
		forces bool
	}{
		{"one", func(ctx context.Context, m *lease.Manager, id ids) error { return m.Revoke(ctx, "", id["a1"], false) }, []string{"a1"}, false, false},
		{"one and wait", func(ctx context.Context, m *lease.Manager, id ids) error { return m.Revoke(ctx, "", id["a1"], true) }, []string{"a1"}, true, false},
		{"prefix", func(ctx context.Context, m *lease.Manager, _ ids) error {
			_, err := m.RevokePrefix(ctx, "", "aws/creds/a", false)
			return err
		}, []string{"a1", "a2"}, false, false},
		{"prefix with a slash, and wait", func(ctx context.Context, m *lease.Manager, _ ids) error {
			_, err := m.RevokePrefix(ctx, "root", "aws/creds/a/", true)
			return err
		}, []string{"a1", "a2"}, true, false},
		{"prefix that is a lease", func(ctx context.Context, m *lease.Manager, id ids) error {
			_, err := m.RevokePrefix(ctx, "root", id["a2"], true)
			return err
		}, []string{"a2"}, true, false},
		{"everything", func(ctx context.Context, m *lease.Manager, _ ids) error {
			_, err := m.RevokePrefix(ctx, "root", "", true)
			return err
		}, []string{"a1", "a2", "ab", "b", "other"}, true, false},
		{"force", func(ctx context.Context, m *lease.Manager, _ ids) error {
			_, err := m.RevokeForce(ctx, "root", "aws/creds/a")
			return err
		}, []string{"a1", "a2"}, true, true},
		{"mount", func(ctx context.Context, m *lease.Manager, _ ids) error {
			_, err := m.RevokeMount(ctx, "u1")
			return err
		}, []string{"a1", "a2", "ab", "b"}, true, false},
		{"token", func(ctx context.Context, m *lease.Manager, _ ids) error { return m.RevokeToken(ctx, "token-b") }, []string{"b", "other"}, false, false},
		{"nothing", func(ctx context.Context, m *lease.Manager, _ ids) error {
			_, err := m.RevokePrefix(ctx, "root", "aws/cred", true)
			return errors.Join(err, m.RevokeToken(ctx, "token"), m.RevokeToken(ctx, ""))
		}, nil, true, false},
	}
	for _, way := range ways {
		for name, failures := range map[string]int{"works": 0, "fails once": 1, "fails": -1} {
			t.Run(way.name+", engine "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t)
					other := r.add("u2", "root", "gcp/")
					id := ids{}
					for _, l := range []struct{ name, uuid, path, token string }{
						{"a1", "u1", "creds/a", "token-a"}, {"a2", "u1", "creds/a", "token-a"}, {"ab", "u1", "creds/ab", "token-a"},
						{"b", "u1", "creds/b", "token-b"}, {"other", "u2", "creds/a", "token-b"},
					} {
						reg, _ := r.registration(l.uuid, l.path, time.Hour)
						reg.TokenKey = l.token
						info, err := r.m.Register(t.Context(), reg)
						if err != nil {
							t.Fatal(err)
						}
						id[l.name] = info.ID
					}
					stop := r.run(r.m)
					defer stop()
					r.engine("u1").FailRevoke(failures, errBackend)
					other.FailRevoke(failures, errBackend)
					err := way.do(t.Context(), r.m, id)
					var refused *engines.Error
					wantErr := way.waits && !way.forces && failures != 0 && len(way.ends) > 0
					if wantErr && (!errors.As(err, &refused) || refused.Kind != engines.KindUpstream) || !wantErr && err != nil {
						t.Errorf("error %v, want one: %v", err, wantErr)
					}
					ended := func() (out []string) {
						for name, id := range id {
							d, err := r.m.Lookup(t.Context(), "", id)
							if errors.Is(err, lease.ErrNotFound) || d.State != "" {
								out = append(out, name)
							}
						}
						slices.Sort(out)
						return out
					}
					if got := ended(); !slices.Equal(got, way.ends) {
						t.Errorf("ended %v, want %v", got, way.ends)
					}
					for _, name := range way.ends {
						if _, err := r.m.Renew(t.Context(), "", id[name], 0); !errors.Is(err, lease.ErrExpired) && !errors.Is(err, lease.ErrNotFound) {
							t.Errorf("Renew of what was revoked: %v", err)
						}
					}
					pass(time.Minute) // one more try
					left, gone := 3*5, 3*len(way.ends)
					if failures < 0 && !way.forces {
						gone = 0
					}
					r.wantKeys(left - gone)
					r.wantNumber(r.m, "leases", float64((left-gone)/3))
					if got := ended(); !slices.Equal(got, way.ends) {
						t.Errorf("a minute later ended are %v, want %v", got, way.ends)
					}
				})
			})
		}
	}
}

func TestBackOffAndIrrevocable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		e := r.engine("u1")
		e.FailRevoke(-1, errors.New("detail that clients must not see"))
		reg, serial := r.registration("u1", "creds/a", time.Minute)
		info, err := r.m.Register(t.Context(), reg)
		if err != nil {
			t.Fatal(err)
		}
		stop := r.run(r.m)
		defer func() { stop() }()
		var tries []time.Duration
		begin := time.Now()
		for calls := 0; time.Since(begin) < time.Hour; pass(time.Second) {
			if n := e.Calls(serial); n > calls {
				calls = n
				tries = append(tries, time.Since(begin))
			}
			if time.Since(begin) == 100*time.Second { // another node takes over, and goes on with the count
				stop()
				r.m.Clear()
				r.m = r.manager()
				stop = r.run(r.m)
			}
		}
		if len(tries) != 6 {
			t.Fatalf("tried at %v, want 6 times", tries)
		}
		if tries[0] < 59*time.Second || tries[0] > 61*time.Second {
			t.Errorf("first tried after %v, want a minute", tries[0])
		}
		for i := 1; i < len(tries); i++ {
			wait, want := tries[i]-tries[i-1], 10*time.Second<<(i-1)
			if wait < want*8/10-time.Second || wait > want*12/10+2*time.Second {
				t.Errorf("wait %d is %v, want about %v", i, wait, want)
			}
		}
		list, byMount, err := r.m.Irrevocable(t.Context(), "root", false, 0)
		if err != nil || len(list) != 1 || list[0].ID != info.ID || byMount["u1"] != 1 || list[0].Reason != "the engine failed, the server's log says how" {
			t.Errorf("Irrevocable = %+v, %v, %v", list, byMount, err)
		}
		r.wantNumber(r.m, "leases_irrevocable", 1)
		r.wantNumber(r.m, "leases", 1)
		if r.m.CountBy("root", "aws/") != 1 || r.m.CountBy("root", "") != 1 {
			t.Errorf("an irrevocable lease is not counted")
		}
		r.wantKeys(3)

		// Tidy tries again, and gives up again; a revocation by hand succeeds once the cause is gone.
		if running, err := r.m.StartTidy(); running || err != nil {
			t.Fatalf("StartTidy = %v, %v", running, err)
		}
		pass(time.Hour)
		if n := e.Calls(serial); n != 12 {
			t.Errorf("%d tries after tidying, want 12", n)
		}
		e.FailRevoke(0, nil)
		if err := r.m.Revoke(t.Context(), "root", info.ID, false); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		r.wantKeys(0)
		r.wantNumber(r.m, "leases_irrevocable", 0)
		r.wantNumber(r.m, "leases", 0)
		r.wantNumber(r.m, "lease_revocations_total", 1)
	})
}

// TestForceRemovesIrrevocable ends what cannot end otherwise.
func TestForceRemovesIrrevocable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.engine("u1").FailRevoke(-1, errBackend)
		r.issue("u1", "creds/a", time.Minute)
		stop := r.run(r.m)
		defer stop()
		pass(time.Hour)
		if list, _, err := r.m.Irrevocable(t.Context(), "root", false, 0); err != nil || len(list) != 1 || list[0].Reason != errBackend.Detail {
			t.Fatalf("Irrevocable = %v, %v", list, err)
		}
		if n, err := r.m.RevokeForce(t.Context(), "root", "aws"); n != 1 || err != nil {
			t.Errorf("RevokeForce = %d, %v", n, err)
		}
		r.wantKeys(0)
		if r.logged("may live on") != 1 {
			t.Error("what may live on is not in the log")
		}
	})
}

// TestCrash ends a manager at its most delicate moments, and lets another one find what is left.
func TestCrash(t *testing.T) {
	tests := []struct {
		name  string
		until func(*rig, *failing) // with the first manager
		calls int
	}{
		{"marked, the engine not asked", func(r *rig, _ *failing) {
			if _, err := r.m.RevokePrefix(context.Background(), "root", "aws", false); err != nil {
				r.t.Fatal(err)
			}
		}, 1},
		{"the engine asked, no answer", func(r *rig, _ *failing) {
			release := r.engine("u1").Hold()
			stop := r.run(r.m)
			pass(2 * time.Minute)
			stop()
			release()
		}, 1},
		{"the engine did it, the lease not removed", func(r *rig, f *failing) {
			release := r.engine("u1").Hold()
			stop := r.run(r.m)
			pass(time.Minute + time.Second)
			f.set(storage.ErrReadOnly)
			release()
			pass(time.Second)
			stop()
			f.set(nil)
		}, 2},
		{"a registration whose mark is lost", func(r *rig, f *failing) {
			stop := r.run(r.m)
			f.set(storage.ErrUnavailable)
			pass(3 * time.Minute)
			stop()
			f.set(nil)
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f *failing
				r := newRig(t, func(o *lease.Options) { f = &failing{Store: o.Store}; o.Store = f })
				reg, serial := r.registration("u1", "creds/a", time.Minute)
				if _, err := r.m.Register(t.Context(), reg); err != nil {
					t.Fatal(err)
				}
				tt.until(r, f)
				r.wantKeys(3)
				stop := r.run(r.manager())
				pass(2 * time.Minute)
				stop()
				r.wantKeys(0)
				if len(r.engine("u1").Outstanding()) != 0 || r.engine("u1").Calls(serial) != tt.calls {
					t.Errorf("outstanding %v after %d calls, want none after %d", r.engine("u1").Outstanding(), r.engine("u1").Calls(serial), tt.calls)
				}
			})
		})
	}
}

// TestMountGone drops leases that no engine can revoke.
func TestMountGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.add("u2", "root", "gcp/")
		for range 10 {
			r.issue("u1", "creds/a", time.Minute)
			r.issue("u2", "creds/a", time.Hour)
		}
		r.drop("u1")
		stop := r.run(r.m)
		defer stop()
		pass(2 * time.Minute)
		r.wantKeys(30)
		if r.logged("mount of leases is gone") != 1 {
			t.Error("no line in the log about the mount")
		}
		r.drop("u2")
		if _, err := r.m.StartTidy(); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		r.wantKeys(0)
	})
}

// TestMountUnknownForNow has a mount table that cannot tell the engine of a lease: nothing is dropped, and nothing counts
// as a try.
func TestMountUnknownForNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		unknown := true
		r := newRig(t, func(o *lease.Options) {
			find := o.Mounts.EngineOf
			o.Mounts = mountsFunc(func(ctx context.Context, uuid string) (engines.Engine, engines.Mount, bool) {
				mu.Lock()
				defer mu.Unlock()
				if unknown {
					return nil, engines.Mount{}, true
				}
				return find(ctx, uuid)
			})
		})
		reg, _ := r.registration("u1", "creds/a", time.Minute)
		info, err := r.m.Register(t.Context(), reg)
		if err != nil {
			t.Fatal(err)
		}
		stop := r.run(r.m)
		defer stop()
		if _, err := r.m.Renew(t.Context(), "", info.ID, 0); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("Renew = %v", err)
		}
		pass(time.Hour)
		r.wantKeys(3)
		r.wantNumber(r.m, "leases_irrevocable", 0)
		mu.Lock()
		unknown = false
		mu.Unlock()
		pass(10 * time.Second)
		r.wantKeys(0)
		if n := r.engine("u1").Revoked(); n != 1 {
			t.Errorf("%d revoked, want 1", n)
		}
	})
}

// TestRenewAgainstRevoke lets renewals, revocations and expiry meet. Whatever wins, no credential outlives its
// lease and no lease its credential.
func TestRenewAgainstRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.run(r.m)
		defer stop()
		var wg sync.WaitGroup
		for i := range 50 {
			id := r.issue("u1", fmt.Sprintf("creds/%d", i%3), 2*time.Second).ID
			for range 3 {
				wg.Go(func() {
					for range 10 {
						<-time.After(300 * time.Millisecond)
						info, err := r.m.Renew(context.Background(), "", id, time.Second)
						if errors.Is(err, lease.ErrNotFound) || errors.Is(err, lease.ErrExpired) {
							return
						}
						if err != nil || info.TTL != time.Second {
							t.Errorf("Renew = %+v, %v", info, err)
						}
					}
				})
			}
			if i%2 == 0 {
				wg.Go(func() {
					<-time.After(time.Duration(i) * 20 * time.Millisecond)
					if err := r.m.Revoke(context.Background(), "", id, i%4 == 0); err != nil && !errors.Is(err, lease.ErrNotFound) {
						t.Errorf("Revoke: %v", err)
					}
				})
			}
		}
		wg.Wait()
		pass(time.Minute)
		r.wantKeys(0)
		if left := r.engine("u1").Outstanding(); len(left) > 0 {
			t.Errorf("%d credentials outlived their lease", len(left))
		}
		r.wantNumber(r.m, "leases", 0)
		r.wantNumber(r.m, "lease_revocations_total", 50)
	})
}

// TestSyncRevokeWaitsForTheOther does not ask an engine twice at the same time.
func TestSyncRevokeWaitsForTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		reg, serial := r.registration("u1", "creds/a", time.Minute)
		info, err := r.m.Register(t.Context(), reg)
		if err != nil {
			t.Fatal(err)
		}
		stop := r.run(r.m)
		defer stop()
		release := r.engine("u1").Hold()
		pass(61 * time.Second)
		done := make(chan error, 1)
		go func() { done <- r.m.Revoke(context.Background(), "", info.ID, true) }()
		synctest.Wait()
		if n := r.engine("u1").Waiting(); n != 1 {
			t.Errorf("%d calls of the engine at once", n)
		}
		release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := r.engine("u1").Calls(serial); n != 1 {
			t.Errorf("%d calls of the engine, want 1", n)
		}
		r.wantKeys(0)
	})
}
