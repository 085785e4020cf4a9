package passpolicy

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/parser"
	"github.com/hashicorp/hcl/hcl/scanner"
	"github.com/hashicorp/hcl/hcl/token"
)

var errSyntax = errors.New("it is not valid HCL: write lines such as \"length = 20\" and blocks such as rule \"charset\" { charset = \"abc\" }")

// readHCL reads the text of a policy. The parser recurses on every brace and panics on some texts, so size and
// depth are checked first and panics are caught.
func readHCL(text string) (p *Policy, err error) {
	text = strings.ReplaceAll(text, "\r\n", "\n") // as the parser does
	switch {
	case len(text) > MaxTextBytes:
		return nil, fmt.Errorf("it is longer than %d bytes", MaxTextBytes)
	case !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0:
		return nil, errors.New("it is not valid UTF-8, or contains a NUL byte")
	}
	depth, last := survey(text)
	if depth > maxDepth {
		return nil, fmt.Errorf("braces and brackets are nested deeper than %d", maxDepth)
	}
	defer func() {
		if recover() != nil {
			p, err = nil, errSyntax
		}
	}()
	file, err := parser.Parse([]byte(text))
	if err != nil {
		var at *parser.PosError
		if errors.As(err, &at) {
			return nil, fmt.Errorf("line %d: %w", at.Pos.Line, errSyntax)
		}
		return nil, errSyntax
	}
	list, ok := file.Node.(*ast.ObjectList)
	if !ok || !complete(list, last) {
		return nil, errSyntax
	}
	p = new(Policy)
	for _, item := range list.Items {
		if err := p.add(item); err != nil {
			return nil, fmt.Errorf("line %d: %w", item.Pos().Line, err)
		}
	}
	return p, nil
}

// survey returns how deep a text is nested, and where its last token begins.
func survey(text string) (deepest int, last token.Pos) {
	s := scanner.New([]byte(text))
	s.Error = func(token.Pos, string) {} // the parser reports it
	for depth := 0; ; {
		t := s.Scan()
		switch t.Type {
		case token.LBRACE, token.LBRACK:
			depth++
			deepest = max(deepest, depth)
		case token.RBRACE, token.RBRACK:
			depth--
		case token.COMMENT:
			continue
		case token.EOF:
			return deepest, last
		}
		last = t.Pos
	}
}

// complete reports whether the last item ends with the last token. The parser silently drops an item that the end
// of the text cuts off.
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

// add reads one item of the top level.
func (p *Policy) add(item *ast.ObjectItem) error {
	switch keys := keysOf(item); {
	case len(keys) == 1 && keys[0] == "length":
		if p.length != 0 {
			return errors.New("length is there twice")
		}
		n, err := number(item.Val)
		if err != nil || n <= 0 {
			return errors.New("length must be a whole number, greater than 0")
		}
		p.length = n
		return nil
	case len(keys) == 2 && keys[0] == "rule" && keys[1] == "charset":
		r, err := readRule(item)
		p.rules = append(p.rules, r)
		return err
	}
	return errors.New("only \"length\" and rule \"charset\" are known")
}

func readRule(item *ast.ObjectItem) (rule, error) {
	r := rule{line: item.Pos().Line}
	object, ok := item.Val.(*ast.ObjectType)
	if !ok {
		return r, errSyntax
	}
	seen := map[string]bool{}
	for _, field := range object.List.Items {
		keys := keysOf(field)
		if len(keys) != 1 || keys[0] != "charset" && keys[0] != "min-chars" {
			return r, errors.New("only \"charset\" and \"min-chars\" are known in a rule")
		}
		if seen[keys[0]] {
			return r, fmt.Errorf("%s is there twice in a rule", keys[0])
		}
		seen[keys[0]] = true
		var err error
		if keys[0] == "charset" {
			r.charset, ok = literal(field.Val).(string)
		} else if r.min, err = number(field.Val); err != nil || r.min < 0 {
			return r, errors.New("min-chars must be a whole number, 0 or more")
		}
	}
	if !ok || r.charset == "" {
		return r, errors.New("charset must be a text with at least one character")
	}
	return r, nil
}

func keysOf(item *ast.ObjectItem) []string {
	var keys []string
	for _, k := range item.Keys {
		text, _ := k.Token.Value().(string)
		keys = append(keys, text)
	}
	return keys
}

func literal(n ast.Node) any {
	if l, ok := n.(*ast.LiteralType); ok {
		return l.Token.Value()
	}
	return nil
}

// number returns a whole number that fits any limit here.
func number(n ast.Node) (int, error) {
	v, ok := literal(n).(int64)
	if !ok || v != int64(int32(v)) {
		return 0, errors.New("not a whole number")
	}
	return int(v), nil
}
