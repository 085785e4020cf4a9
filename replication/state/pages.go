package state

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/replication"
	"github.com/coffer-project/coffer/replication/digest"
	"github.com/coffer-project/coffer/storage"
)

// Prefixes of keys.
const (
	sharedPrefix      storage.Key = "s/"
	replicationPrefix storage.Key = "l/replication/"
	progressPrefix    storage.Key = "l/replication/progress/"
)

func isBelow(key, prefix storage.Key) bool { return strings.HasPrefix(string(key), string(prefix)) }

// found is an entry that a walk has come to, with a sealed value.
type found struct {
	key    storage.Key
	mod    storage.Position
	sealed []byte // valid during the call
}

// walkUnit calls fn for each key of a unit but its anchor, in byte order after a key, until fn returns false.
func (l *Local) walkUnit(ctx context.Context, z replication.Frozen, unit replication.Unit, after storage.Key, fn func(found) bool) error {
	for _, prefix := range l.o.Layout.Prefixes(unit) {
		if after > prefix && !isBelow(after, prefix) {
			continue // behind it
		}
		more := true
		n := 0
		err := z.Walk(ctx, prefix, after, func(key storage.Key, mod storage.Position, sealed []byte) bool {
			if n++; n%1024 == 0 && ctx.Err() != nil {
				return false
			}
			if of, ok := l.o.Layout.Unit(key); ok && of == unit && !l.o.Layout.Anchor(key) {
				more = fn(found{key, mod, sealed})
			}
			return more
		})
		if err = errors.Join(err, ctx.Err()); err != nil || !more {
			return err
		}
	}
	return nil
}

// anchors returns a unit's anchors as they are in the state, frozen at the time.
func (l *Local) anchors(ctx context.Context, t *Trees, unit replication.Unit) (z replication.Frozen, as resolver, anchors []storage.Entry, err error) {
	for range 100 { // if it is moved all the time
		before, err := t.anchorsOf(ctx, unit)
		if err != nil {
			return nil, as, nil, err
		}
		z, as, err := l.freeze(ctx)
		if err != nil {
			return nil, as, nil, err
		}
		// If the trees of a time before the state and of one after it agree, they are right for the state.
		after, err := t.anchorsOf(ctx, unit)
		if err == nil && slices.Equal(before, after) {
			anchors, err = entries(z, after)
			if err == nil {
				return z, as, anchors, nil
			}
		}
		z.Close()
		if err != nil && !errors.Is(err, storage.ErrNotFound) {
			return nil, as, nil, err
		}
	}
	return nil, as, nil, errors.New("the anchor of a unit is not where the digests have it")
}

func entries(z replication.Frozen, keys []storage.Key) ([]storage.Entry, error) {
	var out []storage.Entry
	for _, key := range keys {
		e, err := z.Get(key)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// modOf returns where an entry of the state was written.
func (r resolver) modOf(e storage.Entry) storage.Position { return r.mod(e.Origin, e.Version) }

// maxWalk is how many keys one page looks at, when few of them are in the buckets.
const maxWalk = 100_000

// page is what Source.Page answers, with values still sealed.
func (l *Local) page(ctx context.Context, t *Trees, unit replication.Unit, after storage.Key, buckets *digest.Buckets, values bool, maxBytes int) (items []replication.Item, last storage.Key, done bool, at storage.Index, err error) {
	// The anchor is only needed at the end, but has to be of the same state.
	z, as, anchors, err := l.anchors(ctx, t, unit)
	if err != nil {
		return nil, "", false, 0, err
	}
	defer z.Close()
	done = true
	last = after
	walked := 0
	var bad error
	err = l.walkUnit(ctx, z, unit, after, func(f found) bool {
		if maxBytes <= 0 || walked == maxWalk {
			done = false
			return false
		}
		walked++
		last = f.key
		if !buckets.Has(f.key) {
			return true
		}
		item := replication.Item{Key: f.key, Mod: as.position(f.mod)}
		if values {
			item.Value, bad = l.o.Store.OpenValue(ctx, f.key, f.sealed)
		}
		maxBytes -= itemBytes(&item)
		items = append(items, item)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, "", false, 0, err
	}
	if done {
		for _, e := range anchors { // whatever the buckets: a page without one says that there is none
			item := replication.Item{Key: e.Key, Mod: as.modOf(e)}
			if values {
				if item.Value, err = l.o.Store.OpenValue(ctx, e.Key, e.Value); err != nil {
					return nil, "", false, 0, err
				}
			}
			items = append(items, item)
		}
		slices.SortFunc(items, func(a, b replication.Item) int { return strings.Compare(string(a.Key), string(b.Key)) })
	}
	return items, last, done, z.Index(), nil
}

// itemBytes is about what an item takes on the wire.
func itemBytes(i *replication.Item) int { return len(i.Key) + len(i.Value) + 32 }
