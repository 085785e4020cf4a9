package node

import (
	"slices"
	"strings"
	"testing"
)

// The root token of a development server is not among the arguments that a sealed one leaves for itself.
func TestArgumentsWithoutTokens(t *testing.T) {
	tests := map[string]string{
		"coffer server -config=x":                                   "coffer server -config=x",
		"coffer server -dev -dev-root-token-id=secret":              "coffer server -dev",
		"coffer server --dev-root-token-id secret -dev":             "coffer server -dev",
		"coffer server -dev-root-token-id secret":                   "coffer server",
		"coffer server -dev-root-token-id":                          "coffer server",
		"coffer server -dev -dev-data-dir dev-root-token-id -check": "coffer server -dev -dev-data-dir dev-root-token-id -check",
	}
	for in, want := range tests {
		if got := withoutTokens(strings.Fields(in)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}
