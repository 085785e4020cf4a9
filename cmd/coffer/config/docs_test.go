package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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

var (
	hclBlock    = regexp.MustCompile("(?ms)^ *```hcl\n(.*?)^ *```$")
	storagePath = regexp.MustCompile(`(?s)storage "raft" \{[^}]*\bpath += `)
	seal        = regexp.MustCompile(`(?ms)^seal ".*?^}[^\n]*\n`)
)

// The configuration of every page is one that a server takes, with what the page leaves out. Of several seals each is tried alone.
func TestDocumentedConfiguration(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range hclBlock.FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(m[1], "path ") { // a policy
				continue
			}
			seals, rest := seal.FindAllString(m[1], -1), seal.ReplaceAllString(m[1], "")
			if seals == nil {
				seals = []string{""}
			}
			for _, one := range seals {
				seen++
				if err := complete(t, rest+one); err != nil {
					t.Errorf("%s: %v in:\n%s", filepath.Base(page), err, rest+one)
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d configurations were found", seen)
	}
}

// complete returns what is wrong with a part of a configuration.
func complete(t *testing.T, text string) error {
	t.Helper()
	const address = "address = \"127.0.0.1:8200\"\ntls_disable = true\n"
	text = strings.ReplaceAll(text, "# …", address)
	text = strings.ReplaceAll(text, "…", strings.Repeat("0", 64)) // a checksum
	for missing, stanza := range map[string]string{"listener \"": "listener \"tcp\" {\n" + address + "}\n", "storage \"": "storage \"raft\" {}\n"} {
		if !strings.Contains(text, missing) {
			text += stanza
		}
	}
	if !storagePath.MatchString(text) {
		text = strings.Replace(text, `storage "raft" {`, "storage \"raft\" {\npath = \"/var/lib/coffer\"\n", 1)
	}
	if strings.Contains(text, "initialize ") {
		text += "seal \"awskms\" {\nregion = \"eu-west-1\"\nkms_key_id = \"alias/coffer\"\n}\n"
	}
	file := filepath.Join(t.TempDir(), "coffer.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file)
	if err == nil {
		err = c.Complete()
	}
	return err
}
