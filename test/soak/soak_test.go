// Package soak_test keeps servers busy for a while with a bit of everything, on data that does not grow, and
// checks that memory, goroutines and stored tokens do not grow either. It runs when COFFER_SOAK is a duration:
// `make soak`.
package soak_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestSoak(t *testing.T) {
	text := os.Getenv("COFFER_SOAK")
	if text == "" {
		t.Skip("set COFFER_SOAK to a duration, or run make soak")
	}
	total, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) { soak(t, nodes, total/2) })
	}
}

const (
	workers = 8
	keys    = 500
)

// sample is the size of one node's process.
type sample struct {
	memory     int64 // bytes that are not files
	goroutines int64
	files      int64 // open
}

func soak(t *testing.T, nodes int, total time.Duration) {
	c := harness.NewCluster(t, nodes, harness.Options{})
	c.Nodes[0].MustDo("POST", "/v1/sys/mounts/soak", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	c.Nodes[0].MustDo("POST", "/v1/sys/policies/acl/soak", map[string]any{"policy": `path "soak/*" { capabilities = ["read"] }`})
	l := logins(t, c)
	done := make(chan struct{})
	var load sync.WaitGroup
	var requests, failures atomic.Int64
	for i := range workers {
		load.Go(func() { work(c, l, uint64(i), done, &requests, &failures) })
	}
	// The first fifth is warm-up: caches, connections and the runtime's heap find their sizes.
	const samples = 50
	series := make([][]sample, nodes)
	for i := range samples {
		<-time.After(total / samples)
		if i < samples/5 {
			continue
		}
		for j, n := range c.Nodes {
			series[j] = append(series[j], measure(t, n))
		}
	}
	close(done)
	load.Wait()
	t.Logf("%d requests, %d failed", requests.Load(), failures.Load())
	if f, r := failures.Load(), requests.Load(); f > r/1000 || r < 1000 {
		t.Errorf("%d of %d requests failed", f, r)
	}
	for j, n := range c.Nodes {
		flat(t, n.ID, series[j])
	}
	var accessors struct{ Data struct{ Keys []string } }
	harness.Await(t, "expired tokens to be removed", time.Minute, func() error {
		c.Leader().MustDo("LIST", "/v1/auth/token/accessors", nil).Decode(t, &accessors)
		if n := len(accessors.Data.Keys); n > 50 {
			return fmt.Errorf("%d tokens are stored", n)
		}
		return nil
	})
}

// flat compares the first third of the samples with the last.
func flat(t *testing.T, id string, all []sample) {
	t.Helper()
	third := len(all) / 3
	median := func(part []sample, of func(sample) int64) int64 {
		values := make([]int64, len(part))
		for i, s := range part {
			values[i] = of(s)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	for _, m := range []struct {
		name  string
		of    func(sample) int64
		slack int64
	}{
		{"bytes of memory", func(s sample) int64 { return s.memory }, 24 << 20},
		{"goroutines", func(s sample) int64 { return s.goroutines }, 30},
		{"open files", func(s sample) int64 { return s.files }, 30},
	} {
		first, last := median(all[:third], m.of), median(all[len(all)-third:], m.of)
		t.Logf("%s: %s: %d at first, %d at last", id, m.name, first, last)
		if last > first+first/4+m.slack {
			t.Errorf("%s: %s grew from %d to %d", id, m.name, first, last)
		}
	}
}

func measure(t *testing.T, n *harness.Node) sample {
	t.Helper()
	var s sample
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			s.memory = kib << 10
		}
	}
	metrics := string(n.MustDo("GET", "/v1/sys/metrics?format=prometheus", nil).Body)
	for name, into := range map[string]*int64{"go_goroutines ": &s.goroutines, "process_open_fds ": &s.files} {
		_, rest, ok := strings.Cut(metrics, "\n"+name)
		if !ok {
			t.Fatalf("no metric %s", name)
		}
		line, _, _ := strings.Cut(rest, "\n")
		v, err := strconv.ParseFloat(line, 64)
		if err != nil {
			t.Fatal(err)
		}
		*into = int64(v)
	}
	return s
}

// work is one worker. It counts answers that are not what the request should get.
func work(c *harness.Cluster, l login, id uint64, done <-chan struct{}, requests, failures *atomic.Int64) {
	r := rand.New(rand.NewPCG(id, 5))
	for {
		select {
		case <-done:
			return
		default:
		}
		n := c.Nodes[r.IntN(len(c.Nodes))]
		key := fmt.Sprintf("/v1/soak/data/dir%d/k%d", r.IntN(10), r.IntN(keys/10))
		do := func(want int, method, path, token string, body any) harness.Answer {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			requests.Add(1)
			a, err := n.Do(ctx, method, path, token, body, wrapTTL(path)...)
			if err != nil || a.Status != want && a.Status != 404 {
				failures.Add(1)
			}
			return a
		}
		switch r.IntN(14) {
		case 0, 1, 2:
			do(200, "POST", key, c.RootToken, map[string]any{"data": map[string]any{"v": strings.Repeat("x", r.IntN(2000))}})
		case 3:
			do(200, "LIST", "/v1/soak/metadata/dir1", c.RootToken, nil)
		case 4:
			do(204, "DELETE", key, c.RootToken, nil)
		case 5:
			do(403, "GET", key, "hvs.wrong", nil)
		case 6:
			do(400, "POST", key, c.RootToken, map[string]any{"nothing": 1})
		case 7:
			token(c, do)
		case 8:
			l.use(do)
		case 9:
			wrap(c, do)
		default:
			do(200, "GET", key, c.RootToken, nil)
		}
	}
}

// token makes a token that soon expires, uses it and leaves it behind.
func token(c *harness.Cluster, do func(int, string, string, string, any) harness.Answer) {
	a := do(200, "POST", "/v1/auth/token/create", c.RootToken, map[string]any{"policies": []string{"soak"}, "ttl": "5s"})
	text, ok := field(a, "client_token")
	if !ok {
		return
	}
	do(200, "GET", "/v1/auth/token/lookup-self", text, nil)
}

// login is a role of AppRole, whose tokens soon expire.
type login struct{ RoleID, SecretID string }

func logins(t *testing.T, c *harness.Cluster) login {
	t.Helper()
	n := c.Nodes[0]
	n.MustDo("POST", "/v1/sys/auth/approle", map[string]any{"type": "approle"})
	n.MustDo("POST", "/v1/auth/approle/role/soak", map[string]any{"token_policies": "soak", "token_ttl": "5s"})
	var out struct {
		Data struct {
			RoleID   string `json:"role_id"`
			SecretID string `json:"secret_id"`
		}
	}
	n.MustDo("GET", "/v1/auth/approle/role/soak/role-id", nil).Decode(t, &out)
	n.MustDo("POST", "/v1/auth/approle/role/soak/secret-id", map[string]any{}).Decode(t, &out)
	return login(out.Data)
}

// use logs in, reads as an entity and leaves the token behind.
func (l login) use(do func(int, string, string, string, any) harness.Answer) {
	a := do(200, "POST", "/v1/auth/approle/login", "", map[string]any{"role_id": l.RoleID, "secret_id": l.SecretID})
	if text, ok := field(a, "client_token"); ok {
		do(200, "GET", "/v1/auth/token/lookup-self", text, nil)
	}
}

// wrap has data wrapped. Every other time it is not opened, and has to expire.
func wrap(c *harness.Cluster, do func(int, string, string, string, any) harness.Answer) {
	a := do(200, "POST", "/v1/sys/wrapping/wrap", c.RootToken, map[string]any{"v": "wrapped"})
	if text, ok := field(a, "token"); ok && rand.IntN(2) == 0 {
		do(200, "POST", "/v1/sys/wrapping/unwrap", text, nil)
	}
}

// wrapTTL is the header for a request whose answer is to be wrapped.
func wrapTTL(path string) []string {
	if strings.HasSuffix(path, "wrapping/wrap") {
		return []string{"X-Vault-Wrap-TTL", "5s"}
	}
	return nil
}

// field returns a text of an answer.
func field(a harness.Answer, name string) (string, bool) {
	_, rest, ok := strings.Cut(string(a.Body), `"`+name+`":"`)
	text, _, _ := strings.Cut(rest, `"`)
	return text, ok
}
