package kv_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/kv"
	"github.com/coffer-project/coffer/storage"
)

func newV2(t testing.TB) *enginetest.Mount {
	return enginetest.New(t, kv.New, enginetest.Options{Type: "kv", Options: map[string]string{"version": "2"}})
}

func num(text string) json.Number { return json.Number(text) }

// put writes a version and returns its number.
func put(m *enginetest.Mount, path, data string) any {
	return m.Data(m.Must(engines.Update, "data/"+path, `{"data":`+data+`}`))["version"]
}

// wantJSON compares data with JSON text.
func wantJSON(t *testing.T, what string, got map[string]any, want string) {
	t.Helper()
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var g, w any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s\n got %s\nwant %s", what, text, want)
	}
}

func TestV2Shapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time begins at 2000-01-01T00:00:00Z
		m := newV2(t)
		if m.Exists("data/a/b") || m.Exists("metadata/a/b") {
			t.Error("a/b exists before it is written")
		}
		wantJSON(t, "write", m.Data(m.Must(engines.Update, "data/a/b", `{"data":{"k": 1.0}}`)),
			`{"created_time":"2000-01-01T00:00:00Z","custom_metadata":null,"deletion_time":"","destroyed":false,"version":1}`)
		if !m.Exists("data/a/b") || !m.Exists("metadata/a/b") {
			t.Error("a/b does not exist after it was written")
		}
		time.Sleep(1500 * time.Millisecond)
		m.Must(engines.Update, "metadata/a/b", `{"custom_metadata":{"owner":"me"},"cas_required":false}`)
		put(m, "a/b", `{"k":2}`)
		wantJSON(t, "read", m.Data(m.Must(engines.Read, "data/a/b", nil)), `{"data":{"k":2},"metadata":{
			"created_time":"2000-01-01T00:00:01.5Z","custom_metadata":{"owner":"me"},"deletion_time":"","destroyed":false,"version":2}}`)
		if raw := m.Must(engines.Read, "data/a/b?version=1", nil).Data.(json.RawMessage); !strings.HasPrefix(string(raw), `{"data":{"k": 1.0},`) {
			t.Errorf("version 1 is %s, want the data as they came", raw)
		}

		if resp := m.Must(engines.Delete, "data/a/b", nil); resp != nil {
			t.Errorf("delete answers %+v", resp)
		}
		resp := m.Must(engines.Read, "data/a/b", nil)
		if resp.Status != 404 {
			t.Errorf("read of a deleted version has status %d, want 404", resp.Status)
		}
		wantJSON(t, "deleted", m.Data(resp), `{"data":null,"metadata":{"created_time":"2000-01-01T00:00:01.5Z",
			"custom_metadata":{"owner":"me"},"deletion_time":"2000-01-01T00:00:01.5Z","destroyed":false,"version":2}}`)
		m.Must(engines.Update, "destroy/a/b", `{"versions":[1]}`)
		resp = m.Must(engines.Read, "data/a/b?version=1", nil)
		if resp.Status != 404 || m.Data(resp)["metadata"].(map[string]any)["destroyed"] != true {
			t.Errorf("read of a destroyed version: %d %v", resp.Status, m.Data(resp))
		}
		wantJSON(t, "metadata", m.Data(m.Must(engines.Read, "metadata/a/b", nil)), `{
			"cas_required":false,"created_time":"2000-01-01T00:00:00Z","current_version":2,"custom_metadata":{"owner":"me"},
			"delete_version_after":"0s","max_versions":0,"oldest_version":0,"updated_time":"2000-01-01T00:00:01.5Z","versions":{
				"1":{"created_time":"2000-01-01T00:00:00Z","deletion_time":"","destroyed":true},
				"2":{"created_time":"2000-01-01T00:00:01.5Z","deletion_time":"2000-01-01T00:00:01.5Z","destroyed":false}}}`)
		wantJSON(t, "config", m.Data(m.Must(engines.Read, "config", nil)), `{"max_versions":0,"cas_required":false,"delete_version_after":"0s"}`)
	})
}

func TestV2Missing(t *testing.T) {
	m := newV2(t)
	m.Must(engines.Update, "metadata/empty", `{}`)
	put(m, "one", `{}`)
	for _, path := range []string{"data/none", "data/none/", "data/one?version=2", "data/one?version=5000000000", "metadata/none", "subkeys/none", "data/empty"} {
		if text := m.Fails(engines.KindNotFound, engines.Read, path, nil); text != "" {
			t.Errorf("%s: %q, want no text", path, text)
		}
	}
	m.Fails(engines.KindNotFound, engines.List, "metadata/none", nil)
	m.Fails(engines.KindNotFound, engines.Patch, "data/none", `{"data":{"a":"b"}}`)
	m.Fails(engines.KindNotFound, engines.Patch, "data/empty", `{"data":{"a":"b"}}`)
	m.Fails(engines.KindNotFound, engines.Patch, "metadata/none", `{"max_versions":1}`)
	m.Fails(engines.KindUnsupported, engines.List, "data/", nil)
	m.Fails(engines.KindInvalid, engines.Read, "data/one?version=-1", nil)

	before := m.Snapshot()
	m.Must(engines.Delete, "data/none", nil)
	m.Must(engines.Delete, "metadata/none", nil)
	for _, action := range []string{"delete", "undelete", "destroy"} {
		m.Must(engines.Update, action+"/none", `{"versions":[1]}`)
		m.Must(engines.Update, action+"/one", `{"versions":[7]}`)
	}
	if !reflect.DeepEqual(before, m.Snapshot()) {
		t.Error("changing what is not there wrote something")
	}
}

func TestV2Refuses(t *testing.T) {
	m := newV2(t)
	put(m, "a", `{"x":"y"}`)
	tests := []struct {
		op         engines.Operation
		path, body string
		want       string
	}{
		{engines.Update, "data/a", `{}`, "no data provided"},
		{engines.Update, "data/a", ``, "no data provided"},
		{engines.Update, "data/a", `{"data":null}`, "no data provided"},
		{engines.Patch, "data/a", `{"options":{}}`, "no data provided"},
		{engines.Update, "data/a", `{"data":"text"}`, `field "data": must be an object, got a string`},
		{engines.Update, "data/", `{"data":{}}`, "the path is empty"},
		{engines.Update, "data", `{"data":{}}`, "the path is empty"},
		{engines.Update, "data/a/", `{"data":{}}`, "names a folder"},
		{engines.Patch, "data/a/", `{"data":{}}`, "names a folder"},
		{engines.Delete, "data/a/", ``, "names a folder"},
		{engines.Update, "metadata/", `{}`, "the path is empty"},
		{engines.Update, "metadata/a/", `{}`, "names a folder"},
		{engines.Delete, "metadata/", ``, "the path is empty"},
		{engines.Update, "destroy/a/", `{"versions":[1]}`, "names a folder"},
		{engines.Update, "data/a", `{"data":{},"options":{"cas":"x"}}`, "options.cas"},
		{engines.Update, "data/a", `{"data":{},"options":{"cas":-1}}`, "did not match the current version"},
		{engines.Update, "data/a", `{"data":{},"options":{"cas":0}}`, "check-and-set parameter did not match the current version"},
		{engines.Update, "delete/a", `{}`, `field "versions": is required`},
		{engines.Update, "delete/a", `{"versions":[]}`, `field "versions": must not be empty`},
		{engines.Update, "delete/a", `{"versions":["x"]}`, `field "versions": must be a list of version numbers`},
		{engines.Update, "delete/a", `{"versions":[0]}`, `field "versions": must be a list of version numbers`},
		{engines.Update, "metadata/a", `{"max_versions":-1}`, `field "max_versions"`},
		{engines.Update, "config", `{"max_versions":4294967296}`, `field "max_versions"`},
		{engines.Update, "config", `{"delete_version_after":"-1h"}`, `field "delete_version_after": must not be negative`},
		{engines.Update, "metadata/a", `{"custom_metadata":{"` + strings.Repeat("k", 129) + `":"v"}}`, "a name is longer than 128 bytes"},
		{engines.Update, "metadata/a", `{"custom_metadata":{"k":"` + strings.Repeat("v", 513) + `"}}`, "a value is longer than 512 bytes"},
		{engines.Update, "metadata/a", `{"custom_metadata":{"k":"\n"}}`, "must be printable"},
		{engines.Update, "metadata/a", `{"custom_metadata":{"":"v"}}`, "a name is empty"},
		{engines.Update, "metadata/a", `{"custom_metadata":{"k":["v"]}}`, "custom_metadata"},
		{engines.Patch, "metadata/a", `{"custom_metadata":{"k":["v"]}}`, "custom_metadata"},
		{engines.Update, "metadata/a", `{"custom_metadata":` + manyPairs(65) + `}`, "more than 64"},
		{engines.Read, "subkeys/a?depth=-1", ``, `field "depth"`},
	}
	for _, tt := range tests {
		if got := m.Fails(engines.KindInvalid, tt.op, tt.path, tt.body); !strings.Contains(got, tt.want) {
			t.Errorf("%s %s %s: %q, want %q in it", tt.op, tt.path, tt.body, got, tt.want)
		}
	}
	big := `{"data":{"a":"` + strings.Repeat("x", storage.MaxValueBytes) + `"}}`
	m.Fails(engines.KindTooLarge, engines.Update, "data/a", big)
	m.Fails(engines.KindTooLarge, engines.Patch, "data/a", big)
}

func manyPairs(n int) string {
	pairs := map[string]string{}
	for i := range n {
		pairs[fmt.Sprint(i)] = "v"
	}
	text, _ := json.Marshal(pairs)
	return string(text)
}

func TestV2CheckAndSet(t *testing.T) {
	m := newV2(t)
	write := func(path, options string) string { return `{"data":{"a":"b"},"options":` + options + `}` }
	m.Fails(engines.KindInvalid, engines.Update, "data/a", write("a", `{"cas":1}`))
	m.Must(engines.Update, "data/a", write("a", `{"cas":0}`))
	m.Must(engines.Update, "data/a", write("a", `{"cas":"1"}`))
	m.Must(engines.Update, "data/a", write("a", `{"cas":null}`))
	m.Must(engines.Patch, "data/a", write("a", `{"cas":3}`))
	m.Fails(engines.KindInvalid, engines.Patch, "data/a", write("a", `{"cas":3}`))

	const required = "check-and-set parameter required for this call"
	m.Must(engines.Update, "metadata/a", `{"cas_required":true}`)
	for _, op := range []engines.Operation{engines.Update, engines.Patch} {
		if got := m.Fails(engines.KindInvalid, op, "data/a", write("a", `{}`)); got != required {
			t.Errorf("%s: %q, want %q", op, got, required)
		}
	}
	m.Must(engines.Update, "metadata/a", `{"cas_required":false}`)
	m.Must(engines.Update, "config", `{"cas_required":true}`)
	if got := m.Fails(engines.KindInvalid, engines.Update, "data/b", write("b", `{}`)); got != required {
		t.Errorf("%q, want %q", got, required)
	}
	if resp := m.Must(engines.Update, "data/b", `{"data":{},"cas":9,"options":{"cas":0}}`); len(resp.Warnings) != 0 {
		t.Errorf("a cas at the top warns: %q", resp.Warnings)
	}
}

// TestV2Race: of many writers that expect the same version exactly one wins; without expectation all do.
func TestV2Race(t *testing.T) {
	m := newV2(t)
	m.Must(engines.Update, "config", `{"max_versions":100}`)
	var wg sync.WaitGroup
	wins := make(chan bool, 20)
	for range 20 {
		wg.Go(func() {
			_, err := m.Do(engines.Update, "data/a", `{"data":{},"options":{"cas":0}}`)
			wins <- err == nil
		})
	}
	wg.Wait()
	close(wins)
	won := 0
	for w := range wins {
		if w {
			won++
		}
	}
	if won != 1 {
		t.Errorf("%d writers with cas 0 won, want 1", won)
	}
	for range 10 {
		wg.Go(func() {
			if _, err := m.Do(engines.Update, "data/b", `{"data":{}}`); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := m.Data(m.Must(engines.Read, "metadata/b", nil))["current_version"]; got != num("10") {
		t.Errorf("current version %v after ten writes", got)
	}
}

// TestV2ReadDuringReplace: a reader never sees an error, nor data of another life of the secret.
func TestV2ReadDuringReplace(t *testing.T) {
	m := newV2(t)
	put(m, "a", `{"n":1}`)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 300 {
			if _, err := m.Do(engines.Delete, "metadata/a", nil); err != nil {
				t.Error(err)
			}
			if _, err := m.Do(engines.Update, "data/a", `{"data":{"n":1}}`); err != nil {
				t.Error(err)
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		_, err := m.Do(engines.Read, "data/a", nil)
		if e, ok := err.(*engines.Error); err != nil && (!ok || e.Kind != engines.KindNotFound) {
			t.Errorf("read: %v", err)
		}
	}
}

// TestV2LostData: a version whose data are not there is an internal error, not an endless wait.
func TestV2LostData(t *testing.T) {
	m := newV2(t)
	put(m, "a", `{}`)
	if _, err := m.Mount.Storage.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{"v/00000001/a"}}); err != nil {
		t.Fatal(err)
	}
	if resp, err := m.Do(engines.Read, "data/a", nil); err == nil || !strings.Contains(err.Error(), "has no data") {
		t.Errorf("read = %+v, %v, want an error", resp, err)
	}
}

func TestV2MaxVersions(t *testing.T) {
	tests := []struct {
		name, config, key string
		writes, keep      int
	}{
		{"default", `{}`, `{}`, 13, 10},
		{"mount", `{"max_versions":3}`, `{}`, 5, 3},
		{"key wins", `{"max_versions":3}`, `{"max_versions":5}`, 8, 5},
		{"one", `{}`, `{"max_versions":1}`, 4, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newV2(t)
			m.Must(engines.Update, "config", tt.config)
			m.Must(engines.Update, "metadata/a", tt.key)
			for range tt.writes {
				put(m, "a", `{}`)
			}
			meta := m.Data(m.Must(engines.Read, "metadata/a", nil))
			if got := len(meta["versions"].(map[string]any)); got != tt.keep {
				t.Errorf("%d versions kept, want %d", got, tt.keep)
			}
			if got, want := meta["oldest_version"], num(fmt.Sprint(tt.writes-tt.keep+1)); got != want {
				t.Errorf("oldest version %v, want %v", got, want)
			}
			payloads := 0
			for key := range m.Snapshot() {
				if strings.HasPrefix(key.Path(), "v/") {
					payloads++
				}
			}
			if payloads != tt.keep {
				t.Errorf("%d payloads stored, want %d", payloads, tt.keep)
			}
		})
	}
	m := newV2(t)
	for range 6 {
		put(m, "a", `{}`)
	}
	m.Must(engines.Update, "metadata/a", `{"max_versions":2}`)
	put(m, "a", `{}`)
	if got := len(m.Data(m.Must(engines.Read, "metadata/a", nil))["versions"].(map[string]any)); got != 2 {
		t.Errorf("lowering the limit keeps %d versions after the next write, want 2", got)
	}
	if resp := m.Must(engines.Update, "config", `{"max_versions":5000}`); resp == nil || len(resp.Warnings) != 1 {
		t.Errorf("a limit above what is kept answers %+v, want a warning", resp)
	}
}

func TestV2DeleteAfter(t *testing.T) {
	tests := []struct {
		config, key string
		after       time.Duration
	}{
		{`{"delete_version_after":"1h"}`, `{}`, time.Hour},
		{`{"delete_version_after":"0s"}`, `{"delete_version_after":"2h"}`, 2 * time.Hour},
		{`{"delete_version_after":"3h"}`, `{"delete_version_after":7200}`, 2 * time.Hour},
		{`{"delete_version_after":"1h"}`, `{"delete_version_after":"2h"}`, time.Hour},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			m := newV2(t)
			m.Must(engines.Update, "config", tt.config)
			m.Must(engines.Update, "metadata/a", tt.key)
			meta := m.Data(m.Must(engines.Update, "data/a", `{"data":{}}`))
			if got, want := meta["deletion_time"], time.Now().Add(tt.after).UTC().Format(time.RFC3339Nano); got != want {
				t.Errorf("%s %s: deletion time %v, want %v", tt.config, tt.key, got, want)
			}
			time.Sleep(tt.after - time.Second)
			if resp := m.Must(engines.Read, "data/a", nil); resp.Status != 0 {
				t.Errorf("%s %s: gone too early", tt.config, tt.key)
			}
			time.Sleep(time.Second)
			if resp := m.Must(engines.Read, "data/a", nil); resp.Status != 404 {
				t.Errorf("%s %s: still there", tt.config, tt.key)
			}
			m.Must(engines.Update, "undelete/a", `{"versions":"1"}`)
			if resp := m.Must(engines.Read, "data/a", nil); resp.Status != 0 {
				t.Errorf("%s %s: not back after undelete", tt.config, tt.key)
			}
		})
	}
}

func TestV2Config(t *testing.T) {
	m := newV2(t)
	m.Must(engines.Update, "config", `{"max_versions":"5","cas_required":"true","delete_version_after":"90m"}`)
	m.Must(engines.Update, "config", `{"max_versions":7}`)
	wantJSON(t, "config", m.Data(m.Must(engines.Read, "config", nil)), `{"max_versions":7,"cas_required":true,"delete_version_after":"1h30m0s"}`)
}

func TestV2MetadataPatch(t *testing.T) {
	m := newV2(t)
	m.Must(engines.Update, "metadata/a", `{"max_versions":5,"cas_required":true,"delete_version_after":"1h","custom_metadata":{"a":"1","b":"2"}}`)
	m.Must(engines.Patch, "metadata/a", `{"max_versions":null,"cas_required":false,"custom_metadata":{"a":null,"c":"3"}}`)
	got := m.Data(m.Must(engines.Read, "metadata/a", nil))
	for field, want := range map[string]any{"max_versions": num("0"), "cas_required": false, "delete_version_after": "1h0m0s",
		"custom_metadata": map[string]any{"b": "2", "c": "3"}, "current_version": num("0")} {
		if !reflect.DeepEqual(got[field], want) {
			t.Errorf("%s = %v, want %v", field, got[field], want)
		}
	}
	m.Must(engines.Patch, "metadata/a", `{"custom_metadata":null}`)
	if got := m.Data(m.Must(engines.Read, "metadata/a", nil))["custom_metadata"]; got != nil {
		t.Errorf("custom metadata %v, want none", got)
	}
	// A plain write takes null for absent.
	m.Must(engines.Update, "metadata/a", `{"delete_version_after":null}`)
	if got := m.Data(m.Must(engines.Read, "metadata/a", nil))["delete_version_after"]; got != "1h0m0s" {
		t.Errorf("delete_version_after %v, want 1h0m0s", got)
	}
}

func TestV2Patch(t *testing.T) {
	tests := []struct{ before, patch, want string }{ // the examples of RFC 7396, where they apply to objects
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":[1,2]}`, `{"a":{"b":1}}`, `{"a":{"b":1}}`},
	}
	for _, tt := range tests {
		m := newV2(t)
		put(m, "a", tt.before)
		if got := m.Data(m.Must(engines.Patch, "data/a", `{"data":`+tt.patch+`}`))["version"]; got != num("2") {
			t.Errorf("patch answers version %v, want 2", got)
		}
		wantJSON(t, tt.before+" patched with "+tt.patch, m.Data(m.Must(engines.Read, "data/a", nil))["data"].(map[string]any), tt.want)
	}
	m := newV2(t)
	put(m, "a", `{"n":12345678901234567890.10,"h":"<&>"}`)
	m.Must(engines.Patch, "data/a", `{"data":{"x":1}}`)
	if raw := string(m.Must(engines.Read, "data/a", nil).Data.(json.RawMessage)); !strings.Contains(raw, `{"h":"<&>","n":12345678901234567890.10,"x":1}`) {
		t.Errorf("a patch changed other values: %s", raw)
	}
	m.Must(engines.Delete, "data/a", nil)
	before := m.Snapshot()
	if resp := m.Must(engines.Patch, "data/a", `{"data":{"x":1}}`); resp.Status != 404 || m.Data(resp)["data"] != nil {
		t.Errorf("patch of a deleted version: %+v, want 404 with null data", resp)
	}
	if !reflect.DeepEqual(before, m.Snapshot()) {
		t.Error("patch of a deleted version wrote something")
	}
}

func TestV2Subkeys(t *testing.T) {
	m := newV2(t)
	put(m, "a", `{"user":"u","deep":{"x":[1],"y":{"z":true}},"empty":{}}`)
	for query, want := range map[string]string{
		"":                   `{"user":null,"deep":{"x":null,"y":{"z":null}},"empty":{}}`,
		"?depth=1":           `{"user":null,"deep":null,"empty":null}`,
		"?depth=2&version=1": `{"user":null,"deep":{"x":null,"y":null},"empty":{}}`,
		"?depth=9":           `{"user":null,"deep":{"x":null,"y":{"z":null}},"empty":{}}`,
	} {
		data := m.Data(m.Must(engines.Read, "subkeys/a"+query, nil))
		wantJSON(t, "subkeys"+query, data["subkeys"].(map[string]any), want)
		if data["metadata"].(map[string]any)["version"] != num("1") {
			t.Errorf("subkeys%s: metadata %v", query, data["metadata"])
		}
	}
	m.Must(engines.Delete, "data/a", nil)
	if resp := m.Must(engines.Read, "subkeys/a", nil); resp.Status != 404 || m.Data(resp)["subkeys"] != nil {
		t.Errorf("subkeys of a deleted version: %+v", resp)
	}
}

func TestV2List(t *testing.T) {
	m := newV2(t)
	for _, path := range []string{"a", "b/c", "b/d/e", "f"} {
		put(m, path, `{}`)
	}
	for path, want := range map[string][]any{
		"metadata": {"a", "b/", "f"}, "metadata/": {"a", "b/", "f"}, "metadata/b": {"c", "d/"}, "metadata/b/": {"c", "d/"},
		"metadata/?limit=1": {"a"}, "metadata/?after=a&limit=1": {"b/"}, "metadata/?after=b/": {"f"},
	} {
		if got := m.Data(m.Must(engines.List, path, nil))["keys"]; !reflect.DeepEqual(got, want) {
			t.Errorf("list %s = %v, want %v", path, got, want)
		}
	}
	m.Must(engines.Delete, "metadata/a", nil)
	for key := range m.Snapshot() {
		if strings.HasSuffix(string(key), "/a") {
			t.Errorf("%s is left after all of it was deleted", key)
		}
	}
}

func TestV2Hostile(t *testing.T) {
	m := newV2(t)
	enginetest.Documented(t, m)
	put(m, "x", `{"a":"b"}`)
	m.Must(engines.Update, "metadata/x", `{"custom_metadata":{"a":"b"}}`)
	enginetest.Hostile(t, m)
}

func TestV2SecretsStayOutOfErrors(t *testing.T) {
	m := newV2(t)
	for _, body := range []string{`{"data":{"p":"hunter2"}`, `{"data":{"p":"hunter2","p":"hunter2"}}`, `{"data":["hunter2"]}`, `{"data":{"p":hunter2}}`} {
		if text := m.Fails(engines.KindInvalid, engines.Update, "data/a", body); strings.Contains(text, "hunter2") {
			t.Errorf("error %q holds a value", text)
		}
	}
}
