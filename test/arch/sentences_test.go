package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxWords is how many words a sentence of the documentation may have. A name in back quotes and a link count as one word each.
const maxWords = 30

// longer are pages with longer sentences, and how many: the cells of a table that list packages. The numbers only get smaller.
var longer = map[string]int{"architecture.md": 6}

var (
	generated   = regexp.MustCompile(`(?s)<!-- begin .*?<!-- end [^>]*>`)
	inBackticks = regexp.MustCompile("`[^`]*`")
	linkTarget  = regexp.MustCompile(`\]\([^)]*\)`)
	block       = regexp.MustCompile(`\n\s*\n|\n\s*(?:[-*]|\d+\.) |\n#|\|`)
	sentenceEnd = regexp.MustCompile(`[.!?:;]\s+`)
)

// TestSentences: no sentence of a page is longer than maxWords. The changelog, the decisions, and the pages that tests write from the program
// are left out.
func TestSentences(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			name := filepath.Base(page)
			if name == "CHANGELOG.md" || name == "api.md" || name == "cli.md" {
				continue
			}
			raw, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			found := longSentences(string(raw))
			if n := len(found); n > longer[name] {
				t.Errorf("%s has %d sentences of more than %d words, at most %d are left from before:\n%s", name, n, maxWords, longer[name], strings.Join(found, "\n"))
			} else if n < longer[name] {
				t.Errorf("%s has %d sentences of more than %d words now: write that into the table, instead of %d", name, n, maxWords, longer[name])
			}
		}
	}
}

func longSentences(text string) []string {
	text = generated.ReplaceAllString(codeBlock.ReplaceAllString(text, ""), "")
	text = linkTarget.ReplaceAllString(inBackticks.ReplaceAllString(text, "X"), "]")
	var found []string
	for _, paragraph := range block.Split(text, -1) {
		for _, sentence := range sentenceEnd.Split(paragraph, -1) {
			if len(strings.Fields(sentence)) > maxWords {
				found = append(found, strings.Join(strings.Fields(sentence), " "))
			}
		}
	}
	return found
}
