package userpass

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/coffer-project/coffer/storage"
)

// imported knows which users of the mount have a bcrypt hash, and of which cost: rejected logins are padded to the most
// expensive one. It reads all users once, and later those that changed.
type imported struct {
	mu    sync.Mutex // held while users are read
	costs map[string]int
	top   int // the highest of them

	stale struct {
		sync.Mutex
		all   bool
		names map[string]bool
	}
}

const (
	maxStale = 4096 // names; with more, all users are read again
	scanPage = 1000
)

// Changed implements engines.Invalidator.
func (e *engine) Changed(_ storage.Class, keys []storage.Key, reset bool) {
	s := &e.imported.stale
	s.Lock()
	defer s.Unlock()
	for _, key := range keys {
		if name, ok := strings.CutPrefix(string(key), string(usersPrefix)); ok && !s.all {
			if s.names == nil {
				s.names = map[string]bool{}
			}
			s.names[name] = true
		}
	}
	if reset || len(s.names) > maxStale {
		s.all, s.names = true, nil
	}
}

// most returns the cost of the most expensive hash, 0 if no hash was imported.
func (i *imported) most(ctx context.Context, s storage.Reader) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stale.Lock()
	all, names := i.stale.all, i.stale.names
	i.stale.all, i.stale.names = false, nil
	i.stale.Unlock()
	if err := i.read(ctx, s, all, names); err != nil {
		i.stale.Lock()
		i.stale.all = true
		i.stale.Unlock()
		return 0, fmt.Errorf("reading the users' hashes: %w", err)
	}
	if all || len(names) > 0 {
		i.top = slices.Max(append(slices.Collect(maps.Values(i.costs)), 0))
	}
	return i.top, nil
}

func (i *imported) read(ctx context.Context, s storage.Reader, all bool, names map[string]bool) error {
	if all {
		i.costs = map[string]int{}
	}
	for after := storage.Key(""); all; {
		entries, err := s.Scan(ctx, usersPrefix, after, scanPage)
		if err != nil {
			return err
		}
		for _, e := range entries {
			after = e.Key
			// A record that cannot be read is the trouble of its own user's login.
			if u, err := decodeUser(e); err == nil {
				i.set(strings.TrimPrefix(string(e.Key), string(usersPrefix)), u)
			}
		}
		all = len(entries) == scanPage
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		u, err := getUser(ctx, s, name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			u = nil
		}
		i.set(name, u)
	}
	return nil
}

// set notes the cost of a user's hash; u is nil if there is no such user.
func (i *imported) set(name string, u *user) {
	delete(i.costs, name)
	if u == nil {
		return
	}
	if cost := bcryptCost(u.Hash); cost > 0 {
		i.costs[name] = cost
	}
}
