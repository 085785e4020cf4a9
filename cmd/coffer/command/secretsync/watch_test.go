package secretsync

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
)

// Words are coloured in their column only, wherever else they stand.
func TestStatusColours(t *testing.T) {
	var lines bytes.Buffer
	rows := append(heading([]string{"Secret", "Status", "Cause"}), []string{"SYNCED", "CONFLICT", "SYNCED"}, []string{"ä", "SYNCED", "-"}, []string{"b", "ODD", "-"})
	if err := table.Write(&lines, rows); err != nil {
		t.Fatal(err)
	}
	colour := statusColours()
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

// On a terminal, how far all is comes first, then what is not settled, whatever of it has room.
func TestSyncRedraw(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := at.Add(5 * time.Minute)
	s := &status{Secrets: []entry{
		{Destination: "a/b", Mount: "secret/", Secret: "one", Status: statusSynced, Version: 1, UpdatedAt: &at},
		{Destination: "a/b", Mount: "secret/", Secret: "two", Status: statusSyncing, UpdatedAt: &at},
	}}
	s.Totals = map[string]int{statusSynced: 1, statusSyncing: 1}
	var out bytes.Buffer
	w := &watch.Screen{Out: &out, Format: command.FormatTable, FD: 1 << 20, Now: func() time.Time { return now }}
	t.Setenv("COFFER_FORMAT", "table")
	if err := showStatus((&command.Call{Command: statusCommand()}), w, s, nil); err != nil {
		t.Fatal(err)
	}
	want := "[############------------]  50 %  1 of 2 synced, 1 SYNCING\n\n" +
		"Destination    Secret        Key    External Name    Status     Code    Version    Since    Cause\n" +
		"-----------    ------        ---    -------------    ------     ----    -------    -----    -----\n" +
		"a/b            secret/two    -      -                SYNCING    -       -          5m       -\n" +
		"a/b            secret/one    -      -                SYNCED     -       1          5m       -\n" +
		"\n03:09:05, ^C ends\n"
	if out.String() != want {
		t.Errorf("drawn %q, want %q", out.String(), want)
	}
}
