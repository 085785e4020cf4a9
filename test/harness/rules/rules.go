// Package rules reads the RULES.md beside a suite: lists of promises with the tests that hold them. It checks that each test is
// there, and that each path of a mount has a rule.
package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/test/harness"
)

// Rule is a row of a RULES.md: a promise, and the tests that hold it.
type Rule struct {
	Section, Text string
	tests         []testOf
}

// testOf is a test that a rule names.
type testOf struct{ dir, name, sub string }

// Read reads RULES.md in the current directory.
func Read(t harness.TB) []Rule {
	t.Helper()
	text, err := os.ReadFile("RULES.md")
	if err != nil {
		t.Fatalf("%v", err)
	}
	named := regexp.MustCompile("`([\\w/]+)` (Test\\w+)(?:/([^,|]+))?")
	var out []Rule
	section := ""
	for line := range strings.Lines(string(text)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 2 || cells[0] == "| rule" {
			continue
		}
		r := Rule{Section: section, Text: strings.TrimPrefix(cells[0], "| ")}
		for _, m := range named.FindAllStringSubmatch(cells[1], -1) {
			r.tests = append(r.tests, testOf{m[1], m[2], strings.TrimSpace(m[3])})
		}
		out = append(out, r)
	}
	return out
}

// Check fails the test unless every rule of RULES.md has a test that exists, and every test of rules_test.go, in the
// current directory, is that of a rule. There must be at least that many rules. dir is the current directory, from the module's
// root.
func Check(t harness.TB, dir string, least int) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatalf("%v", err)
	}
	all := Read(t)
	if len(all) < least {
		t.Errorf("there are %d rules only", len(all))
	}
	listed := map[string]bool{}
	packages := map[string]map[string]string{}
	for _, r := range all {
		if len(r.tests) == 0 {
			t.Errorf("%s: no test: %s", r.Section, r.Text)
		}
		for _, test := range r.tests {
			if packages[test.dir] == nil {
				packages[test.dir] = testsOf(t, filepath.Join(root, filepath.FromSlash(test.dir)))
			}
			file, ok := packages[test.dir][test.name]
			switch {
			case !ok:
				t.Errorf("%s has no %s: %s", test.dir, test.name, r.Text)
			case test.sub != "" && !strings.Contains(file, `"`+test.sub+`"`):
				t.Errorf("%s has no subtest %q: %s", test.name, test.sub, r.Text)
			}
			if test.dir == dir {
				listed[test.name] = true
			}
		}
	}
	own, err := os.ReadFile("rules_test.go")
	if err != nil {
		t.Fatalf("%v", err)
	}
	for name, file := range testsOf(t, ".") {
		if file == string(own) && !listed[name] {
			t.Errorf("%s is no rule's test", name)
		}
	}
}

// testsOf returns the tests of a directory, each with the text of its file.
func testsOf(t harness.TB, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	found := map[string]string{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatalf("%v", err)
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

// CheckPaths fails the test unless the rules of RULES.md that begin with a method and a path are those that a server documents
// below a prefix such as "/cloud/". A rule may leave the prefix out, and
// the slash at the end.
func CheckPaths(t harness.TB, n *harness.Node, prefix string) {
	t.Helper()
	path := regexp.MustCompile("^`(GET|POST|PATCH|DELETE) ([\\w/{}-]+)`")
	ruled, served := map[string]bool{}, map[string]bool{}
	for _, r := range Read(t) {
		if m := path.FindStringSubmatch(r.Text); m != nil {
			name := strings.TrimPrefix(m[2], strings.TrimPrefix(prefix, "/"))
			ruled[m[1]+" "+strings.TrimSuffix(name, "/")] = true
		}
	}
	var doc struct{ Paths map[string]map[string]any }
	n.MustDo("GET", "/v1/sys/internal/specs/openapi", nil).Decode(t, &doc)
	for name, about := range doc.Paths {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		for method := range about {
			if method = strings.ToUpper(method); path.MatchString("`" + method + " x`") {
				served[method+" "+strings.TrimSuffix(rest, "/")] = true
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(ruled)), slices.Sorted(maps.Keys(served)); !slices.Equal(got, want) {
		t.Errorf("rules for\n%q\nserved are\n%q", got, want)
	}
}
