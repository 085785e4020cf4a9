package secretsync_test

import (
	"bytes"
	"crypto/md5"  // #nosec G501 -- what is looked for
	"crypto/sha1" // #nosec G505 -- likewise
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/test/harness"
)

// TestNothingLeaks: neither values, nor plain hashes of them, nor credentials are in logs at their most talkative, the audit log,
// answers, metrics or files; and of credentials and ownership tags nothing at the destinations.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	p := newPlaces(t)
	c := harness.NewCluster(t, 1, harness.Options{Prefix: "leaks", Config: "log_level = \"trace\"\n" + p.stanza(t, true)})
	s := &site{places: p, t: t, c: c, n: c.Nodes[0], token: c.RootToken}
	auditLog := filepath.Join(t.TempDir(), "audit.log")
	s.must("POST", "sys/audit/file", object{"type": "file", "options": object{"file_path": auditLog}})
	s.mount("kv")
	values := []string{"vAlUe-one-of-the-secret", "vAlUe-two-of-the-secret", "vAlUe-three-of-the-secret"}
	var seen bytes.Buffer // answers
	keep := func(a harness.Answer) { seen.Write(a.Body) }
	s.secret("kv", "a", "k", values[0])
	for i, kind := range kinds {
		for _, granularity := range []string{"secret-path", "secret-key"} {
			keep(s.do("POST", destinations+kind+"/"+granularity, s.fields(kind, object{"granularity": granularity, "secret_name_template": fmt.Sprintf("n%d_{{ .SecretPath }}_%s{{ .SecretKey }}", i, granularity[7:8])})))
			d := destinations + kind + "/" + granularity
			keep(s.do("POST", d+"/associations/set", object{"mount": "kv", "secret_name": "a"}))
			keep(s.do("POST", d+"/plan", nil))
			keep(s.do("POST", d+"/verify", nil))
			keep(s.do("POST", d+"/drift", nil))
			s.await(d, "SYNCED")
		}
		keep(s.do("POST", destinations+kind+"/wrong", s.fields(kind, object{"granularity": "x"})))
	}
	p.repo.Faults.Set(desttest.Fault{Kind: desttest.Trouble})
	s.secret("kv", "a", "k", values[1])
	s.await(destinations+"repohost/secret-key", "EXTERNAL_SERVICE_ERROR")
	p.repo.Faults.Set(desttest.Fault{Kind: desttest.Reject})
	keep(s.do("POST", destinations+"repohost/secret-key/associations/retry", object{"mount": "kv", "secret_name": "a"}))
	p.repo.Faults.Set(desttest.Fault{})
	s.must("POST", destinations+"repohost/secret-key/associations/retry", object{"mount": "kv", "secret_name": "a"})
	s.secret("kv", "a", "k", values[2], "large", strings.Repeat("x", 70_000))
	s.await(destinations+"cloud1-sm/secret-path", "CLIENT_SIDE_ERROR")
	for _, kind := range kinds {
		for _, granularity := range []string{"secret-path", "secret-key"} {
			d := destinations + kind + "/" + granularity
			keep(s.do("GET", d, nil))
			keep(s.do("GET", d+"/associations", nil))
			keep(s.do("POST", d+"/associations/history", object{"mount": "kv", "secret_name": "a"}))
		}
	}
	for _, path := range []string{"sys/metrics", "sys/metrics?format=prometheus", "sys/config/state/sanitized", "sys/pprof/goroutine?debug=2"} {
		keep(s.do("GET", path, nil))
	}
	keep(s.do("LIST", "sys/sync/associations", nil))
	s.n.Stop()

	forms := map[string][]byte{}
	for i, value := range append(values, p.secrets()...) {
		what := fmt.Sprintf("secret %d", i)
		forms[what] = []byte(value)
		quoted, err := json.Marshal(object{"k": value})
		if err != nil {
			t.Fatal(err)
		}
		for name, raw := range map[string][]byte{"": []byte(value), " as an object": quoted} {
			forms[what+name+" in base64"] = []byte(base64.RawStdEncoding.EncodeToString(raw))
			for hash, sum := range map[string][]byte{"MD5": sumOf(md5.Sum(raw)), "SHA-1": sumOf20(sha1.Sum(raw)), "SHA-256": sumOf32(sha256.Sum256(raw))} {
				forms[what+name+" as "+hash] = sum
				forms[what+name+" as "+hash+" in hex"] = []byte(hex.EncodeToString(sum))
				forms[what+name+" as "+hash+" in base64"] = []byte(base64.RawStdEncoding.EncodeToString(sum))
			}
		}
	}
	find := func(where string, text []byte) {
		t.Helper()
		for what, form := range forms {
			if bytes.Contains(text, form) {
				t.Errorf("%s is in %s", what, where)
			}
		}
	}
	find("the answers", seen.Bytes())
	find("the log", []byte(s.n.Log()))
	text, err := os.ReadFile(auditLog)
	if err != nil || len(text) < 10_000 || !bytes.Contains(text, []byte("associations/sync")) {
		t.Errorf("the audit log has %d bytes: %v", len(text), err)
	}
	find("the audit log", text)
	err = filepath.WalkDir(s.n.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		find(filepath.Base(path), bytes.TrimRight(text, "\x00")) // the journal is made of zeros
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"n0_a_p", "n0_a_kk"} {
		secret, _ := p.one.Secret(name)
		find("the tags", []byte(fmt.Sprint(secret.Tags)))
		if len(secret.Tags) == 0 {
			t.Errorf("%s has no tags", name)
		}
	}
	name := fmt.Sprintf("N%d_A_KK", slices.Index(kinds, "repohost"))
	if _, ok := p.repo.Get(repohosttest.Repository("acme", "web"), name); !ok {
		t.Error("nothing was synced")
	}
}

func sumOf(sum [16]byte) []byte   { return sum[:] }
func sumOf20(sum [20]byte) []byte { return sum[:] }
func sumOf32(sum [32]byte) []byte { return sum[:] }
