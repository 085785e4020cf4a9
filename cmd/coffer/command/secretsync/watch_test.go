package secretsync

import (
	"bytes"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
)

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
