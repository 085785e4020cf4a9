package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

var (
	fencedBlock = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$")
	inlineCode  = regexp.MustCompile("`(coffer [^`]+)`")
	comment     = regexp.MustCompile(`(?m)(^|\s)#.*|^.*\b(?:kubectl|helm) .*`) // or a command of another program with our name in it
	quoted      = regexp.MustCompile(`'[^']*'|"[^"]*"`)
	hereDoc     = regexp.MustCompile(`(?ms)<<'?([A-Z]+)'?.*?^ *([A-Z]+)$`)
	invocation  = regexp.MustCompile(`(?m)(?:^|[\s(;|])(?:\./(?:us|eu)|coffer) ([a-z-][^|;&<>)\n]*)`)
)

// TestDocumentedCommands holds each command line of the documentation, also those in sentences, to the program: it has the command and the
// flags. The files of docs/deploy that pages name are there.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	deployed := regexp.MustCompile(`\bdocs/deploy/[A-Za-z0-9./_-]+`)
	for _, file := range append(pages, "../../README.md", "../../SECURITY.md") {
		page := filepath.Base(file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if page == "cli.md" || page == "CHANGELOG.md" { // made from the program; of former versions
			continue
		}
		for _, name := range deployed.FindAllString(string(text), -1) {
			if _, err := os.Stat(filepath.Join("../..", name)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, code := range documentedCode(string(text)) {
			for _, m := range invocation.FindAllStringSubmatch(code, -1) {
				checked++
				if problem := unknownIn(strings.Fields(m[1])); problem != "" {
					t.Errorf("%s: coffer %s: there is no %s", page, strings.TrimSpace(m[1]), problem)
				}
			}
		}
	}
	if checked < 400 {
		t.Errorf("only %d command lines were found", checked)
	}
}

// documentedCode returns the commands of a page, without what is no command: comments, texts in quotes, input.
func documentedCode(page string) (all []string) {
	for _, m := range fencedBlock.FindAllStringSubmatch(page, -1) {
		if m[1] == "sh" || m[1] == "console" {
			all = append(all, hereDoc.ReplaceAllString(strings.ReplaceAll(m[2], "\\\n", " "), "TEXT"))
		}
	}
	for _, m := range inlineCode.FindAllStringSubmatch(fencedBlock.ReplaceAllString(page, ""), -1) {
		all = append(all, strings.ReplaceAll(m[1], "\n", " "))
	}
	for i := range all {
		all[i] = comment.ReplaceAllString(quoted.ReplaceAllString(all[i], "TEXT"), "")
	}
	return all
}

// unknownIn returns the first word of a command line that the program does not know, "" if there is none.
func unknownIn(words []string) string {
	at := root()
	flags := at.Flags
	for i, word := range words {
		if word == "--" || word == "…" || i == 0 && word == "completion" { // which is made when the program runs
			return ""
		}
		if name, isFlag := strings.CutPrefix(word, "-"); isFlag && name != "" {
			name, _, _ = strings.Cut(strings.TrimPrefix(name, "-"), "=")
			known := func(f cli.Flag) bool { return slices.Contains(f.Names(), name) }
			if name != "h" && name != "help" && !slices.ContainsFunc(flags, known) {
				return "flag -" + name
			}
			continue
		}
		switch next := at.Command(word); {
		case next != nil:
			at, flags = next, append(flags[:len(flags):len(flags)], next.Flags...)
		case i == 0 || len(at.Commands) > 1 && at.Action == nil:
			return "command " + word
		}
	}
	return ""
}
