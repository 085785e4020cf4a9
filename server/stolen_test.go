package server_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// What an attacker can do who has a secondary: its certificate, and all that it stores.

// forge makes a batch token with the key that all clusters of a set have, as no cluster of ours would.
func forge(t *testing.T, key []byte, policies ...string) string {
	t.Helper()
	const purpose = "coffer batch token 1"
	text, err := json.Marshal(map[string]any{"v": 1, "p": policies, "n": "root", "w": "auth/token/create", "c": time.Now().UnixNano(), "t": time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	random := make([]byte, 24)
	rand.Read(random)
	derived, err := hkdf.Expand(sha256.New, key, purpose+"\x00"+string(random[:12]), 32)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	return "hvb." + base64.RawURLEncoding.EncodeToString(aead.Seal(random, random[12:], text, []byte(purpose)))
}

// batchKey is the key as an attacker reads it who has the whole of a secondary.
func (in *instance) batchKey() []byte {
	in.t.Helper()
	e, err := in.store.Get(context.Background(), "s/sys/set/keys")
	if err != nil {
		in.t.Fatal(err)
	}
	var keys struct {
		Batch []byte `json:"batch"`
	}
	if err := json.Unmarshal(e.Value, &keys); err != nil {
		in.t.Fatal(err)
	}
	return keys.Batch
}

// TestForgedBatchTokens: the key of batch tokens, which every secondary has, makes no root tokens.
func TestForgedBatchTokens(t *testing.T) {
	primary, secondary, _ := follow(t)
	key := secondary.batchKey()
	primary.must(forge(t, key, "default"), engines.Read, "auth/token/lookup-self", "") // the forgery is a good one
	for _, policies := range [][]string{{"root"}, {"default", "root"}, {"Root"}, {" root "}, {"response-wrapping"}} {
		if _, err := primary.do(forge(t, key, policies...), engines.Read, "sys/mounts", ""); kind(err) != engines.KindDenied {
			t.Errorf("a forged batch token with the policies %q: %v, want denied", policies, err)
		}
	}
}

// TestRevokedSecondaryHasNoKey: a secondary that is revoked, or a set that a cluster leaves, takes the key of its batch
// tokens along. It is worth nothing afterwards.
func TestRevokedSecondaryHasNoKey(t *testing.T) {
	primary := start(t)
	primary.must(primary.root, engines.Update, "sys/replication/performance/primary/enable", `{}`)
	enrolled := func(id string) {
		t.Helper()
		value := `{"format":1,"id":"` + id + `","state":"active","cluster_id":"cluster-` + id + `","enrolment":"e"}`
		primary.plant(storage.Key("l/replication/secondary/"+hex.EncodeToString([]byte(id))), value)
	}
	primary.must(primary.root, engines.Update, "sys/policies/acl/admin", `{"policy":"path \"*\" { capabilities = [\"read\",\"sudo\"] }"}`)
	for name, leave := range map[string]func(){
		"revoked": func() {
			primary.must(primary.root, engines.Update, "sys/replication/performance/primary/revoke-secondary", `{"id":"b"}`)
		},
		"disabled": func() {
			primary.must(primary.root, engines.Update, "sys/replication/performance/primary/disable", `{}`)
			primary.must(primary.root, engines.Update, "sys/replication/performance/primary/enable", `{}`)
		},
	} {
		enrolled("b")
		token := forge(t, primary.batchKey(), "admin")
		primary.must(token, engines.Read, "sys/mounts", "")
		leave()
		if _, err := primary.do(token, engines.Read, "sys/mounts", ""); kind(err) != engines.KindDenied {
			t.Errorf("%s: a batch token forged with the key of before: %v, want denied", name, err)
		}
	}
	// A token that was never used has taken nothing along.
	token := forge(t, primary.batchKey(), "admin")
	primary.plant(storage.Key("l/replication/secondary/"+hex.EncodeToString([]byte("c"))), `{"format":1,"id":"c","state":"issued"}`)
	primary.must(primary.root, engines.Update, "sys/replication/performance/primary/revoke-secondary", `{"id":"c"}`)
	primary.must(token, engines.Read, "sys/mounts", "")
}

// TestStolenSecondaryKeepsToItsScope: whatever policies it claims, what its filter excludes can neither be read, nor changed,
// nor removed, nor told from what does not exist.
func TestStolenSecondaryKeepsToItsScope(t *testing.T) {
	primary, _, w := follow(t)
	root := primary.root
	primary.must(root, engines.Update, "sys/policies/acl/admin", `{"policy":"path \"*\" { capabilities = [\"create\",\"read\",\"update\",\"delete\",\"list\",\"sudo\"] }"}`)
	primary.must(root, engines.Update, "sys/mounts/hidden", `{"type":"kv"}`)
	primary.must(root, engines.Update, "hidden/x", `{"k":"treasure"}`)
	primary.must(root, engines.Update, "sys/mounts/private", `{"type":"kv","local":true}`)
	primary.must(root, engines.Update, "sys/namespaces/dark", `{}`)
	primary.must(root, engines.Update, "sys/namespaces/light", `{}`)
	primary.mustIn("dark", root, engines.Update, "sys/mounts/kv", `{"type":"kv"}`)
	primary.must(root, engines.Update, "sys/namespaces/dim", `{}`)
	primary.mustIn("dim", root, engines.Update, "sys/mounts/kv", `{"type":"kv"}`)
	if _, err := w.primary.do(root, engines.Update, "sys/replication/performance/primary/paths-filter/b", `{"mode":"deny","paths":["hidden/","dark/","dim/kv/"]}`); err != nil {
		t.Fatal(err)
	}
	call := func(op engines.Operation, namespace, path, body string) string {
		payload, err := json.Marshal(map[string]any{
			"id": "x", "op": op, "namespace": namespace, "path": path, "body": json.RawMessage(body), "remote": "127.0.0.1:1",
			"caller": map[string]any{"namespace": "root", "policies": []string{"admin"}, "type": "service"},
		})
		if err != nil {
			t.Fatal(err)
		}
		answer, _, err := w.Call(context.Background(), "request", payload)
		if err != nil {
			t.Fatalf("%s %s: %v", op, path, err)
		}
		return string(answer)
	}
	for _, tt := range []struct {
		op              engines.Operation
		namespace, path string
		body            string
	}{
		{engines.Read, "", "hidden/x", "{}"},
		{engines.Update, "", "hidden/x", `{"k":"v"}`},
		{engines.Delete, "", "sys/mounts/hidden", "{}"},
		{engines.Update, "", "sys/mounts/hidden/tune", `{"description":"x"}`},
		{engines.Update, "", "sys/mounts/private/tune", `{"description":"x"}`},
		{engines.Delete, "", "sys/mounts/private", "{}"},
		{engines.Delete, "", "sys/mounts/dark/kv", "{}"},
		{engines.Update, "", "sys/mounts/dark/other", `{"type":"kv"}`},
		{engines.Delete, "", "sys/namespaces/dark", "{}"},
		{engines.Delete, "", "sys/namespaces/dim", "{}"}, // it holds what is denied
		{engines.Patch, "", "sys/namespaces/dark", `{"custom_metadata":{"a":"b"}}`},
		{engines.Update, "", "sys/namespaces/dark/below", "{}"},
		{engines.Update, "dark", "sys/policies/acl/x", `{"policy":"path \"*\" { capabilities = [\"read\"] }"}`},
		{engines.Update, "", "sys/remount", `{"from":"hidden","to":"shown"}`},
		{engines.Read, "", "sys/mounts", "{}"},
		{engines.Read, "", "sys/mounts/hidden", "{}"},
		{engines.List, "", "sys/namespaces", "{}"},
		{engines.Read, "", "sys/namespaces/dark", "{}"},
		{engines.Read, "", "sys/internal/ui/mounts/hidden", "{}"},
		{engines.Read, "", "sys/internal/ui/mounts", "{}"},
		{engines.Read, "", "sys/internal/ui/namespaces", "{}"},
		{engines.Update, "", "sys/wrapping/wrap", `{"k":"v"}`},
		{engines.Update, "", "sys/leases/revoke-prefix/hidden", "{}"},
		{engines.Update, "", "auth/token/revoke-accessor", `{"accessor":"x"}`},
		{engines.Update, "", "sys/replication/performance/primary/secondary-token", `{"id":"evil"}`},
		{engines.Delete, "", "sys/replication/performance/primary/paths-filter/b", "{}"},
	} {
		if answer := call(tt.op, tt.namespace, tt.path, tt.body); !strings.Contains(answer, `"failure"`) || strings.Contains(answer, "treasure") {
			t.Errorf("%s %s %s: %s", tt.op, tt.namespace, tt.path, answer)
		}
	}
	if data(t, primary.must(root, engines.Read, "hidden/x", ""))["k"] != "treasure" {
		t.Error("what the secondary may not have was changed")
	}
	// What it may have goes on.
	for _, namespace := range []string{"", "light"} {
		if answer := call(engines.Update, namespace, "sys/mounts/new", `{"type":"kv"}`); strings.Contains(answer, "failure") {
			t.Errorf("a mount in %q: %s", namespace, answer)
		}
	}
	if answer := call(engines.Delete, "", "sys/mounts/new", "{}"); strings.Contains(answer, "failure") {
		t.Errorf("removing what it may have: %s", answer)
	}
	if answer := call(engines.Delete, "", "sys/namespaces/light", "{}"); strings.Contains(answer, "failure") {
		t.Errorf("removing a namespace that it has all of: %s", answer)
	}
}

// plant stores an entry past everything.
func (in *instance) plant(key storage.Key, value string) {
	in.t.Helper()
	if _, err := in.store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: key, Value: []byte(value)}}}); err != nil {
		in.t.Fatal(err)
	}
}

// TestStolenSecondarySpells: what clients cannot write, secondaries cannot either.
func TestStolenSecondarySpells(t *testing.T) {
	primary, _, w := follow(t)
	primary.must(primary.root, engines.Update, "sys/policies/acl/w", `{"policy":"path \"secret/data/w/*\" { capabilities = [\"create\",\"update\"] }"}`)
	for _, bad := range []map[string]any{
		{"path": "secret/data/w/../x"}, {"path": "secret/data/w//x"}, {"path": "secret/data/w/./x"}, {"path": "secret/data/w/a\nb"},
		{"path": "secret/data/w/a\x7fb"}, {"path": "/secret/data/w/x"}, {"path": "secret/data/w/" + strings.Repeat("x", 3000)},
		{"path": "secret/data/w/ok", "id": strings.Repeat("x", 1<<20)}, {"path": "secret/data/w/ok", "namespace": strings.Repeat("x/", 1<<20)},
	} {
		request := map[string]any{
			"id": "x", "op": engines.Update, "body": json.RawMessage(`{"data":{"k":"v"}}`), "remote": "127.0.0.1:1",
			"caller": map[string]any{"namespace": "root", "policies": []string{"w"}, "type": "service"},
		}
		maps.Copy(request, bad)
		payload, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		if answer, _, err := w.Call(context.Background(), "request", payload); kind(err) != engines.KindInvalid {
			t.Errorf("%.60q: %.100s, %v, want a refusal", bad, answer, err)
		}
	}
}

// TestSecondaryLoginsAreRecorded: what a login on a secondary changes on the primary is in the primary's audit log, or does not
// happen.
func TestSecondaryLoginsAreRecorded(t *testing.T) {
	primary, _, w := follow(t)
	trail := t.TempDir() + "/audit.log"
	primary.must(primary.root, engines.Update, "sys/audit/file", `{"type":"file","options":{"file_path":"`+trail+`"}}`)
	answer, _, err := w.Call(context.Background(), "login", []byte(`{"accessor":"auth_userpass_11111111","namespace_id":"root","local":true,"alias":{"Name":"somebody"}}`))
	if err != nil || !strings.Contains(string(answer), `"entity_id":"`) {
		t.Fatalf("%s, %v", answer, err)
	}
	text, err := os.ReadFile(trail)
	if err != nil || strings.Count(string(text), `"secondary b"`) != 2 || !strings.Contains(string(text), "auth_userpass_11111111") || strings.Contains(string(text), "somebody") {
		t.Errorf("the audit log: %s, %v", text, err)
	}
}

// slowAuth lets everybody in, and something happen while it does.
type slowAuth struct {
	router *engines.Router
	during func()
}

func newSlowAuth() *slowAuth {
	s := &slowAuth{router: engines.NewRouter()}
	engines.On(s.router, engines.Update, "login", "Log in.", engines.Unauthenticated, func(context.Context, *engines.Request, *struct{}) (*engines.Response, error) {
		s.during()
		return &engines.Response{Auth: &engines.Auth{Login: &engines.Login{DisplayName: "x"}}}, nil
	})
	return s
}

func (s *slowAuth) Factory(engines.Mount) (engines.Engine, error) { return s, nil }
func (s *slowAuth) Router() *engines.Router                       { return s.router }

// TestNothingOutlivesTheWipe: a request that was under way when a cluster became a secondary, and all that it held was
// removed, leaves nothing behind: no token of a user of before works in the set.
func TestNothingOutlivesTheWipe(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/auth/slow", `{"type":"saml"}`)
	become := func(wiping bool) {
		in.role(roles.Role{Mode: roles.Secondary, ClusterID: "c", Wiping: wiping})
	}
	tokens := func() int {
		t.Helper()
		names, err := in.store.List(context.Background(), "l/token/id/", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	before := tokens()
	outlives := func(name string, wiping bool) {
		t.Helper()
		in.slow.during = func() { become(wiping) }
		if _, err := in.do("", engines.Update, "auth/slow/login", `{}`); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("a login %s: %v, want ErrUnavailable", name, err)
		}
		if n := tokens(); n > before {
			t.Errorf("a login %s left %d tokens", name, n-before)
		}
	}
	outlives("before a wipe that has ended", false)
	// Neither a change that removes nothing, nor what begins afterwards, is kept from anything.
	in.slow.during = func() {}
	in.must("", engines.Update, "auth/slow/login", `{}`)
	in.role(roles.Role{Mode: roles.Primary, ClusterID: "c"})
	in.slow.during = func() { in.role(roles.Role{Mode: roles.Secondary, ClusterID: "c", Demoted: true}) }
	in.must("", engines.Update, "auth/slow/login", `{}`)
	if _, err := in.store.Commit(context.Background(), storage.Batch{Deletes: []storage.Key{roles.RoleKey}}); err != nil {
		t.Fatal(err)
	}
	before = tokens()
	outlives("before a wipe that has begun", true) // which goes on, and takes everything
}

// dropping is a wire that keeps what it is to give its events to.
type dropping struct {
	*wire
	events chan replication.FollowEvents
}

func (d *dropping) Follow(ctx context.Context, _, _ string, _ storage.Lineage, _ traffic.Upstream, h replication.FollowEvents) error {
	d.events <- h
	<-ctx.Done()
	return ctx.Err()
}

// TestNothingOutlivesAFilter: what a unit has handed out ends before the unit does, also what was handed out at the last
// moment, and by a request that was under way.
func TestNothingOutlivesAFilter(t *testing.T) {
	for _, tt := range []struct{ name, namespace string }{{"mount", ""}, {"namespace", "team"}} {
		t.Run(tt.name, func(t *testing.T) {
			d := &dropping{wire: &wire{primary: start(t)}, events: make(chan replication.FollowEvents, 1)}
			d.primary.role(roles.Role{Mode: roles.Primary, ClusterID: "cluster-a"})
			if tt.namespace != "" {
				d.primary.must(d.primary.root, engines.Update, "sys/namespaces/team", `{}`)
			}
			d.primary.mustIn(tt.namespace, d.primary.root, engines.Update, "sys/auth/slow", `{"type":"saml"}`)
			in := startWith(t, d)
			d.secondary = in
			in.plant("l/replication/upstream", `{"format":1,"secondary_id":"b"}`)
			in.role(roles.Role{Mode: roles.Secondary, ClusterID: "cluster-b"})
			if err := d.copy(context.Background()); err != nil {
				t.Fatal(err)
			}
			events := <-d.events
			unit := "mount/" + d.primary.mustIn(tt.namespace, d.primary.root, engines.Read, "sys/auth/slow", "").data["uuid"].(string)
			if tt.namespace != "" {
				unit = "ns/" + data(t, d.primary.must(d.primary.root, engines.Read, "sys/namespaces/team", ""))["id"].(string)
			}
			login := func() string {
				r, err := in.doIn(tt.namespace, "", engines.Update, "auth/slow/login", `{}`, nil)
				if err != nil {
					return ""
				}
				return r.Auth.ClientToken
			}
			dropped := make(chan struct{})
			in.slow.during = func() {}
			early := login()
			in.slow.during = func() {
				go func() {
					defer close(dropped)
					events.BeforeDrop(context.Background(), unit)
				}()
			}
			late := login()
			<-dropped
			in.slow.during = func() {}
			for name, token := range map[string]string{"before": early, "meanwhile": late, "after": login()} {
				if token == "" {
					continue
				}
				if _, err := in.doIn(tt.namespace, token, engines.Read, "auth/token/lookup-self", "", nil); kind(err) != engines.KindDenied {
					t.Errorf("a token that was made %s: %v, want denied", name, err)
				}
			}
			// If it comes back, nothing is kept out of it.
			anchor := storage.Key("s/sys/root/mounts/" + strings.TrimPrefix(unit, "mount/"))
			if tt.namespace == "" {
				if _, err := in.store.Commit(context.Background(), storage.Batch{Deletes: []storage.Key{anchor}}); err != nil {
					t.Fatal(err)
				}
				if err := d.copy(context.Background()); err != nil {
					t.Fatal(err)
				}
				if login() == "" {
					t.Error("a mount that came back lets no user in")
				}
			}
		})
	}
}
