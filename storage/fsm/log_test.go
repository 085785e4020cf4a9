package fsm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

const keptCursor = "l/replication/cursor"

func kept(key string) bool { return strings.HasPrefix(key, "s/") || key == keptCursor }

// memoryLog is a log of changes that says itself what a crash leaves of it.
type memoryLog struct {
	mu       sync.Mutex
	on       bool
	base     storage.Index
	records  []storage.Record
	synced   int                        // records that survive a crash
	syncErr  error                      // what Sync answers
	resetErr error                      // what Reset answers, after it has done what it should
	onAppend func(storage.Record) error // nil: nothing
}

func (l *memoryLog) Active() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on
}

func (l *memoryLog) Keeps(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.on && kept(key)
}

func (l *memoryLog) Append(r storage.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.on || r.Index <= l.headLocked() {
		return nil
	}
	if l.onAppend != nil {
		if err := l.onAppend(r); err != nil {
			return err
		}
	}
	l.records = append(l.records, r)
	return nil
}

func (l *memoryLog) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.syncErr == nil {
		l.synced = len(l.records)
	}
	return l.syncErr
}

func (l *memoryLog) Reset(base storage.Index) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on {
		l.base, l.records, l.synced = base, nil, 0
	}
	return l.resetErr
}

func (l *memoryLog) Head() storage.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.headLocked()
}

func (l *memoryLog) headLocked() storage.Index {
	switch {
	case !l.on:
		return 0
	case len(l.records) == 0:
		return l.base
	}
	return l.records[len(l.records)-1].Index
}

// turn switches it, as something that BeginLog calls.
func (l *memoryLog) turn(on bool) func(storage.Index) error {
	return func(applied storage.Index) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.on, l.base, l.records, l.synced = on, applied, nil, 0
		return nil
	}
}

func (l *memoryLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.syncErr = err
}

func (l *memoryLog) cut(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records = l.records[:n]
	l.synced = min(l.synced, n)
}

// keptState is what the kept keys hold, as text and as positions.
type keptState map[storage.Key]storage.Entry

func (s keptState) mod(key storage.Key) storage.Position {
	if e := s[key]; !e.Origin.IsZero() || e.Version == 0 {
		return e.Origin
	}
	return storage.Position{Index: s[key].Version}
}

func (s keptState) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "%s@%d(%s)=%s\n", k, s[k].Version, s[k].Origin, s[k].Value)
	}
	return b.String()
}

// replay puts a record on top of the state, and reports what in it does not fit.
func (s keptState) replay(r storage.Record) error {
	if len(r.Ops) == 0 {
		return fmt.Errorf("the record at %d is empty", r.Index)
	}
	seen := map[storage.Key]bool{}
	for _, op := range r.Ops {
		if prior := s.mod(op.Key); op.Prior != prior {
			return fmt.Errorf("the record at %d says that %s was at %s before, it was at %s", r.Index, op.Key, op.Prior, prior)
		}
		if seen[op.Key] || !kept(string(op.Key)) || op.Deleted && op.Value != nil {
			return fmt.Errorf("the record at %d should not have %+v", r.Index, op)
		}
		seen[op.Key] = true
		if delete(s, op.Key); !op.Deleted {
			s[op.Key] = storage.Entry{Key: op.Key, Value: op.Value, Version: r.Index, Origin: op.Origin}
		}
	}
	return nil
}

// logModel drives a replica with a log through random entries and accidents.
type logModel struct {
	t       *testing.T
	r       *rand.Rand
	dir     string
	f       *fsm.FSM
	log     *memoryLog
	entries []*raft.Log // entry i has index i+1
	history []keptState // after as many entries
	all     keptState   // every key after all entries, whatever was applied
}

func newLogModel(t *testing.T, seed uint64) *logModel {
	m := &logModel{t: t, r: rand.New(rand.NewPCG(seed, 2)), dir: t.TempDir(), log: &memoryLog{}, all: keptState{}, history: []keptState{{}}}
	m.open()
	return m
}

func (m *logModel) open() {
	m.t.Helper()
	f, err := fsm.Open(m.dir, fsm.Options{Log: m.log})
	if err != nil {
		m.t.Fatal(err)
	}
	m.f = f
}

// propose adds n random entries to the Raft log.
func (m *logModel) propose(n int) {
	for range n {
		index := storage.Index(len(m.entries) + 1)
		batches := make([]storage.Batch, 1+m.r.IntN(3))
		for i := range batches {
			batches[i] = m.batch()
			m.commit(batches[i], index)
		}
		data, err := fsm.EncodeCommand(int64(index)*10, batches)
		if err != nil {
			m.t.Fatal(err)
		}
		m.entries = append(m.entries, command(uint64(index), data))
		after := maps.Clone(m.all)
		maps.DeleteFunc(after, func(k storage.Key, _ storage.Entry) bool { return !kept(string(k)) })
		m.history = append(m.history, after)
	}
}

func (m *logModel) batch() (b storage.Batch) {
	keys := []storage.Key{"s/a/1", "s/a/2", "s/a/3", "s/b/1", "l/a/1", "l/a/2", keptCursor}
	for _, i := range m.r.Perm(len(keys))[:m.r.IntN(4)] {
		if m.r.IntN(3) == 0 {
			b.Deletes = append(b.Deletes, keys[i])
			continue
		}
		p := storage.Put{Key: keys[i], Value: []byte(fmt.Sprint(len(m.entries), "-", m.r.IntN(100)))}
		if m.r.IntN(2) == 0 {
			p.Origin = storage.Position{Epoch: 1 + m.r.Uint32N(2), Index: 1 + storage.Index(m.r.IntN(1000))}
		}
		b.Puts = append(b.Puts, p)
	}
	if m.r.IntN(3) == 0 {
		k := keys[m.r.IntN(len(keys))]
		b.Reads = append(b.Reads, storage.Read{Key: k, Version: m.all[k].Version + storage.Index(m.r.IntN(2))})
	}
	return b
}

func (m *logModel) commit(b storage.Batch, at storage.Index) {
	if slices.ContainsFunc(b.Reads, func(r storage.Read) bool { return m.all[r.Key].Version != r.Version }) {
		return
	}
	for _, p := range b.Puts {
		m.all[p.Key] = storage.Entry{Key: p.Key, Value: p.Value, Version: at, Origin: p.Origin}
	}
	for _, k := range b.Deletes {
		delete(m.all, k)
	}
}

// apply hands what is missing to the replica, in random pieces that also have what it knows already.
func (m *logModel) apply(f *fsm.FSM) {
	m.t.Helper()
	for int(f.AppliedIndex()) < len(m.entries) {
		from := int(f.AppliedIndex())
		to := min(len(m.entries), from+1+m.r.IntN(5))
		for i, a := range f.ApplyBatch(m.entries[max(0, from-m.r.IntN(3)):to]) {
			if err, ok := a.(error); ok {
				m.t.Fatalf("entry %d of a piece: %v", i, err)
			}
		}
	}
}

func (m *logModel) fold() {
	m.t.Helper()
	if m.r.IntN(2) == 0 { // as Raft does it
		sink, err := m.f.SnapshotStore().Create(1, uint64(m.f.AppliedIndex()), 1, raft.Configuration{}, 1, nil)
		if err != nil {
			m.t.Fatal(err)
		}
		snap, err := m.f.Snapshot()
		if err == nil {
			err = snap.Persist(sink)
		}
		if err == nil {
			err = sink.Close()
		}
		if err != nil {
			m.t.Fatal(err)
		}
		return
	}
	if _, err := m.f.WriteSnapshot(context.Background(), new(bytes.Buffer)); err != nil {
		m.t.Fatal(err)
	}
}

// crash loses what is neither in the file nor synced, or some of it.
func (m *logModel) crash() {
	m.t.Helper()
	m.log.fail(errors.New("the power is gone")) // nothing is folded any more
	_ = m.f.Close()
	if n := len(m.log.records) - m.log.synced; n > 0 {
		m.log.cut(m.log.synced + m.r.IntN(n+1))
	}
	m.log.fail(nil)
	m.open()
}

// rot loses a part of what was synced.
func (m *logModel) rot() {
	m.t.Helper()
	mustClose(m.t, m.f)
	if n := len(m.log.records); n > 0 {
		m.log.cut(m.r.IntN(n))
	}
	m.open()
}

// install brings the replica past entries by a snapshot of another one. If it is interrupted, the node restarts between
// the two steps of the installation.
func (m *logModel) install(interrupted bool) {
	m.t.Helper()
	m.propose(1 + m.r.IntN(10))
	other := open(m.t, m.t.TempDir())
	m.apply(other)
	var stream bytes.Buffer
	info, err := other.WriteSnapshot(context.Background(), &stream)
	if err != nil {
		m.t.Fatal(err)
	}
	snaps := m.f.SnapshotStore()
	sink, err := snaps.Create(1, uint64(info.Index), 1, raft.Configuration{}, 1, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	if _, err := sink.Write(stream.Bytes()); err != nil {
		m.t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		m.t.Fatal(err)
	}
	_, received, err := snaps.Open(sink.ID())
	if err != nil {
		m.t.Fatal(err)
	}
	stopped := errors.New("interrupted")
	if interrupted {
		m.log.resetErr = stopped
	}
	if err := m.f.Restore(received); interrupted != errors.Is(err, stopped) || !interrupted && err != nil {
		m.t.Fatalf("Restore = %v, interrupted: %v", err, interrupted)
	}
	m.log.resetErr = nil
	if interrupted {
		m.crash()
	}
}

// check replays the log from where it begins and compares.
func (m *logModel) check(step string) {
	m.t.Helper()
	if !m.log.on {
		return
	}
	applied := m.f.AppliedIndex()
	if m.log.base > storage.Index(len(m.entries)) {
		m.t.Fatalf("%s: the log begins at %d, there are %d entries", step, m.log.base, len(m.entries))
	}
	got, at := maps.Clone(m.history[m.log.base]), m.log.base
	for _, r := range m.log.records {
		if r.Index <= at || r.TimeMS != int64(r.Index)*10 {
			m.t.Fatalf("%s: the record at %d, time %d, follows %d", step, r.Index, r.TimeMS, at)
		}
		if err := got.replay(r); err != nil {
			m.t.Fatalf("%s: %v", step, err)
		}
		at = r.Index
	}
	if want := m.history[max(at, applied)]; got.String() != want.String() {
		m.t.Fatalf("%s: the log from %d to %d gives, at %d,\n%swant\n%s", step, m.log.base, at, applied, got, want)
	}
}

// Whatever happens to a node, what the log has from its beginning on gives the state of the kept keys.
func TestLogGivesTheState(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := newLogModel(t, seed)
			defer func() { _ = m.f.Close() }()
			m.propose(1) // a log that begins before the first entry looks like none
			m.apply(m.f)
			for n := range 60 {
				step := fmt.Sprintf("step %d, ", n)
				switch m.r.IntN(12) {
				default:
					m.propose(1 + m.r.IntN(8))
				case 0:
					m.fold()
					step += "fold"
				case 1:
					m.crash()
					step += "crash"
				case 2:
					mustClose(t, m.f)
					m.open()
					step += "restart"
				case 3:
					m.rot()
					step += "rot"
				case 4:
					m.install(false)
					step += "install"
				case 5:
					m.install(true)
					step += "interrupted install"
				case 6, 7:
					on := !m.log.on || m.r.IntN(4) > 0
					if err := m.f.BeginLog(m.log.turn(on)); err != nil {
						t.Fatal(err)
					}
					step += "turn"
				case 8:
					m.withoutLog()
					step += "without the log"
				}
				if int(m.f.AppliedIndex()) == len(m.entries) || m.r.IntN(2) == 0 {
					m.check(step)
				}
				m.apply(m.f)
				m.check(step + ", applied")
			}
		})
	}
}

// withoutLog has a program apply entries that does not know of the log.
func (m *logModel) withoutLog() {
	m.t.Helper()
	mustClose(m.t, m.f)
	f := open(m.t, m.dir)
	m.propose(1 + m.r.IntN(3))
	m.apply(f)
	mustClose(m.t, f)
	m.open()
}

// Turning the log on while entries are being applied loses none of them.
func TestLogBeginsBetweenEntries(t *testing.T) {
	m := newLogModel(t, 99)
	defer func() { _ = m.f.Close() }()
	m.propose(600)
	done := make(chan struct{}) // closed when all is applied
	go func() {
		defer close(done)
		for _, l := range m.entries {
			m.f.Apply(l)
		}
	}()
	for _, at := range []storage.Index{50, 200, 400} {
		if err := m.f.WaitApplied(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		err := m.f.BeginLog(func(applied storage.Index) error {
			if now := m.f.AppliedIndex(); now != applied {
				t.Errorf("%d is applied when BeginLog says %d", now, applied)
			}
			return m.log.turn(true)(applied)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	<-done
	m.check("at the end")
	refused := errors.New("refused")
	if err := m.f.BeginLog(func(storage.Index) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("BeginLog = %v, want the function's error", err)
	}
	mustClose(t, m.f)
	if err := m.f.BeginLog(m.log.turn(true)); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("BeginLog of a closed FSM = %v, want ErrUnavailable", err)
	}
}

// The log has a change before anybody can see it in the state.
func TestLogComesFirst(t *testing.T) {
	log := &memoryLog{on: true}
	f, err := fsm.Open(t.TempDir(), fsm.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	appended := 0
	log.onAppend = func(r storage.Record) error {
		appended++
		if e, err := f.Get(context.Background(), "s/a/k"); err == nil && e.Version >= r.Index || f.AppliedIndex() >= r.Index {
			t.Errorf("the change at %d can be seen before it is in the log", r.Index)
		}
		return nil
	}
	f.OnChange(func(ch storage.Change) {
		if head := log.Head(); ch.Touches("s/") && head < ch.Index {
			t.Errorf("the change at %d is announced when the log is at %d", ch.Index, head)
		}
	})
	for i := range uint64(5) {
		apply(t, f, 2*i+1, puts("s/a/k", fmt.Sprint(i)))
		apply(t, f, 2*i+2, puts("l/a/k", fmt.Sprint(i)))
	}
	if appended != 5 {
		t.Errorf("%d records were appended, want one for each entry that touched a kept key", appended)
	}
}

// A replica that cannot log a change does not apply it, and goes on after a restart.
func TestLogFailureStopsTheReplica(t *testing.T) {
	dir, log, broken := t.TempDir(), &memoryLog{on: true}, errors.New("broken")
	f, err := fsm.Open(dir, fsm.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, f, 1, puts("s/a/k", "1"))
	log.onAppend = func(storage.Record) error { return broken }
	logs := []*raft.Log{logEntry(t, 2, puts("l/a/k", "2")), logEntry(t, 3, puts("s/a/k", "3"))}
	for i, a := range f.ApplyBatch(logs) {
		if err, _ := a.(error); !errors.Is(err, broken) {
			t.Errorf("entry %d was answered %v, want the reason", i+2, a)
		}
	}
	if err := f.Err(); !errors.Is(err, broken) {
		t.Errorf("Err = %v, want the reason", err)
	}
	if got, want := dump(t, f), "s/a/k@1=31\n"; got != want {
		t.Errorf("state %q, want %q", got, want)
	}
	mustClose(t, f)
	log.onAppend = nil
	if f, err = fsm.Open(dir, fsm.Options{Log: log}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	f.ApplyBatch(logs)
	if got, want := dump(t, f), "l/a/k@2=32\ns/a/k@3=33\n"; got != want || log.Head() != 3 {
		t.Errorf("after a restart: state %q and log at %d, want %q and 3", got, log.Head(), want)
	}
}

// Nothing becomes durable in the state that is not durable in the log.
func TestLogIsSyncedBeforeTheState(t *testing.T) {
	dir, broken := t.TempDir(), errors.New("broken")
	log := &memoryLog{on: true, syncErr: broken}
	f, err := fsm.Open(dir, fsm.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, f, 1, puts("s/a/k", "1"))
	if _, err := f.WriteSnapshot(t.Context(), new(bytes.Buffer)); !errors.Is(err, broken) {
		t.Errorf("WriteSnapshot = %v while the log cannot be synced, want the reason", err)
	}
	if err := f.Close(); !errors.Is(err, broken) {
		t.Errorf("Close = %v, want the reason", err)
	}
	f = open(t, dir)
	if f.AppliedIndex() != 0 {
		t.Errorf("the state is at %d and the log at 0", f.AppliedIndex())
	}
	mustClose(t, f)
	log.fail(nil)
	if f, err = fsm.Open(dir, fsm.Options{Log: log}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	apply(t, f, 1, puts("s/a/k", "1"))
	if _, err := f.WriteSnapshot(t.Context(), new(bytes.Buffer)); err != nil || log.synced != 1 {
		t.Errorf("WriteSnapshot = %v with %d records synced, want 1", err, log.synced)
	}
}
