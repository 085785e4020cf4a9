// Package cloud_test is about the engine of cloud credentials on real servers, against a provider for tests. RULES.md has the
// rules that the tests are named after. By default servers are killed after each call that changes something; COFFER_CHAOS=long
// is `make chaos`: before and after every call, and it waits for what takes minutes. With the build tag e2e there is also the
// independent emulator, which needs what `make e2e` installs.
package cloud_test

import (
	"testing"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
