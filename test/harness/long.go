package harness

import (
	"os"
	"testing"
)

// Long reports whether this is `make chaos`, whose tests take minutes: COFFER_CHAOS=long.
var Long = os.Getenv("COFFER_CHAOS") == "long"

// LongOnly skips a test that `make test` leaves to `make chaos`.
func LongOnly(t *testing.T) {
	t.Helper()
	if !Long {
		t.Skip("only in the long version: make chaos")
	}
}
