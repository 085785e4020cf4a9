package audit_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/storage"
)

// Devices of the configuration come and go with it, keep their salt, may write where the operator says, and are nothing that callers
// of the API change.
func TestDeclared(t *testing.T) {
	var store storage.Memory
	table := node(t, &store)
	dir := t.TempDir()
	file := filepath.Join(dir, "log")
	declare := func(devices ...device.Config) error {
		table.Declare(devices, func() bool { return true })
		return table.Apply(t.Context())
	}
	c := device.Config{Path: "conf", Type: "file", Description: "one", Options: map[string]string{"file_path": file}}
	if err := declare(c); err != nil {
		t.Fatal(err)
	}
	writeRecord(t, table, "p1")
	assertPaths(t, file, "sys/audit/test", "p1")
	hash, err := table.Hash(t.Context(), "conf", "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Disable(t.Context(), "conf"); err == nil || !strings.Contains(err.Error(), "configuration") {
		t.Errorf("disabling it over the API: %v", err)
	}
	if err := table.Enable(t.Context(), c); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("enabling it over the API: %v", err)
	}
	c.Description = "two"
	if err := declare(c); err != nil {
		t.Fatal(err)
	}
	list, err := table.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Description != "two" || !list[0].Local {
		t.Errorf("devices %+v, %v", list, err)
	}
	if again, err := table.Hash(t.Context(), "conf", "x"); err != nil || again != hash {
		t.Errorf("the hash was %s and is %s, %v", hash, again, err)
	}
	if err := declare(); err != nil {
		t.Fatal(err)
	}
	if list, err := table.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("devices %+v, %v", list, err)
	}

	enable(t, table, "conf", filepath.Join(dir, "api"))
	if err := declare(c); err == nil || !strings.Contains(err.Error(), "conf/") {
		t.Errorf("a path that a device of the API has: %v", err)
	}
	c.Path, c.Options = "broken", map[string]string{"file_path": filepath.Join(dir, "missing", "log")}
	if err := declare(c); err == nil || !strings.Contains(err.Error(), "cannot be written") {
		t.Errorf("a device that cannot be written: %v", err)
	}
}

// The active node records nothing before the devices of the configuration are there.
func TestRecordsWaitForDeclared(t *testing.T) {
	var store storage.Memory
	file := filepath.Join(t.TempDir(), "log")
	table := node(t, &store)
	table.Declare([]device.Config{{Path: "conf", Type: "file", Options: map[string]string{"file_path": file}}}, func() bool { return true })
	if err := table.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := table.Broker().Request(short, &record.Record{}); err == nil {
		t.Error("a record did not wait")
	}
	if err := table.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	writeRecord(t, table, "p1")
	assertPaths(t, file, "sys/audit/test", "p1")
}
