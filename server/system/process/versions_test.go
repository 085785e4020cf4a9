package process

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
	"github.com/coffer-project/coffer/storage"
)

func TestVersionHistory(t *testing.T) {
	store := &storage.Memory{}
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	record := func(version string) {
		t.Helper()
		now = now.Add(time.Hour)
		if err := (VersionHistory{Store: store, Version: version, Now: func() time.Time { return now }}).Record(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r := systemtest.Router(VersionHistory{Store: store}.Routes)
	systemtest.Refused(t, r, engines.KindNotFound, engines.List, "version-history", "")
	for _, v := range []string{"1.9.0", "1.10.0", "1.10.0", "1.9.0", "1.11.0"} {
		record(v)
	}
	data := systemtest.Must(t, r, engines.List, "version-history", "")
	if got := data["keys"].([]any); len(got) != 3 || got[0] != "1.9.0" || got[1] != "1.10.0" || got[2] != "1.11.0" {
		t.Errorf("keys = %v, want them by age", got)
	}
	info := data["key_info"].(map[string]any)
	first, third := info["1.9.0"].(map[string]any), info["1.11.0"].(map[string]any)
	if first["previous_version"] != nil || first["timestamp_installed"] != "2026-11-01T01:00:00Z" || third["previous_version"] != "1.10.0" {
		t.Errorf("key_info = %v", info)
	}
}
