package token_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// world is a token store over memory, with a clock that is set by hand.
type world struct {
	*token.Store
	t     testing.TB
	mem   *storage.Memory
	clock atomic.Int64 // nanoseconds

	mu      sync.Mutex
	revoked []string // keys given to RevokeToken
	failing map[string]bool
}

func newWorld(t testing.TB, change ...func(*token.Options)) *world {
	t.Helper()
	w := &world{t: t, mem: new(storage.Memory), failing: map[string]bool{}}
	w.clock.Store(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	if _, err := w.mem.Commit(t.Context(), storage.Batch{Puts: token.InitPuts()}); err != nil {
		t.Fatal(err)
	}
	o := token.Options{Store: w.mem, Dependents: w}
	for _, fn := range change {
		fn(&o)
	}
	w.Store = w.node(o)
	t.Cleanup(w.mem.OnChange(w.Changed))
	return w
}

// node returns a store of another node, by the same clock.
func (w *world) node(o token.Options) *token.Store {
	o.Store = cmp.Or(o.Store, storage.Store(w.mem))
	s := token.New(o)
	token.SetClock(s, w.now)
	return s
}

func (w *world) now() time.Time { return time.Unix(0, w.clock.Load()) }

func (w *world) pass(d time.Duration) { w.clock.Add(int64(d)) }

var errRefused = errors.New("refused by the test")

// RevokeToken implements token.Dependents.
func (w *world) RevokeToken(_ context.Context, e *token.Entry) error {
	key := e.Key
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing[key] {
		return errRefused
	}
	w.revoked = append(w.revoked, key)
	return nil
}

func (w *world) create(p token.Params) token.Created {
	w.t.Helper()
	if p.Path == "" {
		p.Path = "auth/test/login"
	}
	c, err := w.Create(w.t.Context(), p)
	if err != nil {
		w.t.Fatalf("Create: %v", err)
	}
	return c
}

// child creates a plain token below parent.
func (w *world) child(parent token.Created) token.Created {
	w.t.Helper()
	return w.create(token.Params{Parent: parent.Entry.Key, Policies: []string{"default"}})
}

func (w *world) wantValid(what string, c token.Created) {
	w.t.Helper()
	if _, err := w.Lookup(w.t.Context(), c.Token.Reveal()); err != nil {
		w.t.Errorf("%s: %v, want it valid", what, err)
	}
}

func (w *world) wantInvalid(what string, c token.Created) {
	w.t.Helper()
	if _, err := w.Lookup(w.t.Context(), c.Token.Reveal()); !errors.Is(err, token.ErrInvalid) {
		w.t.Errorf("%s: Lookup = %v, want ErrInvalid", what, err)
	}
	if _, err := w.LookupAccessor(w.t.Context(), c.Entry.Accessor); !errors.Is(err, token.ErrInvalid) {
		w.t.Errorf("%s: LookupAccessor = %v, want ErrInvalid", what, err)
	}
}

// left returns the keys of everything about tokens that is stored, but the key of the hashes.
func (w *world) left() []storage.Key {
	w.t.Helper()
	entries, err := w.mem.Scan(w.t.Context(), "l/token/", "", 0)
	if err != nil {
		w.t.Fatal(err)
	}
	var keys []storage.Key
	for _, e := range entries {
		if e.Key != "l/token/key" {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

func isInvalidInput(err error) bool {
	var e *engines.Error
	return errors.As(err, &e) && e.Kind == engines.KindInvalid
}

// later are members of which one is of an earlier version at first.
type later struct{ agreed bool }

func (l *later) FormatsAgreed() bool { return l.agreed }

// TestMembersOfAnEarlierVersion find every token by its hash alone. What they have made is found for good.
func TestMembersOfAnEarlierVersion(t *testing.T) {
	members := &later{}
	w := newWorld(t, func(o *token.Options) { o.Members = members })
	before := w.create(token.Params{Policies: []string{"a"}, TTL: time.Hour})
	members.agreed = true
	after := w.create(token.Params{Parent: before.Entry.Key, Policies: []string{"a"}})
	root := w.create(token.Params{Policies: []string{"root"}})
	members.agreed = false // in a state that was restored
	still := w.create(token.Params{Policies: []string{"a"}})
	w.Changed(storage.Change{Reset: true})
	restored := w.create(token.Params{Policies: []string{"a"}})
	for what, c := range map[string]struct {
		token.Created
		longer int
	}{"before": {before, 0}, "after": {after, 8}, "a root token": {root, 0}, "after, for good": {still, 8}, "after a restore": {restored, 0}} {
		if text, accessor, key := c.Token.Reveal(), c.Entry.Accessor, c.Entry.Key; len(text) != 100+c.longer || len(accessor) != 24+c.longer || len(key) != 43+c.longer {
			t.Errorf("%s: a token of %d characters, with the accessor %s, under %s", what, len(text), accessor, key)
		}
		w.wantValid(what, c.Created)
		if e, err := w.LookupAccessor(t.Context(), c.Entry.Accessor); err != nil || e.Key != c.Entry.Key {
			t.Errorf("%s: LookupAccessor = %v, %v", what, e, err)
		}
	}
	if err := w.Revoke(t.Context(), before.Entry.Key); err != nil {
		t.Fatal(err)
	}
	w.wantInvalid("its child", after)
}

func TestCreateAndLookup(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c := w.create(token.Params{
		Policies: []string{"B", "a", " a ", ""}, Meta: map[string]string{"k": "v"}, DisplayName: "somebody", NumUses: 3, TTL: time.Hour,
		EntityID: "e", BoundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Role: "r",
	})
	if !regexp.MustCompile(`^hvs\.[A-Za-z0-9_-]{104}$`).MatchString(c.Token.Reveal()) {
		t.Error("the token does not look like one")
	}
	if !regexp.MustCompile(`^[A-Za-z0-9]{32}$`).MatchString(c.Entry.Accessor) {
		t.Errorf("accessor %q", c.Entry.Accessor)
	}
	w.Clear() // from storage, not from memory
	for range 2 {
		e, err := w.Lookup(ctx, c.Token.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		if e.Key != c.Entry.Key || !slices.Equal(e.Policies, []string{"a", "b"}) || e.Meta["k"] != "v" || e.DisplayName != "somebody" ||
			e.NumUses != 3 || e.TTL != time.Hour || !e.CreatedAt.Equal(w.now()) || !e.ExpiresAt.Equal(w.now().Add(time.Hour)) ||
			!e.Renewable || !e.Orphan() || e.Root() || e.EntityID != "e" || e.Namespace != "root" || e.Role != "r" || e.Type != "service" {
			t.Errorf("Lookup = %+v", e)
		}
	}
	if e, err := w.LookupAccessor(ctx, c.Entry.Accessor); err != nil || e.Key != c.Entry.Key {
		t.Errorf("LookupAccessor = %v, %v", e, err)
	}
	if p, err := w.TokenPolicies(ctx, c.Token.Reveal()); err != nil || !slices.Equal(p, []string{"a", "b"}) {
		t.Errorf("TokenPolicies = %v, %v", p, err)
	}
	for _, bad := range []string{"", "hvs.", c.Token.Reveal() + "x", c.Entry.Accessor, c.Entry.Key, strings.Repeat("x", 10_000)} {
		if _, err := w.Lookup(ctx, bad); !errors.Is(err, token.ErrInvalid) {
			t.Errorf("Lookup of something else = %v", err)
		}
		if _, err := w.LookupAccessor(ctx, bad+"y"); !errors.Is(err, token.ErrInvalid) {
			t.Errorf("LookupAccessor of something else = %v", err)
		}
	}
}

// Storage must not hold anything that can be presented as a token.
func TestTokensAreNotStored(t *testing.T) {
	w := newWorld(t)
	root, err := w.CreateRoot(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	c := w.create(token.Params{Policies: []string{"a"}})
	entries, _ := w.mem.Scan(t.Context(), "l/", "", 0)
	for _, e := range entries {
		for _, secret := range []string{root.Reveal(), c.Token.Reveal()} {
			for _, part := range []string{secret, secret[4:40]} {
				if strings.Contains(string(e.Key), part) || strings.Contains(string(e.Value), part) {
					t.Errorf("entry %q holds a token", e.Key)
				}
			}
		}
		if strings.Contains(string(e.Key), c.Entry.Accessor) {
			t.Errorf("key %q holds an accessor", e.Key)
		}
	}
}

func TestLifetimes(t *testing.T) {
	const day = 24 * time.Hour
	tests := []struct {
		name    string
		p       token.Params
		want    time.Duration // 0: never expires
		warning string
	}{
		{"default", token.Params{}, 768 * time.Hour, ""},
		{"default of the mount", token.Params{DefaultTTL: day, SystemMaxTTL: 2 * day}, day, ""},
		{"asked", token.Params{TTL: time.Hour}, time.Hour, ""},
		{"more than the system's maximum", token.Params{TTL: 1000 * time.Hour}, 768 * time.Hour, "TTL of"},
		{"more than the mount's maximum", token.Params{TTL: 3 * day, SystemMaxTTL: 2 * day}, 2 * day, "TTL of"},
		{"a mount may allow more", token.Params{TTL: 1000 * time.Hour, SystemMaxTTL: 2000 * time.Hour}, 1000 * time.Hour, ""},
		{"maximum of the role", token.Params{TTL: 3 * day, MaxTTL: day}, day, "TTL of"},
		{"explicit maximum", token.Params{TTL: 3 * day, ExplicitMaxTTL: day}, day, "TTL of"},
		{"period", token.Params{TTL: time.Minute, Period: day}, day, ""},
		{"period beyond the maximum", token.Params{Period: 1000 * time.Hour}, 768 * time.Hour, "period of"},
		{"period with explicit maximum", token.Params{Period: 2 * day, ExplicitMaxTTL: day}, day, "period of"},
		{"root", token.Params{Policies: []string{"root"}}, 0, ""},
		{"root with TTL", token.Params{Policies: []string{"root"}, TTL: time.Hour}, time.Hour, ""},
		{"root with explicit maximum", token.Params{Policies: []string{"root"}, ExplicitMaxTTL: time.Hour}, time.Hour, ""},
		{"centuries", token.Params{TTL: 1 << 62, SystemMaxTTL: 1 << 62}, 100 * 365 * day, "TTL of"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			c := w.create(tt.p)
			if c.Entry.TTL != tt.want || c.Entry.Renewable != (tt.want != 0) {
				t.Errorf("TTL = %v, renewable = %v, want %v", c.Entry.TTL, c.Entry.Renewable, tt.want)
			}
			if got := strings.Join(c.Warnings, "; "); !strings.HasPrefix(got, tt.warning) || tt.warning == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, tt.warning)
			}
			if tt.want == 0 {
				w.pass(1000 * day)
				w.wantValid("after a thousand days", c)
				return
			}
			w.pass(tt.want - 1)
			w.wantValid("a moment before its end", c)
			w.pass(1)
			w.wantInvalid("at its end", c)
		})
	}
}

func TestRenew(t *testing.T) {
	tests := []struct {
		name      string
		p         token.Params
		after     time.Duration
		increment time.Duration
		want      time.Duration // rest after the renewal; 0: refused
	}{
		{"as created", token.Params{TTL: time.Hour}, 50 * time.Minute, 0, time.Hour},
		{"asked for more", token.Params{TTL: time.Hour}, 50 * time.Minute, 5 * time.Hour, 5 * time.Hour},
		{"asked for less", token.Params{TTL: time.Hour}, time.Minute, time.Second, time.Second},
		{"up to the maximum", token.Params{TTL: 500 * time.Hour}, 499 * time.Hour, 0, 269 * time.Hour},
		{"up to the explicit maximum", token.Params{TTL: time.Hour, ExplicitMaxTTL: 90 * time.Minute}, 59 * time.Minute, time.Hour, 31 * time.Minute},
		{"period", token.Params{Period: time.Hour}, 30 * time.Minute, 5 * time.Hour, time.Hour},
		{"period with explicit maximum", token.Params{Period: time.Hour, ExplicitMaxTTL: 80 * time.Minute}, 30 * time.Minute, 0, 50 * time.Minute},
		{"not renewable", token.Params{TTL: time.Hour, NotRenewable: true}, time.Minute, 0, 0},
		{"root", token.Params{Policies: []string{"root"}}, time.Minute, 0, 0},
		{"expired", token.Params{TTL: time.Hour}, time.Hour, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			c := w.create(tt.p)
			w.pass(tt.after)
			r, err := w.Renew(t.Context(), c.Entry.Key, tt.increment)
			if tt.want == 0 {
				if !isInvalidInput(err) && !errors.Is(err, token.ErrInvalid) {
					t.Errorf("Renew = %v, want it refused", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Entry.ExpiresAt.Sub(w.now()); got != tt.want || !r.Entry.RenewedAt.Equal(w.now()) {
				t.Errorf("rest = %v, want %v", got, tt.want)
			}
			w.pass(tt.want - 1)
			w.wantValid("a moment before its end", c)
			w.pass(1)
			w.wantInvalid("at its end", c)
			if n, next, err := w.Sweep(t.Context(), 10); n != 1 || !next.IsZero() || err != nil {
				t.Errorf("Sweep = %d, %v, %v", n, next, err)
			}
			if left := w.left(); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// logins are token.Logins that renew as a test says.
type logins struct {
	token.Logins
	terms func(e *token.Entry) (token.Terms, error)
}

func (l logins) RenewTerms(_ context.Context, e *token.Entry) (token.Terms, error) { return l.terms(e) }

func TestRenewTerms(t *testing.T) {
	refused := engines.Invalid("role is gone")
	w := newWorld(t, func(o *token.Options) {
		o.Logins = logins{terms: func(e *token.Entry) (token.Terms, error) {
			if e.Role == "gone" {
				return token.Terms{}, refused
			}
			return token.Terms{TTL: 2 * time.Hour, MaxTTL: 3 * time.Hour}, nil
		}}
	})
	gone := w.create(token.Params{TTL: time.Hour, Mount: "m1", Role: "gone"})
	if _, err := w.Renew(t.Context(), gone.Entry.Key, 0); !errors.Is(err, refused) {
		t.Errorf("Renew = %v", err)
	}
	c := w.create(token.Params{TTL: time.Hour, Mount: "m1", Role: "r"})
	w.pass(30 * time.Minute)
	if r, err := w.Renew(t.Context(), c.Entry.Key, 0); err != nil || r.Entry.ExpiresAt.Sub(w.now()) != 2*time.Hour {
		t.Errorf("Renew = %+v, %v", r.Entry, err)
	}
	w.pass(90 * time.Minute)
	if r, err := w.Renew(t.Context(), c.Entry.Key, 0); err != nil || r.Entry.ExpiresAt.Sub(w.now()) != time.Hour || len(r.Warnings) != 1 {
		t.Errorf("Renew at the new maximum = %+v, %v", r, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("x", 1000)
	meta := map[string]string{}
	var policies, wide []string
	for i := range 1025 {
		meta[fmt.Sprint(i)] = "v"
		policies = append(policies, fmt.Sprint(i))
		wide = append(wide, fmt.Sprintf("%0500d", i))
	}
	if _, err := w.Create(t.Context(), token.Params{Policies: policies[:1024]}); err != nil {
		t.Errorf("1,024 policies: %v", err)
	}
	for name, p := range map[string]token.Params{
		"too many policies":  {Policies: policies},
		"much in policies":   {Policies: wide[:300]},
		"long policy":        {Policies: []string{long}},
		"root elsewhere":     {Policies: []string{"root"}, Namespace: "ns1"},
		"much metadata":      {Meta: meta},
		"long metadata":      {Meta: map[string]string{"a": long}},
		"long metadata key":  {Meta: map[string]string{long: "a"}},
		"long display name":  {DisplayName: long},
		"negative uses":      {NumUses: -1},
		"negative period":    {Period: -1},
		"ID with dot":        {ID: "hvs.mine"},
		"ID with space":      {ID: "a b"},
		"ID with line break": {ID: "a\nb"},
		"ID not ASCII":       {ID: "é"},
		"long ID":            {ID: long},
	} {
		if _, err := w.Create(t.Context(), p); !isInvalidInput(err) {
			t.Errorf("%s: Create = %v", name, err)
		}
	}
	if _, err := w.Create(t.Context(), token.Params{Parent: "nobody"}); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("Create without the parent = %v", err)
	}
	limited := w.create(token.Params{NumUses: 2})
	if _, err := w.Create(t.Context(), token.Params{Parent: limited.Entry.Key}); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("Create below a token of limited use = %v", err)
	}
	old := w.create(token.Params{TTL: time.Second})
	w.pass(time.Second)
	if _, err := w.Create(t.Context(), token.Params{Parent: old.Entry.Key}); !errors.Is(err, token.ErrInvalid) {
		t.Errorf("Create below an expired token = %v", err)
	}
	if _, err := w.CreateRoot(t.Context(), "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.CreateRoot(t.Context(), "root"); !isInvalidInput(err) {
		t.Errorf("a second token with one ID = %v", err)
	}
	if e, err := w.Lookup(t.Context(), "root"); err != nil || !e.Root() || !e.ExpiresAt.IsZero() {
		t.Errorf("Lookup of the custom root token = %+v, %v", e, err)
	}
}

func TestAllowsIP(t *testing.T) {
	bound := token.Entry{BoundCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("2001:db8::/32")}}
	for addr, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "2001:db8::1%eth0": true, "::1": false} {
		if got := bound.AllowsIP(netip.MustParseAddr(addr)); got != want {
			t.Errorf("AllowsIP(%s) = %v", addr, got)
		}
	}
	if bound.AllowsIP(netip.Addr{}) {
		t.Error("an unknown address is allowed")
	}
	if free := (&token.Entry{}); !free.AllowsIP(netip.Addr{}) {
		t.Error("a token without bounds refuses an address")
	}
}

func TestUseIsCountedOnce(t *testing.T) {
	w := newWorld(t)
	const limit, callers = 20, 50
	c := w.create(token.Params{NumUses: limit})
	var used, last, refused atomic.Int32
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			e, err := w.Lookup(t.Context(), c.Token.Reveal())
			var isLast bool
			if err == nil {
				isLast, err = w.Use(t.Context(), e)
			}
			switch {
			case errors.Is(err, token.ErrInvalid):
				refused.Add(1)
			case err != nil:
				t.Error(err)
			default:
				if used.Add(1); isLast {
					last.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if used.Load() != limit || last.Load() != 1 || refused.Load() != callers-limit {
		t.Errorf("%d uses, %d of them last, %d refused; want %d, 1, %d", used.Load(), last.Load(), refused.Load(), limit, callers-limit)
	}
	w.wantInvalid("used up", c)
	if e, err := w.LookupKey(t.Context(), c.Entry.Key); err != nil || e.NumUses != -1 {
		t.Errorf("LookupKey for the last request = %+v, %v", e, err)
	}
	if _, err := w.Renew(t.Context(), c.Entry.Key, 0); !isInvalidInput(err) {
		t.Errorf("Renew of a used-up token = %v", err)
	}
	// The server never came back to revoke it.
	if n, _, err := w.Sweep(t.Context(), 10); n != 0 || err != nil {
		t.Errorf("Sweep during the last request = %d, %v", n, err)
	}
	w.pass(5 * time.Minute)
	if n, _, err := w.Sweep(t.Context(), 10); n != 1 || err != nil || len(w.left()) != 0 {
		t.Errorf("Sweep after the last request = %d, %v, left %q", n, err, w.left())
	}
}

func TestUseWithoutLimitWritesNothing(t *testing.T) {
	w := newWorld(t)
	c := w.create(token.Params{})
	stop := w.mem.OnChange(func(storage.Change) { t.Error("something was written") })
	defer stop()
	if last, err := w.Use(t.Context(), c.Entry); last || err != nil {
		t.Errorf("Use = %v, %v", last, err)
	}
}

func BenchmarkCreate(b *testing.B) {
	w := newWorld(b)
	b.ReportAllocs()
	for b.Loop() {
		w.create(token.Params{Policies: []string{"default", "app"}, TTL: time.Hour})
	}
}

func BenchmarkLookup(b *testing.B) {
	w := newWorld(b)
	var tokens []string
	for range 10_000 {
		tokens = append(tokens, w.create(token.Params{Policies: []string{"default", "app"}, TTL: time.Hour}).Token.Reveal())
	}
	for _, cached := range []bool{true, false} {
		b.Run(fmt.Sprintf("cached=%v", cached), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if !cached && i%1000 == 0 {
					w.Clear()
				}
				if _, err := w.Lookup(b.Context(), tokens[(i*7)%len(tokens)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
