package secretsync

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/synctest"
)

// TestMarksCannotBeCopied: who may tag secrets at the destination cannot have us overwrite them.
func TestMarksCannotBeCopied(t *testing.T) {
	inSim(t, func(s *sim) {
		kv, site := s.mounts[0], s.places.Site(synctest.Marked, "m")
		kv.Put("a", "k", "1")
		a := s.tie(0, "", func(a *associationRecord) { a.Selector, a.Deletion = true, deleteThere })
		const ours, theirs = "vault/kv_00000001/a", "vault/kv_00000001/b"
		s.there(synctest.Marked, ours)
		site.Copy(ours, theirs, "precious")
		kv.Put("b", "k", "2")
		s.pass(time.Second)
		s.status(a, "b", Conflict)
		if got, _ := site.Get(theirs); got != "precious" {
			t.Errorf("%q was written over what somebody else has", got)
		}
		kv.Drop("b")
		s.pass(time.Second)
		s.there(synctest.Marked, ours, theirs)
	})
}

// TestMarksAreOfOneName: spellings that a place does not tell apart have one mark, everything else has another.
func TestMarksAreOfOneName(t *testing.T) {
	d, other := destinationRecord{PrintKey: []byte("one")}, destinationRecord{PrintKey: []byte("two")}
	mark := d.marked("inst-assoc", "a", destination.Rules{})
	if len(short("")+"-"+short(""))+len(mark)-len("inst-assoc") > 80 {
		t.Errorf("%q is longer than places take", mark)
	}
	for what, got := range map[string]string{
		"name": d.marked("inst-assoc", "b", destination.Rules{}), "association": d.marked("inst-other", "a", destination.Rules{}),
		"destination": other.marked("inst-assoc", "a", destination.Rules{}),
	} {
		if got == mark {
			t.Errorf("another %s has the same mark", what)
		}
	}
	if d.marked("inst-assoc", "A", destination.Rules{Fold: strings.ToLower}) != mark {
		t.Error("another spelling has another mark")
	}
}
