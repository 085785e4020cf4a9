package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var built struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// Binary returns the path of a coffer binary: the one in COFFER_TEST_BINARY, else one that is built once for
// the process and removed by Main or RemoveBinary.
func Binary(t TB) string {
	t.Helper()
	built.once.Do(func() {
		if path := os.Getenv("COFFER_TEST_BINARY"); path != "" {
			built.path, built.err = filepath.Abs(path)
			return
		}
		built.path, built.err = build()
	})
	if built.err != nil {
		t.Fatalf("%v", built.err)
	}
	return built.path
}

func build() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	if built.dir, err = os.MkdirTemp("", "coffer-test-"); err != nil {
		return "", err
	}
	return buildIn(root, built.dir)
}

func buildIn(source, dir string) (string, error) {
	path := filepath.Join(dir, "coffer")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/coffer")
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building coffer: %w\n%s", err, out)
	}
	return path, nil
}

// previousCommit is the state of this repository from which the previous release was made: a cluster is upgraded from it, node
// by node. A release changes it.
const previousCommit = "6cfaa91"

// Previous builds the binary of the previous release from the repository's history. It lasts as long as the test.
func Previous(t TB) string {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir := t.TempDir()
	cmd := exec.Command("/bin/sh", "-c", `git archive "$0" | tar -x -C "$1"`, previousCommit, dir)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("taking commit %s out of the history, which has to be there: %v\n%s", previousCommit, err, out)
	}
	path, err := buildIn(dir, dir)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return path
}

// Root returns the directory of the repository, from anywhere in it: the tests' own module is in test/.
func Root() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("asking for the module: %w", err)
	}
	dir := filepath.Dir(strings.TrimSpace(string(out)))
	if filepath.Base(dir) == "test" {
		dir = filepath.Dir(dir)
	}
	return dir, nil
}

// RemoveBinary removes what Binary built.
func RemoveBinary() {
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
}

// Main runs a package's tests, and afterwards removes the binary and calls what is given; call it from TestMain.
func Main(m *testing.M, after ...func()) {
	// The client library reads these; a test must not depend on who runs it.
	for _, name := range os.Environ() {
		name, _, _ = strings.Cut(name, "=")
		if strings.HasPrefix(name, "VAULT_") || strings.HasPrefix(name, "BAO_") {
			os.Unsetenv(name)
		}
	}
	code := m.Run()
	RemoveBinary()
	for _, do := range after {
		do()
	}
	os.Exit(code)
}
