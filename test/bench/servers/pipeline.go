package servers

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/argon2"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// Pipeline measures what people and programs do around secrets: logins, wrapping, and reads as an entity and in
// a namespace, which must be as fast as reads without.
func Pipeline(b *run.Bench, s *run.Scope) {
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	n := c.Nodes[0]
	token := prepare(s, n)
	readable(b, s, addr(n), token)
	logins(b, s, n)
	wrapping(b, s, n, token)
	person := loggedIn(s, n)
	beside(b, s, "KV read as an entity, templated default policy, 64 connections", reads(addr(n), token), reads(addr(n), person))
	inside := prepareNamespace(s, n)
	for _, as := range []struct{ who, token string }{{"its own token", inside}, {"a token of the root namespace", c.RootToken}} {
		w := reads(addr(n), as.token)
		w.Path = strings.Replace(w.Path, "/v1/", "/v1/team/", 1)
		if as.token == inside { // the first to come writes what all read
			b.Load(s, run.Work{Addr: addr(n), Method: "POST", Path: w.Path, Body: secretBody, Conns: 32, Count: 1000, Token: as.token})
		}
		beside(b, s, "KV read in a namespace, by "+as.who+", 64 connections", reads(addr(n), token), w)
	}
}

// beside adds a row for a load next to the read of an ordinary token in the root namespace.
func beside(b *run.Bench, s *run.Scope, name string, plain, own run.Work) {
	yard, o := b.Versus(s, plain, own)
	b.AddLoad(name, o, run.Row{Yardstick: yard.Rate(), Beside: "read", Target: 0.95})
}

// loggedIn returns the token of a login, which has an entity.
func loggedIn(s *run.Scope, n *harness.Node) string {
	var out struct {
		Auth struct {
			Token  string `json:"client_token"`
			Entity string `json:"entity_id"`
		}
	}
	n.MustDo("POST", "/v1/auth/userpass/login/ana", map[string]any{"password": password}).Decode(s, &out)
	if out.Auth.Entity == "" {
		s.Fatalf("a login has no entity")
	}
	return out.Auth.Token
}

const password = "correct-horse-battery-staple"

// logins measures logins by password, beside the hash that each costs, and by AppRole.
func logins(b *run.Bench, s *run.Scope, n *harness.Node) {
	n.MustDo("POST", "/v1/sys/auth/userpass", map[string]any{"type": "userpass"})
	n.MustDo("POST", "/v1/auth/userpass/users/ana", map[string]any{"password": password, "token_policies": "bench"})
	n.MustDo("POST", "/v1/sys/auth/approle", map[string]any{"type": "approle"})
	n.MustDo("POST", "/v1/auth/approle/role/app", map[string]any{"token_policies": "bench", "secret_id_num_uses": 0})
	var role struct {
		Data struct {
			RoleID   string `json:"role_id"`
			SecretID string `json:"secret_id"`
		}
	}
	n.MustDo("GET", "/v1/auth/approle/role/app/role-id", nil).Decode(s, &role)
	n.MustDo("POST", "/v1/auth/approle/role/app/secret-id", map[string]any{}).Decode(s, &role)
	hashes := hashes(b)
	b.Add(run.Row{Name: "argon2id of one password, 19 MiB, 2 passes, all cores", Value: hashes, Unit: "/s"})
	// Of one address the newest login is served first, so that of more clients some would be told to come again.
	clients := runtime.NumCPU() + 1
	o := b.Load(s, run.Work{Addr: addr(n), Method: "POST", Path: "/v1/auth/userpass/login/ana", Body: encode(map[string]string{"password": password}), Conns: clients})
	b.AddLoad(fmt.Sprintf("login by userpass, %d clients", clients), o, run.Row{Yardstick: hashes, Beside: "argon2id"})
	o = b.Load(s, run.Work{Addr: addr(n), Method: "POST", Path: "/v1/auth/approle/login", Body: encode(map[string]string{"role_id": role.Data.RoleID, "secret_id": role.Data.SecretID}), Conns: 64})
	b.AddLoad("login by approle, 64 clients", o, run.Row{})
}

func encode(v any) string {
	text, _ := json.Marshal(v) // strings always encode
	return string(text)
}

// hashes returns how many hashes of passwords this machine makes in a second, with userpass' parameters.
func hashes(b *run.Bench) float64 {
	salt := make([]byte, 16)
	rand.Read(salt)
	counts := make([]int, runtime.NumCPU())
	var workers sync.WaitGroup
	begin := time.Now()
	for i := range counts {
		workers.Go(func() {
			for time.Since(begin) < b.Seconds/3 {
				argon2.IDKey([]byte(password), salt, 2, 19*1024, 1, 32)
				counts[i]++
			}
		})
	}
	workers.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(begin).Seconds()
}

// wrapping measures reads whose answer is wrapped and unwrapped. The client is Go's own, and in this process.
func wrapping(b *run.Bench, s *run.Scope, n *harness.Node, token string) {
	const callers = 16
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var all []time.Duration
	var failure error
	var running sync.WaitGroup
	begin := time.Now()
	for i := range callers {
		running.Go(func() {
			var took []time.Duration
			var err error
			for k := i; err == nil && time.Since(begin) < b.Seconds; k += callers {
				before := time.Now()
				err = wrapOnce(client, n, token, k%1000)
				took = append(took, time.Since(before))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			if err != nil {
				failure = err
			}
		})
	}
	running.Wait()
	s.Check(failure)
	b.Add(run.Rated(fmt.Sprintf("wrapped KV read and unwrap, both, %d clients", callers), all, time.Since(begin)))
}

// wrapOnce reads one secret wrapped and opens it.
func wrapOnce(client *http.Client, n *harness.Node, token string, key int) error {
	var wrapped struct {
		Info struct{ Token string } `json:"wrap_info"`
	}
	if err := ask(client, http.MethodGet, fmt.Sprintf("%s/v1/bench/data/k%d", n.URL, key), token, "5m", &wrapped); err != nil {
		return err
	}
	var opened struct {
		Data struct{ Data map[string]any }
	}
	if err := ask(client, http.MethodPost, n.URL+"/v1/sys/wrapping/unwrap", wrapped.Info.Token, "", &opened); err != nil {
		return err
	}
	if opened.Data.Data["username"] == nil {
		return fmt.Errorf("what was unwrapped is not the secret")
	}
	return nil
}

func ask(client *http.Client, method, url, token, wrapTTL string, out any) error {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Vault-Token", token)
	if wrapTTL != "" {
		req.Header.Set("X-Vault-Wrap-TTL", wrapTTL)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", req.URL.Path, res.StatusCode)
	}
	return json.NewDecoder(res.Body).Decode(out)
}

// prepareNamespace makes team/ with a mount like that of prepare, and a token in it.
func prepareNamespace(s *run.Scope, n *harness.Node) string {
	n.MustDo("POST", "/v1/sys/namespaces/team", nil)
	n.MustDo("POST", "/v1/team/sys/mounts/bench", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	n.MustDo("POST", "/v1/team/sys/policies/acl/bench", map[string]any{"policy": policyText})
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/team/auth/token/create", map[string]any{"policies": []string{"bench"}, "ttl": "24h"}).Decode(s, &out)
	return out.Auth.Token
}
