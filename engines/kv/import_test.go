package kv_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
)

// secret is a member of an import, with versions 1 to n, each with a value; changes replace texts of it.
func importedText(n int, changes ...string) string {
	const times = `"created_time":"2020-01-01T00:00:01.000000001Z","updated_time":"2020-01-01T00:00:0UZ","custom_metadata":{"owner":"me"},"delete_version_after":"0s","max_versions":0,"cas_required":false`
	versions := []string{}
	for i := range n {
		versions = append(versions, strings.ReplaceAll(`{"version":N,"created_time":"2020-01-01T00:00:0N.000000001Z","deletion_time":"","destroyed":false,"data":{"n":N}}`, "N", string(rune('1'+i))))
	}
	text := "{" + strings.ReplaceAll(times, "U", string(rune('1'+n))) + `,"versions":[` + strings.Join(versions, ",") + "]}"
	return strings.NewReplacer(changes...).Replace(text)
}

// imports sends an import of one secret, and returns its status.
func imports(m *enginetest.Mount, path, secret, rest string) string {
	body, _ := json.Marshal(map[string]json.RawMessage{path: json.RawMessage(secret)})
	data := m.Data(m.Must(engines.Update, "import", `{"secrets":`+string(body)+rest+`}`))
	return data["secrets"].(map[string]any)[path].(map[string]any)["status"].(string)
}

func TestImport(t *testing.T) {
	m := newV2(t)
	check := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	check("a new secret", imports(m, "a/b", importedText(2), ""), "created")
	wantJSON(t, "its metadata", m.Data(m.Must(engines.Read, "metadata/a/b", nil)), `{"cas_required":false,"created_time":"2020-01-01T00:00:01.000000001Z",
		"current_version":2,"custom_metadata":{"owner":"me"},"delete_version_after":"0s","max_versions":0,"oldest_version":0,"updated_time":"2020-01-01T00:00:03Z",
		"versions":{"1":{"created_time":"2020-01-01T00:00:01.000000001Z","deletion_time":"","destroyed":false},
		            "2":{"created_time":"2020-01-01T00:00:02.000000001Z","deletion_time":"","destroyed":false}}}`)
	wantJSON(t, "its first version", m.Data(m.Must(engines.Read, "data/a/b?version=1", nil)), `{"data":{"n":1},"metadata":{"created_time":"2020-01-01T00:00:01.000000001Z",
		"custom_metadata":{"owner":"me"},"deletion_time":"","destroyed":false,"version":1}}`)
	before := m.Snapshot()
	check("again", imports(m, "a/b", importedText(2, `{"n":1}`, ` {"n": 1}`), ""), "unchanged")
	if len(before) != len(m.Snapshot()) {
		t.Error("importing the same again wrote something")
	}
	check("one version more, the others without data", imports(m, "a/b", importedText(3, `,"data":{"n":1}`, "", `,"data":{"n":2}`, ""), ""), "extended")
	for version, want := range map[string]string{"1": `{"n":1}`, "3": `{"n":3}`} {
		if got := m.Data(m.Must(engines.Read, "data/a/b?version="+version, nil))["data"]; mustJSON(t, got) != want {
			t.Errorf("version %s has %v, want %s", version, got, want)
		}
	}
	check("fewer", imports(m, "a/b", importedText(2), ""), "conflict")
	check("other data", imports(m, "a/b", importedText(3, `{"n":3}`, `{"n":4}`), ""), "conflict")
	check("other times", imports(m, "a/b", importedText(3, "03.000000001Z", "03.000000002Z"), ""), "conflict")
	check("a version destroyed", imports(m, "a/b", importedText(3, `false,"data":{"n":1}`, `true`), ""), "extended")
	if len(before) != len(m.Snapshot()) { // versions 2 and 3, and the record
		t.Errorf("the data of the destroyed version is still there: %d entries", len(m.Snapshot()))
	}
	check("and not destroyed", imports(m, "a/b", importedText(3), ""), "conflict")
	check("overwritten", imports(m, "a/b", importedText(3), `,"overwrite":true`), "overwritten")

	put(m, "a/b", `{"n":"ours"}`)
	check("written here since", imports(m, "a/b", importedText(4), ""), "conflict")
	check("created here", imports(m, "a/b", importedText(4), `,"overwrite":true`), "overwritten")
	m.Must(engines.Update, "metadata/a/b", `{"max_versions":5}`)
	check("settings changed here since", imports(m, "a/b", importedText(5), ""), "conflict")
	put(m, "ours", `{"x":1}`)
	check("not imported at all", imports(m, "ours", importedText(1), ""), "conflict")

	check("no data", imports(m, "half", importedText(2, `,"data":{"n":2}`, ""), ""), "incomplete")
	deleted := importedText(2, `"deletion_time":"","destroyed":false,"data":{"n":2}`, `"deletion_time":"2020-02-02T00:00:00Z","destroyed":false,"data":null`)
	check("deleted there", imports(m, "half", deleted, ""), "created")
	if resp := m.Must(engines.Read, "data/half", nil); resp.Status != 404 {
		t.Errorf("a deleted version reads with status %d", resp.Status)
	}
	if text := m.Fails(engines.KindInvalid, engines.Update, "undelete/half", `{"versions":[2]}`); !strings.Contains(text, "no data to take back") {
		t.Errorf("undelete of a version without data: %s", text)
	}
	check("undeleted there", imports(m, "half", importedText(2), ""), "extended")

	check("more than are kept", imports(m, "few", importedText(5, `"max_versions":0`, `"max_versions":2`), ""), "created")
	m.Fails(engines.KindNotFound, engines.Read, "data/few?version=3", nil)
	if got := m.Data(m.Must(engines.Read, "data/few?version=4", nil))["data"]; mustJSON(t, got) != `{"n":4}` {
		t.Errorf("version 4 has %v", got)
	}
	check("the same again", imports(m, "few", importedText(5, `"max_versions":0`, `"max_versions":2`), ""), "unchanged")
	put(m, "few", `{"n":6}`)
	m.Fails(engines.KindNotFound, engines.Read, "data/few?version=4", nil)
}

func TestImportRejects(t *testing.T) {
	m := newV2(t)
	good := importedText(1)
	for name, c := range map[string]struct{ path, secret, want string }{
		"an unknown name":        {"a", strings.Replace(good, `"custom_metadata"`, `"custom"`, 1), `unknown field "custom"`},
		"of a version":           {"a", strings.Replace(good, `"destroyed"`, `"gone"`, 1), `unknown field "gone"`},
		"no time":                {"a", strings.Replace(good, "2020-01-01T00:00:01.000000001Z", "", 1), "created_time and updated_time are required"},
		"a time that is none":    {"a", strings.Replace(good, "2020-01-01", "yesterday", 1), "times must be RFC 3339"},
		"no time of a version":   {"a", strings.ReplaceAll(good, `"version":1,"created_time":"2020-01-01T00:00:01.000000001Z"`, `"version":1`), "version 1: created_time is required"},
		"no number":              {"a", strings.Replace(good, `"version":1`, `"version":0`, 1), "a version has no number"},
		"a negative one":         {"a", strings.Replace(good, `"version":1`, `"version":-1`, 1), "wrong type"},
		"data that is no object": {"a", strings.Replace(good, `{"n":1}`, `"secret-value"`, 1), "data must be an object"},
		"destroyed with data":    {"a", strings.Replace(good, `"destroyed":false`, `"destroyed":true`, 1), "version 1 is destroyed, so it has no data"},
		"a duration":             {"a", strings.Replace(good, `"0s"`, `"-1s"`, 1), "delete_version_after must not be negative"},
		"twice":                  {"a", strings.Replace(importedText(2), `"version":2`, `"version":1`, 1), "version 1 is given twice"},
		"metadata":               {"a", strings.Replace(good, `"me"`, `"\n"`, 1), "names and values must be printable"},
		"no object":              {"a", `[1]`, "wrong type"},
		"a folder":               {"a/", good, "names a folder"},
		"no path":                {"", good, "the path is empty"},
		"up":                     {"a/../b", good, `".." segment`},
		"an absolute path":       {"/a", good, "empty segment"},
		"a NUL":                  {"a\x00b", good, "NUL"},
	} {
		body, _ := json.Marshal(map[string]json.RawMessage{c.path: json.RawMessage(c.secret), "fine": json.RawMessage(good)})
		if got := m.Fails(engines.KindInvalid, engines.Update, "import", `{"secrets":`+string(body)+`}`); !strings.Contains(got, c.want) || strings.Contains(got, "secret-value") {
			t.Errorf("%s: %s, want …%s", name, got, c.want)
		}
	}
	m.Fails(engines.KindInvalid, engines.Update, "import", `{"secrets":{}}`)
	m.Fails(engines.KindInvalid, engines.Update, "import", `{"secrets":{"a":`+good+`},"force":true}`)
	large := strings.Repeat("x", 900<<10)
	versions := importedText(8)
	for i := range 8 {
		versions = strings.Replace(versions, `{"n":`+string(rune('1'+i))+`}`, `{"n":"`+large+`"}`, 1)
	}
	m.Fails(engines.KindTooLarge, engines.Update, "import", `{"secrets":{"a":`+versions+`}}`)
	if n := len(m.Snapshot()); n != 0 {
		t.Errorf("rejected imports wrote %d entries", n)
	}
}

// TestImportMany writes more than fits into one transaction.
func TestImportMany(t *testing.T) {
	m := newV2(t)
	secrets := map[string]json.RawMessage{}
	large := strings.Repeat("x", 900<<10)
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} { // 9,000 kB, and a transaction has at most 8 MiB
		secrets[name] = json.RawMessage(importedText(1, `{"n":1}`, `{"n":"`+large+`"}`))
	}
	body, _ := json.Marshal(map[string]any{"secrets": secrets})
	if got := m.Data(m.Must(engines.Update, "import", string(body)))["totals"]; mustJSON(t, got) != `{"created":10}` {
		t.Errorf("totals %v", got)
	}
	if got := m.Data(m.Must(engines.Update, "import", string(body)))["totals"]; mustJSON(t, got) != `{"unchanged":10}` {
		t.Errorf("totals %v", got)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
