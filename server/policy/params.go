package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/server/policy/hcl"
)

// parameters restrict what a request may give an engine. Names are lower case; the name "*" stands for all parameters,
// and an empty list of values for all values.
type parameters struct {
	allowed  map[string][]listed
	denied   map[string][]listed
	required []string
}

// listed is one value of a list of values, as JSON. What it stands for depends on the field: see input.Input.
type listed json.RawMessage

func (p *parameters) empty() bool {
	return len(p.allowed) == 0 && len(p.denied) == 0 && len(p.required) == 0
}

// merge adds what another policy says about the same path.
func (p *parameters) merge(q parameters) {
	p.allowed = mergeValues(p.allowed, q.allowed)
	p.denied = mergeValues(p.denied, q.denied)
	for _, name := range q.required {
		if !slices.Contains(p.required, name) {
			p.required = append(slices.Clip(p.required), name)
		}
	}
}

// mergeValues joins two maps without changing either. No values means all values, so it absorbs.
func mergeValues(a, b map[string][]listed) map[string][]listed {
	if len(a) == 0 {
		return b
	}
	out := make(map[string][]listed, len(a)+len(b))
	for name, values := range a {
		out[name] = values
	}
	for name, values := range b {
		have, ok := out[name]
		switch {
		case !ok:
			out[name] = values
		case len(have) == 0 || len(values) == 0:
			out[name] = nil
		default:
			out[name] = slices.Concat(have, values)
		}
	}
	return out
}

// allow reports whether a request with this input passes.
func (p *parameters) allow(in *input.Input) bool {
	for _, name := range p.required {
		if !slices.ContainsFunc(in.Names(name), func(name string) bool { f := in.Fields[name]; return f != nil && f.Got }) {
			return false
		}
	}
	if len(in.Fields) == 0 {
		return true
	}
	if _, all := p.denied["*"]; all {
		return false
	}
	allowed, denied := rulesOf(in, p.allowed), rulesOf(in, p.denied)
	_, allowAll := p.allowed["*"]
	for name, f := range in.Fields {
		if rule, ok := denied[name]; ok && (rule.any || slices.ContainsFunc(f.Values, rule.denies)) {
			return false
		}
		if len(p.allowed) == 0 {
			continue
		}
		rule, ok := allowed[name]
		if !ok && !allowAll || ok && !rule.any && slices.ContainsFunc(f.Values, rule.forbids) {
			return false
		}
	}
	return true
}

// fieldRule is what the rules of one kind say about one field.
type fieldRule struct {
	any    bool // no values are listed, which stands for all
	values []input.Value
}

// rulesOf brings names and values of rules into the form of the fields of a request. Two names of one field are one.
func rulesOf(in *input.Input, rules map[string][]listed) map[string]fieldRule {
	out := make(map[string]fieldRule, len(rules))
	for ruled, values := range rules {
		for _, name := range in.Names(ruled) {
			r := out[name]
			r.any = r.any || len(values) == 0
			for _, value := range values {
				r.values = append(r.values, in.Value(name, json.RawMessage(value)))
			}
			out[name] = r
		}
	}
	return out
}

// denies reports whether the given value, or one of its elements, is listed.
func (r fieldRule) denies(given input.Value) bool {
	return r.lists(given) || slices.ContainsFunc(given.Elements, r.listsElement)
}

// forbids reports whether neither the given value nor each of its elements is listed. An empty list is listed as such.
func (r fieldRule) forbids(given input.Value) bool {
	each := len(given.Elements) > 0 && !slices.ContainsFunc(given.Elements, func(e input.Value) bool { return !r.listsElement(e) })
	return !each && !r.lists(given)
}

// lists reports whether a value as a whole is listed. Patterns are for texts; only "*" stands for anything.
func (r fieldRule) lists(given input.Value) bool {
	return slices.ContainsFunc(r.values, func(v input.Value) bool {
		switch {
		case v.Text == "*" || only(v).Text == "*":
			return true
		case v.Compound || given.Compound:
			return v.Compound == given.Compound && v.Text == given.Text
		}
		return match(v.Text, given.Text)
	})
}

// listsElement reports whether an element is listed: itself, or as the only one of a list.
func (r fieldRule) listsElement(element input.Value) bool {
	return r.lists(element) || !element.Compound && slices.ContainsFunc(r.values, func(v input.Value) bool {
		return len(v.Elements) == 1 && match(only(v).Text, element.Text)
	})
}

// only returns the only element of a list, or the zero value.
func only(v input.Value) input.Value {
	if len(v.Elements) == 1 {
		return v.Elements[0]
	}
	return input.Value{}
}

// match reports whether a text fits a pattern, which may begin or end with "*".
func match(pattern, text string) bool {
	middle, front := strings.CutPrefix(pattern, "*")
	middle, back := strings.CutSuffix(middle, "*")
	switch {
	case front && back:
		return strings.Contains(text, middle)
	case front:
		return strings.HasSuffix(text, middle)
	case back:
		return strings.HasPrefix(text, middle)
	}
	return text == pattern
}

// parameterValues reads allowed_parameters and denied_parameters.
func parameterValues(key string, value any) (map[string][]listed, error) {
	params, ok := value.(hcl.Object)
	if !ok {
		return nil, fmt.Errorf("%q must be a map of parameter names to lists of values", key)
	}
	out := make(map[string][]listed, len(params))
	for _, m := range params {
		name := strings.ToLower(m.Key)
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%q names the parameter %q twice", key, name)
		}
		list, ok := m.Value.([]any)
		if !ok {
			return nil, fmt.Errorf("the values of %q in %q must be a list", m.Key, key)
		}
		values := make([]listed, len(list))
		for i, v := range list {
			text, err := json.Marshal(hcl.Plain(v))
			if err != nil {
				panic(err) // strings, numbers, booleans, lists and maps only
			}
			values[i] = text
		}
		out[name] = values
	}
	return out, nil
}
