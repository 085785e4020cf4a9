package security_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

// TestDocumentedTests: every test that docs/security-model.md names exists, every class of attack has one, and every
// test of this package is in the table.
func TestDocumentedTests(t *testing.T) {
	t.Parallel()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "security-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "## Attacks")
	if !ok {
		t.Fatal("there is no table of attacks")
	}
	named := regexp.MustCompile("`([\\w./-]+_test\\.go)` `((?:Test|Fuzz)\\w+)`")
	documented, rows := map[string]bool{}, 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| class") {
			continue
		}
		rows++
		found := named.FindAllStringSubmatch(line, -1)
		if len(found) == 0 {
			t.Errorf("no test in %s", line)
		}
		for _, f := range found {
			documented[f[1]+" "+f[2]] = true
			if !tests(t, filepath.Join(root, filepath.FromSlash(f[1])))[f[2]] {
				t.Errorf("%s has no %s", f[1], f[2])
			}
		}
	}
	if rows < 20 {
		t.Errorf("the table has %d rows only", rows)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for name := range tests(t, file) {
			if name != "TestMain" && name != "TestDocumentedTests" && !documented["test/system/security/"+file+" "+name] {
				t.Errorf("%s in %s is not in the table", name, file)
			}
		}
	}
}

var parsed = map[string]map[string]bool{}

// tests returns the names of a file's test functions.
func tests(t *testing.T, path string) map[string]bool {
	t.Helper()
	if names := parsed[path]; names != nil {
		return names
	}
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return nil
	}
	names := map[string]bool{}
	parsed[path] = names
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && (strings.HasPrefix(fn.Name.Name, "Test") || strings.HasPrefix(fn.Name.Name, "Fuzz")) {
			names[fn.Name.Name] = true
		}
	}
	return names
}
