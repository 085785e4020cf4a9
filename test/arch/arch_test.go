package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/coffer-project/coffer"

// plan says what each package may import of ours. The first pattern that fits a package counts. A pattern is a
// package, or everything below one ("server/*"). A package may always import what lies below itself.
var plan = []struct{ of, may string }{
	{"proto/*", ""},
	{"storage/storagetest/leaktest", ""},
	{"storage", ""},
	{"storage/fsm", "proto/* storage storage/boltstore storage/lthash"},
	{"storage/boltstore", "storage storage/lthash storage/scrub"},
	{"storage/wal", "storage storage/scrub"},
	{"storage/*", "proto/* storage"},
	{"engines", "storage"},
	{"engines/secretsync/destination/desttest", "engines/secretsync/destination engines storage"},
	{"engines/secretsync/destination", "engines storage"},
	{"engines/secretsync/cloud1sm/cloud1smtest", "engines/cloud/awstest"}, // STS is the same at both
	{"engines/secretsync/template", "engines/secretsync/destination engines/nametemplate"},
	{"engines/secretsync/state", "engines/secretsync/destination engines/secretsync/template engines storage"},
	{"engines/secretsync/plan", "engines/secretsync/destination engines/secretsync/state"}, // it decides, and does nothing
	{"engines/secretsync/*", "engines/secretsync/* engines/nametemplate engines storage"},
	{"engines/secretsync", "engines/nametemplate engines storage"},
	{"engines/cloud", "engines/nametemplate engines storage"},
	{"engines/saml", "engines/fairqueue engines storage"},
	{"engines/userpass", "engines/fairqueue engines storage"},
	{"engines/*", "engines storage"},
	{"cluster", "proto/* storage storage/fsm storage/scrub"},
	{"server", "engines storage"},
	{"replication", "proto/* storage storage/wal"},
	{"replication/*", "storage"},
	{"server/httpapi", "server server/admission engines storage"},
	{"server/quota", "server/admission engines storage"},
	{"server/lifecycle/lifecycletest", "server/lifecycle storage storage/barrier"},
	{"server/lifecycle", "server/seal engines storage"},
	{"server/policy", "server/policytext engines storage"},
	{"server/passpolicy", "server/policytext engines storage"},
	{"server/seal/*", "server/seal engines storage"},
	{"server/snapshots", "server/archive engines storage"},
	{"server/wrapping", "server/token engines storage"},
	{"server/system", "server/archive server/lifecycle server/mount engines storage"},
	{"server/*", "engines storage"},
	{"cmd/*", "proto/* storage storage/* engines engines/* cluster replication replication/* server server/*"},
	{"test/bench", "engines engines/cloud/awstest engines/saml engines/saml/* server/lease server/token server/replicated server/replicated/enrol replication storage storage/* cluster test/harness"}, // it measures the parts, too
	{"test/replication", "storage storage/* server/seal server/replicated test/harness"},                                                                                                               // it opens the files of stopped nodes
	{"test/conformance", "engines/cloud/awstest engines/saml/samltest test/harness"},                                                                                                                   // it plays the providers
	{"test/hostile", "engines/cloud/awstest engines/saml/samltest test/harness"},
	{"test/security", "engines/cloud/awstest engines/saml/samltest test/harness"},
	{"test/saml", "engines/saml/samltest test/harness"},
	{"test/cloud", "engines/cloud/awstest test/harness"},
	{"test/*", "test/harness"},
}

// vague names say nothing about what is inside.
var vague = []string{"common", "util", "utils", "helper", "helpers", "core", "base", "manager", "misc"}

const maxLines = 800 // of a file that people wrote and that is not a test

// file is one parsed Go file of ours.
type file struct {
	path   string // relative to the root of the module
	syntax *ast.File
	test   bool
	lines  int
}

func (f *file) pkg() string { return path.Dir(f.path) }

func (f *file) generated() bool { return ast.IsGenerated(f.syntax) }

// sources returns every Go file of both modules.
func sources(t *testing.T) (*token.FileSet, []*file) {
	t.Helper()
	files, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("only %d Go files found", len(files))
	}
	return positions, files
}

var positions = token.NewFileSet()

// parsed parses the files once for all tests, which only read them.
var parsed = sync.OnceValues(func() ([]*file, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	var files []*file
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"testdata", "node_modules", "bin"}, d.Name())) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(positions, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		files = append(files, &file{
			path: filepath.ToSlash(relative), syntax: syntax,
			test: strings.HasSuffix(name, "_test.go"), lines: strings.Count(string(text), "\n"),
		})
		return nil
	})
	return files, err
})

// fits reports whether a package is what a pattern means.
func fits(pattern, pkg string) bool {
	if below, ok := strings.CutSuffix(pattern, "/*"); ok {
		return strings.HasPrefix(pkg, below+"/")
	}
	return pattern == pkg
}

func allowed(from, to string) (ok, known bool) {
	for _, rule := range plan {
		if !fits(rule.of, from) {
			continue
		}
		if strings.HasPrefix(to, from+"/") {
			return true, true
		}
		return slices.ContainsFunc(strings.Fields(rule.may), func(p string) bool { return fits(p, to) }), true
	}
	return false, false
}

func TestImportsPointDown(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		for _, spec := range f.syntax.Imports {
			full, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			to, ours := strings.CutPrefix(full, module+"/")
			if !ours {
				continue
			}
			if f.test {
				// A test may use what it likes, but the plan's top floor belongs to nobody.
				if strings.HasPrefix(to, "test/") && !strings.HasPrefix(f.path, "test/") {
					t.Errorf("%s imports %s: nothing imports test/", f.path, to)
				}
				continue
			}
			switch ok, known := allowed(f.pkg(), to); {
			case !known:
				t.Errorf("%s: package %s is not in the floor plan: add it to the table in this test", f.path, f.pkg())
			case !ok:
				t.Errorf("%s: %s must not import %s", f.path, f.pkg(), to)
			}
		}
	}
}

func TestFloorPlanRefuses(t *testing.T) {
	for _, edge := range [][2]string{
		{"server", "cluster"}, {"server", "storage/fsm"}, {"server/system", "storage/barrier"}, {"server/httpapi", "proto/logpb"},
		{"replication", "cluster"}, {"replication", "server/replicated"}, {"server/replicated", "replication"},
		{"server/policy", "server"}, {"engines/kv", "engines/cubbyhole"}, {"engines", "server"}, {"storage", "proto/logpb"},
		{"storage/boltstore", "storage/fsm"}, {"cluster", "server"}, {"cluster", "storage/barrier"}, {"cmd/coffer", "test/harness"},
		{"proto/logpb", "storage"},
	} {
		if ok, known := allowed(edge[0], edge[1]); ok || !known {
			t.Errorf("%s may import %s (in the plan: %v)", edge[0], edge[1], known)
		}
	}
}

func TestNames(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		if slices.Contains(vague, f.syntax.Name.Name) || slices.Contains(vague, path.Base(f.pkg())) {
			t.Errorf("%s: %q says nothing about what is inside", f.path, f.syntax.Name.Name)
		}
		if base := strings.TrimSuffix(path.Base(f.path), ".go"); slices.Contains(vague, base) {
			t.Errorf("%s: the file's name says nothing about what is inside", f.path)
		}
	}
}

func TestFilesAreSmall(t *testing.T) {
	_, files := sources(t)
	for _, f := range files {
		if !f.test && !f.generated() && f.lines > maxLines {
			t.Errorf("%s has %d lines, the limit is %d", f.path, f.lines, maxLines)
		}
	}
}

func TestPackagesHaveComments(t *testing.T) {
	_, files := sources(t)
	documented, seen := map[string]bool{}, map[string]bool{}
	for _, f := range files {
		if f.test || f.generated() {
			continue
		}
		seen[f.pkg()] = true
		if f.syntax.Doc != nil && len(f.syntax.Doc.Text()) > 40 {
			documented[f.pkg()] = true
		}
	}
	for pkg := range seen {
		if !documented[pkg] {
			t.Errorf("package %s has no comment that says what it is for", pkg)
		}
	}
}

// TestNoSleep: waiting is for an index, a channel or a timer that can be cut short.
func TestNoSleep(t *testing.T) {
	set, files := sources(t)
	for _, f := range files {
		if f.test || f.generated() || strings.HasPrefix(f.path, "test/") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s: time.Sleep cannot be cut short: wait for a channel or a timer", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// TestNoModuleCache: what a test reads is in the repository. What only the module cache has is missing on a fresh machine, because
// the go command downloads the modules of packages that are imported and no others.
func TestNoModuleCache(t *testing.T) {
	set, files := sources(t)
	words := []string{"GOMODCACHE", "pkg/mod"}
	for _, f := range files {
		if f.path == "test/arch/arch_test.go" {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(n.Value, w) }) {
					t.Errorf("%s: reads the module cache: put the file into testdata, with its license", set.Position(n.Pos()))
				}
			case *ast.CallExpr:
				if runsGoList(n) {
					t.Errorf("%s: calls go list: put the file into testdata, with its license", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// runsGoList reports whether a call has the arguments "go", "list".
func runsGoList(call *ast.CallExpr) bool {
	for i := 1; i < len(call.Args); i++ {
		a, _ := call.Args[i-1].(*ast.BasicLit)
		b, _ := call.Args[i].(*ast.BasicLit)
		if a != nil && b != nil && a.Value == `"go"` && b.Value == `"list"` {
			return true
		}
	}
	return false
}
