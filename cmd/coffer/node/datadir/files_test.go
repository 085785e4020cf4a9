package datadir

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cluster"
	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/storage"
	"github.com/coffer-project/coffer/storage/fsm"
)

// usedDirectory is the data directory of a node that was the first of a cluster and has stopped. If it is not marked, it is an
// earlier version's.
func usedDirectory(t *testing.T, id string, marked bool) string {
	t.Helper()
	dir := t.TempDir()
	identity := storage.FileIdentity{}
	if marked {
		identity = storage.NewFileIdentity(id)
		if err := errors.Join(writeIdentity(filepath.Join(dir, fsm.IdentityFile), identity), ownChanges(dir, identity, slog.New(slog.DiscardHandler))); err != nil {
			t.Fatal(err)
		}
	}
	machine, err := fsm.Open(dir, fsm.Options{Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := cluster.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	n, err := cluster.Open(cluster.Options{ID: cluster.NodeID(id), Dir: dir, Machine: machine, Identity: identity, ListenAddr: "127.0.0.1:0", CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := n.Bootstrap(ctx); err != nil {
		t.Fatal(err)
	}
	for !n.IsLeader() {
		select {
		case <-n.LeaderChanges():
		case <-ctx.Done():
			t.Fatal("it does not lead")
		}
	}
	if _, err := n.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: "l/test/k", Value: []byte(id)}}}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.Close(ctx), machine.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// reopen opens a directory as the server does.
func reopen(t *testing.T, dir, node string, joins ...string) (applied storage.Index, err error) {
	t.Helper()
	c := &config.Config{Storage: config.Storage{Path: dir}}
	for _, address := range joins {
		c.Storage.RetryJoin = append(c.Storage.RetryJoin, config.RetryJoin{LeaderAPIAddr: address})
	}
	f, err := Open(c, node, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	return f.Machine.AppliedIndex(), f.Close()
}

func exchange(t *testing.T, a, b string) {
	t.Helper()
	if err := errors.Join(os.Rename(a, a+".swap"), os.Rename(b, a), os.Rename(a+".swap", b)); err != nil {
		t.Fatal(err)
	}
}

// Files that are another node's are noticed, and the error names both.
func TestForeignFilesAreNoticed(t *testing.T) {
	a, b := usedDirectory(t, "a", true), usedDirectory(t, "b", true)
	for _, file := range []string{"", "fsm.db", "raft.db", "wal"} {
		exchange(t, filepath.Join(a, file), filepath.Join(b, file))
		for dir, node := range map[string]string{a: "a", b: "b"} {
			_, err := reopen(t, dir, node, "https://other:8200")
			if err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) && file != "fsm.db" || !strings.Contains(err.Error(), dir) {
				t.Errorf("%q exchanged: node %s starts with %v", file, node, err)
			}
		}
		exchange(t, filepath.Join(a, file), filepath.Join(b, file))
		if applied, err := reopen(t, a, "a"); err != nil || applied == 0 {
			t.Errorf("%q put back: at %d, %v", file, applied, err)
		}
	}
	t.Run("of an earlier life", func(t *testing.T) {
		a, former := usedDirectory(t, "a", true), usedDirectory(t, "a", true)
		exchange(t, filepath.Join(a, "fsm.db"), filepath.Join(former, "fsm.db"))
		var foreign *storage.ForeignError
		if _, err := reopen(t, a, "a"); !errors.As(err, &foreign) || foreign.Is.Node != "a" || foreign.Is.Incarnation == foreign.Want.Incarnation {
			t.Errorf("it starts with %v", err)
		}
	})
}

// What an earlier version wrote is accepted once, and then marked.
func TestUnmarkedFilesBecomeTheNodes(t *testing.T) {
	a, b := usedDirectory(t, "a", false), usedDirectory(t, "b", true)
	for range 2 {
		if applied, err := reopen(t, a, "a"); err != nil || applied == 0 {
			t.Fatalf("opened at %d, %v", applied, err)
		}
	}
	var foreign *storage.ForeignError
	for _, file := range []string{"fsm.db", "raft.db"} {
		exchange(t, filepath.Join(a, file), filepath.Join(b, file))
		if _, err := reopen(t, a, "a"); !errors.As(err, &foreign) {
			t.Errorf("with another %s it starts with %v", file, err)
		}
		exchange(t, filepath.Join(a, file), filepath.Join(b, file))
	}
	// Without the file that says it in full, the others do.
	if err := os.Remove(filepath.Join(a, fsm.IdentityFile)); err != nil {
		t.Fatal(err)
	}
	if applied, err := reopen(t, a, "a"); err != nil || applied == 0 {
		t.Errorf("without %s: at %d, %v", fsm.IdentityFile, applied, err)
	}
}

// A second process that is given the same directory changes nothing in it, the log of changes either, which has no lock of its own.
func TestSecondProcessChangesNothing(t *testing.T) {
	dir := usedDirectory(t, "a", true)
	c := &config.Config{Storage: config.Storage{Path: dir}}
	c.Replication.LogBytes, c.Replication.LogAge = 1<<20, time.Hour
	f, err := Open(c, "a", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Changes.Begin(f.Machine.AppliedIndex()); err != nil {
		t.Fatal(err)
	}
	before := contents(t, dir)
	if _, err := reopen(t, dir, "a", "https://other:8200"); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("the directory was opened twice: %v", err)
	}
	if !maps.Equal(contents(t, dir), before) {
		t.Error("the second process has changed files")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := reopen(t, dir, "a"); err != nil {
		t.Errorf("after it was closed: %v", err)
	}
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A node without a state does not go by logs that are left: neither when it starts, nor in a later attempt to join.
func TestLeftLogsAreSetAside(t *testing.T) {
	former := usedDirectory(t, "b", true)
	dir := t.TempDir()
	for _, file := range []string{"raft.db", "wal"} { // the log of changes has nothing but its identity
		if err := os.Rename(filepath.Join(former, file), filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	if applied, err := reopen(t, dir, "a", "https://other:8200"); err != nil || applied != 0 {
		t.Fatalf("opened at %d, %v", applied, err)
	}
	for _, file := range []string{"raft.db", "wal"} {
		if found, _ := filepath.Glob(filepath.Join(dir, "unused-*", file)); len(found) != 1 {
			t.Errorf("%s was not moved aside: %v", file, found)
		}
	}
	if raftlog.IsUsed(dir) {
		t.Error("the node has a log")
	}
	if applied, err := reopen(t, dir, "a", "https://other:8200"); err != nil || applied != 0 {
		t.Errorf("once more: at %d, %v", applied, err)
	}
	if all, _ := filepath.Glob(filepath.Join(dir, "unused-*")); len(all) != 1 {
		t.Errorf("an empty log was moved aside: %v", all)
	}
}
