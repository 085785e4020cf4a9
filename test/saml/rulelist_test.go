package saml_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestRules(t *testing.T) { harness.CheckRules(t, "test/saml", 60) }

func TestEveryPathHasARule(t *testing.T) {
	t.Parallel()
	harness.CheckPaths(t, enable(t, alone(t, "doc", ""), "saml").node, "/auth/saml/")
}
