package power_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/powerfs"
)

// world is a cluster whose nodes each have a disk, and one power supply.
type world struct {
	*testing.T
	*harness.Cluster
	rand *rand.Rand
	dirs []string // where the disks are mounted, in the order of the nodes

	damaged int // the node whose disk was damaged on purpose, -1: none

	unmount []func() error
	logged  []int64 // bytes of each node's log before the present start
	now     *recording
}

// recording is what the disks did since a start, and what clients were promised meanwhile.
type recording struct {
	power *powerfs.Power
	disks []*powerfs.Disk
	from  int // operations before it lie in the making of the cluster
	// Operations there had been before and after what takes a short time: a snapshot was restored, or a node joined.
	restoring, restored int
	promises
}

// promises are what an image has to keep.
type promises struct {
	mu        sync.Mutex
	values    map[string][]value
	snapshots map[string]int // names of files, and the operations there had been when they were acknowledged

	// Operations there had been when sys/init was answered, the mount was, and the audit device; 0: before the recording.
	founded, mounted, audited int
}

// value is one write of a key, and what it was: begun is the operations there had been before the request, acked those before
// the response.
type value struct {
	text         string // "" was deleted
	begun, acked int    // acked is never while there is no response
}

const never = int(^uint(0) >> 1)

// newWorld mounts empty disks and prepares n nodes that have them. Nothing runs.
func newWorld(t *testing.T, n int, seed uint64, options harness.Options) *world {
	t.Helper()
	w := &world{T: t, damaged: -1, rand: rand.New(rand.NewPCG(seed, 0)), logged: make([]int64, n)}
	top := t.TempDir()
	for i := range n {
		dir := filepath.Join(top, fmt.Sprintf("n%d", i+1))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		w.dirs = append(w.dirs, dir)
	}
	options.Bare, options.ReadyIn = true, patience
	options.Dir = func(id string) string { return filepath.Join(top, id, "data") }
	options.StorageConfig = "trailing_logs = 32\nsnapshot_threshold = 48\nsnapshot_interval = \"200ms\""
	if seed%3 != 0 {
		options.StorageConfig += "\nverify_at_start = 0" // as if the state were large: it is opened by the checksums beside it
	}
	w.mount(nil)
	t.Cleanup(w.off)
	options.Config = strings.ReplaceAll(options.Config, "{disk}", w.dirs[0])
	for _, dir := range w.dirs { // what the operator makes
		if err := os.Mkdir(filepath.Join(dir, "snapshots"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.Cluster = harness.NewCluster(t, n, options)
	return w
}

// mount gives every node a disk that begins with its image, or empty ones, and begins a recording.
func (w *world) mount(images []*powerfs.Image) {
	w.Helper()
	r := &recording{power: &powerfs.Power{}, promises: promises{values: map[string][]value{}, snapshots: map[string]int{}}}
	for i, dir := range w.dirs {
		var from *powerfs.Image
		if images != nil {
			from = images[i]
		}
		disk := powerfs.NewDisk(r.power, from)
		unmount, err := disk.Mount(dir)
		if err != nil {
			w.Skipf("NOT TESTED: loss of power. %v", err)
		}
		r.disks, w.unmount = append(r.disks, disk), append(w.unmount, unmount)
	}
	w.now = r
}

// off kills the processes and takes the disks away.
func (w *world) off() {
	if w.Cluster != nil {
		for _, n := range w.Nodes {
			n.Kill9()
		}
	}
	for _, unmount := range w.unmount {
		if err := unmount(); err != nil {
			w.Errorf("unmounting: %v", err)
		}
	}
	w.unmount = nil
}

// on starts all nodes with what the images hold, and returns why they do not come back by themselves.
func (w *world) on(images []*powerfs.Image, health ...int) error {
	w.off()
	w.mount(images)
	for i, n := range w.Nodes {
		w.logged[i] = n.LogSize()
	}
	for _, n := range w.Nodes {
		if err := n.Launch(); err != nil {
			return err
		}
	}
	return w.comeUp(health)
}

// comeUp waits until the nodes that were launched are healthy, and returns why they are not.
func (w *world) comeUp(health []int) error {
	deadline := time.Now().Add(patience)
	for pause := 2 * time.Millisecond; ; pause = min(pause*3/2, 25*time.Millisecond) {
		err := w.up(health)
		if err == nil || errors.Is(err, errFinal) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %w", patience, err)
		}
		<-time.After(pause)
	}
}

var errFinal = errors.New("it does not come back")

// up returns why the nodes are not all healthy. One of them has to be active, unless the cluster may not have been founded.
func (w *world) up(health []int) error {
	active := slices.Contains(health, 501)
	for i, n := range w.Nodes {
		if !n.Running() {
			return fmt.Errorf("%s has ended, %w:\n%s", n.ID, errFinal, n.LogSince(w.logged[i]))
		}
		got := n.Health()
		if got == 501 && !active && len(w.Nodes) == 1 {
			return fmt.Errorf("%s is not initialized any more, %w", n.ID, errFinal)
		}
		if !slices.Contains(health, got) {
			return fmt.Errorf("%s is at health %d", n.ID, got)
		}
		active = active || got == 200
	}
	if !active {
		return errors.New("no node is active")
	}
	return nil
}

// put writes or deletes (text "") a key through a node, and records what that promises.
func (w *world) put(n *harness.Node, key, text string) error {
	r := w.now
	r.mu.Lock()
	i := len(r.values[key])
	r.values[key] = append(r.values[key], value{text, r.power.Now(), never})
	r.mu.Unlock()
	method, body := "POST", any(map[string]any{"v": text})
	if text == "" {
		method, body = "DELETE", nil
	}
	a, err := w.ask(n, method, key, body)
	if err == nil && a.Status >= 300 {
		err = fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, key, err)
	}
	r.mu.Lock()
	r.values[key][i].acked = r.power.Now()
	r.mu.Unlock()
	return nil
}

// ask sends a request about a key. While three nodes elect a leader, it sends the request again: writing the same once more
// changes nothing.
func (w *world) ask(n *harness.Node, method, key string, body any) (harness.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		a, err := n.Do(ctx, method, "/v1/"+key, w.RootToken, body)
		if err != nil || a.Status != http.StatusServiceUnavailable || len(w.Nodes) == 1 {
			return a, err
		}
		select {
		case <-ctx.Done():
			return a, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// get reads a key, "" if it is not there.
func (w *world) get(n *harness.Node, key string) (string, error) {
	a, err := w.ask(n, "GET", key, nil)
	switch {
	case err != nil:
		return "", err
	case a.Status == http.StatusNotFound:
		return "", nil
	case a.Status != http.StatusOK:
		return "", fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	var out struct{ Data struct{ V string } }
	a.Decode(w.T, &out)
	return out.Data.V, nil
}

// verify compares what the cluster has with what had been promised at a moment of a recording. What it reads becomes the
// promise of the present recording: nothing may go back later.
func (w *world) verify(p *promises, at int) error {
	leader := w.active()
	if leader == nil {
		return errors.New("no node is active")
	}
	type result struct {
		key string
		err error
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	results := make(chan result)
	keys := make(chan string)
	for range 4 {
		go func() {
			for key := range keys {
				results <- result{key, w.verifyKey(leader, key, p.values[key], at)}
			}
		}()
	}
	go func() {
		for key := range p.values {
			keys <- key
		}
		close(keys)
	}()
	var err error
	for range p.values {
		if r := <-results; r.err != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r.key, r.err))
		}
	}
	return err
}

// active returns the active node; three nodes may have to elect it first. nil: there is none.
func (w *world) active() *harness.Node {
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		for _, n := range w.Nodes {
			if n.Health() == 200 {
				return n
			}
		}
		if len(w.Nodes) == 1 || time.Now().After(deadline) {
			return nil
		}
	}
}

func (w *world) verifyKey(n *harness.Node, key string, all []value, at int) error {
	got, err := w.get(n, key)
	if err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	last := -1
	for i, v := range all {
		if v.acked <= at {
			last = i
		}
	}
	allowed := []string{""}
	if last >= 0 {
		allowed[0] = all[last].text
	}
	for _, v := range all[last+1:] {
		if v.begun < at {
			allowed = append(allowed, v.text)
		}
	}
	if !slices.Contains(allowed, got) {
		return fmt.Errorf("it has %.20q, want one of %.20q: acknowledged was write %d of %d", got, allowed, last+1, len(all))
	}
	// Until it was read, a further loss of power could also have led to the others.
	pinned := []value{{allowed[0], -1, 0}}
	for _, text := range allowed[1:] {
		pinned = append(pinned, value{text, -1, never})
	}
	w.now.mu.Lock()
	defer w.now.mu.Unlock()
	w.now.values[key] = append(pinned, value{got, -1, w.now.power.Now()})
	return nil
}

// damage returns a line of the logs since the start which says that something was found damaged: a loss of power damages nothing.
func (w *world) damage() error {
	for i, n := range w.Nodes {
		if i == w.damaged {
			continue
		}
		for line := range strings.Lines(n.LogSince(w.logged[i])) {
			if strings.Contains(line, "damaged") || strings.Contains(line, "corrupt") || strings.Contains(line, "starts over") ||
				strings.Contains(line, "do not fit it") {
				return fmt.Errorf("%s: %s", n.ID, line)
			}
		}
	}
	return nil
}
