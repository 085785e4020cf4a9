// Package secretsync_test is about secret sync on real servers, against destinations for tests. RULES.md has the rules that the tests are
// named after. With the build tag e2e there is also the independent emulator, which needs what `make e2e` installs.
package secretsync_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
