package storage_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/coffer-project/coffer/storage"
)

func commitOne(t *testing.T, m *storage.Memory) storage.Index {
	t.Helper()
	i, err := m.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: "s/a/k", Value: []byte("v")}}})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func TestTail(t *testing.T) {
	ctx := context.Background()
	var m storage.Memory
	commitOne(t, &m) // before the tail: not in it
	tail := storage.NewTail(&m, 3)
	defer tail.Stop()
	next := func(want storage.Index) {
		t.Helper()
		if ch, err := tail.Next(ctx); err != nil || ch.Index != want || len(ch.Entries) != 1 {
			t.Errorf("Next = %+v, %v, want the change at %d", ch, err, want)
		}
	}
	for range 3 { // in turns, more than fits at once
		a, b, c := commitOne(t, &m), commitOne(t, &m), commitOne(t, &m)
		next(a)
		next(b)
		next(c)
	}
	for range 3 {
		commitOne(t, &m)
	}
	next(11)
	commitOne(t, &m)
	commitOne(t, &m) // one too many
	for range 2 {
		if ch, err := tail.Next(ctx); !errors.Is(err, storage.ErrTooSlow) {
			t.Errorf("Next = %+v, %v, want %v", ch, err, storage.ErrTooSlow)
		}
	}
	tail.Stop()
	tail.Stop()
	if _, err := tail.Next(ctx); !errors.Is(err, storage.ErrTooSlow) {
		t.Errorf("Next after Stop = %v, want the first reason", err)
	}
}

func TestTailBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m storage.Memory
		tail := storage.NewTail(&m, 1)
		var events []string
		go func() {
			for {
				ch, err := tail.Next(context.Background())
				if err != nil {
					events = append(events, err.Error())
					return
				}
				events = append(events, fmt.Sprint("change ", ch.Index))
			}
		}()
		synctest.Wait()
		if len(events) != 0 {
			t.Errorf("Next returned %v before anything changed", events)
		}
		for range 2 {
			commitOne(t, &m)
			synctest.Wait()
		}
		tail.Stop()
		synctest.Wait()
		want := fmt.Sprint([]string{"change 1", "change 2", storage.ErrTailStopped.Error()})
		if got := fmt.Sprint(events); got != want {
			t.Errorf("events %v, want %v", got, want)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		idle := storage.NewTail(&m, 1)
		defer idle.Stop()
		if _, err := idle.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Next with an ended context = %v", err)
		}
	})
}
