package access

import (
	"strings"
	"testing"
)

func TestFormatPolicy(t *testing.T) {
	got, err := formatPolicy("path \"a\" {capabilities=[\"read\"]} # why\n")
	if err != nil || !strings.Contains(string(got), "capabilities = [\"read\"]") || !strings.Contains(string(got), "# why") {
		t.Errorf("formatPolicy = %q, %v", got, err)
	}
	for name, text := range map[string]string{
		"deep": strings.Repeat("a {", 100000), "large": strings.Repeat("#", maxPolicyBytes+1), "broken": `path "a" {`,
	} {
		if _, err := formatPolicy(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
