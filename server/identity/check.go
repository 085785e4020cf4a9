package identity

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
)

// Limits of what people and auth methods give.
const (
	maxNameBytes      = 512
	maxAliasNameBytes = 1024 // some are distinguished names
	maxKeyBytes       = 128
	maxValueBytes     = 512
	maxLoginBytes     = 64 << 10 // metadata of one login
)

// checkName refuses names that no path could hold.
func checkName(field, name string) error {
	switch {
	case name == "":
		return engines.Invalid("field %q: must not be empty", field)
	case len(name) > maxNameBytes:
		return engines.Invalid("field %q: is longer than %d bytes", field, maxNameBytes)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return engines.Invalid("field %q: must not contain control characters", field)
	case strings.TrimSpace(name) != name:
		return engines.Invalid("field %q: must not begin or end with a space", field)
	}
	for seg := range strings.SplitSeq(name, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return engines.Invalid("field %q: must not begin or end with \"/\" or have an empty, \".\" or \"..\" segment", field)
		}
	}
	return nil
}

// checkAliasName is more lenient: the name is the auth method's, and it is in no path.
func checkAliasName(name string) error {
	switch {
	case name == "":
		return engines.Invalid(`field "name": must not be empty`)
	case len(name) > maxAliasNameBytes:
		return engines.Invalid(`field "name": is longer than %d bytes`, maxAliasNameBytes)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return engines.Invalid(`field "name": must not contain control characters`)
	}
	return nil
}

// checkMetadata checks the pairs; how many there may be is declared with the field.
func checkMetadata(field string, pairs map[string]string) error {
	for k, v := range pairs {
		switch {
		case k == "" || len(k) > maxKeyBytes:
			return engines.Invalid("field %q: each key must have 1 to %d bytes", field, maxKeyBytes)
		case len(v) > maxValueBytes:
			return engines.Invalid("field %q: each value must have at most %d bytes", field, maxValueBytes)
		case strings.ContainsFunc(k, unicode.IsControl) || strings.ContainsFunc(v, unicode.IsControl):
			return engines.Invalid("field %q: must not contain control characters", field)
		}
	}
	return nil
}

// cleanPolicies returns the names in the form that policies are stored under, sorted, each once.
func cleanPolicies(names []string) ([]string, error) {
	var clean []string
	for _, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		switch {
		case name == "root":
			return nil, engines.Invalid(`field "policies": must not contain "root": give the rights of an ordinary policy instead`)
		case len(name) > maxNameBytes:
			return nil, engines.Invalid(`field "policies": a name is longer than %d bytes`, maxNameBytes)
		case strings.ContainsFunc(name, unicode.IsControl):
			return nil, engines.Invalid(`field "policies": a name contains a control character`)
		case name != "":
			clean = append(clean, name)
		}
	}
	slices.Sort(clean)
	return slices.Compact(clean), nil
}

// checkLogin bounds what an auth method says of a user. It comes from outside.
func checkLogin(who engines.Alias) error {
	if err := checkAliasName(who.Name); err != nil {
		return engines.Invalid("the name that the auth method gives is empty, too long or has control characters")
	}
	size := 0
	for k, v := range who.Metadata {
		size += len(k) + len(v)
	}
	if size > maxLoginBytes {
		return engines.Invalid("the metadata that the auth method gives is longer than %d bytes", maxLoginBytes)
	}
	return nil
}
