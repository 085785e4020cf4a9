package storage_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// cached returns what the cache holds under key, or "" if it had to load.
func cached(t *testing.T, c *storage.Cache[string], key storage.Key) string {
	t.Helper()
	errLoaded := errors.New("loaded")
	v, err := c.Get(t.Context(), key, func(context.Context) (string, error) { return "", errLoaded })
	if err != nil && !errors.Is(err, errLoaded) {
		t.Fatal(err)
	}
	return v
}

func fill(t *testing.T, c *storage.Cache[string], keys ...storage.Key) {
	t.Helper()
	for _, k := range keys {
		if _, err := c.Get(t.Context(), k, func(context.Context) (string, error) { return "at " + string(k), nil }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCache(t *testing.T) {
	tests := []struct {
		name string
		ch   storage.Change
		a, b bool // still there
	}{
		{"nothing", storage.Change{}, true, true},
		{"another key", storage.Change{Entries: []storage.Entry{{Key: "s/m/c", Version: 1}, {Key: "s/m/d"}}}, true, true},
		{"a prefix of the key", storage.Change{Entries: []storage.Entry{{Key: "s/m/"}}}, true, true},
		{"put", storage.Change{Entries: []storage.Entry{{Key: "s/m/a", Version: 1}}}, false, true},
		{"deleted", storage.Change{Entries: []storage.Entry{{Key: "s/m/b"}}}, true, false},
		{"both", storage.Change{Entries: []storage.Entry{{Key: "s/m/a", Version: 1}, {Key: "s/m/b"}}}, false, false},
		{"reset", storage.Change{Reset: true}, false, false},
	}
	for _, tt := range tests {
		c := storage.NewCache[string](10)
		fill(t, c, "s/m/a", "s/m/b")
		c.Apply(tt.ch)
		if a, b := cached(t, c, "s/m/a") != "", cached(t, c, "s/m/b") != ""; a != tt.a || b != tt.b {
			t.Errorf("%s: kept a %v and b %v, want %v and %v", tt.name, a, b, tt.a, tt.b)
		}
	}
}

// TestCacheLoadRace changes the key while it is loaded: before, after and instead of the read.
func TestCacheLoadRace(t *testing.T) {
	for name, ch := range map[string]storage.Change{
		"put":   {Entries: []storage.Entry{{Key: "s/m/a", Version: 1}}},
		"reset": {Reset: true},
	} {
		c := storage.NewCache[string](10)
		got, err := c.Get(t.Context(), "s/m/a", func(context.Context) (string, error) {
			stale := "old"
			c.Apply(ch)
			return stale, nil
		})
		if got != "old" || err != nil {
			t.Errorf("%s: Get = %q, %v", name, got, err)
		}
		if v := cached(t, c, "s/m/a"); v != "" {
			t.Errorf("%s: the cache kept %q, which was loaded before the change", name, v)
		}
	}
	c := storage.NewCache[string](10)
	if _, err := c.Get(t.Context(), "s/m/a", func(context.Context) (string, error) { c.Clear(); return "old", nil }); err != nil {
		t.Fatal(err)
	}
	if v := cached(t, c, "s/m/a"); v != "" {
		t.Errorf("the cache kept %q, which was loaded before Clear", v)
	}
}

func TestCacheErrors(t *testing.T) {
	c := storage.NewCache[string](10)
	if _, err := c.Get(t.Context(), "s/m/a", func(context.Context) (string, error) { return "half", storage.ErrSealed }); !errors.Is(err, storage.ErrSealed) {
		t.Errorf("Get = %v, want the error of load", err)
	}
	if v := cached(t, c, "s/m/a"); v != "" {
		t.Errorf("the cache kept %q from a failed load", v)
	}
}

func TestCacheSize(t *testing.T) {
	for _, size := range []int{-1, 0, 1, 3} {
		c := storage.NewCache[string](size)
		keys := []storage.Key{"s/m/a", "s/m/b", "s/m/c", "s/m/d", "s/m/e"}
		fill(t, c, keys...)
		kept := 0
		for _, k := range keys {
			if cached(t, c, k) != "" {
				kept++
			}
		}
		if want := max(size, 0); kept != want {
			t.Errorf("a cache of %d kept %d objects", size, kept)
		}
		if size > 0 && cached(t, c, "s/m/e") == "" {
			t.Errorf("a cache of %d dropped what came last", size)
		}
	}
}

// TestCacheFollowsStore runs readers against a writer. Each read after a commit must see it.
func TestCacheFollowsStore(t *testing.T) {
	var mem storage.Memory
	c := storage.NewCache[int](10)
	defer mem.OnChange(c.Apply)()
	get := func() (int, error) {
		return c.Get(context.Background(), "s/m/a", func(ctx context.Context) (int, error) {
			e, err := mem.Get(ctx, "s/m/a")
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(string(e.Value))
		})
	}
	mustCommit(t, &mem, storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: []byte("0")}}})
	done := make(chan struct{}) // closed when the writer has finished
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			last := 0
			for {
				v, err := get()
				if err != nil || v < last {
					t.Errorf("read %d, %v after %d", v, err, last)
					return
				}
				last = v
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := 1; i <= 2000; i++ {
		mustCommit(t, &mem, storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: []byte(strconv.Itoa(i))}}})
		if v, err := get(); err != nil || v != i {
			t.Errorf("committed %d, read %d, %v", i, v, err)
			break
		}
	}
	close(done)
	wg.Wait()
}
