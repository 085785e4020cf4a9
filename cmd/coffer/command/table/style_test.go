package table_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/cmd/coffer/command/table"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func TestFold(t *testing.T) {
	long := strings.Repeat("word ", 30)
	token := strings.Repeat("x", 120)
	tests := []struct {
		name string
		rows [][]string
		want string
	}{
		{"fits", [][]string{{"A", "B"}, {"-", "-"}, {"a", "b"}}, "A    B\n-    -\na    b\n"},
		{"last column", [][]string{{"Key", "Value"}, {"---", "-----"}, {"why", "one two three four five six seven eight nine ten"}, {"b", "c"}},
			"Key  Value\n---  -----\nwhy  one two three four five six seven\n     eight nine ten\nb    c\n"},
		{"a word stays whole", [][]string{{"Key", "Value"}, {"---", "-----"}, {"token", token}}, "Key    Value\n---    -----\ntoken  " + token + "\n"},
		{"lines stay", [][]string{{"Key", "Value"}, {"---", "-----"}, {"cert", token + "\nsecond  line"}}, "Key   Value\n---   -----\ncert  " + token + "\nsecond  line\n"},
		{"below", [][]string{{"Destination", "Secret", "Cause"}, {"-----------", "------", "-----"}, {"cloud1-sm/production", "secret/app", strings.Repeat("x", 20) + " is tried again"}, {"b", "c", "-"}},
			"Destination           Secret\n-----------           ------\ncloud1-sm/production  secret/app\n    xxxxxxxxxxxxxxxxxxxx is tried again\nb                     c\n"},
		{"stacked", [][]string{{"Destination", "Secret", "Cause"}, {"-----------", "------", "-----"}, {"cloud1-sm/production", strings.Repeat("s", 30), "none"}, {"b", "c", "-"}},
			"Destination  cloud1-sm/production\nSecret       " + strings.Repeat("s", 30) + "\nCause        none\n\nDestination  b\nSecret       c\n"},
	}
	for _, tt := range tests {
		var out strings.Builder
		if err := (table.Style{Width: 42}).Write(&out, tt.rows); err != nil || out.String() != tt.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", tt.name, err, out.String(), tt.want)
		}
	}
	var out strings.Builder
	if err := (table.Style{Width: 100}).Write(&out, [][]string{{"Name", "Description", "Another", "Note"}, {"----", "-----------", "-------", "----"}, {"a", long, long, long}}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	out.Reset()
	if err := table.Write(&out, [][]string{{"Key", "Value"}, {"---", "-----"}, {"a", long}}); err != nil || strings.Count(out.String(), "\n") != 3 {
		t.Errorf("programs get %q, %v", &out, err)
	}
}

func TestTimes(t *testing.T) {
	style := table.Style{Now: now}
	for _, tt := range []struct{ key, value, want string }{
		{"expire_time", "2026-12-01T12:00:00.123456789Z", "2026-12-01T12:00:00Z (in 3 days)"},
		{"last_renewal", "2026-11-28T11:29:00Z", "2026-11-28T11:29:00Z (31 minutes ago)"},
		{"creation_time", "1795867199", "2026-11-28T11:59:59Z (1 second ago)"},
		{"deletion_time", "n/a", "n/a"},
		{"creation_ttl", "768", "768"},
		{"password", "2026-12-01T12:00:00Z", "2026-12-01T12:00:00Z"},
	} {
		if got := style.Cell(tt.key, tt.value); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.key, got, tt.want)
		}
		if got := (table.Style{}).Cell(tt.key, tt.value); got != tt.value {
			t.Errorf("%s for programs: %q", tt.key, got)
		}
	}
	rows := [][]string{{"Node", "Expiration"}, {"----", "----------"}, {"a", "2026-11-28T14:30:00Z"}}
	var shown, exact strings.Builder
	if err := style.Write(&shown, rows); err != nil || !strings.HasSuffix(shown.String(), "a       in 2 hours\n") {
		t.Errorf("%q, %v", &shown, err)
	}
	if err := table.Write(&exact, rows); err != nil || !strings.HasSuffix(exact.String(), "2026-11-28T14:30:00Z\n") {
		t.Errorf("for programs %q, %v", &exact, err)
	}
}

// States have a colour in their column, or beside their key, and nothing else has.
func TestStates(t *testing.T) {
	var out strings.Builder
	style := table.Style{Colours: true}
	if err := style.Write(&out, [][]string{{"Status", "Name"}, {"------", "----"}, {"SYNCED", "SYNCED"}, {"ODD", "x"}}); err != nil {
		t.Fatal(err)
	}
	if err := style.Write(&out, [][]string{{"Key", "Value"}, {"---", "-----"}, {"Sealed", "true"}, {"Name", "true"}}); err != nil {
		t.Fatal(err)
	}
	want := "Status    Name\n------    ----\n\x1b[32mSYNCED\x1b[0m    SYNCED\nODD       x\nKey       Value\n---       -----\nSealed    \x1b[31mtrue\x1b[0m\nName      true\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
