package index

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func refOf(ns, mount string, at int64, id int) Ref {
	r, ok := Parse(fmt.Sprintf("%020d,%s,%s,m%%2F,%d", at, ns, mount, id))
	if !ok {
		panic("bad name")
	}
	return r
}

// TestWindowAgainstModel pushes, notes and takes at random.
func TestWindowAgainstModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	w := NewWindow()
	w.End = TimeName(time.Unix(0, 500))
	model := map[string]int64{}
	for i := range 5000 {
		r := refOf("root", "a", rnd.Int64N(1000), i)
		if w.Note(r.Name); r.At < 500 {
			model[r.Name] = r.At
		}
		w.Note(r.Name) // a second time makes no difference
		if i%3 > 0 {
			continue
		}
		now := rnd.Int64N(100)
		least := int64(1 << 60)
		for _, at := range model {
			least = min(least, at)
		}
		name, ok := w.Take(now)
		if ok != (least <= now) || ok && model[name] != least {
			t.Fatalf("take(%d) = %q, %v; the earliest is %d", now, name, ok, least)
		}
		delete(model, name)
	}
	if len(w.wakes) != len(model) || len(w.held) != len(model) {
		t.Errorf("%d and %d held, want %d", len(w.wakes), len(w.held), len(model))
	}
}

func TestWindowIsBounded(t *testing.T) {
	w := NewWindow()
	w.End = TimeName(time.Unix(0, 1<<60))
	for i := range 2*windowMost + 100 {
		w.Note(refOf("root", "a", int64(1000+i), i).Name)
	}
	if len(w.wakes) != 2*windowMost {
		t.Errorf("%d held, want %d", len(w.wakes), 2*windowMost)
	}
	if first := refOf("root", "a", 1000+2*windowMost, 2*windowMost).Name; w.End != first {
		t.Errorf("the window ends at %q, want the first that was not held, %q", w.End, first)
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("00000000000000000001,root,u1,aws%2F,creds%2Fa%2Fx")
	f.Add("01799999999999999999,abc,3e1f,a%2C%25%2F,x.abc")
	f.Add("00000000000000000001,root,u1,,x")
	f.Add("-0000000000000000001,root,u1,a,x")
	f.Add("00000000000000000001,root,u1,a%2f,x")
	f.Fuzz(func(t *testing.T, name string) {
		r, ok := Parse(name)
		if !ok {
			return
		}
		if got := Name(time.Unix(0, r.At), r.Namespace, r.Mount, r.MountPath, r.ID); got != name {
			t.Errorf("%q became %q", name, got)
		}
		if ns, id, ok := ParseShort(ShortName(r.Namespace, r.ID)); !ok || ns != r.Namespace || id != r.ID {
			t.Errorf("the short name of %q became %q, %q, %v", r.ID, ns, id, ok)
		}
	})
}
