package storagetest

import (
	"slices"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

// listed are keys whose folders and neighbours are easily confused: "-", "." and a control character come
// before the slash, "0" right after it.
var listed = []storage.Key{
	"s/m/a", "s/m/a\x01", "s/m/a-", "s/m/a.b/c", "s/m/a/b", "s/m/a/b/c", "s/m/a/c", "s/m/a0", "s/m/aa/b",
	"s/m/b/1/2/3", "s/m/b/1/2/4", "s/m/b/2", "s/m/B", "s/m/é/x", "s/m/\U0010ffff", "s/m/\U0010ffff/\U0010ffff",
	"s/m/z/", "s/m2/a", "s/l/a", "l/m/a",
}

func testList(t *testing.T, s storage.Store) {
	var b storage.Batch
	for _, k := range listed {
		b.Puts = append(b.Puts, put(k, "x"))
	}
	mustCommit(t, s, b)
	all := []string{
		"B", "a", "a\x01", "a-", "a.b/", "a/", "a0", "aa/", "b/", "z/", "é/", "\U0010ffff", "\U0010ffff/",
	}
	tests := []struct {
		name   string
		prefix storage.Key
		after  string
		limit  int
		want   []string
	}{
		{"everything", "s/m/", "", 0, all},
		{"no limit", "s/m/", "", -1, all},
		{"limit", "s/m/", "", 3, all[:3]},
		{"limit counts folders once", "s/m/", "", 7, all[:7]},
		{"limit as many as there are", "s/m/", "", len(all), all},
		{"limit beyond", "s/m/", "", 1000, all},
		{"after a key", "s/m/", "a", 0, all[2:]},
		{"after a folder", "s/m/", "a/", 0, all[6:]},
		{"after what is inside a folder", "s/m/", "a/b", 0, all[6:]},
		{"after what does not exist", "s/m/", "a!", 0, all[3:]},
		{"after and limit", "s/m/", "a-", 2, all[4:6]},
		{"after the last", "s/m/", "\U0010ffff/", 0, nil},
		{"before the first", "s/m/", "\x01", 1, all[:1]},
		{"folder", "s/m/a/", "", 0, []string{"b", "b/", "c"}},
		{"folder, after", "s/m/a/", "b", 1, []string{"b/"}},
		{"deep folder", "s/m/b/1/", "", 0, []string{"2/"}},
		{"deeper folder", "s/m/b/1/2/", "3", 0, []string{"4"}},
		{"key that is the prefix", "s/m/z/", "", 0, nil},
		{"no such folder", "s/m/nowhere/", "", 0, nil},
		{"a key is no folder", "s/m/a0/", "", 0, nil},
		{"last possible folder", "s/m/\U0010ffff/", "", 0, []string{"\U0010ffff"}},
		{"other mount", "s/m2/", "", 0, []string{"a"}},
		{"areas", "s/", "", 0, []string{"l/", "m/", "m2/"}},
		{"other class", "l/m/", "", 0, []string{"a"}},
	}
	for _, tt := range tests {
		got, err := s.List(t.Context(), tt.prefix, tt.after, tt.limit)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: List(%q, %q, %d) = %q, %v; want %q", tt.name, tt.prefix, tt.after, tt.limit, got, err, tt.want)
		}
		if len(got) == 0 && got != nil {
			t.Errorf("%s: List = empty slice, want nil", tt.name)
		}
	}
	t.Run("pages", func(t *testing.T) {
		for size := 1; size <= 4; size++ {
			var got []string
			for after := ""; ; after = got[len(got)-1] {
				page, err := s.List(t.Context(), "s/m/", after, size)
				if err != nil {
					t.Fatal(err)
				}
				if len(page) == 0 {
					break
				}
				got = append(got, page...)
			}
			if !slices.Equal(got, all) {
				t.Errorf("pages of %d: %q, want %q", size, got, all)
			}
		}
	})
	// A folder goes with its last key.
	mustCommit(t, s, storage.Batch{Deletes: []storage.Key{"s/m/a.b/c", "s/m/b/1/2/3"}})
	got, err := s.List(t.Context(), "s/m/", "a-", 3)
	if want := []string{"a/", "a0", "aa/"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("List after a folder's last key was deleted = %q, %v; want %q", got, err, want)
	}
	if got, err = s.List(t.Context(), "s/m/b/1/", "", 0); err != nil || !slices.Equal(got, []string{"2/"}) {
		t.Errorf("List of a folder that lost one of two keys = %q, %v; want it still there", got, err)
	}
}

func testScan(t *testing.T, s storage.Store) {
	var b storage.Batch
	for _, k := range listed {
		b.Puts = append(b.Puts, put(k, "value of "+string(k)))
	}
	mustCommit(t, s, b)
	all := []storage.Key{
		"s/m/B", "s/m/a", "s/m/a\x01", "s/m/a-", "s/m/a.b/c", "s/m/a/b", "s/m/a/b/c", "s/m/a/c", "s/m/a0",
		"s/m/aa/b", "s/m/b/1/2/3", "s/m/b/1/2/4", "s/m/b/2", "s/m/z/", "s/m/é/x", "s/m/\U0010ffff",
		"s/m/\U0010ffff/\U0010ffff",
	}
	tests := []struct {
		name          string
		prefix, after storage.Key
		limit         int
		want          []storage.Key
	}{
		{"mount", "s/m/", "", 0, all},
		{"no limit", "s/m/", "", -5, all},
		{"limit", "s/m/", "", 4, all[:4]},
		{"limit beyond", "s/m/", "", 1000, all},
		{"after", "s/m/", "s/m/a-", 0, all[4:]},
		{"after and limit", "s/m/", "s/m/a-", 2, all[4:6]},
		{"after what does not exist", "s/m/", "s/m/a!", 0, all[3:]},
		{"after before the prefix", "s/m/", "s/", 2, all[:2]},
		{"after beyond the prefix", "s/m/", "s/n", 0, nil},
		{"after the last", "s/m/", all[len(all)-1], 0, nil},
		{"within a folder", "s/m/a/", "", 0, all[5:8]},
		{"part of a name", "s/m/a", "", 0, all[1:10]},
		{"one key", "s/m/a0", "", 0, all[8:9]},
		{"part of an area", "s/m", "s/m/é", 0, append(slices.Clone(all[14:]), "s/m2/a")},
		{"nothing", "s/m/nothing", "", 0, nil},
		{"class", "l/", "", 0, []storage.Key{"l/m/a"}},
	}
	for _, tt := range tests {
		var got []storage.Key
		for _, e := range mustScan(t, s, tt.prefix, tt.after, tt.limit) {
			got = append(got, e.Key)
			if want := "value of " + string(e.Key); string(e.Value) != want {
				t.Errorf("%s: value of %q is %q", tt.name, e.Key, e.Value)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: Scan(%q, %q, %d) = %q, want %q", tt.name, tt.prefix, tt.after, tt.limit, got, tt.want)
		}
	}
	// The slice is the caller's.
	entries := mustScan(t, s, "s/m/", "", 0)
	clear(entries)
	if again := mustScan(t, s, "s/m/", "", 0); len(again) != len(all) || again[0].Key != all[0] {
		t.Error("clearing the slice of one Scan changed the next one")
	}
}
