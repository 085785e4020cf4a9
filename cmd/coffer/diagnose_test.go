package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// site is a directory with a configuration that nothing is wrong with, for tests to spoil.
type site struct {
	t         *testing.T
	dir       string
	listener  string
	storage   string
	rest      string
	apiAddr   string
	tlsFields string
}

func newSite(t *testing.T) *site {
	clearEnv(t)
	s := &site{t: t, dir: t.TempDir()}
	writeCertificate(t, s.dir, 1)
	s.tlsFields = fmt.Sprintf("tls_cert_file = %q\n tls_key_file = %q", s.in("cert.pem"), s.in("key.pem"))
	s.listener = `address = "127.0.0.1:0" cluster_address = "127.0.0.1:0"`
	s.apiAddr = "https://127.0.0.1:8200"
	if err := os.Mkdir(s.in("data"), 0o700); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) in(name string) string { return filepath.Join(s.dir, name) }

func (s *site) write(name, text string, mode os.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(s.in(name), []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Chmod(s.in(name), mode); err != nil {
		s.t.Fatal(err)
	}
}

// diagnose runs the command, without the checks of this machine and of how full its disk is, and returns the findings as lines.
func (s *site) diagnose(args ...string) (lines string, status int) {
	s.t.Helper()
	s.write("coffer.hcl", fmt.Sprintf("api_addr = %q\nlistener \"tcp\" {\n%s\n%s\n}\nstorage \"raft\" {\npath = %q\nfree_space_minimum = 0\n%s\n}\n"+
		"free_space_warning = 0\nfree_space_warning_percent = 0\n%s\n", s.apiAddr, s.listener, s.tlsFields, s.in("data"), s.storage, s.rest), 0o600)
	args = append([]string{"operator", "diagnose", "-config=" + s.in("coffer.hcl"), "-skip=host"}, args...)
	out, stderr, status := coffer(s.t, "", args...)
	if stderr != "" {
		s.t.Errorf("stderr: %s", stderr)
	}
	return out, status
}

// health answers as a server with this clock.
func health(t *testing.T, now time.Time, body string) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if body == "" {
			body = fmt.Sprintf(`{"initialized":true,"standby":true,"server_time_utc":%d}`, now.Unix())
		}
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return fmt.Sprintf("retry_join { leader_api_addr = %q }", server.URL)
}

func TestDiagnose(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		name   string
		spoil  func(*site)
		want   string // "[status] group: check … words", all of them in one line
		status int
	}{
		{"unknown key", func(s *site) { s.rest = `colour = "red"` }, `[fail] config: valid "colour"`, 1},
		{"skipped after that", func(s *site) { s.rest = `colour = "red"` }, `[skip] seal: all valid configuration`, 1},
		{"no TLS", func(s *site) { s.tlsFields = "tls_disable = true" }, `[warn] tls: turned off`, 2},
		{"short certificate", func(*site) {}, `[warn] tls: certificate 1 expires on`, 2},
		{"other key", func(s *site) {
			cert, err := os.ReadFile(s.in("cert.pem"))
			if err != nil {
				s.t.Fatal(err)
			}
			writeCertificate(s.t, s.dir, 2)
			s.write("cert.pem", string(cert), 0o600)
		}, `[fail] tls: cannot be used`, 1},
		{"readable key", func(s *site) {
			if err := os.Chmod(s.in("key.pem"), 0o644); err != nil {
				s.t.Fatal(err)
			}
		}, `[warn] tls: everybody may read the key`, 2},
		{"other name", func(s *site) { s.apiAddr = "https://coffer.example:8200" }, `[warn] tls: clients that use api_addr`, 2},
		{"port in use", func(s *site) { s.listener = fmt.Sprintf("address = %q", taken.Addr()) }, `[warn] listener: api in use`, 2},
		{"no such address", func(s *site) { s.listener = `address = "192.0.2.1:1" cluster_address = "127.0.0.1:0"` }, `[fail] listener: api`, 1},
		{"open directory", func(s *site) {
			if err := os.Chmod(s.in("data"), 0o755); err != nil {
				s.t.Fatal(err)
			}
		}, `[warn] storage: directory 0755`, 2},
		{"a file for a directory", func(s *site) {
			if err := os.Remove(s.in("data")); err != nil {
				s.t.Fatal(err)
			}
			s.write("data", "", 0o600)
		}, `[fail] storage: directory not a directory`, 1},
		{"no directory yet", func(s *site) {
			if err := os.Remove(s.in("data")); err != nil {
				s.t.Fatal(err)
			}
		}, `[ok] storage: directory will make it`, 2},
		{"new node", func(*site) {}, `[ok] storage: data the node is new`, 2},
		{"damaged state", func(s *site) { s.write("data/fsm.db", strings.Repeat("x", 65536), 0o600) }, `[fail] storage: data corrupt`, 1},
		{"peers file", func(s *site) {
			if err := os.Mkdir(s.in("data/raft"), 0o700); err != nil {
				s.t.Fatal(err)
			}
			s.write("data/raft/peers.json", "[]", 0o600)
		}, `[warn] storage: recovery raft/peers.json`, 2},
		{"static seal", func(s *site) {
			s.write("key", strings.Repeat("k", 32), 0o600)
			s.rest = fmt.Sprintf(`seal "static" { current_key = "file://%s" current_key_id = "1" }`, s.in("key"))
		}, `[ok] seal: answers encrypts and decrypts`, 2},
		{"seal without its key", func(s *site) { s.rest = `seal "static" { current_key = "file:///nonexistent" current_key_id = "1" }` }, `[fail] seal: opened`, 1},
		{"peer", func(s *site) { s.storage = health(s.t, time.Now(), "") }, `[ok] peers: answers: standby`, 2},
		{"peer with another time", func(s *site) { s.storage = health(s.t, time.Now().Add(-time.Hour), "") }, `[warn] peers: clock`, 2},
		{"peer of another kind", func(s *site) { s.storage = health(s.t, time.Now(), "<html>") }, `[fail] peers: not as a server of this kind`, 1},
		{"no peer", func(s *site) { s.storage = `retry_join { leader_api_addr = "http://127.0.0.1:1" }` }, `[warn] peers: cannot be reached`, 2},
		{"no place for snapshots", func(s *site) { s.rest = `snapshots { local_root = "/nonexistent" }` }, `[fail] files: local_root`, 1},
		{"a place for snapshots", func(s *site) {
			s.rest = fmt.Sprintf("snapshots { local_root = %q }\nlog_file = %q", s.dir, s.in("log"))
		}, `[ok] files: log_file can be written`, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSite(t)
			tt.spoil(s)
			out, status := s.diagnose()
			if status != tt.status {
				t.Errorf("status = %d, want %d", status, tt.status)
			}
			for line := range strings.Lines(out) {
				found := true
				for _, word := range strings.Fields(tt.want) {
					found = found && strings.Contains(line, word)
				}
				if found {
					return
				}
			}
			t.Errorf("no line has %s:\n%s", tt.want, out)
		})
	}
}

func TestDiagnoseARunningServer(t *testing.T) {
	s := newSite(t)
	_, stop := serverHere(t, "-dev-data-dir="+s.in("data"))
	if out, _ := s.diagnose(); !strings.Contains(out, "a server is running on it") {
		t.Errorf("while the server runs:\n%s", out)
	}
	stop()
	if out, _ := s.diagnose(); !strings.Contains(out, "state and log are whole, up to entry") {
		t.Errorf("after it has stopped:\n%s", out)
	}
	file, err := os.OpenFile(s.in("data/raft.db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte("damage"), 40); err != nil {
		t.Fatal(err)
	}
	if out, status := s.diagnose(); status != 1 || !strings.Contains(out, "raft.db is corrupt") {
		t.Errorf("status %d with a damaged log:\n%s", status, out)
	}
}

func TestDiagnoseAsJSON(t *testing.T) {
	s := newSite(t)
	out, status := s.diagnose("-format=json", "-skip=tls")
	var result struct {
		Status   string
		Findings []struct{ Check, Status, Detail string }
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	worst, code := "ok", 0
	for _, f := range result.Findings {
		switch {
		case f.Status == "warn" && f.Check == "storage: sync": // the disk of this machine may be slow
			worst, code = "warn", 2
		case f.Status == "warn" || f.Status == "fail":
			t.Errorf("%+v", f)
		}
	}
	if status != code || result.Status != worst || len(result.Findings) < 8 {
		t.Errorf("status %d, %+v", status, result)
	}
	if left, err := filepath.Glob(s.in("data/*")); err != nil || len(left) != 0 {
		t.Errorf("left in the data directory: %v, %v", left, err)
	}
	if _, stderr, status := coffer(t, "", "operator", "diagnose"); status != 1 || !strings.Contains(stderr, "-config") {
		t.Errorf("without a file: %d, %s", status, stderr)
	}
}
