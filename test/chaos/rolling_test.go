package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// TestRollingRestart stops the nodes with SIGTERM and starts them again, one after the other, as an upgrade
// does. Clients behind a load balancer, with nothing but the retries that their library has by default, must not
// see a single failure, and what was acknowledged must be there.
func TestRollingRestart(t *testing.T) {
	c := harness.NewCluster(t, 3, harness.Options{})
	r := startRolling(t, c)
	for range amount(2, 15) {
		for _, n := range c.Nodes {
			r.restart(t, n, n.Stop)
		}
	}
	r.stop()
	r.report(t)
	r.checkAcked(t)
}

// startRolling begins to work on the cluster.
func startRolling(t *testing.T, c *harness.Cluster) *rolling {
	t.Helper()
	leader := c.Leader()
	leader.MustDo("POST", "/v1/sys/mounts/ack", map[string]any{"type": "kv"})
	leader.MustDo("POST", "/v1/sys/auth/userpass", map[string]any{"type": "userpass"})
	leader.MustDo("POST", "/v1/sys/policies/acl/roll", map[string]any{"policy": `path "ack/*" { capabilities = ["create", "read", "update", "list"] }`})
	leader.MustDo("POST", "/v1/auth/userpass/users/ana", map[string]any{"password": "a-password", "token_policies": "roll"})
	fixed, _ := fill(t, leader, "fixed", 50)
	r := &rolling{c: c, balancer: newBalancer(t, c), token: rollToken(t, leader), fixed: fixed, done: make(chan struct{})}
	for i := range 3 {
		r.worker(fmt.Sprintf("writer %d", i), 5*time.Millisecond, r.writer(i))
	}
	for i := range 3 {
		r.worker(fmt.Sprintf("reader %d", i), 2*time.Millisecond, r.reader)
	}
	for i := range 2 {
		r.worker(fmt.Sprintf("login %d", i), 100*time.Millisecond, r.login)
		r.worker(fmt.Sprintf("wrapping %d", i), 20*time.Millisecond, r.wrapping)
	}
	t.Cleanup(r.stop)
	return r
}

// restart ends a node, starts it again, and waits until it votes and clients have been served.
func (r *rolling) restart(t *testing.T, n *harness.Node, end func()) {
	t.Helper()
	before := r.count.Load()
	end()
	n.Start()
	n.WaitHealth(200, 429)
	r.c.WaitVoters(len(r.c.Nodes))
	harness.Await(t, "requests between two restarts", time.Minute, func() error {
		if r.count.Load() < before+50 {
			return fmt.Errorf("%d were answered", r.count.Load()-before)
		}
		return nil
	})
}

// checkAcked checks every node for what was acknowledged.
func (r *rolling) checkAcked(t *testing.T) {
	t.Helper()
	last := r.c.Leader().MustDo("POST", "/v1/ack/last", map[string]any{"v": "last"})
	for _, n := range r.c.Nodes {
		checkAcked(t, n, r.c.RootToken, last.Header.Get("X-Vault-Index"), r.acked)
	}
}

func rollToken(t *testing.T, n *harness.Node) string {
	t.Helper()
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"roll"}, "ttl": "24h"}).Decode(t, &out)
	return out.Auth.Token
}

// rolling is the clients and what they have seen.
type rolling struct {
	c        *harness.Cluster
	balancer *balancer
	token    string
	fixed    []string      // keys that do not change
	done     chan struct{} // closed by stop
	once     sync.Once
	wg       sync.WaitGroup
	count    atomic.Int64 // operations that succeeded

	mu       sync.Mutex
	acked    []string
	failures []string
	slowest  time.Duration
}

func (r *rolling) stop() {
	r.once.Do(func() { close(r.done) })
	r.wg.Wait()
}

// worker repeats an operation with a client of its own.
func (r *rolling) worker(name string, pause time.Duration, do func(*api.Client, *rand.Rand) error) {
	client := r.client()
	random := rand.New(rand.NewPCG(uint64(len(name)), uint64(name[len(name)-1])))
	r.wg.Go(func() {
		for {
			select {
			case <-r.done:
				return
			case <-time.After(pause):
			}
			client.SetToken(r.token)
			began := time.Now()
			err := do(client, random)
			r.mu.Lock()
			if r.slowest = max(r.slowest, time.Since(began)); err != nil {
				r.failures = append(r.failures, fmt.Sprintf("%s: %v", name, err))
			}
			r.mu.Unlock()
			if err == nil {
				r.count.Add(1)
			}
		}
	})
}

// client is the family's client with its default retries. It names the state it has seen in its next request, so
// that another node does not show it an older one.
func (r *rolling) client() *api.Client {
	config := api.DefaultConfig()
	config.Address = r.c.Nodes[0].URL // the balancer chooses the node
	config.HttpClient = &http.Client{Transport: r.balancer, Timeout: time.Minute}
	client, err := api.NewClient(config)
	if err != nil {
		panic(err) // the configuration is fixed
	}
	var state string
	return client.
		WithRequestCallbacks(func(req *api.Request) {
			if state != "" {
				req.Headers.Set("X-Vault-Index", state)
			}
		}).
		WithResponseCallbacks(func(res *api.Response) {
			if s := res.Header.Get("X-Vault-Index"); s != "" {
				state = s
			}
		})
}

// writer writes keys of its own, and reads each back.
func (r *rolling) writer(id int) func(*api.Client, *rand.Rand) error {
	n := 0
	return func(client *api.Client, _ *rand.Rand) error {
		n++
		key := fmt.Sprintf("roll%d/%06d", id, n)
		if _, err := client.Logical().Write("ack/"+key, map[string]any{"v": key}); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
		r.mu.Lock()
		r.acked = append(r.acked, key)
		r.mu.Unlock()
		return r.read(client, key)
	}
}

func (r *rolling) reader(client *api.Client, random *rand.Rand) error {
	return r.read(client, r.fixed[random.IntN(len(r.fixed))])
}

func (r *rolling) read(client *api.Client, key string) error {
	secret, err := client.Logical().Read("ack/" + key)
	switch {
	case err != nil:
		return fmt.Errorf("reading: %w", err)
	case secret == nil:
		return fmt.Errorf("%s is not there", key)
	case secret.Data["v"] != key:
		return fmt.Errorf("%s is %v", key, secret.Data["v"])
	}
	return nil
}

// login logs in, uses the token and gives it back.
func (r *rolling) login(client *api.Client, random *rand.Rand) error {
	client.ClearToken()
	secret, err := client.Logical().Write("auth/userpass/login/ana", map[string]any{"password": "a-password"})
	if err != nil {
		return fmt.Errorf("logging in: %w", err)
	}
	client.SetToken(secret.Auth.ClientToken)
	if err := r.reader(client, random); err != nil {
		return fmt.Errorf("with a token of a login: %w", err)
	}
	var answer *api.ResponseError
	err = client.Auth().Token().RevokeSelf("")
	if errors.As(err, &answer) && answer.StatusCode == 403 && r.balancer.inDoubt(client.Token()) {
		err = nil // the first attempt took effect although its outcome was unknown: the token is gone
	}
	if err != nil {
		return fmt.Errorf("revoking a token of a login: %w", err)
	}
	return nil
}

// wrapping has an answer wrapped and unwraps it.
func (r *rolling) wrapping(client *api.Client, random *rand.Rand) error {
	key := r.fixed[random.IntN(len(r.fixed))]
	client.SetWrappingLookupFunc(func(string, string) string { return "5m" })
	wrapped, err := client.Logical().Read("ack/" + key)
	client.SetWrappingLookupFunc(nil)
	if err != nil {
		return fmt.Errorf("reading wrapped: %w", err)
	}
	if wrapped == nil || wrapped.WrapInfo == nil {
		return errors.New("the answer is not wrapped")
	}
	client.SetToken(wrapped.WrapInfo.Token)
	secret, err := client.Logical().Unwrap("")
	if err != nil {
		return fmt.Errorf("unwrapping: %w", err)
	}
	if secret == nil || secret.Data["v"] != key {
		return fmt.Errorf("what was unwrapped is not %s", key)
	}
	return nil
}

func (r *rolling) report(t *testing.T) {
	t.Helper()
	b := r.balancer
	t.Logf("rolling: %d operations, %d failed, slowest %v; %d writes acknowledged; the balancer moved on %d times",
		r.count.Load(), len(r.failures), r.slowest.Round(time.Millisecond), len(r.acked), b.moved.Load())
	for what, n := range b.counts() {
		t.Logf("rolling: the clients' library had to repeat %d requests: %s", n, what)
	}
	for i, text := range r.failures {
		if i == 20 {
			t.Errorf("and %d more", len(r.failures)-i)
			break
		}
		t.Errorf("a client saw a failure: %s", text)
	}
}

// balancer is a load balancer as a transport: it spreads requests over the nodes whose sys/health answers well,
// and turns to the next node where no connection can be made. It repeats nothing that it has sent.
type balancer struct {
	nodes []*harness.Node
	via   *http.Transport
	moved atomic.Int64
	next  atomic.Uint64

	mu       sync.Mutex
	healthy  []bool
	repeated map[string]int  // why a client's library would repeat a request
	doubtful map[string]bool // tokens with a write whose outcome the client does not know
}

func newBalancer(t *testing.T, c *harness.Cluster) *balancer {
	t.Helper()
	b := &balancer{nodes: c.Nodes, via: c.Nodes[0].HTTP.Transport.(*http.Transport).Clone(), healthy: make([]bool, len(c.Nodes)), repeated: map[string]int{}, doubtful: map[string]bool{}}
	ctx, end := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range b.nodes {
		b.healthy[i] = true
		wg.Go(func() { b.watch(ctx, i) })
	}
	t.Cleanup(func() {
		end()
		wg.Wait()
		b.via.CloseIdleConnections()
	})
	return b
}

// watch asks one node for its health until ctx ends.
func (b *balancer) watch(ctx context.Context, i int) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
		b.mark(i, slices.Contains([]int{200, 429}, b.nodes[i].Health()))
	}
}

func (b *balancer) mark(i int, healthy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.healthy[i] = healthy
}

// order returns the nodes to try: the healthy ones in turn, then the others.
func (b *balancer) order() []int {
	first := int(b.next.Add(1)) % len(b.nodes)
	b.mu.Lock()
	defer b.mu.Unlock()
	var good, bad []int
	for k := range b.nodes {
		if i := (first + k) % len(b.nodes); b.healthy[i] {
			good = append(good, i)
		} else {
			bad = append(bad, i)
		}
	}
	return append(good, bad...)
}

// RoundTrip sends the request to a node that can be reached.
func (b *balancer) RoundTrip(req *http.Request) (res *http.Response, err error) {
	var body []byte
	if req.Body != nil {
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body.Close()
	}
	for _, i := range b.order() {
		res, err = b.via.RoundTrip(to(req, b.nodes[i], body))
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" {
			b.moved.Add(1)
			b.mark(i, false)
			continue
		}
		b.note(req, res, err)
		return res, err
	}
	return nil, err
}

func to(req *http.Request, n *harness.Node, body []byte) *http.Request {
	target, err := url.Parse(n.URL)
	if err != nil {
		panic(err) // the harness made it
	}
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host, out.Host = target.Scheme, target.Host, target.Host
	if body != nil {
		out.Body, out.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(body))), nil }
	}
	return out
}

// note counts what makes the client's library try again.
func (b *balancer) note(req *http.Request, res *http.Response, err error) {
	what := ""
	switch {
	case err != nil:
		what = fmt.Sprintf("%s %s", req.Method, reason(err))
	case res.StatusCode >= 500 || res.StatusCode == http.StatusPreconditionFailed || res.StatusCode == http.StatusTooManyRequests:
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		res.Body = io.NopCloser(strings.NewReader(string(text)))
		what = fmt.Sprintf("%s status %d %s", req.Method, res.StatusCode, text)
	default:
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.repeated[what]++
	if req.Method == http.MethodPut && (err != nil || strings.Contains(what, "outcome unknown")) {
		b.doubtful[req.Header.Get("X-Vault-Token")] = true
	}
}

func (b *balancer) inDoubt(token string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.doubtful[token]
}

// reason returns the innermost text of an error of the network, without addresses.
func reason(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}

func (b *balancer) counts() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.repeated
}
