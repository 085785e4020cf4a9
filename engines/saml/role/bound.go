package role

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// Identity is what a role decides by.
type Identity struct {
	Subject    string              `json:"subject"`
	Attributes map[string][]string `json:"attributes"`
	// Contexts are how the user has signed in, by AuthnContextClassRef.
	Contexts []string `json:"contexts,omitempty"`
}

// check is one bound of a role, held against a user. Bounds are the subject, if subjects are bound, and each bound
// attribute.
type check struct {
	Bound    string   `json:"bound"` // one of the kinds below
	Name     string   `json:"name"`  // of the attribute
	Type     string   `json:"type"`
	Expected []string `json:"expected"` // one of them suffices
	Given    []string `json:"given"`    // never nil
	Passed   bool     `json:"passed"`
	Hint     string   `json:"hint"` // what to change, "" if nothing can be said
}

// The kinds of a check.
const (
	subjectBound   = "subject"
	attributeBound = "attribute"
	contextBound   = "authn_context"
	groupsBound    = "groups" // there only for a user who has too many
)

// checks holds the user against every bound of the role: the subject first, then the attributes by name, how they signed in,
// and the number of groups. Hints are empty.
func (r *Role) checks(user Identity) []check {
	checks := []check{}
	if len(r.BoundSubjects) > 0 {
		checks = append(checks, newCheck(subjectBound, "", r.BoundSubjectsType, r.BoundSubjects, []string{user.Subject}))
	}
	for _, name := range slices.Sorted(maps.Keys(r.BoundAttributes)) {
		checks = append(checks, newCheck(attributeBound, name, r.BoundAttributesType, r.BoundAttributes[name], user.Attributes[name]))
	}
	if len(r.AuthnContext) > 0 {
		checks = append(checks, newCheck(contextBound, "", stringType, r.AuthnContext, user.Contexts))
	}
	if n := len(r.Groups(user)); n > maxGroups {
		checks = append(checks, check{
			Bound: groupsBound, Name: r.GroupsAttribute, Type: stringType,
			Expected: []string{fmt.Sprintf("at most %d groups", maxGroups)}, Given: []string{fmt.Sprintf("%d groups", n)},
		})
	}
	return checks
}

func newCheck(bound, name, kind string, expected engines.StringList, given []string) check {
	matches := equal
	if kind == globType {
		matches = glob
	}
	passed := slices.ContainsFunc(given, func(value string) bool {
		return slices.ContainsFunc(expected, func(want string) bool { return matches(want, value) })
	})
	return check{Bound: bound, Name: name, Type: kind, Expected: expected, Given: append([]string{}, given...), Passed: passed}
}

// Admits returns nil if the role lets the user in, else which bound value the user lacks: in words that may be shown to
// the user, so without the values that would be right.
func (r *Role) Admits(user Identity) error {
	for _, c := range r.checks(user) {
		switch {
		case c.Passed:
		case c.Bound == subjectBound:
			return fmt.Errorf("the subject is not one the role admits")
		case c.Bound == contextBound:
			return fmt.Errorf("the user has not signed in in one of the ways that the role demands (AuthnContextClassRef)")
		case c.Bound == groupsBound:
			return fmt.Errorf("the user has %s by the attribute %q, and the limit is %d: have the identity provider send only those that matter", c.Given[0], c.Name, maxGroups)
		default:
			return fmt.Errorf("the attribute %q has none of the values that the role demands", c.Name)
		}
	}
	return nil
}

// maxGroups bounds what one login does to groups. A user who has more is not admitted: to leave some out would also leave out those
// that take rights away.
const maxGroups = 512

// Groups returns the names of the groups that the user is in, nil if the role has no groups attribute: its values in
// their order, as they were given, each once. Blank ones are left out.
func (r *Role) Groups(user Identity) []string {
	if r.GroupsAttribute == "" {
		return nil
	}
	var groups []string
	seen := map[string]bool{}
	for _, name := range user.Attributes[r.GroupsAttribute] {
		if strings.TrimSpace(name) != "" && !seen[name] {
			seen[name] = true
			groups = append(groups, name)
		}
	}
	return groups
}

func equal(want, value string) bool { return want == value }

// glob reports whether the pattern matches the whole text. "*" stands for any text, also none; every other byte for
// itself. What stands between two stars is looked for once, at its first place behind what came before: were it to match
// only further on, what follows would fit there, too.
func glob(pattern, text string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := len(parts) - 1
	for _, part := range parts[:last] {
		_, after, ok := strings.Cut(text, part)
		if !ok {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, parts[last])
}

// warnings returns what an administrator who wrote such bounds has probably not meant; nil if nothing is odd.
func (r *Role) warnings() []string {
	var all []string
	if len(r.BoundSubjects) == 0 && len(r.BoundAttributes) == 0 {
		all = append(all, "the role has neither bound_subjects nor bound_attributes: every user that the identity provider signs in is admitted")
	}
	all = append(all, oddValues("bound_subjects", "bound_subjects_type", r.BoundSubjectsType, r.BoundSubjects)...)
	for _, name := range slices.Sorted(maps.Keys(r.BoundAttributes)) {
		all = append(all, oddValues(fmt.Sprintf("bound_attributes of %q", name), "bound_attributes_type", r.BoundAttributesType, r.BoundAttributes[name])...)
	}
	return all
}

func oddValues(where, typeField, kind string, values engines.StringList) []string {
	var odd []string
	star := func(value string) bool { return strings.Contains(value, "*") }
	stars := func(value string) bool { return strings.Trim(value, "*") == "" }
	if kind == stringType && slices.ContainsFunc(values, star) {
		odd = append(odd, fmt.Sprintf("%s: a \"*\" matches a literal asterisk; set %s=glob if it should match any text", where, typeField))
	}
	if kind == globType && slices.ContainsFunc(values, stars) {
		odd = append(odd, where+": \"*\" alone matches every value")
	}
	if len(values) > 1 && !slices.ContainsFunc(values, func(value string) bool { return !namePart(value) }) {
		odd = append(odd, where+": the values look like the parts of one distinguished name; a text is split at its commas, give a list instead")
	}
	return odd
}

// namePart reports whether a value looks like a part of a distinguished name, such as "OU=people".
func namePart(value string) bool {
	key, rest, ok := strings.Cut(value, "=")
	return ok && key != "" && rest != "" && strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.") == "" && !strings.Contains(rest, ",")
}
