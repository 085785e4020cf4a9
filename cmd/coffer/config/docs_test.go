package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/config/known"
)

// docs/configuration.md has every key of Vault and OpenBao that has no effect, or is rejected, with what happens instead.
func TestKnownKeysAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	row := func(stanza, key, what, instead string) {
		if stanza != "" {
			key = stanza + "." + key
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", key, what, instead))
	}
	for stanza, keys := range known.Ignored {
		for key, k := range keys {
			row(stanza, key, "no effect", k.Instead)
		}
	}
	for stanza, keys := range known.Rejected {
		for key, instead := range keys {
			row(stanza, key, "rejected", instead)
		}
	}
	slices.Sort(rows)
	if all := strings.Join(rows, "\n"); !strings.Contains(string(text), all) {
		t.Errorf("docs/configuration.md must have these rows:\n%s", all)
	}
}
