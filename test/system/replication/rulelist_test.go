package replication

import (
	"regexp"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/test/harness/rules"
)

func TestRules(t *testing.T) { rules.Check(t, "test/system/replication", 60) }

// TestEveryPathHasARule compares the paths in RULES.md with those that a server documents.
func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	const below = "/sys/replication/"
	path := regexp.MustCompile("`(GET|POST|DELETE) ([\\w/{}-]+)`")
	ruled := map[string]bool{}
	for _, r := range rules.Read(t) {
		for _, m := range path.FindAllStringSubmatch(r.Text, -1) {
			method, name := m[1], m[2]
			if rest, ok := strings.CutPrefix(name, "/"); ok {
				ruled[method+" "+below+rest] = true
				continue
			}
			ruled[method+" "+below+"performance/"+name] = true
			if strings.HasPrefix(name, "primary/") || strings.HasPrefix(name, "secondary/") {
				ruled[method+" "+below+name] = true
			}
		}
	}
	var doc struct{ Paths map[string]map[string]any }
	c := alone(t, "n")
	c.Nodes[0].MustDo("GET", "/v1/sys/internal/specs/openapi", nil).Decode(t, &doc)
	served := map[string]bool{}
	for name, methods := range doc.Paths {
		if !strings.HasPrefix(name, below) {
			continue
		}
		for method := range methods {
			served[strings.ToUpper(method)+" "+name] = true
		}
	}
	for name := range served {
		if !ruled[name] {
			t.Errorf("%s is served and has no rule", name)
		}
	}
	for name := range ruled {
		if !served[name] {
			t.Errorf("%s has a rule and is not served", name)
		}
	}
}
