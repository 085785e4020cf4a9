package migration_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// standIn responds as other servers of the family do: mounts of other engines, fields that are null or have older names, negative durations,
// statuses 404 with data, features that are not there, and requests that come too fast.
type standIn struct {
	*httptest.Server
	mu       sync.Mutex
	requests map[string]int // by method, namespace and path
	late     atomic.Bool    // the third request is rejected as too fast, the fifth is not served
	served   atomic.Int32
	expires  atomic.Int32      // after how many requests the token does, 0: never
	own      map[string]string // responses in place of others
}

const standInToken = "hvs.of-the-stand-in"

// responses are by namespace and path; a list ends in "?list". The members of "data".
var responses = map[string]string{
	" auth/token/lookup-self": `{"id":"hvs.of-the-stand-in","policies":["root"]}`,
	" sys/namespaces?list":    `{"keys":["team/"],"key_info":{"team/":{"id":"aBcDe","path":"team/"}}}`,
	" sys/namespaces/team":    `{"id":"aBcDe","path":"team/","custom_metadata":null}`,
	" sys/mounts": `{
		"cubbyhole/":{"type":"cubbyhole","accessor":"cubbyhole_1","local":true,"config":{"default_lease_ttl":0,"max_lease_ttl":0,"force_no_cache":false}},
		"identity/":{"type":"identity","accessor":"identity_1","config":{"default_lease_ttl":0,"max_lease_ttl":0,"passthrough_request_headers":["Authorization"]}},
		"sys/":{"type":"system","accessor":"system_1","config":{"default_lease_ttl":0,"max_lease_ttl":0}},
		"secret/":{"type":"kv","accessor":"kv_1","description":"key/value secret storage","local":false,"seal_wrap":false,"options":{"version":"2"},"uuid":"u1","plugin_version":"","running_plugin_version":"v0.17.0+builtin","config":{"default_lease_ttl":0,"max_lease_ttl":3600,"force_no_cache":false,"listing_visibility":"hidden","audit_non_hmac_request_keys":["x"]}},
		"generic/":{"type":"generic","accessor":"generic_1","description":"","local":false,"options":null,"config":{"default_lease_ttl":0,"max_lease_ttl":0}},
		"pki/":{"type":"pki","accessor":"pki_1","description":"","local":false,"options":null,"config":{"default_lease_ttl":0,"max_lease_ttl":0}}}`,
	" sys/auth": `{
		"token/":{"type":"token","accessor":"auth_token_1","config":{"default_lease_ttl":0,"max_lease_ttl":0,"token_type":"default-service"}},
		"approle/":{"type":"approle","accessor":"auth_approle_1","description":"","local":false,"options":null,"config":{"default_lease_ttl":0,"max_lease_ttl":0,"token_type":"default-service"}},
		"ldap/":{"type":"ldap","accessor":"auth_ldap_1","description":"","local":false,"options":null,"config":{"default_lease_ttl":0,"max_lease_ttl":0,"token_type":"default-service"}}}`,
	"team sys/mounts": `{"ns_sys/":{"type":"ns_system","accessor":"ns_system_1"},"cubbyhole/":{"type":"ns_cubbyhole"},"kv/":{"type":"kv","accessor":"kv_2","options":{"version":"2"},"config":{"default_lease_ttl":0,"max_lease_ttl":0}}}`,
	"team sys/auth":   `{"token/":{"type":"ns_token","accessor":"auth_ns_token_1"}}`,

	" secret/config":             `{"cas_required":false,"delete_version_after":"-1s","max_versions":0}`,
	" secret/metadata/?list":     `{"keys":["app/","gone","hidden"]}`,
	" secret/metadata/app/?list": `{"keys":["db"]}`,
	" secret/metadata/app/db": `{"cas_required":false,"created_time":"2023-05-01T08:00:00.123456789Z","current_version":3,"custom_metadata":null,"delete_version_after":"0s","max_versions":0,"oldest_version":0,"updated_time":"2023-05-03T08:00:00.1Z","last_updated_by":null,
		"versions":{"1":{"created_time":"2023-05-01T08:00:00.123456789Z","deletion_time":"","destroyed":true,"created_by":null},
		            "2":{"created_time":"2023-05-02T08:00:00Z","deletion_time":"2023-05-02T09:00:00.5Z","destroyed":false},
		            "3":{"created_time":"2023-05-03T08:00:00.1Z","deletion_time":"","destroyed":false}}}`,
	" secret/data/app/db?version=3": `{"data":{"password":"a<b","n":1e3,"nested":{"k":[1,null]}},"metadata":{"created_time":"2023-05-03T08:00:00.1Z","custom_metadata":null,"deletion_time":"","destroyed":false,"version":3}}`,
	" secret/metadata/gone":         `{"cas_required":true,"created_time":"2023-05-01T08:00:00Z","current_version":1,"custom_metadata":{"owner":"ops"},"delete_version_after":"-1s","max_versions":2,"updated_time":"2023-05-01T08:00:00Z","versions":{"1":{"created_time":"2023-05-01T08:00:00Z","deletion_time":"2023-05-01T09:00:00Z","destroyed":false}}}`,
	" generic?list":                 `{"keys":["a"]}`,
	" generic/?list":                `{"keys":["a"]}`,
	" generic/a":                    `{"value":"of generic"}`,
	"team kv/config":                `{"cas_required":false,"delete_version_after":"0s","max_versions":0}`,

	" sys/policies/acl?list":                `{"keys":["app","default","root"]}`,
	" sys/policies/acl/app":                 `{"name":"app","policy":"path \"pki/issue/app\" { capabilities = [\"update\"] }\npath \"secret/data/{{identity.entity.aliases.auth_approle_1.name}}\" { capabilities = [\"read\"] }"}`,
	" sys/policies/acl/default":             `{"name":"default","policy":"# of the source\npath \"auth/token/lookup-self\" { capabilities = [\"read\"] }"}`,
	" sys/policies/egp?list":                `{"keys":["working-hours"]}`,
	"team sys/policies/acl?list":            `{"keys":["default","root"]}`,
	"team sys/policies/acl/default":         `{"name":"default","policy":"# of the source"}`,
	" auth/token/roles?list":                `{"keys":["ci"]}`,
	" auth/token/roles/ci":                  `{"allowed_entity_aliases":null,"allowed_policies":["app"],"allowed_policies_glob":[],"disallowed_policies":[],"disallowed_policies_glob":[],"explicit_max_ttl":0,"name":"ci","orphan":true,"path_suffix":"","period":0,"renewable":true,"token_bound_cidrs":[],"token_explicit_max_ttl":0,"token_no_default_policy":false,"token_num_uses":0,"token_period":3600,"token_type":"default-service"}`,
	" auth/approle/role?list":               `{"keys":["web"]}`,
	" auth/approle/role/web":                `{"bind_secret_id":true,"local_secret_ids":false,"period":600,"policies":["app"],"secret_id_bound_cidrs":null,"secret_id_num_uses":0,"secret_id_ttl":0,"token_bound_cidrs":[],"token_explicit_max_ttl":0,"token_max_ttl":0,"token_no_default_policy":false,"token_num_uses":0,"token_period":0,"token_policies":["app"],"token_ttl":1200,"token_type":"default","alias_metadata":{}}`,
	" auth/approle/role/web/role-id":        `{"role_id":"5f0ab3cb-ad4c-4d2a-8a4f-7d9c6b0e7d11"}`,
	" auth/approle/role/web/secret-id?list": `{"keys":["a1","a2"]}`,

	" identity/entity/id?list": `{"keys":["e1"],"key_info":{"e1":{"name":"entity_1"}}}`,
	" identity/entity/id/e1":   `{"id":"e1","name":"entity_1","metadata":null,"policies":[],"disabled":false,"namespace_id":"root","merged_entity_ids":null,"aliases":[{"id":"al1","canonical_id":"e1","name":"5f0ab3cb-ad4c-4d2a-8a4f-7d9c6b0e7d11","mount_accessor":"auth_approle_1","mount_path":"auth/approle/","mount_type":"approle","custom_metadata":null,"metadata":{"role_name":"web"},"local":false},{"id":"al2","canonical_id":"e1","name":"x","mount_accessor":"auth_ldap_1","custom_metadata":null}]}`,
	" identity/group/id?list":  `{"keys":["g1"]}`,
	" identity/group/id/g1":    `{"id":"g1","name":"ops","type":"internal","metadata":null,"policies":["app"],"member_entity_ids":["e1"],"member_group_ids":null,"parent_group_ids":null,"alias":{},"modify_index":1}`,

	" sys/quotas/rate-limit?list":   `{"keys":["global"]}`,
	" sys/quotas/rate-limit/global": `{"block_interval":0,"inheritable":true,"interval":1,"name":"global","path":"","rate":100000,"role":"","type":"rate-limit"}`,
	" sys/quotas/config":            `{"absolute_rate_limit_exempt_paths":[],"enable_rate_limit_audit_logging":false,"enable_rate_limit_response_headers":false,"rate_limit_exempt_paths":["sys/health"]}`,
	" sys/audit":                    `{"file/":{"type":"file","description":"","local":false,"options":{"file_path":"/var/log/vault/audit.log"},"path":"file/"},"net/":{"type":"socket","options":{"address":"10.0.0.1:9000"}}}`,
	" identity/mfa/method?list":     `{"keys":["m1"]}`,
}

func newStandIn(t *testing.T) *standIn {
	s := &standIn{requests: map[string]int{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	answer := func(status int, body string) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
	n := s.served.Add(1)
	if n == 3 && s.late.Load() {
		w.Header().Set("Retry-After", "1")
		answer(429, `{"errors":["request path \"sys/mounts\": rate limit quota exceeded"]}`)
		return
	}
	if n == 5 && s.late.Load() {
		answer(503, `{"errors":["Vault is sealed"]}`)
		return
	}
	path, version := strings.TrimPrefix(r.URL.Path, "/v1/"), r.URL.Query().Get("version")
	key := strings.Trim(r.Header.Get("X-Vault-Namespace"), "/") + " " + path
	switch {
	case r.URL.Query().Get("list") == "true":
		key = strings.TrimSuffix(key, "/") + "?list"
	case version != "":
		key += "?version=" + version
	}
	s.mu.Lock()
	s.requests[r.Method+" "+key]++
	s.mu.Unlock()
	data, there := responses[key]
	if !there {
		data, there = responses[strings.Replace(key, "?list", "/?list", 1)]
	}
	if own, ok := s.own[key]; ok {
		data, there = own, true
	}
	switch {
	case r.Header.Get("X-Vault-Token") != standInToken, s.expires.Load() > 0 && n > s.expires.Load():
		answer(403, `{"errors":["permission denied"]}`)
	case r.Method != "GET":
		answer(405, `{"errors":["unsupported operation"]}`)
	case key == " secret/metadata/hidden":
		answer(403, `{"errors":["1 error occurred:\n\t* permission denied\n\n"]}`)
	case !there:
		answer(404, `{"errors":[]}`)
	default:
		var compact any
		if err := json.Unmarshal([]byte(data), &compact); err != nil {
			panic(key + ": " + err.Error())
		}
		answer(200, `{"request_id":"r","lease_id":"","renewable":false,"lease_duration":0,"data":`+data+`,"wrap_info":null,"warnings":null,"auth":null}`)
	}
}

func TestImportFromFamily(t *testing.T) {
	to := harness.NewCluster(t, 1, harness.Options{})
	b := place{t, to}
	s := newStandIn(t)
	m := &mover{t: t, to: to, dir: t.TempDir()}
	m.ledger = filepath.Join(m.dir, "ledger.jsonl")
	m.source = []string{"-source-address=" + s.URL, "-rate=5000", "-source-token-file=" + m.file("token", standInToken+"\n")}

	s.late.Store(true)
	began := time.Now()
	plan := m.run(0, "-plan")
	if took := time.Since(began); took < time.Second {
		t.Errorf("Retry-After of a second was not kept: the plan took %v", took)
	}
	for _, c := range []struct{ action, kind, namespace, name, reason string }{
		{"skip", "secrets engine", "", "pki/", "of type pki"},
		{"create", "secrets engine", "", "generic/", ""},
		{"skip", "auth method", "", "ldap/", "register a plugin"},
		{"create", "policy", "", "app", "names paths of pki/"},
		{"skip", "policy", "", "default", "-overwrite replaces it"},
		{"skip", "policy", "", "egp/working-hours", "another system"},
		{"create", "approle role", "", "approle/web", "its secret ids (2) do not come"},
		{"skip", "secret", "", "secret/hidden", "may not read it"},
		{"skip", "secret version", "", "secret/", "2 deleted versions"},
		{"skip", "audit device", "", "file/", "coffer audit enable -path=file file file_path=/var/log/vault/audit.log"},
		{"skip", "audit device", "", "net/", "of type socket"},
		{"skip", "entity alias", "", "entity_1 as x at auth/ldap/", "its auth method is not imported"},
		{"skip", "quota", "", "config", "-overwrite replaces them"},
		{"create", "group members", "", "ops", ""},
		{"skip", "identity", "", "ids of entities and groups", "new ids"},
		{"skip", "mfa method", "", "all", "enrol again"},
		{"create", "namespace", "", "team", ""},
		{"create", "secrets engine", "team", "kv/", ""},
	} {
		if reason := plan.reason(t, c.action, c.kind, c.namespace, c.name); !strings.Contains(reason, c.reason) {
			t.Errorf("%s %s: %q, want …%s…", c.kind, c.name, reason, c.reason)
		}
	}
	s.expires.Store(s.served.Load() + 20)
	out, _ := m.command(t.Context()).CombinedOutput()
	if !strings.Contains(string(out), "takes its token no longer") || strings.Contains(string(out), "Success") {
		t.Errorf("with a token that expires in the middle the command says %s", out)
	}
	s.expires.Store(0)
	r := m.run(0)
	for kind, actions := range r.Totals {
		if actions["failed"]+actions["conflict"] > 0 {
			t.Errorf("%s: %v: %+v", kind, actions, r.Actions)
		}
	}
	for path, want := range map[string]string{
		"secret/data/app/db":                `map[data:map[n:1000 nested:map[k:[1 <nil>]] password:a<b] metadata:map[created_time:2023-05-03T08:00:00.1Z custom_metadata:<nil> deletion_time: destroyed:false version:3]]`,
		"generic/a":                         `map[value:of generic]`,
		"auth/approle/role/web/role-id":     `map[role_id:5f0ab3cb-ad4c-4d2a-8a4f-7d9c6b0e7d11]`,
		"auth/approle/role/web/period":      `map[period:600 token_period:600]`,
		"auth/token/roles/ci?fields=period": ``,
	} {
		if got := fmt.Sprint(b.read(path)); want != "" && got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	meta := b.read("secret/metadata/app/db")
	if got := fmt.Sprint(meta["versions"]); got != `map[1:map[created_time:2023-05-01T08:00:00.123456789Z deletion_time: destroyed:true] `+
		`2:map[created_time:2023-05-02T08:00:00Z deletion_time:2023-05-02T09:00:00.5Z destroyed:false] 3:map[created_time:2023-05-03T08:00:00.1Z deletion_time: destroyed:false]]` {
		t.Errorf("the versions are %s", got)
	}
	tune := b.read("sys/mounts/secret/tune")
	if tune["max_lease_ttl"] != float64(3600) || fmt.Sprint(tune["audit_non_hmac_request_keys"]) != "[x]" || tune["listing_visibility"] != "hidden" {
		t.Errorf("the mount is tuned as %v", tune)
	}
	again := m.run(0)
	if again.Written != 0 || again.Totals["secret"]["unchanged"] != 3 {
		t.Errorf("a second run wrote %d things: %v", again.Written, again.Totals)
	}
	for request := range s.requests {
		if !strings.HasPrefix(request, "GET ") {
			t.Errorf("the source got %s", request)
		}
	}
}

// TestImportStops tries what ends the command at once.
func TestImportStops(t *testing.T) {
	to := harness.NewCluster(t, 1, harness.Options{})
	s := newStandIn(t)
	m := &mover{t: t, to: to, dir: t.TempDir()}
	m.ledger = filepath.Join(m.dir, "ledger.jsonl")
	token := m.file("token", standInToken)
	for name, c := range map[string]struct {
		args   []string
		status int
		text   string
	}{
		"no source":        {[]string{"-source-token-file=" + token}, 1, "-source-address="},
		"no token":         {[]string{"-source-address=" + s.URL}, 1, "-source-token-file"},
		"a wrong token":    {[]string{"-source-address=" + s.URL, "-source-token-file=" + m.file("wrong", "hvs.wrong")}, 2, "permission denied"},
		"no server":        {[]string{"-source-address=http://" + unused(t), "-source-token-file=" + token}, 2, "connection refused"},
		"a strange source": {[]string{"-source-address=ftp://x", "-source-token-file=" + token}, 1, "-source-address="},
		"both modes":       {[]string{"-source-address=" + s.URL, "-source-token-file=" + token, "-plan", "-verify"}, 1, "choose one of"},
		"the same server":  {[]string{"-source-address=" + to.Nodes[0].URL, "-source-token-file=" + token}, 1, "the same server"},
		"an open ledger":   {[]string{"-source-address=" + s.URL, "-source-token-file=" + token, "-ledger=" + t.TempDir()}, 1, "ledger"},
	} {
		out, _ := m.command(t.Context(), c.args...).CombinedOutput()
		cmd := m.command(t.Context(), c.args...)
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != c.status || !strings.Contains(string(out), c.text) || strings.Contains(string(out), "hvs.") {
			t.Errorf("%s: status %d, want %d: %s, want …%s", name, cmd.ProcessState.ExitCode(), c.status, out, c.text)
		}
	}
}

// TestHostileSource imports from a server whose names would be other paths of the destination.
func TestHostileSource(t *testing.T) {
	to := harness.NewCluster(t, 1, harness.Options{})
	b := place{t, to}
	s := newStandIn(t)
	const evil = `path \"*\" { capabilities = [\"sudo\"] }`
	s.own = map[string]string{
		" generic?list":                            `{"keys":["a","../sys/policies/acl/evil1","../../v1/sys/policies/acl/evil2","//x","."]}`,
		" generic/../sys/policies/acl/evil1":       `{"policy":"` + evil + `"}`,
		" generic/../../v1/sys/policies/acl/evil2": `{"policy":"` + evil + `"}`,
		" generic/.":                               `{"x":"y"}`,
		" generic///x":                             `{"x":"y"}`,
		" sys/policies/password?list":              `{"keys":["../acl/evil3"]}`,
		" sys/policies/password/../acl/evil3":      `{"policy":"` + evil + `"}`,
		" secret/metadata/?list":                   `{"keys":["../x","\u0000"]}`,
		" secret/metadata?list":                    `{"keys":["../x","\u0000","a\u001b[2Jb"]}`,
		" secret/metadata/../x":                    responses[" secret/metadata/gone"],
		" secret/metadata/\x00":                    responses[" secret/metadata/gone"],
		" secret/metadata/a\x1b[2Jb":               strings.Replace(responses[" secret/metadata/gone"], `"ops"`, `"\u001b[2J"`, 1),
	}
	m := &mover{t: t, to: to, dir: t.TempDir()}
	m.ledger = filepath.Join(m.dir, "ledger.jsonl")
	m.source = []string{"-source-address=" + s.URL, "-rate=5000", "-source-token-file=" + m.file("token", standInToken)}
	r := m.run(2)
	for _, name := range []string{"generic/../sys/policies/acl/evil1", "generic/../../v1/sys/policies/acl/evil2", "generic///x", "generic/.", "secret/../x", "secret/\x00"} {
		r.reason(t, "failed", "secret", "", name)
	}
	r.reason(t, "failed", "password policy", "", "../acl/evil3")
	if got := fmt.Sprint(b.read("sys/policies/acl?list=true")["keys"]); got != "[app default root]" {
		t.Errorf("the destination has the policies %s", got)
	}
	out, _ := m.command(t.Context()).CombinedOutput()
	if strings.ContainsAny(string(out), "\x1b\x00") {
		t.Errorf("the terminal gets control characters: %q", out)
	}
}

// unused is an address at which there is nothing.
func unused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestDestinationFull imports into a cluster with a storage quota that is too small.
func TestDestinationFull(t *testing.T) {
	to := harness.NewCluster(t, 1, harness.Options{})
	b := place{t, to}
	s := newStandIn(t)
	b.write("sys/mounts/secret", fields{"type": "kv", "options": fields{"version": "2"}})
	b.write("sys/quotas/storage/small", fields{"path": "secret", "max_bytes": 1})
	m := &mover{t: t, to: to, dir: t.TempDir()}
	m.ledger = filepath.Join(m.dir, "ledger.jsonl")
	m.source = []string{"-source-address=" + s.URL, "-rate=5000", "-source-token-file=" + m.file("token", standInToken)}
	began := time.Now()
	out, _ := m.command(t.Context(), "-secrets-only", "-mount=secret").CombinedOutput()
	if !strings.Contains(string(out), "have the quota raised") || time.Since(began) > patience {
		t.Errorf("after %v: %s", time.Since(began), out)
	}
	b.do(0, "DELETE", "sys/quotas/storage/small", to.RootToken, nil)
	r := m.run(0, "-secrets-only", "-mount=secret")
	r.wantTotal(t, "secret", "create", 2)
}
