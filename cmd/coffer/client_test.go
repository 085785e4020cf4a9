package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/local"
)

func TestEnvPrecedence(t *testing.T) {
	clearEnv(t)
	for _, step := range []struct{ set, want string }{{"VAULT_ADDR", "vault"}, {"BAO_ADDR", "bao"}, {"COFFER_ADDR", "coffer"}} {
		t.Setenv(step.set, step.want)
		if got := local.Env("ADDR"); got != step.want {
			t.Errorf("with %s set too, env(ADDR) = %q, want %q", step.set, got, step.want)
		}
	}
}

// TestFlagBeforeVariable also shows that the library's own reading of BAO_ and VAULT_ variables is off.
func TestFlagBeforeVariable(t *testing.T) {
	r := record(t, answers)
	t.Setenv("COFFER_ADDR", "")
	t.Setenv("BAO_ADDR", "http://127.0.0.1:1")
	t.Setenv("VAULT_NAMESPACE", "wrong")
	t.Setenv("BAO_NAMESPACE", "right")
	if _, stderr, status := coffer(t, "", "read", "-address="+r.URL, "any/thing"); status != 0 {
		t.Fatal(stderr)
	}
	if got := r.seen[0].header.Get("X-Vault-Namespace"); got != "right" {
		t.Errorf("namespace %q, want that of VAULT_NAMESPACE", got)
	}
}

func TestTokenSources(t *testing.T) {
	clearEnv(t)
	home, _ := os.UserHomeDir()
	expect := func(want string) {
		t.Helper()
		if got, err := local.CurrentToken(); got != want || err != nil {
			t.Errorf("token %q, %v, want %q", got, err, want)
		}
	}
	write := func(name, token string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(home, name), []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect("")
	write(".vault-token", "of-the-family\n")
	expect("of-the-family")
	write(".coffer-token", "ours\n")
	expect("ours")
	t.Setenv("BAO_TOKEN", "of-bao")
	expect("of-bao")
	t.Setenv("COFFER_TOKEN", "of-coffer")
	expect("of-coffer")
}

func TestStoreToken(t *testing.T) {
	clearEnv(t)
	home, _ := os.UserHomeDir()
	path := filepath.Join(home, ".coffer-token")
	if err := os.WriteFile(path, []byte("a much longer token than the next"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := local.StoreToken("new"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "new" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	if entries, _ := os.ReadDir(home); len(entries) != 1 {
		t.Errorf("%d files are left, want the token's alone", len(entries))
	}
}

func TestWritePrivateKeepsTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := local.WritePrivate(path, func(f *os.File) error {
		_, _ = f.WriteString("half")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want the writer's", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("the file holds %q, want what it held before", got)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files are left, want one", len(entries))
	}
}

func TestLogin(t *testing.T) {
	tests := []struct {
		args   string
		stdin  string
		last   string
		stored string
		stdout string
	}{
		{args: "login hvs.mine", last: "GET auth/token/lookup-self", stored: "hvs.mine", stdout: "token_duration       1h"},
		{args: "login -", stdin: "hvs.mine\n", last: "GET auth/token/lookup-self", stored: "hvs.mine"},
		{args: "login token=hvs.mine", last: "GET auth/token/lookup-self", stored: "hvs.mine"},
		{args: "login -no-store hvs.mine", last: "GET auth/token/lookup-self", stdout: "hvs.mine"},
		{args: "login -method=userpass username=ada password=-", stdin: "pw", last: `PUT auth/userpass/login/ada {"password":"pw"}`, stored: "hvs.new", stdout: "hvs.new"},
		{args: "login -method=approle role_id=a secret_id=b", last: `PUT auth/approle/login {"role_id":"a","secret_id":"b"}`, stored: "hvs.new"},
		{args: "login -token-only -method=approle role_id=a", last: `PUT auth/approle/login {"role_id":"a"}`, stdout: "hvs.new"},
		{args: "login -format=json -method=approle role_id=a", last: `PUT auth/approle/login {"role_id":"a"}`, stored: "hvs.new", stdout: `"client_token": "hvs.new"`},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := record(t, answers)
			t.Setenv("COFFER_TOKEN", "")
			stdout, stderr, status := coffer(t, tt.stdin, strings.Fields(tt.args)...)
			if status != 0 {
				t.Fatalf("%s: status %d, %s", tt.args, status, stderr)
			}
			if lines := r.lines(); lines[len(lines)-1] != tt.last {
				t.Errorf("%s: sent %q, want %q", tt.args, lines, tt.last)
			}
			if got, _ := local.CurrentToken(); got != tt.stored {
				t.Errorf("%s: stored %q, want %q", tt.args, got, tt.stored)
			}
			if !strings.Contains(stdout, tt.stdout) {
				t.Errorf("%s: stdout %q, want %q in it", tt.args, stdout, tt.stdout)
			}
		})
	}
}

func TestLoginNoPrint(t *testing.T) {
	record(t, answers)
	stdout, stderr, status := coffer(t, "", "login", "-no-print", "hvs.mine")
	if stdout != "" || status != 0 {
		t.Errorf("-no-print printed %q, status %d", stdout, status)
	}
	if !strings.Contains(stderr, "goes before the token just stored") {
		t.Errorf("no warning that the environment's token wins: %q", stderr)
	}
}

func TestTransportErrors(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := "http://" + free.Addr().String()
	_ = free.Close()
	tests := []struct{ name, address, want string }{
		{"refused", unused, "Is the server running at " + unused},
		{"https to http", "https://" + plain.Listener.Addr().String(), "has to begin with http://"},
		{"http to https", "http://" + secure.Listener.Addr().String(), "has to begin with https://"},
		{"unknown authority", secure.URL, "-ca-cert or COFFER_CACERT"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clearEnv(t)
			_, stderr, status := coffer(t, "", "read", "-address="+tt.address, "any/thing")
			if status != 2 || !strings.Contains(stderr, tt.want) {
				t.Errorf("status %d, stderr %q, want 2 and %q", status, stderr, tt.want)
			}
		})
	}
	clearEnv(t)
	if _, stderr, _ := coffer(t, "", "read", "-address="+secure.URL, "-tls-skip-verify", "any/thing"); !strings.Contains(stderr, "404") {
		t.Errorf("-tls-skip-verify: %q, want the server's 404", stderr)
	}
}

func TestForbiddenWithoutToken(t *testing.T) {
	record(t, answers)
	t.Setenv("COFFER_TOKEN", "")
	if _, stderr, _ := coffer(t, "", "read", "any/denied"); !strings.Contains(stderr, "carried no token") {
		t.Errorf("stderr %q, want the advice to log in", stderr)
	}
}

func TestBadSettings(t *testing.T) {
	for name, value := range map[string]string{
		"COFFER_CLIENT_TIMEOUT": "soon", "COFFER_MAX_RETRIES": "-1", "COFFER_SKIP_VERIFY": "perhaps", "COFFER_CACERT": "/nonexistent", "COFFER_CLIENT_CERT": "/alone",
	} {
		t.Run(name, func(t *testing.T) {
			record(t, answers)
			t.Setenv(name, value)
			if _, stderr, status := coffer(t, "", "read", "any/thing"); status != 1 || stderr == "" {
				t.Errorf("%s=%s: status %d, stderr %q, want 1 and a reason", name, value, status, stderr)
			}
		})
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"30": 30 * time.Second, "1m30s": 90 * time.Second, "0": 0} {
		if got, err := command.ParseDuration(text); got != want || err != nil {
			t.Errorf("parseDuration(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestInterruptedRead(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	block := make(chan struct{}) // closed when the test ends
	defer close(block)
	_, err := command.Interruptible(ctx, func() ([]byte, error) { <-block; return nil, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}
