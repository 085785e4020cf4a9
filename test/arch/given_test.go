package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestGivenModules: the project is built on these; the product itself imports each of them.
func TestGivenModules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{
		"github.com/hashicorp/raft", "github.com/hashicorp/raft-boltdb/v2", "google.golang.org/grpc", "github.com/gorilla/mux", "github.com/russellhaering/gosaml2",
	} {
		if !regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(module) + ` v[0-9.]+$`).Match(text) {
			t.Errorf("go.mod does not require %s directly", module)
		}
	}
}
