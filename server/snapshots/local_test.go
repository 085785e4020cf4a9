package snapshots

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/archive"
)

func localConfig() *config {
	return &config{Name: "x", StorageType: typeLocal, Interval: time.Hour, Retain: 2, PathPrefix: "dir", FilePrefix: "snap"}
}

func TestLocalFiles(t *testing.T) {
	f := newFixture(t)
	c := localConfig()
	start := time.Unix(1_700_000_000, 0)
	foreign := []string{"notes.txt", "snap-17.snap", "snapshot-1700000000000000000.snap", "snap-extra-1700000000000000000.snap"}
	if err := os.Mkdir(filepath.Join(f.root, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(foreign, "snap-1600000000000000000.snap.tmp") {
		if err := os.WriteFile(filepath.Join(f.root, "dir", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var last file
	for i := range 4 {
		var err error
		if last, err = f.take(t.Context(), c, start.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	want := append([]string{"snap-1700000002000000000.snap", "snap-1700000003000000000.snap"}, foreign...)
	slices.Sort(want)
	if got := f.files("dir"); !slices.Equal(got, want) {
		t.Errorf("files = %v, want %v", got, want)
	}
	path, _ := strings.CutPrefix(last.url, "file://")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != last.bytes {
		t.Errorf("%s: %v, %v; want %d bytes, mode 0600", path, info, err, last.bytes)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if meta, err := archive.Verify(in); err != nil || meta.ClusterID != "c" {
		t.Errorf("the file is of %q, %v", meta.ClusterID, err)
	}
}

func TestLocalSpace(t *testing.T) {
	f := newFixture(t)
	c := localConfig()
	c.Retain = 10
	start := time.Unix(1_700_000_000, 0)
	one, err := f.take(t.Context(), c, start)
	if err != nil {
		t.Fatal(err)
	}
	c.LocalMaxSpace = 2*one.bytes + 64 // times of modification compress differently
	for i := range 3 {
		if _, err := f.take(t.Context(), c, start.Add(time.Duration(i+1)*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.files("dir"); len(got) != 2 || got[1] != "snap-1700000003000000000.snap" {
		t.Errorf("files = %v, want the newest two", got)
	}
	c.LocalMaxSpace = one.bytes / 2
	if _, err := f.take(t.Context(), c, start.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), "local_max_space") {
		t.Errorf("a snapshot larger than the space = %v", err)
	}
	if got := f.files("dir"); len(got) != 2 {
		t.Errorf("after that there are %v", got)
	}
}

func TestLocalStaysInside(t *testing.T) {
	f := newFixture(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(f.root, "dir")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.take(t.Context(), localConfig(), time.Now()); err == nil {
		t.Error("a symbolic link led out of the root")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("outside of the root there is %v, %v", left, err)
	}
	f.opts.LocalRoot = filepath.Join(f.root, "missing")
	if _, err := f.take(t.Context(), localConfig(), time.Now()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with a root that is not there: %v", err)
	}
}

func TestLocalLeavesNothingHalf(t *testing.T) {
	f := newFixture(t)
	f.source.set(errors.New("no"), false)
	if _, err := f.take(t.Context(), localConfig(), time.Now()); err == nil {
		t.Error("a snapshot that failed was kept")
	}
	f.source.set(nil, true)
	if _, err := f.take(t.Context(), localConfig(), time.Now()); !errors.Is(err, archive.ErrInvalid) {
		t.Errorf("a damaged snapshot = %v", err)
	}
	if got := f.files("dir"); len(got) != 0 {
		t.Errorf("files = %v, want none", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	f.source.set(nil, false)
	if _, err := f.take(ended, localConfig(), time.Now()); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended = %v", err)
	}
}

// A clock that was ahead for a while leaves names of the future. They must not cost the snapshots taken since.
func TestLocalAfterAWrongClock(t *testing.T) {
	f := newFixture(t)
	c := localConfig()
	start := time.Unix(1_700_000_000, 0)
	for _, at := range []time.Duration{365 * 24 * time.Hour, 366 * 24 * time.Hour, 0, time.Hour, 2 * time.Hour} {
		kept, err := f.take(t.Context(), c, start.Add(at))
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(kept.url); !slices.Contains(f.files("dir"), name) {
			t.Errorf("%s was removed as soon as it was taken", name)
		}
	}
	want := []string{"snap-1700003600000000000.snap", "snap-1700007200000000000.snap"}
	if got := f.files("dir"); !slices.Equal(got, want) {
		t.Errorf("files = %v, want those of the right clock, %v", got, want)
	}
}

func TestNextAfterAWrongClock(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	past, future := now.Add(-time.Minute), now.Add(1000*time.Hour)
	for name, tt := range map[string]struct {
		status  status
		updated time.Time
		due     bool
	}{
		"taken in the future":              {status{LastStart: future, LastEnd: future}, past, true},
		"failed in the future":             {status{LastStart: future, LastEnd: future, Errors: 3}, past, true},
		"ended in the future":              {status{LastStart: past, LastEnd: future}, past, true},
		"written in the future":            {status{}, future, true},
		"failed since, despite the future": {status{LastStart: now, LastEnd: now, Errors: 1}, future, false},
		"a little ahead":                   {status{LastStart: now.Add(time.Second), LastEnd: now.Add(time.Second)}, past, false},
		"taken just now":                   {status{LastStart: past, LastEnd: past}, past, false},
	} {
		c := localConfig()
		c.Updated = tt.updated
		if due := !tt.status.next(c, now).After(now); due != tt.due {
			t.Errorf("%s: due = %v", name, due)
		}
	}
}
