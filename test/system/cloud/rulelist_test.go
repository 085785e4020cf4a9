package cloud_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness/rules"
)

func TestRules(t *testing.T) { rules.Check(t, "test/system/cloud", 100) }

func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	rules.CheckPaths(t, enable(t, alone(t, "doc"), "cloud").node, "/cloud/")
}
