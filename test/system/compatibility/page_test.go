// Package compatibility_test writes the tables of docs/compatibility.md: from a running server, from the manifests of the clients that tests
// use, and from the reasons in testdata. Start reading at TestPage.
package compatibility_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

var update = flag.Bool("update", false, "write the page")

func TestMain(m *testing.M) { harness.Main(m) }

const root = "../../.."

// TestPage compares the page with what is. Nothing of it is written by hand between the marks "begin" and "end" of a table.
func TestPage(t *testing.T) {
	s := newServer(t)
	var data struct {
		Clients []client
		Types   []types
	}
	decode(t, "testdata/page.json", &data)
	tables := map[string]string{
		"clients":    clients(t, data.Clients),
		"types":      s.types(data.Types),
		"operations": s.operations(),
		"hvac":       hvac(t),
	}
	file := filepath.Join(root, "docs/compatibility.md")
	page := read(t, file)
	for name, table := range tables {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, found := strings.Cut(page, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("the page has no marks for the table %q", name)
		}
		page = before + begin + "\n" + table + "\n" + end + after
	}
	switch {
	case page == read(t, file):
	case *update && !t.Failed():
		if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("docs/compatibility.md is stale: go test ./test/system/compatibility -update writes it")
	}
}

// client is a row of the table of clients. Its version is given, or in a file: after its name there.
type client struct{ Client, File, Name, Shown, Version, Tested string }

func clients(t *testing.T, rows []client) string {
	b := table("client", "version", "tested by")
	for _, c := range rows {
		if c.File != "" {
			found := regexp.MustCompile(regexp.QuoteMeta(c.Name) + `[\s"]*(v?[0-9][0-9.]*[0-9])`).FindStringSubmatch(read(t, filepath.Join(root, c.File)))
			if found == nil {
				t.Errorf("%s does not name %s", c.File, c.Name)
				continue
			}
			c.Version = c.Shown + found[1]
		}
		b.row(c.Client, c.Version, c.Tested)
	}
	return b.String()
}

// types is a row of the table of types: secrets engines, auth methods, or features, which are not tried.
type types struct {
	Kind    string
	Types   []string
	Here    string
	Plugin  bool // comes with Coffer as a plugin
	Foreign bool // does not come with it
}

// types tries whether the server has the types that are said to be built in, and only those.
func (s server) types(rows []types) string {
	b := table("secrets engines", "here")
	methods, features := table("auth methods", "here"), table("other parts", "here")
	shipped := read(s.t, filepath.Join(root, "server/plugin/release.txt"))
	for _, r := range rows {
		to, prefix, kind := b, "sys/mounts/x-", "secret"
		switch r.Kind {
		case "method":
			to, prefix, kind = methods, "sys/auth/x-", "auth"
		case "feature":
			features.row(strings.Join(r.Types, ", "), r.Here)
			continue
		}
		for _, name := range r.Types {
			if !r.Plugin { // those may have been built beside the server, or not
				status := s.do("POST", prefix+name, map[string]any{"type": name}).Status
				if r.Foreign == (status < 300) {
					s.t.Errorf("testdata/page.json: %s %s: enabling it answers %d", r.Kind, name, status)
				}
			}
			if r.Plugin != regexp.MustCompile(`(?m)^`+kind+` +`+name+` `).MatchString(shipped) {
				s.t.Errorf("testdata/page.json: %s %s: whether it is a plugin that comes with Coffer is not as in server/plugin/release.txt", r.Kind, name)
			}
		}
		to.row("`"+strings.Join(r.Types, "`, `")+"`", r.Here)
	}
	return b.String() + "\n" + methods.String() + "\n" + features.String()
}

// hvac is what came of hvac's own suite when it was run last; test/e2e runs it.
func hvac(t *testing.T) string {
	var suite struct {
		Numbers  struct{ Passed, Failed, Skipped int }
		LeftOut  []reasoned `json:"left_out"`
		Failures []reasoned
	}
	decode(t, filepath.Join(root, "test/e2e/clients/hvac_suite.json"), &suite)
	n, b := suite.Numbers, table("tests", "why")
	for _, r := range suite.Failures {
		b.row(fmt.Sprintf("%d fail", len(r.Tests)), r.Reason)
	}
	for _, r := range suite.LeftOut {
		var names []string
		for _, test := range r.Tests {
			_, name, whole := strings.Cut(test, "::")
			if !whole {
				name = strings.TrimPrefix(strings.TrimSuffix(filepath.Base(test), ".py"), "test_")
			}
			names = append(names, "`"+name[strings.LastIndex(name, ":")+1:]+"`")
		}
		b.row("not run: "+strings.Join(names, ", "), r.Reason)
	}
	return fmt.Sprintf("hvac's own suite of integration tests: %d pass, %d fail, %d are skipped by it.\n\n", n.Passed, n.Failed, n.Skipped) + b.String()
}

type reasoned struct {
	Reason string
	Tests  []string
}

// server is a server with a mount of each built-in type.
type server struct {
	t *testing.T
	c *harness.Cluster
}

func newServer(t *testing.T) server {
	s := server{t, harness.NewCluster(t, 1, harness.Options{})}
	for path, body := range map[string]any{
		"sys/mounts/secret": map[string]any{"type": "kv-v2"}, "sys/mounts/kv1": map[string]any{"type": "kv"}, "sys/mounts/aws": map[string]any{"type": "aws"},
		"sys/auth/approle": map[string]any{"type": "approle"}, "sys/auth/userpass": map[string]any{"type": "userpass"}, "sys/auth/saml": map[string]any{"type": "saml"}, "sys/auth/cert": map[string]any{"type": "cert"},
	} {
		if a := s.do("POST", path, body); a.Status >= 300 {
			t.Fatalf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	return s
}

func (s server) do(method, path string, body any) harness.Answer {
	a, err := s.c.Nodes[0].Do(s.t.Context(), method, "/v1/"+path, s.c.RootToken, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

var parameter = regexp.MustCompile(`\{[^}]*\}`)

// described returns the operations of the server's own description, such as "GET /sys/mounts/{}".
func (s server) described() map[string]bool {
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	s.do("GET", "sys/internal/specs/openapi", nil).Decode(s.t, &document)
	out := map[string]bool{}
	for path, methods := range document.Paths {
		path = parameter.ReplaceAllString(path, "{}")
		for method := range methods {
			if folder, is := strings.CutSuffix(path, "/"); is {
				out["LIST "+folder] = true
			} else {
				out[strings.ToUpper(method)+" "+path] = true
			}
		}
	}
	return out
}

// operations compares what the family documents with what the server describes.
func (s server) operations() string {
	here := s.described()
	b, missing := table("part", "documented", "here"), table("not here", "why")
	var reasons []string
	lacking := map[string][]string{} // by reason
	part, documented, present := "", 0, 0
	done := func() {
		if part != "" {
			b.row(part, fmt.Sprint(documented), fmt.Sprint(present))
		}
	}
	for line := range strings.Lines(read(s.t, "testdata/operations.txt")) {
		line = strings.TrimSpace(line)
		if name, is := strings.CutPrefix(line, "== "); is {
			done()
			part, documented, present = name, 0, 0
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		operation, reason, _ := strings.Cut(line, " : ")
		words := strings.Fields(operation)
		path := words[len(words)-1]
		for _, method := range words[:len(words)-1] {
			documented++
			if here[method+" "+path] != (reason == "") {
				s.t.Errorf("testdata/operations.txt: whether there is %s %s is not as the line says", method, path)
			}
			if reason == "" {
				present++
			}
		}
		if reason != "" {
			if lacking[reason] == nil {
				reasons = append(reasons, reason)
			}
			if shown := "`" + strings.TrimPrefix(path, "/") + "`"; !slices.Contains(lacking[reason], shown) {
				lacking[reason] = append(lacking[reason], shown)
			}
		}
	}
	done()
	for _, reason := range reasons {
		missing.row(strings.Join(lacking[reason], ", "), reason)
	}
	return b.String() + "\n" + missing.String()
}

// rows is a table of Markdown.
type rows struct{ strings.Builder }

func table(heads ...string) *rows {
	b := &rows{}
	b.row(heads...)
	b.WriteString(strings.Repeat("|---", len(heads)) + "|\n")
	return b
}

func (b *rows) row(cells ...string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func decode(t *testing.T, file string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, file)), into); err != nil {
		t.Fatalf("decoding %s: %v", file, err)
	}
}
