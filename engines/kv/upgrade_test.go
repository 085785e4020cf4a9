package kv_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/kv"
)

// upgraded returns a mount of version 1 with some secrets, and the same as one of version 2.
func upgraded(t *testing.T, secrets ...string) (v1, v2 *enginetest.Mount) {
	v1 = enginetest.New(t, kv.New, enginetest.Options{Type: "kv"})
	for _, path := range secrets {
		v1.Must(engines.Update, path, `{"of":"`+path+`"}`)
	}
	again := *v1
	again.Mount.Options = map[string]string{"version": "2"}
	v2 = again.Peer()
	if err := v2.Engine.(engines.Upgrader).Upgrade(t.Context(), v2.Mount); err != nil {
		t.Fatal(err)
	}
	return v1, v2
}

func work(t *testing.T, m *enginetest.Mount) {
	t.Helper()
	if err := m.Engine.(engines.Worker).Work(t.Context(), m.Mount, true); err != nil {
		t.Fatal(err)
	}
}

// ofVersion1 counts what is still stored as version 1 stores it.
func ofVersion1(m *enginetest.Mount) (n int) {
	for key := range m.Snapshot() {
		if strings.Contains(string(key), "/d/") {
			n++
		}
	}
	return n
}

// A secret reads and changes the same, whether it has been converted or not.
func TestUpgrade(t *testing.T) {
	for _, converted := range []bool{false, true} {
		t.Run(fmt.Sprint("converted ", converted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, m := upgraded(t, "a", "b", "c/d", "c/e", "gone", "short")
				if converted {
					work(t, m)
				}
				time.Sleep(time.Second)
				meta := `{"created_time":"2000-01-01T00:00:00Z","custom_metadata":null,"deletion_time":"","destroyed":false,"version":1}`
				wantJSON(t, "read", m.Data(m.Must(engines.Read, "data/a", nil)), `{"data":{"of":"a"},"metadata":`+meta+`}`)
				wantJSON(t, "subkeys", m.Data(m.Must(engines.Read, "subkeys/a", nil)), `{"subkeys":{"of":null},"metadata":`+meta+`}`)
				wantJSON(t, "list", m.Data(m.Must(engines.List, "metadata/", nil)), `{"keys":["a","b","c/","gone","short"]}`)
				wantJSON(t, "folder", m.Data(m.Must(engines.List, "metadata/c/", nil)), `{"keys":["d","e"]}`)
				wantJSON(t, "scan", m.Data(m.Must(engines.Scan, "metadata/", nil)), `{"keys":["a","b","c/d","c/e","gone","short"]}`)
				wantJSON(t, "scan of a folder", m.Data(m.Must(engines.Scan, "metadata/c/?after=d&limit=5", nil)), `{"keys":["e"]}`)
				wantJSON(t, "page", m.Data(m.Must(engines.List, "metadata/?after=a&limit=2", nil)), `{"keys":["b","c/"]}`)
				if !m.Exists("data/a") || m.Exists("data/c") {
					t.Error("existence of a, or of c, is wrong")
				}
				m.Fails(engines.KindInvalid, engines.Update, "data/a", `{"options":{"cas":0},"data":{"x":1}}`)
				m.Must(engines.Patch, "data/a", `{"options":{"cas":1},"data":{"x":1}}`)
				wantJSON(t, "second", m.Data(m.Must(engines.Read, "data/a", nil))["data"].(map[string]any), `{"of":"a","x":1}`)
				wantJSON(t, "first", m.Data(m.Must(engines.Read, "data/a?version=1", nil))["data"].(map[string]any), `{"of":"a"}`)
				m.Must(engines.Delete, "data/b", nil)
				if r := m.Must(engines.Read, "data/b", nil); r.Status != 404 {
					t.Errorf("a deleted secret reads with %d", r.Status)
				}
				m.Must(engines.Update, "undelete/b", `{"versions":[1]}`)
				wantJSON(t, "undeleted", m.Data(m.Must(engines.Read, "data/b", nil))["data"].(map[string]any), `{"of":"b"}`)
				m.Must(engines.Update, "destroy/c/d", `{"versions":[1]}`)
				if r := m.Must(engines.Read, "data/c/d", nil); r.Status != 404 {
					t.Errorf("a destroyed secret reads with %d", r.Status)
				}
				m.Must(engines.Delete, "metadata/gone", nil)
				m.Fails(engines.KindNotFound, engines.Read, "metadata/gone", nil)
				m.Must(engines.Update, "metadata/short", `{"max_versions":1}`)
				put(m, "short", `{"x":2}`)
				m.Fails(engines.KindNotFound, engines.Read, "data/short?version=1", nil)

				work(t, m)
				if n := ofVersion1(m); n != 0 {
					t.Errorf("%d secrets are left as version 1 stores them", n)
				}
				m.Fails(engines.KindNotFound, engines.Read, "data/gone", nil)
				wantJSON(t, "after", m.Data(m.Must(engines.Read, "data/c/e", nil)), `{"data":{"of":"c/e"},"metadata":`+meta+`}`)
			})
		})
	}
}

// A write of version 1 that began before the upgrade is not lost if it ends after it.
func TestUpgradeUnderWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v1, m := upgraded(t, "a")
		work(t, m)
		v1.Must(engines.Update, "a", `{"late":1}`)
		v1.Must(engines.Update, "new", `{"late":2}`)
		wantJSON(t, "new", m.Data(m.Must(engines.Read, "data/new", nil))["data"].(map[string]any), `{"late":2}`)
		time.Sleep(2 * time.Hour)
		work(t, m)
		for path, want := range map[string]string{"data/a?version=1": `{"of":"a"}`, "data/a?version=2": `{"late":1}`, "data/new": `{"late":2}`} {
			wantJSON(t, path, m.Data(m.Must(engines.Read, path, nil))["data"].(map[string]any), want)
		}
		work(t, m) // finds nothing any more, and ends the upgrade
		v1.Must(engines.Update, "much-later", `{"x":1}`)
		m.Fails(engines.KindNotFound, engines.Read, "data/much-later", nil)
	})
}

// All of a large mount is converted at once, whatever the sizes.
func TestUpgradeOfMany(t *testing.T) {
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprintf("s%03d", i))
	}
	v1, m := upgraded(t, names...)
	large := `{"x":"` + strings.Repeat("x", 1000<<10) + `"}`
	for i := range 9 { // more than the 8 MiB of a transaction
		v1.Must(engines.Update, fmt.Sprint("large/", i), large)
	}
	work(t, m)
	if n := ofVersion1(m); n != 0 {
		t.Errorf("%d secrets are left", n)
	}
	keys := m.Data(m.Must(engines.List, "metadata/", nil))["keys"].([]any)
	if len(keys) != 301 || !slices.Contains(keys, any("large/")) {
		t.Errorf("%d names, want 301", len(keys))
	}
}

// A lease of a secret of version 1 may be shorter than a second.
func TestStatedZero(t *testing.T) {
	m := enginetest.New(t, kv.New, enginetest.Options{Type: "kv"})
	for _, ttl := range []string{`"100ms"`, `"0"`, `0`} {
		m.Must(engines.Update, "a", `{"ttl":`+ttl+`}`)
		if r := m.Must(engines.Read, "a", nil); r.Lease != nil || r.Held == nil || r.Held.Seconds != 0 {
			t.Errorf("ttl %s: lease %+v, %+v", ttl, r.Lease, r.Held)
		}
	}
}
