package columns

import (
	"bytes"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/command/table"
)

// Words are coloured in their column only, wherever else they stand.
func TestColours(t *testing.T) {
	var lines bytes.Buffer
	rows := append(Heading([]string{"Secret", "Status", "Cause"}), []string{"SYNCED", "CONFLICT", "SYNCED"}, []string{"ä", "SYNCED", "-"}, []string{"b", "ODD", "-"})
	if err := table.Write(&lines, rows); err != nil {
		t.Fatal(err)
	}
	colour := Colours()
	var out strings.Builder
	for line := range strings.Lines(lines.String() + "\nSYNCED and more\n") {
		out.WriteString(colour(line))
	}
	want := "Secret    Status      Cause\n------    ------      -----\n" +
		"SYNCED    \x1b[35mCONFLICT\x1b[0m    SYNCED\nä         \x1b[32mSYNCED\x1b[0m      -\nb         ODD         -\n\nSYNCED and more\n"
	if out.String() != want {
		t.Errorf("coloured %q, want %q", out.String(), want)
	}
}
