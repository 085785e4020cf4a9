// Package policy says who may do what: it parses policies, joins those of a token into an ACL, answers
// whether an operation on a path is allowed, and keeps policies in storage.
//
// It promises that an ACL is a pure function of its policies: among all patterns that match a path exactly
// one decides (see ACL), and nothing is allowed by default. Text that is not understood completely is
// refused when it is written, never ignored when it is used. Start reading at Parse, then ACL, then Store.
package policy

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/server/policy/hcl"
)

// MaxTextBytes is the limit of a policy's text.
const MaxTextBytes = 256 << 10

// RootName is the name of the policy that may do everything. It has no text.
const RootName = "root"

// Policy is one parsed policy. It does not change.
type Policy struct {
	Name string
	Text string // as written

	rules []rule
	root  bool
}

// Root returns the policy that allows everything.
func Root() *Policy { return &Policy{Name: RootName, root: true} }

// rule is one path block.
type rule struct {
	pattern  string // without leading slash
	caps     capability
	params   parameters
	minWrap  time.Duration
	maxWrap  time.Duration
	expires  time.Time // zero: never
	template bool      // holds {{…}}: without an identity to fill in, it matches nothing
}

// capability is a set of capabilities.
type capability uint16

const (
	capCreate capability = 1 << iota
	capDelete
	capDeny
	capList
	capPatch
	capRead
	capScan
	capSudo
	capUpdate
)

// capabilityNames is in bit order, which is also the order of the names.
var capabilityNames = [...]string{"create", "delete", "deny", "list", "patch", "read", "scan", "sudo", "update"}

// shorthands are the values of the old "policy" key of a path.
var shorthands = map[string]capability{
	"deny":  capDeny,
	"read":  capRead | capList,
	"write": capCreate | capRead | capUpdate | capDelete | capList,
	"sudo":  capCreate | capRead | capUpdate | capDelete | capList | capSudo,
}

// names returns the sorted names of the set; ["deny"] when it allows nothing.
func (c capability) names() []string {
	if c&^capDeny == 0 || c&capDeny != 0 {
		return []string{"deny"}
	}
	out := make([]string, 0, bits.OnesCount16(uint16(c)))
	for i, name := range capabilityNames {
		if c&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

// or returns the capabilities of both; a deny is one only where the other gives nothing.
func (c capability) or(d capability) capability {
	switch {
	case c&capDeny != 0 && d&^capDeny != 0:
		return d
	case d&capDeny != 0 && c&^capDeny != 0:
		return c
	}
	return c | d
}

// Decode is Parse for text that came over the API: it may also be the base64 of a policy.
func Decode(name, text string) (*Policy, error) {
	p, err := Parse(name, text)
	if err == nil {
		return p, nil
	}
	raw, decodeErr := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if decodeErr != nil {
		return nil, err
	}
	return Parse(name, string(raw))
}

// Parse reads a policy in HCL, or in JSON if its first character is "{". Errors name the line and the key.
// Paths that hold a template ({{…}}) are accepted and match nothing.
func Parse(name, text string) (*Policy, error) { return parse(name, text, hcl.Parse) }

// parseStored is Parse for a text that was accepted when it was written. Versions up to 0.2 accepted one that broke off
// in its last item, and read it without that.
func parseStored(name, text string) (*Policy, error) { return parse(name, text, hcl.ParseStored) }

func parse(name, text string, read func(string) (hcl.Object, error)) (*Policy, error) {
	switch {
	case len(text) > MaxTextBytes:
		return nil, fmt.Errorf("policy is %d bytes, the limit is %d", len(text), MaxTextBytes)
	case !utf8.ValidString(text):
		return nil, errors.New("policy is not valid UTF-8")
	case strings.IndexByte(text, 0) >= 0:
		return nil, errors.New("policy contains a NUL byte")
	}
	doc, err := read(text)
	if err != nil {
		return nil, err
	}
	p := &Policy{Name: name, Text: text}
	for _, m := range doc {
		if err := p.addTop(m); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Policy) addTop(m hcl.Member) error {
	switch m.Key {
	case "path":
		return p.addPaths(m, m.Value)
	case "name":
		if _, ok := m.Value.(string); !ok {
			return m.Errorf(`"name" must be a string`)
		}
		return nil // the name is the one it is stored under
	}
	return m.Errorf("unknown key %q", m.Key)
}

// addPaths takes path "x" {…}, path = {"x" = {…}} and lists of the latter.
func (p *Policy) addPaths(m hcl.Member, value any) error {
	switch v := value.(type) {
	case hcl.Object:
		for _, path := range v {
			r, err := newRule(path)
			if err != nil {
				return err
			}
			p.rules = append(p.rules, r)
		}
		return nil
	case []any:
		for _, item := range v {
			if _, ok := item.(hcl.Object); !ok {
				return m.Errorf(`"path" must be a block with a path`)
			}
			if err := p.addPaths(m, item); err != nil {
				return err
			}
		}
		return nil
	}
	return m.Errorf(`"path" must be a block with a path`)
}

func newRule(m hcl.Member) (rule, error) {
	r := rule{pattern: strings.TrimPrefix(m.Key, "/")}
	body, ok := m.Value.(hcl.Object)
	if !ok {
		return r, m.Errorf("path %q: must be a block", m.Key)
	}
	if strings.Contains(r.pattern, "+*") {
		return r, m.Errorf("path %q: a path cannot hold \"+*\"", m.Key)
	}
	var err error
	if r.template, err = isTemplate(r.pattern); err != nil {
		return r, m.Errorf("path %q: %v", m.Key, err)
	}
	seen := map[string]bool{}
	for _, attr := range body {
		if seen[attr.Key] {
			return r, attr.Errorf("path %q: %q is given twice", m.Key, attr.Key)
		}
		seen[attr.Key] = true
		if err := r.set(attr.Key, attr.Value); err != nil {
			return r, attr.Errorf("path %q: %v", m.Key, err)
		}
	}
	if r.maxWrap != 0 && r.maxWrap < r.minWrap {
		return r, m.Errorf(`path %q: "max_wrapping_ttl" is less than "min_wrapping_ttl"`, m.Key)
	}
	if r.caps&capDeny != 0 {
		r.caps = capDeny
	}
	return r, nil
}

// set takes one attribute of a path block.
func (r *rule) set(key string, value any) (err error) {
	switch key {
	case "capabilities":
		return r.addCapabilities(value)
	case "policy":
		name, _ := value.(string)
		caps, ok := shorthands[name]
		if !ok {
			return errors.New(`"policy" must be "read", "write", "sudo" or "deny"`)
		}
		r.caps |= caps
	case "allowed_parameters":
		r.params.allowed, err = parameterValues(key, value)
	case "denied_parameters":
		r.params.denied, err = parameterValues(key, value)
	case "required_parameters":
		var names []string
		if names, err = stringList(key, value); err == nil {
			for _, n := range names {
				r.params.required = append(r.params.required, strings.ToLower(n))
			}
		}
	case "min_wrapping_ttl":
		r.minWrap, err = duration(key, value)
	case "max_wrapping_ttl":
		r.maxWrap, err = duration(key, value)
	case "expiration":
		text, _ := value.(string)
		if r.expires, err = time.Parse(time.RFC3339, text); err != nil {
			return errors.New(`"expiration" must be a time such as "2030-01-31T12:00:00Z"`)
		}
	case "comment":
		if _, ok := value.(string); !ok {
			return errors.New(`"comment" must be a string`)
		}
	default:
		return fmt.Errorf("unknown key %q", key)
	}
	return err
}

func (r *rule) addCapabilities(value any) error {
	names, err := stringList("capabilities", value)
	if err != nil {
		return err
	}
	for _, name := range names {
		bit, ok := slices.BinarySearch(capabilityNames[:], name)
		if !ok {
			return fmt.Errorf("unknown capability %q; the capabilities are %s", name, strings.Join(capabilityNames[:], ", "))
		}
		r.caps |= 1 << bit
	}
	return nil
}

func isTemplate(pattern string) (bool, error) {
	rest, found := pattern, false
	for {
		before, after, open := strings.Cut(rest, "{{")
		if strings.Contains(before, "}}") {
			return false, errors.New(`"}}" without "{{"`)
		}
		if !open {
			return found, nil
		}
		name, tail, closed := strings.Cut(after, "}}")
		if !closed || strings.TrimSpace(name) == "" || strings.Contains(name, "{{") {
			return false, errors.New(`"{{" must be followed by a name and "}}"`)
		}
		rest, found = tail, true
	}
}

func stringList(key string, value any) ([]string, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%q must be a list of strings", key)
	}
	out := make([]string, len(list))
	for i, v := range list {
		if out[i], ok = v.(string); !ok {
			return nil, fmt.Errorf("%q must be a list of strings", key)
		}
	}
	return out, nil
}

func duration(key string, value any) (time.Duration, error) {
	text, ok := value.(string)
	if n, isNumber := value.(hcl.Number); isNumber {
		text, ok = string(n), true
	}
	d, err := input.ParseDuration(text)
	if !ok || err != nil {
		return 0, fmt.Errorf(`%q must be a duration such as "90s" or "1h"`, key)
	}
	return d, nil
}
