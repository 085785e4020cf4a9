package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"

	"github.com/coffer-project/coffer/server/policytext"
)

var errDepth = fmt.Errorf("braces and brackets are nested deeper than %d", maxDepth)

// readHCL reads HCL version 1.
func readHCL(text string) (object, error) {
	return policytext.Read(text, maxDepth, func(list *ast.ObjectList, whole bool) (object, error) {
		if !whole {
			return nil, errors.New("policy is not valid HCL: it breaks off")
		}
		return hclObject(list)
	})
}

// readOldHCL drops an item that the end of the text cuts off.
func readOldHCL(text string) (object, error) {
	return policytext.Read(text, maxDepth, func(list *ast.ObjectList, _ bool) (object, error) { return hclObject(list) })
}

func hclObject(list *ast.ObjectList) (object, error) {
	var out object
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
			m := member{key: key, line: t.Pos.Line, value: value}
			if i == 0 {
				out = append(out, m)
			} else {
				value = object{m}
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
			return number(strconv.FormatInt(v, 10)), nil
		case float64:
			return floatNumber(v), nil
		case string, bool:
			return v, nil
		}
	}
	return nil, policytext.ErrInvalid
}

// readJSON reads the JSON form token by token: decoding into a map would silently drop all but the last of
// two members with one name, and with it perhaps a deny.
func readJSON(text string) (object, error) {
	r := jsonReader{text: text, dec: json.NewDecoder(strings.NewReader(text))}
	r.dec.UseNumber()
	v, err := r.value(0)
	if err != nil {
		return nil, r.wrap(err)
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, r.wrap(errors.New("text after the closing brace"))
	}
	doc, ok := v.(object)
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
		return number(t.String()), nil
	case json.Delim:
		if t == '{' {
			return r.object(depth)
		}
		return r.list(depth)
	default:
		return t, nil // string, bool, nil
	}
}

func (r *jsonReader) object(depth int) (object, error) {
	var out object
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
		out = append(out, member{key: key, line: line, value: v})
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

func floatNumber(f float64) number {
	if f == 0 {
		return "0" // not "-0"
	}
	return number(strconv.FormatFloat(f, 'f', -1, 64))
}
