package chaos_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// fault is one way in which a cluster of three fails. inflict breaks it and returns the repair.
type fault struct {
	name        string
	short, long int  // times; the long version's are for 50 killed leaders
	moves       bool // another node has to lead before the repair
	silent      bool // the leader says nothing, or hears nothing, and goes on: its repair comes soon or late
	inflict     func(s *storm, leader, a, b *harness.Node) (repair func())
}

var faults = []fault{
	{"kill -9 of the leader", 2, 50, true, false, func(_ *storm, l, _, _ *harness.Node) func() { l.Kill9(); return l.Start }},
	{"kill -9 of a follower", 0, 5, false, false, func(_ *storm, _, a, _ *harness.Node) func() { a.Kill9(); return a.Start }},
	{"kill -9 of all", 1, 3, false, false, func(_ *storm, l, a, b *harness.Node) func() {
		for _, n := range []*harness.Node{l, a, b} {
			n.Kill9()
		}
		for _, n := range []*harness.Node{l, a, b} {
			n.Start()
		}
		return func() {}
	}},
	{"SIGSTOP of the leader", 1, 15, true, true, func(_ *storm, l, _, _ *harness.Node) func() { l.Pause(); return l.Resume }},
	{"step-down", 1, 15, false, false, func(_ *storm, l, _, _ *harness.Node) func() {
		l.MustDo("PUT", "/v1/sys/step-down", nil)
		return func() {}
	}},
	{"SIGTERM of the leader", 1, 10, true, false, func(_ *storm, l, _, _ *harness.Node) func() { l.Stop(); return l.Start }},
	{"the leader is isolated", 1, 7, true, true, func(s *storm, l, a, b *harness.Node) func() {
		s.Network.Isolate(l.ID, a.ID, b.ID)
		return s.Network.Heal
	}},
	{"the leader is mute", 1, 7, true, true, func(s *storm, l, a, b *harness.Node) func() {
		s.Network.Cut(l.ID, a.ID)
		s.Network.Cut(l.ID, b.ID)
		return s.Network.Heal
	}},
	{"the leader is deaf", 1, 7, true, true, func(s *storm, l, a, b *harness.Node) func() {
		s.Network.Cut(a.ID, l.ID)
		s.Network.Cut(b.ID, l.ID)
		return s.Network.Heal
	}},
	{"one link of the leader is cut", 1, 4, false, false, func(s *storm, l, a, _ *harness.Node) func() {
		s.Network.Cut(l.ID, a.ID)
		s.Network.Cut(a.ID, l.ID)
		return s.Network.Heal
	}},
	{"a follower is isolated", 1, 3, false, false, func(s *storm, l, a, b *harness.Node) func() {
		s.Network.Isolate(a.ID, l.ID, b.ID)
		return s.Network.Heal
	}},
}

// inProportion returns the faults of `make chaos` for as many leaders as are to be killed, or those of the short version.
func inProportion(t *testing.T) (all []fault) {
	kills := number(t, "COFFER_CHAOS_KILLS", 50)
	for _, f := range faults {
		all = append(all, slices.Repeat([]fault{f}, amount(f.short, (f.long*kills+49)/50))...)
	}
	return all
}

// took is what the faults of one kind did.
type took struct {
	gaps, repairs []time.Duration // without an acknowledged write
	longest       time.Duration   // that a request took
}

// inflict inflicts all the faults in random order, with linearizable reads under way at all nodes, and reports how long no
// write was acknowledged.
func (s *storm) inflict(t *testing.T, order []fault) map[string]*took {
	s.rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	all := map[string]*took{}
	for i, f := range order {
		if all[f.name] == nil {
			all[f.name] = &took{}
		}
		s.inflictOne(t, f, all[f.name])
		if (i+1)%100 == 0 {
			t.Logf("chaos: %d of %d faults", i+1, len(order))
		}
	}
	for _, f := range faults {
		if of := all[f.name]; of != nil {
			report(t, f.name+": no write acknowledged", of.gaps)
			report(t, f.name+", after the repair", of.repairs)
			t.Logf("chaos: %s: the longest request took %v", f.name, of.longest.Round(time.Millisecond))
		}
	}
	return all
}

func (s *storm) inflictOne(t *testing.T, f fault, of *took) {
	leader := s.Leader()
	others := slices.DeleteFunc(slices.Clone(s.Nodes), func(n *harness.Node) bool { return n == leader })
	s.rand.Shuffle(2, func(i, j int) { others[i], others[j] = others[j], others[i] })
	outage := harness.NewOutage(s.RootToken, "/v1/ack/probe", `{"a":"b"}`)
	defer outage.Stop()
	outage.Write(others)
	outage.Read(s.Nodes)
	outage.AwaitAck(t, time.Now())
	broken := time.Now()
	repair := f.inflict(s, leader, others[0], others[1])
	if f.moves {
		harness.Await(t, "another leader after "+f.name, time.Minute, func() error {
			for _, n := range others {
				if n.Health() == 200 {
					return nil
				}
			}
			return errors.New("there is none")
		})
		late := 200
		if f.silent { // it wakes up soon, and late
			late = amount(200, 3000)
		}
		<-time.After(time.Duration(s.rand.IntN(late)) * time.Millisecond)
	}
	outage.AwaitAck(t, time.Now())
	repaired := time.Now()
	repair()
	s.settle(t)
	outage.AwaitAck(t, time.Now())
	of.gaps = append(of.gaps, outage.Gap(broken, repaired))
	of.repairs = append(of.repairs, outage.Gap(repaired, time.Now()))
	of.longest = max(of.longest, outage.Longest())
}
