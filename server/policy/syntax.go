package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/parser"
	"github.com/hashicorp/hcl/hcl/scanner"
	"github.com/hashicorp/hcl/hcl/token"
)

var errDepth = fmt.Errorf("braces and brackets are nested deeper than %d", maxDepth)

// readHCL reads HCL version 1. The parser recurses on every brace and would take the process with it on
// hostile text, so the depth is counted first, by the same scanner the parser uses.
func readHCL(text string) (object, error) { return readHCLItems(text, true) }

// readOldHCL drops an item that the end of the text cuts off.
func readOldHCL(text string) (object, error) { return readHCLItems(text, false) }

func readHCLItems(text string, whole bool) (doc object, err error) {
	text = strings.ReplaceAll(text, "\r\n", "\n") // as the parser does
	defer func() {
		if r := recover(); r != nil {
			doc, err = nil, errors.New("policy is not valid HCL")
		}
	}()
	last, err := survey(text)
	if err != nil {
		return nil, err
	}
	file, err := parser.Parse([]byte(text))
	if err != nil {
		var at *parser.PosError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("line %d: %w", at.Pos.Line, at.Err)
		}
		return nil, err
	}
	list, ok := file.Node.(*ast.ObjectList)
	if !ok || whole && !complete(list, last) {
		return nil, errors.New("policy is not valid HCL: it breaks off")
	}
	return hclObject(list)
}

// complete reports whether the last item ends with the last token of the text. The parser silently drops an item that
// the end of the text cuts off.
func complete(list *ast.ObjectList, last token.Pos) bool {
	if len(list.Items) == 0 {
		return !last.IsValid()
	}
	switch v := list.Items[len(list.Items)-1].Val.(type) {
	case *ast.LiteralType:
		return v.Token.Pos.Offset == last.Offset
	case *ast.ObjectType:
		return v.Rbrace.Offset == last.Offset
	case *ast.ListType:
		return v.Rbrack.Offset == last.Offset
	}
	return false
}

// survey returns where the last token of a text begins. Its error is that of one that is nested too deeply.
func survey(text string) (last token.Pos, err error) {
	s := scanner.New([]byte(text))
	s.Error = func(token.Pos, string) {} // the parser reports it
	for depth := 0; ; {
		t := s.Scan()
		switch t.Type {
		case token.LBRACE, token.LBRACK:
			if depth++; depth > maxDepth {
				return last, errDepth
			}
		case token.RBRACE, token.RBRACK:
			depth--
		case token.COMMENT:
			continue
		case token.EOF:
			return last, nil
		}
		last = t.Pos
	}
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
	return nil, errors.New("policy is not valid HCL")
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
		return canonicalNumber(t.String()), nil
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

// canonicalNumber gives numbers that are equal the same text: 60, 60.0 and 6e1 are all "60".
func canonicalNumber(text string) number {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return number(strconv.FormatInt(i, 10))
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return number(text)
	}
	return floatNumber(f)
}

func floatNumber(f float64) number {
	if f == 0 {
		return "0" // not "-0"
	}
	return number(strconv.FormatFloat(f, 'f', -1, 64))
}
