package replication_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/replication/primary"
	"github.com/coffer-project/coffer/storage"
)

// primaryAt10 is a Source at index 10 of its first epoch.
func primaryAt10(t *testing.T) *scripted {
	return &scripted{
		t: t, id: "P", set: "set", lineage: lineage("P 0:0 1"), head: 10, units: "global ns/root mount/a", version: 1, digests: 10,
		data: map[key]replication.Item{}, now: 1000,
	}
}

func hello(cursor string, history string) replication.Hello {
	h := replication.Hello{SetID: "set", ClusterID: "S", ProtoMin: 1, ProtoMax: 1}
	if cursor != "" {
		h.Cursor = at(cursor)
	}
	if history != "" {
		h.Lineage = lineage(history)
	}
	return h
}

// session returns one that has no heartbeats but the first and no checkpoints.
func session(src *scripted) *primary.Session {
	return primary.New(src, transcriptLayout, primary.Options{HeartbeatMS: 1 << 40, CheckpointMS: 1 << 41})
}

// welcomed returns a session that goes on at a position, after its first messages.
func welcomed(t *testing.T, src *scripted, cursor string) *primary.Session {
	t.Helper()
	s := session(src)
	receive(t, s, hello(cursor, "P 0:0 1"))
	for range 2 { // Welcome and Heartbeat
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func receive(t *testing.T, m machine, messages ...replication.Message) {
	t.Helper()
	for _, msg := range messages {
		if err := m.Receive(t.Context(), msg); err != nil {
			t.Fatalf("Receive(%s): %v", text(msg), err)
		}
	}
}

func TestSessionWelcome(t *testing.T) {
	first, second, third := "P 0:0 1", "A 0:0 1,P 1:7 5", "P 0:0 1,B 1:5 3,P 2:9 8"
	tests := []struct {
		name    string
		lineage string
		oldest  storage.Index
		located storage.Index
		hello   replication.Hello
		want    string // the first message
		after   string // the first batch, if it resumes
		err     error
	}{
		{name: "an empty secondary begins at the present", lineage: first, hello: hello("", ""), want: "welcome 1:10 compare [global mount/a ns/root]"},
		{name: "a position that is kept", lineage: first, hello: hello("1:8", first), want: "welcome 1:8 resume [global mount/a ns/root]", after: "batch (1:8,1:10]"},
		{name: "a position that is not kept", lineage: first, oldest: 9, hello: hello("1:8", first), want: "welcome 1:10 compare [global mount/a ns/root]"},
		{name: "the oldest position that is kept", lineage: first, oldest: 8, hello: hello("1:8", first), want: "welcome 1:8 resume [global mount/a ns/root]", after: "batch (1:8,1:10]"},
		{name: "the point of the promotion", lineage: second, oldest: 5, located: 4, hello: hello("1:7", "A 0:0 1"), want: "welcome 1:7 resume [global mount/a ns/root]", after: "batch (1:7,2:10]"},
		{name: "the point of the promotion, of a cluster that was not exact there", lineage: second, hello: hello("1:7", "A 0:0 1"), want: "welcome 2:10 compare [global mount/a ns/root]"},
		{name: "the point of the promotion, not kept", lineage: second, oldest: 6, located: 4, hello: hello("1:7", "A 0:0 1"), want: "welcome 2:10 compare [global mount/a ns/root]"},
		{name: "before the promotion", lineage: second, located: 3, hello: hello("1:6", "A 0:0 1"), want: "welcome 1:6 resume [global mount/a ns/root]", after: "batch (1:6,2:10]"},
		{name: "before the promotion, not known", lineage: second, hello: hello("1:6", "A 0:0 1"), want: "welcome 2:10 compare [global mount/a ns/root]"},
		{name: "before the promotion, not kept", lineage: second, located: 3, oldest: 4, hello: hello("1:6", "A 0:0 1"), want: "welcome 2:10 compare [global mount/a ns/root]"},
		{name: "behind the promotion", lineage: second, hello: hello("1:8", "A 0:0 1"), want: "welcome 2:10 compare diverged at 1:7 [global mount/a ns/root]"},
		{name: "another epoch of the same number", lineage: second, hello: hello("2:9", "A 0:0 1,B 1:6 9"), want: "welcome 2:10 compare diverged at 1:6 [global mount/a ns/root]"},
		{name: "before another epoch of the same number", lineage: second, located: 3, hello: hello("1:6", "A 0:0 1,B 1:8 9"), want: "welcome 1:6 resume [global mount/a ns/root]", after: "batch (1:6,2:10]"},
		{name: "nothing in common", lineage: first, hello: hello("1:9", "B 0:0 1"), want: "welcome 1:10 compare diverged at 0:0 [global mount/a ns/root]"},
		{name: "an earlier epoch of its own", lineage: third, located: 4, hello: hello("1:4", first), want: "welcome 1:4 resume [global mount/a ns/root]", after: "batch (1:4,3:10]"},
		{name: "another set", lineage: first, hello: replication.Hello{SetID: "other", ProtoMin: 1, ProtoMax: 1}, want: "reject fenced=false set=true", err: replication.ErrOtherSet},
		{name: "a later epoch", lineage: first, hello: hello("2:9", second), want: "reject fenced=true set=false", err: replication.ErrFenced},
		{name: "itself", lineage: first, hello: replication.Hello{SetID: "set", ClusterID: "P", ProtoMin: 1, ProtoMax: 1}, want: "reject fenced=false set=false", err: replication.ErrRejected},
		{name: "a newer protocol", lineage: first, hello: replication.Hello{SetID: "set", ClusterID: "S", ProtoMin: 2, ProtoMax: 3}, want: "reject fenced=false set=false", err: replication.ErrRejected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src := primaryAt10(t)
			src.lineage, src.oldest, src.located = lineage(tt.lineage), tt.oldest, tt.located
			s := session(src)
			receive(t, s, tt.hello)
			m, err := s.Next(t.Context())
			if err != nil || text(m) != tt.want {
				t.Fatalf("first message: %v, %v, want %s", m, err, tt.want)
			}
			if tt.err != nil {
				if _, err = s.Next(t.Context()); !errors.Is(err, tt.err) {
					t.Fatalf("then %v, want %v", err, tt.err)
				}
				if errors.Is(tt.err, replication.ErrFenced) && s.Status().MetEpoch.Number != 2 {
					t.Errorf("the later epoch is %v in the status, want 2", s.Status().MetEpoch)
				}
				return
			}
			want := []string{strings.Replace(fmt.Sprintf("heartbeat %d:10 through START", src.lineage.Epoch()), "START", strings.Fields(tt.want)[1], 1)}
			if tt.after != "" {
				want = append(want, tt.after)
			}
			expect(t, "after the welcome", said(t.Context(), s), want...)
		})
	}
}

// TestSessionOfANodeThatIsBehind: a leader that has not applied its log, or is none any more, takes no secondary back.
func TestSessionOfANodeThatIsBehind(t *testing.T) {
	if err := session(primaryAt10(t)).Receive(t.Context(), hello("1:11", "P 0:0 1")); !errors.Is(err, replication.ErrBuilding) {
		t.Errorf("Hello from ahead: %v", err)
	}
}

func TestSessionRefusesRevoked(t *testing.T) {
	src := primaryAt10(t)
	src.err = replication.ErrRevoked
	s := session(src)
	if err := s.Receive(t.Context(), hello("", "")); !errors.Is(err, replication.ErrRevoked) {
		t.Errorf("Hello of a revoked secondary: %v", err)
	}
	src.err = nil
	s = welcomed(t, src, "1:10")
	src.err = replication.ErrRevoked
	s.ScopeChanged()
	if _, err := s.Next(t.Context()); !errors.Is(err, replication.ErrRevoked) {
		t.Errorf("Next after the revocation: %v", err)
	}
}

func TestSessionBreaks(t *testing.T) {
	tests := []struct {
		name string
		in   replication.Message
	}{
		{"a second hello", hello("", "")},
		{"a primary's message", replication.Final{}},
		{"a group that does not exist", replication.AskSums{Unit: "global", Group: digest.Groups}},
		{"no keys", replication.AskItems{Unit: "global"}},
		{"a key of another unit", replication.AskItems{Unit: "mount/a", Keys: []key{"s/a/x", "s/b/x"}}},
		{"a local key", replication.AskItems{Unit: "mount/a", Keys: []key{"l/a/x"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := welcomed(t, primaryAt10(t), "1:10").Receive(t.Context(), tt.in); !errors.Is(err, replication.ErrProtocol) {
				t.Errorf("Receive = %v, want ErrProtocol", err)
			}
		})
	}
	if err := session(primaryAt10(t)).Receive(t.Context(), replication.Ack{}); !errors.Is(err, replication.ErrProtocol) {
		t.Errorf("Ack before Hello: %v, want ErrProtocol", err)
	}
}

func TestSessionStream(t *testing.T) {
	src := primaryAt10(t)
	s := welcomed(t, src, "1:10")

	// What is out of scope, or has no unit, does not go out; an entry of which nothing is left is not sent.
	src.entries = []replication.Entry{wrote("1:11 +s/a/x +s/b/secret"), wrote("1:12 +s/b/y"), wrote("1:13 -s/a/x +s/index/q")}
	src.head = 14
	expect(t, "three entries", said(t.Context(), s), "batch (1:10,1:14] | 1:11 +s/a/x | 1:13 -s/a/x")

	// Nothing for this secondary: the position moves every now and then.
	src.entries, src.head = append(src.entries, wrote("1:15 +s/b/z")), 16
	src.now += 50
	expect(t, "at once", said(t.Context(), s))
	src.now += 50
	expect(t, "after a moment", said(t.Context(), s), "batch (1:14,1:16]")

	st := s.Status()
	if st.Sent != at("1:16") || st.Entries != 2 || st.InFlight == 0 {
		t.Errorf("status %+v", st)
	}
	receive(t, s, replication.Ack{Cursor: at("1:14"), Bytes: st.InFlight, Exact: true, Repaired: true})
	if st = s.Status(); st.InFlight != 0 || st.Acked != at("1:14") || !st.Exact || st.Repaired != 1 {
		t.Errorf("status after the ack %+v", st)
	}

	// A log that has lost what comes next ends the session.
	src.oldest, src.head = 20, 30
	if _, err := s.Next(t.Context()); !errors.Is(err, replication.ErrTruncated) {
		t.Errorf("Next with a truncated log: %v", err)
	}
}

func TestSessionWindow(t *testing.T) {
	src := primaryAt10(t)
	s := primary.New(src, transcriptLayout, primary.Options{BatchBytes: 100, WindowBytes: 150, HeartbeatMS: 1 << 40, CheckpointMS: 1 << 41})
	receive(t, s, hello("1:10", "P 0:0 1"))
	said(t.Context(), s)
	for i := 11; i <= 14; i++ {
		src.entries = append(src.entries, wrote(fmt.Sprintf("1:%d +s/a/x", i)))
	}
	src.head = 14
	expect(t, "as much as the window holds", said(t.Context(), s), "batch (1:10,1:11] | 1:11 +s/a/x", "batch (1:11,1:12] | 1:12 +s/a/x")
	receive(t, s, replication.AskPage{Unit: "mount/a"})
	expect(t, "answers go on", said(t.Context(), s), "page mount/a [] at 1:14 done")
	receive(t, s, replication.Ack{Cursor: at("1:12"), Bytes: s.Status().InFlight})
	expect(t, "credit given back", said(t.Context(), s), "batch (1:12,1:13] | 1:13 +s/a/x", "batch (1:13,1:14] | 1:14 +s/a/x")
}

func TestSessionScope(t *testing.T) {
	tests := []struct {
		name    string
		entries []replication.Entry
		scope   string
		changed bool // ScopeChanged is called
		want    []string
	}{
		{
			name: "a new mount flows from its beginning", scope: "global ns/root mount/a mount/b",
			entries: []replication.Entry{wrote("1:11 +s/a/x"), wrote("1:12 ++s/sys/root/mounts/b +s/b/config"), wrote("1:13 +s/b/x")},
			want: []string{
				"batch (1:10,1:11] | 1:11 +s/a/x", "scope 1 add [] new [mount/b] drop []",
				"batch (1:11,1:13] | 1:12 +s/sys/root/mounts/b +s/b/config | 1:13 +s/b/x",
			},
		},
		{
			name: "even if the change of the scope is known before", scope: "global ns/root mount/a mount/b", changed: true,
			entries: []replication.Entry{wrote("1:11 ++s/sys/root/mounts/b +s/b/config")},
			want:    []string{"scope 1 add [] new [mount/b] drop []", "batch (1:10,1:11] | 1:11 +s/sys/root/mounts/b +s/b/config"},
		},
		{
			name: "a mount that came from another namespace has older data", scope: "global ns/root mount/a mount/b",
			entries: []replication.Entry{wrote("1:11 -s/sys/n/mounts/b ++s/sys/root/mounts/b"), wrote("1:12 +s/a/x")},
			want:    []string{"batch (1:10,1:12] | 1:12 +s/a/x", "scope 1 add [mount/b] new [] drop []"},
		},
		{
			name: "a mount of which something was held back has older data", scope: "global ns/root mount/a mount/b",
			entries: []replication.Entry{wrote("1:11 +s/b/x"), wrote("1:12 ++s/sys/root/mounts/b")},
			want:    []string{"batch (1:10,1:12]", "scope 1 add [mount/b] new [] drop []"},
		},
		{
			name: "a mount that a filter allows now", scope: "global ns/root mount/a mount/b", changed: true,
			entries: []replication.Entry{wrote("1:11 +s/b/x")},
			want:    []string{"batch (1:10,1:11]", "scope 1 add [mount/b] new [] drop []"},
		},
		{
			name: "a mount that a filter denies now leaves before the next entry", scope: "global ns/root", changed: true,
			entries: []replication.Entry{wrote("1:11 +s/a/x")},
			want:    []string{"scope 1 add [] new [] drop [mount/a]", "batch (1:10,1:11]"},
		},
		{
			name: "a mount that was removed", scope: "global ns/root",
			entries: []replication.Entry{wrote("1:11 +s/a/x"), wrote("1:12 -s/sys/root/mounts/a"), wrote("1:13 +s/sys/root/p")},
			want: []string{
				"batch (1:10,1:11] | 1:11 +s/a/x", "scope 1 add [] new [] drop [mount/a]", "batch (1:11,1:13] | 1:13 +s/sys/root/p",
			},
		},
		{
			name: "an entry of a mount that stays", scope: "global ns/root mount/a",
			entries: []replication.Entry{wrote("1:11 +s/sys/root/mounts/a")},
			want:    []string{"batch (1:10,1:11] | 1:11 +s/sys/root/mounts/a"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			src := primaryAt10(t)
			s := welcomed(t, src, "1:10")
			src.entries, src.units = tt.entries, tt.scope
			src.head = tt.entries[len(tt.entries)-1].At.Index
			if tt.changed {
				s.ScopeChanged()
			}
			var got []string
			for range 2 { // a batch without entries waits a moment
				got = append(got, said(t.Context(), s)...)
				src.now += 100
			}
			expect(t, "in all", got, tt.want...)
		})
	}
}

func TestSessionAnswers(t *testing.T) {
	src := primaryAt10(t)
	for _, i := range items("s/a/x@1:3 s/a/y@1:4 s/sys/root/mounts/a@1:2 s/b/x@1:5") {
		src.data[i.Key] = i
	}
	s := welcomed(t, src, "1:10")
	receive(t, s,
		replication.AskSums{Unit: "mount/a", Group: replication.AllGroups},
		replication.AskPage{Unit: "mount/a", After: "s/a/x"},
		replication.AskItems{Unit: "mount/a", Keys: []key{"s/a/x", "s/a/gone"}},
		replication.AskPage{Unit: "mount/b"}, replication.AskItems{Unit: "mount/b", Keys: []key{"s/b/x"}}, replication.AskSums{Unit: "mount/b"})
	expect(t, "in order, and nothing of what is out of scope", said(t.Context(), s),
		"sums mount/a -1 at 1:10", "page mount/a [s/a/y@1:4 s/sys/root/mounts/a@1:2] at 1:10 done", "items mount/a 2 [s/a/x@1:3] at 1:10",
		"gone mount/b", "gone mount/b", "gone mount/b")

	// Sums are not older than what was sent: they wait, and what follows them, too. The stream goes on at intervals.
	src.entries, src.head = []replication.Entry{wrote("1:11 +s/a/x")}, 11
	receive(t, s, replication.AskSums{Unit: "mount/a", Group: 7}, replication.AskPage{Unit: "mount/a"})
	expect(t, "while the digests are at 10", said(t.Context(), s), "batch (1:10,1:11] | 1:11 +s/a/x")
	src.digests = 11
	expect(t, "when they have followed", said(t.Context(), s), "sums mount/a 7 at 1:11", "page mount/a [s/a/x@1:3 s/a/y@1:4 s/sys/root/mounts/a@1:2] at 1:11 done")

	// Entries that concern no shared key do not keep them back.
	src.head = 15
	receive(t, s, replication.AskSums{Unit: "mount/a", Group: 7})
	expect(t, "the position follows the answer", said(t.Context(), s), "sums mount/a 7 at 1:15", "batch (1:11,1:15]")
}

func TestSessionStandsStillForTheDigests(t *testing.T) {
	src := primaryAt10(t)
	s := welcomed(t, src, "1:10")
	src.entries, src.head = []replication.Entry{wrote("1:11 +s/a/x")}, 11
	said(t.Context(), s)
	receive(t, s, replication.AskSums{Unit: "mount/a"})
	expect(t, "waits for the digests", said(t.Context(), s))
	src.entries, src.head = append(src.entries, wrote("1:12 +s/a/x")), 12
	expect(t, "and sends nothing meanwhile", said(t.Context(), s))
	src.digests = 11
	expect(t, "until they are there", said(t.Context(), s)[:2], "sums mount/a 0 at 1:11", "batch (1:11,1:12] | 1:12 +s/a/x")
	receive(t, s, replication.AskSums{Unit: "mount/a"})
	expect(t, "again", said(t.Context(), s))
	src.entries, src.head = append(src.entries, wrote("1:13 +s/a/x")), 13
	src.now += 300
	expect(t, "but not for ever", said(t.Context(), s), "batch (1:12,1:13] | 1:13 +s/a/x")
}

func TestSessionRefusesAnOldAnswer(t *testing.T) {
	src := primaryAt10(t)
	s := welcomed(t, src, "1:10")
	src.entries, src.head = []replication.Entry{wrote("1:11 +s/a/x")}, 11
	said(t.Context(), s)
	src.lag = 1
	receive(t, s, replication.AskPage{Unit: "mount/a"})
	if _, err := s.Next(t.Context()); err == nil {
		t.Error("a page that was read before what was sent went out")
	}
}

func TestSessionCheckpoint(t *testing.T) {
	src := primaryAt10(t)
	for _, i := range items("s/a/x@1:3 s/b/x@1:5 s/sys/set/k@1:2") {
		src.data[i.Key] = i
	}
	s := primary.New(src, transcriptLayout, primary.Options{HeartbeatMS: 1 << 40, CheckpointMS: 2000})
	receive(t, s, hello("1:10", "P 0:0 1"))
	said(t.Context(), s)
	src.now += 1000
	expect(t, "of the units in scope", said(t.Context(), s), "checkpoint 1:10 [global mount/a]")
	expect(t, "not again soon", said(t.Context(), s))

	// The digests are ahead of the stream: it stops where they are, for the checkpoint.
	src.now += 2000
	src.entries, src.head, src.digests = []replication.Entry{wrote("1:11 +s/a/x"), wrote("1:12 +s/a/x"), wrote("1:13 +s/a/x")}, 13, 12
	expect(t, "in the middle", said(t.Context(), s),
		"batch (1:10,1:12] | 1:11 +s/a/x | 1:12 +s/a/x", "checkpoint 1:12 [global mount/a]", "batch (1:12,1:13] | 1:13 +s/a/x")

	// They are behind: nothing can be said, until they have followed.
	src.now += 2000
	expect(t, "behind", said(t.Context(), s))
	src.digests = 13
	expect(t, "followed", said(t.Context(), s), "checkpoint 1:13 [global mount/a]")

	// Only local keys were written since.
	src.now += 2000
	src.head, src.digests = 20, 18
	expect(t, "nothing between", said(t.Context(), s), "checkpoint 1:13 [global mount/a]", "batch (1:13,1:20]")

	src.now, src.digests = src.now+2000, 0
	expect(t, "being built", said(t.Context(), s))
}

func TestSessionDemoted(t *testing.T) {
	src := primaryAt10(t)
	s := welcomed(t, src, "1:10")
	src.entries, src.head = []replication.Entry{wrote("1:11 +s/a/x"), wrote("1:13 +s/a/later")}, 14
	receive(t, s, replication.AskPage{Unit: "mount/a"})
	s.Demoted(12)
	// What is shared at 13 is of another primary, which this cluster follows by now: nothing may be read any more.
	expect(t, "everything, and the end exactly", said(t.Context(), s), "batch (1:10,1:12] | 1:11 +s/a/x", "final 1:12")
	receive(t, s, replication.Ack{Cursor: at("1:10")})
	expect(t, "waits for the ack", said(t.Context(), s))
	receive(t, s, replication.Ack{Cursor: at("1:12")})
	expect(t, "over", said(t.Context(), s), "ends: "+replication.ErrFinal.Error())
}

// TestSessionDemotedInARepair: a secondary that compares when its primary is demoted gets its answers, so that it may become
// exact at the end.
func TestSessionDemotedInARepair(t *testing.T) {
	src := primaryAt10(t)
	s := welcomed(t, src, "1:10")
	src.entries, src.head = []replication.Entry{wrote("1:11 +s/a/x")}, 14
	src.digests = 14
	s.Demoted(12)
	receive(t, s, replication.AskSums{Unit: "mount/a"}, replication.AskPage{Unit: "mount/a"}, replication.AskItems{Unit: "mount/a", Keys: []key{"s/a/x"}})
	expect(t, "everything, and what was asked", said(t.Context(), s), "batch (1:10,1:12] | 1:11 +s/a/x",
		"sums mount/a 0 at 1:12", "page mount/a [] at 1:12 done", "items mount/a 1 [] at 1:12")
	receive(t, s, replication.Ack{Cursor: at("1:11"), Exact: true})
	expect(t, "exact, but not at the end", said(t.Context(), s))
	receive(t, s, replication.Ack{Cursor: at("1:12"), Exact: false}, replication.AskPage{Unit: "mount/a"})
	expect(t, "at the end, but not exact", said(t.Context(), s), "page mount/a [] at 1:12 done")
	receive(t, s, replication.Ack{Cursor: at("1:12"), Exact: true})
	expect(t, "both", said(t.Context(), s), "final 1:12", "ends: "+replication.ErrFinal.Error())

	// What is read when the cluster was demoted just now is of the end, too: the secondary would wait for what comes after it.
	src = primaryAt10(t)
	s = welcomed(t, src, "1:10")
	src.entries, src.head, src.digests = []replication.Entry{wrote("1:11 +s/a/x")}, 12, 12
	expect(t, "everything", said(t.Context(), s), "batch (1:10,1:12] | 1:11 +s/a/x")
	src.head, src.digests, src.final = 14, 14, 12
	receive(t, s, replication.AskSums{Unit: "mount/a"}, replication.AskPage{Unit: "mount/a"})
	expect(t, "of the end", said(t.Context(), s), "sums mount/a 0 at 1:12", "page mount/a [] at 1:12 done")
	receive(t, s, replication.Ack{Cursor: at("1:12"), Exact: true})
	expect(t, "at once", said(t.Context(), s), "final 1:12", "ends: "+replication.ErrFinal.Error())
	src.final = 0

	// A secondary that is not exact and asks nothing gets it in the end.
	s = welcomed(t, src, "1:10")
	s.Demoted(12)
	expect(t, "waits", said(t.Context(), s), "batch (1:10,1:12] | 1:11 +s/a/x")
	receive(t, s, replication.Ack{Cursor: at("1:12")})
	src.now += 59_000
	expect(t, "waits", said(t.Context(), s))
	src.now += 1_000
	expect(t, "over", said(t.Context(), s), "final 1:12", "ends: "+replication.ErrFinal.Error())

	// The cluster has begun to follow another one.
	s = welcomed(t, src, "1:10")
	s.Demoted(12)
	said(t.Context(), s)
	src.entries, src.head = append(src.entries, wrote("1:15 +s/a/x")), 15
	receive(t, s, replication.AskPage{Unit: "mount/a"})
	expect(t, "nothing of that", said(t.Context(), s), "final 1:12")
}

func TestSessionEndsWithItsEpoch(t *testing.T) {
	src := primaryAt10(t)
	s := welcomed(t, src, "1:10")
	src.lineage = lineage("P 0:0 1,P 1:10 11")
	s.ScopeChanged()
	if _, err := s.Next(t.Context()); err == nil {
		t.Error("the session goes on in another epoch")
	}
}

func TestSessionHeartbeat(t *testing.T) {
	src := primaryAt10(t)
	s := primary.New(src, transcriptLayout, primary.Options{HeartbeatMS: 1000, CheckpointMS: 1 << 41})
	receive(t, s, hello("1:10", "P 0:0 1"))
	said(t.Context(), s)
	src.now += 999
	expect(t, "not yet", said(t.Context(), s))
	src.now, src.head = src.now+1, 12
	expect(t, "says how far the primary is", said(t.Context(), s), "heartbeat 1:12 through 1:10", "batch (1:10,1:12]")
}
