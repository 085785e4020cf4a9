// Package hcl reads the text of policies, which strangers write: HCL version 1, or JSON. The HCL parser recurses on every
// brace and would take the process with it, panics on some texts, and silently drops an item that the end of the text cuts
// off; here such texts are rejected, or told apart. What a document means is said in package policy, and for password
// policies in package passpolicy. Start reading at Parse, which makes a document, then Read, which guards the parser.
package hcl

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/parser"
	"github.com/hashicorp/hcl/hcl/scanner"
	"github.com/hashicorp/hcl/hcl/token"
)

// ErrInvalid is that of a text on which the parser, or what reads its items, panicked.
var ErrInvalid = errors.New("policy is not valid HCL")

// A SyntaxError is what keeps a text from being parsed.
type SyntaxError struct {
	Line int // 0: not known
	Err  error
}

func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("line %d: %v", e.Line, e.Err)
}

func (e *SyntaxError) Unwrap() error { return e.Err }

// Read returns what convert makes of the items of a text, which must not be nested deeper than maxDepth. whole is
// false if an item is missing because the text breaks off. A panic in convert, too, makes a SyntaxError.
func Read[T any](text string, maxDepth int, convert func(list *ast.ObjectList, whole bool) (T, error)) (v T, err error) {
	defer func() {
		if recover() != nil {
			v, err = *new(T), &SyntaxError{Err: ErrInvalid}
		}
	}()
	text = strings.ReplaceAll(text, "\r\n", "\n") // as the parser does
	last, err := survey(text, maxDepth)
	if err != nil {
		return v, err
	}
	file, err := parser.Parse([]byte(text))
	var at *parser.PosError
	switch {
	case errors.As(err, &at):
		return v, &SyntaxError{at.Pos.Line, at.Err}
	case err != nil:
		return v, &SyntaxError{Err: err}
	}
	list, ok := file.Node.(*ast.ObjectList)
	if !ok {
		return v, &SyntaxError{Err: ErrInvalid}
	}
	return convert(list, complete(list, last))
}

// survey returns where the last token of a text begins, found by the scanner that the parser uses. Its error is that of
// a text that is nested too deeply.
func survey(text string, maxDepth int) (last token.Pos, err error) {
	s := scanner.New([]byte(text))
	s.Error = func(token.Pos, string) {} // the parser reports it
	for depth := 0; ; {
		t := s.Scan()
		switch t.Type {
		case token.LBRACE, token.LBRACK:
			if depth++; depth > maxDepth {
				return last, fmt.Errorf("braces and brackets are nested deeper than %d", maxDepth)
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

// complete reports whether the last item ends with the last token of the text.
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
