package arch_test

import (
	"go/ast"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// banned are words that say less than the glossary's (docs/glossary.md), and how often they still stand in comments, in texts that
// users see, and in the documentation. The numbers only get smaller: a program, a user or a value is named by its term.
var banned = map[string]int{
	"somebody": 8, "nobody": 10, "whoever": 6, "anew": 1, "in vain": 0,
	"trail": 4, "believed": 0, "rumour": 0, "senseless": 0, "hand on": 0, "hands on": 0, "handed on": 1,
}

func TestWords(t *testing.T) {
	found := map[string]int{}
	expressions := map[string]*regexp.Regexp{}
	for word := range banned {
		expressions[word] = regexp.MustCompile(`(?i)\b` + word + `\b`)
	}
	where := map[string][]string{}
	count := func(name, text string) {
		lower := strings.ToLower(text)
		for word, e := range expressions {
			if !strings.Contains(lower, word) { // which is far faster than the expression
				continue
			}
			if n := len(e.FindAllStringIndex(text, -1)); n > 0 {
				found[word] += n
				where[word] = append(where[word], name)
			}
		}
	}
	_, files := sources(t)
	for _, f := range files {
		if f.generated() || f.pkg() == "test/arch" {
			continue
		}
		for _, c := range f.syntax.Comments {
			count(f.path, c.Text())
		}
		if f.test || strings.HasPrefix(f.path, "test/") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING {
				count(f.path, s.Value)
			}
			return true
		})
	}
	texts(t, count)
	for _, word := range slices.Sorted(maps.Keys(banned)) {
		switch n := found[word]; {
		case n > banned[word]:
			t.Errorf("%q stands in %d places, at most %d are left from before: use the glossary's term. Files: %s", word, n, banned[word],
				strings.Join(slices.Compact(slices.Sorted(slices.Values(where[word]))), " "))
		case n < banned[word]:
			t.Errorf("%q stands in %d places now: write that into the table, instead of %d", word, n, banned[word])
		}
	}
}

// texts counts words of the documentation and of the web UI's sources. Decisions and the changelog tell what was.
func texts(t *testing.T, count func(name, text string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	for _, top := range []string{"README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "server/ui/web/src", "replication", "cluster"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			decided := strings.HasPrefix(relative, filepath.Join("docs", "adr")) || filepath.Base(name) == "CHANGELOG.md"
			if decided || !slices.Contains([]string{".md", ".svelte", ".ts"}, filepath.Ext(name)) {
				return nil
			}
			text, err := os.ReadFile(name)
			if err == nil {
				count(filepath.ToSlash(relative), string(text))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
