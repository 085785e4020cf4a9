package audit_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/storage"
)

// tempFiles lets devices write where tests do.
var tempFiles = device.Files{Roots: []string{os.TempDir(), "/dev"}}

func TestFileRoots(t *testing.T) {
	base := t.TempDir()
	dir := func(name string) string {
		path := filepath.Join(base, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, data, other := dir("one"), dir("two"), dir("one/data"), dir("other")
	link := func(to, at string) {
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	link(other, filepath.Join(one, "absolute"))
	link("../other", filepath.Join(one, "relative"))
	link("../other/file", filepath.Join(one, "file"))
	link("data", filepath.Join(one, "inside"))
	t.Chdir(base) // the data directory may be configured as a relative path
	var store storage.Memory
	table := audit.NewTable(&store, device.Files{Roots: []string{one, two}, DataDir: "one/data"}, nil)
	if err := table.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	enable := func(path string, more ...string) error {
		c := device.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": path}}
		for i := 0; i < len(more); i += 2 {
			c.Options[more[i]] = more[i+1]
		}
		return table.Enable(t.Context(), c)
	}
	for path, want := range map[string]string{
		filepath.Join(other, "log"): "file_roots", one: "file_roots", "../other/log": "file_roots", "/etc/cron.d/x": "file_roots", ".": "file_roots",
		one + "/../other/log":                  "file_roots",
		one + "-more/log":                      "file_roots",
		filepath.Join(one, "absolute", "log"):  "path escapes",
		filepath.Join(one, "relative", "log"):  "path escapes",
		"file":                                 "path escapes",
		filepath.Join(data, "raft.db"):         "data directory",
		filepath.Join(one, "inside", "fsm.db"): "data directory",
		filepath.Join(one, "missing", "log"):   "does not exist",
	} {
		var e *engines.Error
		if err := enable(path); !errors.As(err, &e) || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, want) {
			t.Errorf("%s: Enable = %v, want %q", path, err, want)
		}
	}
	for _, d := range []string{other, data} {
		if found, err := os.ReadDir(d); err != nil || len(found) > 0 {
			t.Errorf("%s holds %v, %v", d, found, err)
		}
	}
	for path, file := range map[string]string{"log": filepath.Join(one, "log"), filepath.Join(two, "log"): filepath.Join(two, "log"), two + "/./x/../b": filepath.Join(two, "b")} {
		if err := enable(path); err != nil {
			t.Errorf("%s: Enable = %v", path, err)
		}
		if err := table.Disable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(file); err != nil || len(text) == 0 {
			t.Errorf("%s holds %q, %v", file, text, err)
		}
	}
	for _, prefix := range []string{"* * * * * root touch x #", "@reboot ", "a\tb", "a\nb", "$(x)", "A=B", "`x`", "#!/bin/sh", "{", strings.Repeat("x", 33), "é", "a b"} {
		if err := enable("log", "prefix", prefix); err == nil {
			t.Errorf("prefix %q is accepted", prefix)
		}
	}
	if err := enable("log", "prefix", "@cee:"); err != nil {
		t.Errorf("prefix @cee: %v", err)
	}
}

// TestRootIsMade: the default root is made when it is needed, one that an operator names is not: its disk may be missing.
func TestRootIsMade(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	c := device.Config{Path: "a", Type: "file", Options: map[string]string{"file_path": "log"}}
	var store storage.Memory
	named := audit.NewTable(&store, device.Files{Roots: []string{root}}, nil)
	if err := named.Enable(t.Context(), c); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("in a missing root: Enable = %v", err)
	}
	standard := audit.NewTable(&store, device.Files{Roots: []string{root}, MakeRoot: true}, nil)
	if err := standard.Enable(t.Context(), c); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(root); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the root is %v, %v", info, err)
	}
	if err := audit.NewTable(&storage.Memory{}, device.Files{}, nil).Enable(t.Context(), c); err == nil || !strings.Contains(err.Error(), "names no directory") {
		t.Errorf("without roots: Enable = %v", err)
	}
}

// TestDeviceOfBeforeRoots: a stored device that is older than the roots goes on writing, unless it writes to the data
// directory; what was enabled by another node, below that one's roots, fails here with words that help.
func TestDeviceOfBeforeRoots(t *testing.T) {
	root, data, other := t.TempDir(), t.TempDir(), t.TempDir()
	stored := func(path, file, rest string) storage.Put {
		return storage.Put{Key: storage.Key("s/sys/audit/" + path), Value: []byte(`{"path":"` + path + `","type":"file","options":{"file_path":"` + file + `"` + rest + `}`)}
	}
	const old, confined = `,"prefix":"a b: "},"salt":"AAAA"`, `},"salt":"AAAA","confined":true`
	for _, test := range []struct{ name, file, rest, want string }{
		{"old", filepath.Join(other, "log"), old, ""},
		{"old, data directory", filepath.Join(data, "fsm.db"), old, "data directory"},
		{"of another node", filepath.Join(other, "log"), confined, "file_roots"},
	} {
		var store storage.Memory
		if _, err := store.Commit(t.Context(), storage.Batch{Puts: []storage.Put{stored("old", test.file, test.rest)}}); err != nil {
			t.Fatal(err)
		}
		table := audit.NewTable(&store, device.Files{Roots: []string{root}, DataDir: data}, nil)
		if err := table.Load(t.Context()); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		err := table.Broker().Request(t.Context(), &record.Record{})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: a record answers %v, want %q", test.name, err, test.want)
		}
	}
}
