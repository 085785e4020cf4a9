package cloud1test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Violation is a rule of the vendor that a request breaks. It never holds a value of the request.
type Violation struct {
	Action string
	Member string // such as "Tags[0].Key"; "" is the request as a whole
	Rule   string // such as "longer than 128"
}

func (v Violation) String() string { return v.Action + ": " + v.Member + ": " + v.Rule }

// Model is the vendor's description of the service.
type Model struct {
	Operations map[string]struct {
		Input  ref   `json:"input"`
		Output ref   `json:"output"`
		Errors []ref `json:"errors"`
	} `json:"operations"`
	Shapes map[string]*Shape `json:"shapes"`
}

type ref struct {
	Shape string `json:"shape"`
}

// Shape is a type of the model.
type Shape struct {
	Type     string         `json:"type"`
	Required []string       `json:"required"`
	Members  map[string]ref `json:"members"`
	Member   ref            `json:"member"`
	Key      ref            `json:"key"`
	Value    ref            `json:"value"`
	Min      *int64         `json:"min"`
	Max      *int64         `json:"max"`
	Pattern  string         `json:"pattern"`
	Enum     []string       `json:"enum"`

	pattern *regexp.Regexp
}

// ParseModel decodes a description of a service.
func ParseModel(description []byte) (*Model, error) {
	m := new(Model)
	if err := json.Unmarshal(description, m); err != nil {
		return nil, err
	}
	for name, s := range m.Shapes {
		if s.Pattern == "" {
			continue
		}
		var err error
		if s.pattern, err = regexp.Compile(`\A(?:` + s.Pattern + `)\z`); err != nil {
			return nil, fmt.Errorf("the pattern of %s: %w", name, err)
		}
	}
	return m, nil
}

// Check holds a request against the model.
func (m *Model) Check(action string, body []byte) ([]Violation, error) {
	decoded, err := decode(body)
	if err != nil {
		return nil, err
	}
	return m.request(action, decoded), nil
}

// request and answer hold what is sent against the model.
func (m *Model) request(action string, body any) []Violation {
	return m.check(action, m.Operations[action].Input.Shape, body)
}

func (m *Model) answer(action string, body any) []Violation {
	output := m.Operations[action].Output.Shape
	if output == "" {
		if body != nil {
			return []Violation{{action, "", "has no answer in the model"}}
		}
		return nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		return []Violation{{action, "", "cannot be encoded"}}
	}
	decoded, err := decode(text)
	if err != nil {
		return []Violation{{action, "", "cannot be decoded"}}
	}
	return m.check(action, output, decoded)
}

// rejects reports whether the model has an error among those of an action.
func (m *Model) rejects(action, code string) bool {
	return slices.ContainsFunc(m.Operations[action].Errors, func(e ref) bool { return e.Shape == code })
}

func (m *Model) check(action, shapeName string, body any) []Violation {
	c := check{shapes: m.Shapes, action: action}
	c.value("", shapeName, body)
	slices.SortFunc(c.found, func(a, b Violation) int { return strings.Compare(a.Member, b.Member) })
	return c.found
}

// check is one comparison.
type check struct {
	shapes map[string]*Shape
	action string
	found  []Violation
}

func (c *check) report(member, rule string, args ...any) {
	c.found = append(c.found, Violation{c.action, member, fmt.Sprintf(rule, args...)})
}

func (c *check) value(name, shapeName string, v any) {
	s := c.shapes[shapeName]
	switch s.Type {
	case "structure":
		c.structure(name, s, v)
	case "list":
		c.list(name, s, v)
	case "map":
		c.mapping(name, s, v)
	default:
		c.scalar(name, s, v)
	}
}

func (c *check) structure(name string, s *Shape, v any) {
	members, ok := v.(map[string]any)
	if !ok {
		c.report(name, "not an object")
		return
	}
	for _, member := range s.Required {
		if _, ok := members[member]; !ok {
			c.report(join(name, member), "required")
		}
	}
	for member, inside := range members {
		if r, ok := s.Members[member]; ok {
			c.value(join(name, member), r.Shape, inside)
		} else {
			c.report(join(name, member), "not in the model")
		}
	}
}

func join(name, member string) string {
	if name == "" {
		return member
	}
	return name + "." + member
}

func (c *check) list(name string, s *Shape, v any) {
	list, ok := v.([]any)
	if !ok {
		c.report(name, "not a list")
		return
	}
	c.bounds(name, s, int64(len(list)), "members")
	for i, inside := range list {
		c.value(fmt.Sprintf("%s[%d]", name, i), s.Member.Shape, inside)
	}
}

func (c *check) mapping(name string, s *Shape, v any) {
	entries, ok := v.(map[string]any)
	if !ok {
		c.report(name, "not an object")
		return
	}
	for key, inside := range entries {
		c.value(name+"[key]", s.Key.Shape, key)
		c.value(name+"[value]", s.Value.Shape, inside)
	}
}

func (c *check) scalar(name string, s *Shape, v any) {
	switch s.Type {
	case "string":
		c.text(name, s, v)
	case "blob":
		text, ok := v.(string)
		raw, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil {
			c.report(name, "not base64")
			return
		}
		c.bounds(name, s, int64(len(raw)), "bytes")
	case "integer", "long":
		number, _ := v.(json.Number)
		n, err := number.Int64()
		if err != nil {
			c.report(name, "not a whole number")
			return
		}
		c.bounds(name, s, n, "")
	case "boolean":
		if _, ok := v.(bool); !ok {
			c.report(name, "neither true nor false")
		}
	case "timestamp":
		if _, ok := v.(json.Number); !ok {
			c.report(name, "not a time")
		}
	default:
		c.report(name, "of the type %s, which is not checked", s.Type)
	}
}

func (c *check) text(name string, s *Shape, v any) {
	text, ok := v.(string)
	if !ok {
		c.report(name, "not a text")
		return
	}
	c.bounds(name, s, int64(utf8.RuneCountInString(text)), "characters")
	if s.pattern != nil && !s.pattern.MatchString(text) {
		c.report(name, "does not match %s", s.Pattern)
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, text) {
		c.report(name, "not one of %s", strings.Join(s.Enum, ", "))
	}
}

func (c *check) bounds(name string, s *Shape, n int64, what string) {
	if s.Min != nil && n < *s.Min {
		c.report(name, "less than %d %s", *s.Min, what)
	}
	if s.Max != nil && n > *s.Max {
		c.report(name, "more than %d %s", *s.Max, what)
	}
}
