package replication_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/replication/secondary"
	"github.com/coffer-project/coffer/storage"
)

// following is a Follower with its Replica and its clock.
type following struct {
	*secondary.Follower
	h   *held
	now int64
	may bool // units be dropped
}

// Ended implements secondary.Handouts.
func (f *following) Ended(unit) bool { return f.may }

// clocked is a Replica with the clock of its Follower.
type clocked struct {
	*held
	f *following
}

func (c clocked) NowMS() int64 { return c.f.now }

func follower(h *held) *following {
	f := &following{h: h, now: 1_000_000, may: true}
	f.Follower = secondary.New(clocked{h, f}, transcriptLayout, secondary.Options{
		SetID: "set", ClusterID: "S", SmallUnit: 3, MaxAsk: 2, Handouts: f,
	})
	return f
}

// greeted returns a follower after its Hello and what the primary said to that.
func greeted(t *testing.T, h *held, w replication.Welcome) *following {
	t.Helper()
	f := follower(h)
	if _, err := f.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	receive(t, f, w)
	return f
}

func welcome(start string, resume bool, units string) replication.Welcome {
	w := replication.Welcome{SetID: "set", ClusterID: "P", Lineage: lineage("P 0:0 1"), Start: at(start), Resume: resume, Scope: 1, Proto: 1}
	for _, u := range strings.Fields(units) {
		w.Units = append(w.Units, unit(u))
	}
	return w
}

// is compares what the secondary holds.
func (f *following) is(t *testing.T, step, data, phases string) {
	t.Helper()
	if got := f.h.holds(); got != data {
		t.Fatalf("%s: holds\n\t%s\nwant\n\t%s", step, got, data)
	}
	if got := f.h.phases(); got != phases {
		t.Fatalf("%s: units\n\t%s\nwant\n\t%s", step, got, phases)
	}
}

func page(u, after, list, last, at0 string, done bool) replication.Page {
	return replication.Page{Unit: unit(u), After: key(after), Items: items(list), Last: key(last), Done: done, At: at(at0)}
}

func TestFollowerHello(t *testing.T) {
	h := newHeld("1:7", "global", "")
	m, err := follower(h).Hello(t.Context())
	if err != nil || text(m) != "hello 1:7 epoch 1" || m.SetID != "set" || m.ClusterID != "S" {
		t.Fatalf("Hello = %+v, %v", m, err)
	}
	h = newHeld("1:7", "", "s/sys/set/k@1:1")
	h.absent = true
	if _, err := follower(h).Hello(t.Context()); !errors.Is(err, replication.ErrBuilding) {
		t.Errorf("Hello without units and digests: %v", err)
	}
}

func TestFollowerFirstCopy(t *testing.T) {
	f := greeted(t, newHeld("", "", ""), welcome("1:10", false, "global mount/a ns/root"))
	if st := f.Status(); st.State != replication.Backfill || st.Exact {
		t.Errorf("status %+v", st)
	}
	expect(t, "the part that others need first", said(t.Context(), f), "ack 1:10", `page? global after "" with values`)
	receive(t, f, page("global", "", "s/sys/set/k@1:2", "s/sys/set/k", "1:10", true))
	f.is(t, "global", "s/sys/set/k@1:2", "global=whole mount/a=adding ns/root=adding")
	expect(t, "next", said(t.Context(), f), `page? ns/root after "" with values`)
	receive(t, f, page("ns/root", "", "", "", "1:10", true))

	// What comes by the stream is applied at once; the anchor is kept aside.
	expect(t, "next", said(t.Context(), f), `page? mount/a after "" with values`)
	receive(t, f, batch("1:10 1:12 | 1:11 +s/a/z +s/sys/root/mounts/a | 1:12 +s/a/y"))
	f.is(t, "batch", "s/a/y@1:12 s/a/z@1:11 s/sys/set/k@1:2", "global=whole mount/a=adding ns/root=whole")
	expect(t, "acked", said(t.Context(), f), "ack 1:12 +200")

	// The pages are ahead of the stream: the unit is shown when the stream has caught up.
	receive(t, f, page("mount/a", "", "s/a/x@1:3", "s/a/x", "1:13", false))
	expect(t, "the rest", said(t.Context(), f), `page? mount/a after "s/a/x" with values`)
	receive(t, f, page("mount/a", "s/a/x", "s/a/y@1:14 s/sys/root/mounts/a@1:11", "s/a/y", "1:15", true))
	f.is(t, "fetched", "s/a/x@1:3 s/a/y@1:14 s/sys/set/k@1:2", "global=whole mount/a=adding ns/root=whole")
	receive(t, f, batch("1:12 1:14 | 1:13 -s/a/z | 1:14 +s/a/y"))
	f.is(t, "not yet", "s/a/x@1:3 s/a/y@1:14 s/sys/set/k@1:2", "global=whole mount/a=adding ns/root=whole")
	receive(t, f, batch("1:14 1:15"))
	f.is(t, "shown", "s/a/x@1:3 s/a/y@1:14 s/sys/root/mounts/a@1:11 s/sys/set/k@1:2", "global=whole mount/a=whole ns/root=whole")
	expect(t, "done", said(t.Context(), f), "ack 1:15 +200 exact repaired")
	st := f.Status()
	if st.State != replication.Streaming || !st.Exact || st.Repair.Running || st.Repair.Units != 3 || st.Repair.UnitsAll != 3 || st.Repair.Cause != "first copy" {
		t.Errorf("status %+v, %+v", st, st.Repair)
	}
}

// TestFollowerShowsNamespacesFirst: a mount that is complete waits for the namespaces, and they for each other.
func TestFollowerShowsNamespacesFirst(t *testing.T) {
	f := greeted(t, newHeld("", "", ""), welcome("1:10", false, "mount/a ns/m ns/n"))
	said(t.Context(), f)
	receive(t, f, page("ns/m", "", "s/namespace/m@1:2", "", "1:10", true))
	said(t.Context(), f)
	receive(t, f, page("ns/n", "", "s/namespace/n@1:3", "", "1:12", true))
	said(t.Context(), f)
	receive(t, f, page("mount/a", "", "s/sys/n/mounts/a@1:4", "", "1:10", true))
	f.is(t, "one is not exact yet", "", "mount/a=adding ns/m=adding ns/n=adding")
	receive(t, f, batch("1:10 1:12"))
	f.is(t, "all are", "s/namespace/m@1:2 s/namespace/n@1:3 s/sys/n/mounts/a@1:4", "mount/a=whole ns/m=whole ns/n=whole")
}

func TestFollowerResumesAFetch(t *testing.T) {
	h := newHeld("1:10", "global", "s/a/x@1:3")
	h.state.Units["mount/a"] = replication.UnitState{Phase: replication.Adding, After: "s/a/x", Until: at("1:12")}
	f := greeted(t, h, welcome("1:10", true, "global mount/a"))
	expect(t, "where it was", said(t.Context(), f), "ack 1:10", `page? mount/a after "s/a/x" with values`)
	receive(t, f, page("mount/a", "s/a/x", "s/sys/root/mounts/a@1:2", "", "1:11", true))
	receive(t, f, batch("1:10 1:11"))
	f.is(t, "what was read first counts, too", "s/a/x@1:3", "global=whole mount/a=adding")
	receive(t, f, batch("1:11 1:12"))
	f.is(t, "whole", "s/a/x@1:3 s/sys/root/mounts/a@1:2", "global=whole mount/a=whole")
}

// TestFollowerAsksAhead: the next page of a copy is asked for before the last one is applied, and once.
func TestFollowerAsksAhead(t *testing.T) {
	f := greeted(t, newHeld("", "", ""), welcome("1:10", false, "mount/a"))
	expect(t, "first", said(t.Context(), f), "ack 1:10", `page? mount/a after "" with values`)
	ahead := func(m replication.Message, want string) {
		t.Helper()
		got := ""
		if q := f.Ahead(m); q != nil {
			got = text(q)
		}
		if got != want {
			t.Errorf("ahead of %s: %q, want %q", text(m), got, want)
		}
	}
	ahead(batch("1:10 1:11 | 1:11 +s/a/z"), "")
	first, second := page("mount/a", "", "s/a/x@1:3", "s/a/x", "1:10", false), page("mount/a", "s/a/x", "s/a/y@1:4", "s/a/y", "1:10", false)
	ahead(first, `page? mount/a after "s/a/x" with values`)
	ahead(first, "")
	receive(t, f, first)
	expect(t, "it was asked for", said(t.Context(), f))
	ahead(second, `page? mount/a after "s/a/y" with values`)

	// What is under way is not waited for when all begins from the start, and its answer is nothing.
	if err := f.Repair(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	receive(t, f, second)
	last := page("mount/a", "s/a/y", "s/sys/root/mounts/a@1:2", "", "1:10", true)
	ahead(last, "")
	receive(t, f, last)
	f.is(t, "only the first", "s/a/x@1:3", "mount/a=adding")
	expect(t, "anew", said(t.Context(), f), "sums? mount/a -1")
}

// differing makes a unit of n keys on both sides that differ in one.
func differing(n int) (here, there string) {
	for i := range n {
		here += fmt.Sprintf(" s/a/%02d@1:%d", i, i+1)
	}
	return here + " s/sys/root/mounts/a@1:1", strings.Replace(here, "s/a/01@1:2", "s/a/01@1:5", 1) + " s/sys/root/mounts/a@1:1"
}

func TestFollowerRepair(t *testing.T) {
	t.Run("a small unit by its list", func(t *testing.T) {
		f := greeted(t, newHeld("1:10", "mount/a", "s/a/x@1:3 s/a/y@1:4"), welcome("1:20", false, "mount/a"))
		if st := f.Status(); st.State != replication.Repairing {
			t.Errorf("state %s", st.State)
		}
		expect(t, "no sums", said(t.Context(), f), "ack 1:20", `page? mount/a after ""`)
		receive(t, f, page("mount/a", "", "s/a/x@1:3 s/a/z@1:5 s/a/zz@1:6 s/a/zzz@1:7", "s/a/zzz", "1:21", true))
		f.is(t, "the extra one is gone", "s/a/x@1:3", "mount/a=checking")
		expect(t, "wants values, some at a time", said(t.Context(), f), "items? mount/a [s/a/z s/a/zz]")
		receive(t, f, replication.Items{Unit: "mount/a", N: 1, Items: items("s/a/z@1:21"), At: at("1:22")})
		expect(t, "what was not answered again", said(t.Context(), f), "items? mount/a [s/a/zz s/a/zzz]")
		receive(t, f, replication.Items{Unit: "mount/a", N: 2, Items: items("s/a/zzz@1:7"), At: at("1:22")})
		f.is(t, "one does not exist any more", "s/a/x@1:3 s/a/z@1:21 s/a/zzz@1:7", "mount/a=whole")
		expect(t, "not exact before 22", said(t.Context(), f), "ack 1:20 repaired")
		receive(t, f, batch("1:20 1:22 | 1:21 +s/a/z | 1:22 -s/a/zz"))
		expect(t, "exact", said(t.Context(), f), "ack 1:22 +200 exact")
	})
	t.Run("a larger one by sums", func(t *testing.T) {
		mine, theirs := differing(20)
		f := greeted(t, newHeld("1:10", "mount/a", mine), welcome("1:20", false, "mount/a"))
		tree := treeOf(items(theirs))
		group := digest.Bucket("s/a/01") / digest.Groups
		expect(t, "groups", said(t.Context(), f), "ack 1:20", "sums? mount/a -1")
		receive(t, f, replication.Sums{Unit: "mount/a", Group: -1, Sums: tree.Sums(-1), At: at("1:20")})
		expect(t, "buckets of the one that differs", said(t.Context(), f), fmt.Sprintf("sums? mount/a %d", group))
		receive(t, f, replication.Sums{Unit: "mount/a", Group: group, Sums: tree.Sums(group), At: at("1:20")})
		expect(t, "the list of the bucket", said(t.Context(), f), `page? mount/a after "" in buckets`)
		receive(t, f, page("mount/a", "", "s/a/01@1:5 s/sys/root/mounts/a@1:1", "s/a/01", "1:20", true))
		expect(t, "the value", said(t.Context(), f), "items? mount/a [s/a/01]")
		receive(t, f, replication.Items{Unit: "mount/a", N: 1, Items: items("s/a/01@1:5"), At: at("1:20")})
		f.is(t, "repaired", f.h.holds(), "mount/a=whole")
		if f.h.data["s/a/01"].Mod != at("1:5") || len(f.h.data) != 21 {
			t.Errorf("holds %s", f.h.holds())
		}
		if r := f.Status().Repair; r.Buckets != 1 || r.Keys != 1 || r.Units != 1 {
			t.Errorf("repair %+v", r)
		}
	})
	t.Run("nothing differs", func(t *testing.T) {
		mine, _ := differing(20)
		f := greeted(t, newHeld("1:10", "mount/a", mine), welcome("1:20", false, "mount/a"))
		said(t.Context(), f)
		receive(t, f, replication.Sums{Unit: "mount/a", Group: -1, Sums: treeOf(items(mine)).Sums(-1), At: at("1:20")})
		expect(t, "one question", said(t.Context(), f), "ack 1:20 exact repaired")
	})
	t.Run("most is missing", func(t *testing.T) {
		_, theirs := differing(20)
		f := greeted(t, newHeld("1:10", "mount/a", "s/a/00@1:1 s/a/01@1:2 s/a/02@1:3"), welcome("1:20", false, "mount/a"))
		said(t.Context(), f)
		receive(t, f, replication.Sums{Unit: "mount/a", Group: -1, Sums: treeOf(items(theirs)).Sums(-1), At: at("1:20")})
		expect(t, "pages with values", said(t.Context(), f), `page? mount/a after "" with values`)
	})
	t.Run("the digests are being built", func(t *testing.T) {
		f := greeted(t, newHeld("1:10", "mount/a", "s/a/00@1:1"), welcome("1:20", false, "mount/a"))
		f.h.absent = true
		expect(t, "waits", said(t.Context(), f), "ack 1:20")
		f.h.absent = false
		expect(t, "begins", said(t.Context(), f), `page? mount/a after ""`)
	})
	t.Run("asked for by an operator", func(t *testing.T) {
		f := greeted(t, newHeld("1:10", "global mount/a", "s/a/00@1:1"), welcome("1:10", true, "global mount/a"))
		expect(t, "nothing to do", said(t.Context(), f), "ack 1:10 exact")
		if err := f.Repair(t.Context(), "operator"); err != nil {
			t.Fatal(err)
		}
		f.is(t, "all units", "s/a/00@1:1", "global=checking mount/a=checking")
		if r := f.Status().Repair; !r.Running || r.Cause != "operator" || r.UnitsAll != 2 {
			t.Errorf("repair %+v", r)
		}
		if err := follower(f.h).Repair(t.Context(), "operator"); err == nil {
			t.Error("a follower without a connection begins a repair")
		}
	})
}

// TestFollowerGoesOnAfterAChangeOfTheHistory: what is exact needs no comparison; what was fetched of another primary does.
func TestFollowerGoesOnAfterAChangeOfTheHistory(t *testing.T) {
	h := newHeld("1:10", "mount/a mount/b", "s/a/x@1:3")
	h.state.Units["mount/b"] = replication.UnitState{Phase: replication.Whole, Until: at("1:12")}
	h.state.Units["mount/c"] = replication.UnitState{Phase: replication.Adding, After: "s/c/x", Until: at("1:9")}
	w := welcome("1:10", true, "mount/a mount/b mount/c")
	w.Lineage = lineage("P 0:0 1,B 1:10 4")
	f := greeted(t, h, w)
	f.is(t, "welcomed", "s/a/x@1:3", "mount/a=whole mount/b=checking mount/c=adding")
	if st := h.state.Units["mount/c"]; st.After != "" || !st.Until.IsZero() {
		t.Errorf("a fetch goes on in another history: %+v", st)
	}
	if h.state.Diverged != at("1:10") {
		t.Errorf("something was fetched from behind 1:10, and the history was left at %s", h.state.Diverged)
	}
	if f.Status().Lineage.Epoch() != 2 || h.state.Lineage.Epoch() != 2 {
		t.Error("the new history was not kept")
	}
}

func TestFollowerScope(t *testing.T) {
	h := newHeld("1:10", "global mount/a", "s/a/x@1:3 s/a/y@1:4 s/sys/root/mounts/a@1:2")
	f := greeted(t, h, welcome("1:10", true, "global mount/a"))
	f.may = false
	said(t.Context(), f)
	receive(t, f, replication.Scope{Version: 2, Drop: []unit{"mount/a"}, New: []unit{"mount/b"}, Add: []unit{"mount/c"}})
	f.is(t, "dropped", "s/a/x@1:3 s/a/y@1:4 s/sys/root/mounts/a@1:2", "global=whole mount/a=dropping mount/b=whole mount/c=adding")
	expect(t, "the new one is not fetched", said(t.Context(), f), "ack 1:10", `page? mount/c after "" with values`)
	receive(t, f, batch("1:10 1:11 | 1:11 +s/a/z +s/b/x +s/sys/root/mounts/b"))
	f.is(t, "nothing more for what is dropped", "s/a/x@1:3 s/a/y@1:4 s/b/x@1:11 s/sys/root/mounts/a@1:2 s/sys/root/mounts/b@1:11",
		"global=whole mount/a=dropping mount/b=whole mount/c=adding")
	if f.Busy() {
		t.Error("busy although it may not delete")
	}
	f.may = true
	expect(t, "deletes", said(t.Context(), f), "ack 1:11 +100")
	f.is(t, "gone", "s/b/x@1:11 s/sys/root/mounts/b@1:11", "global=whole mount/b=whole mount/c=adding")

	// A unit that comes back while it is deleted is fetched when that is done.
	f.may = false
	receive(t, f, replication.Scope{Version: 3, Drop: []unit{"mount/b"}}, replication.Scope{Version: 4, Add: []unit{"mount/b"}})
	f.is(t, "back too early", "s/b/x@1:11 s/sys/root/mounts/b@1:11", "global=whole mount/b=dropping mount/c=adding")
	f.may = true
	said(t.Context(), f)
	f.is(t, "fetched anew", "", "global=whole mount/b=adding mount/c=adding")

	// The answers to what was asked about a unit that has left are ignored.
	receive(t, f, replication.Scope{Version: 5, Drop: []unit{"mount/c"}}, replication.Scope{Version: 6, Add: []unit{"mount/c"}})
	expect(t, "no question before the answer", said(t.Context(), f))
	receive(t, f, page("mount/c", "", "s/c/old@1:5", "s/c/old", "1:12", true))
	f.is(t, "ignored", "", "global=whole mount/b=adding mount/c=adding")
	expect(t, "anew", said(t.Context(), f), `page? mount/b after "" with values`)
	receive(t, f, replication.Gone{Unit: "mount/b"})
	said(t.Context(), f)
	f.is(t, "gone", "", "global=whole mount/c=adding")
}

func TestFollowerWelcomeDropsWhatLeftTheScope(t *testing.T) {
	f := greeted(t, newHeld("1:10", "global mount/a", "s/a/x@1:3"), welcome("1:10", true, "global"))
	said(t.Context(), f)
	f.is(t, "dropped", "", "global=whole")
	if len(f.h.dropped) != 1 {
		t.Errorf("dropped %v", f.h.dropped)
	}
}

// TestFollowerAdopts: a primary that was demoted has no units stored, and everything that it holds is whole at the cursor.
func TestFollowerAdopts(t *testing.T) {
	f := greeted(t, newHeld("1:10", "", "s/a/x@1:3 s/b/x@1:4 s/sys/set/k@1:1"), welcome("1:10", true, "global mount/a ns/root"))
	expect(t, "only what it does not have", said(t.Context(), f), "ack 1:10", `page? ns/root after "" with values`)
	f.is(t, "adopted, or dropped", "s/a/x@1:3 s/sys/set/k@1:1", "global=whole mount/a=whole ns/root=adding")
}

func TestFollowerBatch(t *testing.T) {
	bad := []struct {
		name string
		in   replication.Message
	}{
		{"a gap", batch("1:11 1:12 | 1:12 +s/a/x")},
		{"again", batch("1:9 1:10 | 1:10 +s/a/x")},
		{"backwards", batch("1:10 1:9")},
		{"a local key", batch("1:10 1:11 | 1:11 +l/token/x")},
		{"a key without a unit", batch("1:10 1:11 | 1:11 +s/index/x")},
		{"an answer to nothing", page("mount/a", "", "", "", "1:10", true)},
		{"a second welcome", welcome("1:10", true, "global")},
		{"a checkpoint of elsewhere", replication.Checkpoint{At: at("1:11")}},
		{"an end elsewhere", replication.Final{At: at("1:11")}},
		{"a secondary's message", replication.Ack{}},
	}
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			f := greeted(t, newHeld("1:10", "global mount/a", "s/a/x@1:3"), welcome("1:10", true, "global mount/a"))
			if err := f.Receive(t.Context(), tt.in); !errors.Is(err, replication.ErrProtocol) {
				t.Errorf("Receive = %v, want ErrProtocol", err)
			}
			if f.h.holds() != "s/a/x@1:3" || f.h.state.Cursor != at("1:10") {
				t.Errorf("it changed what is stored: %s at %s", f.h.holds(), f.h.state.Cursor)
			}
			if err := f.Receive(t.Context(), batch("1:10 1:11")); err == nil {
				t.Error("the connection goes on")
			}
		})
	}
	t.Run("the last op of a key counts", func(t *testing.T) {
		f := greeted(t, newHeld("1:10", "global mount/a", "s/a/x@1:3"), welcome("1:10", true, "global mount/a"))
		commits := f.h.commits
		receive(t, f, batch("1:10 1:14 | 1:11 -s/a/x +s/a/y | 1:12 +s/a/x | 1:13 -s/a/y | 1:14 *s/a/z@1:5"))
		f.is(t, "applied", "s/a/x@1:12 s/a/z@1:5", "global=whole mount/a=whole")
		if f.h.commits != commits+1 || f.h.state.Cursor != at("1:14") {
			t.Errorf("%d commits, cursor %s", f.h.commits-commits, f.h.state.Cursor)
		}
		if f.Status().TimeMS != 140 {
			t.Errorf("time %d", f.Status().TimeMS)
		}
	})
	t.Run("the cursor alone is stored now and then", func(t *testing.T) {
		f := greeted(t, newHeld("1:10", "global", ""), welcome("1:10", true, "global"))
		commits := f.h.commits
		receive(t, f, batch("1:10 1:20"), batch("1:20 1:30 | 1:25 +s/b/x"))
		expect(t, "acked", said(t.Context(), f), "ack 1:30 +100 exact")
		if f.h.commits != commits || f.Status().Cursor != at("1:30") {
			t.Errorf("%d commits, cursor %s", f.h.commits-commits, f.Status().Cursor)
		}
		f.now += 10_000
		receive(t, f, batch("1:30 1:31"))
		if f.h.state.Cursor != at("1:31") {
			t.Errorf("after ten seconds the stored cursor is %s", f.h.state.Cursor)
		}
		receive(t, f, batch("1:31 1:10031"))
		if f.h.state.Cursor != at("1:10031") {
			t.Errorf("after ten thousand indexes the stored cursor is %s", f.h.state.Cursor)
		}
	})
	t.Run("a commit fails", func(t *testing.T) {
		f := greeted(t, newHeld("1:10", "global mount/a", ""), welcome("1:10", true, "global mount/a"))
		f.h.failing = storage.ErrOutcomeUnknown
		if err := f.Receive(t.Context(), batch("1:10 1:11 | 1:11 +s/a/x")); !errors.Is(err, storage.ErrOutcomeUnknown) {
			t.Errorf("Receive = %v", err)
		}
		if st := f.Status(); st.Cursor != at("1:10") {
			t.Errorf("it says that %s is applied", st.Cursor)
		}
		if _, err := f.Next(t.Context()); err == nil {
			t.Error("it goes on without knowing what is stored")
		}
		f.h.failing = nil
		if m, err := f.Hello(t.Context()); err != nil || m.Cursor != at("1:10") {
			t.Errorf("Hello = %+v, %v", m, err)
		}
	})
}

func TestFollowerCheckpoint(t *testing.T) {
	good := map[unit]digest.Sum{"mount/a": treeOf(items("s/a/x@1:3")).Root()}
	h := newHeld("1:10", "global mount/a", "s/a/x@1:2")
	f := greeted(t, h, welcome("1:10", true, "global mount/a"))
	repair := func(fixed bool) {
		t.Helper()
		said(t.Context(), f)
		receive(t, f, page("mount/a", "", "s/a/x@1:3", "s/a/x", "1:10", true))
		said(t.Context(), f)
		receive(t, f, replication.Items{Unit: "mount/a", N: 1, Items: items("s/a/x@1:3"), At: at("1:10")})
		if !fixed { // a disk that forgets
			h.data["s/a/x"] = item("s/a/x@1:2")
		}
	}
	differs := replication.Checkpoint{At: at("1:10"), Roots: good}
	receive(t, f, differs)
	f.is(t, "differs", "s/a/x@1:2", "global=whole mount/a=checking")
	if r := f.Status().Repair; r.Cause != "checkpoint" || r.Estimated != 0 {
		t.Errorf("repair %+v", r)
	}
	receive(t, f, differs)
	f.is(t, "not counted while it is repaired", "s/a/x@1:2", "global=whole mount/a=checking")
	repair(true)
	receive(t, f, differs)
	if st := h.state.Units["mount/a"]; st.Phase != replication.Whole || st.Attempts != 0 {
		t.Errorf("after a repair that helped: %+v", st)
	}

	h.data["s/a/x"] = item("s/a/x@1:2")
	for range 2 {
		receive(t, f, differs)
		f.is(t, "once more", "s/a/x@1:2", "global=whole mount/a=checking")
		repair(false)
	}
	receive(t, f, differs)
	f.is(t, "two repairs did not help", "s/a/x@1:2", "global=whole mount/a=quarantined")
	if st := f.Status(); st.Quarantined != 1 || st.Exact || st.State == replication.Streaming {
		t.Errorf("status %+v", st)
	}
	receive(t, f, differs)
	f.is(t, "stays so", "s/a/x@1:2", "global=whole mount/a=quarantined")
	receive(t, f, batch("1:10 1:11 | 1:11 *s/a/x@1:3"))
	f.is(t, "but streams", "s/a/x@1:3", "global=whole mount/a=quarantined")
	receive(t, f, replication.Checkpoint{At: at("1:11"), Roots: good})
	f.is(t, "a checkpoint agrees", "s/a/x@1:3", "global=whole mount/a=whole")

	// A unit that is not exact yet is not compared.
	h.state.Units["mount/a"] = replication.UnitState{Phase: replication.Whole, Until: at("1:20")}
	h.data["s/a/x"] = item("s/a/x@1:2")
	f = greeted(t, h, welcome("1:11", true, "global mount/a"))
	receive(t, f, replication.Checkpoint{At: at("1:11"), Roots: good})
	f.is(t, "not exact", "s/a/x@1:2", "global=whole mount/a=whole")
}

func TestFollowerDiverged(t *testing.T) {
	h := newHeld("1:20", "global mount/a mount/mine", "s/a/stream@1:15 s/a/early@1:5 s/a/extra@1:16 s/a/over@1:17 s/mine/x@1:18 s/sys/root/mounts/mine@1:18")
	w := welcome("2:30", false, "global mount/a")
	w.Lineage, w.Diverged, w.Common = lineage("P 0:0 1,B 1:12 25"), true, at("1:12")
	f := greeted(t, h, w)
	expect(t, "compares", said(t.Context(), f), "ack 2:30", `page? global after "" with values`)
	receive(t, f, page("global", "", "", "", "2:30", true))
	said(t.Context(), f) // sums, because it is not small
	receive(t, f, batch("2:30 2:31 | 2:31 +s/a/stream"))
	theirs := items("s/a/over@2:28 s/a/stream@2:31")
	receive(t, f, replication.Sums{Unit: "mount/a", Group: -1, Sums: treeOf(theirs).Sums(-1), At: at("2:31")})
	for range 20 {
		for _, q := range said(t.Context(), f) {
			var u string
			var group int
			if n, _ := fmt.Sscanf(q, "sums? %s %d", &u, &group); n == 2 {
				receive(t, f, replication.Sums{Unit: unit(u), Group: group, Sums: treeOf(theirs).Sums(group), At: at("2:31")})
			}
			if strings.HasPrefix(q, "page? mount/a") {
				receive(t, f, page("mount/a", "", "s/a/over@2:28", "s/a/over", "2:31", true))
			}
			if strings.HasPrefix(q, "items?") {
				receive(t, f, replication.Items{Unit: "mount/a", N: 1, Items: items("s/a/over@2:28"), At: at("2:31")})
			}
		}
	}
	f.is(t, "as the primary", "s/a/over@2:28 s/a/stream@2:31", "global=whole mount/a=whole")
	got := map[string]string{}
	for _, c := range h.lost {
		got[fmt.Sprintf("%s@%s", c.Key, c.Mod)] = c.Theirs.String()
	}
	want := map[string]string{
		"s/a/stream@1:15": "2:31", "s/a/extra@1:16": "0:0", "s/a/over@1:17": "2:28", "s/mine/x@1:18": "0:0", "s/sys/root/mounts/mine@1:18": "0:0",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || len(h.lost) != len(want) {
		t.Errorf("copies of\n\t%v\nwant\n\t%v", got, want)
	}
	if !h.state.Diverged.IsZero() {
		t.Errorf("the divergence is repaired, and still open: %s", h.state.Diverged)
	}
}

// TestFollowerDivergedInOneEpoch: two clusters were promoted at once, and what this one wrote at 2:5 is not what the
// primary wrote at 2:5.
func TestFollowerDivergedInOneEpoch(t *testing.T) {
	h := newHeld("2:7", "mount/a", "s/a/w@1:2 s/a/x@2:5 s/a/y@1:3 s/a/z@1:4")
	h.state.Lineage = lineage("P 0:0 1,S 1:10 4")
	w := welcome("2:30", false, "mount/a")
	w.Lineage, w.Diverged, w.Common = lineage("P 0:0 1,B 1:9 3"), true, at("1:9")
	f := greeted(t, h, w)
	expect(t, "no sums, although it is not small", said(t.Context(), f), "ack 2:30", `page? mount/a after ""`)
	receive(t, f, page("mount/a", "", "s/a/w@1:2 s/a/x@2:5 s/a/y@1:3 s/a/z@1:4", "s/a/z", "2:30", true))
	expect(t, "the value of what looks equal", said(t.Context(), f), "items? mount/a [s/a/x]")
	other := item("s/a/x@2:5")
	other.Value = []byte("another")
	receive(t, f, replication.Items{Unit: "mount/a", N: 1, Items: []replication.Item{other}, At: at("2:30")})
	if string(h.data["s/a/x"].Value) != "another" || len(h.lost) != 1 {
		t.Errorf("holds %q, %d copies", h.data["s/a/x"].Value, len(h.lost))
	}
}

func TestFollowerEnds(t *testing.T) {
	f := greeted(t, newHeld("1:10", "global", ""), welcome("1:10", true, "global"))
	receive(t, f, batch("1:10 1:12"), replication.Final{At: at("1:12")})
	if f.h.state.Cursor != at("1:12") {
		t.Errorf("the stored cursor is %s", f.h.state.Cursor)
	}
	expect(t, "acked, then over", said(t.Context(), f), "ack 1:12 exact", "ends: "+replication.ErrFinal.Error())

	for _, tt := range []struct {
		in   replication.Message
		want error
	}{
		{replication.Reject{Fenced: true}, replication.ErrFenced},
		{replication.Reject{Set: true}, replication.ErrOtherSet},
		{replication.Reject{Reason: "no"}, replication.ErrRejected},
		{replication.Welcome{SetID: "other", Proto: 1}, replication.ErrOtherSet},
		{welcome("1:9", true, "global"), replication.ErrProtocol},
		{welcome("1:10", true, ""), replication.ErrProtocol},
		{replication.Heartbeat{}, replication.ErrProtocol},
	} {
		f := follower(newHeld("1:10", "global mount/a", ""))
		if _, err := f.Hello(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.Receive(t.Context(), tt.in); !errors.Is(err, tt.want) {
			t.Errorf("Receive(%s) = %v, want %v", text(tt.in), err, tt.want)
		}
		if f.h.commits != 0 {
			t.Errorf("%s changed what is stored", text(tt.in))
		}
	}
	h := newHeld("2:10", "global", "")
	h.state.Lineage = lineage("P 0:0 1,B 1:5 3")
	f = follower(h)
	if _, err := f.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Receive(t.Context(), welcome("1:10", false, "global")); !errors.Is(err, replication.ErrFenced) {
		t.Errorf("a primary of an earlier epoch: %v", err)
	}
}

func TestFollowerFallsBehind(t *testing.T) {
	f := greeted(t, newHeld("1:10", "global", ""), welcome("1:10", true, "global"))
	beat := func(head string, now int64) {
		receive(t, f, replication.Heartbeat{Head: at(head), Through: f.Status().Cursor, NowMS: now})
	}
	for _, tt := range []struct {
		head string
		now  int64
		want replication.SecondaryState
	}{
		{"1:20", 0, replication.Streaming}, {"1:30", 4000, replication.Streaming}, {"1:40", 6000, replication.CatchingUp},
	} {
		beat(tt.head, tt.now)
		if got := f.Status().State; got != tt.want {
			t.Errorf("with the primary at %s after %d ms: %s, want %s", tt.head, tt.now, got, tt.want)
		}
	}
	receive(t, f, batch("1:10 1:40"))
	beat("1:50", 7000)
	if got := f.Status().State; got != replication.Streaming {
		t.Errorf("after it has caught up: %s", got)
	}
}
