package cloud3sm

import (
	"slices"
	"strings"
	"testing"
)

func TestVersionsOf(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("1 ", maxNoted+1))
	tests := []struct {
		note string
		n    int64
		want []int64
	}{
		{"", 1, []int64{1}},
		{"1", 1, []int64{1}},
		{"1", 2, []int64{1, 2}},
		{"3 5 8", 9, []int64{3, 5, 8, 9}},
		{"3 5 8", 5, []int64{3, 5}},
		{"9", 5, []int64{5}},
		{"5 3", 9, []int64{9}},
		{"3 3", 9, []int64{9}},
		{"0 3", 9, []int64{9}},
		{"-3 3", 9, []int64{9}},
		{"3  5", 9, []int64{9}},
		{" 3", 9, []int64{9}},
		{"latest", 9, []int64{9}},
		{"3,5", 9, []int64{9}},
		{"99999999999999999999", 9, []int64{9}},
		{long, 9, []int64{9}},
	}
	for _, test := range tests {
		if got := versionsOf(test.note, test.n); !slices.Equal(got, test.want) {
			t.Errorf("versionsOf(%q, %d) = %v, want %v", test.note, test.n, got, test.want)
		}
	}
}

// FuzzVersionsOf: whatever the note says, n is ours and the newest, the numbers rise, and what is written is read again.
func FuzzVersionsOf(f *testing.F) {
	f.Add("1 2 3", int64(4))
	f.Add("", int64(1))
	f.Add("7 x", int64(3))
	f.Fuzz(func(t *testing.T, note string, n int64) {
		if n < 1 {
			return
		}
		got := versionsOf(note, n)
		if got[len(got)-1] != n || got[0] < 1 || !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("versionsOf(%q, %d) = %v", note, n, got)
		}
		if len(got) <= maxNoted {
			if again := versionsOf(versionsText(got), n); !slices.Equal(again, got) {
				t.Errorf("%v is read again as %v", got, again)
			}
		}
	})
}
