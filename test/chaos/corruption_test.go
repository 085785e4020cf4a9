package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// damage is one way for a file to rot while its node is down.
type damage struct {
	name string
	file string // the one that must be named
	do   func(dir string) error
}

func damages() []damage {
	list := []damage{
		{"bits of the state", "fsm.db", flipBits("fsm.db")},
		{"bits of the log", "raft.db", flipBits("raft.db")},
		{"the state cut off", "fsm.db", cutOff("fsm.db")},
		{"the log cut off", "raft.db", cutOff("raft.db")},
		{"bits of the log's journal", "raft.journal", flipBits("raft.journal")},
	}
	more := []damage{
		{"the state's beginning", "fsm.db", zero("fsm.db", 0, 64<<10)},
		{"the log's beginning", "raft.db", zero("raft.db", 0, 64<<10)},
		{"the newest page of the state", "fsm.db", newestMeta("fsm.db")},
		{"the newest page of the log", "raft.db", newestMeta("raft.db")},
		{"the log's journal gone", "raft.journal", func(dir string) error { return os.Remove(filepath.Join(dir, "raft.journal")) }},
		{"the log gone", "raft.db", func(dir string) error { return os.Remove(filepath.Join(dir, "raft.db")) }},
		{"the state empty", "fsm.db", func(dir string) error { return os.Truncate(filepath.Join(dir, "fsm.db"), 0) }},
		{"the files swapped", "fsm.db", swap},
	}
	if harness.Long {
		return append(list, more...)
	}
	return append(list, more[2], more[5])
}

// flipBits flips single bits all over the file.
func flipBits(file string) func(string) error {
	return func(dir string) error {
		name := filepath.Join(dir, file)
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for at := 4096*2 + 100; at < len(b); at += 1009 {
			b[at] ^= 1 << (at % 8)
		}
		return os.WriteFile(name, b, 0o600)
	}
}

func cutOff(file string) func(string) error {
	return func(dir string) error {
		name := filepath.Join(dir, file)
		info, err := os.Stat(name)
		if err != nil {
			return err
		}
		return os.Truncate(name, 3*4096+min(100, info.Size()/2))
	}
}

func zero(file string, from, n int) func(string) error {
	return func(dir string) error {
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt(make([]byte, n), int64(from))
		return err
	}
}

// newestMeta flips a bit in whichever of bbolt's two first pages has the higher transaction id, which bbolt by
// itself takes for a torn write and answers by going back in time.
func newestMeta(file string) func(string) error {
	return func(dir string) error {
		name := filepath.Join(dir, file)
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		const size, tx = 4096, 16 + 48
		page := 0
		for i := 7; i >= 0; i-- { // little-endian, highest byte first
			if b[tx+i] != b[size+tx+i] {
				if b[size+tx+i] > b[tx+i] {
					page = 1
				}
				break
			}
		}
		b[page*size+tx] ^= 4
		return os.WriteFile(name, b, 0o600)
	}
}

func swap(dir string) error {
	a, b, temp := filepath.Join(dir, "fsm.db"), filepath.Join(dir, "raft.db"), filepath.Join(dir, "temp")
	for _, step := range [][2]string{{a, temp}, {b, a}, {temp, b}} {
		if err := os.Rename(step[0], step[1]); err != nil {
			return err
		}
	}
	return nil
}

// fill writes n keys and returns them, and the token of the state that has them.
func fill(t *testing.T, n *harness.Node, prefix string, count int) (keys []string, index string) {
	t.Helper()
	for i := range count {
		key := fmt.Sprintf("%s/%04d", prefix, i)
		a := n.MustDo("POST", "/v1/ack/"+key, map[string]any{"v": key, "pad": strings.Repeat("p", 500)})
		keys, index = append(keys, key), a.Header.Get("X-Vault-Index")
	}
	return keys, index
}

// TestCorruptionHeals damages the files of a member that is down. At its start it has to notice, name the
// file, serve nothing from it and fetch everything from the others.
func TestCorruptionHeals(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{})
	c.Leader().MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	keys, _ := fill(t, c.Leader(), "before", 300)
	for i, d := range damages() {
		ok := t.Run(d.name, func(t *testing.T) {
			victim := c.Nodes[i%3] // each in turn, whether it leads or not
			victim.Kill9()
			more, index := fill(t, c.Leader(), fmt.Sprintf("down%d", i), 10)
			keys = append(keys, more...)
			if err := d.do(victim.Dir); err != nil {
				t.Fatal(err)
			}
			logged := len(victim.Log())
			victim.Start()
			victim.WaitHealth(200, 429)
			c.WaitVoters(3)
			if text := victim.Log()[logged:]; !strings.Contains(text, d.file) || !strings.Contains(text, "corrupt") {
				t.Errorf("the log does not say that %s is corrupt", d.file)
			}
			checkAcked(t, victim, c.RootToken, index, keys)
		})
		if !ok {
			t.Fatalf("the cluster is not whole any more")
		}
	}
}

// TestCorruptionIsRefused: without anybody to fetch the data from, a node does not start.
func TestCorruptionIsRefused(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	c := harness.NewCluster(t, 1, harness.Options{NoRetryJoin: true})
	n := c.Nodes[0]
	n.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	keys, _ := fill(t, n, "k", 200)
	n.Stop() // which moves all that is in the Raft log's journal
	n.Start()
	n.WaitHealth(200)
	more, _ := fill(t, n, "more", 5)
	keys = append(keys, more...)
	n.Kill9()
	for _, d := range damages() {
		t.Run(d.name, func(t *testing.T) {
			good := t.TempDir()
			if err := os.CopyFS(good, os.DirFS(n.Dir)); err != nil {
				t.Fatal(err)
			}
			if err := d.do(n.Dir); err != nil {
				t.Fatal(err)
			}
			logged := len(n.Log())
			if err := n.TryStart(); err == nil {
				n.Kill9()
				t.Errorf("the node started")
			}
			if text := n.Log()[logged:]; !strings.Contains(text, filepath.Join(n.Dir, d.file)) && !strings.Contains(text, filepath.Join(n.Dir, "raft.db")) {
				t.Errorf("what it wrote does not name the file:\n%s", text)
			}
			if err := os.RemoveAll(n.Dir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(n.Dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
		})
	}
	n.Start()
	n.WaitHealth(200)
	last := n.MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
	checkAcked(t, n, c.RootToken, last.Header.Get("X-Vault-Index"), keys)
}

// TestDiskFull fills the leader's disk. Nothing acknowledged may be lost, the others go on, and when there is
// space again the node is a member like before.
func TestDiskFull(t *testing.T) {
	harness.LongOnly(t)
	small := t.TempDir()
	mount(t, small, "24m")
	c := harness.NewCluster(t, 3, harness.Options{Dir: func(id string) string {
		if id == "n1" {
			return filepath.Join(small, "data")
		}
		return ""
	}})
	c.Leader().MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	var keys []string
	write := func(n int) {
		t.Helper()
		pad := strings.Repeat("p", 60<<10)
		for i := 0; n > 0; i++ {
			if i > 20_000 {
				t.Fatalf("%d writes are still to be accepted", n)
			}
			key := fmt.Sprintf("full/%06d", len(keys)*100_000+i)
			if put(c.Nodes[i%3], c.RootToken, "/v1/ack/"+key, `{"v":"`+key+`","pad":"`+pad+`"}`, 10*time.Second) == written {
				keys = append(keys, key)
				n--
			}
		}
	}
	write(600) // 36 MB where 24 MB fit
	t.Logf("%d writes acknowledged; n1 runs: %v", len(keys), c.Node("n1").Running())
	if !strings.Contains(c.Node("n1").Log(), "no space left on device") {
		t.Errorf("n1's log does not say that its disk is full")
	}
	remount(t, small, "512m")
	if n := c.Node("n1"); !n.Running() {
		n.Start()
	}
	c.WaitServing()
	c.WaitVoters(3)
	write(20)
	last := c.Leader().MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
	for _, n := range c.Nodes {
		checkAcked(t, n, c.RootToken, last.Header.Get("X-Vault-Index"), keys)
	}
}

// TestOldFile puts one of a member's two files back from a backup that is older than the other. Whether it
// notices or catches up, it must end with everything that was acknowledged.
func TestOldFile(t *testing.T) {
	harness.LongOnly(t)
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{})
	c.Leader().MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	keys, _ := fill(t, c.Leader(), "before", 100)
	for i, file := range []string{"raft.db", "fsm.db"} {
		victim := c.Standbys()[i]
		victim.Stop()
		backup, err := os.ReadFile(filepath.Join(victim.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		victim.Start()
		c.WaitVoters(3)
		more, _ := fill(t, c.Leader(), "since-"+file, 200)
		keys = append(keys, more...)
		victim.Stop()
		if err := os.WriteFile(filepath.Join(victim.Dir, file), backup, 0o600); err != nil {
			t.Fatal(err)
		}
		victim.Start()
		c.WaitServing()
		c.WaitVoters(3)
		more, index := fill(t, c.Leader(), "after-"+file, 10)
		keys = append(keys, more...)
		checkAcked(t, victim, c.RootToken, index, keys)
	}
}
