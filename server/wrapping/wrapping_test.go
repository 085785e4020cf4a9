package wrapping_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/server/wrapping"
	"github.com/coffer-project/coffer/storage"
)

type fixture struct {
	*testing.T
	store  *storage.Memory
	tokens *token.Store
	wraps  *wrapping.Store
	router *engines.Router
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{T: t, store: new(storage.Memory), router: engines.NewRouter()}
	if _, err := f.store.Commit(t.Context(), storage.Batch{Puts: token.InitPuts()}); err != nil {
		t.Fatal(err)
	}
	f.tokens = token.New(token.Options{Store: f.store})
	f.store.OnChange(f.tokens.Changed)
	f.wraps = wrapping.NewStore(f.store, f.tokens)
	f.wraps.Routes(f.router)
	return f
}

func (f *fixture) wrap(r *engines.Response) *engines.WrapInfo {
	f.Helper()
	info, err := f.wraps.Wrap(f.Context(), "root", "secret/data/a", time.Minute, r)
	if err != nil {
		f.Fatal(err)
	}
	return info
}

func (f *fixture) do(path, id string, edit func(*engines.Request)) (*engines.Response, error) {
	req := &engines.Request{Op: engines.Update, Path: "wrapping/" + path, Mount: engines.Mount{NamespaceID: "root"}}
	if id != "" {
		req.Body, _ = json.Marshal(map[string]string{"token": id})
	}
	if edit != nil {
		edit(req)
	}
	return f.router.Handle(f.Context(), req)
}

func invalid(err error) bool {
	var e *engines.Error
	return errors.As(err, &e) && e.Kind == engines.KindInvalid
}

func TestUnwrapOnce(t *testing.T) {
	f := newFixture(t)
	info := f.wrap(&engines.Response{
		Data: map[string]any{"password": "p"}, Warnings: []string{"w"},
		Auth: &engines.Auth{ClientToken: "inner", Accessor: "inner accessor"}, Held: &engines.HeldLease{ID: "aws/creds/x/1", Seconds: 60},
	})
	if !strings.HasPrefix(info.Token, "hvs.") || info.TTL != 60 || info.CreationPath != "secret/data/a" || info.WrappedAccessor != "inner accessor" || info.Accessor == "" {
		t.Errorf("Wrap = %+v", info)
	}
	for range 2 { // looking does not use it up
		r, err := f.do("lookup", info.Token, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := r.Data.(map[string]any); d["creation_path"] != "secret/data/a" || d["creation_ttl"] != int64(60) {
			t.Errorf("lookup = %v", d)
		}
	}
	r, err := f.do("unwrap", info.Token, nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Data.(json.RawMessage)) != `{"password":"p"}` || r.Auth.ClientToken != "inner" || r.Held.ID != "aws/creds/x/1" || len(r.Warnings) != 1 {
		t.Errorf("unwrap = %+v", r)
	}
	for _, path := range []string{"unwrap", "lookup", "rewrap"} {
		if _, err := f.do(path, info.Token, nil); !invalid(err) {
			t.Errorf("%s of a used token = %v", path, err)
		}
	}
	left, err := f.store.Scan(t.Context(), "l/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Key != "l/token/key" && !strings.HasPrefix(string(e.Key), "l/wrapping/") {
			t.Errorf("%s is left", e.Key)
		}
	}
}

// TestReplay: of many who present the same token at once, one gets the answer.
func TestReplay(t *testing.T) {
	f := newFixture(t)
	info := f.wrap(&engines.Response{Data: map[string]any{"a": 1}})
	var got atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := f.do("unwrap", info.Token, nil); err == nil {
				got.Add(1)
			} else if !invalid(err) {
				t.Errorf("unwrap: %v", err)
			}
		})
	}
	wg.Wait()
	if got.Load() != 1 {
		t.Errorf("%d callers got the answer", got.Load())
	}
}

func TestRewrap(t *testing.T) {
	f := newFixture(t)
	first := f.wrap(&engines.Response{Data: map[string]any{"a": 1}})
	r, err := f.do("rewrap", first.Token, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Wrap == nil || r.Wrap.Token == first.Token || r.Wrap.TTL != 60 || r.Wrap.CreationPath != "secret/data/a" {
		t.Fatalf("rewrap = %+v", r.Wrap)
	}
	if _, err := f.do("unwrap", first.Token, nil); !invalid(err) {
		t.Errorf("the old token still works: %v", err)
	}
	if _, err := f.do("unwrap", r.Wrap.Token, nil); err != nil {
		t.Errorf("the new token: %v", err)
	}
}

// TestOtherTokens: a token that wraps nothing is refused, and stays as it was.
func TestOtherTokens(t *testing.T) {
	f := newFixture(t)
	ordinary, err := f.tokens.Create(t.Context(), token.Params{Policies: []string{"default"}, Path: "auth/token/create", NumUses: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"lookup", "unwrap", "rewrap"} {
		for _, id := range []string{ordinary.Token.Reveal(), "hvs.nonsense", "x"} {
			if _, err := f.do(path, id, nil); !invalid(err) {
				t.Errorf("%s of another token = %v", path, err)
			}
		}
	}
	if e, err := f.tokens.Lookup(t.Context(), ordinary.Token.Reveal()); err != nil || e.NumUses != 1 {
		t.Errorf("the other token was touched: %+v, %v", e, err)
	}
	if _, err := f.do("unwrap", "", nil); !invalid(err) {
		t.Errorf("unwrap of nothing = %v", err)
	}
}

func TestWrapNeedsTheHeader(t *testing.T) {
	f := newFixture(t)
	body := func(text string, ttl time.Duration) func(*engines.Request) {
		return func(r *engines.Request) { r.Body, r.WrapTTL = json.RawMessage(text), ttl }
	}
	if _, err := f.do("wrap", "", body(`{"a":1}`, 0)); !invalid(err) {
		t.Errorf("wrap without the header = %v", err)
	}
	if r, err := f.do("wrap", "", body(`{}`, time.Minute)); err != nil || r.Data == nil {
		t.Errorf("wrap of nothing = %+v, %v", r, err)
	}
	if r, err := f.do("wrap", "", body(`{"a":1}`, time.Minute)); err != nil || r.Data == nil {
		t.Errorf("wrap = %+v, %v", r, err)
	}
}

// TestDrop: what a token wraps goes with the token.
func TestDrop(t *testing.T) {
	f := newFixture(t)
	info := f.wrap(&engines.Response{Data: map[string]any{"a": 1}})
	e, err := f.tokens.Lookup(t.Context(), info.Token)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.wraps.Drop(t.Context(), e.Key); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := f.store.Scan(t.Context(), "l/wrapping/", "", 0); len(left) != 0 {
		t.Errorf("%d responses are left", len(left))
	}
}

// refusal is token.Dependents that cannot be removed.
type refusal struct{}

func (refusal) RevokeToken(context.Context, *token.Entry) error {
	return errors.New("refused by the test")
}

// TestTokenThatCannotBeRemoved looks that what a used-up token held reaches the client all the same: no client gets it
// again.
func TestTokenThatCannotBeRemoved(t *testing.T) {
	f := newFixture(t)
	f.tokens = token.New(token.Options{Store: f.store, Dependents: refusal{}})
	f.wraps, f.router = wrapping.NewStore(f.store, f.tokens), engines.NewRouter()
	f.wraps.Routes(f.router)
	info := f.wrap(&engines.Response{Data: map[string]any{"password": "p"}})
	if r, err := f.do("unwrap", info.Token, nil); err != nil || r.Data == nil {
		t.Errorf("%+v, %v; want what was wrapped", r, err)
	}
	if _, err := f.do("unwrap", info.Token, nil); !invalid(err) {
		t.Errorf("again: %v, want a refusal", err)
	}
}
