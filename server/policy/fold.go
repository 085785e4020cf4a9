package policy

import "strings"

// The names of policies have no case, and no space at their ends (NormalName). A rule about a policy must hold
// however its name is spelled in a request, so both sides are brought into one form before they are compared.

// namedPaths are the paths that end in the name of a policy, without that.
var namedPaths = []string{"sys/policies/acl/", "sys/policy/"}

// foldPath returns the form of a request's path that is compared with patterns.
func foldPath(path string) string {
	for _, prefix := range namedPaths {
		if name, ok := strings.CutPrefix(path, prefix); ok {
			return prefix + strings.ToLower(strings.TrimSpace(name))
		}
	}
	return path
}

// isNamed reports whether a request's path ends in the name of a policy.
func isNamed(path string) bool {
	return strings.HasPrefix(path, namedPaths[0]) || strings.HasPrefix(path, namedPaths[1])
}

// foldPattern does the same to a pattern, whose first segments may be "+".
func foldPattern(pattern string) string {
	for _, prefix := range namedPaths {
		front, name := "", pattern
		for want := range strings.SplitSeq(strings.TrimSuffix(prefix, "/"), "/") {
			segment, rest, more := strings.Cut(name, "/")
			if !more || segment != want && segment != "+" {
				front = ""
				break
			}
			front, name = front+segment+"/", rest
		}
		if front != "" {
			return front + strings.ToLower(name)
		}
	}
	return pattern
}

// foldInside folds a pattern that reaches a policy's path in a namespace ("team/sys/policy/Name"). Only requests for
// such paths are compared with the result: what it folds may be something else for others.
func foldInside(pattern string) string {
	for i := 0; i < len(pattern); i++ {
		if i > 0 && pattern[i-1] != '/' {
			continue
		}
		if tail := foldPattern(pattern[i:]); tail != pattern[i:] {
			return pattern[:i] + tail
		}
	}
	return pattern
}
