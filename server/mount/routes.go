package mount

import (
	"maps"
	"slices"

	"github.com/coffer-project/coffer/server/snapmap"
	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// routes is immutable once published. The next one shares all that did not change, so that it costs the same however many mounts
// there are.
type routes struct {
	version    uint64
	byPath     snapmap.Map[place, *Mounted] // those that take requests
	byUUID     snapmap.Map[string, *Mounted]
	byAccessor snapmap.Map[string, *Mounted]
	ordered    *iradix.Tree[[]*Mounted] // by order: all that are at a place
	moving     map[string]*Mounted      // by UUID
	types      map[string]int           // how many mounts have each
}

// place is where a mount is: a namespace id and a path.
type place struct{ namespace, path string }

// order sorts by path within a namespace, whose id has no slash.
func (p place) order() []byte { return []byte(p.namespace + "/" + p.path) }

func noRoutes() *routes {
	return &routes{ordered: iradix.New[[]*Mounted](), moving: map[string]*Mounted{}, types: map[string]int{}}
}

// at returns the mount that takes the requests of exactly this path, or nil.
func (r *routes) at(namespace, path string) *Mounted {
	m, _ := r.byPath.Get(place{namespace, path})
	return m
}

// under returns the mounts of a namespace whose paths begin so, in path order, those being deleted or moved too.
func (r *routes) under(namespace, prefix string) (out []*Mounted) {
	r.ordered.Root().WalkPrefix(place{namespace, prefix}.order(), func(_ []byte, there []*Mounted) bool {
		out = append(out, there...)
		return false
	})
	return out
}

// draft is routes that are being made.
type draft struct {
	*routes
	places *iradix.Txn[[]*Mounted] // of routes.ordered
}

func (r *routes) change() draft {
	d := draft{&routes{}, r.ordered.Txn()}
	*d.routes = *r
	d.moving, d.types = maps.Clone(r.moving), maps.Clone(r.types)
	return d
}

func (d draft) done() *routes {
	d.ordered = d.places.Commit()
	return d.routes
}

func (d draft) add(m *Mounted) {
	d.byUUID, d.byAccessor = d.byUUID.With(m.UUID, m), d.byAccessor.With(m.Accessor, m)
	d.types[m.Type]++
	if m.Moving != nil && !m.Deleting {
		d.moving[m.UUID] = m
	}
	there, _ := d.places.Get(place{m.Namespace, m.Path}.order())
	d.put(place{m.Namespace, m.Path}, append(slices.Clip(there), m))
}

func (d draft) remove(uuid string) {
	m, ok := d.byUUID.Get(uuid)
	if !ok {
		return
	}
	d.byUUID, d.byAccessor = d.byUUID.Without(uuid), d.byAccessor.Without(m.Accessor)
	d.types[m.Type]--
	delete(d.moving, uuid)
	there, _ := d.places.Get(place{m.Namespace, m.Path}.order())
	d.put(place{m.Namespace, m.Path}, slices.DeleteFunc(slices.Clone(there), func(other *Mounted) bool { return other == m }))
}

// put notes which mounts are at a place. A primary does not know of a secondary's local mounts, and may have given a path that one
// of them has: on the secondary the local one keeps it.
func (d draft) put(at place, mounts []*Mounted) {
	if len(mounts) > 0 {
		d.places.Insert(at.order(), mounts)
	} else {
		d.places.Delete(at.order())
	}
	var taking *Mounted
	for _, m := range mounts {
		if !m.Deleting && m.Moving == nil && (taking == nil || m.Local) {
			taking = m
		}
	}
	if taking != nil {
		d.byPath = d.byPath.With(at, taking)
	} else {
		d.byPath = d.byPath.Without(at)
	}
}
