package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/coffer-project/coffer/test/harness"
)

// block is a fenced block of a page of docs/, or of README.md.
type block struct{ kind, text string }

var fenced = regexp.MustCompile("(?ms)^ *```([a-z]*)\\n(.*?)^ *```$")

// blocks returns the blocks of all pages by name, such as "kv.md sh 1": the first block of commands of docs/kv.md.
func blocks(t *testing.T) map[string]block {
	t.Helper()
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]block{}
	for _, file := range append(pages, "../../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		page, counts := filepath.Base(file), map[string]int{}
		for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
			counts[m[1]]++
			all[fmt.Sprintf("%s %s %d", page, m[1], counts[m[1]])] = block{m[1], m[2]}
		}
	}
	return all
}

// TestBlocks holds every block of the documentation to something that checks it: a script in testdata runs its commands, or the reader of its
// language takes it. The others are in testdata/blocks.list, with the reason: that list only shrinks.
func TestBlocks(t *testing.T) {
	listed := map[string]bool{}
	text, err := os.ReadFile("testdata/blocks.list")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if name, reason, found := strings.Cut(strings.TrimSpace(line), " : "); found && name[0] != '#' && reason != "" {
			listed[name] = true
		}
	}
	ran := blocksRun(t)
	for name, b := range blocks(t) {
		var problem string
		switch b.kind {
		case "mermaid", "text", "console": // pictures, templates and output
			continue
		case "sh":
			if !ran[name] && !strings.HasPrefix(b.text, "coffer server -dev") && !alreadySet.MatchString(b.text) {
				problem = "no script runs it"
			}
		case "hcl": // cmd/coffer/config reads the others
			if strings.HasPrefix(b.text, "path ") {
				problem = formatted(t, b.text)
			}
		case "json":
			if !json.Valid([]byte(b.text)) {
				problem = "it is not valid"
			}
		case "python":
			if python, err := exec.LookPath("python3"); err == nil {
				problem = run(t, python, "-c", "import sys; compile(sys.argv[1], 'block', 'exec')", b.text)
			}
		case "yaml":
			problem = readable(b.text)
		default:
			problem = "nothing reads it"
		}
		if (problem != "") != listed[name] {
			t.Errorf("docs: block %q: in testdata/blocks.list: %v; otherwise: %q", name, listed[name], problem)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("testdata/blocks.list: there is no block %q", name)
	}
}

var (
	alreadySet = regexp.MustCompile(`^ *export [^\n]*\n$`) // as scripts begin: with a development server, and its address and token
	pageLine   = regexp.MustCompile(`^page (\S+)`)
	runLine    = regexp.MustCompile(`^(?:exec|stdin|eventually) .*?\b([0-9]+)\.sh`)
)

// blocksRun returns the names of the blocks that scripts run.
func blocksRun(t *testing.T) map[string]bool {
	t.Helper()
	scripts, err := filepath.Glob("testdata/live/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]bool{}
	for _, file := range scripts {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		page := ""
		for line := range strings.Lines(string(text)) {
			if m := pageLine.FindStringSubmatch(line); m != nil {
				page = filepath.Base(m[1])
			}
			if m := runLine.FindStringSubmatch(line); m != nil {
				ran[page+" sh "+m[1]] = true
			}
		}
	}
	return ran
}

// formatted returns why a policy is not one.
func formatted(t *testing.T, policy string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.hcl")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return run(t, harness.Binary(t), "policy", "fmt", file)
}

// run returns what a program says if it fails.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return ""
}

// readable returns why YAML is not.
func readable(text string) string {
	d := yaml.NewDecoder(strings.NewReader(text))
	for {
		var any any
		switch err := d.Decode(&any); err {
		case nil:
		case io.EOF:
			return ""
		default:
			return err.Error()
		}
	}
}
