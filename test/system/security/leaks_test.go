package security_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// tour is a walk through a server that notes every secret it gives, gets or makes.
type tour struct {
	user
	secrets map[string]string // what it is, by value
	errors  bytes.Buffer      // the bodies of all refusals
}

func (v *tour) note(what, secret string) string {
	v.t.Helper()
	if len(secret) < 8 {
		v.t.Fatalf("there is no %s", what)
	}
	v.secrets[secret] = what
	return secret
}

// fail sends a request that is refused and keeps what it says.
func (v *tour) fail(u user, method, path string, body any, header ...string) {
	v.t.Helper()
	a := u.do(method, path, body, header...)
	if a.Status < 400 {
		v.t.Errorf("%s %s: status %d, want a refusal", method, path, a.Status)
	}
	v.errors.Write(a.Body)
}

// walk uses whatever takes or gives a secret, rightly and wrongly.
func (v *tour) walk() {
	v.t.Helper()
	v.note("root token", v.token)
	value := v.note("value in kv", "kv-vAlUe-1")
	v.must("POST", "sys/mounts/kv", fields{"type": "kv", "options": fields{"version": "2"}})
	v.must("POST", "kv/data/app", fields{"data": fields{"password": value}})
	v.must("GET", "kv/data/app", nil)
	v.must("PATCH", "kv/data/app", fields{"data": fields{"more": v.note("patched value", "kv-pAtChEd-2")}}, "Content-Type", "application/merge-patch+json")
	v.fail(v.user, "POST", "kv/data/app", fields{"data": fields{"password": v.note("value that was refused", "kv-rEfUsEd-3")}, "options": fields{"cas": 99}})
	v.fail(v.user, "POST", "kv/data/app", []byte(`{"data": {"password": "`+v.note("value in a broken body", "kv-bRoKeN-4")+`"`))
	v.fail(v.user, "POST", "kv/data/app", fields{"data": v.note("value of a wrong type", "kv-tYpE-5")})
	v.must("POST", "cubbyhole/mine", fields{"x": v.note("value in a cubbyhole", "cubby-vAlUe-6")})

	password := v.note("password", "pAsSwOrD-7-correct")
	v.must("POST", "sys/auth/people", fields{"type": "userpass"})
	v.must("POST", "auth/people/users/bob", fields{"password": password, "token_policies": "default"})
	v.note("token of a login", authOf(v.t, v.nobody().must("POST", "auth/people/login/bob", fields{"password": password})).Token)
	v.fail(v.nobody(), "POST", "auth/people/login/bob", fields{"password": v.note("wrong password", "pAsSwOrD-8-wrong")})
	v.fail(v.nobody(), "POST", "auth/people/login/bob", fields{"password": []string{v.note("password in a list", "pAsSwOrD-9-list")}})
	v.fail(v.user, "POST", "auth/people/users/eve", fields{"password": v.note("password that is too long", "pAsSwOrD-10-"+strings.Repeat("x", 2000))})

	v.must("POST", "sys/auth/machines", fields{"type": "approle"})
	v.must("POST", "auth/machines/role/m", fields{"token_policies": "default"})
	id := dataOf(v.t, v.must("GET", "auth/machines/role/m/role-id", nil))["role_id"]
	secret := v.note("secret id", dataOf(v.t, v.must("POST", "auth/machines/role/m/secret-id", nil))["secret_id"].(string))
	v.note("token of a machine", authOf(v.t, v.nobody().must("POST", "auth/machines/login", fields{"role_id": id, "secret_id": secret})).Token)
	v.must("POST", "auth/machines/role/m/custom-secret-id", fields{"secret_id": v.note("custom secret id", "sEcReT-iD-11")})
	v.fail(v.nobody(), "POST", "auth/machines/login", fields{"role_id": id, "secret_id": v.note("wrong secret id", "sEcReT-iD-12")})

	for _, body := range []fields{{"policies": "default"}, {"type": "batch", "policies": "default"}, {"id": "cHoSeN-tOkEn-13"}, {"num_uses": 3}, {"policies": "default", "ttl": "1h", "period": "1h"}} {
		u := v.with(v.note("token", v.newToken(body).Token))
		u.do("GET", "auth/token/lookup-self", nil)
		v.must("POST", "auth/token/lookup", fields{"token": u.token})
		u.do("POST", "auth/token/renew-self", nil)
	}
	v.fail(v.with(v.note("wrong token", "hvs.wRoNg-tOkEn-14")), "GET", "kv/data/app", nil)
	v.fail(v.with(""), "GET", "kv/data/app", nil, "Authorization", "Bearer "+v.note("wrong bearer", "hvs.wRoNg-tOkEn-15"))
	v.fail(v.user, "POST", "auth/token/lookup", fields{"token": v.note("token that was asked for", "hvs.wRoNg-tOkEn-16")})
	v.note("value that is wrapped", hidden)
	v.fail(v.user, "POST", "sys/wrapping/unwrap", fields{"token": v.note("wrong wrapping token", "hvs.wRoNg-tOkEn-17")})
	v.with(v.note("wrapping token", v.wrapped())).must("POST", "sys/wrapping/unwrap", nil)
	v.note("wrapping token that is left", v.wrapped())

	v.must("POST", "sys/namespaces/team", nil)
	v.note("unlock key", dataOf(v.t, v.must("POST", "sys/namespaces/api-lock/lock/team", nil))["unlock_key"].(string))
	v.do("POST", "sys/unseal", fields{"key": v.note("wrong key share", base64.StdEncoding.EncodeToString([]byte("a key share that is no key share")))})
	v.fail(v.user, "POST", "sys/generate-root/update", fields{"key": v.note("wrong key share for a root token", base64.StdEncoding.EncodeToString([]byte("another one that is no key share"))), "nonce": "x"})
}

// find fails for each secret, in any of the usual forms, that is in a text.
func (v *tour) find(where string, text []byte) {
	v.t.Helper()
	for secret, what := range v.secrets {
		raw := []byte(secret)
		forms := [][]byte{raw, []byte(base64.StdEncoding.EncodeToString(raw))[:len(raw)/3*4], []byte(hex.EncodeToString(raw))}
		if quoted, err := json.Marshal(secret); err == nil {
			forms = append(forms, bytes.Trim(quoted, `"`))
		}
		if decoded, err := base64.StdEncoding.DecodeString(secret); err == nil && len(decoded) >= 16 {
			forms = append(forms, decoded)
		}
		if slices.ContainsFunc(forms, func(form []byte) bool { return bytes.Contains(text, form) }) {
			v.t.Errorf("%s is in %s", what, where)
		}
	}
}

// TestNothingLeaks looks for every secret of a tour in the logs at their most talkative, in the audit log, in
// errors, metrics, and whatever describes the server, in every file below the data directory, and in a snapshot.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c, root := single(t, harness.Options{Shamir: true, Config: `log_level = "trace"`})
	v := &tour{user: root, secrets: map[string]string{}}
	trail := filepath.Join(dir, "audit.log")
	v.must("POST", "sys/audit/file", fields{"type": "file", "options": fields{"file_path": trail}})
	for i, key := range c.Keys {
		v.note(fmt.Sprint("key share ", i), key)
	}
	v.walk()
	snapshot := v.must("GET", "sys/storage/raft/snapshot", nil).Body
	for _, path := range []string{"sys/metrics", "sys/metrics?format=prometheus", "sys/config/state/sanitized", "sys/host-info", "sys/in-flight-req", "sys/pprof/cmdline", "sys/pprof/goroutine?debug=2",
		"sys/audit", "sys/auth", "auth/people/users/bob", "auth/machines/role/m", "sys/storage/raft/configuration", "sys/internal/ui/mounts", "sys/namespaces/team"} {
		if a := v.do("GET", path, nil); a.Status == 200 {
			v.find(path, a.Body)
		} else {
			t.Errorf("%s: status %d", path, a.Status)
		}
	}
	// Once more, from a sealed state: its errors and its files.
	v.must("POST", "sys/seal", nil)
	v.n.WaitHealth(503)
	v.fail(v.user, "GET", "kv/data/app", nil)
	v.n.Unseal()
	v.n.WaitHealth(200)
	v.must("GET", "kv/data/app", nil)
	v.n.Stop() // whatever was on its way to a file is there now
	v.find("the errors", v.errors.Bytes())
	v.find("the log", []byte(v.n.Log()))
	text, err := os.ReadFile(trail)
	if err != nil || len(text) < 10_000 {
		t.Fatalf("the trail has %d bytes: %v", len(text), err)
	}
	v.find("the audit log", text)
	v.searchFiles(v.n.Dir)
	v.find("the snapshot", snapshot)
	for name, part := range unpack(t, snapshot) {
		v.find("the snapshot's "+name, part)
	}
}

// searchFiles looks into every file of a data directory.
func (v *tour) searchFiles(dir string) {
	v.t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if len(text) > 0 {
			files++
		}
		v.find(filepath.Base(path), bytes.TrimRight(text, "\x00")) // the journal is made of zeros
		if info, statErr := d.Info(); statErr == nil && info.Mode().Perm()&0o077 != 0 {
			v.t.Errorf("%s may be read by others: %v", filepath.Base(path), info.Mode())
		}
		return err
	})
	if err != nil || files < 2 {
		v.t.Errorf("%d files in the data directory: %v", files, err)
	}
}

// unpack returns the files of a snapshot.
func unpack(t *testing.T, snapshot []byte) map[string][]byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(snapshot))
	if err != nil {
		t.Fatalf("the snapshot is no gzip: %v", err)
	}
	out := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if out[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	if len(out) < 2 {
		t.Errorf("the snapshot holds %d files", len(out))
	}
	return out
}

// TestStolenSnapshot: a snapshot opens nothing in a cluster with other keys, and one that was changed nowhere.
func TestStolenSnapshot(t *testing.T) {
	t.Parallel()
	_, victim := single(t, harness.Options{Shamir: true, NoRetryJoin: true})
	victim.must("POST", "sys/mounts/kv", fields{"type": "kv"})
	victim.must("POST", "kv/x", fields{"secret": hidden})
	snapshot := victim.must("GET", "sys/storage/raft/snapshot", nil).Body
	for _, at := range []int{len(snapshot) / 4, len(snapshot) / 2, len(snapshot) - 30} {
		changed := bytes.Clone(snapshot)
		changed[at] ^= 1
		victim.refused("a changed snapshot", "POST", "sys/storage/raft/snapshot", changed)
	}
	victim.refused("half a snapshot", "POST", "sys/storage/raft/snapshot", snapshot[:len(snapshot)/2])
	if a := victim.do("GET", "kv/x", nil); a.Status != 200 {
		t.Fatalf("afterwards the secret answers %d", a.Status)
	}
	_, thief := single(t, harness.Options{Shamir: true, NoRetryJoin: true})
	thief.refused("a foreign snapshot", "POST", "sys/storage/raft/snapshot", snapshot)
	a := thief.do("POST", "sys/storage/raft/snapshot-force", snapshot)
	if a.Status >= 500 {
		t.Errorf("forcing a foreign snapshot: status %d: %.200s", a.Status, a.Body)
	}
	if a.Status < 300 {
		thief.n.WaitHealth(503) // sealed, with keys that the thief has not
		for _, u := range []user{thief, thief.with(victim.token)} {
			if a := u.do("GET", "kv/x", nil); a.Status != 503 {
				t.Errorf("sealed, with foreign data: status %d: %.200s", a.Status, a.Body)
			}
		}
	}
}
