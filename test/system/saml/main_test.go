// Package saml_test is about the SAML method on real servers. RULES.md has the rules that the tests are named after. With
// the build tag e2e there is also TestIdentityProviders, which needs what `make e2e` installs.
package saml_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
