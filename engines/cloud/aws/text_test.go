package aws

import (
	"regexp"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Whatever a provider says, what we make of it is short, on one line, and without what looks like a key.
func FuzzBounded(f *testing.F) {
	for _, seed := range []string{
		"", "The user with name u cannot be found.", "AKIAIOSFODNN7EXAMPLE", "Value 'x' at 'y' failed; Value 'z' at 'w'",
		"a\nb", "\xff\x00\u202e", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "ääääääääääääääääääääääääääääääää",
	} {
		f.Add(seed)
	}
	key := regexp.MustCompile(`\bAKIA[A-Z0-9]{16}\b`)
	f.Fuzz(func(t *testing.T, said string) {
		got := bounded(said)
		if len(got) > maxTextBytes+len(" …") || !utf8.ValidString(got) || key.MatchString(got) {
			t.Errorf("bounded(%q) = %q", said, got)
		}
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Errorf("bounded(%q) has %q", said, r)
			}
		}
	})
}
