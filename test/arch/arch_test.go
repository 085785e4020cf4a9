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
	{"storage/fsm", "proto/* storage storage/boltfile storage/boltstore storage/lthash storage/record"},
	{"storage/boltstore", "storage storage/boltfile storage/boltpage storage/lthash storage/pagesums storage/record storage/scrub"},
	{"storage/pagesums", "storage/boltfile"},
	{"storage/boltfile", "storage/boltpage"},
	{"storage/wal", "storage storage/scrub"},
	{"storage/fsm/stream", "storage storage/boltstore storage/record"},
	{"storage/*", "proto/* storage"},
	{"engines", "storage"},
	{"engines/input/jsontext", ""},
	{"engines/input", ""},
	{"engines/openapi", "engines engines/input"},
	{"engines/enginetest", "engines engines/input engines/input/jsontext engines/openapi storage"},
	{"engines/secretsync/destination/desttest", "engines/secretsync/destination engines storage"},
	{"engines/secretsync/destination", "engines storage"},
	{"engines/secretsync/cloud1/cloud1test", "engines/cloud/awstest engines/cloud/awstest/sigv4 engines/secretsync/destination/desttest"}, // STS is the same at both
	{"engines/secretsync/template", "engines/secretsync/destination engines/nametemplate"},
	{"engines/secretsync/state", "engines/secretsync/destination engines/secretsync/template engines storage"},
	{"engines/secretsync/plan", "engines/secretsync/destination engines/secretsync/state"},           // it decides, and does nothing
	{"engines/secretsync/source", "engines/secretsync/destination engines/secretsync/state engines"}, // it reads secrets, not the store
	{"engines/secretsync/*", "engines/secretsync/* engines/nametemplate engines storage"},
	{"engines/secretsync", "engines/nametemplate engines storage"},
	{"engines/cloud/awstest/model", "engines/cloud/awstest/query"},
	{"engines/cloud/failure", "engines/cloud/aws engines storage"},
	{"engines/cloud/accesskey", "engines/cloud/aws engines/cloud/failure engines"},
	{"engines/cloud/username", "engines/nametemplate engines"},
	{"engines/cloud/role", "engines/cloud/aws engines/cloud/username engines storage"},
	{"engines/cloud/root", "engines/cloud/aws engines/cloud/username engines storage"},
	{"engines/cloud/static", "engines/cloud/accesskey engines/cloud/aws engines/cloud/failure engines/cloud/role engines/cloud/root engines storage"},
	{"engines/cloud", "engines storage"},
	{"engines/saml/role", "engines/saml/assertion engines/saml/idp engines storage"},
	{"engines/saml/provider", "engines/saml/idp engines/saml/role engines storage"},
	{"engines/saml", "engines/fairqueue engines storage"},
	{"engines/userpass", "engines/fairqueue engines storage"},
	{"engines/kv/imported", "engines/kv/limits engines engines/input storage"},
	{"engines/*", "engines engines/input storage"},
	{"cluster/raftlog", "storage storage/boltfile"},
	{"cluster/consensus", "cluster/certs cluster/port cluster/raftlog cluster/transport storage storage/boltfile storage/fsm"},
	{"cluster/forward", "proto/* cluster/certs cluster/consensus cluster/port cluster/transport storage"},
	{"cluster/digest", "cluster/certs cluster/consensus cluster/health cluster/raftlog storage storage/fsm"},
	{"cluster/health", "cluster/certs storage"},
	{"cluster/registry", "cluster/certs cluster/consensus cluster/port storage"},
	{"cluster/certs", ""},
	{"cluster/port", "cluster/certs"},
	{"cluster/transport", "cluster/certs cluster/port"},
	{"cluster", "proto/* storage storage/fsm storage/scrub"},
	{"server", "engines engines/input storage"},
	{"replication", "replication/digest storage"}, // the contract
	{"replication/digest", "storage"},
	{"replication/wire", "proto/* replication replication/digest storage"},
	{"replication/primary", "replication replication/digest storage"},
	{"replication/secondary", "replication replication/digest storage"},
	{"replication/state", "replication replication/digest storage storage/wal"},
	{"replication/transport", "proto/* replication replication/wire storage"},
	{"replication/follow", "proto/* replication replication/secondary replication/state replication/transport replication/wire storage"},
	{"replication/link", "proto/* replication replication/* storage storage/wal"},
	{"server/httpapi", "server/pipeline server/admission engines engines/input/jsontext storage"},
	{"server/replicated/roles", "replication server/replicated/entry engines storage"},
	{"server/replicated/filter", "server/replicated/entry engines storage"},
	{"server/replicated", "replication engines storage"},
	{"server/replicated/api", "server/replicated server/replicated/* engines storage"},
	{"server/replicated/traffic", "replication server/replicated/entry server/replicated/roles storage"},
	{"server/replicated/primaries", "replication server/replicated/entry server/replicated/roles server/replicated/traffic engines storage"},
	{"server/replicated/scopes", "server/replicated/enrol server/replicated/entry server/replicated/filter server/replicated/roles server/replicated/traffic engines storage"},
	{"server/replicated/registry", "replication server/replicated/enrol server/replicated/entry server/replicated/filter server/replicated/roles engines storage"},
	{"server/quota", "server/admission engines storage"},
	{"server/pgp", "engines"},
	{"server/lifecycle/members", "server/lifecycle/join storage"},
	{"server/lifecycle/sealing", "server/seal engines storage"},
	{"server/lifecycle/rotation", "engines storage"},
	{"server/lifecycle/join", "server/seal engines storage"},
	{"server/lifecycle/passport", "storage"},
	{"server/lifecycle/rawstore", "storage"},
	{"server/lifecycle/ceremony", "server/pgp server/seal engines storage"},
	{"server/lifecycle/lifecycletest", "server/lifecycle server/lifecycle/* storage storage/barrier"},
	{"server/lifecycle", "server/seal engines storage"},
	{"server/pipeline", "server/audit server/audit/record server/fence server/identity server/lease server/lifecycle server/login server/mount server/namespace " +
		"server/policy server/quota server/remote server/replicated server/replicated/* server/rights server/system/process server/token server/trace server/wrapping engines engines/input storage"}, // it has requests pass all of them
	{"server/mfa", "server/identity engines engines/input storage"},
	{"server/login", "server/identity server/mfa server/mount server/remote server/rights server/token engines storage"},
	{"server/remote", "server/mount server/namespace server/replicated server/replicated/* engines storage"},
	{"server/rights", "server/identity server/namespace server/policy server/token engines storage"},
	{"server/fence", "server/lifecycle server/replicated server/replicated/* engines storage"},
	{"server/setkeys", "server/lifecycle storage"},
	{"server/statetoken", "server/lifecycle server/replicated server/replicated/* engines storage"},
	{"server/audit/search", ""},
	{"server/audit/device", "server/audit/record engines engines/input storage"},
	{"server/plugin", "server/plugin/backend server/plugin/process engines engines/input/jsontext storage"},
	{"server/plugin/backend", "server/plugin/process engines storage"},
	{"server/plugin/process", ""},
	{"server/mount", "server/mount/unknown server/mount/gate server/snapmap engines storage"},
	{"server/namespace", "server/snapmap engines storage"},
	{"server/snapmap", ""},
	{"server/mount/unknown", "engines storage"},
	{"server/lease/record", "server/lease/index engines storage"},
	{"server/lease/queue", "server/lease/index server/lease/record storage"},
	{"server/lease/tally", "server/lease/index engines storage"},
	{"server/lease/api", "server/lease server/lease/record engines engines/input storage"},
	{"server/policy/api", "server/policy engines storage"},
	{"server/policy", "engines engines/input storage"},
	{"server/passpolicy", "server/policy/hcl engines storage"},
	{"server/seal/*", "server/seal engines storage"},
	{"server/snapshots", "server/archive engines storage"},
	{"server/token/record", "server/token/role engines engines/input storage"},
	{"server/token/tally", "server/token/record engines storage"},
	{"server/token/api", "server/token server/token/role engines engines/input storage"},
	{"server/wrapping", "server/token engines storage"},
	{"server/system/mounts", "server/mount engines engines/input storage"},
	{"server/system", "server/archive server/lifecycle server/lifecycle/members server/lifecycle/ceremony server/lifecycle/join server/lifecycle/rotation server/mount server/pgp server/replicated/roles engines engines/input engines/input/jsontext engines/openapi storage"},
	{"server/*", "engines engines/input storage"},
	{"cmd/coffer/local", ""},
	{"cmd/coffer/config/known", ""},
	{"cmd/coffer/config/initialize", ""},
	{"cmd/coffer/config/interfaces", ""},
	{"cmd/coffer/config", "engines storage"},
	{"cmd/coffer/command/table", ""},
	{"cmd/coffer/command/suggest", ""},
	{"cmd/coffer/command", "cmd/coffer/local"},
	{"cmd/coffer/command/browser", "cmd/coffer/command/table cmd/coffer/local"},
	{"cmd/coffer/command/saml", "cmd/coffer/command cmd/coffer/command/* cmd/coffer/local engines/saml/*"}, // it checks metadata itself
	{"cmd/coffer/command/*", "cmd/coffer/command cmd/coffer/command/* cmd/coffer/local"},                   // clients: nothing of the server
	{"cmd/coffer/node/process", "cmd/coffer/config cmd/coffer/local server/system/process"},
	{"cmd/coffer/node/datadir", "cmd/coffer/config cmd/coffer/local cluster cluster/* replication server/lifecycle storage storage/*"},
	{"cmd/coffer/node/socket", "cmd/coffer/config"},
	{"cmd/coffer/node/clientcerts", "cmd/coffer/config engines"},
	{"cmd/coffer/node/reload", "cmd/coffer/config cmd/coffer/node/process cmd/coffer/node/settings server/audit/device"},
	{"cmd/coffer/node/headers", "cmd/coffer/config"},
	{"cmd/coffer/node/dev", "cmd/coffer/config cmd/coffer/local"},
	{"cmd/coffer/node/registration", ""},
	{"cmd/coffer/node/statsd", "server/metrics"},
	{"cmd/coffer/node/selfinit", "cmd/coffer/config/initialize engines server/lifecycle server/lifecycle/join"},
	{"cmd/coffer/node/settings", "cmd/coffer/config cmd/coffer/local server/audit/device server/lifecycle/join server/seal server/seal/* engines"},
	{"cmd/coffer/node", "cmd/coffer/config cmd/coffer/local engines engines/* cluster cluster/* replication replication/* server server/* storage storage/*"},
	{"cmd/coffer/diagnose", "cmd/coffer/command cmd/coffer/command/table cmd/coffer/config cmd/coffer/config/interfaces cmd/coffer/node cmd/coffer/node/* cluster cluster/* server/freespace storage storage/*"},
	{"cmd/*", "proto/* storage storage/* engines engines/* cluster cluster/* replication replication/* server server/*"},
	{"test/bench/run", ""},                             // what the sections share
	{"test/bench/peer", "test/bench/run test/harness"}, // another server to measure beside
	{"test/bench/parts", "test/bench/run engines server/lease server/token server/replicated/enrol server/replicated/filter replication replication/link storage storage/* cluster"}, // without a server in front
	{"test/bench/shelf", "test/bench/run"},              // a destination of secret sync
	{"test/bench/scale", "test/bench/run test/harness"}, // many of a kind
	{"test/bench/stages", "test/bench/run test/harness"},
	{"test/bench/servers", "test/bench/run test/bench/stages test/bench/peer test/bench/shelf test/kvplugin engines/cloud/awstest engines/saml/assertion engines/saml/samltest test/harness"},
	{"test/system/replication", "storage storage/* server/seal server/replicated server/replicated/* test/harness"}, // it opens the files of stopped nodes
	{"test/system/conformance", "engines/cloud/awstest engines/saml/samltest test/harness"},                         // it plays the providers
	{"test/system/hostile", "engines/cloud/awstest engines/saml/samltest test/harness"},
	{"test/system/security", "engines/cloud/awstest engines/saml/samltest test/harness"},
	{"test/system/plugin", "engines engines/enginetest server/plugin server/plugin/backend storage test/harness test/kvplugin"}, // one is an engine, too
	{"test/system/saml", "engines/saml/samltest test/harness"},
	{"test/system/cloud", "engines/cloud/awstest test/harness"},
	{"test/*", "test/harness test/harness/rules"},
}

// vague names say nothing about what is inside.
var vague = []string{"common", "util", "utils", "helper", "helpers", "core", "base", "manager", "misc"}

const (
	maxLines        = 800  // of a file that people wrote and that is not a test
	maxPackageLines = 1500 // of code in one package: neither blank nor only a comment
)

// larger are the packages over maxPackageLines, with the lines that they may have. The numbers only get smaller; a package that is
// to stay has a decision that says why.
var larger = []struct {
	pkg      string
	lines    int
	decision string
}{
	{"server/lease", 1817, "0036-a-package-ends-where-a-transaction-does.md"},
	{"server/identity", 2500, "0036-a-package-ends-where-a-transaction-does.md"},
	{"storage/boltstore", 1888, "0032-a-cluster-node-is-composed-of-parts.md"},
}

// file is one parsed Go file of ours.
type file struct {
	path   string // relative to the root of the module
	syntax *ast.File
	test   bool
	lines  int
	code   int // lines that are neither blank nor only a comment
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
			test: strings.HasSuffix(name, "_test.go"), lines: strings.Count(string(text), "\n"), code: codeLines(string(text)),
		})
		return nil
	})
	return files, err
})

// codeLines counts the lines that are neither blank nor only a comment.
func codeLines(text string) int {
	n := 0
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			n++
		}
	}
	return n
}

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
		{"replication", "cluster"}, {"replication", "server/replicated"}, {"server/replicated", "replication/link"}, {"server/system", "replication"},
		{"server/policy", "server"}, {"engines/kv", "engines/cubbyhole"}, {"engines", "server"}, {"storage", "proto/logpb"},
		{"storage/boltstore", "storage/fsm"}, {"cluster", "server"}, {"cluster", "storage/barrier"}, {"cmd/coffer", "test/harness"},
		{"cmd/coffer/command/kv", "server"}, {"cmd/coffer/node", "cmd/coffer/command"},
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
	code := map[string]int{}
	for _, f := range files {
		if !f.test && !f.generated() {
			code[f.pkg()] += f.code
		}
		if !f.test && !f.generated() && f.lines > maxLines {
			t.Errorf("%s has %d lines, the limit is %d", f.path, f.lines, maxLines)
		}
	}
	for _, row := range larger {
		switch n := code[row.pkg]; {
		case n > row.lines:
			t.Errorf("package %s has %d lines of code, at most %d are left from before: cut it", row.pkg, n, row.lines)
		case n <= maxPackageLines:
			t.Errorf("package %s has %d lines of code now: take it out of the table", row.pkg, n)
		}
		if row.decision != "" {
			if _, err := os.Stat(filepath.Join("../../docs/adr", row.decision)); err != nil {
				t.Errorf("package %s: %v", row.pkg, err)
			}
		}
		delete(code, row.pkg)
	}
	for pkg, n := range code {
		if n > maxPackageLines {
			t.Errorf("package %s has %d lines of code, the limit is %d: cut it where an idea ends", pkg, n, maxPackageLines)
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
