package parts

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/test/bench/run"
)

const (
	lagRate  = 5000 // writes each second, in the measurement of lag
	manyRate = 64   // the same, with many secondaries
	// Bytes of a secret.
	smallValue = 1 << 10
	largeValue = 16 << 10
	fillBytes  = 1 << 20 // of a batch with which a cluster is filled, as large as those of replication
)

// Replication measures what goes between clusters: three clusters of one node, in this process, over the link on their
// cluster ports. HTTP, tokens and policies have no part in it.
func Replication(b *run.Bench, s *run.Scope) {
	primary, secondary := newTwin(s, "primary"), newTwin(s, "secondary")
	primary.lead(s, nil)
	rate := fill(b, s, primary, entries(b), smallValue)
	backfill(b, s, primary, secondary, rate, entries(b), smallValue)
	lag(b, s, lagRate, primary, secondary)
	keepingUp(b, s, primary, secondary)
	switchOver(b, s, primary, secondary)
}

// LargeValues measures the backfill of large secrets.
func LargeValues(b *run.Bench, s *run.Scope) {
	primary, secondary := newTwin(s, "primary"), newTwin(s, "secondary")
	primary.lead(s, nil)
	n := entries(b) / 8
	rate := fill(b, s, primary, n, largeValue)
	backfill(b, s, primary, secondary, rate, n, largeValue)
}

// entries is how many secrets are replicated.
func entries(b *run.Bench) int {
	if b.Smoke {
		return 20_000
	}
	return max(b.Secrets, 200_000)
}

func benchKey(kind string, i int) storage.Key {
	return storage.NewKey(storage.Shared, benchMount, fmt.Sprintf("%s/application/%08d", kind, i))
}

// seqOf returns the number that a key of the kind ends with.
func seqOf(kind string, key storage.Key) (int, bool) {
	digits, ok := strings.CutPrefix(string(key), string(storage.NewKey(storage.Shared, benchMount, kind+"/application/")))
	if !ok {
		return 0, false
	}
	i, err := strconv.Atoi(digits)
	return i, err == nil
}

// randomValue is so many bytes, a multiple of 8, that cannot be compressed.
func randomValue(size int) []byte {
	value := make([]byte, 0, size)
	for len(value) < size {
		value = binary.BigEndian.AppendUint64(value, rand.Uint64()) //nolint:gosec // not a secret
	}
	return value
}

// fill writes n secrets of size bytes into the primary, in batches as replication makes them, one after the other, and returns how many that
// were each second: it is what the secondary cannot but do, too.
func fill(b *run.Bench, s *run.Scope, t *twin, n, size int) float64 {
	_, err := t.store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: benchAnchor, Value: []byte("{}")}}})
	s.Check(err)
	begin := time.Now()
	t.write(s, n, 1, size)
	return float64(n) / time.Since(begin).Seconds()
}

// write gives n secrets values of size bytes, each stride-th beginning with the first.
func (t *twin) write(s *run.Scope, n, stride, size int) {
	for i := 0; i < n; {
		var batch storage.Batch
		for bytes := 0; bytes < fillBytes && i < n; i++ {
			put := storage.Put{Key: benchKey("kv", i*stride), Value: randomValue(size)}
			batch.Puts = append(batch.Puts, put)
			bytes += len(put.Key) + len(put.Value)
		}
		_, err := t.store.Commit(context.Background(), batch)
		s.Check(err)
	}
}

// backfill makes a new secondary fetch everything.
func backfill(b *run.Bench, s *run.Scope, primary, secondary *twin, rate float64, n, size int) {
	begin := time.Now()
	secondary.follow(s, primary, primary.addr)
	secondary.awaitExact(s)
	took := time.Since(begin)
	repair := secondary.link.FollowStatus().Repair
	if repair == nil || repair.Keys < n {
		s.Fatalf("the backfill was %+v", repair)
	}
	full := float64(repair.Bytes) / 1e6
	name := fmt.Sprintf("replication, backfill of %d secrets of %d KiB", n, size/1024)
	b.Add(run.Row{Name: name, Value: float64(n) / took.Seconds(), Unit: "/s", Yardstick: rate, Beside: "the same commits", Target: 0.9})
	throughput := run.Row{Name: name + ", keys and values", Value: full / took.Seconds(), Unit: " MB/s"}
	if size == largeValue {
		throughput.Target = 100
	}
	b.Add(throughput)
	secondary.same(s, primary)
}

// sightings is when numbered secrets became visible.
type sightings struct {
	kind string
	stop func()
	at   []atomic.Int64 // Unix nanoseconds, by number
	left atomic.Int64
	all  chan struct{} // closed when all are there
}

// watch notes when the secrets of a kind, numbered from 0 to n, can be read on a cluster.
func watch(s *run.Scope, t *twin, kind string, n int) *sightings {
	w := &sightings{kind: kind, at: make([]atomic.Int64, n), all: make(chan struct{})}
	w.left.Store(int64(n))
	applied := make(chan storage.Change, 4096) // more than are under way; not closed
	done := make(chan struct{})                // closed at the end
	stop := t.machine.OnChange(func(ch storage.Change) {
		select {
		case applied <- ch:
		case <-done:
		}
	})
	w.stop = sync.OnceFunc(func() {
		close(done)
		stop()
	})
	s.Cleanup(w.stop)
	go func() {
		for {
			select {
			case ch := <-applied:
				if t.machine.WaitApplied(context.Background(), ch.Index) != nil {
					return
				}
				w.see(ch, time.Now())
			case <-done:
				return
			}
		}
	}()
	return w
}

func (w *sightings) see(ch storage.Change, now time.Time) {
	for i := range ch.Entries {
		n, ok := seqOf(w.kind, ch.Entries[i].Key)
		if ok && w.at[n].Swap(now.UnixNano()) == 0 && w.left.Add(-1) == 0 {
			close(w.all)
		}
	}
}

// wait returns when everything is there.
func (w *sightings) wait(s *run.Scope) {
	defer w.stop()
	select {
	case <-w.all:
	case <-time.After(5 * time.Minute):
		s.Fatalf("%d writes did not arrive", w.left.Load())
	}
}

// lag writes at a fixed pace, so many each second, and takes the time from the primary's acknowledgement to when all secondaries can read it.
func lag(b *run.Bench, s *run.Scope, rate int, primary *twin, secondaries ...*twin) {
	const callers = 64
	each := int(b.Seconds.Seconds()) * rate / callers
	n := callers * each
	var seen []*sightings
	for _, t := range secondaries {
		seen = append(seen, watch(s, t, "lag", n))
	}
	acked := make([]time.Time, n)
	value := randomValue(smallValue)
	var group sync.WaitGroup
	begin := time.Now()
	for c := range callers {
		group.Go(func() {
			for i := range each {
				seq := i*callers + c
				<-time.After(time.Until(begin.Add(time.Duration(seq) * time.Second / time.Duration(rate))))
				_, err := primary.store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: benchKey("lag", seq), Value: value}}})
				s.Check(err)
				acked[seq] = time.Now()
			}
		})
	}
	group.Wait()
	wrote := time.Since(begin)
	lags := make([]time.Duration, n)
	for _, w := range seen {
		w.wait(s)
		for i := range lags {
			lags[i] = max(lags[i], time.Duration(w.at[i].Load()-acked[i].UnixNano()))
		}
	}
	slices.Sort(lags)
	p99, where := lags[n*99/100], "the secondary"
	if len(secondaries) > 1 {
		where = fmt.Sprintf("the last of %d secondaries", len(secondaries))
	}
	b.Add(run.Row{
		Name:  fmt.Sprintf("replication lag, acknowledged to readable on %s, p99, at %.0f writes/s of 1 KiB", where, float64(n)/wrote.Seconds()),
		Value: p99.Seconds() * 1000, Unit: " ms", Latency: run.Short(lags[n/2]) + " / " + run.Short(p99), Target: 100, Below: true,
	})
}

// keepingUp lets the primary write as fast as it can with the secondary behind it, and then with the secondary away, which
// afterwards catches up alone.
func keepingUp(b *run.Bench, s *run.Scope, primary, secondary *twin) {
	begin := time.Now()
	took, elapsed := commitAll(b, s, primary.store, benchMount)
	secondary.awaitHead(s, primary)
	b.Add(run.Row{
		Name:  "replication while the primary writes as fast as it can, 64 callers, transactions of 1 KiB",
		Value: float64(len(took)) / time.Since(begin).Seconds(), Unit: "/s", Yardstick: float64(len(took)) / elapsed.Seconds(), Beside: "acknowledged",
	})
	secondary.unfollow()
	took, elapsed = commitAll(b, s, primary.store, benchMount)
	begin = time.Now()
	secondary.follow(s, primary, primary.addr)
	secondary.awaitHead(s, primary)
	b.Add(run.Row{
		Name:  "replication to a secondary that was away for a while, transactions of 1 KiB",
		Value: float64(len(took)) / time.Since(begin).Seconds(), Unit: "/s", Yardstick: float64(len(took)) / elapsed.Seconds(), Beside: "acknowledged",
	})
	if r := secondary.link.FollowStatus().Repair; r != nil {
		s.Fatalf("the secondary that was away had to compare: %+v", r)
	}
}

// Secondaries measures a primary of many secondaries, all of them in this process, each with a Raft log and a state file of its own on
// this disk: every write is a commit in each.
func Secondaries(b *run.Bench, s *run.Scope) {
	n, keys := 50, 2000
	if b.Smoke {
		n = 3
	}
	primary := newTwin(s, "primary")
	primary.lead(s, nil)
	fill(b, s, primary, keys, smallValue)
	var all []*twin
	for i := range n {
		all = append(all, newTwin(s, fmt.Sprintf("secondary-%d", i)))
	}
	begin := time.Now()
	for _, t := range all {
		t.follow(s, primary, primary.addr)
	}
	for _, t := range all {
		t.awaitExact(s)
	}
	b.Add(run.Row{Name: fmt.Sprintf("replication to %d secondaries at once, until all have %d secrets of 1 KiB", n, keys), Value: time.Since(begin).Seconds(), Unit: " s"})
	lag(b, s, manyRate, primary, all...)
	for _, t := range all {
		t.same(s, primary)
	}
}

// relay passes connections on to an address and counts the bytes, TLS and all.
type relay struct {
	addr  string
	bytes atomic.Int64
}

func newRelay(s *run.Scope, to string) *relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.Check(err)
	r := &relay{addr: l.Addr().String()}
	s.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			onward, err := net.Dial("tcp", to)
			if err != nil {
				from.Close()
				continue
			}
			go r.pump(from, onward)
			go r.pump(onward, from)
		}
	}()
	return r
}

func (r *relay) pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	_, _ = io.Copy(to, io.TeeReader(from, r))
}

// Write implements io.Writer: it counts.
func (r *relay) Write(p []byte) (int, error) {
	r.bytes.Add(int64(len(p)))
	return len(p), nil
}

func (r *relay) mb() float64 { return float64(r.bytes.Load()) / 1e6 }

// Resync makes a secondary compare everything with a primary that has forgotten what it did: the positions are gone. Each time
// more secrets differ.
func Resync(b *run.Bench, s *run.Scope) {
	keys, all := 1_000_000, []int{10, 1000, 100_000}
	if b.Smoke {
		keys, all = 2000, all[:1]
	}
	primary, secondary := newTwin(s, "primary"), newTwin(s, "secondary")
	primary.lead(s, nil)
	fill(b, s, primary, keys, smallValue)
	secondary.follow(s, primary, primary.addr)
	secondary.awaitExact(s)
	full := float64(secondary.link.FollowStatus().Repair.Bytes) / 1e6
	secondary.unfollow()
	digests(b, s, primary, secondary)
	for _, differing := range all {
		primary.write(s, differing, keys/differing, smallValue)
		s.Check(primary.machine.BeginLog(func(applied storage.Index) error { return primary.changes.Reset(applied) }))
		wire := newRelay(s, primary.addr)
		begin := time.Now()
		secondary.follow(s, primary, wire.addr)
		secondary.awaitExact(s)
		took, sent := time.Since(begin), wire.mb()
		if r := secondary.link.FollowStatus().Repair; r == nil || r.Keys < differing || r.Keys > 2*differing {
			s.Fatalf("the comparison was %+v", r)
		}
		name := fmt.Sprintf("replication, resync of %d keys of which %d differ", keys, differing)
		r := run.Row{Name: name, Value: took.Seconds(), Unit: " s", Below: true}
		if differing <= 1000 { // more is a matter of how fast the disks are
			r.Target = 10
		}
		b.Add(r)
		b.Add(run.Row{Name: name + ", on the wire", Value: sent, Unit: " MB", Yardstick: full, Beside: "full copy", Target: max(1, float64(differing)/200), Below: true})
		secondary.same(s, primary)
		secondary.unfollow()
	}
}

// digests measures how long a node that becomes active takes to have the digests of what it holds.
func digests(b *run.Bench, s *run.Scope, all ...*twin) {
	var built time.Duration
	for _, t := range all {
		t.retire()
		begin := time.Now()
		t.activate()
		t.await(s, "to have its digests", func() bool { return t.link.Root() != "" })
		built = max(built, time.Since(begin))
	}
	name := fmt.Sprintf("replication, digests of %d keys, made by a node that becomes active", all[0].keys(s))
	b.Add(run.Row{Name: name, Value: built.Seconds(), Unit: " s"})
}

// switchOver makes a sibling follow the secondary after that has taken over.
func switchOver(b *run.Bench, s *run.Scope, primary, secondary *twin) {
	sibling := newTwin(s, "sibling")
	sibling.follow(s, primary, primary.addr)
	sibling.awaitExact(s)
	wire, back := newRelay(s, secondary.addr), newRelay(s, secondary.addr)
	begin := time.Now()
	primary.demote(s)
	for _, t := range []*twin{secondary, sibling} {
		t.await(s, "to have had the last message", func() bool { return t.link.FollowStatus().Final })
		t.unfollow()
	}
	secondary.lead(s, secondary.Self().Lineage)
	sibling.follow(s, secondary, wire.addr)
	primary.follow(s, secondary, back.addr)
	sibling.awaitExact(s)
	primary.awaitExact(s)
	took := time.Since(begin)
	if a, c := primary.link.FollowStatus().Repair, sibling.link.FollowStatus().Repair; a != nil || c != nil {
		s.Fatalf("after the switch-over something was compared: %+v, %+v", a, c)
	}
	name := fmt.Sprintf("replication, planned switch-over of %d keys", primary.keys(s))
	b.Add(run.Row{Name: name + ", until both others follow", Value: took.Seconds(), Unit: " s"})
	b.Add(run.Row{Name: name + ", to the sibling, on the wire", Value: wire.mb() * 1000, Unit: " kB", Target: 100, Below: true})
	b.Add(run.Row{Name: name + ", to the old primary, on the wire", Value: back.mb() * 1000, Unit: " kB", Target: 100, Below: true})
	secondary.same(s, primary)
	secondary.same(s, sibling)
}
