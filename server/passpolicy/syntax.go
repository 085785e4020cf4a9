package passpolicy

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/hcl/ast"

	"github.com/coffer-project/coffer/server/policy/hcl"
)

var errSyntax = errors.New("it is not valid HCL: write lines such as \"length = 20\" and blocks such as rule \"charset\" { charset = \"abc\" }")

// readHCL reads the text of a policy.
func readHCL(text string) (*Policy, error) {
	switch {
	case len(strings.ReplaceAll(text, "\r\n", "\n")) > MaxTextBytes:
		return nil, fmt.Errorf("it is longer than %d bytes", MaxTextBytes)
	case !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0:
		return nil, errors.New("it is not valid UTF-8, or contains a NUL byte")
	}
	p, err := hcl.Read(text, maxDepth, readItems)
	if syntax := (*hcl.SyntaxError)(nil); errors.As(err, &syntax) {
		if syntax.Line > 0 {
			return nil, fmt.Errorf("line %d: %w", syntax.Line, errSyntax)
		}
		return nil, errSyntax
	}
	return p, err
}

func readItems(list *ast.ObjectList, whole bool) (*Policy, error) {
	if !whole {
		return nil, errSyntax
	}
	p := new(Policy)
	for _, item := range list.Items {
		if err := p.add(item); err != nil {
			return nil, fmt.Errorf("line %d: %w", item.Pos().Line, err)
		}
	}
	return p, nil
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
