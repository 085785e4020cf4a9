package secretsync_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness"
	"github.com/coffer-project/coffer/test/harness/rules"
)

func TestRules(t *testing.T) { rules.Check(t, "test/system/secretsync", 100) }

func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	rules.CheckPaths(t, harness.NewCluster(t, 1, harness.Options{Prefix: "doc"}).Nodes[0], "/sys/sync/")
}
