package cloud_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestRules(t *testing.T) { harness.CheckRules(t, "test/cloud", 100) }

// TestEveryPathHasARule compares the paths in RULES.md with those that a server documents.
func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	path := regexp.MustCompile("^`(GET|POST|DELETE) ([\\w/{}-]+)`")
	ruled, served := map[string]bool{}, map[string]bool{}
	for _, r := range harness.Rules(t) {
		if m := path.FindStringSubmatch(r.Text); m != nil {
			ruled[m[1]+" "+m[2]] = true
		}
	}
	var doc struct{ Paths map[string]map[string]any }
	m := enable(t, alone(t, "doc"), "cloud")
	m.node.MustDo("GET", "/v1/sys/internal/specs/openapi", nil).Decode(t, &doc)
	for name, about := range doc.Paths {
		if rest, ok := strings.CutPrefix(name, "/cloud/"); ok {
			for method := range about {
				if method = strings.ToUpper(method); path.MatchString("`" + method + " x`") {
					served[method+" "+rest] = true
				}
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(ruled)), slices.Sorted(maps.Keys(served)); !slices.Equal(got, want) {
		t.Errorf("rules for\n%q\nserved are\n%q", got, want)
	}
}
