package policy

import (
	"strings"
	"unicode"
)

// fill replaces every {{name}} of a pattern. It reports false if a value is missing, or if it could make the pattern
// mean more than one whole segment, or part of one: whoever chooses a name must not choose what others may reach.
func fill(pattern, ns string, subject Subject) (string, bool) {
	if subject == nil {
		return "", false
	}
	var out strings.Builder
	for {
		before, after, open := strings.Cut(pattern, "{{")
		out.WriteString(before)
		if !open {
			return out.String(), true
		}
		name, rest, _ := strings.Cut(after, "}}")
		value, ok := subject.FillIn(ns, strings.TrimSpace(name))
		if !ok || !segmentPart(value) {
			return "", false
		}
		out.WriteString(value)
		pattern = rest
	}
}

// segmentPart reports whether a value stands for itself inside one segment of a path.
func segmentPart(value string) bool {
	return value != "" && value != "." && value != ".." && !strings.ContainsAny(value, "/*+") && !strings.ContainsFunc(value, unicode.IsControl)
}
