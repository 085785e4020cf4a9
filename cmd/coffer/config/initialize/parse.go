// Package initialize has the initialize stanzas of a configuration: requests that the first node of a new cluster runs once, with its
// root token, which no one sees. Their values may come from variables, files, and requests and responses before them. Start reading at
// Request and Run.
package initialize

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/token"
)

// Request is one request. Path, Token and what is in Data are plain values, lists, maps, or a *Source in place of one.
type Request struct {
	Block, Name  string
	Operation    string // read, list, create, update, patch or delete
	Path, Token  any    // texts; Token nil: the root token
	Data         map[string]any
	AllowFailure bool
}

// String names the request and nothing of its values, which may be secret.
func (r Request) String() string { return fmt.Sprintf("request %q of initialize %q", r.Name, r.Block) }

// GoString is String.
func (r Request) GoString() string { return r.String() }

// Source is where a value comes from.
type Source struct {
	Kind     string // env, file, request or response
	Type     string // string, int, float64, bool, []string, map or any
	EnvVar   string
	Required bool // the variable must be set
	Path     string
	Block    string
	Request  string
	Selector []string
}

var (
	kinds      = []string{"env", "file", "request", "response"}
	types      = []string{"string", "int", "float64", "bool", "[]string", "map", "any"}
	operations = []string{"read", "list", "create", "update", "patch", "delete"}
	synonyms   = map[string]string{"map[string]interface{}": "map", "interface{}": "any"}
	nameRule   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
)

// Parse reads a stanza. Errors name the request and the key, and no value.
func Parse(item *ast.ObjectItem) ([]Request, error) {
	var out []Request
	for _, block := range below(item) {
		name := keyOf(block)
		if !nameRule.MatchString(name) {
			return nil, fmt.Errorf("initialize: the name %q must be letters, digits, _ and -", name)
		}
		for _, stanza := range below(block) {
			if keyOf(stanza) != "request" {
				return nil, fmt.Errorf(`initialize %q has stanzas request "name" { … } only, and no %q`, name, keyOf(stanza))
			}
			for _, r := range below(stanza) {
				request, err := parse(name, r)
				if err != nil {
					return nil, err
				}
				out = append(out, request)
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New(`initialize needs a name and requests: initialize "name" { request "name" { operation = "update" path = "…" } }`)
	}
	return out, nil
}

func parse(block string, item *ast.ObjectItem) (Request, error) {
	r := Request{Block: block, Name: keyOf(item)}
	if !nameRule.MatchString(r.Name) {
		return r, fmt.Errorf("%s: the name must be letters, digits, _ and -", r)
	}
	fields, err := object(below(item))
	if err != nil {
		return r, fmt.Errorf("%s: %w", r, err)
	}
	for key, v := range fields {
		ok := true
		switch key {
		case "operation":
			r.Operation, ok = v.(string)
			if ok = ok && slices.Contains(operations, r.Operation); !ok {
				return r, fmt.Errorf("%s: operation must be one of %s", r, strings.Join(operations, ", "))
			}
		case "path":
			r.Path, ok = v, isText(v)
		case "token":
			r.Token, ok = v, isText(v)
		case "data":
			r.Data, ok = v.(map[string]any)
		case "allow_failure":
			r.AllowFailure, ok = v.(bool)
		default:
			return r, fmt.Errorf("%s: unknown key %q", r, key)
		}
		if !ok {
			return r, fmt.Errorf("%s: %s has a value of the wrong type", r, key)
		}
	}
	if r.Operation == "" || r.Path == nil {
		return r, fmt.Errorf("%s: operation and path are required", r)
	}
	return r, nil
}

// Check reports names that are there twice, and values of requests that are not before the one that needs them.
func Check(all []Request) error {
	seen := map[[2]string]bool{}
	for _, r := range all {
		for s := range sources([]any{r.Path, r.Token, r.Data}) {
			if s.Block != "" && !seen[[2]string{s.Block, s.Request}] {
				return fmt.Errorf("%s: there is no request %q of initialize %q before it", r, s.Request, s.Block)
			}
		}
		if key := [2]string{r.Block, r.Name}; seen[key] {
			return fmt.Errorf("%s is there twice", r)
		} else {
			seen[key] = true
		}
	}
	return nil
}

// sources yields all that are in a value.
func sources(v any) func(yield func(*Source) bool) {
	return func(yield func(*Source) bool) {
		_, _ = replace(v, func(s *Source) (any, error) {
			yield(s)
			return nil, nil
		})
	}
}

func isText(v any) bool {
	switch v.(type) {
	case string, *Source:
		return true
	}
	return false
}

func keyOf(item *ast.ObjectItem) string { return strings.Trim(item.Keys[0].Token.Text, `"`) }

// below returns what is in an item: the parser of JSON joins the keys of objects that have nothing but objects.
func below(item *ast.ObjectItem) []*ast.ObjectItem {
	if len(item.Keys) > 1 {
		return []*ast.ObjectItem{{Keys: item.Keys[1:], Assign: item.Assign, Val: item.Val}}
	}
	var all []*ast.ObjectItem
	switch v := item.Val.(type) {
	case *ast.ObjectType:
		all = v.List.Items
	case *ast.ListType:
		for _, each := range v.List {
			if o, ok := each.(*ast.ObjectType); ok {
				all = append(all, o.List.Items...)
			}
		}
	}
	return all
}

// object returns a map, or the *Source that it describes.
func object(items []*ast.ObjectItem) (map[string]any, error) {
	out := map[string]any{}
	for _, item := range items {
		key, joined := keyOf(item), len(item.Keys) > 1
		var v any
		var err error
		if joined {
			v, err = orSource(below(item))
		} else {
			v, err = value(item.Val)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		switch before, twice := out[key]; {
		case !twice:
			out[key] = v
		case joined:
			if !merge(before, v) {
				return nil, fmt.Errorf("%s is there twice", key)
			}
		default: // JSON: a list of objects
			list, isList := before.([]any)
			if !isList {
				list = []any{before}
			}
			out[key] = append(list, v)
		}
	}
	return out, nil
}

// merge adds the keys of one map to another.
func merge(into, from any) bool {
	a, ok := into.(map[string]any)
	b, ok2 := from.(map[string]any)
	if !ok || !ok2 {
		return false
	}
	for k, v := range b {
		if before, twice := a[k]; twice && !merge(before, v) {
			return false
		} else if !twice {
			a[k] = v
		}
	}
	return true
}

func orSource(items []*ast.ObjectItem) (any, error) {
	fields, err := object(items)
	if err != nil {
		return nil, err
	}
	if _, ok := fields["eval_source"]; !ok {
		return fields, nil
	}
	return source(fields)
}

func value(n ast.Node) (any, error) {
	switch v := n.(type) {
	case *ast.LiteralType:
		if v.Token.Type == token.HEREDOC || v.Token.Type == token.STRING || v.Token.Type == token.BOOL || v.Token.Type == token.NUMBER || v.Token.Type == token.FLOAT {
			return v.Token.Value(), nil
		}
	case *ast.ListType:
		out := make([]any, 0, len(v.List))
		for _, each := range v.List {
			one, err := value(each)
			if err != nil {
				return nil, err
			}
			out = append(out, one)
		}
		return out, nil
	case *ast.ObjectType:
		return orSource(v.List.Items)
	}
	return nil, errors.New("a value of no known type")
}

func source(fields map[string]any) (*Source, error) {
	s := new(Source)
	for key, v := range fields {
		text, ok := v.(string)
		switch key {
		case "eval_source":
			s.Kind = text
		case "eval_type":
			s.Type = text
			if synonym := synonyms[text]; synonym != "" {
				s.Type = synonym
			}
		case "env_var":
			s.EnvVar = text
		case "path":
			s.Path = text
		case "initialize_name":
			s.Block = text
		case "request_name", "response_name":
			s.Request = text
		case "require_present":
			s.Required, ok = v.(bool)
		case "field_selector":
			if s.Selector, ok = texts(v); !ok {
				return nil, errors.New("field_selector must be a text or a list of texts")
			}
		default:
			return nil, fmt.Errorf("unknown key %q beside eval_source", key)
		}
		if !ok {
			return nil, fmt.Errorf("%s has a value of the wrong type", key)
		}
	}
	missing := ""
	switch s.Kind {
	case "env":
		if s.EnvVar == "" {
			missing = "env_var"
		}
	case "file":
		if s.Path == "" {
			missing = "path"
		}
	case "request", "response":
		if s.Block == "" || s.Request == "" || len(s.Selector) == 0 {
			missing = "initialize_name, request_name and field_selector"
		}
	default:
		return nil, fmt.Errorf("eval_source must be one of %s", strings.Join(kinds, ", "))
	}
	switch {
	case missing != "":
		return nil, fmt.Errorf("eval_source %q needs %s", s.Kind, missing)
	case !slices.Contains(types, s.Type):
		return nil, fmt.Errorf("eval_type must be one of %s", strings.Join(types, ", "))
	}
	return s, nil
}

func texts(v any) ([]string, bool) {
	if text, ok := v.(string); ok {
		return []string{text}, true
	}
	list, ok := v.([]any)
	var out []string
	for _, each := range list {
		text, isText := each.(string)
		out, ok = append(out, text), ok && isText
	}
	return out, ok
}
