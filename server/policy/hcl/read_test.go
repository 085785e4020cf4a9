package hcl_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/hcl/ast"

	"github.com/coffer-project/coffer/server/policy/hcl"
)

func TestRead(t *testing.T) {
	const broken = -1
	tests := []struct {
		name, text string
		items      int // or broken
		whole      bool
		line       int // of a SyntaxError
	}{
		{"nothing", "", 0, true, 0},
		{"a comment", "# a {{{{{{", 0, true, 0},
		{"literals, a block and a list", "a = 1\r\nb \"x\" {\r\n  c = [1, 2]\r\n}\nd = [[1]] # end", 3, true, 0},
		{"it breaks off", "a = 1\nb = 2\nc =", 2, false, 0},
		{"a mistake", "a = 1\nb = = 2\n", broken, false, 2},
		{"too deep", "a = [[[[1]]]]", broken, false, 0},
		{"much too deep", strings.Repeat("a {", 1<<16), broken, false, 0},
	}
	for _, tt := range tests {
		type answer struct {
			items int
			whole bool
		}
		got, err := hcl.Read(tt.text, 3, func(list *ast.ObjectList, whole bool) (answer, error) {
			return answer{len(list.Items), whole}, nil
		})
		if (err != nil) != (tt.items == broken) || err == nil && got != (answer{tt.items, tt.whole}) {
			t.Errorf("%s: Read = %+v, %v", tt.name, got, err)
		}
		var syntax *hcl.SyntaxError
		if errors.As(err, &syntax) != (tt.line > 0) || syntax != nil && syntax.Line != tt.line {
			t.Errorf("%s: Read = %v, want line %d", tt.name, err, tt.line)
		}
	}
}

// What a text makes those panic who read its items is a mistake of the text.
func TestReadCatchesPanics(t *testing.T) {
	got, err := hcl.Read("a = 1", 3, func(*ast.ObjectList, bool) (int, error) { panic("as a number that is too large does") })
	if got != 0 || !errors.Is(err, hcl.ErrInvalid) {
		t.Errorf("Read = %d, %v", got, err)
	}
}
