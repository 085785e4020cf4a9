package hcl

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"
)

// maxDepth is the limit of the nesting of braces and brackets.
const maxDepth = 16

var errDepth = fmt.Errorf("braces and brackets are nested deeper than %d", maxDepth)

// Object is a block or map of either syntax, in the order written; keys may repeat.
type Object []Member

// Member is one key of an Object with its value.
type Member struct {
	Key   string
	line  int
	Value any // string, bool, number, []any or Object; nil for JSON's null
}

// Number is the text of a number.
type Number string

// Errorf is an error about this member.
func (m *Member) Errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", m.line, fmt.Sprintf(format, args...))
}

// Parse reads a document in HCL version 1, or in JSON if its first character is "{".
func Parse(text string) (Object, error) {
	if isJSON(text) {
		return readJSON(text)
	}
	return Read(text, maxDepth, func(list *ast.ObjectList, whole bool) (Object, error) {
		if !whole {
			return nil, errors.New("policy is not valid HCL: it breaks off")
		}
		return hclObject(list)
	})
}

// ParseStored is Parse for texts that were accepted when they were written: it drops an item that the end of the text cuts off.
func ParseStored(text string) (Object, error) {
	if isJSON(text) {
		return readJSON(text)
	}
	return Read(text, maxDepth, func(list *ast.ObjectList, _ bool) (Object, error) { return hclObject(list) })
}

func isJSON(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), "{") }

func hclObject(list *ast.ObjectList) (Object, error) {
	var out Object
	for _, item := range list.Items {
		if len(item.Keys) == 0 || len(item.Keys) > 2 {
			return nil, fmt.Errorf("line %d: a block has one name and at most one label", item.Pos().Line)
		}
		value, err := hclValue(item.Val)
		if err != nil {
			return nil, err
		}
		// path "x" {…} becomes the same as path = {"x" = {…}}.
		for i := len(item.Keys) - 1; i >= 0; i-- {
			t := item.Keys[i].Token
			key, _ := t.Value().(string)
			m := Member{Key: key, line: t.Pos.Line, Value: value}
			if i == 0 {
				out = append(out, m)
			} else {
				value = Object{m}
			}
		}
	}
	return out, nil
}

func hclValue(n ast.Node) (any, error) {
	switch n := n.(type) {
	case *ast.ObjectType:
		return hclObject(n.List)
	case *ast.ListType:
		list := make([]any, 0, len(n.List))
		for _, item := range n.List {
			v, err := hclValue(item)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case *ast.LiteralType:
		switch v := n.Token.Value().(type) {
		case int64:
			return Number(strconv.FormatInt(v, 10)), nil
		case float64:
			return floatNumber(v), nil
		case string, bool:
			return v, nil
		}
	}
	return nil, ErrInvalid
}

// readJSON reads the JSON form token by token: decoding into a map would silently drop all but the last of
// two members with one name, and with it perhaps a deny.
func readJSON(text string) (Object, error) {
	r := jsonReader{text: text, dec: json.NewDecoder(strings.NewReader(text))}
	r.dec.UseNumber()
	v, err := r.value(0)
	if err != nil {
		return nil, r.wrap(err)
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, r.wrap(errors.New("text after the closing brace"))
	}
	doc, ok := v.(Object)
	if !ok {
		return nil, errors.New("policy is not a JSON object")
	}
	return doc, nil
}

type jsonReader struct {
	text string
	dec  *json.Decoder
}

func (r *jsonReader) line() int {
	return 1 + strings.Count(r.text[:min(int(r.dec.InputOffset()), len(r.text))], "\n")
}

func (r *jsonReader) wrap(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("line %d: %w", r.line(), err)
}

func (r *jsonReader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	t, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return Number(t.String()), nil
	case json.Delim:
		if t == '{' {
			return r.object(depth)
		}
		return r.list(depth)
	default:
		return t, nil // string, bool, nil
	}
}

func (r *jsonReader) object(depth int) (Object, error) {
	var out Object
	for r.dec.More() {
		t, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := t.(string)
		if !ok {
			return nil, errors.New("a member has no name")
		}
		line := r.line()
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, Member{Key: key, line: line, Value: v})
	}
	_, err := r.dec.Token() // the closing brace
	return out, err
}

func (r *jsonReader) list(depth int) ([]any, error) {
	out := []any{}
	for r.dec.More() {
		v, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := r.dec.Token() // the closing bracket
	return out, err
}

func floatNumber(f float64) Number {
	if f == 0 {
		return "0" // not "-0"
	}
	return Number(strconv.FormatFloat(f, 'f', -1, 64))
}

// Plain turns a value of the policy readers into what encoding/json writes.
func Plain(v any) any {
	switch v := v.(type) {
	case Number:
		return json.Number(v)
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = Plain(item)
		}
		return out
	case Object:
		out := make(map[string]any, len(v))
		for _, m := range v {
			out[m.Key] = Plain(m.Value)
		}
		return out
	}
	return v
}
