package namespace

import (
	"bytes"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/server/snapmap"
	"github.com/coffer-project/coffer/storage"
	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// tree is immutable once published. The next one shares all that did not change, so that a new namespace costs the same however
// many there are.
type tree struct {
	version uint64
	byID    snapmap.Map[string, *Namespace]
	byName  snapmap.Map[name, *Namespace]
	ordered *iradix.Tree[*Namespace] // by order of the name
	hidden  []string                 // ids of those whose name another one has: a secondary may get the new one before the former one is gone
}

// name is what a namespace is called: the id of the one it lies in, and the last segment of its path.
type name struct{ parent, own string }

// order sorts by name within a parent, whose id has no slash.
func (n name) order() []byte { return []byte(n.parent + "/" + n.own) }

func noTree() *tree { return &tree{ordered: iradix.New[*Namespace]()} }

// get returns a namespace, or nil.
func (t *tree) get(id string) *Namespace {
	n, _ := t.byID.Get(id)
	return n
}

// child returns the namespace right below n with this name, also one being deleted, or nil.
func (t *tree) child(n *Namespace, own string) *Namespace {
	child, _ := t.byName.Get(name{n.ID, own})
	return child
}

// children returns those right below n, by name.
func (t *tree) children(n *Namespace) (out []*Namespace) {
	t.ordered.Root().WalkPrefix(name{n.ID, ""}.order(), func(_ []byte, child *Namespace) bool {
		out = append(out, child)
		return false
	})
	return out
}

// find returns the namespace at a path relative to n without outer slashes, also one being deleted, or nil.
func (t *tree) find(n *Namespace, path string) *Namespace {
	for more := path != ""; more && n != nil; {
		var own string
		own, path, more = strings.Cut(path, "/")
		n = t.child(n, own)
	}
	return n
}

// enter follows the leading segments of path that are namespaces below n and returns what is left of it.
func (t *tree) enter(n *Namespace, path string) (*Namespace, string) {
	for {
		own, rest, _ := strings.Cut(path, "/")
		child := t.child(n, own)
		if child == nil || child.Deleting {
			return n, path
		}
		n, path = child, rest
	}
}

// put takes an entry. One that was written as it was, as that of a new namespace's parent is, changes nothing.
func (t *tree) put(e storage.Entry) error {
	r, err := decodeRecord(e)
	if err != nil || r.ID == RootID {
		return err
	}
	if old := t.get(r.ID); old == nil || !bytes.Equal(old.stored.value(), r.value()) {
		t.link(r)
	}
	return nil
}

// link makes a namespace, and those below it again: they take from it whether they are locked, being deleted or within reach.
// They may have been there before it.
func (t *tree) link(r record) {
	n := &Namespace{ID: r.ID, UUID: r.UUID, Path: r.Path, Metadata: r.Metadata, Deleting: r.Deleting, locked: r.Locked, stored: r}
	if p := t.get(r.Parent); p != nil { // otherwise it is known by its id, but out of reach
		n.parent, n.Deleting, n.locked = p, n.Deleting || p.Deleting, n.locked || p.locked
	}
	t.byID = t.byID.With(n.ID, n)
	called := name{r.Parent, n.Name()}
	if there, _ := t.byName.Get(called); there != nil && there.ID != n.ID {
		t.hidden = append(slices.Clip(t.hidden), there.ID)
	}
	t.byName = t.byName.With(called, n)
	t.ordered, _, _ = t.ordered.Insert(called.order(), n)
	t.linkBelow(n)
}

func (t *tree) linkBelow(n *Namespace) {
	for _, child := range t.children(n) {
		t.link(child.stored)
	}
}

func (t *tree) remove(id string) {
	n := t.get(id)
	if n == nil {
		return
	}
	t.byID = t.byID.Without(id)
	t.hidden = slices.DeleteFunc(slices.Clone(t.hidden), func(hidden string) bool { return hidden == id })
	called := name{n.stored.Parent, n.Name()}
	if there, _ := t.byName.Get(called); there == n { // not another one that has its name now
		t.byName = t.byName.Without(called)
		t.ordered, _, _ = t.ordered.Delete(called.order())
		t.show(called)
	}
	t.linkBelow(n)
}

// show gives a name that has become free to one that was hidden behind it.
func (t *tree) show(called name) {
	for _, id := range t.hidden {
		if n := t.get(id); n != nil && (name{n.stored.Parent, n.Name()}) == called {
			t.link(n.stored)
			return
		}
	}
}
