package secretsync_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestRules(t *testing.T) { harness.CheckRules(t, "test/secretsync", 100) }

// TestEveryPathHasARule compares the paths in RULES.md with those that a server documents.
func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	path := regexp.MustCompile("^`(GET|POST|PATCH|DELETE) (sys/sync/[\\w/{}-]+)`")
	ruled, served := map[string]bool{}, map[string]bool{}
	for _, r := range harness.Rules(t) {
		if m := path.FindStringSubmatch(r.Text); m != nil {
			ruled[m[1]+" "+m[2]] = true
		}
	}
	var doc struct{ Paths map[string]map[string]any }
	c := harness.NewCluster(t, 1, harness.Options{Prefix: "doc"})
	c.Nodes[0].MustDo("GET", "/v1/sys/internal/specs/openapi", nil).Decode(t, &doc)
	for name, about := range doc.Paths {
		name = strings.Trim(name, "/")
		for method := range about {
			if rule := strings.ToUpper(method) + " " + name; path.MatchString("`" + rule + "`") {
				served[rule] = true
			}
		}
	}
	if got, want := keysOf(ruled), keysOf(served); !slices.Equal(got, want) {
		t.Errorf("rules for\n%q\nserved are\n%q", got, want)
	}
}
