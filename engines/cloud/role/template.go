package role

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/coffer-project/coffer/engines"
)

// fill replaces every {{name}} of a text by what value returns for it, or fails with its error. Names are those of
// engines.Caller.Identity. "}}" alone is text: policies end with it.
func fill(text string, value func(name string) (string, error)) (string, error) {
	var b strings.Builder
	for {
		before, after, open := strings.Cut(text, "{{")
		b.WriteString(before)
		if !open {
			return b.String(), nil
		}
		name, rest, closed := strings.Cut(after, "}}")
		name = strings.TrimSpace(name)
		if !closed || !strings.HasPrefix(name, "identity.") || strings.ContainsAny(name, "\"\\{}\r\n\t") {
			return "", errors.New("\"{{\" must be followed by a name such as identity.entity.name and \"}}\"")
		}
		filled, err := value(name)
		if err != nil {
			return "", err
		}
		b.WriteString(filled)
		text = rest
	}
}

// literalOf returns what is left of a text without its templates.
func literalOf(text string) (string, error) {
	return fill(text, func(string) (string, error) { return "", nil })
}

// Filled returns the role with the templates filled in for a caller, or an Error of KindInvalid that says why this caller, or
// any caller, cannot use it.
func (r *Role) Filled(c engines.Caller) (*Role, error) {
	if r.invalid() != "" {
		return nil, engines.Invalid("the role cannot be used: a read of it shows invalid_data, which a write clears")
	}
	identity := func(name string) (string, error) {
		if c.Identity != nil {
			if value, ok := c.Identity(name); ok {
				return value, nil
			}
		}
		return "", fmt.Errorf("the template %q stands for nothing with this caller", name)
	}
	f := *r
	var p engines.Problems
	var err error
	if f.PolicyDocument, err = fill(r.PolicyDocument, inDocument(identity)); err != nil {
		p.Add("policy_document", "%v", err)
	} else if f.PolicyDocument != "" {
		if err := checkDocument(f.PolicyDocument); err != nil {
			p.Add("policy_document", "with its templates filled in: %v", err)
		}
	}
	if f.SessionName, err = fill(r.SessionName, identity); err != nil {
		p.Add("session_name", "%v", err)
	}
	if f.SourceIdentity, err = fill(r.SourceIdentity, identity); err != nil {
		p.Add("source_identity", "%v", err)
	} else if f.SourceIdentity != "" && !isSourceIdentity(f.SourceIdentity) {
		p.Add("source_identity", "with its templates filled in: "+badSourceIdentity)
	}
	f.SessionTags = make(map[string]string, len(r.SessionTags))
	for _, key := range slices.Sorted(maps.Keys(r.SessionTags)) {
		if f.SessionTags[key], err = fill(r.SessionTags[key], identity); err != nil {
			p.Add("session_tags", "%v", err)
		}
	}
	checkTags(&p, "session_tags", f.SessionTags)
	if p != nil {
		return nil, engines.Invalid("the role cannot be used by this caller: %s", strings.Join(p, "; "))
	}
	return &f, nil
}

// inDocument is value for texts in policies: as JSON has it, and rejected if it could make the policy say more than one value
// does.
func inDocument(value func(string) (string, error)) func(string) (string, error) {
	return func(name string) (string, error) {
		text, err := value(name)
		if err != nil {
			return "", err
		}
		if strings.ContainsAny(text, "*?$") {
			return "", fmt.Errorf("what the template %q stands for holds one of *?$, which policies give a meaning", name)
		}
		return inJSON(text), nil
	}
}

// inJSON returns what stands for a text between the quotes of JSON. Policies hold few characters as they are.
func inJSON(text string) string {
	var b strings.Builder
	for _, c := range utf16.Encode([]rune(text)) {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			fmt.Fprintf(&b, "\\u%04x", c)
		} else {
			b.WriteByte(byte(c))
		}
	}
	return b.String()
}
