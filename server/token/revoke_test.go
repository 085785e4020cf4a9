package token_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

func TestRevokeTree(t *testing.T) {
	w := newWorld(t)
	root := w.create(token.Params{})
	other := w.child(root)
	top := w.child(root)
	tree := []token.Created{top}
	for i := range 150 { // wide and deep
		tree = append(tree, w.child(tree[i/3]))
	}
	deep := top
	for range 60 {
		deep = w.child(deep)
		tree = append(tree, deep)
	}
	before := len(w.left())
	if err := w.Revoke(t.Context(), top.Entry.Key); err != nil {
		t.Fatal(err)
	}
	for _, c := range tree {
		w.wantInvalid("in the tree", c)
	}
	w.wantValid("the parent", root)
	w.wantValid("the sibling", other)
	// Each token of the tree had four entries: itself, its accessor, its parent's index, its expiry.
	if left := w.left(); len(left) != before-4*len(tree) {
		t.Errorf("%d entries left of %d, with %d tokens gone", len(left), before, len(tree))
	}
	if len(w.revoked) != len(tree) || w.revoked[len(tree)-1] != top.Entry.Key {
		t.Errorf("RevokeToken was called %d times, want once for each of %d tokens and last for the top", len(w.revoked), len(tree))
	}
	if err := w.Revoke(t.Context(), top.Entry.Key); err != nil {
		t.Errorf("revoking what is gone: %v", err)
	}
}

func TestRevokeOrphan(t *testing.T) {
	w := newWorld(t)
	top := w.create(token.Params{})
	var children []token.Created
	for range 70 {
		children = append(children, w.child(top))
	}
	grandchild := w.child(children[0])
	if err := w.RevokeOrphan(t.Context(), top.Entry.Key); err != nil {
		t.Fatal(err)
	}
	w.wantInvalid("the token", top)
	for _, c := range append(children, grandchild) {
		w.wantValid("below", c)
	}
	if e, _ := w.LookupKey(t.Context(), children[0].Entry.Key); e == nil || !e.Orphan() {
		t.Error("a child is no orphan")
	}
	if e, _ := w.LookupKey(t.Context(), grandchild.Entry.Key); e == nil || e.Orphan() {
		t.Error("a grandchild lost its parent")
	}
	if err := w.Revoke(t.Context(), children[0].Entry.Key); err != nil {
		t.Fatal(err)
	}
	w.wantInvalid("the grandchild of a revoked orphan", grandchild)
	if r, err := w.Tidy(t.Context()); err != nil || r != (token.TidyResult{Tokens: 69}) {
		t.Errorf("Tidy = %+v, %v", r, err)
	}
}

// faulty fails all commits from the n-th on.
type faulty struct {
	storage.Store
	mu   sync.Mutex
	left int
}

var errFault = errors.New("fault")

func (f *faulty) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return 0, errFault
	}
	f.left--
	return f.Store.Commit(ctx, b)
}

// Wherever a revocation is cut, the token is invalid from the first write on, and Sweep does the rest.
func TestInterruptedRevocationIsFinished(t *testing.T) {
	for _, orphaning := range []bool{false, true} {
		for cut := 1; ; cut++ {
			f := &faulty{left: -1}
			w := newWorld(t, func(o *token.Options) { f.Store = o.Store; o.Store = f })
			top := w.create(token.Params{Policies: []string{"root"}}) // never expires: not in the expiry index
			var below []token.Created
			for i := range 80 {
				c := w.child(top)
				if below = append(below, c); i < 3 {
					below = append(below, w.child(c))
				}
			}
			revoke := w.Revoke
			if orphaning {
				revoke = w.RevokeOrphan
			}
			f.left = cut
			err := revoke(t.Context(), top.Entry.Key)
			if err == nil {
				if cut < 4 {
					t.Fatalf("the revocation took %d writes only: the test cuts nothing", cut)
				}
				break
			}
			if !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			w.wantInvalid("after the first write", top)
			f.left = -1
			for range 3 {
				if _, _, err := w.Sweep(t.Context(), 1000); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range below {
				if orphaning {
					w.wantValid("a child of a token revoked alone", c)
				} else {
					w.wantInvalid("a child", c)
				}
			}
			if left := w.left(); !orphaning && len(left) != 0 {
				t.Fatalf("cut after %d writes, left: %q", cut, left)
			}
			if r, err := w.Tidy(t.Context()); err != nil || orphaning && r != (token.TidyResult{Tokens: len(below)}) {
				t.Errorf("Tidy = %+v, %v", r, err)
			}
		}
	}
}

// While a tree is revoked, others keep adding to it. Nothing of it may survive.
func TestRevokeAgainstCreate(t *testing.T) {
	for range 3 {
		w := newWorld(t)
		top := w.create(token.Params{})
		var mu sync.Mutex
		tree := []token.Created{top}
		pick := func() token.Created {
			mu.Lock()
			defer mu.Unlock()
			return tree[rand.IntN(len(tree))]
		}
		for range 20 {
			tree = append(tree, w.child(pick()))
		}
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				for range 60 {
					c, err := w.Create(t.Context(), token.Params{Parent: pick().Entry.Key, Path: "auth/token/create"})
					if errors.Is(err, token.ErrInvalid) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					tree = append(tree, c)
					mu.Unlock()
				}
			})
		}
		for range 2 { // two at once, and renewals in between
			wg.Go(func() {
				if err := w.Revoke(t.Context(), top.Entry.Key); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				for range 60 {
					if _, err := w.Renew(t.Context(), pick().Entry.Key, time.Hour); err != nil && !errors.Is(err, token.ErrInvalid) {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		for _, c := range tree {
			w.wantInvalid("in the tree", c)
		}
		// Two revocations at once may leave removing to each other, but both end only when all is gone.
		if left := w.left(); len(left) != 0 {
			t.Fatalf("left: %q", left)
		}
	}
}

func TestSweep(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	forever := w.create(token.Params{Policies: []string{"root"}})
	long := w.create(token.Params{TTL: 10 * time.Hour})
	var short []token.Created
	for range 30 {
		short = append(short, w.create(token.Params{TTL: time.Hour}))
	}
	child := w.create(token.Params{Parent: short[0].Entry.Key, TTL: 100 * time.Hour})
	if n, next, err := w.Sweep(ctx, 100); n != 0 || err != nil || !next.Equal(short[0].Entry.ExpiresAt) {
		t.Errorf("Sweep before anything expires = %d, %v, %v", n, next, err)
	}
	w.pass(time.Hour)
	w.failing[short[3].Entry.Key] = true
	ten, next, err := w.Sweep(ctx, 10)
	if ten != 10 && ten != 9 || next.After(w.now()) || next.IsZero() { // the one that fails may be among the ten
		t.Errorf("Sweep of ten = %d, %v, %v", ten, next, err)
	}
	n, next, err := w.Sweep(ctx, 100)
	if n+ten != 29 || next.After(w.now()) || next.IsZero() || !errors.Is(err, errRefused) {
		t.Errorf("Sweep with one that cannot be removed = %d, %v, %v", n, next, err)
	}
	delete(w.failing, short[3].Entry.Key)
	if n, next, err := w.Sweep(ctx, 100); n != 1 || err != nil || !next.Equal(long.Entry.ExpiresAt) {
		t.Errorf("Sweep of the last = %d, %v, %v", n, next, err)
	}
	w.wantInvalid("the child of an expired token", child)
	w.wantValid("not expired", long)
	w.wantValid("never expires", forever)
	slices.Sort(w.revoked)
	if got := len(slices.Compact(w.revoked)); got != len(short)+1 {
		t.Errorf("RevokeToken was called for %d tokens, want %d", got, len(short)+1)
	}
}

func TestTidyMends(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	parent := w.create(token.Params{})
	child := w.child(parent)
	stray := w.child(parent)
	find := func(prefix storage.Key, part string) storage.Key {
		t.Helper()
		for _, k := range w.left() {
			if strings.HasPrefix(string(k), string(prefix)) && strings.Contains(string(k), part) {
				return k
			}
		}
		t.Fatalf("no entry below %s with %s", prefix, part)
		return ""
	}
	// A child whose parent is gone cannot come about by itself.
	strayID := storage.Key("l/token/id/" + stray.Entry.Key)
	e, err := w.mem.Get(ctx, strayID)
	if err != nil {
		t.Fatal(err)
	}
	lost := strings.Replace(string(e.Value), parent.Entry.Key, "lost", 1)
	damage := storage.Batch{
		Puts: []storage.Put{
			{Key: strayID, Value: []byte(lost)},
			{Key: "l/token/accessor/nobody", Value: []byte(`{"format":1,"accessor":"x","token":"nobody"}`)},
			{Key: "l/token/child/nobody/nobody", Value: []byte("1")},
			{Key: "l/token/expiry/00000000000000000001/" + storage.Key(child.Entry.Key), Value: []byte("1")},
			{Key: "l/token/expiry/garbage", Value: []byte("1")},
		},
		Deletes: []storage.Key{
			find("l/token/child/"+storage.Key(parent.Entry.Key), child.Entry.Key),
			find("l/token/expiry/", child.Entry.Key),
		},
	}
	if _, err := w.mem.Commit(ctx, damage); err != nil {
		t.Fatal(err)
	}
	r, err := w.Tidy(ctx)
	want := token.TidyResult{Tokens: 3, Accessors: 1, Children: 3, Expiries: 3, Revoked: 1}
	if err != nil || r != want {
		t.Errorf("Tidy = %+v, %v, want %+v", r, err, want)
	}
	w.wantInvalid("without parent", stray)
	w.wantValid("mended", child)
	if r, err := w.Tidy(ctx); err != nil || r != (token.TidyResult{Tokens: 2}) {
		t.Errorf("the second Tidy = %+v, %v", r, err)
	}
	if err := w.Revoke(ctx, parent.Entry.Key); err != nil {
		t.Fatal(err)
	}
	w.wantInvalid("below a revoked parent", child)
	if left := w.left(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAccessors(t *testing.T) {
	w := newWorld(t)
	var want []string
	for range 5 {
		want = append(want, w.create(token.Params{}).Entry.Accessor)
	}
	slices.Sort(want)
	if got, err := w.Accessors(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("Accessors = %v, %v, want %v", got, err, want)
	}
}
