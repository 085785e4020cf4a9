// Package model holds requests and answers of IAM and STS against the vendor's own descriptions of them. Start reading at
// Models.Check. Watch does so for any other service that speaks the same protocol.
package model

import (
	"embed"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/cloud/awstest/query"
)

// Violation is a rule of the vendor's model that a request breaks. It never holds a value of the request.
type Violation struct {
	Action string
	Member string // such as "Tags.member.1.Key"; "" is the request as a whole
	Rule   string // such as "longer than 64"
}

func (v Violation) String() string {
	if v.Member == "" {
		return v.Action + ": " + v.Rule
	}
	return v.Action + ": " + v.Member + ": " + v.Rule
}

// Models are the vendor's machine-readable descriptions of IAM and STS.
type Models struct {
	services map[string]*Service // by version of the API
}

// Service is the description of one service.
type Service struct {
	Metadata struct {
		APIVersion     string `json:"apiVersion"`
		EndpointPrefix string `json:"endpointPrefix"`
		XMLNamespace   string `json:"xmlNamespace"`
	} `json:"metadata"`
	Operations map[string]struct {
		Input  ref   `json:"input"`
		Output ref   `json:"output"`
		Errors []ref `json:"errors"`
	} `json:"operations"`
	Shapes map[string]*shape `json:"shapes"`
}

type ref struct {
	Shape string `json:"shape"`
}

type shape struct {
	Type      string         `json:"type"`
	Required  []string       `json:"required"`
	Members   map[string]ref `json:"members"`
	Member    ref            `json:"member"`
	Min       *float64       `json:"min"`
	Max       *float64       `json:"max"`
	Pattern   string         `json:"pattern"`
	Enum      []string       `json:"enum"`
	Sensitive bool           `json:"sensitive"`
	Error     struct {
		Code   string `json:"code"`
		Status int    `json:"httpStatusCode"`
	} `json:"error"`

	compiled *regexp.Regexp // nil: none, or one that Go's regular expressions cannot say
}

//go:embed testdata/iam.json testdata/sts.json
var descriptions embed.FS

var loadModels = sync.OnceValues(func() (*Models, error) {
	all := &Models{services: map[string]*Service{}}
	for _, name := range []string{"testdata/iam.json", "testdata/sts.json"} {
		m, err := readModel(name)
		if err != nil {
			return nil, err
		}
		all.services[m.Metadata.APIVersion] = m
	}
	all.services["2010-05-08"].addLater()
	return all, nil
})

// addLater adds what the service has got since the models were frozen in 2025, as far as it is used here.
func (m *Service) addLater() {
	const list = "ListServiceSpecificCredentials"
	for name, of := range map[string]string{"Marker": "markerType", "MaxItems": "maxItemsType", "AllUsers": "booleanType"} {
		m.Shapes[m.Operations[list].Input.Shape].Members[name] = ref{of}
	}
	for name, of := range map[string]string{"Marker": "responseMarkerType", "IsTruncated": "booleanType"} {
		m.Shapes[m.Operations[list].Output.Shape].Members[name] = ref{of}
	}
	used := m.Shapes["AccessKeyLastUsed"] // of a key that was never used it has no date
	used.Required = slices.DeleteFunc(used.Required, func(name string) bool { return name == "LastUsedDate" })
}

// Load returns the vendor's models. They are decoded once in a process.
func Load() (*Models, error) { return loadModels() }

func readModel(name string) (*Service, error) {
	text, err := descriptions.ReadFile(name)
	if err != nil {
		return nil, err
	}
	m := new(Service)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("decoding %s: %w", name, err)
	}
	for _, s := range m.Shapes {
		if s.Pattern != "" {
			s.compiled, _ = regexp.Compile(`\A(?:` + translate(s.Pattern) + `)\z`)
		}
	}
	return m, nil
}

var unicodeEscape = regexp.MustCompile(`\\u(10[0-9A-F]{4}|10000|[0-9A-F]{4})`)

// translate writes the model's pattern as Go wants it.
func translate(pattern string) string {
	// The surrogates' gap is written as a range up to D7FF and one from E000, which is how Go counts, too.
	return unicodeEscape.ReplaceAllString(pattern, `\x{$1}`)
}

// Check compares a request, as its form, with the model of its service. It returns nil if nothing is wrong.
func (m *Models) Check(form url.Values) []Violation {
	c := check{action: form.Get("Action"), form: form, used: map[string]bool{"Action": true, "Version": true}}
	service, ok := m.services[form.Get("Version")]
	if !ok {
		c.report("", "unknown version of the API")
		return c.found
	}
	operation, ok := service.Operations[c.action]
	if !ok {
		c.report("", "unknown action")
		return c.found
	}
	c.shapes = service.Shapes
	if operation.Input.Shape != "" {
		c.value("", operation.Input.Shape)
	}
	for name, values := range form {
		switch {
		case !c.used[name]:
			c.report(name, "not in the model")
		case len(values) != 1:
			c.report(name, "given more than once")
		}
	}
	slices.SortFunc(c.found, func(a, b Violation) int { return strings.Compare(a.Member, b.Member) })
	return c.found
}

// Service returns the description of the service with a version of the API, nil if there is none.
func (m *Models) Service(version string) *Service { return m.services[version] }

// Secrets returns the names of a request's parameters that are not for a record of it.
func (m *Models) Secrets(form url.Values) map[string]bool {
	hidden := map[string]bool{"TokenCode": true}
	service := m.services[form.Get("Version")]
	if service == nil {
		return hidden
	}
	if input := service.Shapes[service.Operations[form.Get("Action")].Input.Shape]; input != nil {
		for name, member := range input.Members {
			if s := service.Shapes[member.Shape]; s != nil && s.Sensitive {
				hidden[name] = true
			}
		}
	}
	return hidden
}

// Answers reports whether an action may fail with a code, by the model or because every action may.
func (m *Models) Answers(version, action, code string) bool {
	if slices.Contains(everywhere, code) {
		return true
	}
	service := m.services[version]
	if service == nil {
		return false
	}
	return slices.ContainsFunc(service.Operations[action].Errors, func(e ref) bool {
		s := service.Shapes[e.Shape]
		return s != nil && s.Error.Code == code
	})
}

// CheckAnswer compares what is inside an answer's result with the model of its service.
func (m *Models) CheckAnswer(version, action string, result []query.Element) []Violation {
	service := m.services[version]
	c := check{action: action, shapes: service.Shapes}
	output := service.Operations[action].Output.Shape
	switch {
	case output == "" && result != nil:
		c.report("", "has no result in the model")
	case output != "":
		c.answer("", output, query.Element{Inside: result})
	}
	return c.found
}

// check is one comparison.
type check struct {
	action string
	form   url.Values
	shapes map[string]*shape
	used   map[string]bool
	found  []Violation
}

func (c *check) report(member, rule string) {
	c.found = append(c.found, Violation{c.action, member, rule})
}

// given reports whether there is a parameter of this name or below it.
func (c *check) given(name string) bool {
	if c.form.Has(name) {
		return true
	}
	for k := range c.form {
		if strings.HasPrefix(k, name+".") {
			return true
		}
	}
	return false
}

func (c *check) value(name, shapeName string) {
	s := c.shapes[shapeName]
	switch s.Type {
	case "structure":
		c.structure(name, s)
	case "list":
		c.list(name, s)
	case "map":
		c.report(name, "is a map, which is not checked")
	default:
		c.used[name] = true
		c.scalar(name, s, c.form.Get(name))
	}
}

func (c *check) structure(name string, s *shape) {
	prefix := name
	if prefix != "" {
		prefix += "."
	}
	for _, member := range s.Required {
		if !c.given(prefix + member) {
			c.report(prefix+member, "required")
		}
	}
	for member, r := range s.Members {
		if c.given(prefix + member) {
			c.value(prefix+member, r.Shape)
		}
	}
}

func (c *check) list(name string, s *shape) {
	n := 0
	if c.form.Has(name) { // how an empty list is said
		c.used[name] = true
		if c.form.Get(name) != "" {
			c.report(name, "not a list")
		}
	}
	for c.given(name + ".member." + strconv.Itoa(n+1)) {
		n++
		c.value(name+".member."+strconv.Itoa(n), s.Member.Shape)
	}
	c.bounds(name, s, float64(n), "fewer than %g members", "more than %g members")
}

func (c *check) scalar(name string, s *shape, v string) {
	switch s.Type {
	case "string":
		c.bounds(name, s, float64(utf8.RuneCountInString(v)), "shorter than %g", "longer than %g")
		if s.compiled != nil && !s.compiled.MatchString(v) {
			c.report(name, "does not match "+s.Pattern)
		}
		if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
			c.report(name, "not one of "+strings.Join(s.Enum, ", "))
		}
	case "integer", "long":
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			c.report(name, "not a whole number")
			return
		}
		c.bounds(name, s, float64(n), "less than %g", "more than %g")
	case "boolean":
		if v != "true" && v != "false" {
			c.report(name, "neither true nor false")
		}
	}
}

func (c *check) bounds(name string, s *shape, n float64, below, above string) {
	if s.Min != nil && n < *s.Min {
		c.report(name, fmt.Sprintf(below, *s.Min))
	}
	if s.Max != nil && n > *s.Max {
		c.report(name, fmt.Sprintf(above, *s.Max))
	}
}

// answer compares an element of an answer with its shape.
func (c *check) answer(name, shapeName string, e query.Element) {
	s := c.shapes[shapeName]
	switch s.Type {
	case "structure":
		given := map[string]bool{}
		for _, in := range e.Inside {
			given[in.Name] = true
			if member, ok := s.Members[in.Name]; ok {
				c.answer(name+"/"+in.Name, member.Shape, in)
			} else {
				c.report(name+"/"+in.Name, "not in the model")
			}
		}
		for _, member := range s.Required {
			if !given[member] {
				c.report(name+"/"+member, "required")
			}
		}
	case "list":
		for _, in := range e.Inside {
			if in.Name != "member" {
				c.report(name+"/"+in.Name, "not a member of a list")
			}
			c.answer(name+"/member", s.Member.Shape, in)
		}
	case "timestamp":
		if _, err := time.Parse(time.RFC3339, e.Value); err != nil {
			c.report(name, "not a time")
		}
	default:
		c.scalar(name, s, e.Value)
	}
}

// everywhere are the codes that the models leave out because any action may fail with them.
var everywhere = []string{"AccessDenied", "ValidationError", "InvalidAction"}
