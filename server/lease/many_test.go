package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease"
)

// TestRevokeMountTriesOnce looks that leases which a broken engine keeps are not met again where they have been put to
// be tried later.
func TestRevokeMountTriesOnce(t *testing.T) {
	const page, count = 128, 330 // more names than are read at a time
	defer lease.SetNamesPage(page)()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for range count {
			r.issue("u1", "creds/a", time.Minute)
		}
		pass(2 * time.Minute) // all are due, and Run is not running
		broken := errors.New("refused by the test")
		r.engine("u1").FailRevoke(1<<30, broken)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		n, err := r.m.RevokeMount(ctx, "u1")
		if n != count || err == nil || ctx.Err() != nil {
			t.Errorf("%d leases were tried, %v; want %d, once each, and an error", n, err, count)
		}
	})
}

// TestMarkedWhileBeingRevoked moves a lease in the index while an engine is being asked to revoke it, and
// looks that nothing of it stays, nor is taken off the count twice.
func TestMarkedWhileBeingRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{}) // closed when the second call of the engine may begin
		var r *rig
		var calls atomic.Int64
		r = newRig(t, func(o *lease.Options) {
			find := o.Mounts.EngineOf
			o.Mounts = mountsFunc(func(ctx context.Context, uuid string) (engines.Engine, engines.Mount, bool) {
				if calls.Add(1) == 3 { // Run looks at the mount, too, as soon as the lease is marked
					<-gate
				}
				return find(ctx, uuid)
			})
		})
		stop := r.run(r.m)
		defer stop()
		r.issue("u1", "creds/other", time.Hour)
		info := r.issue("u1", "creds/a", time.Hour)
		r.engine("u1").FailRevoke(1, errors.New("refused by the test"))
		release := r.engine("u1").Hold()
		answers := make(chan error, 2) // of the two who wait
		for range 2 {
			go func() { answers <- r.m.Revoke(context.Background(), "root", info.ID, true) }()
			synctest.Wait()
		}
		release()
		synctest.Wait() // the first failed, and the lease waits to be tried again; the second is at the gate
		if err := r.m.Revoke(t.Context(), "root", info.ID, false); err != nil {
			t.Error(err)
		}
		close(gate)
		if a, b := <-answers, <-answers; (a == nil) == (b == nil) {
			t.Errorf("%v and %v, want one failure", a, b)
		}
		pass(time.Minute)
		r.wantKeys(3)
		r.wantNumber(r.m, "leases", 1)
	})
}
