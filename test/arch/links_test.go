package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	codeBlock  = regexp.MustCompile("(?s)```.*?```")
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	namedPlace = regexp.MustCompile(`<a id="([^"]+)">`)
	notInSlug  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
	localLink  = regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]+))?\)`)
)

// TestLinksOfTheDocumentation: every link to a file or a heading leads somewhere.
func TestLinksOfTheDocumentation(t *testing.T) {
	root := filepath.Join("..", "..")
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	texts, anchors := map[string]string{}, map[string]map[string]bool{}
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := codeBlock.ReplaceAllString(string(raw), "")
		texts[page], anchors[page] = text, map[string]bool{}
		for _, found := range heading.FindAllStringSubmatch(text, -1) {
			slug := notInSlug.ReplaceAllString(strings.ToLower(found[1]), "")
			anchors[page][strings.ReplaceAll(slug, " ", "-")] = true
		}
		for _, found := range namedPlace.FindAllStringSubmatch(text, -1) {
			anchors[page][found[1]] = true
		}
	}
	links := 0
	for _, page := range pages {
		for _, found := range localLink.FindAllStringSubmatch(texts[page], -1) {
			links++
			to := page
			if found[1] != "" {
				to = filepath.Join(filepath.Dir(page), found[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if known, ok := anchors[to]; ok && found[2] != "" && !known[found[2]] {
				t.Errorf("%s: there is no heading %q in %s", page, found[2], to)
			}
		}
	}
	if links < 100 {
		t.Errorf("only %d links were found", links)
	}
}
