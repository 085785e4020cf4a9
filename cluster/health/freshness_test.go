package health

import (
	"testing"
	"time"
)

func TestFreshness(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	var f Freshness
	check := func(what string, want time.Time) {
		t.Helper()
		if !f.AsOf.Equal(want) {
			t.Errorf("%s: as of %v, want %v", what, f.AsOf.Sub(start), want.Sub(start))
		}
	}
	f.Note(at(0), 7, 5)
	check("before anything is applied", time.Time{})
	f.Note(at(1), 8, 5)
	f.Note(at(2), 9, 7)
	check("the first moment is reached", at(0))
	f.Settle(8)
	check("the second is", at(1))
	f.Note(at(3), 9, 9)
	check("in step", at(3))
	f.Note(at(4), 9, 9)
	check("in step while nothing is written", at(4))
	for i := 5; i < 60; i++ {
		f.Note(at(i), 10, 9)
	}
	check("stuck", at(4))
	if len(f.pending) > 12 {
		t.Errorf("%d moments are kept", len(f.pending))
	}
	f.Settle(10)
	if f.AsOf.Before(at(49)) {
		t.Errorf("after catching up: as of %v", f.AsOf.Sub(start))
	}
}
