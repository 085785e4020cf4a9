package secretsync_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestRules(t *testing.T) { harness.CheckRules(t, "test/secretsync", 100) }

func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	harness.CheckPaths(t, harness.NewCluster(t, 1, harness.Options{Prefix: "doc"}).Nodes[0], "/sys/sync/")
}
