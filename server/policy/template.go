package policy

import (
	"strings"
	"unicode"
)

// fill replaces every {{name}} of a pattern. It reports false if a value is missing, or if it could make the pattern
// mean more than one whole segment, or part of one: the choice of a name must not decide what others may reach. In the
// second case wide is the pattern that holds for every value, so that a name is no way round a rule that denies.
func fill(pattern, ns string, subject Subject) (filled string, ok bool, wide string) {
	if subject == nil {
		return "", false, ""
	}
	var out strings.Builder
	unsafe := false
	for rest := pattern; ; {
		before, after, open := strings.Cut(rest, "{{")
		out.WriteString(before)
		if !open {
			break
		}
		name, tail, _ := strings.Cut(after, "}}")
		value, ok := subject.FillIn(ns, strings.TrimSpace(name))
		if !ok || value == "" {
			return "", false, "" // no entity matches
		}
		unsafe = unsafe || !segmentPart(value)
		out.WriteString(value)
		rest = tail
	}
	if unsafe {
		return "", false, widened(pattern)
	}
	return out.String(), true, ""
}

// widened replaces each segment that holds a template by one that matches everything.
func widened(pattern string) string {
	segments := strings.Split(pattern, "/")
	for i, segment := range segments {
		switch {
		case !strings.Contains(segment, "{{"):
		case i == len(segments)-1 && strings.HasSuffix(segment, "*"):
			segments[i] = "*"
		default:
			segments[i] = "+"
		}
	}
	return strings.Join(segments, "/")
}

// segmentPart reports whether a value stands for itself inside one segment of a path.
func segmentPart(value string) bool {
	return value != "" && value != "." && value != ".." && !strings.ContainsAny(value, "/*+") && !strings.ContainsFunc(value, unicode.IsControl)
}
