package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// wire is the secondary's link to its primary, without a network: calls go straight to the other server, and what is
// shared is copied when a caller waits for it.
type wire struct {
	traffic.Offline
	primary, secondary *instance
	calls              atomic.Int64
	away               atomic.Bool // the primary cannot be reached
	behind             atomic.Bool // nothing arrives
}

// Call implements traffic.Link.
func (w *wire) Call(ctx context.Context, kind string, payload []byte) ([]byte, storage.Position, error) {
	if w.away.Load() {
		return nil, storage.Position{}, storage.ErrUnavailable
	}
	w.calls.Add(1)
	answer, at, err := w.primary.ServeSecondary(ctx, roles.Peer{ID: "b", ClusterID: "cluster-b"}, kind, payload)
	return answer, storage.Position{Epoch: 1, Index: at}, err
}

// AwaitCursor implements traffic.Link.
func (w *wire) AwaitCursor(ctx context.Context, _ storage.Position) error {
	if w.behind.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return w.copy(ctx)
}

// Cursor implements traffic.Link.
func (w *wire) Cursor(context.Context) (storage.Position, error) {
	return storage.Position{Epoch: 1, Index: w.primary.state.AppliedIndex()}, nil
}

// copy brings the secondary's shared data up to the primary's.
func (w *wire) copy(ctx context.Context) error {
	theirs, err := w.primary.store.Scan(ctx, "s/", "", 0)
	if err != nil {
		return err
	}
	ours, err := w.secondary.store.Scan(ctx, "s/", "", 0)
	if err != nil {
		return err
	}
	var b storage.Batch
	have := map[storage.Key]string{}
	for _, e := range ours {
		have[e.Key] = string(e.Value)
	}
	for _, e := range theirs {
		if value, ok := have[e.Key]; !ok || value != string(e.Value) {
			b.Puts = append(b.Puts, storage.Put{Key: e.Key, Value: e.Value, Origin: storage.Position{Epoch: 1, Index: e.Version}})
		}
		delete(have, e.Key)
	}
	for key := range have {
		b.Deletes = append(b.Deletes, key)
	}
	if b.Empty() {
		return nil
	}
	_, err = w.secondary.store.Commit(ctx, b)
	return err
}

// role gives an instance a role in a set.
func (in *instance) role(r roles.Role) {
	in.t.Helper()
	r.Format, r.SetID = 1, "set"
	r.Lineage = storage.Lineage{{Epoch: 1, ClusterID: "cluster-a", Base: 1}}
	value, err := json.Marshal(&r)
	if err == nil {
		_, err = in.store.Commit(context.Background(), storage.Batch{Puts: []storage.Put{{Key: roles.RoleKey, Value: value}}})
	}
	if err != nil {
		in.t.Fatal(err)
	}
}

// follow starts a primary and a secondary of it.
func follow(t *testing.T) (primary, secondary *instance, w *wire) {
	t.Helper()
	primary = start(t)
	primary.role(roles.Role{Mode: roles.Primary, ClusterID: "cluster-a"})
	w = &wire{primary: primary}
	secondary = startWith(t, w)
	w.secondary = secondary
	secondary.role(roles.Role{Mode: roles.Secondary, ClusterID: "cluster-b"})
	if err := w.copy(context.Background()); err != nil {
		t.Fatal(err)
	}
	return primary, secondary, w
}

// TestPrimaryJudgesParameters: what a secondary forwards is judged again, by the policies as they are at the primary, on what
// the primary's engine gets.
func TestPrimaryJudgesParameters(t *testing.T) {
	primary, secondary, w := follow(t)
	primary.must(primary.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	policy := func(rules string) {
		primary.must(primary.root, engines.Update, "sys/policies/acl/maker", `{"policy":"path \"auth/userpass/users/*\" { capabilities = [\"create\",\"update\"] `+rules+` }"}`)
	}
	policy("")
	if err := w.copy(t.Context()); err != nil {
		t.Fatal(err)
	}
	tok := secondary.token("maker")
	secondary.must(tok, engines.Update, "auth/userpass/users/eve", `{"password":"p","policies":"ADM"}`)
	policy(`denied_parameters = { \"token_policies\" = [\"adm\"] }`) // the secondary does not know it yet
	for _, body := range []string{`{"policies":["x","ADM"]}`, `{"token_policies":" adm"}`} {
		secondary.refused(engines.KindDenied, "", tok, engines.Update, "auth/userpass/users/eve", body)
	}
	secondary.must(tok, engines.Update, "auth/userpass/users/eve", `{"policies":["x"]}`)
}

func TestSecondaryWritesGoToThePrimary(t *testing.T) {
	primary, secondary, w := follow(t)
	secondary.must(secondary.root, engines.Update, "secret/data/a", `{"data":{"k":"v"}}`)
	for name, in := range map[string]*instance{"primary": primary, "secondary": secondary} {
		inner := data(t, in.must(in.root, engines.Read, "secret/data/a", ""))["data"].(map[string]any)
		if inner["k"] != "v" {
			t.Errorf("the %s has %v", name, inner)
		}
	}
	before := w.calls.Load()
	secondary.must(secondary.root, engines.Read, "secret/data/a", "")
	if w.calls.Load() != before {
		t.Error("a read asked the primary")
	}
	// A check-and-set is judged by the primary's data, also when the secondary's is behind.
	w.behind.Store(true)
	r, err := secondary.do(secondary.root, engines.Update, "secret/data/a", `{"data":{"k":"w"},"options":{"cas":1}}`)
	if err != nil || len(r.Warnings) == 0 || !strings.Contains(strings.Join(r.Warnings, " "), "not yet readable") {
		t.Errorf("a write that does not arrive in time: %v, %v, want a warning", r, err)
	}
	w.behind.Store(false)
	if _, err := secondary.do(secondary.root, engines.Update, "secret/data/a", `{"data":{"k":"x"},"options":{"cas":1}}`); kind(err) != engines.KindInvalid {
		t.Errorf("a stale check-and-set: %v, want the primary's refusal", err)
	}
}

func TestSecondaryWithoutItsPrimary(t *testing.T) {
	_, secondary, w := follow(t)
	secondary.must(secondary.root, engines.Update, "secret/data/a", `{"data":{"k":"v"}}`)
	w.away.Store(true)
	secondary.must(secondary.root, engines.Read, "secret/data/a", "")
	_, err := secondary.do(secondary.root, engines.Update, "secret/data/a", `{"data":{"k":"w"}}`)
	if kind(err) != engines.KindUnavailable || !strings.Contains(err.Error(), "primary") {
		t.Errorf("a shared write: %v, want 503 that names the primary", err)
	}
	secondary.must(secondary.token("default"), engines.Update, "cubbyhole/mine", `{"k":"v"}`)
	secondary.must(secondary.root, engines.Update, "sys/mounts/own", `{"type":"kv","local":true}`)
	secondary.must(secondary.root, engines.Update, "own/x", `{"k":"v"}`)
}

func TestSecondaryLocalMountsStayLocal(t *testing.T) {
	primary, secondary, w := follow(t)
	secondary.must(secondary.root, engines.Update, "sys/mounts/own", `{"type":"kv","local":true}`)
	secondary.must(secondary.root, engines.Update, "own/x", `{"k":"v"}`)
	if err := w.copy(context.Background()); err != nil {
		t.Fatal(err)
	}
	secondary.must(secondary.root, engines.Read, "own/x", "")
	if _, err := primary.do(primary.root, engines.Read, "own/x", ""); kind(err) != engines.KindNotFound {
		t.Errorf("on the primary: %v, want nothing there", err)
	}
}

// What a secondary says of its caller is accepted only as far as policies go.
func TestPrimaryAuthorisesAgain(t *testing.T) {
	primary, secondary, w := follow(t)
	primary.must(primary.root, engines.Update, "sys/policies/acl/writer", `{"policy":"path \"secret/data/w/*\" { capabilities = [\"create\", \"update\"] }"}`)
	if err := w.copy(context.Background()); err != nil {
		t.Fatal(err)
	}
	writer := secondary.token("writer")
	secondary.must(writer, engines.Update, "secret/data/w/a", `{"data":{"k":"v"}}`)
	// The primary has taken the policy back; the secondary does not know yet.
	primary.must(primary.root, engines.Delete, "sys/policies/acl/writer", "")
	if _, err := secondary.do(writer, engines.Update, "secret/data/w/b", `{"data":{"k":"v"}}`); kind(err) != engines.KindDenied {
		t.Errorf("a write by a policy that the primary no longer has: %v, want denied", err)
	}
	for _, path := range []string{"sys/policies/acl/mine", "identity/entity"} {
		if _, err := secondary.do(secondary.root, engines.Update, path, `{"policy":"path \"*\" { capabilities = [\"sudo\"] }","name":"me"}`); kind(err) != engines.KindDenied {
			t.Errorf("%s as root of the secondary: %v, want denied", path, err)
		}
	}
}

// A stolen secondary can send what it likes.
func TestPrimaryRefusesWhatIsNotForSecondaries(t *testing.T) {
	primary, _, w := follow(t)
	primary.must(primary.root, engines.Update, "sys/mounts/private", `{"type":"kv","local":true}`)
	call := func(op, path, body string) (string, error) {
		payload := `{"id":"x","op":"` + op + `","path":"` + path + `","remote":"127.0.0.1:1","body":` + body +
			`,"caller":{"namespace":"root","policies":["root"],"type":"service"}}`
		answer, _, err := w.Call(context.Background(), "request", []byte(payload))
		return string(answer), err
	}
	for _, tt := range []struct{ op, path, body, want string }{
		{"update", "private/x", `{"k":"v"}`, `"kind":3`},                // the primary's local mount
		{"update", "sys/rotate", `{}`, `"kind":2`},                      // this cluster's keys
		{"update", "sys/seal", `{}`, `"kind":2`},                        //
		{"update", "sys/generate-root/attempt", `{}`, `"kind":2`},       //
		{"update", "auth/token/create", `{}`, `"kind":2`},               // a token of the primary
		{"update", "sys/auth/other", `{"type":"userpass"}`, `"kind":2`}, // needs sudo
		{"update", "cubbyhole/x", `{"k":"v"}`, `"kind":2`},              //
		{"read", "sys/raw/l/seal/config", `{}`, `"kind":`},              //
		{"update", "sys/storage/raft/remove-peer", `{"server_id":"n1"}`, `"kind":2`},
		{"update", "secret/data/ok", `{"data":{"k":"v"}}`, `"response"`}, // an ordinary write is fine
	} {
		answer, err := call(tt.op, tt.path, tt.body)
		if err != nil || !strings.Contains(answer, tt.want) {
			t.Errorf("%s %s: %s, %v, want %s", tt.op, tt.path, answer, err, tt.want)
		}
	}
	for _, bad := range []string{`{`, `{"id":"x","op":"update","path":"secret/data/x","remote":"127.0.0.1:1"}`, `{"op":"update","path":"secret/data/x","remote":"127.0.0.1:1","caller":{"policies":["root"]}}`} {
		if answer, _, err := w.Call(context.Background(), "request", []byte(bad)); err == nil && !strings.Contains(string(answer), `"failure"`) {
			t.Errorf("%s: %s, want a refusal", bad, answer)
		}
	}
	if _, _, err := w.Call(context.Background(), "nonsense", nil); err == nil {
		t.Error("an unknown kind of call was answered")
	}
}

func TestSecondaryLogins(t *testing.T) {
	primary, secondary, w := follow(t)
	primary.must(primary.root, engines.Update, "sys/auth/userpass", `{"type":"userpass"}`)
	primary.must(primary.root, engines.Update, "auth/userpass/users/ann", `{"password":"correct horse"}`)
	if err := w.copy(context.Background()); err != nil {
		t.Fatal(err)
	}
	login := func() *engines.Auth {
		t.Helper()
		return secondary.must("", engines.Update, "auth/userpass/login/ann", `{"password":"correct horse"}`).Auth
	}
	first := login()
	if first.EntityID == "" || w.calls.Load() == 0 {
		t.Errorf("the first login: %+v after %d calls, want an entity made by the primary", first, w.calls.Load())
	}
	primary.must(primary.root, engines.Read, "identity/entity/id/"+first.EntityID, "")
	w.away.Store(true)
	if again := login(); again.EntityID != first.EntityID {
		t.Errorf("a later login without the primary has entity %s, want %s", again.EntityID, first.EntityID)
	}
	if _, err := primary.do(first.ClientToken, engines.Read, "auth/token/lookup-self", ""); kind(err) != engines.KindDenied {
		t.Errorf("the secondary's token on the primary: %v, want denied", err)
	}
}

func TestBatchTokensAreValidEverywhere(t *testing.T) {
	primary, secondary, _ := follow(t)
	for _, tt := range []struct{ made, used *instance }{{primary, secondary}, {secondary, primary}} {
		auth := tt.made.must(tt.made.root, engines.Update, "auth/token/create-orphan", `{"type":"batch","policies":["default"],"ttl":"1h"}`).Auth
		tt.used.must(auth.ClientToken, engines.Read, "auth/token/lookup-self", "")
		child := tt.made.must(tt.made.root, engines.Update, "auth/token/create", `{"type":"batch","policies":["default"],"ttl":"1h"}`).Auth
		if _, err := tt.used.do(child.ClientToken, engines.Read, "auth/token/lookup-self", ""); kind(err) != engines.KindDenied {
			t.Errorf("a batch token with a parent: %v elsewhere, want denied", err)
		}
	}
}

// A change of role stops shared writes at one index, whatever is under way.
func TestFenceStopsSharedWrites(t *testing.T) {
	in := start(t)
	in.role(roles.Role{Mode: roles.Primary, ClusterID: "cluster-a"})
	in.must(in.root, engines.Update, "secret/data/a", `{"data":{"k":"v"}}`)
	in.role(roles.Role{Mode: roles.Primary, ClusterID: "cluster-a", Fenced: 2})
	_, err := in.do(in.root, engines.Update, "secret/data/a", `{"data":{"k":"w"}}`)
	if !errors.Is(err, storage.ErrPrimaryOnly) {
		t.Errorf("a fenced primary: %v, want ErrPrimaryOnly", err)
	}
	in.must(in.token("default"), engines.Update, "cubbyhole/mine", `{"k":"v"}`) // what is its own goes on
	in.role(roles.Role{Mode: roles.Secondary, ClusterID: "cluster-a", Demoted: true})
	if _, err := in.do(in.root, engines.Update, "secret/data/a", `{"data":{"k":"w"}}`); kind(err) != engines.KindUnavailable {
		t.Errorf("a demoted cluster: %v, want 503", err)
	}
	in.must(in.root, engines.Read, "secret/data/a", "")
	in.role(roles.Role{Mode: roles.Primary, ClusterID: "cluster-a"})
	in.must(in.root, engines.Update, "secret/data/a", `{"data":{"k":"w"}}`)
}

func TestStateTokensAcrossClusters(t *testing.T) {
	primary, secondary, w := follow(t)
	primary.must(primary.root, engines.Update, "secret/data/a", `{"data":{"k":"v"}}`)
	state := primary.State()[0]
	if err := secondary.AwaitState(context.Background(), state); err != nil {
		t.Fatalf("a state of the primary on the secondary: %v", err)
	}
	secondary.must(secondary.root, engines.Read, "secret/data/a", "")
	if err := primary.AwaitState(context.Background(), secondary.State()[0]); err != nil {
		t.Errorf("a state of the secondary on the primary: %v", err)
	}
	other := start(t)
	if err := other.AwaitState(context.Background(), state); kind(err) != engines.KindInvalid {
		t.Errorf("a state of another set: %v, want 400", err)
	}
	w.behind.Store(true)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := secondary.AwaitState(ctx, primary.State()[0]); !errors.Is(err, context.Canceled) {
		t.Errorf("a state that does not arrive: %v, want to wait", err)
	}
}
