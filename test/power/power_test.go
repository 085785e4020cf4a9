// Package power_test runs the unchanged binary on disks that lose power (package powerfs), one node and three that lose it
// together. Each recording of a run gives many crash points: a moment, and a choice of what of the unsynced writes and names is
// there afterwards. From each of them the nodes must come back by themselves, with every acknowledged write and snapshot, and
// without finding damage; and a part of them loses power again on the way. Then the disks leave out the syncs of one
// component after the other, and the suite must notice that.
//
// It needs root and /dev/fuse, and runs with COFFER_CHAOS=long, as in `make chaos`; `make power` is for many points. COFFER_POWER_POINTS is how many. Each
// has a seed, which is printed with what it finds: COFFER_POWER_SEED=n COFFER_POWER_POINTS=1 repeats its choices. The processes do not do the same
// twice, so COFFER_POWER_KEEP names a directory for the disks of points that fail.
//
// Start reading at TestPowerLoss, then world_test.go.
package power_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/archive"
	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/powerfs"
)

func TestMain(m *testing.M) { harness.Main(m) }

const patience = 60 * time.Second

func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s must be a number: %v", name, err)
	}
	return n
}

// needs skips what takes long, or cannot be done here.
func needs(t *testing.T) {
	t.Helper()
	harness.LongOnly(t)
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("NOT TESTED: loss of power. It needs root and /dev/fuse. (The log of changes has a test of its own without them, in storage/wal.)")
	}
}

// load is what clients do during a recording, on one node.
func (w *world) load(writes int) {
	w.Helper()
	n := w.active()
	w.must(w.put(n, "ack/first", "1"))
	var wg sync.WaitGroup
	for client := range 4 {
		r := rand.New(rand.NewPCG(w.rand.Uint64(), 0))
		wg.Go(func() {
			for i := range writes / 4 {
				key := fmt.Sprintf("ack/%d-%d", client, r.IntN(8))
				text := fmt.Sprintf("%s:%d:%s", key, i, strings.Repeat("x", r.IntN(40)*r.IntN(200)))
				if r.IntN(6) == 0 {
					text = "" // deletes
				}
				if err := w.put(n, key, text); err != nil {
					w.Errorf("%v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// found initialises the first node and lets the others join.
func (w *world) found() {
	w.Helper()
	first := w.Nodes[0]
	first.WaitHealth(501)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := first.Do(ctx, "PUT", "/v1/sys/init", "", map[string]any{})
	w.must(err)
	var out struct {
		Token string `json:"root_token"`
	}
	a.Decode(w.T, &out)
	w.RootToken, w.now.founded = out.Token, w.now.power.Now()
	first.WaitHealth(200)
	if len(w.Nodes) > 1 {
		first.MustDo("POST", "/v1/sys/storage/raft/autopilot/configuration", map[string]any{"server_stabilization_time": "500ms"})
		for _, n := range w.Nodes[1:] {
			n.WaitHealth(200, 429)
		}
		first.Configure(true)
		w.WaitVoters(len(w.Nodes))
	}
	first.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	w.now.mounted = w.now.power.Now()
}

// audit has the first node write an audit log.
func (w *world) audit() {
	w.Nodes[0].MustDo("POST", "/v1/sys/audit/file", map[string]any{"type": "file", "options": map[string]any{"file_path": w.dirs[0] + "/audit.log"}})
	w.now.audited = w.now.power.Now()
}

// snapshot lets a schedule take one, and records its name.
func (w *world) snapshot(n *harness.Node, name string) {
	w.Helper()
	n.MustDo("POST", "/v1/sys/storage/raft/snapshot-auto/config/"+name, map[string]any{
		"interval": "24h", "storage_type": "local", "path_prefix": name,
	})
	var out struct {
		Data struct {
			URL string `json:"last_snapshot_url"`
		}
	}
	harness.Await(w, "a snapshot", patience, func() error {
		a := n.MustDo("GET", "/v1/sys/storage/raft/snapshot-auto/status/"+name, nil)
		if a.Decode(w.T, &out); out.Data.URL == "" {
			return fmt.Errorf("status: %s", a.Body)
		}
		return nil
	})
	file := strings.TrimPrefix(out.Data.URL, "file://"+w.dirs[0]+"/")
	w.now.mu.Lock()
	w.now.snapshots[file] = w.now.power.Now()
	w.now.mu.Unlock()
}

// checkSnapshots looks at the snapshots in an image: those that have their names are whole, and those that were acknowledged are there.
func checkSnapshots(i *powerfs.Image, p *promises, at int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	missing := map[string]bool{}
	for name, acked := range p.snapshots {
		missing[name] = acked <= at
	}
	var err error
	i.Walk(func(name string, content func() []byte) {
		if strings.HasPrefix(name, "snapshots/") && filepath.Ext(name) != ".tmp" {
			delete(missing, name)
			if _, e := archive.Verify(bytes.NewReader(content())); e != nil && err == nil {
				err = fmt.Errorf("%s: %w", name, e)
			}
		}
	})
	for name, acked := range missing {
		if acked {
			return fmt.Errorf("%s was acknowledged and is not there", name)
		}
	}
	return err
}

// checkAudit looks at the records that were written since an image: each is a line of its own.
func checkAudit(before, after *powerfs.Image) error {
	old, now := auditLog(before), auditLog(after)
	if len(now) <= len(old) || !bytes.HasPrefix(now, old) {
		return fmt.Errorf("the audit log had %d bytes, and %d after more requests", len(old), len(now))
	}
	fresh := now[len(old):]
	if len(old) > 0 && old[len(old)-1] != '\n' {
		if fresh[0] != '\n' {
			return fmt.Errorf("the audit log goes on within a torn line: %.40q", fresh)
		}
		fresh = fresh[1:]
	}
	for line := range bytes.Lines(fresh) {
		if !json.Valid(line) {
			return fmt.Errorf("the audit log has a line that is not a record: %.80q", line)
		}
	}
	return nil
}

func auditLog(i *powerfs.Image) (content []byte) {
	i.Walk(func(name string, all func() []byte) {
		if name == "audit.log" {
			content = all()
		}
	})
	return content
}

// point is one loss of power.
type point struct {
	seed   uint64
	at     int
	loss   []powerfs.Loss // on each disk
	images []*powerfs.Image
}

func (p point) String() string {
	return fmt.Sprintf("COFFER_POWER_SEED=%d: power lost before operation %d, and %v of what was not synced", p.seed, p.at, p.loss)
}

// pick chooses a point of a recording by its seed.
func (r *recording) pick(seed uint64, ignore func(powerfs.Sync) bool) point {
	if seed%4 == 0 && r.restored > 0 { // much happens in a short time
		return r.pickWithin(r.restoring, r.restored, seed, ignore)
	}
	return r.pickWithin(r.from, r.power.Now(), seed, ignore)
}

// joining makes the moments around the last time that a node kept its key those in which much happens: it was registered with that
// key before, and had its state before.
func (r *recording) joining(node int) {
	kept := r.disks[node].Named("data/node-key")
	last := kept[len(kept)-1]
	r.restoring, r.restored = last-100, min(last+20, r.power.Now())
}

// pickWithin chooses one between two moments.
func (r *recording) pickWithin(from, to int, seed uint64, ignore func(powerfs.Sync) bool) point {
	random := rand.New(rand.NewPCG(seed, 1))
	p := point{seed: seed, at: from + random.IntN(to-from+1)}
	for i, d := range r.disks {
		loss := powerfs.Loss(random.IntN(int(powerfs.Losses)))
		p.loss = append(p.loss, loss)
		p.images = append(p.images, d.Crash(p.at, loss, seed+uint64(i)<<32, ignore))
	}
	return p
}

// check starts the nodes on what a point left, and returns what was lost.
func (w *world) check(r *recording, p point) error {
	for _, i := range p.images {
		if err := checkSnapshots(i, &r.promises, p.at); err != nil {
			return err
		}
	}
	health := []int{200, 429}
	if p.at < r.founded {
		health = append(health, 501)
	}
	if err := w.on(p.images, health...); err != nil {
		return err
	}
	if p.at < r.mounted {
		return w.damage()
	}
	if err := w.verify(&r.promises, p.at); err != nil {
		return err
	}
	if err := w.more(); err != nil {
		return err
	}
	if audited := r.audited > 0 || len(w.Nodes) == 1; audited && p.at >= r.audited {
		d := w.now.disks[0]
		if err := checkAudit(p.images[0], d.Crash(w.now.power.Now(), powerfs.LoseNothing, 0, nil)); err != nil {
			return err
		}
	}
	return w.damage()
}

// sweep loses power at points of a recording, and at some of them a second time while the nodes start.
func (w *world) sweep(r *recording, seed uint64, points int) {
	w.Helper()
	begin, again, failed := time.Now(), 0, 0
	for i := range points {
		from, p := r, r.pick(seed+uint64(i), nil)
		err := w.check(from, p)
		if err == nil && p.at >= max(r.mounted, r.audited) && p.seed%4 == 3 {
			again++
			from = w.now
			p = from.pick(p.seed, nil)
			err = w.check(from, p)
		}
		if err != nil {
			w.keep(p)
			w.Errorf("the first disk before:\n%s\n%v: %v", strings.Join(from.disks[0].Describe(p.at, 20), "\n"), p, err)
			if failed++; failed == 3 {
				break
			}
		}
	}
	w.Logf("%d crash points among %d operations, and %d more during the start after one, in %v: seeds from %d",
		points, r.power.Now()-r.from, again, time.Since(begin).Round(time.Second), seed)
}

// more writes a little after a start.
func (w *world) more() error {
	n := w.active()
	if n == nil {
		return errors.New("no node is active")
	}
	for i := range 3 {
		if err := w.put(n, fmt.Sprintf("ack/again-%d", i), fmt.Sprint(i)); err != nil {
			return err
		}
	}
	return nil
}

// keep writes the disks of a point into a directory, if there is one for them.
func (w *world) keep(p point) {
	top := os.Getenv("COFFER_POWER_KEEP")
	if top == "" {
		return
	}
	for i, image := range p.images {
		image.Walk(func(name string, content func() []byte) {
			to := filepath.Join(top, fmt.Sprintf("%d-n%d", p.seed, i+1), name)
			if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
				w.Logf("%v", err)
			}
			if err := os.WriteFile(to, content(), 0o600); err != nil {
				w.Logf("%v", err)
			}
		})
	}
}

func TestPowerLoss(t *testing.T) {
	needs(t)
	seed := uint64(number(t, "COFFER_POWER_SEED", int(time.Now().Unix())*10_000))
	points := number(t, "COFFER_POWER_POINTS", 300)
	t.Run("one node", func(t *testing.T) {
		t.Parallel()
		parts(t, seed, points-points/5, func(t *testing.T, seed uint64, points int) {
			w := oneNode(t, seed)
			w.sweep(w.now, seed, points)
		})
	})
	t.Run("three nodes", func(t *testing.T) {
		t.Parallel()
		parts(t, seed, points/5, func(t *testing.T, seed uint64, points int) {
			w := threeNodes(t, seed)
			r := w.now
			w.sweep(r, seed, points/2)
			w.rejoin(r)
			w.sweep(w.now, seed+uint64(points/2), points-points/2)
		})
	})
}

// parts runs a test for some crash points at a time: each part has a recording of its own, and as many run at the same time as
// go test's -parallel says.
func parts(t *testing.T, seed uint64, points int, run func(t *testing.T, seed uint64, points int)) {
	const each = 500
	for i := 0; i < points; i += each {
		t.Run(fmt.Sprint(seed+uint64(i)), func(t *testing.T) {
			t.Parallel()
			run(t, seed+uint64(i), min(each, points-i))
		})
	}
}

// oneNode returns a node with a recording of its whole life.
func oneNode(t *testing.T, seed uint64) *world {
	w := newWorld(t, 1, seed, harness.Options{Config: "snapshots {\n  local_root = \"{disk}/snapshots\"\n}"})
	w.found()
	w.audit()
	n := w.Nodes[0]
	w.EnablePrimary()
	w.load(80)
	n.MustDo("POST", "/v1/sys/rotate", nil)
	w.snapshot(n, "a")
	w.load(80)
	w.snapshot(n, "b")
	w.restore(n)
	w.load(40)
	return w
}

// restore takes a snapshot, lets clients go on, and restores it: what they wrote meanwhile is to be gone.
func (w *world) restore(n *harness.Node) {
	w.Helper()
	r := w.now
	saved := n.MustDo("GET", "/v1/sys/storage/raft/snapshot", nil).Body
	then := map[string]string{}
	for key, all := range r.values {
		then[key] = all[len(all)-1].text
	}
	w.load(40)
	begun := r.power.Now()
	n.MustDo("POST", "/v1/sys/storage/raft/snapshot-force", saved)
	n.WaitHealth(200)
	r.restoring, r.restored = begun, r.power.Now()
	for key := range r.values {
		r.values[key] = append(r.values[key], value{then[key], begun, r.restored})
	}
}

// threeNodes returns a cluster with a recording that begins when the first node has been initialized.
func threeNodes(t *testing.T, seed uint64) *world {
	w := newWorld(t, 3, seed, harness.Options{})
	w.found()
	w.now.from = w.now.founded
	w.load(160)
	return w
}

// rejoin damages the state of a node that was off, and records how it moves that aside and fetches a snapshot. While the others'
// logs still reach back to their first entry it fetches those: they get more of them until they have taken snapshots.
func (w *world) rejoin(r *recording) {
	w.Helper()
	w.damaged = 2
	for range 10 {
		p := point{at: r.power.Now()}
		for _, d := range r.disks {
			p.images = append(p.images, d.Crash(p.at, powerfs.LoseNothing, 0, nil))
		}
		p.images[w.damaged] = p.images[w.damaged].Edit("data/fsm.db", func(b []byte) {
			for at := 4096*2 + 100; at < len(b); at += 1009 {
				b[at] ^= 1 << (at % 8)
			}
		})
		w.must(w.check(r, p))
		w.WaitVoters(3)
		w.load(100)
		log := w.Nodes[w.damaged].LogSince(w.logged[w.damaged])
		if !strings.Contains(log, "moved aside") {
			w.Fatalf("%s did not move its damaged state aside:\n%s", w.Nodes[w.damaged].ID, log)
		}
		if strings.Contains(log, "the state was replaced by a snapshot") {
			w.now.joining(w.damaged)
			return
		}
		r = w.now
	}
	w.Fatalf("%s came back without a snapshot each time: the test shows nothing", w.Nodes[w.damaged].ID)
}

// TestFailedSyncs has syncs fail, now and then, after which Linux takes what was not written for written, and kills the process after some of them. What
// was acknowledged nevertheless is there after a loss of power, and a failed sync is no damage.
func TestFailedSyncs(t *testing.T) {
	needs(t)
	seed := uint64(number(t, "COFFER_POWER_SEED", int(time.Now().Unix())*10_000))
	points := number(t, "COFFER_POWER_POINTS", 300) / 3
	w := newWorld(t, 1, seed, harness.Options{})
	w.found()
	w.audit()
	r := w.now
	r.from = r.audited
	var failed, ofBolt atomic.Int64 // the latter: of a file in which a meta page of bbolt may be what failed
	random := rand.New(rand.NewPCG(seed, 3))
	r.disks[0].FailSyncs(func(s powerfs.Sync) bool {
		fail := random.IntN(25) == 0
		if fail {
			failed.Add(1)
			if filepath.Ext(s.Path) == ".db" {
				ofBolt.Add(1)
			}
		}
		return fail
	})
	n, keys := w.Nodes[0], rand.New(rand.NewPCG(seed, 2))
	kills := 0
	enough := func() bool { return failed.Load() >= 10 && kills >= 3 }
	for i, before := 0, int64(0); i < 400 || i < 4000 && !enough(); i++ {
		key := fmt.Sprintf("ack/%d", keys.IntN(12))
		err := w.put(n, key, fmt.Sprintf("%s:%d:%s", key, i, strings.Repeat("x", keys.IntN(40)*keys.IntN(200))))
		switch now := ofBolt.Load(); {
		case now > before && kills < 10: // what was written and is not on the disk is what the next process finds
			kills++
			n.Kill9()
			w.must(w.startAgain(n))
			before = ofBolt.Load()
		case err != nil:
			n.WaitHealth(200)
		}
	}
	r.disks[0].FailSyncs(nil)
	t.Logf("%d syncs failed, and the process was killed %d times", failed.Load(), kills)
	if !enough() {
		t.Error("too few: the test shows nothing")
	}
	w.must(w.damage())
	w.sweep(r, seed, points)
}

// startAgain starts the one node until it serves: a sync may fail at a start, too, which ends the process.
func (w *world) startAgain(n *harness.Node) error {
	for range 30 {
		if err := n.Launch(); err != nil {
			return err
		}
		if err := w.comeUp([]int{200}); !errors.Is(err, errFinal) {
			return err
		}
		if err := w.damage(); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s does not start, whatever syncs fail", n.ID)
}

// TestSyncsAreNeeded leaves out the syncs of one component after the other. A suite that does not find that would not find a program
// which forgot them.
func TestSyncsAreNeeded(t *testing.T) {
	needs(t)
	seed := uint64(number(t, "COFFER_POWER_SEED", int(time.Now().Unix())*10_000))
	base := func(prefix string) func(powerfs.Sync) bool {
		return func(s powerfs.Sync) bool { return !s.Dir && strings.HasPrefix(filepath.Base(s.Path), prefix) }
	}
	directory := func(name string) func(powerfs.Sync) bool {
		return func(s powerfs.Sync) bool { return s.Dir && s.Path == name }
	}
	tests := []struct {
		name   string
		ignore func(powerfs.Sync) bool
	}{
		{"the Raft log", base("raft.db")},
		{"the journal of the Raft log", base("raft.journal")},
		{"the state file", base("fsm.db")},
		{"a state that replaces another", base("fsm-")},
		{"the log of changes", base("0000")},
		{"the mark of the log of changes", base("mark")},
		{"the node's key", base("node-key")},
		{"snapshots", base("coffer-snapshot")},
		{"names in the data directory", directory("data")},
		{"names beside the data directory", directory("")},
		{"names of the log of changes", directory("data/wal")},
		{"names of snapshots", directory("snapshots/a")},
		{"names of directories of snapshots", directory("snapshots")},
	}
	w := oneNode(t, seed)
	r := w.now
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const tries = 60
			for i := range uint64(tries) {
				p := r.pick(seed+i, tt.ignore)
				if i%2 == 1 { // the syncs of later changes stand in for those of the replacement
					p = r.pickWithin(r.restoring, r.restored, seed+i, tt.ignore)
				}
				if err := w.check(r, p); err != nil {
					t.Logf("found at point %d, %v: %.300v", i+1, p, err)
					return
				}
			}
			t.Errorf("%d losses of power did not show that these syncs were left out: seeds from %d", tries, seed)
		})
	}
}
