package replication

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

// rule is a row of RULES.md.
type rule struct {
	section, text string
	tests         []testOf
}

// testOf is a test that a rule names.
type testOf struct{ dir, name, sub string }

// rules reads RULES.md.
func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile("RULES.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([\\w/]+)` (Test\\w+)(?:/([^,|]+))?")
	var out []rule
	section := ""
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 2 || cells[0] == "| rule" {
			continue
		}
		r := rule{section: section, text: strings.TrimPrefix(cells[0], "| ")}
		for _, m := range named.FindAllStringSubmatch(cells[1], -1) {
			r.tests = append(r.tests, testOf{m[1], m[2], strings.TrimSpace(m[3])})
		}
		out = append(out, r)
	}
	return out
}

// TestRules: every rule has a test that exists, and every test of rules_test.go is that of a rule.
func TestRules(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	all := rules(t)
	if len(all) < 60 {
		t.Errorf("there are %d rules only", len(all))
	}
	listed := map[string]bool{}
	packages := map[string]map[string]string{}
	for _, r := range all {
		if len(r.tests) == 0 {
			t.Errorf("%s: no test: %s", r.section, r.text)
		}
		for _, test := range r.tests {
			if packages[test.dir] == nil {
				packages[test.dir] = testsOf(t, filepath.Join(root, filepath.FromSlash(test.dir)))
			}
			file, ok := packages[test.dir][test.name]
			switch {
			case !ok:
				t.Errorf("%s has no %s: %s", test.dir, test.name, r.text)
			case test.sub != "" && !strings.Contains(file, `"`+test.sub+`"`):
				t.Errorf("%s has no subtest %q: %s", test.name, test.sub, r.text)
			}
			if test.dir == "test/replication" {
				listed[test.name] = true
			}
		}
	}
	own, err := os.ReadFile("rules_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range testsOf(t, ".") {
		if file == string(own) && !listed[name] {
			t.Errorf("%s is no rule's test", name)
		}
	}
}

// testsOf returns the tests of a directory, each with the text of its file.
func testsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				found[fn.Name.Name] = string(text)
			}
		}
	}
	return found
}

// TestEveryPathHasARule compares the paths in RULES.md with those that a server documents.
func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	const below = "/sys/replication/"
	path := regexp.MustCompile("`(GET|POST|DELETE) ([\\w/{}-]+)`")
	ruled := map[string]bool{}
	for _, r := range rules(t) {
		for _, m := range path.FindAllStringSubmatch(r.text, -1) {
			method, name := m[1], m[2]
			if rest, ok := strings.CutPrefix(name, "/"); ok {
				ruled[method+" "+below+rest] = true
				continue
			}
			ruled[method+" "+below+"performance/"+name] = true
			if strings.HasPrefix(name, "primary/") || strings.HasPrefix(name, "secondary/") {
				ruled[method+" "+below+name] = true
			}
		}
	}
	var doc struct{ Paths map[string]map[string]any }
	c := alone(t, "n")
	c.Nodes[0].MustDo("GET", "/v1/sys/internal/specs/openapi", nil).Decode(t, &doc)
	served := map[string]bool{}
	for name, methods := range doc.Paths {
		if !strings.HasPrefix(name, below) {
			continue
		}
		for method := range methods {
			served[strings.ToUpper(method)+" "+name] = true
		}
	}
	for name := range served {
		if !ruled[name] {
			t.Errorf("%s is served and has no rule", name)
		}
	}
	for name := range ruled {
		if !served[name] {
			t.Errorf("%s has a rule and is not served", name)
		}
	}
}
