package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/command/snapshot/snapshottest"
)

func TestSnapshotSave(t *testing.T) {
	good := string(snapshottest.Archive(t, snapshottest.Parts()))
	for name, tt := range map[string]struct {
		body   string
		status int
		stderr string
	}{
		"whole": {body: good},
		"cut":   {body: good[:len(good)/2], status: 2, stderr: "nothing was saved"},
	} {
		t.Run(name, func(t *testing.T) {
			record(t, map[string]string{"GET sys/storage/raft/snapshot": "200 " + tt.body})
			file := filepath.Join(t.TempDir(), "backup.snap")
			_, stderr, status := coffer(t, "", "operator", "raft", "snapshot", "save", file)
			if status != tt.status || !strings.Contains(stderr, tt.stderr) {
				t.Fatalf("status %d, stderr %q", status, stderr)
			}
			got, err := os.ReadFile(file)
			if saved := err == nil; saved != (tt.status == 0) || saved && string(got) != tt.body {
				t.Errorf("the file: %v, %d bytes", err, len(got))
			}
		})
	}
}

// TestSnapshotRestoreFollows restores through a standby, which names the active node: the whole file has to reach that.
func TestSnapshotRestoreFollows(t *testing.T) {
	good := snapshottest.Archive(t, snapshottest.Parts())
	file := filepath.Join(t.TempDir(), "backup.snap")
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	active := record(t, map[string]string{"POST sys/storage/raft/snapshot-force": "204"})
	record(t, map[string]string{"POST sys/storage/raft/snapshot-force": "307 " + active.URL})
	stdout, stderr, status := coffer(t, "", "operator", "snapshot", "restore", "-force", file)
	if status != 0 || !strings.Contains(stdout, "Success!") {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	if len(active.seen) != 1 || active.seen[0].body != string(good) {
		t.Errorf("the active node got %d requests, want one with the whole file", len(active.seen))
	}
}

func TestSnapshotRestoreRefusesDamage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.snap")
	if err := os.WriteFile(file, snapshottest.Archive(t, snapshottest.Parts()[:4]), 0o600); err != nil {
		t.Fatal(err)
	}
	r := record(t, nil)
	_, stderr, status := coffer(t, "", "operator", "raft", "snapshot", "restore", file)
	if status != 1 || !strings.Contains(stderr, "nothing was sent") || len(r.seen) != 0 {
		t.Errorf("status %d, %d requests, stderr %q", status, len(r.seen), stderr)
	}
}
