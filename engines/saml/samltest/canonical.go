package samltest

import (
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
)

// Canonicalisation algorithms; each has a form with "#WithComments" or "WithComments" behind it.
const (
	Exclusive   = "http://www.w3.org/2001/10/xml-exc-c14n#"
	Inclusive10 = "http://www.w3.org/TR/2001/REC-xml-c14n-20010315"
	Inclusive11 = "http://www.w3.org/2006/12/xml-c14n11"
)

// node is an element. Its children are *node, text (string) and comment.
type node struct {
	parent     *node
	name       xml.Name // Space is the prefix
	attributes []xml.Attr
	namespaces map[string]string // declared here, by prefix
	children   []any
}

type comment string

func parse(text string) (*node, error) {
	d := xml.NewDecoder(strings.NewReader(text))
	root := &node{}
	at := root
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			n := &node{parent: at, name: token.Name, namespaces: map[string]string{}}
			for _, a := range token.Attr {
				switch {
				case a.Name.Space == "xmlns":
					n.namespaces[a.Name.Local] = a.Value
				case a.Name.Space == "" && a.Name.Local == "xmlns":
					n.namespaces[""] = a.Value
				default:
					n.attributes = append(n.attributes, a)
				}
			}
			at.children = append(at.children, n)
			at = n
		case xml.EndElement:
			if at.parent == nil {
				return nil, errors.New("an end without a start")
			}
			at = at.parent
		case xml.CharData:
			at.children = append(at.children, string(token))
		case xml.Comment:
			at.children = append(at.children, comment(token))
		}
	}
	return root, nil
}

// find returns the first element for which match is true, or nil.
func (n *node) find(match func(*node) bool) *node {
	for _, c := range n.children {
		if e, ok := c.(*node); ok {
			if match(e) {
				return e
			}
			if found := e.find(match); found != nil {
				return found
			}
		}
	}
	return nil
}

func (n *node) attribute(local string) string {
	for _, a := range n.attributes {
		if a.Name.Space == "" && a.Name.Local == local {
			return a.Value
		}
	}
	return ""
}

// scope returns the namespaces in scope, by prefix. xmlns="" counts as none.
func (n *node) scope() map[string]string {
	if n.parent == nil {
		return map[string]string{}
	}
	s := n.parent.scope()
	maps.Copy(s, n.namespaces)
	if s[""] == "" {
		delete(s, "")
	}
	return s
}

// canonical returns the canonical form of an element and what is in it. prefixes are those treated as in inclusive
// canonicalisation ("#default" is the one without a name).
func canonical(n *node, algorithm string, prefixes []string) string {
	c := canonicaliser{exclusive: strings.HasPrefix(algorithm, Exclusive), comments: strings.HasSuffix(algorithm, "WithComments"), prefixes: prefixes}
	var inherited []xml.Attr
	if !c.exclusive {
		for a := n.parent; a != nil; a = a.parent {
			for _, attr := range a.attributes {
				if attr.Name.Space == "xml" && (algorithm != Inclusive11 || attr.Name.Local != "id") {
					inherited = append(inherited, attr)
				}
			}
		}
	}
	c.element(n, map[string]string{}, inherited)
	return c.out.String()
}

type canonicaliser struct {
	out                 strings.Builder
	exclusive, comments bool
	prefixes            []string
}

var (
	textEscapes      = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "\r", "&#xD;")
	attributeEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", `"`, "&quot;", "\t", "&#x9;", "\n", "&#xA;", "\r", "&#xD;")
)

func qualified(n xml.Name) string {
	if n.Space == "" {
		return n.Local
	}
	return n.Space + ":" + n.Local
}

func (c *canonicaliser) element(n *node, rendered map[string]string, inherited []xml.Attr) {
	scope := n.scope()
	rendered = maps.Clone(rendered)
	c.out.WriteString("<" + qualified(n.name))
	for _, prefix := range slices.Sorted(maps.Keys(c.wanted(n, scope))) {
		if prefix == "xml" || rendered[prefix] == scope[prefix] {
			continue
		}
		rendered[prefix] = scope[prefix]
		name := "xmlns"
		if prefix != "" {
			name = "xmlns:" + prefix
		}
		c.out.WriteString(" " + name + `="` + attributeEscapes.Replace(scope[prefix]) + `"`)
	}
	attributes := slices.Clone(n.attributes)
	for _, a := range inherited {
		if !slices.ContainsFunc(attributes, func(b xml.Attr) bool { return a.Name == b.Name }) {
			attributes = append(attributes, a)
		}
	}
	uri := func(a xml.Attr) string {
		switch a.Name.Space {
		case "":
			return ""
		case "xml":
			return "http://www.w3.org/XML/1998/namespace"
		}
		return scope[a.Name.Space]
	}
	slices.SortStableFunc(attributes, func(a, b xml.Attr) int {
		if d := strings.Compare(uri(a), uri(b)); d != 0 {
			return d
		}
		return strings.Compare(a.Name.Local, b.Name.Local)
	})
	for _, a := range attributes {
		c.out.WriteString(" " + qualified(a.Name) + `="` + attributeEscapes.Replace(a.Value) + `"`)
	}
	c.out.WriteString(">")
	for _, child := range n.children {
		switch child := child.(type) {
		case *node:
			c.element(child, rendered, nil)
		case string:
			c.out.WriteString(textEscapes.Replace(child))
		case comment:
			if c.comments {
				c.out.WriteString("<!--" + string(child) + "-->")
			}
		}
	}
	c.out.WriteString("</" + qualified(n.name) + ">")
}

// wanted returns the prefixes whose namespaces an element has to show, unless an ancestor did.
func (c *canonicaliser) wanted(n *node, scope map[string]string) map[string]bool {
	w := map[string]bool{}
	if !c.exclusive {
		for prefix := range scope {
			w[prefix] = true
		}
		w[""] = true
		return w
	}
	w[n.name.Space] = true
	for _, a := range n.attributes {
		if a.Name.Space != "" {
			w[a.Name.Space] = true
		}
	}
	for _, prefix := range c.prefixes {
		if prefix == "#default" {
			prefix = ""
		}
		if _, ok := scope[prefix]; ok {
			w[prefix] = true
		}
	}
	return w
}
