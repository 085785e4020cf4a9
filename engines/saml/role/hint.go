package role

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// hint says what is probably wrong when a check has failed, for the role's administrator. It finds the mistakes that are
// made again and again: case and blanks, globs that are none, lists that are one text, names of claims that are cut short.
func (c *check) hint(user Identity) string {
	switch {
	case c.Passed:
		return ""
	case c.Bound == groupsBound:
		return "filter groups at the identity provider"
	case c.Bound == contextBound && len(c.Given) == 0:
		return "the identity provider did not say how the user signed in"
	case c.Bound == contextBound:
		return "see which AuthnContextClassRef the identity provider sends for the way of signing in that you want"
	case c.Bound == subjectBound && user.Subject == "":
		return "no subject is given"
	case len(c.Given) > 0:
		return c.valueHint()
	}
	if _, there := user.Attributes[c.Name]; there {
		return "the attribute came without a value"
	}
	return nameHint(c.Name, slices.Sorted(maps.Keys(user.Attributes)))
}

// nameHint is about an attribute that is not among the given ones.
func nameHint(name string, given []string) string {
	if len(given) == 0 {
		return "the identity provider sent no attributes at all"
	}
	for _, other := range given {
		if folded(other) == folded(name) {
			return fmt.Sprintf("there is %q: names are compared with their case and blanks", other)
		}
	}
	for _, other := range given {
		if strings.EqualFold(lastPart(other), lastPart(name)) {
			return fmt.Sprintf("there is %q: attributes are known by their whole name", other)
		}
	}
	for _, other := range given {
		if friendly, ok := friendlyNames[other]; ok && strings.EqualFold(friendly, name) {
			return fmt.Sprintf("there is %q, which is often called %q: attributes are known by their name, not by the friendly one", other, friendly)
		}
	}
	return "the identity provider sent no attribute of this name"
}

// lastPart returns the usual name of an attribute whose name is a URI: "groups" of "http://example.com/claims/groups".
func lastPart(name string) string {
	name = strings.TrimRight(name, "/#:")
	return name[strings.LastIndexAny(name, "/#:")+1:]
}

// friendlyNames of attributes that directories send by object identifier (RFC 4519, RFC 2798, eduPerson).
var friendlyNames = map[string]string{
	"urn:oid:0.9.2342.19200300.100.1.1": "uid",
	"urn:oid:0.9.2342.19200300.100.1.3": "mail",
	"urn:oid:1.2.840.113556.1.2.102":    "memberOf",
	"urn:oid:1.3.6.1.4.1.5923.1.1.1.1":  "eduPersonAffiliation",
	"urn:oid:1.3.6.1.4.1.5923.1.1.1.6":  "eduPersonPrincipalName",
	"urn:oid:1.3.6.1.4.1.5923.1.1.1.7":  "eduPersonEntitlement",
	"urn:oid:1.3.6.1.4.1.5923.1.1.1.9":  "eduPersonScopedAffiliation",
	"urn:oid:1.3.6.1.4.1.5923.1.5.1.1":  "isMemberOf",
	"urn:oid:2.16.840.1.113730.3.1.241": "displayName",
	"urn:oid:2.5.4.3":                   "cn",
	"urn:oid:2.5.4.4":                   "sn",
	"urn:oid:2.5.4.11":                  "ou",
	"urn:oid:2.5.4.42":                  "givenName",
}

// valueHint is about values that are none of the expected ones.
func (c *check) valueHint() string {
	foldedGiven := make([]string, len(c.Given))
	for i, value := range c.Given {
		foldedGiven[i] = folded(value)
	}
	for _, want := range c.Expected {
		foldedWant := folded(want)
		for i, value := range c.Given {
			switch {
			case foldedWant == foldedGiven[i], c.Type == globType && glob(foldedWant, foldedGiven[i]):
				return fmt.Sprintf("expected is %q, given is %q: case and blanks count", want, value)
			case c.Type == stringType && strings.Contains(want, "*") && glob(want, value):
				return fmt.Sprintf("%q would match as a glob, but bound_%ss_type is string", want, c.Bound)
			}
		}
	}
	if i := slices.Index(foldedGiven, folded(strings.Join(c.Expected, ","))); i >= 0 {
		return fmt.Sprintf("the expected values together are the value %q: a text is split at its commas, give a list with this one value", c.Given[i])
	}
	if want, ok := withPart(c.Expected, c.Given); ok {
		return fmt.Sprintf("expected is one value, %q, which looks like several: put commas between them, or give a list", want)
	}
	if value, ok := withPart(c.Given, c.Expected); ok {
		return fmt.Sprintf("the identity provider sends %q as one value, not several: change that there, or use a glob", value)
	}
	return ""
}

// withPart returns the first value of which a part is among the others, if it looks like several values in one text.
func withPart(values, others []string) (string, bool) {
	among := make(map[string]bool, len(others))
	for _, other := range others {
		among[other] = true
	}
	for _, value := range values {
		if slices.ContainsFunc(parts(value), func(part string) bool { return among[part] }) {
			return value, true
		}
	}
	return "", false
}

// parts splits what may be several values in one text. It returns nil for what is one.
func parts(value string) []string {
	split := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ';' || r == '|' || unicode.IsSpace(r) })
	if len(split) < 2 {
		return nil
	}
	return split
}

// folded returns a text without what is easily overlooked: case and blanks.
func folded(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, text)
}
