package wal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// sample returns a record whose content follows from its index and a seed.
func sample(index storage.Index, seed uint64) storage.Record {
	r := rand.New(rand.NewPCG(uint64(index), seed))
	rec := storage.Record{Index: index, TimeMS: int64(index) * 1000}
	for i := range r.IntN(4) {
		op := storage.RecordOp{Key: storage.Key(fmt.Sprintf("s/area/%d/%d", r.IntN(50), i))}
		if op.Deleted = r.IntN(4) == 0; !op.Deleted {
			op.Value = make([]byte, r.IntN(60))
			for j := range op.Value {
				op.Value[j] = byte(r.Uint32())
			}
		}
		if r.IntN(2) == 0 {
			op.Origin = storage.Position{Epoch: 1 + r.Uint32N(3), Index: storage.Index(r.Uint64N(1000))}
		}
		if r.IntN(2) == 0 {
			op.Prior = storage.Position{Epoch: r.Uint32N(3), Index: storage.Index(1 + r.Uint64N(1000))}
		}
		rec.Ops = append(rec.Ops, op)
	}
	return rec
}

// between returns the part of records in (after, upTo].
func between(records []storage.Record, after, upTo storage.Index) (found []storage.Record) {
	for _, r := range records {
		if r.Index > after && r.Index <= upTo {
			found = append(found, r)
		}
	}
	return found
}

func sameRecords(a, b []storage.Record) bool {
	return len(a) == 0 && len(b) == 0 || reflect.DeepEqual(a, b)
}

// checkReads reads the log in every way and compares with what was ever appended. It returns false if the log turned out
// to be damaged on the way, so that it has to be checked again.
func checkReads(t testing.TB, l *Log, all []storage.Record) bool {
	t.Helper()
	base, head := l.Base(), l.Head()
	want := between(all, base, head)
	var got []storage.Record
	for r, err := range l.Records(base) {
		if errors.Is(err, ErrTruncated) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	if !sameRecords(got, want) {
		t.Fatalf("between %d and %d: %d records, want %d, or they are wrong", base, head, len(got), len(want))
	}
	got = nil
	for r, err := range l.Backward() {
		if errors.Is(err, ErrTruncated) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r)
	}
	slices.Reverse(got)
	if at := slices.IndexFunc(got, func(r storage.Record) bool { return r.Index > base }); !sameRecords(got[max(at, 0):], want) {
		t.Fatalf("backward, between %d and %d: %d records, want %d, or they are wrong", base, head, len(got), len(want))
	}
	for _, maxBytes := range []int{0, 300} {
		for after := base; after <= head; after += 1 + (head-base)/7 {
			found, through, err := l.Since(after, maxBytes)
			if errors.Is(err, ErrTruncated) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			if !sameRecords(found, between(all, after, through)) || len(found) == 0 && through != head {
				t.Fatalf("Since(%d, %d) = %d records through %d", after, maxBytes, len(found), through)
			}
		}
	}
	if base > 0 {
		if _, _, err := l.Since(base-1, 1); !errors.Is(err, ErrTruncated) {
			t.Fatalf("Since(base-1) = %v, want ErrTruncated", err)
		}
	}
	return true
}

// machine is a state machine with a log: what it applied, and how much of it is durable.
type machine struct {
	t       testing.TB
	r       *rand.Rand
	seed    uint64
	disk    *disk
	log     *Log
	now     time.Time
	records []storage.Record // ever applied
	index   storage.Index    // applied
	durable storage.Index

	crashed  string // directory of the image
	image    *disk
	begun    bool // when the image was taken, the log had been begun, and nothing that ends it was under way
	quiet    bool // nothing but Append, Sync and Trim was under way
	imageMax storage.Index
	changing bool
	ending   bool
}

func (m *machine) options() Options {
	return Options{SegmentBytes: 700, MaxBytes: 6000, MemoryBytes: 900, MaxAge: 40 * time.Second,
		CursorKey: "l/cursor", Now: func() time.Time { return m.now }, open: m.disk.open}
}

func (m *machine) open() {
	m.t.Helper()
	l, err := Open(m.disk.dir, m.options())
	if err != nil {
		m.t.Fatalf("seed %d: %v", m.seed, err)
	}
	m.log = l
}

// arm takes the image of a crash at one of the next effects.
func (m *machine) arm() {
	m.crashed = ""
	m.disk.crashIn = 1 + m.r.IntN(60)
	m.disk.onCrash = func() {
		m.crashed = m.t.TempDir()
		m.disk.image(m.crashed, m.r)
		m.begun, m.quiet, m.imageMax = m.log.active.Load() && !m.ending, !m.changing && !m.ending, m.durable
	}
}

func (m *machine) step() {
	m.now = time.UnixMilli(int64(m.index) * 1000)
	switch n := m.r.IntN(100); {
	case n < 80:
		m.index += 1 + storage.Index(m.r.IntN(3))
		r := sample(m.index, m.seed)
		m.records = append(m.records, r)
		m.must(m.log.Append(r))
	case n < 90:
		at := m.index
		m.must(m.log.Sync())
		m.durable = at
	case n < 92:
		m.log.Trim()
	case n < 94:
		m.log.Pin("reader", m.log.Base()+storage.Index(m.r.IntN(20)))
	case n < 95:
		m.log.Unpin("reader")
	case n < 96 && m.log.Active():
		m.changing = true
		m.index += storage.Index(m.r.IntN(10))
		m.must(m.log.Reset(m.index))
		m.durable, m.changing = m.index, false
	case n < 97:
		m.changing, m.ending = true, !m.log.Active()
		m.must(m.log.Begin(m.index))
		m.changing, m.ending = false, false
	case n < 98 && m.r.IntN(5) == 0:
		m.ending = true
		m.must(m.log.End())
		m.ending = false
	}
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatalf("seed %d: %v", m.seed, err)
	}
}

// onDisk returns from where on the files are complete.
func (m *machine) onDisk() storage.Index {
	if len(m.log.segments) == 0 {
		return m.log.Head()
	}
	return m.log.segments[0].base
}

// crash goes on from the image as a restarted process would.
func (m *machine) crash(base storage.Index) {
	m.t.Helper()
	m.disk = newDisk(m.crashed)
	m.disk.names = m.disk.present()
	for name := range m.disk.names {
		m.disk.durable[name], _ = os.ReadFile(m.crashed + "/" + name)
	}
	m.open()
	if !m.log.Active() {
		if m.begun && m.quiet {
			m.t.Fatalf("seed %d: a crash made the log inactive", m.seed)
		}
		m.records = between(m.records, 0, m.imageMax)
		m.index, m.durable = m.imageMax, m.imageMax
		return
	}
	head := m.log.Head()
	if lost := between(m.records, head, m.imageMax); len(lost) > 0 {
		m.t.Fatalf("seed %d: the log ends at %d, the state is at %d: %d records are missing", m.seed, head, m.imageMax, len(lost))
	}
	if m.quiet && m.log.Base() > base {
		m.t.Fatalf("seed %d: the log was complete from %d on, and is from %d on after a crash", m.seed, base, m.log.Base())
	}
	if !checkReads(m.t, m.log, m.records) {
		m.t.Fatalf("seed %d: a crash left damage behind", m.seed)
	}
	// Raft applies again what the durable state lacks.
	for _, r := range between(m.records, m.imageMax, m.index) {
		m.must(m.log.Append(r))
	}
	m.durable = m.imageMax
}

// Through crashes at every kind of moment, the log never lacks a record that the durable state has, never has a wrong
// one, and loses nothing that it need not.
func TestModel(t *testing.T) {
	seeds := 8
	if n, err := strconv.Atoi(os.Getenv("COFFER_WAL_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range uint64(seeds) {
		m := &machine{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), disk: newDisk(t.TempDir())}
		m.open()
		m.must(m.log.Begin(0))
		m.arm()
		for range 400 {
			m.step()
			if m.crashed != "" {
				m.crash(m.onDisk())
				m.arm()
			} else if m.log.Active() && m.r.IntN(20) == 0 && !checkReads(t, m.log, m.records) {
				t.Fatalf("seed %d: damage", seed)
			}
		}
		m.must(m.log.Close())
	}
}
