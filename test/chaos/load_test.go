package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/coffer-project/coffer/test/harness"
)

// outcome is what a client knows about its write.
type outcome int

const (
	unknown outcome = iota // it may have happened, or may yet happen
	written
	refused // it did not happen, and never will
)

// put writes through one node.
func put(n *harness.Node, token, path, body string, within time.Duration) outcome {
	result, _ := call(n, token, "POST", path, body, within)
	return result
}

// call sends one request. The answer is there only when the outcome is written or refused by an answer.
func call(n *harness.Node, token, method, path, body string, within time.Duration) (outcome, harness.Answer) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	a, err := n.Do(ctx, method, path, token, []byte(body), "X-Vault-Consistency", "linearizable")
	var dial *net.OpError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.As(err, &dial) && dial.Op == "dial":
		return refused, harness.Answer{}
	case err != nil:
		return unknown, harness.Answer{}
	case a.Status < 300:
		return written, a
	case a.Status < 500:
		return refused, a
	}
	// The server says when a write may still have taken effect; otherwise it promises that it has not.
	text := strings.Join(a.Errors(), " ")
	if a.Status == 503 && !strings.Contains(text, "may") {
		return refused, a
	}
	return unknown, a
}

func mounted(n *harness.Node, token string) error {
	for _, path := range []string{"/v1/lin/config", "/v1/ack/none"} {
		if _, a := call(n, token, "GET", path, "", 5*time.Second); a.Status != 200 && (a.Status != 404 || strings.Contains(string(a.Body), "mount")) {
			return fmt.Errorf("GET %s: status %d", path, a.Status)
		}
	}
	return nil
}

// input and output are one operation on one register: a kv-v2 secret with its version.
type input struct {
	kind   byte // 'r'ead, 'w'rite, 'c'heck and set
	key    string
	value  string
	expect int // of 'c': the version
}

type output struct {
	known   bool
	ok      bool // of 'c': it was set
	version int  // 0: the secret does not exist
	value   string
}

type register struct {
	version int
	value   string
}

// model is a register that counts its versions. Versions make the check strict: each write says which place in
// the order it got.
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(input).key
			keys[key] = append(keys[key], op)
		}
		var out [][]porcupine.Operation
		for _, ops := range keys {
			out = append(out, ops)
		}
		return out
	},
	Init: func() any { return register{} },
	Step: func(state, in, out any) (bool, any) {
		s, i, o := state.(register), in.(input), out.(output)
		next := register{s.version + 1, i.value}
		switch {
		case i.kind == 'r':
			return o.version == s.version && o.value == s.value, s
		case i.kind == 'w' && !o.known:
			return true, next
		case i.kind == 'w':
			return o.version == next.version, next
		case !o.known && s.version == i.expect:
			return true, next
		case !o.known:
			return true, s
		case o.ok:
			return s.version == i.expect && o.version == next.version, next
		default:
			return s.version != i.expect, s
		}
	},
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		return fmt.Sprintf("%c %s=%s expect %d -> known %v ok %v version %d %s", i.kind, i.key, i.value, i.expect, o.known, o.ok, o.version, o.value)
	},
}

// load is the clients and what they have seen.
type load struct {
	c     *harness.Cluster
	nodes []*harness.Node // those of the start: later ones come and go
	start time.Time
	round atomic.Int64
	done  chan struct{} // closed by stop
	wg    sync.WaitGroup

	mu       sync.Mutex
	history  []porcupine.Operation
	acked    []string
	counts   map[outcome]int
	internal []string // answers that no fault excuses
	back     int      // what a node showed after something newer
}

const (
	keysInRound = 8
	clients     = 10
	ackWriters  = 2
)

func startLoad(t *testing.T, c *harness.Cluster) *load {
	t.Helper()
	l := &load{c: c, nodes: append([]*harness.Node(nil), c.Nodes...), start: time.Now(), done: make(chan struct{}), counts: map[outcome]int{}}
	for i := range clients {
		l.wg.Go(func() { l.client(i) })
	}
	for i := range ackWriters {
		l.wg.Go(func() { l.ackWriter(i) })
	}
	l.wg.Go(l.counter)
	for _, n := range l.nodes {
		l.wg.Go(func() { l.localReader(n) })
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) nextRound() { l.round.Add(1) }

func (l *load) stop() {
	l.mu.Lock()
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// pause reports false when the load has ended.
func (l *load) pause(d time.Duration) bool {
	select {
	case <-l.done:
		return false
	case <-time.After(d):
		return true
	}
}

// client is one closed loop over the registers, through random nodes.
func (l *load) client(id int) {
	r := rand.New(rand.NewPCG(uint64(id), 7))
	versions := map[string]int{}
	for n := 0; l.pause(10 * time.Millisecond); n++ {
		in := input{kind: "rrwwc"[r.IntN(5)], key: fmt.Sprintf("r%d-%d", l.round.Load(), r.IntN(keysInRound)), value: fmt.Sprintf("%d.%d", id, n)}
		in.expect = versions[in.key]
		node := l.nodes[r.IntN(len(l.nodes))]
		began := time.Since(l.start)
		out, happened := l.operate(node, in)
		ended := time.Since(l.start)
		if !happened {
			continue
		}
		versions[in.key] = max(versions[in.key], out.version)
		op := porcupine.Operation{ClientId: id, Input: in, Output: out, Call: int64(began), Return: int64(ended)}
		if !out.known {
			op.Return = 1 << 62 // it may take effect at any time from now on
		}
		l.mu.Lock()
		l.history = append(l.history, op)
		l.mu.Unlock()
	}
}

// operate runs the operation. happened is false when it certainly had no effect and showed nothing.
func (l *load) operate(n *harness.Node, in input) (out output, happened bool) {
	method, body := "POST", ""
	switch in.kind {
	case 'r':
		method = "GET"
	case 'w':
		body = fmt.Sprintf(`{"data":{"v":%q}}`, in.value)
	case 'c':
		body = fmt.Sprintf(`{"data":{"v":%q},"options":{"cas":%d}}`, in.value, in.expect)
	}
	result, a := call(n, l.c.RootToken, method, "/v1/lin/data/"+in.key, body, 3*time.Second)
	l.count(result, a)
	switch {
	case result == written:
		return parse(in, a), true
	case in.kind == 'r' && a.Status == 404:
		return output{known: true}, true
	case in.kind == 'c' && a.Status == 400 && strings.Contains(string(a.Body), "check-and-set"):
		return output{known: true}, true
	case result == unknown && in.kind != 'r':
		return output{}, true
	}
	return output{}, false
}

func parse(in input, a harness.Answer) output {
	var body struct {
		Data struct {
			Version  int
			Data     map[string]string
			Metadata struct{ Version int }
		}
	}
	if err := json.NewDecoder(bytes.NewReader(a.Body)).Decode(&body); err != nil {
		return output{version: -1}
	}
	if in.kind == 'r' {
		return output{known: true, version: body.Data.Metadata.Version, value: body.Data.Data["v"]}
	}
	return output{known: true, ok: true, version: body.Data.Version}
}

// ackWriter writes keys of its own, and remembers those that were acknowledged.
func (l *load) ackWriter(id int) {
	r := rand.New(rand.NewPCG(uint64(id), 11))
	for n := 0; l.pause(2 * time.Millisecond); n++ {
		key := fmt.Sprintf("w%d-%d/%03d", id, n/1000, n%1000)
		result, a := call(l.nodes[r.IntN(len(l.nodes))], l.c.RootToken, "POST", "/v1/ack/"+key, `{"v":"`+key+`"}`, 4*time.Second)
		l.count(result, a)
		if result == written {
			l.mu.Lock()
			l.acked = append(l.acked, key)
			l.mu.Unlock()
		}
	}
}

// counter writes one secret, whose version grows, again and again.
func (l *load) counter() {
	for n := 0; l.pause(20 * time.Millisecond); n++ {
		result, a := call(l.nodes[n%len(l.nodes)], l.c.RootToken, "POST", "/v1/lin/data/counter", `{"data":{"v":"x"}}`, 3*time.Second)
		l.count(result, a)
	}
}

// localReader reads the counter from what one node holds. That must never go back. A response that the node forwards does not
// count: one that lags for longer than two seconds passes on what it does not hold yet.
func (l *load) localReader(n *harness.Node) {
	for newest := 0; l.pause(10 * time.Millisecond); {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		a, err := n.Do(ctx, "GET", "/v1/lin/data/counter", l.c.RootToken, nil, "X-Vault-No-Request-Forwarding", "1")
		cancel()
		if err != nil || a.Status != 200 {
			continue
		}
		version := parse(input{kind: 'r'}, a).version
		if version < newest {
			l.mu.Lock()
			l.back++
			l.internal = append(l.internal, fmt.Sprintf("%s shows version %d after version %d", n.ID, version, newest))
			l.mu.Unlock()
		}
		newest = max(newest, version)
	}
}

// count keeps statistics, and answers that are wrong under any fault.
func (l *load) count(result outcome, a harness.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[result]++
	odd := a.Status == 400 && !strings.Contains(string(a.Body), "check-and-set") ||
		a.Status == 403 || a.Status == 404 && strings.Contains(string(a.Body), "mount") || a.Status == 500
	if odd && len(l.internal) < 10 {
		l.internal = append(l.internal, fmt.Sprintf("status %d: %.200s", a.Status, a.Body))
	}
}

// linearizable checks what the clients saw, and returns for how many keys it cannot be.
func (s *storm) linearizable(t *testing.T) (wrong int) {
	l := s.load
	t.Logf("chaos: %d operations on registers; requests: %d written, %d refused, %d unknown", len(l.history), l.counts[written], l.counts[refused], l.counts[unknown])
	for _, text := range l.internal {
		t.Errorf("an answer that no fault excuses: %s", text)
	}
	if l.counts[written] < 100 || len(l.history) < 100 {
		t.Errorf("hardly anything happened")
	}
	for _, history := range model.Partition(l.history) {
		if porcupine.CheckOperationsTimeout(model, history, 2*time.Minute) != porcupine.Ok {
			if wrong++; wrong == 1 {
				picture(t, history)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("what clients saw of %d keys is not linearizable", wrong)
	}
	return wrong
}

func picture(t *testing.T, history []porcupine.Operation) {
	result, info := porcupine.CheckOperationsVerbose(model, history, 2*time.Minute)
	file := filepath.Join(os.TempDir(), fmt.Sprintf("coffer-history-%d.html", os.Getpid()))
	if err := porcupine.VisualizePath(model, info, file); err != nil {
		t.Logf("saving the picture: %v", err)
	}
	t.Logf("a history is %v, see %s", result, file)
}

// acknowledged checks on every node that nothing acknowledged is missing, and returns how much is, on all of them together.
func (s *storm) acknowledged(t *testing.T) (lost int) {
	leader := s.Leader()
	last := leader.MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
	for _, n := range s.Nodes {
		lost += checkAcked(t, n, s.RootToken, last.Header.Get("X-Vault-Index"), s.load.acked)
	}
	t.Logf("chaos: %d acknowledged writes were looked for on all %d nodes", len(s.load.acked), len(s.Nodes))
	return lost
}

// checkAcked wants all the keys on one node itself, once it has the state that index stands for, and returns how many it lacks.
func checkAcked(t *testing.T, n *harness.Node, token, index string, keys []string) (missing int) {
	t.Helper()
	have := map[string]bool{}
	ask := func(method, path string) (a harness.Answer) {
		t.Helper()
		harness.Await(t, n.ID+" to answer "+path, time.Minute, func() (err error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			a, err = n.Do(ctx, method, "/v1/ack/"+path, token, nil, "X-Vault-Index", index, "X-Vault-No-Request-Forwarding", "true")
			if err == nil && a.Status != 200 && a.Status != 404 { // 412: it has not caught up yet; 307: far from it
				err = fmt.Errorf("status %d: %.200s", a.Status, a.Body)
			}
			return err
		})
		return a
	}
	for _, dir := range folders(keys) {
		a := ask("LIST", dir)
		var out struct{ Data struct{ Keys []string } }
		a.Decode(t, &out)
		for _, key := range out.Data.Keys {
			have[dir+key] = true
		}
	}
	for i, key := range keys {
		if !have[key] {
			if missing++; missing <= 5 {
				t.Errorf("%s lacks %s, which was acknowledged", n.ID, key)
			}
			continue
		}
		if i%(len(keys)/100+1) != 0 {
			continue
		}
		if a := ask("GET", key); !strings.Contains(string(a.Body), `"v":"`+key+`"`) {
			t.Errorf("%s on %s: status %d: %.200s", key, n.ID, a.Status, a.Body)
		}
	}
	if missing > 0 {
		t.Errorf("%s lacks %d of %d acknowledged writes", n.ID, missing, len(keys))
	}
	return missing
}

// folders returns the folders of the keys, each with its slash.
func folders(keys []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, key := range keys {
		dir := key[:strings.LastIndexByte(key, '/')+1]
		if !seen[dir] {
			seen[dir] = true
			out = append(out, dir)
		}
	}
	return out
}
