package fsm_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
	"github.com/coffer-project/coffer/storage/wal"
)

// crashDir, in the environment, makes the test binary the process that is killed, and crashLog has it keep a log of
// changes too.
const (
	crashDir = "COFFER_TEST_CRASH_DIR"
	crashLog = "COFFER_TEST_CRASH_LOG"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		applyUntilKilled(dir)
	}
	os.Exit(m.Run())
}

// crashBatches is what log entry i does: it depends on nothing else.
func crashBatches(i uint64) []storage.Batch {
	key := func(n uint64) string { return fmt.Sprintf("s/a/%03d", n%300) }
	value := strings.Repeat(fmt.Sprint(i, " "), int(i%97)+1)
	return []storage.Batch{
		puts(key(i), value),
		deletes(puts(key(i*7+1), value, key(i*7+2), value), key(i*7+3)),
		reads(puts(key(i), "never"), key(i), 1<<60),
	}
}

// crashState is the state after the entries [1, i].
func crashState(i uint64) string {
	type entry struct {
		version uint64
		value   []byte
	}
	state := map[storage.Key]entry{}
	for n := uint64(1); n <= i; n++ {
		for _, b := range crashBatches(n)[:2] {
			for _, p := range b.Puts {
				state[p.Key] = entry{n, p.Value}
			}
			for _, k := range b.Deletes {
				delete(state, k)
			}
		}
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(state)) {
		fmt.Fprintf(&b, "%s@%d=%x\n", k, state[k].version, state[k].value)
	}
	return b.String()
}

// applyUntilKilled applies entries from where the file is, and says how far it came and what is durable.
func applyUntilKilled(dir string) {
	fail := func(err error) {
		fmt.Println("failed", err)
		os.Exit(3)
	}
	o := fsm.Options{WholeBytes: -1}
	begin := func() error { return nil }
	if os.Getenv(crashLog) != "" {
		log, err := openWAL(dir)
		if err != nil {
			fail(err)
		}
		o.Log, begin = log, func() error { return log.Begin(0) }
	}
	f, err := fsm.Open(dir, o)
	if err == nil && f.AppliedIndex() == 0 {
		err = begin()
	}
	if err != nil {
		fail(err)
	}
	for i := uint64(f.AppliedIndex()) + 1; ; i++ {
		data, err := fsm.EncodeCommand(0, crashBatches(i))
		if err != nil {
			fail(err)
		}
		if _, ok := f.Apply(command(i, data)).(fsm.Result); !ok {
			fail(f.Err())
		}
		fmt.Println("applied", i)
		if i%50 == 0 {
			if _, err := f.WriteSnapshot(context.Background(), io.Discard); err != nil {
				fail(err)
			}
			fmt.Println("durable", i)
		}
	}
}

// A process that is killed while it applies and folds leaves exactly the state of some entry, no older than
// what it was told is durable and no newer than what it applied.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	start := uint64(0)
	for round := range 8 {
		applied, durable := killAfter(t, start+uint64(37+61*round), crashDir+"="+dir)
		f := open(t, dir)
		got := uint64(f.AppliedIndex())
		if got < max(durable, start) || got > applied+1 { // the last line may not have reached us
			t.Errorf("reopened at %d, want between %d and %d", got, max(durable, start), applied+1)
		}
		if state := dump(t, f); state != crashState(got) {
			t.Fatalf("reopened at %d with another state than that:\n%s", got, state)
		}
		start = got
		mustClose(t, f)
	}
}

func openWAL(dir string) (*wal.Log, error) {
	return wal.Open(filepath.Join(dir, "wal"), wal.Options{
		SegmentBytes: 64 << 10,
		Now:          func() time.Time { return time.UnixMilli(0) }, // the time in the entries: nothing grows old
	})
}

// After a kill the log has every change up to the state, or a little further, and goes on from there.
func TestKilledWithLog(t *testing.T) {
	dir := t.TempDir()
	start, got, read := uint64(0), keptState{}, storage.Index(0)
	for round := range 6 {
		killAfter(t, start+uint64(37+61*round), crashDir+"="+dir, crashLog+"=1")
		log, err := openWAL(dir)
		if err != nil {
			t.Fatal(err)
		}
		f, err := fsm.Open(dir, fsm.Options{Log: log})
		if err != nil {
			t.Fatal(err)
		}
		if log.Base() != 0 || log.Head() < f.AppliedIndex() {
			t.Fatalf("the log has (%d, %d] and the state is at %d", log.Base(), log.Head(), f.AppliedIndex())
		}
		start = uint64(f.AppliedIndex())
		for r, err := range log.Records(read) {
			if err == nil {
				err = got.replay(r)
			}
			if err != nil {
				t.Fatal(err)
			}
			read = r.Index
		}
		var text strings.Builder
		for _, k := range slices.Sorted(maps.Keys(got)) {
			fmt.Fprintf(&text, "%s@%d=%x\n", k, got[k].Version, got[k].Value)
		}
		if want := crashState(uint64(read)); read != log.Head() || text.String() != want {
			t.Fatalf("the log to %d, read to %d, gives\n%s\nwant\n%s", log.Head(), read, text.String(), want)
		}
		mustClose(t, f)
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killAfter runs the process until it has applied entry i, and kills it. All lines that it managed to write
// are read: what they say has happened.
func killAfter(t *testing.T, i uint64, env ...string) (applied, durable uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var n uint64
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "applied"):
			if _, err := fmt.Sscanf(line, "applied %d", &n); err == nil {
				applied = max(applied, n)
			}
		case strings.HasPrefix(line, "durable"):
			if _, err := fmt.Sscanf(line, "durable %d", &n); err == nil {
				durable = max(durable, n)
			}
		default:
			t.Errorf("the process says: %s", line)
		}
		if applied >= i && !killed {
			killed = true
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil || !killed {
		t.Errorf("the process ended by itself: %v", err)
	}
	return applied, durable
}
