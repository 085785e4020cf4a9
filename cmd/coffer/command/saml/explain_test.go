package saml

import (
	"strings"
	"testing"
)

func TestColourMarks(t *testing.T) {
	const text = "✓ yes ✗\n  ✓\n✗ no"
	if got, want := colourMarks(text), "\x1b[32m✓\x1b[0m yes ✗\n  ✓\n\x1b[31m✗\x1b[0m no"; got != want {
		t.Errorf("colourMarks(%q) = %q, want %q", text, got, want)
	}
}

func TestSomeQuoted(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", "none"}, {"a", `"a"`}, {"a|b |c|d|e", `"a", "b ", "c", "d", "e"`}, {"a|b|c|d|e|f", `"a", "b", "c", "d" and 2 more`},
	} {
		if got := someQuoted(strings.FieldsFunc(tt.in, func(r rune) bool { return r == '|' })); got != tt.want {
			t.Errorf("someQuoted(%q) = %s, want %s", tt.in, got, tt.want)
		}
	}
}
