package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
)

// rotating opens a log file in a new directory.
func rotating(t *testing.T, r config.LogRotation) (log *Logs, dir string) {
	t.Helper()
	dir = t.TempDir()
	log, err := OpenLogs(&strings.Builder{}, &config.Config{LogFile: filepath.Join(dir, "server.log"), LogRotation: r}, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.file.file.Close() })
	return log, dir
}

// contents are the files of a directory in the order of their names: older ones come first.
func contents(t *testing.T, dir string) (texts []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, e.Name()+": "+string(b))
	}
	return texts
}

// A log file that has its size is moved away, and only so many older files are kept; files of others stay.
func TestLogRotatesBySize(t *testing.T) {
	for keep, want := range map[int64][]string{0: {"n=0", "n=1", "n=2", "n=3"}, 2: {"n=1", "n=2", "n=3"}, -1: {"n=3"}} {
		synctest.Test(t, func(t *testing.T) {
			log, dir := rotating(t, config.LogRotation{Bytes: 100, Keep: keep})
			if err := os.WriteFile(filepath.Join(dir, "server-old.log"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for n := range 4 {
				time.Sleep(time.Second)
				log.Named("x").Info("a line", "n", n) // more than half of a file
			}
			got := contents(t, dir)
			if len(got) != len(want)+1 || !strings.HasPrefix(got[len(got)-1], "server.log: ") && !strings.HasPrefix(got[len(got)-2], "server.log: ") {
				t.Fatalf("keep %d: the files are %q", keep, got)
			}
			all := strings.Join(got, "")
			if strings.Count(all, "a line") != len(want) || !strings.Contains(all, "server-old.log: ") {
				t.Errorf("keep %d: the files are %q", keep, got)
			}
			for _, w := range want {
				if !strings.Contains(all, w) {
					t.Errorf("keep %d: no file has %s: %q", keep, w, got)
				}
			}
		})
	}
}

// A log file is moved away at the times that are multiples of the duration: by a day, at midnight.
func TestLogRotatesByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it begins at a midnight
		log, dir := rotating(t, config.LogRotation{Every: 24 * time.Hour})
		x := log.Named("x")
		x.Info("begin")
		time.Sleep(24*time.Hour - time.Second)
		x.Info("evening")
		time.Sleep(2 * time.Second)
		x.Info("morning")
		x.Info("noon")
		got := contents(t, dir)
		if len(got) != 2 || !strings.HasPrefix(got[0], "server-20000102T000001.000000000Z.log: ") || !strings.Contains(got[0], "begin") || !strings.Contains(got[0], "evening") ||
			!strings.Contains(got[1], "morning") || !strings.Contains(got[1], "noon") {
			t.Errorf("the files are %q", got)
		}
	})
}

// A file that was moved by others is opened again, and one that cannot be moved is written further.
func TestLogRotationThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, dir := rotating(t, config.LogRotation{Bytes: 100})
		var stderr strings.Builder
		log.file.stderr = &stderr
		x, path := log.Named("x"), filepath.Join(dir, "server.log")
		x.Info("first line")
		if err := os.Rename(path, filepath.Join(dir, "moved")); err != nil {
			t.Fatal(err)
		}
		if err := log.Reopen(); err != nil {
			t.Fatal(err)
		}
		x.Info("second line")
		if got := contents(t, dir); len(got) != 2 || !strings.Contains(got[0], "first line") || !strings.Contains(got[1], "second line") {
			t.Fatalf("the files are %q", got)
		}
		log.file.path = filepath.Join(dir, "moved", "below a file") // neither moved nor opened
		x.Info("third line")
		x.Info("fourth line")
		if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "third line") || !strings.Contains(string(text), "fourth line") {
			t.Errorf("the file has %q, %v", text, err)
		}
		if strings.Count(stderr.String(), "could not be rotated") != 1 {
			t.Errorf("stderr has %q", &stderr)
		}
	})
}
