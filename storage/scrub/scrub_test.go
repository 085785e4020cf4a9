package scrub_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/storage/scrub"
)

// pieces is a file that is read in pieces of 1000 bytes, each of which takes a time.
type pieces struct {
	n     int
	takes time.Duration
	fail  error // at the end of a pass
}

func (p *pieces) ScrubBytes() int64 { return int64(p.n) * 1000 }

func (p *pieces) Scrub(paused func(int) error) error {
	for range p.n {
		time.Sleep(p.takes)
		if err := paused(1000); err != nil {
			return err
		}
	}
	return p.fail
}

func TestPace(t *testing.T) {
	tests := []struct {
		name      string
		file      pieces
		after     time.Duration
		bytes     float64
		completed bool
		failures  float64
	}{
		{"half an interval", pieces{n: 100}, 12 * time.Hour, 56_000, false, 0},
		{"an interval", pieces{n: 100}, 24*time.Hour - time.Second, 100_000, true, 0},
		{"three intervals", pieces{n: 100}, 72*time.Hour - time.Second, 300_000, true, 0},
		{"a slow disk is left alone", pieces{n: 100, takes: time.Hour}, 100 * time.Hour, 10_000, false, 0},
		{"an empty file", pieces{}, 25 * time.Hour, 0, true, 0},
		{"damage", pieces{n: 10, fail: errors.New("damaged")}, 25 * time.Hour, 10_000, false, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(context.Background())
				s := scrub.New("state", &tt.file, 24*time.Hour, slog.New(slog.DiscardHandler))
				var running sync.WaitGroup
				running.Go(func() { s.Run(ctx) })
				time.Sleep(tt.after)
				synctest.Wait()
				n := s.Numbers()
				_, completed := n["scrub_state_completed_time_seconds"]
				if got := n["scrub_state_bytes_total"]; got < tt.bytes || got > tt.bytes+1000 {
					t.Errorf("%v bytes were read, want %v", got, tt.bytes)
				}
				if completed != tt.completed || n["scrub_state_failures_total"] != tt.failures {
					t.Errorf("completed %v with %v failures, want %v with %v", completed, n["scrub_state_failures_total"], tt.completed, tt.failures)
				}
				stop()
				running.Wait()
			})
		})
	}
}
