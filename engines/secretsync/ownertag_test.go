package secretsync

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/reconcile"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/syncsim"
)

// TestMarksCannotBeCopied: who may tag secrets at the destination cannot have us overwrite them.
func TestMarksCannotBeCopied(t *testing.T) {
	inSim(t, func(s *sim) {
		kv, site := s.mounts[0], s.sites.Site(syncsim.Marked, "m")
		kv.Put("a", "k", "1")
		a := s.tie(0, "", func(a *state.Association) { a.Selector, a.Deletion = true, state.DeleteOnRemoval })
		const ours, theirs = "vault/kv_00000001/a", "vault/kv_00000001/b"
		s.there(syncsim.Marked, ours)
		site.Copy(ours, theirs, "precious")
		kv.Put("b", "k", "2")
		s.pass(time.Second)
		s.status(a, "b", state.Conflict)
		if got, _ := site.Get(theirs); got != "precious" {
			t.Errorf("%q was written over what another client has", got)
		}
		kv.Drop("b")
		s.pass(time.Second)
		s.there(syncsim.Marked, ours, theirs)
	})
}

// TestMarksAreOfOneName: spellings that a destination does not tell apart have one ownership tag, everything else has another.
func TestMarksAreOfOneName(t *testing.T) {
	d, other := state.Destination{FingerprintKey: []byte("one")}, state.Destination{FingerprintKey: []byte("two")}
	mark := d.OwnerTag("inst-assoc", "a", destination.Rules{})
	if len(state.Hash("")+"-"+state.Hash(""))+len(mark)-len("inst-assoc") > 80 {
		t.Errorf("%q is longer than places take", mark)
	}
	for what, got := range map[string]string{
		"name": d.OwnerTag("inst-assoc", "b", destination.Rules{}), "association": d.OwnerTag("inst-other", "a", destination.Rules{}),
		"destination": other.OwnerTag("inst-assoc", "a", destination.Rules{}),
	} {
		if got == mark {
			t.Errorf("another %s has the same mark", what)
		}
	}
	if d.OwnerTag("inst-assoc", "A", destination.Rules{Fold: strings.ToLower}) != mark {
		t.Error("another spelling has another mark")
	}
}

// TestAListWithoutEndHoldsNobodyUp: drift at one destination is found while another does not answer.
func TestAListWithoutEndHoldsNobodyUp(t *testing.T) {
	inSim(t, func(s *sim) {
		s.mounts[0].Put("a", "k", "1")
		s.sites.SetFault(func(c syncsim.Call) (f syncsim.Fault) {
			if c.Op == "list" && c.Type == syncsim.Marked {
				f.Delay = 1000 * time.Hour
			}
			return f
		})
		a := s.tie(2, "a", nil)
		s.sites.Site(syncsim.Plain, siteOf(syncsim.Plain)).Put(s.names(syncsim.Plain)[0], "2")
		s.pass(3 * state.DefaultDriftInterval)
		if l := s.link(a, "a"); len(l.Items) != 1 || l.Items[0].Drift != reconcile.DriftChanged {
			t.Errorf("%+v", l.Items)
		}
	})
}
