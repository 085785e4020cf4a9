package security_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// auditFile enables an audit device and returns its file.
func (u user) auditFile() string {
	u.t.Helper()
	file := filepath.Join(u.t.TempDir(), "audit.log")
	u.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": file}})
	return file
}

// grown returns by how many bytes and lines what is sent makes a file longer.
func grown(t *testing.T, file string, send func()) (size, lines int) {
	t.Helper()
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	send()
	after, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	added := after[len(before):]
	for line := range bytes.Lines(added) {
		if !json.Valid(line) {
			t.Errorf("a line is no JSON: %.300s", line)
		}
	}
	return len(added), bytes.Count(added, []byte("\n"))
}

// TestAuditVolume: what a client without a token sends makes the audit log grow by one record of at most 1 KiB where a token
// is needed, by two of at most 1.5 KiB where none is; and what a client with a token sends, by what
// the limits of a record say.
func TestAuditVolume(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.must("POST", "sys/mounts/secret", fields{"type": "kv", "options": fields{"version": "2"}})
	root.people("bob", "default")
	root.must("POST", "sys/config/auditing/request-headers/x-kept", fields{"hmac": true})
	file := root.auditFile()
	long := strings.Repeat("x", 1<<20)
	bodies := map[string]string{
		"many texts": `{"a":["` + strings.Repeat(`","`, 65_000) + `"]}`,
		"long names": `{"` + long + `":"","` + long + `b":""}`,
		"many names": `{"a0":""` + strings.Repeat(`,"":""`, 20_000) + `}`,
		"arrays":     `{"a":[` + strings.Repeat(`[],`, 65_000) + `[]]}`,
		"small":      `{"a":"","b":"","c":"","d":"","e":""}`,
		"32 MiB":     `{"a":"` + strings.Repeat("x", 32<<20-16) + `"}`,
	}
	headers := []string{"User-Agent", strings.Repeat("u", 100<<10), "X-Kept", strings.Repeat("k", 100<<10)}
	do := func(u user, method, path, body string, header ...string) (status int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a, err := u.n.Do(ctx, method, "/v1/"+path, u.token, []byte(body), header...)
		if err != nil {
			return 0 // rejected while the body was on its way
		}
		return a.Status
	}
	for name, body := range bodies {
		for who, u := range map[string]user{"no token": root.nobody(), "an unknown token": root.with("hvs." + strings.Repeat("t", 2000))} {
			size, lines := grown(t, file, func() {
				if status := do(u, "POST", "secret/data/x", body, headers...); status >= 200 && status < 300 {
					t.Errorf("%s, %s: status %d", name, who, status)
				}
			})
			if size > 1<<10 || lines > 1 {
				t.Errorf("%s, %s: %d bytes make %d lines of %d bytes", name, who, len(body), lines, size)
			}
		}
		size, lines := grown(t, file, func() { do(root.nobody(), "POST", "auth/people/login/bob", body, headers...) })
		if size > 3<<10 || lines > 2 {
			t.Errorf("%s, a login: %d bytes make %d lines of %d bytes", name, len(body), lines, size)
		}
		size, _ = grown(t, file, func() { do(root, "POST", "secret/data/x", body, headers...) })
		if size > 80<<10 {
			t.Errorf("%s, with a token: %d bytes make %d", name, len(body), size)
		}
	}
	query := "?" + strings.Repeat("a=&", 5_000)
	path := "secret/data/" + strings.Repeat("%3C", 1900)
	for name, u := range map[string]user{"no token": root.nobody(), "a token": root} {
		limit := 1 << 10
		if u.token != "" {
			limit = 80 << 10
		}
		for _, target := range []string{"secret/data/x" + query, path} {
			status := 0
			size, _ := grown(t, file, func() { status = do(u, "GET", target, "") })
			if size > limit || size == 0 {
				t.Errorf("%.20s… with %s: status %d, %d bytes", target, name, status, size)
			}
		}
	}
	// Without the limits: the record still says what was tried.
	if _, lines := grown(t, file, func() { do(root.nobody(), "POST", "secret/data/tried", `{"a":"sent"}`) }); lines != 1 {
		t.Errorf("a rejected request has %d records", lines)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	last := text[bytes.LastIndexByte(text[:len(text)-1], '\n')+1:]
	for _, want := range []string{`"path":"secret/data/tried"`, `"data_rest":{"unread":true,"bytes":12}`, `"remote_address":"127.0.0.1"`, `"error":"`} {
		if !bytes.Contains(last, []byte(want)) {
			t.Errorf("the record of a rejected request lacks %s: %s", want, last)
		}
	}
	if bytes.Contains(last, []byte("sent")) {
		t.Errorf("the record of a rejected request has values: %s", last)
	}
}

// TestNodeRequestsAreRecorded: the initialisation and each unseal are recorded once there is a device that can be open, and
// so are attempts upon a node that is initialised and unsealed. No share of a key is.
func TestNodeRequestsAreRecorded(t *testing.T) {
	t.Parallel()
	c, root := single(t, harness.Options{Shamir: true})
	file := root.auditFile()
	root.must("POST", "sys/audit-hash/file", fields{"input": "x"})
	if all := records(t, file, "sys/init"); len(all) != 1 || all[0].Error != "" || all[0].Request.Remote != "127.0.0.1" {
		t.Errorf("the initialisation is recorded as %+v", all)
	}
	unseals := len(records(t, file, "sys/unseal"))
	if unseals == 0 {
		t.Error("the first unseal is not recorded")
	}
	if a := root.nobody().do("POST", "sys/init", fields{"secret_shares": 1, "secret_threshold": 1}); a.Status != 400 {
		t.Errorf("a second initialisation: status %d", a.Status)
	}
	if all := records(t, file, "sys/init"); len(all) != 2 || !strings.Contains(all[1].Error, "already initialized") {
		t.Errorf("an attempt to initialise again is recorded as %+v", all)
	}
	root.nobody().do("POST", "sys/storage/raft/join", fields{"leader_api_addr": "https://127.0.0.1:1"})
	if all := records(t, file, "sys/storage/raft/join"); len(all) != 1 {
		t.Errorf("an attempt to join another cluster is recorded as %+v", all)
	}
	root.must("POST", "sys/seal", nil)
	wrong := strings.Repeat("ab", 33)
	root.nobody().do("POST", "sys/unseal", fields{"key": wrong})
	root.nobody().do("POST", "sys/unseal", fields{"reset": true})
	root.n.Unseal()
	c.WaitServing()
	root.must("GET", "sys/mounts", nil)
	if all := records(t, file, "sys/unseal"); len(all) < unseals+3 {
		t.Errorf("after the second unseal there are %d records, had %d", len(all), unseals)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range append([]string{wrong}, c.Keys...) {
		if bytes.Contains(text, []byte(secret)) {
			t.Error("a share of a key is in the audit log")
		}
	}
}

// TestLoginRecords: the record of a login says who it is, and those of the requests that a SAML login takes have an id in
// common.
func TestLoginRecords(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.people("bob", "default")
	m := root.saml("sso", samltest.New(t), nil)
	file := root.auditFile()
	root.login("bob")
	one, two := m.start(nil), m.start(nil)
	m.confirm(one, alice)
	m.post(url.Values{"RelayState": {two.relay}, "SAMLResponse": {"!"}})
	m.redeem(two)
	m.take(one)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names, paths := map[string]string{}, map[string][]string{}
	var order []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r struct {
			Type    string
			Request struct {
				Path    string
				LoginID string `json:"login_id"`
			}
			Response struct {
				Auth struct {
					DisplayName string `json:"display_name"`
				}
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if name := r.Response.Auth.DisplayName; name != "" {
			names[r.Request.Path] = name
		}
		if id := r.Request.LoginID; id != "" {
			if paths[id] == nil {
				order = append(order, id)
			}
			paths[id] = append(paths[id], strings.TrimPrefix(r.Request.Path, "auth/sso/"))
		}
	}
	if names["auth/people/login/bob"] != "people-bob" || names["auth/sso/token"] != "sso-"+alice.Subject {
		t.Errorf("the display names of logins are %v", names)
	}
	if len(order) != 2 {
		t.Fatalf("the ids of logins are %v", paths)
	}
	for _, id := range order {
		if got := strings.Join(paths[id], " "); got != "sso_service_url callback token" {
			t.Errorf("the requests of a login are %s", got)
		}
	}
}

// TestAuditFileRoots: whoever may enable audit devices writes no other file of the server: none outside of the directories
// that the configuration names, none in the data directory, and no line that means something to another program.
func TestAuditFileRoots(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	logs, other := filepath.Join(base, "logs"), filepath.Join(base, "other")
	for _, dir := range []string{logs, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(other, filepath.Join(logs, "link")); err != nil {
		t.Fatal(err)
	}
	data := func(string) string { return filepath.Join(base, "data") }
	_, root := single(t, harness.Options{Dir: data, Config: "audit {\n  file_roots = [\"" + base + "\"]\n}"})
	try := func(options fields) harness.Answer {
		return root.do("POST", "sys/audit/a", fields{"type": "file", "options": options})
	}
	for path, want := range map[string]string{
		"/etc/cron.d/coffer": "file_roots", t.TempDir() + "/log": "file_roots", base + "/../x": "file_roots", "../x": "file_roots",
		logs + "/link/log": "path escapes", data("") + "/raft.db": "data directory", "data/fsm.db": "data directory",
	} {
		if a := try(fields{"file_path": path}); a.Status != 400 || !strings.Contains(string(a.Body), want) {
			t.Errorf("%s: status %d: %.300s", path, a.Status, a.Body)
		}
	}
	for _, prefix := range []string{"* * * * * root touch /tmp/x #", "@reboot root touch /tmp/x #", "$(touch x)", "A=B", "x\n"} {
		if a := try(fields{"file_path": "logs/log", "prefix": prefix}); a.Status != 400 || !strings.Contains(string(a.Body), "prefix") {
			t.Errorf("prefix %q: status %d: %.300s", prefix, a.Status, a.Body)
		}
	}
	if found, err := os.ReadDir(other); err != nil || len(found) > 0 {
		t.Errorf("outside of the roots there are %v, %v", found, err)
	}
	root.must("POST", "sys/audit/a", fields{"type": "file", "options": fields{"file_path": "logs/log", "prefix": "coffer:"}})
	if text, err := os.ReadFile(filepath.Join(logs, "log")); err != nil || !bytes.HasPrefix(text, []byte(`coffer:{"time":"`)) {
		t.Errorf("a device below a root writes %.300s, %v", text, err)
	}
}

// TestAuditDefaults: without the stanza audit files are beside the data directory, in a directory that is made for them; and
// a disk that is almost full is in the log and in the metrics.
func TestAuditDefaults(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	c, root := single(t, harness.Options{
		Dir:    func(string) string { return filepath.Join(base, "data") },
		Config: "# no audit { stanza }\nfree_space_warning = \"1000000000GiB\"",
	})
	root.must("POST", "sys/audit/a", fields{"type": "file", "options": fields{"file_path": "audit.log"}})
	root.must("GET", "sys/mounts", nil)
	if text, err := os.ReadFile(filepath.Join(base, "data-audit", "audit.log")); err != nil || !bytes.Contains(text, []byte(`"path":"sys/mounts"`)) {
		t.Errorf("the audit file beside the data directory: %v, %.300s", err, text)
	}
	if info, err := os.Stat(filepath.Join(base, "data-audit")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its directory is %v, %v", info, err)
	}
	if a := root.do("POST", "sys/audit/b", fields{"type": "file", "options": fields{"file_path": filepath.Join(base, "log")}}); a.Status != 400 {
		t.Errorf("a file elsewhere: status %d: %.300s", a.Status, a.Body)
	}
	harness.Await(t, "a warning about the disk", time.Minute, func() error {
		if !strings.Contains(c.Nodes[0].Log(), "almost full") {
			return errors.New("the log has none")
		}
		return nil
	})
	metrics := string(root.must("GET", "sys/metrics?format=prometheus", nil).Body)
	for _, want := range []string{"coffer_disk_data_free_bytes ", "coffer_disk_audit_free_bytes ", "coffer_disk_directories_low "} {
		if !strings.Contains(metrics, "\n"+want) || strings.Contains(metrics, "\n"+want+"0\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// TestAuditSearch: searching the audit log needs sudo in the root namespace, is recorded itself, and answers neither values nor hashes of them.
func TestAuditSearch(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{})
	root.auditFile()
	root.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	root.must("POST", "kv/app", fields{"password": "a-value-that-is-secret"})
	hash, _ := dataOf(t, root.must("POST", "sys/audit-hash/file", fields{"input": "a-value-that-is-secret"}))["hash"].(string)
	found := root.must("POST", "sys/audit-search/file", fields{"path_prefix": "kv/"})
	if records, _ := dataOf(t, found)["records"].([]any); len(records) != 1 || records[0].(map[string]any)["path"] != "kv/app" {
		t.Errorf("found %s", found.Body)
	}
	found = root.must("POST", "sys/audit-search/file", fields{"hash": hash})
	if dataOf(t, found)["matches"] != 1.0 || bytes.Contains(found.Body, []byte("a-value-that")) || bytes.Contains(found.Body, []byte(hash)) {
		t.Errorf("found by hash: %s", found.Body)
	}
	found = root.must("POST", "sys/audit-search/file", fields{"path_prefix": "sys/audit-search/"})
	if dataOf(t, found)["matches"] != 2.0 {
		t.Errorf("searches that were recorded: %s", found.Body)
	}
	root.must("POST", "sys/policies/acl/searcher", fields{"policy": `path "sys/audit-search/*" { capabilities = ["update"] }`})
	root.having("searcher").refused("search without sudo", "POST", "sys/audit-search/file", fields{})
	for _, body := range []fields{{"from": "yesterday"}, {"limit": 501}, {"buckets": 1000}, {"outcome": "good"}, {"from": "2026-05-01T12:00:00Z", "to": "2026-05-01T11:00:00Z"}} {
		if a := root.do("POST", "sys/audit-search/file", body); a.Status != 400 {
			t.Errorf("%v: status %d, want 400", body, a.Status)
		}
	}
}
