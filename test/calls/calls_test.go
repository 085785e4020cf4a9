// Package calls_test counts the calls of our own functions that one request makes: `make calls`. The server is built with counters
// in all our packages; what two runs differ by, which differ by 300 requests, belongs to the requests. Functions that are called less
// than 0.9 times per request are work in the background and do not count.
package calls_test

import (
	"bufio"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const (
	module   = "github.com/coffer-project/coffer/"
	requests = 300
)

// TestCalls writes a table, and with COFFER_CALLS=all each function of each request.
func TestCalls(t *testing.T) {
	if os.Getenv("COFFER_CALLS") == "" {
		t.Skip("builds a server with counters: make calls")
	}
	binary := filepath.Join(t.TempDir(), "coffer")
	build := exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"...", "-o", binary, "./cmd/coffer")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	base := counts(t, binary, func(*harness.Node) {})
	fmt.Println("| request | own functions | files | packages | own calls |\n|---|---:|---:|---:|---:|")
	for _, r := range []struct {
		name string
		send func(n *harness.Node)
	}{
		{"KV v2 write", func(n *harness.Node) {
			n.MustDo("POST", "/v1/kv/data/a", map[string]any{"data": map[string]any{"password": "x"}})
		}},
		{"KV v2 read", func(n *harness.Node) { n.MustDo("GET", "/v1/kv/data/a", nil) }},
		{"token create", func(n *harness.Node) { n.MustDo("POST", "/v1/auth/token/create", map[string]any{}) }},
	} {
		with := counts(t, binary, func(n *harness.Node) {
			for range requests {
				r.send(n)
			}
		})
		report(r.name, base, with)
	}
}

func report(name string, base, with map[function]int64) {
	type row struct {
		function
		calls float64
	}
	var rows []row
	files, packages, sum := map[string]bool{}, map[string]bool{}, 0.0
	for f, n := range with {
		if calls := float64(n-base[f]) / requests; calls >= 0.9 {
			rows = append(rows, row{f, calls})
			files[f.file], packages[filepath.Dir(f.file)] = true, true
			sum += calls
		}
	}
	fmt.Printf("| %s | %d | %d | %d | %.0f |\n", name, len(rows), len(files), len(packages), sum)
	if os.Getenv("COFFER_CALLS") != "all" {
		return
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(-cmp.Compare(a.calls, b.calls), cmp.Compare(a.file, b.file), cmp.Compare(a.name, b.name))
	})
	for _, r := range rows {
		fmt.Printf("%8.1f %s %s\n", r.calls, r.file, r.name)
	}
}

// counts runs a server, has it serve, and returns how often each function was called.
func counts(t *testing.T, binary string, serve func(n *harness.Node)) map[function]int64 {
	dir := t.TempDir()
	t.Setenv("GOCOVERDIR", dir)
	c := harness.NewCluster(t, 1, harness.Options{Binary: binary})
	n := c.Leader()
	n.MustDo("POST", "/v1/sys/mounts/kv", map[string]any{"type": "kv", "options": map[string]string{"version": "2"}})
	n.MustDo("POST", "/v1/kv/data/a", map[string]any{"data": map[string]any{"password": "x"}})
	serve(n)
	n.Stop()
	profile := filepath.Join(t.TempDir(), "profile")
	if out, err := exec.Command("go", "tool", "covdata", "textfmt", "-i="+dir, "-o="+profile).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return read(t, profile)
}

// function is one with a name, or a literal.
type function struct{ file, name string }

// read takes the count of the first block of each function.
func read(t *testing.T, profile string) map[function]int64 {
	f, err := os.Open(profile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	type block struct {
		line, column int
		count        int64
	}
	blocks := map[string][]block{}
	for s := bufio.NewScanner(f); s.Scan(); {
		file, rest, _ := strings.Cut(s.Text(), ":")
		var b block
		var l, c, statements int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.line, &b.column, &l, &c, &statements, &b.count); err == nil {
			blocks[strings.TrimPrefix(file, module)] = append(blocks[strings.TrimPrefix(file, module)], b)
		}
	}
	out := map[function]int64{}
	for file, of := range blocks {
		slices.SortFunc(of, func(a, b block) int { return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column)) })
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, filepath.Join("..", "..", file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			var body *ast.BlockStmt
			name := ""
			switch n := n.(type) {
			case *ast.FuncDecl:
				body, name = n.Body, n.Name.Name
			case *ast.FuncLit:
				body = n.Body
				name = "func"
			}
			if body == nil {
				return true
			}
			at, end := set.Position(body.Pos()), set.Position(body.End())
			for _, b := range of {
				if (b.line > at.Line || b.line == at.Line && b.column >= at.Column) && (b.line < end.Line || b.line == end.Line && b.column <= end.Column) {
					out[function{file, fmt.Sprintf("%s:%d", name, at.Line)}] += b.count
					break
				}
			}
			return true
		})
	}
	return out
}
