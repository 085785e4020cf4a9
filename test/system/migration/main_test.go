// Package migration_test moves data to real clusters with coffer import vault: from another real cluster, and from a stand-in that responds as
// other servers of the Vault family do. Start reading at TestImportFromCoffer.
package migration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, func() {}) }

const patience = time.Minute

type fields = map[string]any

// mover runs the command.
type mover struct {
	t      *testing.T
	source []string // flags
	to     *harness.Cluster
	ledger string
	dir    string
}

// newMover is for imports from one cluster to another.
func newMover(t *testing.T, from, to *harness.Cluster) *mover {
	m := &mover{t: t, to: to, dir: t.TempDir()}
	m.ledger = filepath.Join(m.dir, "ledger.jsonl")
	m.source = []string{"-rate=5000", "-source-address=" + from.Nodes[0].URL, "-source-ca-cert=" + from.CAFile, "-source-token-file=" + m.file("token", from.RootToken)}
	return m
}

func (m *mover) file(name, text string) string {
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

func (m *mover) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, harness.Binary(m.t), append(append([]string{"import", "vault", "-ledger=" + m.ledger}, m.source...), args...)...)
	cmd.Env = append(os.Environ(), "COFFER_ADDR="+m.to.Nodes[0].URL, "COFFER_CACERT="+m.to.CAFile, "COFFER_TOKEN="+m.to.RootToken, "HOME="+m.dir)
	return cmd
}

// report is what the command prints with -format=json.
type report struct {
	Actions []struct{ Action, Kind, Namespace, Name, Reason string }
	Totals  map[string]map[string]int
	Written int
	Source  int `json:"source_requests"`
}

// run runs the command, which has to end with a status, and returns what it printed.
func (m *mover) run(want int, args ...string) report {
	m.t.Helper()
	var out, errs bytes.Buffer
	cmd := m.command(m.t.Context(), append(args, "-format=json")...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != want {
		m.t.Fatalf("import %v: status %d, want %d: %v\n%s\n%s", args, got, want, err, errs.String(), out.String())
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		m.t.Fatalf("import %v: %v\n%s\n%s", args, err, errs.String(), out.String())
	}
	return r
}

// reason returns why something was done about a thing, and fails the test if that was not it.
func (r report) reason(t *testing.T, action, kind, namespace, name string) string {
	t.Helper()
	for _, a := range r.Actions {
		if a.Kind == kind && a.Namespace == namespace && a.Name == name {
			if a.Action != action {
				t.Errorf("%s %s %s: %s (%s), want %s", kind, namespace, name, a.Action, a.Reason, action)
			}
			return a.Reason
		}
	}
	t.Errorf("%s %s %s is not in the report, want %s; there are %+v", kind, namespace, name, action, r.Actions)
	return ""
}

// wantTotal checks how many things of a kind something was done about.
func (r report) wantTotal(t *testing.T, kind, action string, want int) {
	t.Helper()
	if got := r.Totals[kind][action]; got != want {
		t.Errorf("%d of kind %s: %s, want %d; totals %v", got, kind, action, want, r.Totals)
	}
}

// place is a cluster, with the right to do everything.
type place struct {
	t *testing.T
	c *harness.Cluster
}

func (p place) do(want int, method, path, token string, body any) fields {
	p.t.Helper()
	a, err := p.c.Nodes[0].Do(p.t.Context(), method, "/v1/"+path, token, body)
	if err != nil {
		p.t.Fatal(err)
	}
	if a.Status != want && (want != 0 || a.Status >= 300) {
		p.t.Fatalf("%s %s: status %d: %s", method, path, a.Status, a.Body)
	}
	var out struct{ Data, Auth fields }
	if len(a.Body) > 0 {
		a.Decode(p.t, &out)
	}
	if out.Auth != nil {
		return out.Auth
	}
	return out.Data
}

func (p place) write(path string, body any) fields {
	p.t.Helper()
	return p.do(0, "POST", path, p.c.RootToken, body)
}

func (p place) read(path string) fields {
	p.t.Helper()
	return p.do(0, "GET", path, p.c.RootToken, nil)
}

// same fails the test unless both clusters show the same at a path, but for some fields.
func same(t *testing.T, a, b place, path string, but ...string) {
	t.Helper()
	one, other := a.read(path), b.read(path)
	for _, name := range but {
		delete(one, name)
		delete(other, name)
	}
	if !reflect.DeepEqual(one, other) {
		t.Errorf("%s differs:\n  source      %v\n  destination %v", path, one, other)
	}
}

func number(n int) string { return fmt.Sprintf("%03d", n) }
