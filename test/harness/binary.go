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
	path := filepath.Join(built.dir, "coffer")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/coffer")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building coffer: %w\n%s", err, out)
	}
	return path, nil
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

// Main runs a package's tests and removes the binary afterwards; call it from TestMain.
func Main(m *testing.M) {
	// The client library reads these; a test must not depend on who runs it.
	for _, name := range os.Environ() {
		name, _, _ = strings.Cut(name, "=")
		if strings.HasPrefix(name, "VAULT_") || strings.HasPrefix(name, "BAO_") {
			os.Unsetenv(name)
		}
	}
	code := m.Run()
	RemoveBinary()
	os.Exit(code)
}
