package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// parameters restrict the body of a request. Names are lower case; the name "*" stands for all parameters,
// and an empty list of values for all values.
type parameters struct {
	allowed  map[string][]valuePattern
	denied   map[string][]valuePattern
	required []string
}

// valuePattern is one listed value. Scalars match by their text, so "60" and 60 are the same, as they are
// to an engine; strings may begin or end with "*". Lists and objects match as a whole.
type valuePattern struct {
	text   string
	scalar bool
}

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
func mergeValues(a, b map[string][]valuePattern) map[string][]valuePattern {
	if len(a) == 0 {
		return b
	}
	out := make(map[string][]valuePattern, len(a)+len(b))
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

// allow reports whether a request with this body passes.
func (p *parameters) allow(body json.RawMessage) bool {
	if p.empty() {
		return true
	}
	fields, ok := bodyFields(body)
	if !ok {
		return false
	}
	for _, name := range p.required {
		if v, ok := fields[name]; !ok || v.isNull() {
			return false
		}
	}
	if len(fields) == 0 {
		return true
	}
	if _, all := p.denied["*"]; all {
		return false
	}
	_, allowAll := p.allowed["*"]
	for name, given := range fields {
		if values, ok := p.denied[name]; ok && given.matchAny(values) {
			return false
		}
		if len(p.allowed) == 0 {
			continue
		}
		values, ok := p.allowed[name]
		if !ok && !allowAll || ok && !given.matchAll(values) {
			return false
		}
	}
	return true
}

// fieldValues are the values given for one name: several when names differ only in case.
type fieldValues []valuePattern

func (f fieldValues) isNull() bool {
	return !slices.ContainsFunc(f, func(v valuePattern) bool { return v != valuePattern{text: "null"} })
}

// matchAny reports whether one of the given values is among the listed ones.
func (f fieldValues) matchAny(listed []valuePattern) bool {
	return len(listed) == 0 || slices.ContainsFunc(f, func(v valuePattern) bool { return v.in(listed) })
}

// matchAll reports whether all given values are among the listed ones.
func (f fieldValues) matchAll(listed []valuePattern) bool {
	return len(listed) == 0 || !slices.ContainsFunc(f, func(v valuePattern) bool { return !v.in(listed) })
}

func (v valuePattern) in(listed []valuePattern) bool {
	return slices.ContainsFunc(listed, func(l valuePattern) bool { return l.match(v) })
}

func (v valuePattern) match(given valuePattern) bool {
	if !v.scalar || !given.scalar {
		return v == given
	}
	text, front := strings.CutPrefix(v.text, "*")
	text, back := strings.CutSuffix(text, "*")
	switch {
	case front && back:
		return strings.Contains(given.text, text)
	case front:
		return strings.HasSuffix(given.text, text)
	case back:
		return strings.HasPrefix(given.text, text)
	}
	return given.text == v.text
}

// bodyFields returns the top-level fields of a body by lower-case name; ok is false if it is not an object.
func bodyFields(body json.RawMessage) (fields map[string]fieldValues, ok bool) {
	if body = bytes.TrimSpace(body); len(body) == 0 || string(body) == "null" {
		return nil, true
	}
	var raw map[string]json.RawMessage
	if json.Unmarshal(body, &raw) != nil {
		return nil, false
	}
	fields = make(map[string]fieldValues, len(raw))
	for name, value := range raw {
		dec := json.NewDecoder(bytes.NewReader(value))
		dec.UseNumber()
		var v any
		if dec.Decode(&v) != nil {
			return nil, false
		}
		name = strings.ToLower(name)
		fields[name] = append(fields[name], newValue(v))
	}
	return fields, true
}

// parameterValues reads allowed_parameters and denied_parameters.
func parameterValues(key string, value any) (map[string][]valuePattern, error) {
	params, ok := value.(object)
	if !ok {
		return nil, fmt.Errorf("%q must be a map of parameter names to lists of values", key)
	}
	out := make(map[string][]valuePattern, len(params))
	for _, m := range params {
		name := strings.ToLower(m.key)
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%q names the parameter %q twice", key, name)
		}
		list, ok := m.value.([]any)
		if !ok {
			return nil, fmt.Errorf("the values of %q in %q must be a list", m.key, key)
		}
		values := make([]valuePattern, len(list))
		for i, v := range list {
			values[i] = newValue(v)
		}
		out[name] = values
	}
	return out, nil
}

// newValue takes what the policy readers or encoding/json made of one value.
func newValue(v any) valuePattern {
	switch v := plain(v).(type) {
	case string:
		return valuePattern{text: v, scalar: true}
	case json.Number:
		return valuePattern{text: v.String(), scalar: true}
	case bool:
		return valuePattern{text: fmt.Sprint(v), scalar: true}
	default:
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // strings, numbers, booleans, lists and maps only
		}
		return valuePattern{text: string(text)}
	}
}

// plain turns a value into what encoding/json writes the same way for equal values.
func plain(v any) any {
	switch v := v.(type) {
	case number:
		return json.Number(v)
	case json.Number:
		return json.Number(canonicalNumber(v.String()))
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = plain(item)
		}
		return out
	case object:
		out := make(map[string]any, len(v))
		for _, m := range v {
			out[m.key] = plain(m.value)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, item := range v {
			out[k] = plain(item)
		}
		return out
	}
	return v
}
