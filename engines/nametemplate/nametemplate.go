// Package nametemplate executes the templates in which people say how what engines make is to be named, and what value is made of the
// keys of a secret (value.go).
//
// A template is one of the standard library's text/template, of the part of that language that always comes to an end soon: no
// loops, no templates in templates, and functions whose results are bounded. Its author gets a text that says what is
// wrong with it. Start reading at Parse.
package nametemplate

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
)

const maxTemplateBytes = 4096

// Template is a template of a name that has been checked. Safe for concurrent use.
type Template struct{ parsed *template.Template }

// Execute fills the template in with a struct that has the fields that Parse was told of.
func (t *Template) Execute(data any) (string, error) {
	var out bounded
	if err := t.parsed.Execute(&out, data); err != nil {
		return "", err
	}
	return out.String(), nil
}

// bounded is a buffer that does not grow beyond MaxBytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > MaxBytes {
		return 0, errTooMuch
	}
	return b.Buffer.Write(p)
}

// Parse reads a template that may use the given fields of its data, and functions besides those that always make the same of
// the same: those of Fresh, or nil. Text makes something readable of its error.
func Parse(text string, fields []string, more template.FuncMap) (*Template, error) {
	funcs := maps.Clone(stable)
	maps.Copy(funcs, more)
	t, err := parsed(text, checker{fields: fields, funcs: funcs})
	if err != nil {
		return nil, err
	}
	return &Template{t}, nil
}

// parsed returns a template of which the checker refuses nothing.
func parsed(text string, c checker) (*template.Template, error) {
	if len(text) > maxTemplateBytes {
		return nil, fmt.Errorf("is longer than %d bytes", maxTemplateBytes)
	}
	t, err := template.New("").Option("missingkey=error").Funcs(c.funcs).Parse(text)
	if err != nil {
		return nil, err
	}
	if len(t.Templates()) > 1 {
		return nil, errNested
	}
	if t.Tree == nil { // nothing but comments and blanks
		return nil, fmt.Errorf("is empty")
	}
	return t, c.node(t.Root)
}

// builtins are the functions of the language itself that templates may use.
var builtins = map[string]bool{
	"and": true, "or": true, "not": true, "len": true,
	"eq": true, "ne": true, "lt": true, "le": true, "gt": true, "ge": true,
}

// checker refuses everything in a template that it does not know.
type checker struct {
	fields []string
	maps   string // a field that is a map, of which any key may be used; "": there is none
	funcs  template.FuncMap
	within bool // a with, where "." is one field
}

// whole refuses all of the data in one, if a map is among it.
func (c checker) whole(name string) error {
	if c.maps == "" || name == "." && c.within || name != "." && name != "$" {
		return nil
	}
	return fmt.Errorf("%q alone stands for everything: name a field, such as .%s.password", name, c.maps)
}

func (c checker) node(n parse.Node) error {
	switch n := n.(type) {
	case *parse.DotNode:
		return c.whole(".")
	case *parse.TextNode, *parse.CommentNode, *parse.NilNode, *parse.BoolNode, *parse.NumberNode, *parse.StringNode:
		return nil
	case *parse.FieldNode:
		return c.field(n.Ident)
	case *parse.VariableNode:
		if len(n.Ident) == 1 {
			return c.whole(n.Ident[0])
		}
		return c.field(n.Ident[1:])
	case *parse.IdentifierNode:
		if _, ours := c.funcs[n.Ident]; !ours && !builtins[n.Ident] {
			return fmt.Errorf("function %q cannot be used here", n.Ident)
		}
		return nil
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		return nodes(c, n.Nodes)
	case *parse.ActionNode:
		return c.node(n.Pipe)
	case *parse.PipeNode:
		return nodes(c, n.Cmds)
	case *parse.CommandNode:
		return nodes(c, n.Args)
	case *parse.IfNode:
		return nodes(c, []parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.WithNode:
		within := c
		within.within = true
		return cmp.Or(nodes(c, []parse.Node{n.Pipe, n.ElseList}), within.node(n.List))
	case *parse.TemplateNode:
		return errNested
	case *parse.RangeNode:
		return fmt.Errorf("loops (range) cannot be used here")
	}
	return fmt.Errorf("%q cannot be used here", n.String())
}

func nodes[N parse.Node](c checker, all []N) error {
	for _, n := range all {
		if err := c.node(n); err != nil {
			return err
		}
	}
	return nil
}

// field knows the fields of the data.
func (c checker) field(path []string) error {
	if c.maps != "" && path[0] == c.maps {
		if len(path) == 2 {
			return nil
		}
		return fmt.Errorf(".%s needs one key behind it, such as .%s.password", c.maps, c.maps)
	}
	if name := strings.Join(path, "."); !slices.Contains(c.fields, name) {
		last := len(c.fields) - 1
		return fmt.Errorf("there is no .%s: there are .%s and .%s", name, strings.Join(c.fields[:last], ", ."), c.fields[last])
	}
	return nil
}

// Text is the part of an error of a template that says something to its author.
func Text(err error) string {
	text := strings.TrimPrefix(err.Error(), "template: ")
	text = strings.TrimLeft(text, ":")
	const longest = 300
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}
