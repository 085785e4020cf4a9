//go:build e2e

package migration_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// inhabited is a populated server, from which a team moves.
type inhabited struct {
	*server
	jwt    *ecdsa.PrivateKey // signs tokens of workloads; nil without the method
	mounts []kvMount
}

type kvMount struct {
	namespace, path string
	version         int
}

const (
	perMount   = 250 // secrets; in 20 mounts
	teamSpaces = "team,team/child,ops"
)

// TestMoveIn moves a populated server to three nodes while both are in use, and compares all that they show.
func TestMoveIn(t *testing.T) {
	config := ""
	if dir := os.Getenv("COFFER_PLUGINS"); dir != "" {
		config = fmt.Sprintf("\nplugin_directory = %q\n", dir)
	}
	t.Run("Coffer", func(t *testing.T) {
		from := harness.NewCluster(t, 1, harness.Options{Prefix: "s", Config: config})
		s := &inhabited{server: &server{t, from.Nodes[0].URL, from.RootToken, from.Nodes[0].HTTP, true}}
		moveIn(t, s, from.CAFile, config)
	})
	t.Run("Vault", func(t *testing.T) {
		s := startVault(t)
		moveIn(t, s, "", config)
	})
}

// startVault runs the binary in COFFER_VAULT_BINARY, a server of the family with what it has in memory.
func startVault(t *testing.T) *inhabited {
	binary := os.Getenv("COFFER_VAULT_BINARY")
	if binary == "" {
		t.Skip("COFFER_VAULT_BINARY names no server of the family")
	}
	address := fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t))
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "server", "-dev", "-dev-no-store-token", "-dev-root-token-id=root", "-dev-listen-address="+address)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	log := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the server's log ends with %.3000s", log.String()[max(0, log.Len()-3000):])
		}
	})
	s := &inhabited{server: &server{t: t, url: "http://" + address, token: "root", http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}}
	harness.Await(t, "the server", patience, func() error {
		status, _, err := s.send("GET", "sys/mounts/secret/tune", nil)
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d", status)
		}
		return err
	})
	s.do("DELETE", "sys/mounts/secret", nil)
	return s
}

func moveIn(t *testing.T, s *inhabited, ca, config string) {
	if config != "" || !s.namespaces {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		s.jwt = key
	}
	began := time.Now()
	lap := func(what string) {
		t.Logf("%5.1f s %s", time.Since(began).Seconds(), what)
		began = time.Now()
	}
	s.populate()
	if t.Failed() {
		t.FailNow()
	}
	lap("the source is populated")

	to := harness.NewCluster(t, 3, harness.Options{Config: config})
	d := &server{t, to.Nodes[0].URL, to.RootToken, to.Nodes[0].HTTP, true}
	m := &mover{t: t, to: to, dir: t.TempDir()}
	m.ledger = filepath.Join(m.dir, "ledger.jsonl")
	m.source = []string{"-rate=20000", "-source-address=" + s.url, "-source-ca-cert=" + ca, "-source-token-file=" + m.file("token", s.token)}
	if ca == "" {
		m.source = slices.Delete(m.source, 2, 3)
	}
	before := s.workloads(s.server, ca)
	lap("its clients have used it")

	live := startLive(t, to)
	plan := m.run(0, "-plan")
	s.checkPlan(plan)
	lap("-plan")
	first := m.run(0)
	// A write whose outcome was not known, as the leader changed, is done again and finds what it wrote.
	if came := first.Totals["secret"]; came["create"]+came["unchanged"] != len(s.mounts)*perMount || came["create"] == 0 {
		t.Errorf("of %d secrets came %v", len(s.mounts)*perMount, came)
	}
	took := time.Since(began)
	lap(fmt.Sprintf("import: %.0f secrets a second, with %d requests to the source", float64(first.Totals["secret"]["create"])/took.Seconds(), first.Source))

	s.follow(m, d)
	lap("-follow")
	m.run(0, "-follow-until-idle", "-interval=1ms", "-delete-gone")
	lap("-follow-until-idle")
	m.run(0, "-verify")
	lap("-verify")
	live.stop()
	lacking(t, read(s.server, true), read(d, true), plan, "secrets engine live/", "secret live/")
	live.check()
	lap("all is read and compared")

	after := s.workloads(d, to.CAFile)
	if before != after {
		t.Errorf("clients saw at the source\n%s\nand see at the destination\n%s", before, after)
	}
	lap("the clients have used the destination")
}

// parallel does something for 0 to n-1, many at once.
func parallel(n int, do func(i int)) {
	var going sync.WaitGroup
	next := atomic.Int64{}
	for range 32 {
		going.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	going.Wait()
}

func (m kvMount) at(path string) string { return in(m.namespace, m.path+"/"+path) }

// name is that of a secret in each mount, some in folders, some with characters that URLs escape.
func name(i int) string {
	switch i % 10 {
	case 0:
		return fmt.Sprintf("top%d", i)
	case 1:
		return fmt.Sprintf("a%%20b/%%C3%%BC%d", i)
	}
	return fmt.Sprintf("app%d/env%d/s%d", i%7, i%3, i)
}

// populate fills the server with something of everything that a team has.
func (s *inhabited) populate() {
	if s.namespaces {
		for i, ns := range strings.Split(teamSpaces, ",") {
			parent, name := filepath.Split(ns)
			s.write(parent+"sys/namespaces/"+name, nil)
			s.do("PATCH", parent+"sys/namespaces/"+name, fields{"custom_metadata": fields{"number": fmt.Sprint(i)}})
		}
	}
	for i := range 20 {
		m := kvMount{namespace: []string{"", "team", "team/child", "ops"}[i%4], path: fmt.Sprintf("kv%d", i), version: 2}
		if i%5 == 4 {
			m.version = 1
		}
		if i%3 == 2 {
			m.path = "deep/" + m.path
		}
		s.mounts = append(s.mounts, m)
		s.write(s.at(m.namespace, "sys/mounts/", m.path), fields{
			"type": "kv", "description": fmt.Sprintf("the mount %d", i), "options": fields{"version": fmt.Sprint(m.version)},
			"config": fields{"max_lease_ttl": fmt.Sprint(i+1, "h"), "audit_non_hmac_request_keys": []string{"path"}, "listing_visibility": "unauth"},
		})
	}
	for i, m := range s.mounts {
		if m.version != 2 {
			continue
		}
		harness.Await(s.t, "the mount "+m.path, patience, func() error { // a new mount of the family is not ready at once
			status, text, err := s.send("POST", m.at("config"), fields{"max_versions": []int{0, 2, 10}[i%3], "delete_version_after": []string{"0s", "8760h"}[i%2]})
			if err == nil && status >= 300 {
				err = fmt.Errorf("status %d: %s", status, text)
			}
			return err
		})
	}
	parallel(len(s.mounts)*perMount, func(i int) { s.secret(s.mounts[i%len(s.mounts)], i/len(s.mounts)) })
	s.access()
}

// secret writes a secret with its versions, some of them deleted and destroyed.
func (s *inhabited) secret(m kvMount, i int) {
	data := func(version int) fields {
		return fields{"password": fmt.Sprintf("%s-%d-%d", m.path, i, version), "number": json.Number("9007199254740993"), "nested": fields{"list": []any{1, "<&>", nil}}}
	}
	if m.version == 1 {
		s.write(m.at(name(i)), data(1))
		return
	}
	for version := range 1 + (i+1)%3 {
		s.write(m.at("data/"+name(i)), fields{"data": data(version)})
	}
	if i%11 == 0 {
		s.write(m.at("metadata/"+name(i)), fields{"custom_metadata": fields{"owner": "ada", "number": fmt.Sprint(i)}, "cas_required": i%2 == 0})
	}
	switch i % 12 {
	case 3:
		s.write(m.at("delete/"+name(i)), fields{"versions": []int{1, 2}})
	case 6:
		s.write(m.at("destroy/"+name(i)), fields{"versions": []int{2}})
	case 8:
		s.do("DELETE", m.at("data/"+name(i)), nil)
	}
}

// access makes policies, methods, roles, users, identities, quotas and audit devices.
func (s *inhabited) access() {
	s.write("sys/audit/file", fields{"type": "file", "options": fields{"file_path": filepath.Join(s.t.TempDir(), "audit.log")}})
	s.write("sys/policies/password/long", fields{"policy": "length = 20\nrule \"charset\" {\n  charset = \"abcdef\"\n}\n"})
	s.write("sys/quotas/rate-limit/all", fields{"rate": 1000000})
	other := "cloud"
	if !s.namespaces {
		other = "pki"
		s.write("sys/auth/directory", fields{"type": "ldap"})
	} else {
		s.write("sys/quotas/lease-count/team", fields{"max_leases": 50000, "path": "team"})
	}
	s.write("sys/mounts/other", fields{"type": other})
	s.write("identity/mfa/method/totp", fields{"issuer": "coffer"})
	s.write("auth/token/roles/ci", fields{"allowed_policies": "app0", "orphan": true, "token_period": "1h"})
	for _, ns := range []string{"", "team"} {
		if ns != "" && !s.namespaces {
			continue
		}
		for path, about := range map[string]fields{"machines": {"type": "approle", "config": fields{"default_lease_ttl": "30m"}}, "people": {"type": "userpass", "description": "people"}} {
			s.write(in(ns, "sys/auth/"+path), about)
		}
		accessor := s.show(in(ns, "sys/auth"))["people/"].(fields)["accessor"]
		var members []any
		for i := range 10 {
			m := s.mounts[0] // of the root
			if ns != "" {
				m = s.mounts[1]
			}
			policy := fmt.Sprint("app", i)
			s.write(in(ns, "sys/policies/acl/"+policy), fields{"policy": fmt.Sprintf(`path "%[1]s/data/*" { capabilities = ["read"] }
path "%[1]s/metadata/*" { capabilities = ["read", "list"] }
path "%[1]s/data/{{identity.entity.aliases.%[2]s.name}}" { capabilities = ["update"] }`, m.path, accessor)})
			s.write(in(ns, fmt.Sprint("auth/machines/role/web", i)), fields{"token_policies": policy, "token_ttl": "20m", "role_id": fmt.Sprintf("role-%d-of-%s", i, ns), "secret_id_num_uses": i})
			s.write(in(ns, fmt.Sprintf("auth/machines/role/web%d/secret-id", i)), nil)
			s.write(in(ns, fmt.Sprint("auth/people/users/ann", i)), fields{"password": "of-the-source", "token_policies": policy, "token_max_ttl": "2h"})
			id := s.write(in(ns, "identity/entity"), fields{"name": fmt.Sprint("ann", i), "policies": policy, "metadata": fields{"team": fmt.Sprint(i)}, "disabled": i == 7})["id"]
			s.write(in(ns, "identity/entity-alias"), fields{"name": fmt.Sprint("ann", i), "canonical_id": id, "mount_accessor": accessor, "custom_metadata": fields{"k": "v"}})
			members = append(members, id)
		}
		inner := s.write(in(ns, "identity/group"), fields{"name": "inner", "policies": "app1", "member_entity_ids": members[:5]})["id"]
		s.write(in(ns, "identity/group"), fields{"name": "outer", "metadata": fields{"a": "b"}, "member_group_ids": []any{inner}, "member_entity_ids": members[5:]})
		outside := s.write(in(ns, "identity/group"), fields{"name": "outside", "type": "external", "policies": "app2"})["id"]
		s.write(in(ns, "identity/group-alias"), fields{"name": "admins", "canonical_id": outside, "mount_accessor": accessor})
	}
	if s.jwt == nil {
		return
	}
	der, err := x509.MarshalPKIXPublicKey(&s.jwt.PublicKey)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("sys/auth/jwt", fields{"type": "jwt"})
	s.write("auth/jwt/config", fields{"jwt_validation_pubkeys": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), "bound_issuer": "https://ci.example.com"})
	s.write("auth/jwt/role/app", fields{
		"role_type": "jwt", "user_claim": "sub", "bound_audiences": "coffer", "bound_claims": fields{"project": "web"}, "token_policies": "app0", "token_ttl": "10m",
	})
	s.write("auth/jwt/role/zero", fields{"role_type": "jwt", "user_claim": "sub", "bound_claims": fields{"level": "0"}})
}

// workload is the signed token of one.
func (s *inhabited) workload() string {
	encode, now := base64.RawURLEncoding.EncodeToString, time.Now().Unix()
	claims, err := json.Marshal(fields{"iss": "https://ci.example.com", "aud": "coffer", "sub": "job", "project": "web", "iat": now - 1, "nbf": now - 1, "exp": now + 3600})
	if err != nil {
		s.t.Fatal(err)
	}
	signed := encode([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + encode(claims)
	digest := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, s.jwt, digest[:])
	if err != nil {
		s.t.Fatal(err)
	}
	return signed + "." + encode(append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...))
}

// checkPlan looks for what cannot come in the plan, and counts the deleted versions that it speaks of.
func (s *inhabited) checkPlan(plan report) {
	plan.wantTotal(s.t, "secret", "create", len(s.mounts)*perMount)
	plan.reason(s.t, "skip", "audit device", "", "file/")
	plan.reason(s.t, "skip", "token", "", "all tokens and leases")
	plan.reason(s.t, "skip", "mfa method", "", "all")
	plan.reason(s.t, "skip", "secrets engine", "", "other/")
	if !s.namespaces {
		plan.reason(s.t, "skip", "auth method", "", "directory/")
	}
	deleted := map[string]int{}
	for at, value := range read(s.server, false) {
		if at.kind != "secret" {
			continue
		}
		about, _ := value.(fields)["about"].(fields)
		versions, _ := about["versions"].(fields)
		for _, one := range versions {
			if v := one.(fields); v["deletion_time"] != nil && v["destroyed"] != true {
				if gone, err := time.Parse(time.RFC3339, v["deletion_time"].(string)); err == nil && gone.Before(time.Now()) {
					deleted[at.namespace+" "+s.mountOf(at)]++
				}
			}
		}
	}
	for _, m := range s.mounts {
		ns, path := m.namespace, m.path+"/"
		if !s.namespaces {
			ns, path = "", in(m.namespace, path)
		}
		if n := deleted[ns+" "+path]; n > 0 {
			if reason := plan.reason(s.t, "skip", "secret version", ns, path); !strings.HasPrefix(reason, fmt.Sprint(n, " deleted versions")) {
				s.t.Errorf("%s has %d deleted versions; the plan says %s", path, n, reason)
			}
		}
	}
}

// mountOf is the path of the mount that a secret is in.
func (s *inhabited) mountOf(at thing) string {
	for _, m := range s.mounts {
		path := m.path + "/"
		if !s.namespaces {
			path = in(m.namespace, path)
		} else if m.namespace != at.namespace {
			continue
		}
		if strings.HasPrefix(at.name, path) {
			return path
		}
	}
	return ""
}

// follow has the source written to while its changes come over, until they all have.
func (s *inhabited) follow(m *mover, d *server) {
	t := s.t
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	cmd := m.command(ctx, "-follow", "-interval=200ms")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = patience
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	done, writes := make(chan struct{}), atomic.Int64{}
	var going sync.WaitGroup
	last := s.mounts[len(s.mounts)-1] // of version 1
	for w := range 3 {
		going.Go(func() {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-pace.C:
				}
				s.change(w, n, last)
				writes.Add(1)
			}
		})
	}
	// A secret that was written when this had arrived is found by the next look at the source only, which began after the other writes.
	marker := func(path string) {
		s.write(last.at(path), fields{"x": path})
		harness.Await(t, path, 3*patience, func() error {
			select {
			case err := <-ended:
				t.Fatalf("-follow ended: %v\n%s", err, out.String())
			default:
			}
			status, _, err := d.send("GET", last.at(path), nil)
			if err == nil && status != 200 {
				err = fmt.Errorf("status %d", status)
			}
			return err
		})
	}
	marker("late/z1")
	close(done)
	going.Wait()
	marker("late/z2")
	marker("late/z3")
	stop()
	if err := <-ended; cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("-follow ended with %v:\n%s", err, out.String())
	}
	t.Logf("while -follow ran, the source got %d changes", writes.Load())
}

// change is the n-th change that a writer makes at the source.
func (s *inhabited) change(writer, n int, last kvMount) {
	m := s.mounts[2+(n*7+writer)%(len(s.mounts)-2)] // those before have what clients read
	i := (n*13 + writer*83) % perMount
	if i%3 != writer { // each has secrets of its own
		i = (i - i%3 + writer) % perMount
	}
	if m.version == 1 || n%10 == 9 {
		s.write(last.at(fmt.Sprintf("late/w%d-%d", writer, n%5)), fields{"x": fmt.Sprint(n)})
		return
	}
	method, path := "POST", m.at("data/"+name(i))
	var body any = fields{"data": fields{"password": fmt.Sprint("changed ", n)}}
	switch n % 10 {
	case 1:
		path, body = m.at("delete/"+name(i)), fields{"versions": []int{1}}
	case 2:
		path, body = m.at("destroy/"+name(i)), fields{"versions": []int{1}}
	case 3:
		method, path, body = "PATCH", m.at("metadata/"+name(i)), fields{"custom_metadata": fields{"changed": fmt.Sprint(n)}}
	case 4:
		path = m.at(fmt.Sprintf("data/new/w%d-%d", writer, n))
	case 5:
		path, body = s.at(m.namespace, "sys/policies/acl/", "late"), fields{"policy": fmt.Sprintf(`path "late/%d" { capabilities = ["read"] }`, n)}
	case 6:
		method, path, body = "DELETE", m.at("metadata/"+name(i)), nil
	default:
		if i%11 == 0 {
			return // it may need the newest version's number
		}
	}
	if status, text, err := s.send(method, path, body); err != nil || status >= 300 && status != 404 { // for it may have been deleted before
		s.t.Errorf("%s %s: status %d, %v: %.300s", method, path, status, err, text)
	}
}

// live is the use of the destination by those who are there already.
type live struct {
	t    *testing.T
	to   *harness.Cluster
	done chan struct{}
	end  sync.WaitGroup

	mu     sync.Mutex
	acked  map[string]int
	errors int
	ops    int
}

// startLive writes and reads through each node, with the client of the family, until stop is called.
func startLive(t *testing.T, to *harness.Cluster) *live {
	to.Create("/v1/sys/mounts/live", fields{"type": "kv", "options": fields{"version": "2"}})
	l := &live{t: t, to: to, done: make(chan struct{}), acked: map[string]int{}}
	for i, node := range to.Nodes {
		client := node.Client(to.RootToken)
		l.end.Go(func() {
			pace := time.NewTicker(50 * time.Millisecond)
			defer pace.Stop()
			for n := 1; ; n++ {
				select {
				case <-l.done:
					return
				case <-pace.C:
					l.use(client, fmt.Sprintf("w%d/s%d", i, n%50), n)
				}
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

// use writes a secret and reads it.
func (l *live) use(client *api.Client, path string, n int) {
	_, err := client.KVv2("live").Put(context.Background(), path, fields{"n": n})
	if err == nil {
		l.mu.Lock()
		l.acked[path] = n
		l.mu.Unlock()
		_, err = client.Logical().Read("live/metadata/" + path)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops++
	if err != nil {
		l.errors++
	}
}

func (l *live) stop() {
	l.mu.Lock()
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.mu.Unlock()
	l.end.Wait()
}

// check reads what was acknowledged.
func (l *live) check() {
	client := l.to.Leader().Client(l.to.RootToken)
	for path, n := range l.acked {
		secret, err := client.KVv2("live").Get(context.Background(), path)
		if err != nil {
			l.t.Errorf("live/%s: %v", path, err)
			continue
		}
		if got, err := secret.Data["n"].(json.Number).Int64(); err != nil || int(got) < n {
			l.t.Errorf("live/%s has %v, and %d was acknowledged", path, secret.Data["n"], n)
		}
	}
	l.t.Logf("meanwhile the destination served %d uses of its own, %d with an error", l.ops, l.errors)
	if l.errors*20 > l.ops {
		l.t.Errorf("%d of %d uses ended with an error", l.errors, l.ops)
	}
}

// workloads are what clients do at a server that they know nothing else of; it returns what they saw. What does not move, which is secret
// ids and passwords, is made again first.
func (s *inhabited) workloads(at *server, ca string) string {
	t := s.t
	seen := fields{}
	for _, ns := range []string{"", "team"} {
		if ns != "" && !s.namespaces {
			continue
		}
		at.write(in(ns, "auth/people/users/ann3/password"), fields{"password": "a new one"})
		secret := fmt.Sprint(at.write(in(ns, "auth/machines/role/web3/secret-id"), nil)["secret_id"])
		m := s.mounts[0]
		if ns != "" {
			m = s.mounts[1]
		}
		for kind, login := range map[string]fields{
			"auth/machines/login":    {"role_id": "role-3-of-" + ns, "secret_id": secret},
			"auth/people/login/ann3": {"password": "a new one"},
		} {
			seen[ns+" "+kind] = s.client(at, ca, ns, m, kind, login)
		}
		if ns == "" && s.jwt != nil {
			seen["jwt"] = s.client(at, ca, ns, m, "auth/jwt/login", fields{"role": "app", "jwt": s.workload()})
		}
		seen[ns+" hvac"] = s.hvac(at, ca, fields{
			"namespace": ns, "mount": m.path, "names": []string{"top0", "a b/ü1", "app2/env2/s2"}, "role_id": "role-3-of-" + ns,
			"secret_id": fmt.Sprint(at.write(in(ns, "auth/machines/role/web3/secret-id"), nil)["secret_id"]), "username": "ann3", "password": "a new one",
		})
	}
	text, err := json.MarshalIndent(seen, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// client logs in with the family's client, reads secrets, and tries what it may not do.
func (s *inhabited) client(at *server, ca, ns string, m kvMount, path string, login fields) fields {
	t := s.t
	config := api.DefaultConfig()
	config.Address, config.MaxRetries = at.url, 0
	if ca != "" {
		if err := config.ConfigureTLS(&api.TLSConfig{CACert: ca}); err != nil {
			t.Fatal(err)
		}
	}
	client, err := api.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	client.ClearToken()
	if ns != "" {
		client.SetNamespace(ns)
	}
	auth, err := client.Logical().Write(path, login)
	if err != nil || auth.Auth == nil {
		t.Errorf("%s at %s: %v", path, at.url, err)
		return nil
	}
	client.SetToken(auth.Auth.ClientToken)
	seen := fields{"policies": auth.Auth.Policies, "identity policies": auth.Auth.IdentityPolicies, "ttl": auth.Auth.LeaseDuration}
	for _, name := range []string{"top0", "top10", "app2/env2/s2", "app0/env1/s7"} {
		secret, err := client.KVv2(m.path).Get(context.Background(), name)
		if err != nil {
			t.Errorf("%s reads %s: %v", path, name, err)
			continue
		}
		seen[name] = secret.Data
	}
	_, err = client.KVv2(m.path).Put(context.Background(), "not-mine", fields{"a": "b"})
	var denied *api.ResponseError
	if !errors.As(err, &denied) || denied.StatusCode != 403 {
		t.Errorf("%s writes what it may not: %v", path, err)
	}
	return seen
}

// hvac runs test/e2e/clients/hvac_move.py where hvac is installed.
func (s *inhabited) hvac(at *server, ca string, about fields) any {
	t := s.t
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	clients := filepath.Join(root, "test", "e2e", "clients")
	python := filepath.Join(clients, "venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		t.Log("hvac is not installed: test/e2e/clients/run does it")
		return nil
	}
	text, err := json.Marshal(about)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "hvac_move.py")
	cmd.Dir, cmd.Stdin, cmd.Env = clients, bytes.NewReader(text), append(os.Environ(), "VAULT_ADDR="+at.url, "VAULT_CACERT="+ca)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("hvac: %v\n%s", err, errs.String())
	}
	return string(out)
}
