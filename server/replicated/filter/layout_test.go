package filter_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/storage"
)

const someUUID = "0c7e3a52-96d1-4b7c-8f1d-2f6a5b1c9e00"

func TestUnit(t *testing.T) {
	tests := []struct {
		key    storage.Key
		unit   string // "": does not replicate
		anchor bool
	}{
		{"s/" + someUUID + "/data/app", "mount/" + someUUID, false},
		{"s/" + someUUID + "/config", "mount/" + someUUID, false},
		{"s/sys/root/mounts/" + someUUID, "mount/" + someUUID, true},
		{"s/sys/aB3xYz/mounts/" + someUUID, "mount/" + someUUID, true},
		{"s/sys/root/policies/default", "ns/root", false},
		{"s/sys/aB3xYz/policies/a/b", "ns/aB3xYz", false},
		{"s/sys/root/mounts-old/" + someUUID, "ns/root", false},
		{"s/identity/root/entity/1", "ns/root", false},
		{"s/identity/aB3xYz/group-name/x", "ns/aB3xYz", false},
		{"s/namespace/aB3xYz", "ns/aB3xYz", true},
		{"s/sys/audit/file", "global", false},
		{"s/sys/set/keys", "global", false},

		{"s/namespace/root/team", "", false}, // an index: each cluster makes its own
		{"s/namespace/aB3xYz/below", "", false},
		{"s/sys/root/mounts/not-a-uuid", "", false},
		{"s/sys/root/mounts/" + someUUID + "/more", "", false},
		{storage.Key("s/sys/root/mounts/" + strings.ToUpper(someUUID)), "", false},
		{"s/sys/audit", "", false},
		{"s/sys/audit/", "", false},
		{"s/sys/root", "", false},
		{"s/sys/root/", "", false},
		{"s/sys/a.b/policies/x", "", false},
		{"s/sys//policies/x", "", false},
		{"s/identity/root", "", false},
		{"s/identity/audit/entity/1", "", false},
		{"s/token/x/y", "", false}, // an unknown area
		{"s/" + someUUID + "/", "", false},
		{"s/" + someUUID, "", false},
		{"s//x", "", false},
		{"", "", false},
		{"l/" + someUUID + "/data/app", "", false},
		{"l/sys/root/mounts/" + someUUID, "", false},
		{"l/replication/role", "", false},
	}
	for _, tt := range tests {
		unit, ok := filter.Unit(tt.key)
		if unit != tt.unit || ok != (tt.unit != "") {
			t.Errorf("Unit(%q) = %q, %v, want %q", tt.key, unit, ok, tt.unit)
		}
		if got := filter.Anchor(tt.key); got != tt.anchor {
			t.Errorf("Anchor(%q) = %v, want %v", tt.key, got, tt.anchor)
		}
		if !ok || tt.anchor {
			continue
		}
		below := func(p storage.Key) bool { return strings.HasPrefix(string(tt.key), string(p)) }
		if prefixes := filter.Prefixes(unit); !slices.IsSorted(prefixes) || !slices.ContainsFunc(prefixes, below) {
			t.Errorf("Prefixes(%q) = %q, which does not hold %q or is not in order", unit, prefixes, tt.key)
		}
	}
}

func TestSplitUnit(t *testing.T) {
	tests := []struct{ unit, kind, id string }{
		{"global", "global", ""},
		{"ns/root", "ns", "root"},
		{"mount/" + someUUID, "mount", someUUID},
		{"global/x", "", ""},
		{"mount/x", "", ""},
		{"ns/", "", ""},
		{"ns/audit", "", ""},
		{"ns/a/b", "", ""},
		{"", "", ""},
	}
	for _, tt := range tests {
		if kind, id := filter.SplitUnit(tt.unit); kind != tt.kind || id != tt.id {
			t.Errorf("SplitUnit(%q) = %q, %q, want %q, %q", tt.unit, kind, id, tt.kind, tt.id)
		}
		if got := filter.Prefixes(tt.unit); (got == nil) != (tt.kind == "") {
			t.Errorf("Prefixes(%q) = %q", tt.unit, got)
		}
	}
}

// FuzzUnit: what is written by anybody gets at most one unit, and one whose prefixes lead to it.
func FuzzUnit(f *testing.F) {
	f.Add("s/sys/root/mounts/" + someUUID)
	f.Add("s/identity/root/entity/x")
	f.Add("s/" + someUUID + "/a")
	f.Fuzz(func(t *testing.T, text string) {
		key := storage.Key(text)
		unit, ok := filter.Unit(key)
		if !ok {
			if unit != "" || filter.Anchor(key) {
				t.Fatalf("key %q has no unit, but %q", key, unit)
			}
			return
		}
		if kind, _ := filter.SplitUnit(unit); kind == "" || key.Class() != storage.Shared {
			t.Fatalf("Unit(%q) = %q", key, unit)
		}
		below := func(p storage.Key) bool { return strings.HasPrefix(text, string(p)) }
		if !filter.Anchor(key) && !slices.ContainsFunc(filter.Prefixes(unit), below) {
			t.Fatalf("prefixes of %q do not hold %q", unit, key)
		}
	})
}
