package server_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cubbyhole"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/kv"
	"github.com/coffer-project/coffer/engines/userpass"
	"github.com/coffer-project/coffer/server"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/freespace"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/server/lifecycle/passport"
	"github.com/coffer-project/coffer/server/lifecycle/rawstore"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/server/system"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/barrier"
)

// memory is a replicated state and a cluster of one, in memory.
type memory struct {
	*lifecycletest.State
	mu     sync.Mutex
	leader bool
	behind time.Duration  // how old the state may be
	differ error          // what comparing the states of the members ends with
	alone  bool           // no other node has room for more data; this one has none
	older  bool           // a member of the cluster is of an older version
	peers  []members.Peer // what the cluster says it consists of

	onRead, onClose func() // called by ReadIndex and Close of the cluster
}

// hooks makes the cluster call functions; nil is none.
func (m *memory) hooks(onRead, onClose func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onRead, m.onClose = onRead, onClose
}

func (m *memory) hook(which func() func()) {
	m.mu.Lock()
	fn := which()
	m.mu.Unlock()
	if fn != nil {
		fn()
	}
}

// lead makes the node leader or not.
func (m *memory) lead(leader bool) {
	m.mu.Lock()
	m.leader = leader
	m.mu.Unlock()
	select {
	case m.Changes <- struct{}{}:
	default:
	}
}

// member is the cluster side of memory.
type member struct {
	lifecycletest.Cluster
	m *memory
}

func (m member) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if !m.IsLeader() {
		return 0, storage.ErrReadOnly
	}
	return m.State.Commit(ctx, b)
}
func (m member) ReadIndex(context.Context) (storage.Index, error) {
	m.m.hook(func() func() { return m.m.onRead })
	return m.State.AppliedIndex(), nil
}
func (m member) IsLeader() bool               { m.m.mu.Lock(); defer m.m.mu.Unlock(); return m.m.leader }
func (m member) Leader() (members.Peer, bool) { return members.Peer{ID: "n1"}, true }
func (m member) Roomier() bool                { m.m.mu.Lock(); defer m.m.mu.Unlock(); return !m.m.alone }
func (m member) Behind() time.Duration        { m.m.mu.Lock(); defer m.m.mu.Unlock(); return m.m.behind }
func (m member) Compare(context.Context) error {
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	return m.m.differ
}
func (m member) Current() bool { return m.Behind() >= 0 && m.Behind() < 10*time.Second }
func (m member) Peers() ([]members.Peer, error) {
	m.m.mu.Lock()
	defer m.m.mu.Unlock()
	return m.m.peers, nil
}
func (m member) FormatsAgreed() bool { m.m.mu.Lock(); defer m.m.mu.Unlock(); return !m.m.older }
func (m member) Close(context.Context) error {
	m.m.hook(func() func() { return m.m.onClose })
	return nil
}

// instance is an unsealed, active server with a kv version 2 mount at secret/.
type instance struct {
	*server.Server
	t     testing.TB
	state *memory
	root  string
	key   string

	leases  *enginetest.Leases // mounted at "leases/"
	slow    *slowAuth
	workers *workers
	store   storage.Store // plaintext, without the fence
	sync    *syncing
}

func start(t testing.TB) *instance {
	t.Helper()
	return startWith(t, nil)
}

// startWith is start with a link to other clusters.
// raft is lifecycle.Raft: of a cluster in memory.
type raft struct{ m *memory }

func (raft) NewCA() (passport.CA, error) { return passport.CA{}, nil }

func (raft) NewKey() (private, public []byte, err error) {
	return []byte("private"), []byte("public"), nil
}

func (r raft) OpenCluster(context.Context, passport.Passport) (members.Cluster, error) {
	return member{lifecycletest.Cluster{State: r.m.State}, r.m}, nil
}

func startWith(t testing.TB, link traffic.Link) *instance {
	t.Helper()
	state := &memory{State: lifecycletest.NewState(), leader: true}
	router := rawstore.New(state, nil)
	leases, slow, workers := enginetest.NewLeases(), newSlowAuth(), &workers{}
	store := lifecycletest.Barrier{Barrier: barrier.New(router)}
	syncs := &syncing{}
	s := server.New(server.Options{
		Config: func() map[string]any { return nil },
		Link:   link,
		Sync:   func(h engines.Host) server.SecretSync { syncs.Host = h; return syncs },
		Factories: map[string]engines.Factory{
			"kv": kv.New, "cubbyhole": cubbyhole.New, "userpass": userpass.New, "leases": leases.Factory,
			"saml": slow.Factory, "worker": workers.Factory,
		},
		Version: system.Version{API: "1.21.0", Product: "test"}, TempDir: t.TempDir(), DataDir: t.TempDir(), FreeSpace: server.FreeSpace{Minimum: math.MaxInt64 / 2}, AuditFiles: device.Files{Roots: []string{os.TempDir()}},
		Lifecycle: lifecycle.Options{
			NodeID: "n1", Raw: state, Router: router, Barrier: store,
			Raft: raft{state},
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("stopping: %v", err)
		}
	})
	in := &instance{Server: s, t: t, state: state, leases: leases, slow: slow, workers: workers, store: store, sync: syncs}
	result, err := s.Node().Init(ctx, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	in.root, in.key = result.RootToken, base64.StdEncoding.EncodeToString(result.KeyShares[0])
	in.unseal()
	in.must(in.root, engines.Update, "sys/mounts/secret", `{"type":"kv-v2"}`)
	in.must(in.root, engines.Update, "sys/mounts/leases", `{"type":"leases"}`)
	return in
}

func (in *instance) unseal() {
	in.t.Helper()
	if _, err := in.Node().Unseal(context.Background(), in.key, false); err != nil {
		in.t.Fatal(err)
	}
	in.until(in.Active, "the node did not become active")
}

func (in *instance) until(cond func() bool, what string) {
	in.t.Helper()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-deadline:
			in.t.Fatal(what)
		case <-time.After(time.Millisecond):
		}
	}
}

func (in *instance) do(token string, op engines.Operation, path, body string) (*pipeline.Reply, error) {
	return in.doIn("", token, op, path, body, nil)
}

// doIn is do in a namespace, with headers.
func (in *instance) doIn(ns, token string, op engines.Operation, path, body string, header map[string]string) (*pipeline.Reply, error) {
	req := &pipeline.Request{
		Namespace: ns,
		ID:        "r", Op: op, Path: path, Token: engines.Sensitive(token), Header: http.Header{},
		Remote: netip.MustParseAddrPort("127.0.0.1:5000"),
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	if body != "" {
		req.Body = json.RawMessage(body)
	}
	return in.Requests().Handle(context.Background(), req)
}

func (in *instance) must(token string, op engines.Operation, path, body string) *pipeline.Reply {
	in.t.Helper()
	r, err := in.do(token, op, path, body)
	if err != nil {
		in.t.Fatalf("%s %s: %v", op, path, err)
	}
	return r
}

// data returns the reply's data as a client decodes it.
func data(t testing.TB, r *pipeline.Reply) map[string]any {
	t.Helper()
	text, err := json.Marshal(r.Data)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func kind(err error) engines.Kind {
	var e *engines.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return -1
}

func (in *instance) token(policies string) string {
	in.t.Helper()
	return in.must(in.root, engines.Update, "auth/token/create", `{"policies":["`+policies+`"]}`).Auth.ClientToken
}

func TestPipelineDecides(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	in.must(in.root, engines.Update, "sys/policies/acl/reader", `{"policy":"path \"secret/data/app\" { capabilities = [\"read\"] }"}`)
	reader := in.token("reader")
	tests := []struct {
		name, token string
		op          engines.Operation
		path, body  string
		want        engines.Kind
	}{
		{"allowed", reader, engines.Read, "secret/data/app", "", 0},
		{"another path", reader, engines.Read, "secret/data/other", "", engines.KindDenied},
		{"another operation", reader, engines.Update, "secret/data/app", `{"data":{}}`, engines.KindDenied},
		{"delete", reader, engines.Delete, "secret/data/app", "", engines.KindDenied},
		{"no mount there, and no right to know", reader, engines.Read, "nowhere/x", "", engines.KindDenied},
		{"no mount there", in.root, engines.Read, "nowhere/x", "", engines.KindNotFound},
		{"no token", "", engines.Read, "secret/data/app", "", engines.KindDenied},
		{"no such token", "hvs.none", engines.Read, "secret/data/app", "", engines.KindDenied},
		{"sudo path without sudo", reader, engines.Update, "sys/seal", "", engines.KindDenied},
		{"sys path", reader, engines.Read, "sys/mounts", "", engines.KindDenied},
		{"unauthenticated path", "", engines.Read, "sys/seal-status", "", 0},
		{"unauthenticated path with a bad token", "hvs.none", engines.Read, "sys/health", "", 0},
		{"namespace that does not exist", in.root, engines.Read, "secret/data/app", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := in.do(tt.token, tt.op, tt.path, tt.body)
			if tt.want == 0 && err != nil || tt.want != 0 && kind(err) != tt.want {
				t.Errorf("%s %s = %v, want kind %v", tt.op, tt.path, err, tt.want)
			}
		})
	}
}

func TestSealedAnswersOnlyWhatMustWork(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	in.must(in.root, engines.Update, "sys/seal", "")
	for _, path := range []string{"secret/data/app", "sys/mounts", "auth/token/lookup-self", "sys/internal/ui/mounts", "sys/metrics"} {
		if _, err := in.do(in.root, engines.Read, path, ""); !errors.Is(err, storage.ErrSealed) {
			t.Errorf("sealed: reading %s = %v, want ErrSealed", path, err)
		}
	}
	for _, path := range []string{"sys/seal-status", "sys/health", "sys/init"} {
		if _, err := in.do("", engines.Read, path, ""); err != nil {
			t.Errorf("sealed: reading %s = %v", path, err)
		}
	}
	in.unseal()
	if got := data(t, in.must(in.root, engines.Read, "secret/data/app", "")); got["data"].(map[string]any)["k"] != "v" {
		t.Errorf("after unsealing: %v", got)
	}
}

func TestLimitedUses(t *testing.T) {
	in := start(t)
	tok := in.must(in.root, engines.Update, "auth/token/create", `{"policies":["default"],"num_uses":2}`).Auth.ClientToken
	for range 2 {
		in.must(tok, engines.Read, "auth/token/lookup-self", "")
	}
	if _, err := in.do(tok, engines.Read, "auth/token/lookup-self", ""); kind(err) != engines.KindDenied {
		t.Errorf("third use = %v, want denied", err)
	}
}

func TestNoSnapshotOfDifferingState(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Read, "sys/storage/raft/snapshot", "")
	in.state.mu.Lock()
	in.state.differ = errors.New("another state")
	in.state.mu.Unlock()
	if _, err := in.do(in.root, engines.Read, "sys/storage/raft/snapshot", ""); kind(err) != engines.KindUnavailable {
		t.Errorf("a snapshot of a state that differs: %v", err)
	}
}

func TestCubbyholeGoesWithItsToken(t *testing.T) {
	in := start(t)
	tok := in.token("default")
	in.must(tok, engines.Update, "cubbyhole/mine", `{"k":"v"}`)
	if _, err := in.do(in.root, engines.Read, "cubbyhole/mine", ""); kind(err) != engines.KindNotFound {
		t.Errorf("another token reads it: %v", err)
	}
	before := in.count(t)
	in.must(in.root, engines.Update, "auth/token/revoke", `{"token":"`+tok+`"}`)
	if _, err := in.do(tok, engines.Read, "cubbyhole/mine", ""); kind(err) != engines.KindDenied {
		t.Errorf("after revocation: %v", err)
	}
	if after := in.count(t); after >= before {
		t.Errorf("%d local entries before revocation, %d after: the cubbyhole is still there", before, after)
	}
}

func (in *instance) count(t *testing.T) int {
	t.Helper()
	entries, err := in.state.Scan(context.Background(), "l/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestStandby(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	limited := in.must(in.root, engines.Update, "auth/token/create", `{"policies":["default"],"num_uses":5}`).Auth.ClientToken
	in.until(in.Node().Current, "the node did not catch up")
	in.state.lead(false)
	in.until(func() bool { return !in.Active() }, "still active")
	ctx := context.Background()
	for _, tt := range []struct {
		op   engines.Operation
		path string
		want pipeline.Place
	}{
		{engines.Read, "secret/data/app", pipeline.Here}, {engines.List, "secret/metadata/", pipeline.Here},
		{engines.Update, "secret/data/app", pipeline.Active}, {engines.Update, "nowhere/at/all", pipeline.Active},
		{engines.Update, "sys/seal", pipeline.Only}, {engines.Update, "sys/unseal", pipeline.Only},
		{engines.Read, "sys/storage/raft/configuration", pipeline.Active}, {engines.Read, "sys/health", pipeline.Only},
	} {
		got, err := in.Requests().Place(ctx, &pipeline.Request{Op: tt.op, Path: tt.path})
		if err != nil || got != tt.want {
			t.Errorf("Place(%s %s) = %v, %v, want %v", tt.op, tt.path, got, err, tt.want)
		}
	}
	in.must(in.root, engines.Read, "secret/data/app", "")
	if _, err := in.do(limited, engines.Read, "auth/token/lookup-self", ""); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("a token with limited uses on a standby = %v, want ErrReadOnly, so that it is forwarded", err)
	}
}

// A standby that does not advance answers nothing from its state, and says so.
func TestStandbyThatIsBehind(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	in.state.lead(false)
	in.until(func() bool { return !in.Active() }, "still active")
	health := func(query url.Values) (int, map[string]any) {
		t.Helper()
		reply, err := in.Requests().Handle(context.Background(), &pipeline.Request{Op: engines.Read, Path: "sys/health", Query: query})
		if err != nil {
			t.Fatal(err)
		}
		var body map[string]any
		if err := json.Unmarshal(reply.Raw.Body, &body); err != nil {
			t.Fatal(err)
		}
		return reply.Status, body
	}
	for _, tt := range []struct {
		behind  time.Duration
		current bool
	}{{time.Second, true}, {-1, false}, {10 * time.Second, false}, {time.Hour, false}, {0, true}} {
		in.state.mu.Lock()
		in.state.behind = tt.behind
		in.state.mu.Unlock()
		wantPlace, wantStatus, wantOK := pipeline.Active, 503, 503
		if tt.current {
			wantPlace, wantStatus, wantOK = pipeline.Here, 429, 200
		}
		status, body := health(nil)
		if status != wantStatus || body["ha_connection_healthy"] != tt.current || (body["standby_error"] == nil) != tt.current {
			t.Errorf("behind %v: health is %d %v, want %d", tt.behind, status, body, wantStatus)
		}
		if status, _ := health(url.Values{"standbyok": {"true"}}); status != wantOK {
			t.Errorf("behind %v: health with standbyok is %d, want %d", tt.behind, status, wantOK)
		}
		if status, _ := health(url.Values{"haunhealthycode": {"299"}}); !tt.current && status != 299 {
			t.Errorf("behind %v: health with haunhealthycode is %d", tt.behind, status)
		}
		if place, err := in.Requests().Place(context.Background(), &pipeline.Request{Op: engines.Read, Path: "secret/data/app"}); place != wantPlace || err != nil {
			t.Errorf("behind %v: Place = %v, %v, want %v", tt.behind, place, err, wantPlace)
		}
		_, err := in.do(in.root, engines.Read, "secret/data/app", "")
		if (err == nil) != tt.current {
			t.Errorf("behind %v: reading = %v", tt.behind, err)
		}
		_, err = in.do(in.root, engines.Read, "sys/config/state/sanitized", "")
		if tt.current && err != nil || !tt.current && kind(err) != engines.KindUnavailable {
			t.Errorf("behind %v: a request about the node, with a token that may be revoked = %v", tt.behind, err)
		}
		in.must(in.root, engines.Read, "sys/metrics", "")
	}
}

// Without room on the disk writes are rejected, and nothing that makes room.
func TestNoRoom(t *testing.T) {
	in := start(t)
	in.until(func() bool { return in.Space() == freespace.Full }, "the disk was not measured")
	in.must(in.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	in.must(in.root, engines.Update, "auth/userpass/users/ann", `{"password":"correct horse battery"}`)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"1"}}`) // another node could take over
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"2"}}`)
	in.must(in.root, engines.Update, "secret/data/gone", `{"data":{"k":"1"}}`)
	token := in.must(in.root, engines.Update, "auth/token/create", `{"policies":["default"]}`).Auth.ClientToken
	full := func(alone bool) {
		in.state.mu.Lock()
		defer in.state.mu.Unlock()
		in.state.alone = alone
	}
	full(true)
	for _, r := range []struct{ path, body string }{
		{"secret/data/app", `{"data":{"k":"3"}}`}, {"secret/data/new", `{"data":{"k":"3"}}`},
		{"cubbyhole/x", `{"k":"v"}`}, {"auth/token/create", `{}`}, {"auth/userpass/users/bob", `{"password":"correct horse battery"}`},
	} {
		_, err := in.do(in.root, engines.Update, r.path, r.body)
		if kind(err) != engines.KindUnavailable || !strings.Contains(err.Error(), "no room for writes") {
			t.Errorf("writing %s = %v", r.path, err)
		}
	}
	if _, err := in.doIn("", in.root, engines.Read, "secret/data/app", "", map[string]string{"X-Vault-Wrap-TTL": "60"}); kind(err) != engines.KindUnavailable {
		t.Errorf("a wrapped response = %v", err)
	}
	in.must(in.root, engines.Read, "secret/data/app", "")
	in.must("", engines.Update, "auth/userpass/login/ann", `{"password":"correct horse battery"}`)
	in.must(in.root, engines.Update, "secret/delete/app", `{"versions":[1]}`)
	in.must(in.root, engines.Update, "secret/destroy/app", `{"versions":[1]}`)
	in.must(in.root, engines.Delete, "secret/data/app", "")
	in.must(in.root, engines.Delete, "secret/metadata/gone", "")
	in.must(in.root, engines.Update, "auth/token/revoke", `{"token":"`+token+`"}`)
	in.must(in.root, engines.Update, "sys/policies/acl/p", `{"policy":"path \"x\" { capabilities = [\"read\"] }"}`)
	in.must(in.root, engines.Delete, "sys/auth/userpass", "")
	full(false)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"4"}}`)
}

func TestStateTokens(t *testing.T) {
	in := start(t)
	ctx := context.Background()
	before := in.State()[0]
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	after := in.State()[0]
	if before == after {
		t.Error("the state token did not change with the state")
	}
	if err := in.AwaitState(ctx, after); err != nil {
		t.Errorf("AwaitState of the current state = %v", err)
	}
	raw, err := base64.StdEncoding.DecodeString(after)
	if err != nil {
		t.Fatal(err)
	}
	raw[16]++ // one entry into the future
	for name, forged := range map[string]string{
		"changed": base64.StdEncoding.EncodeToString(raw), "short": "AAAA", "not base64": "%%%", "empty": "",
	} {
		if err := in.AwaitState(ctx, forged); kind(err) != engines.KindInvalid {
			t.Errorf("%s token = %v, want invalid", name, err)
		}
	}
}

func TestMounts(t *testing.T) {
	in := start(t)
	accessor := func() string {
		return data(t, in.must(in.root, engines.Read, "sys/mounts/secret", ""))["accessor"].(string)
	}
	was := accessor()
	in.must(in.root, engines.Update, "sys/mounts/secret/tune", `{"description":"d","max_lease_ttl":"2h","default_lease_ttl":"1h"}`)
	tuned := data(t, in.must(in.root, engines.Read, "sys/mounts/secret/tune", ""))
	if tuned["max_lease_ttl"] != 7200.0 || tuned["description"] != "d" || accessor() != was {
		t.Errorf("tuned = %v, accessor %s then %s", tuned, was, accessor())
	}
	in.must(in.root, engines.Update, "sys/mounts/secret/tune", `{"max_lease_ttl":"system","default_lease_ttl":60}`)
	if tuned := data(t, in.must(in.root, engines.Read, "sys/mounts/secret/tune", "")); tuned["max_lease_ttl"] != 768*3600.0 || tuned["default_lease_ttl"] != 60.0 {
		t.Errorf("tuned = %v", tuned)
	}
	for _, bad := range []string{`-1`, `"-1h"`, `"soon"`, `9223372036854775807`, `"99999999999999999h"`, `"NaN"`} {
		if _, err := in.do(in.root, engines.Update, "sys/mounts/secret/tune", `{"max_lease_ttl":`+bad+`}`); kind(err) != engines.KindInvalid {
			t.Errorf("max_lease_ttl %s = %v, want invalid", bad, err)
		}
	}
	for name, body := range map[string]string{
		"sys/mounts/secret":       `{"type":"kv"}`,
		"sys/mounts/secret/below": `{"type":"kv"}`,
		"sys/mounts/sys":          `{"type":"kv"}`,
		"sys/mounts/auth/x":       `{"type":"kv"}`,
		"sys/mounts/new":          `{"type":"nonesuch"}`,
		"sys/mounts/other":        `{"type":"system"}`,
		"sys/auth/kv":             `{"type":"kv"}`,
		"sys/mounts/a*b":          `{"type":"kv"}`,
		"sys/mounts/typeless":     `{}`,
		"sys/mounts/tuned":        `{"type":"kv","config":{"default_lease_ttl":"2h","max_lease_ttl":"1h"}}`,
	} {
		if _, err := in.do(in.root, engines.Update, name, body); kind(err) != engines.KindInvalid {
			t.Errorf("enabling %s with %s = %v, want invalid", name, body, err)
		}
	}
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	in.must(in.root, engines.Delete, "sys/mounts/secret", "")
	if _, err := in.do(in.root, engines.Read, "secret/data/app", ""); kind(err) != engines.KindNotFound {
		t.Errorf("reading a disabled mount = %v", err)
	}
	if _, err := in.do(in.root, engines.Delete, "sys/mounts/cubbyhole", ""); kind(err) != engines.KindInvalid {
		t.Errorf("disabling a built-in mount = %v, want invalid", err)
	}
	in.must(in.root, engines.Update, "sys/mounts/secret", `{"type":"kv-v2"}`)
	if accessor() == was {
		t.Error("a new mount has the accessor of an old one")
	}
	if _, err := in.do(in.root, engines.Read, "secret/data/app", ""); kind(err) != engines.KindNotFound {
		t.Errorf("a new mount shows the secrets of an old one: %v", err)
	}
}

func TestMountsCannotBeProbed(t *testing.T) {
	in := start(t)
	tok := in.token("default")
	_, there := in.do(tok, engines.Read, "sys/internal/ui/mounts/secret/app", "")
	_, absent := in.do(tok, engines.Read, "sys/internal/ui/mounts/nothing/app", "")
	if kind(there) != engines.KindDenied || kind(absent) != engines.KindDenied || there.Error() != absent.Error() {
		t.Errorf("with a mount %v, without %v: want the same denial", there, absent)
	}
	got := data(t, in.must(in.root, engines.Read, "sys/internal/ui/mounts/secret/app", ""))
	if got["path"] != "secret/" || got["options"].(map[string]any)["version"] != "2" {
		t.Errorf("mount = %v", got)
	}
}

func TestAuditFailsClosed(t *testing.T) {
	in := start(t)
	file := t.TempDir() + "/audit.log"
	in.must(in.root, engines.Update, "sys/audit/file", `{"type":"file","options":{"file_path":"`+file+`"}}`)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"do-not-log-me"}}`)
	if _, err := in.do("hvs.none", engines.Read, "secret/data/app", ""); kind(err) != engines.KindDenied {
		t.Fatal(err)
	}
	lines := readLines(t, file)
	if len(lines) < 4 {
		t.Fatalf("%d records, want a request and a response record for each request", len(lines))
	}
	for _, line := range lines {
		if strings.Contains(line, "do-not-log-me") || strings.Contains(line, in.root) {
			t.Error("a secret is in the audit log")
		}
	}
	if last := lines[len(lines)-1]; !strings.Contains(last, "permission denied") {
		t.Errorf("a denial is not recorded: %s", last)
	}
	in.must(in.root, engines.Delete, "sys/audit/file", "")
	in.must(in.root, engines.Update, "sys/audit/full", `{"type":"file","options":{"file_path":"`+t.TempDir()+`/a.log"}}`)
}

// The age of a member's state and its disk are what the cluster knows of them; an age that is not known is not said to be none.
func TestStatesOfMembers(t *testing.T) {
	in := start(t)
	in.state.members(members.Peer{ID: "n1", Leader: true, Behind: 1500 * time.Millisecond, Disk: "low"}, members.Peer{ID: "n2", Behind: -1, Disk: "failing"})
	servers := in.must(in.root, engines.Read, "sys/storage/raft/autopilot/state", "").Response.Data.(map[string]any)["servers"].(map[string]any)
	for id, want := range map[string][2]any{"n1": {"1.5s", "low"}, "n2": {"", "failing"}} {
		server := servers[id].(map[string]any)
		if got := [2]any{server["behind"], server["disk"]}; got != want {
			t.Errorf("%s: age and disk are %q, want %q", id, got, want)
		}
	}
}
