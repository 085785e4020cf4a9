package ledger_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
)

var between = ledger.Header{Source: "here", Destination: "there"}

func open(t *testing.T, path string) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(path, between)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	one := ledger.Entry{Kind: "secret", Namespace: "team", Name: "kv/a", Source: "x", Version: 3}
	l := open(t, path)
	if _, err := ledger.Open(path, between); err == nil || !strings.Contains(err.Error(), "another import has it open") {
		t.Errorf("a second one: %v", err)
	}
	if err := l.Put(ledger.Entry{Kind: "secret", Namespace: "team", Name: "kv/a"}, one, one, ledger.Entry{Kind: "secret", Name: "kv/b"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 4 {
		t.Errorf("%v: %s", err, text)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	// A line that a crash has cut off is dropped, and the next one does not continue it.
	if err := os.WriteFile(path, append(text, `{"kind":"sec`...), 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, path)
	if err := l.Put(ledger.Entry{Kind: "secret", Namespace: "team", Name: "kv/c"}); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	l, err = ledger.Read(path, between)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := l.Get("secret", "team", "kv/a"); !ok || got != one {
		t.Errorf("%+v, %v", got, ok)
	}
	if got := l.Names("secret", "team", "kv/"); !slices.Equal(got, []string{"kv/a", "kv/c"}) {
		t.Errorf("names %v", got)
	}
}

// TestFirstLineCutOff: a crash may have cut off the first line, too.
func TestFirstLineCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	if err := os.WriteFile(path, []byte(`{"ledger":1,"source":"he`), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = open(t, path).Close()
	if text, _ := os.ReadFile(path); string(text) != `{"ledger":1,"source":"here","destination":"there"}`+"\n" {
		t.Errorf("the ledger is %s", text)
	}
}

func TestRejects(t *testing.T) {
	dir := t.TempDir()
	if l, err := ledger.Read(filepath.Join(dir, "none"), between); err != nil || len(l.Names("secret", "", "")) != 0 {
		t.Errorf("no file: %v", err)
	}
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"another":   {`{"ledger":1,"source":"elsewhere","destination":"there"}` + "\n", 0o600, "from elsewhere to there"},
		"newer":     {`{"ledger":2}` + "\n", 0o600, "not a ledger of this version"},
		"something": {"a: b\n", 0o600, "not a ledger"},
		"a token":   {"hvs.no-end-of-line", 0o600, "not a ledger"},
		"public":    {"", 0o644, "other users can read"},
		"damaged":   {`{"ledger":1,"source":"here","destination":"there"}` + "\n{\n", 0o600, "line 2 is damaged"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		for _, read := range []func(string, ledger.Header) (*ledger.Ledger, error){ledger.Open, ledger.Read} {
			if _, err := read(path, between); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want …%s", name, err, c.want)
			}
		}
		if text, _ := os.ReadFile(path); string(text) != c.text {
			t.Errorf("%s was changed to %s", name, text)
		}
	}
}
