package local

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/zalando/go-keyring"
)

// oneContext makes a home with one context, which is in use.
func oneContext(t *testing.T, c Context) (home string) {
	t.Helper()
	home = t.TempDir()
	for _, name := range []string{"COFFER_ADDR", "BAO_ADDR", "VAULT_ADDR", "COFFER_TOKEN", "BAO_TOKEN", "VAULT_TOKEN", "COFFER_CONTEXT", "COFFER_KEYRING", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", home)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/none")
	c.Address = "https://coffer.example.com:8200"
	if err := (Contexts{Current: "prod", Clusters: map[string]Context{"prod": c}}).Write(); err != nil {
		t.Fatal(err)
	}
	return home
}

func kept(t *testing.T) string {
	t.Helper()
	token, err := CurrentToken()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func file(t *testing.T, home string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(home, contextsFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A bus that takes connections and never responds delays a login for a bounded time; the token is in the file then. The test has a process of
// its own: the others replace the keyring for good.
func TestSilentKeyring(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("another keyring")
	}
	if os.Getenv("COFFER_TEST_SILENT_KEYRING") == "" {
		alone := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSilentKeyring$")
		alone.Env = append(os.Environ(), "COFFER_TEST_SILENT_KEYRING=1")
		if out, err := alone.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	home := oneContext(t, Context{})
	bus := filepath.Join(home, "bus")
	l, err := net.Listen("unix", bus)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+bus)
	before := keyringTimeout
	keyringTimeout = time.Millisecond
	defer func() { keyringTimeout = before }()
	where, err := KeepToken("t-1")
	if err != nil || !strings.Contains(where, contextsFile) {
		t.Fatalf("%q, %v", where, err)
	}
	if got := kept(t); got != "t-1" {
		t.Errorf("the token is %q", got)
	}
}

func TestKeyring(t *testing.T) {
	keyring.MockInit()
	home := oneContext(t, Context{})
	where, err := KeepToken("t-1")
	if err != nil || !strings.HasPrefix(where, "the keyring") {
		t.Fatalf("%q, %v", where, err)
	}
	if got := kept(t); got != "t-1" || strings.Contains(file(t, home), "t-1") {
		t.Errorf("the token is %q, the file:\n%s", got, file(t, home))
	}
	// The variable turns the keyring off, also for a token that is in it.
	t.Setenv("COFFER_KEYRING", "off")
	if got := kept(t); got != "" {
		t.Errorf("the token is %q", got)
	}
	if _, err := KeepToken("t-2"); err != nil || kept(t) != "t-2" {
		t.Errorf("%v, %s", err, file(t, home))
	}
	t.Setenv("COFFER_KEYRING", "")
	if got := kept(t); got != "t-2" {
		t.Errorf("the token is %q", got)
	}
	// A token that has gone from the keyring is none.
	if _, err := KeepToken("t-3"); err != nil {
		t.Fatal(err)
	}
	name, c, err := ActiveContext()
	if err != nil || !c.InKeyring || c.Token != "" {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := ForgetToken(name, c); err != nil || ForgetToken(name, c) != nil {
		t.Error(err)
	}
	if got := kept(t); got != "" {
		t.Errorf("the token is %q", got)
	}
}

func TestKeyringThatFails(t *testing.T) {
	oneContext(t, Context{InKeyring: true})
	keyring.MockInitWithError(os.ErrPermission)
	if _, err := CurrentToken(); err == nil || !strings.Contains(err.Error(), "COFFER_KEYRING=off") {
		t.Errorf("%v", err)
	}
	if where, err := KeepToken("t-1"); err != nil || kept(t) != "t-1" {
		t.Errorf("%q, %v", where, err)
	}
}

// A context may keep its token in the file, and so does a session without a desktop.
func TestWithoutKeyring(t *testing.T) {
	keyring.MockInit()
	home := oneContext(t, Context{NoKeyring: true})
	if _, err := KeepToken("t-1"); err != nil || !strings.Contains(file(t, home), "t-1") {
		t.Errorf("%v, %s", err, file(t, home))
	}
	if runtime.GOOS != "linux" {
		return
	}
	home = oneContext(t, Context{})
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "")
	if _, err := KeepToken("t-2"); err != nil || !strings.Contains(file(t, home), "t-2") {
		t.Errorf("%v, %s", err, file(t, home))
	}
}
