package static

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// only is an engine with the paths of static roles and no others.
type only struct{ router *engines.Router }

func (o only) Router() *engines.Router { return o.router }

func TestSchedule_NodeThatSawTheClockGoBackReadsAllAgain(t *testing.T) {
	build := func(engines.Mount) (engines.Engine, error) {
		o := only{engines.NewRouter()}
		new(Roles).Routes(o.router)
		return o, nil
	}
	m := enginetest.New(t, build, enginetest.Options{Type: "aws", Path: "aws/"}).Mount
	now := time.Now()
	const period = 10 * time.Minute
	_, err := storage.Update(t.Context(), m.Storage, func(txn *storage.Txn) error {
		return (&Role{name: "app", Username: "app", Period: period, NextRotation: now.Add(period)}).Put(txn)
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &schedule{
		started: true, changed: map[string]bool{}, last: now.Add(time.Hour),
		due: map[string]dueAt{"app": {at: now.Add(365 * 24 * time.Hour)}},
	}
	if err := s.refresh(t.Context(), m, now); err != nil {
		t.Fatal(err)
	}
	if early := s.ready(now.Add(period - time.Second)); len(early) != 0 {
		t.Errorf("due before its period is over: %v", early)
	}
	if due := s.ready(now.Add(period)); len(due) != 1 || due[0] != "app" {
		t.Errorf("due after a period: %v, want app", due)
	}
}
