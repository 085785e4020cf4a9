package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

var update = flag.Bool("update", false, "write docs/cli.md")

const referenceHead = `# Command line

Every command of the program, with the help that it prints. ` + "`coffer COMMAND -h`" + ` prints the same. A test writes this page from the program:
` + "`go test ./cmd/coffer -run Reference -update`" + `.

Exit statuses: 0 done, 1 the command line or this machine is at fault, 2 the server rejected the request or was not reached.

`

// TestReference compares docs/cli.md with the help of every command.
func TestReference(t *testing.T) {
	var index, body strings.Builder
	index.WriteString("| command | what it does |\n|---|---|\n")
	program := root()
	fmt.Fprintf(&body, "\n## %s\n\n```text\n%s```\n", program.Name, helpOf(t))
	describe(t, program, nil, &index, &body)
	page := referenceHead + index.String() + body.String()
	file := filepath.Join("..", "..", "docs", "cli.md")
	if *update {
		if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if there, err := os.ReadFile(file); err != nil || string(there) != page {
		t.Errorf("docs/cli.md is stale (%v): go test ./cmd/coffer -run Reference -update writes it", err)
	}
}

// describe adds the commands below one, in the order of its help.
func describe(t *testing.T, parent *cli.Command, names []string, index, body *strings.Builder) {
	t.Helper()
	for _, c := range parent.Commands {
		if c.Hidden || c.Name == "help" && c.Usage == cli.UsageCommandHelp {
			continue
		}
		words := append(names[:len(names):len(names)], c.Name)
		title := "coffer " + strings.Join(words, " ")
		anchor := strings.ReplaceAll(title, " ", "-")
		fmt.Fprintf(index, "| [`%s`](#%s) | %s |\n", title, anchor, strings.ReplaceAll(c.Usage, "|", "\\|"))
		fmt.Fprintf(body, "\n## %s\n\n```text\n%s```\n", title, helpOf(t, words...))
		describe(t, c, words, index, body)
	}
}

// helpOf returns what a command prints when asked for help.
func helpOf(t *testing.T, words ...string) string {
	t.Helper()
	clearEnv(t)
	var out, problems strings.Builder
	if status := run(t.Context(), append(append([]string{"coffer"}, words...), "-h"), strings.NewReader(""), &out, &problems); status != 0 {
		t.Fatalf("coffer %v -h ended with %d: %s", words, status, problems.String())
	}
	return out.String()
}
