package arch_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The versions of clients that docs/compatibility.md names are those that the tests use.
func TestVersionsOfClients(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("../../docs/compatibility.md")
	for _, tt := range []struct{ file, pattern, row string }{
		{"../go.mod", `github.com/openbao/openbao/api/v2 (v[0-9.]+)`, "github.com/openbao/openbao/api/v2 "},
		{"../go.mod", `github.com/hashicorp/vault/api (v[0-9.]+)`, "github.com/hashicorp/vault/api "},
		{"../e2e/clients/requirements.txt", `hvac==([0-9.]+)`, "hvac (Python) | "},
		{"../e2e/clients/package.json", `"node-vault": "([0-9.]+)"`, "node-vault (JavaScript) | "},
	} {
		version := regexp.MustCompile(tt.pattern).FindStringSubmatch(read(tt.file))
		if version == nil {
			t.Errorf("%s has nothing like %s", tt.file, tt.pattern)
		} else if !strings.Contains(page, tt.row+version[1]+" ") {
			t.Errorf("docs/compatibility.md does not say %q", tt.row+version[1])
		}
	}
}
