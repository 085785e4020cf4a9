package cloud_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestRules(t *testing.T) { harness.CheckRules(t, "test/cloud", 100) }

func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	harness.CheckPaths(t, enable(t, alone(t, "doc"), "cloud").node, "/cloud/")
}
