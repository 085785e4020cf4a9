package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/storage"
)

// TestNobodyWaitsForOthers has mounts that hang, mounts that fail, and some that work.
func TestNobodyWaitsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.run(r.m)
		defer stop()
		hung := r.engine("u1")
		release := hung.Hold()
		broken := r.add("u2", "root", "broken/")
		broken.FailRevoke(-1, errBackend)
		fine, neighbour := r.add("u3", "root", "fine/"), r.add("u4", "nsx", "fine/")
		for range 300 {
			r.issue("u1", "creds/a", time.Second)
			r.issue("u2", "creds/a", time.Second)
		}
		for range 50 {
			r.issue("u3", "creds/a", 2*time.Second)
			r.issue("u4", "creds/a", 2*time.Second)
		}
		pass(5 * time.Second)
		if a, b := fine.Revoked(), neighbour.Revoked(); a != 50 || b != 50 {
			t.Errorf("%d and %d of 50 revoked beside hung and broken engines", a, b)
		}
		if n := hung.Waiting(); n == 0 || n > 16 {
			t.Errorf("%d calls hang in one engine, want a few", n)
		}
		if lag := r.m.Numbers()["lease_due_lag_seconds"]; lag < 3 {
			t.Errorf("due lag %v s while an engine hangs", lag)
		}
		release()
		pass(time.Hour)
		if n := hung.Revoked(); n != 300 {
			t.Errorf("%d of 300 revoked after the engine came back", n)
		}
		if _, byMount, err := r.m.Irrevocable(t.Context(), "", false, 1); err != nil || byMount["u2"] != 300 {
			t.Errorf("irrevocable: %v, %v; want 300 of the broken mount", byMount, err)
		}
	})
}

// TestManyAtOnce is about the bounds: more due at once than the window and a lane hold.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = many
		r := newRig(t)
		r.add("u2", "root", "gcp/")
		ctx := context.Background()
		for i := range n {
			uuid := "u1"
			if i%100 == 0 {
				uuid = "u2"
			}
			reg, _ := r.registration(uuid, "creds/a", time.Minute)
			reg.TokenKey = ""
			if _, err := r.m.Register(ctx, reg); err != nil {
				t.Fatal(err)
			}
		}
		stop := r.run(r.m)
		defer stop()
		r.wantNumber(r.m, "leases", n)
		if got := r.m.CountBy("", "gcp/"); got != n/100 {
			t.Errorf("CountBy = %d, want %d", got, n/100)
		}
		pass(2 * time.Minute)
		r.wantNumber(r.m, "leases", 0)
		r.wantNumber(r.m, "lease_revocations_total", n)
		r.wantNumber(r.m, "lease_revocation_queue", 0)
		r.wantKeys(0)
	})
}

// TestWindow issues leases that end within, at and beyond what is held at once, before and after Run began.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		ends := map[string]time.Time{}
		issue := func(ttl time.Duration) {
			reg, serial := r.registration("u1", "creds/a", ttl)
			if _, err := r.m.Register(t.Context(), reg); err != nil {
				t.Fatal(err)
			}
			ends[serial] = time.Now().Add(ttl)
		}
		ttls := []time.Duration{1, 4 * time.Second, 4 * time.Minute, 5 * time.Minute, 10 * time.Minute, 10*time.Minute + 1, 15 * time.Minute, 3 * time.Hour, 23 * time.Hour}
		for _, ttl := range ttls {
			issue(ttl)
		}
		stop := r.run(r.m)
		defer stop()
		for range 3 {
			pass(7*time.Minute + 13*time.Second)
			for _, ttl := range ttls {
				issue(ttl)
			}
		}
		for range 24 * 60 {
			pass(time.Minute)
			left := r.engine("u1").Outstanding()
			for serial, end := range ends {
				if over, good := !time.Now().Before(end), slices.Contains(left, serial); over == good {
					t.Fatalf("%v after its end (%v), still good: %v", time.Since(end), serial, good)
				}
			}
		}
		if len(r.engine("u1").Outstanding()) > 0 {
			r.wantKeys(3 * len(r.engine("u1").Outstanding()))
		}
	})
}

// TestClockSetForward tells a jump of the clock from leases that just end together.
func TestClockSetForward(t *testing.T) {
	const n = 1500
	begin := func(t *testing.T) (r *rig, stop func()) {
		r = newRig(t)
		stop = r.run(r.m)
		for range n {
			r.issue("u1", "creds/a", 2*time.Hour)
		}
		r.issue("u1", "creds/b", 4*time.Hour)
		pass(2 * time.Minute)
		return r, stop
	}
	t.Run("no jump", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, stop := begin(t)
			defer stop()
			pass(2 * time.Hour)
			if got := r.engine("u1").Revoked(); got != n || r.logged("the clock got ahead") != 0 {
				t.Errorf("%d of %d revoked, %d warnings", got, n, r.logged("the clock got ahead"))
			}
		})
	})
	t.Run("it is corrected in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, stop := begin(t)
			defer stop()
			r.jump(3 * time.Hour)
			pass(11 * time.Second)
			if got := r.engine("u1").Revoked(); got == 0 || got > 1300 {
				t.Errorf("%d of %d revoked in seconds, want about a hundred a second", got, n)
			}
			if r.logged("the clock got ahead") != 1 {
				t.Error("no word in the log")
			}
			r.wantNumber(r.m, "lease_brake", 1)
			r.jump(-3 * time.Hour)
			pass(time.Minute)
			if got := r.engine("u1").Revoked(); got > 1400 {
				t.Errorf("%d of %d revoked although the clock is right again", got, n)
			}
			r.wantNumber(r.m, "lease_brake", 0)
			pass(2 * time.Hour)
			if got := r.engine("u1").Revoked(); got != n {
				t.Errorf("%d of %d revoked at their time", got, n)
			}
		})
	})
	t.Run("it is right", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, stop := begin(t)
			defer stop()
			r.jump(3 * time.Hour)
			pass(11 * time.Second)
			if _, err := r.m.StartTidy(); err != nil {
				t.Fatal(err)
			}
			pass(10 * time.Second)
			if got := r.engine("u1").Revoked(); got != n {
				t.Errorf("%d of %d revoked after the brake was lifted", got, n)
			}
		})
	})
	t.Run("no reader", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, stop := begin(t)
			defer stop()
			r.jump(3 * time.Hour)
			pass(time.Minute)
			if got := r.engine("u1").Revoked(); got != n {
				t.Errorf("%d of %d revoked in a minute", got, n)
			}
			r.wantNumber(r.m, "lease_brake", 0)
		})
	})
	t.Run("another node's clock", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, stop := begin(t)
			stop()
			r.jump(3 * time.Hour)
			r.m = r.manager()
			stop = r.run(r.m)
			defer stop()
			pass(time.Second)
			if got := r.engine("u1").Revoked(); got > 300 {
				t.Errorf("%d of %d revoked in a second", got, n)
			}
			r.wantNumber(r.m, "lease_brake", 1)
		})
	})
}

// TestClockSetBack lets leases live longer, never shorter, and issues none that are over before they begin.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		stop := r.run(r.m)
		r.issue("u1", "creds/a", 10*time.Minute)
		pass(2 * time.Minute)
		r.jump(-time.Hour)
		pass(20 * time.Second)
		if len(r.engine("u1").Outstanding()) != 1 {
			t.Error("revoked when the clock was set back")
		}
		// The next active node knows how late it was.
		stop()
		r.m = r.manager()
		stop = r.run(r.m)
		defer stop()
		info := r.issue("u1", "creds/b", 5*time.Minute)
		d, err := r.m.Lookup(t.Context(), "", info.ID)
		if behind := r.now().Sub(d.IssuedAt); err != nil || behind > -57*time.Minute || behind < -time.Hour {
			t.Errorf("issued %v before the wall clock, %v; want the time that was reached", behind, err)
		}
		if d.TTL != 5*time.Minute {
			t.Errorf("TTL %v", d.TTL)
		}
		pass(2 * time.Hour)
		r.wantKeys(0)
	})
}

// TestOutage lets storage fail for a while, in the middle.
func TestOutage(t *testing.T) {
	for _, cause := range []error{storage.ErrUnavailable, storage.ErrOutcomeUnknown, storage.ErrConflict, errors.New("disk full")} {
		synctest.Test(t, func(t *testing.T) {
			var f *failing
			r := newRig(t, func(o *lease.Options) { f = &failing{Store: o.Store}; o.Store = f })
			for i := range 100 {
				r.issue("u1", "creds/a", time.Minute+time.Duration(i)*time.Second)
			}
			stop := r.run(r.m)
			defer stop()
			pass(90 * time.Second)
			f.set(cause)
			pass(time.Minute)
			if got := r.engine("u1").Revoked(); got > 35 {
				t.Errorf("%v: %d revoked without being marked", cause, got)
			}
			f.set(nil)
			pass(5 * time.Minute)
			r.wantKeys(0)
			r.wantNumber(r.m, "leases", 0)
			r.wantNumber(r.m, "lease_revocation_failures_total", 0)
		})
	}
}

// TestCountsWhileCounting registers, renews and revokes while the first count is under way.
func TestCountsWhileCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var ids []string
		for i := range 3_000 {
			reg, _ := r.registration("u1", fmt.Sprintf("creds/%d", i%7), time.Hour)
			reg.TokenKey = ""
			info, err := r.m.Register(t.Context(), reg)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, info.ID)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{}) // closed when Run has returned
		go func() {
			defer close(done)
			r.m.Run(ctx)
		}()
		for i := range 200 {
			if _, err := r.m.Renew(ctx, "", ids[i*15], 2*time.Hour); err != nil {
				t.Error(err)
			}
			if err := r.m.Revoke(ctx, "", ids[i*15+1], i%2 == 0); err != nil {
				t.Error(err)
			}
			r.issue("u1", "creds/new", 30*time.Minute)
		}
		synctest.Wait()
		r.wantNumber(r.m, "leases", 3_000)
		if got := r.m.CountBy("root", "aws/"); got != 3_000 {
			t.Errorf("CountBy = %d, want 3000", got)
		}
		cancel()
		<-done
	})
}

func TestTidy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for range 10 {
			r.issue("u1", "creds/a", time.Hour)
		}
		want := r.keys()
		stop := r.run(r.m)
		defer stop()
		if got, err := r.m.Tidy(t.Context()); err != nil || got != (lease.TidyResult{Leases: 10}) {
			t.Errorf("Tidy = %+v, %v, want nothing to mend", got, err)
		}
		var b storage.Batch
		for i, k := range want {
			if storage.Key(k).Path()[:3] != "id/" && i%3 == 0 {
				b.Deletes = append(b.Deletes, storage.Key(k))
			}
		}
		for _, k := range []storage.Key{"l/lease/exp/nonsense", "l/lease/exp/00000000000000000001,root,u1,aws%2F,creds%2Fnone", "l/lease/stuck/00000000000000000001,root,u1,aws%2F,creds%2Fnone", "l/lease/token/x/root,none", "l/lease/token/x/y"} {
			b.Puts = append(b.Puts, storage.Put{Key: k, Value: []byte("1")})
		}
		if _, err := r.mem.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if got, err := r.m.Tidy(t.Context()); err != nil || got.Leases != 10 || got.Indexes != len(b.Deletes)+len(b.Puts) {
			t.Errorf("Tidy = %+v, %v, want %d index entries mended", got, err, len(b.Deletes)+len(b.Puts))
		}
		if got := r.keys(); !slices.Equal(got, want) {
			t.Errorf("after tidying\n%q\nwant\n%q", got, want)
		}
		pass(2 * time.Hour)
		r.wantKeys(0)
	})
}

func TestManyLeasesWarning(t *testing.T) {
	defer lease.SetManyLeases(100)()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for range 50 {
			r.issue("u1", "creds/a", time.Hour)
		}
		stop := r.run(r.m)
		defer stop()
		for range 49 {
			r.issue("u1", "creds/a", time.Hour)
		}
		if r.logged("very many leases") != 0 {
			t.Error("warned too early")
		}
		r.issue("u1", "creds/a", time.Hour)
		r.issue("u1", "creds/a", time.Hour)
		if r.logged("very many leases") != 1 {
			t.Error("not warned once")
		}
	})
}
