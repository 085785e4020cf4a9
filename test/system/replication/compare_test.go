package replication

import (
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// TestDifferences is about the comparison itself: it must see each kind of difference.
func TestDifferences(t *testing.T) {
	const mount, other = "s/11111111-2222-3333-4444-555555555555/", "s/99999999-2222-3333-4444-555555555555/"
	value := func(text string, index storage.Index) Value {
		return Value{Plain: []byte(text), At: storage.Position{Epoch: 1, Index: index}}
	}
	primary := &State{Values: map[storage.Key]Value{
		mount + "same": value("x", 3), mount + "value": value("x", 3), mount + "from": value("x", 3), mount + "missing": value("x", 3), other + "a": value("x", 4),
	}}
	secondary := &State{Values: map[storage.Key]Value{
		mount + "same": value("x", 3), mount + "value": value("y", 3), mount + "from": value("x", 2), mount + "extra": value("x", 3),
	}}
	got := Differences(primary, secondary, func(unit string) bool { return !strings.HasPrefix(unit, "mount/9") }, 10)
	want := []string{"extra is only on the secondary", "from is from 1:2, on the primary from 1:3", "missing is missing", "value has another value"}
	if len(got) != len(want) {
		t.Fatalf("found %q, want %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("found %q, want %q", got[i], want[i])
		}
	}
	if got := Differences(primary, secondary, nil, 2); len(got) != 2 {
		t.Errorf("asked for two differences, got %q", got)
	}
	out := Differences(secondary, primary, func(unit string) bool { return !strings.HasPrefix(unit, "mount/9") }, 10)
	if !slices.ContainsFunc(out, func(s string) bool {
		return strings.Contains(s, "99999999") && strings.Contains(s, "where it must not be")
	}) {
		t.Errorf("what is out of scope was not found: %q", out)
	}
	if got := Differences(primary, primary, nil, 10); got != nil {
		t.Errorf("a state differs from itself: %q", got)
	}
}
