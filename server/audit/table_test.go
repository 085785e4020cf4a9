package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/storage"
)

// node is a loaded table over a store shared with other nodes.
func node(t *testing.T, store *storage.Memory) *audit.Table {
	t.Helper()
	table := audit.NewTable(store, tempFiles, nil)
	t.Cleanup(store.OnChange(table.Changed))
	if err := table.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Unload() })
	return table
}

func writeRecord(t *testing.T, table *audit.Table, path string) {
	t.Helper()
	if err := table.Broker().Request(t.Context(), &record.Record{Request: record.Request{Path: path}}); err != nil {
		t.Fatal(err)
	}
}

// paths returns the paths of the requests recorded in a file.
func paths(t *testing.T, file string) []string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(raw)) {
		var r struct{ Request struct{ Path string } }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got = append(got, r.Request.Path)
	}
	return got
}

func assertPaths(t *testing.T, file string, want ...string) {
	t.Helper()
	if got := paths(t, file); !reflect.DeepEqual(got, want) {
		t.Errorf("%s records %q, want %q", filepath.Base(file), got, want)
	}
}

func enable(t *testing.T, table *audit.Table, path, file string) {
	t.Helper()
	c := device.Config{Path: path, Type: "file", Options: map[string]string{"file_path": file}}
	if err := table.Enable(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func TestTableFollowsStorage(t *testing.T) {
	var store storage.Memory
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	active, standby := node(t, &store), node(t, &store)
	writeRecord(t, active, "before")
	enable(t, active, "/a/", one)
	writeRecord(t, active, "p1")
	writeRecord(t, standby, "p2")
	enable(t, active, "mounts/x", two)
	writeRecord(t, standby, "p3")
	assertPaths(t, one, "sys/audit/test", "p1", "p2", "p3")
	assertPaths(t, two, "sys/audit/test", "p3")

	h1, err1 := active.Hash(t.Context(), "a/", "x")
	h2, err2 := standby.Hash(t.Context(), "a", "x")
	h3, err3 := standby.Hash(t.Context(), "mounts/x", "x")
	if err := errors.Join(err1, err2, err3); err != nil || h1 != h2 || h1 == h3 {
		t.Errorf("hashes %q, %q, %q, %v: want the same on every node, another on every device", h1, h2, h3, err)
	}

	if err := active.Disable(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	writeRecord(t, standby, "p4")
	assertPaths(t, one, "sys/audit/test", "p1", "p2", "p3")
	assertPaths(t, two, "sys/audit/test", "p3", "p4")
	if err := active.Disable(t.Context(), "a"); err != nil {
		t.Errorf("disabling what is not there: %v", err)
	}

	if err := standby.Unload(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Broker().Response(t.Context(), &record.Record{}); !errors.Is(err, audit.ErrNotRecorded) {
		t.Errorf("a record while sealed = %v, want ErrNotRecorded", err)
	}
	if err := standby.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	writeRecord(t, standby, "p5")
	assertPaths(t, two, "sys/audit/test", "p3", "p4", "p5")
	entries, err := store.List(t.Context(), "s/sys/", "", 0)
	if err != nil || !reflect.DeepEqual(entries, []string{"audit/"}) {
		t.Errorf("below s/sys/: %q, %v", entries, err)
	}
	if entries, _ := store.List(t.Context(), "s/sys/audit/", "", 0); len(entries) != 1 || strings.Contains(entries[0], "/") {
		t.Errorf("a device is stored as %q, want one segment", entries)
	}
}

func TestTableReplacedState(t *testing.T) {
	var store storage.Memory
	table := audit.NewTable(&store, tempFiles, nil)
	if err := table.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "log")
	enable(t, audit.NewTable(&store, tempFiles, nil), "a", file) // by another node, with no feed to this one
	writeRecord(t, table, "missed")
	table.Changed(storage.Change{Entries: []storage.Entry{{Key: "s/sys/root/mounts/1"}}})
	writeRecord(t, table, "unrelated")
	table.Changed(storage.Change{Reset: true})
	writeRecord(t, table, "seen")
	assertPaths(t, file, "sys/audit/test", "seen")
}

// unreadable is a store that fails while err is set.
type unreadable struct {
	storage.Memory
	err error
}

func (u *unreadable) Scan(ctx context.Context, prefix, after storage.Key, limit int) ([]storage.Entry, error) {
	if u.err != nil {
		return nil, u.err
	}
	return u.Memory.Scan(ctx, prefix, after, limit)
}

// When it is not known which devices are enabled, nothing may pass unrecorded.
func TestTableFailsClosed(t *testing.T) {
	store := &unreadable{}
	table := audit.NewTable(store, tempFiles, nil)
	if err := table.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	table.Changed(storage.Change{Reset: true})
	store.err = storage.ErrUnavailable
	for range 2 {
		if err := table.Broker().Request(t.Context(), &record.Record{}); !errors.Is(err, audit.ErrNotRecorded) || !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("Request = %v, want ErrNotRecorded", err)
		}
	}
	store.err = nil
	if err := table.Broker().Request(t.Context(), &record.Record{}); err != nil {
		t.Errorf("Request, readable again = %v", err)
	}
}

// A device that this node cannot write is enabled all the same, and works once its directory is there.
func TestTableBrokenDevice(t *testing.T) {
	var store storage.Memory
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "log")
	enable(t, node(t, &store), "a", file)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	other := node(t, &store)
	if err := other.Broker().Request(t.Context(), &record.Record{}); !errors.Is(err, audit.ErrNotRecorded) {
		t.Fatalf("Request = %v, want ErrNotRecorded", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	writeRecord(t, other, "again")
	assertPaths(t, file, "again")
	newer := `{"path":"b","type":"pigeon","salt":"AAAA"}`
	if _, err := store.Commit(t.Context(), storage.Batch{
		Puts: []storage.Put{{Key: "s/sys/audit/b", Value: []byte(newer)}}, Deletes: []storage.Key{"s/sys/audit/a"},
	}); err != nil {
		t.Fatal(err)
	}
	err := other.Broker().Request(t.Context(), &record.Record{})
	if !errors.Is(err, audit.ErrNotRecorded) || !strings.Contains(err.Error(), `"pigeon"`) {
		t.Errorf("with a device of an unknown type: %v, want ErrNotRecorded", err)
	}
}

func TestEnableRefuses(t *testing.T) {
	var store storage.Memory
	table := node(t, &store)
	dir := t.TempDir()
	file := func(path string) map[string]string { return map[string]string{"file_path": path} }
	enable(t, table, "taken", filepath.Join(dir, "taken"))
	tests := []struct {
		name string
		c    device.Config
		want string
	}{
		{"no path", device.Config{Type: "file", Options: file("discard")}, "path"},
		{"no type", device.Config{Path: "a", Options: file("discard")}, `"file"`},
		{"unknown type", device.Config{Path: "a", Type: "pigeon"}, `unknown audit backend type "pigeon": use "file", "syslog" or "socket"`},
		{"nobody listens", device.Config{Path: "a", Type: "socket", Options: map[string]string{"address": filepath.Join(dir, "no"), "socket_type": "unix"}}, "no such file"},
		{"no options", device.Config{Path: "a", Type: "file"}, "file_path"},
		{"missing directory", device.Config{Path: "a", Type: "file", Options: file(filepath.Join(dir, "no", "log"))}, "does not exist"},
		{"full disk", device.Config{Path: "a", Type: "file", Options: file("/dev/full")}, "no space left"},
		{"taken", device.Config{Path: "taken", Type: "file", Options: file("discard")}, "already in use at taken/"},
		{"taken, local", device.Config{Path: "taken", Type: "file", Local: true, Options: file("discard")}, "already in use"},
	}
	for _, tt := range tests {
		var e *engines.Error
		if err := table.Enable(t.Context(), tt.c); !errors.As(err, &e) || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, tt.want) {
			t.Errorf("%s: Enable = %v, want %q", tt.name, err, tt.want)
		}
	}
	if list, err := table.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("enabled after refusals: %v, %v", list, err)
	}
}

func TestReloadAll(t *testing.T) {
	var store storage.Memory
	table := node(t, &store)
	file := filepath.Join(t.TempDir(), "log")
	enable(t, table, "a", file)
	writeRecord(t, table, "p1")
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	if err := table.Reload(); err != nil {
		t.Fatal(err)
	}
	writeRecord(t, table, "p2")
	assertPaths(t, file+".1", "sys/audit/test", "p1")
	assertPaths(t, file, "p2")
}

func TestRoutes(t *testing.T) {
	var store storage.Memory
	table := node(t, &store)
	r := engines.NewRouter()
	table.Routes(r)
	file := filepath.Join(t.TempDir(), "log")
	call := func(op engines.Operation, path, body string) (*engines.Response, error) {
		return r.Handle(t.Context(), &engines.Request{Op: op, Path: path, Body: json.RawMessage(body)})
	}
	must := func(op engines.Operation, path, body string) *engines.Response {
		t.Helper()
		resp, err := call(op, path, body)
		if err != nil {
			t.Fatalf("%s %s: %v", op, path, err)
		}
		return resp
	}
	if resp := must(engines.Update, "audit/team/file", `{"type":"file","description":"d","local":true,"options":{"file_path":"`+file+`","log_raw":false}}`); resp != nil {
		t.Errorf("enabling answers %+v, want nothing", resp)
	}
	resp := must(engines.Read, "audit", "")
	got, err := json.Marshal([]any{resp.Data, resp.Top})
	if err != nil {
		t.Fatal(err)
	}
	one := `{"team/file/":{"path":"team/file/","type":"file","description":"d","options":{"file_path":"` + file + `","log_raw":"false"},"local":true}}`
	if want := "[" + one + "," + one + "]"; string(got) != want {
		t.Errorf("the list is %s, want %s", got, want)
	}
	if local, _ := store.List(t.Context(), "l/sys/audit/", "", 0); len(local) != 1 {
		t.Errorf("a local device is stored as %q below l/", local)
	}
	writeRecord(t, table, "p")
	want, err := table.Hash(t.Context(), "team/file", "x")
	if err != nil {
		t.Fatal(err)
	}
	if resp := must(engines.Update, "audit-hash/team/file", `{"input":"x"}`); !reflect.DeepEqual(resp.Data, map[string]string{"hash": want}) {
		t.Errorf("audit-hash = %v, want %s", resp.Data, want)
	}
	for path, body := range map[string]string{"audit-hash/other": `{"input":"x"}`, "audit-hash/team/file": `{}`, "audit/x": `{"type":"socket"}`} {
		var e *engines.Error
		if _, err := call(engines.Update, path, body); !errors.As(err, &e) || e.Kind != engines.KindInvalid {
			t.Errorf("%s %s: %v, want a 400", path, body, err)
		}
	}
	must(engines.Delete, "audit/team/file", "")
	if resp := must(engines.Read, "audit", ""); len(resp.Top) != 0 {
		t.Errorf("after disabling: %v", resp.Top)
	}
	for _, route := range r.Routes() {
		if wantSudo := !strings.HasPrefix(route.Pattern, "audit-hash"); route.Flags.Has(engines.Sudo) != wantSudo || !route.Flags.Has(engines.RootNamespace) {
			t.Errorf("%s %s has flags %b", route.Op, route.Pattern, route.Flags)
		}
	}
}
