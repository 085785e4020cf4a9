package security_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

// noteIssued notes what credentials have to keep.
func (v *tour) noteIssued(what string, c issued) issued {
	v.t.Helper()
	v.note("secret key of "+what, c.Data.SecretKey)
	if c.Data.SessionToken != "" {
		v.note("session token of "+what, c.Data.SessionToken)
		v.note("encoded session token of "+what, url.QueryEscape(c.Data.SessionToken))
	}
	return c
}

// noteKeys notes the secrets of all keys that the provider has.
func (v *tour) noteKeys(when string, m cloud) {
	v.t.Helper()
	for _, u := range m.provider.Users() {
		for _, k := range u.Keys {
			v.note("secret key of "+u.Name+" "+when, k.Secret)
		}
	}
}

// walkCloud takes every way through a mount, rightly and wrongly, with a provider that is not always well.
func (v *tour) walkCloud(m cloud) {
	v.t.Helper()
	fault := func(action, code string, moment awstest.Moment) {
		m.provider.FailNext(1, action, awstest.Fault{Code: code, Status: 503, When: moment, Message: "not now"})
	}
	v.noteKeys("at first", m)
	used := v.noteIssued("a user", m.issue("creds/users"))
	m.must("POST", "sys/leases/renew", fields{"lease_id": used.Lease, "increment": 600})
	fault("DeleteUser", "ServiceFailure", awstest.BeforeCommit)
	m.do("POST", "sys/leases/revoke", fields{"lease_id": used.Lease, "sync": true})
	v.noteIssued("a user that stays", m.issue("creds/users"))
	v.noteIssued("a session", m.issue("creds/sessions"))
	v.noteIssued("a session, by sts", m.issue("sts/sessions"))
	v.noteIssued("a federated user", m.issue("creds/federated"))
	fault("CreateAccessKey", "ServiceFailure", awstest.AfterCommit)
	v.noteIssued("a user whose first key got lost", m.issue("creds/users"))
	for _, action := range []string{"AttachUserPolicy", "CreateUser"} {
		fault(action, "ServiceFailure", awstest.AfterCommit)
		v.fail(m.user, "GET", m.path("creds/users"), nil)
		v.noteKeys("after "+action+" failed", m)
	}
	fault("AssumeRole", "Throttling", awstest.AfterCommit)
	v.fail(m.user, "GET", m.path("creds/sessions"), nil)
	v.fail(m.user, "POST", m.path("creds/sessions"), fields{"role_arn": v.note("role that is not allowed", "arn:aws:iam::123456789012:role/nOt-AlLoWeD-1")})
	v.fail(m.user, "POST", m.path("creds/sessions"), fields{"ttl": v.note("ttl that is none", "tTl-nOt-A-nUmBeR-2")})

	var wrapped struct {
		Info struct{ Token string } `json:"wrap_info"`
	}
	m.must("GET", m.path("creds/users"), nil, "X-Vault-Wrap-TTL", "10m").Decode(v.t, &wrapped)
	v.noteKeys("when one is wrapped", m)
	v.note("wrapping token of credentials", wrapped.Info.Token)

	v.noteIssued("a static role", m.issue("static-creds/fixed"))
	m.must("POST", m.path("static-roles/fixed/rotate"), nil)
	v.noteIssued("a rotated static role", m.issue("static-creds/fixed"))
	fault("CreateAccessKey", "ServiceFailure", awstest.AfterCommit)
	v.fail(m.user, "POST", m.path("static-roles/fixed/rotate"), nil)
	v.noteKeys("after a static rotation failed", m)

	m.must("POST", m.path("roles/external"), fields{"credential_type": "assumed_role", "role_arns": "arn:aws:iam::123456789012:role/none", "external_id": v.note("external id", "eXtErNaL-iD-3")})
	v.fail(m.user, "GET", m.path("creds/external"), nil)
	m.must("POST", m.path("roles/mfa"), fields{"credential_type": "session_token", "mfa_serial_number": "arn:aws:iam::123456789012:mfa/none"})
	v.fail(m.user, "POST", m.path("creds/mfa"), fields{"mfa_code": v.note("code of a device", "90210817")})

	fault("CreateAccessKey", "ServiceFailure", awstest.AfterCommit)
	v.fail(m.user, "POST", m.path("config/rotate-root"), nil)
	v.noteKeys("after a rotation of the root key failed", m)
}

// walkRoots configures root credentials in wrong ways.
func (v *tour) walkRoots(m cloud) {
	v.t.Helper()
	access, secret := m.provider.Root()
	config := func(key, secret any) fields {
		return fields{"access_key": key, "secret_key": secret, "iam_endpoint": m.provider.URL, "sts_endpoint": m.provider.URL, "max_retries": 0}
	}
	v.fail(m.user, "POST", m.path("config/root"), config(access, []string{v.note("secret in a list", "sEcReT-kEy-LiSt-4")}))
	v.fail(m.user, "POST", m.path("config/root"), config("", v.note("secret without its key", "sEcReT-kEy-AlOnE-5")))
	v.fail(m.user, "POST", m.path("config/root"), []byte(`{"access_key": "`+access+`", "secret_key": "`+v.note("secret in a broken body", "sEcReT-kEy-BrOkEn-6")+`"`))
	v.fail(m.user, "POST", m.path("config/root"), config(access, v.note("secret that is too long", "sEcReT-kEy-LoNg-7"+strings.Repeat("x", 5000))))
	m.must("POST", m.path("config/root"), config(access, v.note("wrong secret", "sEcReT-kEy-WrOnG-8")))
	for _, path := range []string{"creds/users", "creds/sessions", "creds/federated"} {
		v.fail(m.user, "GET", m.path(path), nil) // the signature does not match
	}
	v.fail(m.user, "POST", m.path("config/rotate-root"), nil)
	m.must("POST", m.path("config/root"), config(access, secret))
}

// TestCloudLeaks looks for every secret of the credentials that a mount uses, makes and hands out in the logs at their most
// talkative, in errors, metrics, descriptions, the audit log, in files and in a snapshot; the audit log has hashes.
func TestCloudLeaks(t *testing.T) {
	t.Parallel()
	_, root := single(t, harness.Options{Config: `log_level = "trace"`})
	v := &tour{user: root, secrets: map[string]string{}}
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	root.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": auditLog}})
	m := root.cloud("cloud", "coffer", awstest.New(t))
	_, secret := m.provider.Root()
	v.note("root secret", secret)
	v.walkRoots(m)
	v.walkCloud(m)
	shown := m.issue("creds/users")
	v.noteIssued("a user whose hash is looked for", shown)

	snapshot := root.must("GET", "sys/storage/raft/snapshot", nil).Body
	for _, path := range []string{"sys/metrics", "sys/metrics?format=prometheus", "sys/config/state/sanitized", "sys/in-flight-req", "sys/pprof/goroutine?debug=2",
		"sys/mounts", "sys/mounts/cloud/tune", "sys/internal/ui/mounts", "sys/leases?include_child_namespaces=true", m.path("config/root"), m.path("config/lease"), m.path("roles/users"), m.path("roles/mfa"),
		m.path("static-roles/fixed"), m.path("roles?list=true"), m.path("static-roles?list=true"), m.path("rollbacks?list=true")} {
		v.find(path, root.must("GET", path, nil).Body)
	}
	keys, _ := dataOf(t, root.must("LIST", m.path("rollbacks"), nil))["keys"].([]any)
	if len(keys) == 0 {
		t.Error("nothing is to be rolled back: the faults have done nothing")
	}
	for _, id := range keys {
		v.find("a rollback", root.must("GET", m.path("rollbacks/"+id.(string)), nil).Body)
	}
	v.find("a lease", root.must("POST", "sys/leases/lookup", fields{"lease_id": shown.Lease}).Body)
	hash, _ := dataOf(t, root.must("POST", "sys/audit-hash/file", fields{"input": shown.Data.SecretKey}))["hash"].(string)
	rootHash, _ := dataOf(t, root.must("POST", "sys/audit-hash/file", fields{"input": secret}))["hash"].(string)
	m.must("POST", m.path("config/rotate-root"), nil)
	v.noteKeys("after the rotation of the root key", m)
	root.n.Stop()
	v.find("the errors", v.errors.Bytes())
	v.find("the log", []byte(root.n.Log()))
	text, err := os.ReadFile(auditLog)
	if err != nil || len(text) < 20_000 {
		t.Fatalf("the audit log has %d bytes: %v", len(text), err)
	}
	v.find("the audit log", text)
	for what, hash := range map[string]string{"a secret key that was issued": hash, "the root secret": rootHash} {
		if len(hash) < 32 || !strings.Contains(string(text), hash) {
			t.Errorf("the audit log has no hash of %s", what)
		}
	}
	v.searchFiles(root.n.Dir)
	v.find("the snapshot", snapshot)
	for name, part := range unpack(t, snapshot) {
		v.find("the snapshot's "+name, part)
	}
}
