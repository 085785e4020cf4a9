package assertion

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/beevik/etree"
)

// Limits of a document. The largest that an identity provider was seen to send has about 1,000 elements, 12 deep.
const (
	maxDepth      = 40
	maxElements   = 10_000
	maxAttributes = 40 // of one element, with its namespace declarations
	maxNamespaces = 48 // in scope at one place
	// maxNamespaceBytes is the length of a namespace's name, which canonical forms repeat wherever it is used.
	maxNamespaceBytes = 256
	// maxWork bounds what canonicalisation does: it copies an element once for each of those around it, with its
	// attributes, and the namespaces in scope once. 1,500 values of three attributes each take about 50,000.
	maxWork = 150_000
)

// element is one of a parsed document. Names have the prefixes of spaces, whatever the document calls them; other
// namespaces are written out: "{urn:x}name".
type element struct {
	name       string
	attributes []attribute
	children   []*element
	text       string           // all of its own text, joined
	at         int              // how much of its parent's text is before it
	written    xml.StartElement // as the document has it: with its own prefixes, and with what it declares
	source     *source
}

// source is what a SignedInfo needs to be canonicalised without the rest.
type source struct {
	from, to   int64     // in the document
	namespaces []binding // in scope around it
}

type attribute struct{ name, value string }

// The namespaces we know. An attribute or element without one has a plain name.
var spaces = map[string]string{
	"urn:oasis:names:tc:SAML:2.0:protocol":      "samlp:",
	"urn:oasis:names:tc:SAML:2.0:assertion":     "saml:",
	"http://www.w3.org/2000/09/xmldsig#":        "ds:",
	"http://www.w3.org/2001/10/xml-exc-c14n#":   "ec:",
	"http://www.w3.org/2001/04/xmlenc#":         "xenc:",
	"http://www.w3.org/2009/xmlenc11#":          "xenc11:",
	"http://www.w3.org/2001/XMLSchema-instance": "xsi:",
	xmlSpace: "xml:",
}

const (
	xmlSpace   = "http://www.w3.org/XML/1998/namespace"
	xmlnsSpace = "http://www.w3.org/2000/xmlns/"
)

// get returns the value of an attribute and whether it is there.
func (e *element) get(name string) (string, bool) {
	for _, a := range e.attributes {
		if a.name == name {
			return a.value, true
		}
	}
	return "", false
}

// value returns the value of an attribute, "" without one.
func (e *element) value(name string) string {
	v, _ := e.get(name)
	return v
}

// child returns the first child of a name, or nil. The child of nil is nil.
func (e *element) child(name string) *element {
	if e == nil {
		return nil
	}
	for _, c := range e.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// all returns the children of a name, in order. Those of nil are none.
func (e *element) all(name string) []*element {
	var found []*element
	if e == nil {
		return nil
	}
	for _, c := range e.children {
		if c.name == name {
			found = append(found, c)
		}
	}
	return found
}

// parser makes a tree of tokens and rejects everything that two parsers might understand differently.
type parser struct {
	root       *element
	open       []opened
	namespaces []binding
	elements   int
	work       int
	ids        map[string]bool
}

type opened struct {
	element *element
	text    []byte
	scope   int // len(parser.namespaces) outside of it
}

type binding struct{ prefix, uri string }

var errCharset = errors.New("another character encoding")

// parse reads a document: UTF-8, one root and nothing around it, no document type, comment, processing instruction or
// CDATA, every prefix declared, no attribute twice, no ID twice, within the limits.
func parse(raw []byte) (*element, error) {
	if !utf8.Valid(raw) {
		return nil, reject(Encoding, "it is not UTF-8")
	}
	if bytes.Contains(raw, []byte("<![CDATA[")) {
		return nil, reject(Structure, "it has a CDATA section")
	}
	p := &parser{ids: map[string]bool{}}
	d := xml.NewDecoder(bytes.NewReader(raw))
	d.CharsetReader = func(string, io.Reader) (io.Reader, error) { return nil, errCharset }
	for {
		at := d.InputOffset()
		token, err := d.RawToken()
		switch {
		case errors.Is(err, io.EOF):
			return p.end()
		case errors.Is(err, errCharset):
			return nil, reject(Encoding, "it declares another encoding than UTF-8")
		case err != nil:
			return nil, reject(Structure, "it is not well-formed: %s", cut(err.Error()))
		}
		if err := p.token(token, at, d.InputOffset()); err != nil {
			return nil, err
		}
	}
}

// token takes a token that stands from at to end.
func (p *parser) token(token xml.Token, at, end int64) error {
	switch t := token.(type) {
	case xml.StartElement:
		return p.startElement(t, at)
	case xml.EndElement:
		return p.endElement(t, end)
	case xml.CharData:
		if len(p.open) > 0 {
			o := &p.open[len(p.open)-1]
			o.text = append(o.text, t...)
		} else if len(bytes.TrimSpace(t)) > 0 {
			return reject(Structure, "there is text around the document")
		}
	case xml.ProcInst:
		if t.Target != "xml" || at != 0 {
			return reject(Structure, "it has a processing instruction")
		}
	case xml.Comment:
		return reject(Structure, "it has a comment")
	default:
		return reject(Structure, "it has a document type or another directive")
	}
	return nil
}

func (p *parser) end() (*element, error) {
	if p.root == nil || len(p.open) > 0 {
		return nil, reject(Structure, "it ends too early")
	}
	return p.root, nil
}

// parseTree reads what the signature library has verified, by the rules of a document.
func parseTree(el *etree.Element) (*element, error) {
	p := &parser{ids: map[string]bool{}}
	if err := p.tree(el); err != nil {
		return nil, err
	}
	return p.end()
}

func (p *parser) tree(el *etree.Element) error {
	start := xml.StartElement{Name: xml.Name{Space: el.Space, Local: el.Tag}, Attr: make([]xml.Attr, len(el.Attr))}
	for i, a := range el.Attr {
		start.Attr[i] = xml.Attr{Name: xml.Name{Space: a.Space, Local: a.Key}, Value: a.Value}
	}
	if err := p.startElement(start, 0); err != nil {
		return err
	}
	for _, child := range el.Child {
		var err error
		switch c := child.(type) {
		case *etree.Element:
			err = p.tree(c)
		case *etree.CharData:
			err = p.token(xml.CharData(c.Data), 0, 0)
		default:
			err = reject(Structure, "what was signed has a comment or an instruction")
		}
		if err != nil {
			return err
		}
	}
	return p.endElement(start.End(), 0)
}

// tree returns an element as the signature library wants it: as the document has it, without what is around it.
func (e *element) tree() *etree.Element {
	el := &etree.Element{Space: e.written.Name.Space, Tag: e.written.Name.Local, Attr: make([]etree.Attr, len(e.written.Attr))}
	for i, a := range e.written.Attr {
		el.Attr[i] = etree.Attr{Space: a.Name.Space, Key: a.Name.Local, Value: a.Value}
	}
	e.inside(func(text string) { el.CreateText(text) }, func(c *element) { el.AddChild(c.tree()) })
	return el
}

// tokens adds what encoding/xml would read of an element to the list.
func (e *element) tokens(list []xml.Token) []xml.Token {
	list = append(list, e.written.Copy()) // who reads it changes the names of attributes
	e.inside(func(text string) { list = append(list, xml.CharData(text)) }, func(c *element) { list = c.tokens(list) })
	return append(list, e.written.End())
}

// inside calls a function for each text and one for each child, in their order.
func (e *element) inside(text func(string), child func(*element)) {
	from := 0
	for _, c := range e.children {
		if c.at > from {
			text(e.text[from:c.at])
		}
		child(c)
		from = c.at
	}
	if from < len(e.text) {
		text(e.text[from:])
	}
}

func (p *parser) startElement(t xml.StartElement, at int64) error {
	p.elements++
	switch {
	case p.elements > maxElements:
		return reject(Statement, "it has more than %d elements: send only those groups that matter, by a filter at the identity provider", maxElements)
	case len(p.open) >= maxDepth:
		return reject(Structure, "it is more than %d elements deep", maxDepth)
	case len(t.Attr) > maxAttributes:
		return reject(Structure, "the element %s has more than %d attributes", quote(t.Name.Local), maxAttributes)
	case p.root != nil && len(p.open) == 0:
		return reject(Structure, "it has a second root element")
	}
	e := &element{written: t}
	o := opened{element: e, scope: len(p.namespaces)}
	if err := p.declare(t.Attr, o.scope); err != nil {
		return err
	}
	if p.work += (len(p.open)+1)*(len(t.Attr)+1) + len(p.namespaces); p.work > maxWork {
		return reject(Statement, "it has too many elements with too many attributes: send only those groups that matter, by a filter at the identity provider")
	}
	var err error
	if e.name, err = p.resolve(t.Name, true); err != nil {
		return err
	}
	if err := p.attributes(e, t.Attr); err != nil {
		return err
	}
	if e.name == "ds:SignedInfo" {
		e.source = &source{from: at, namespaces: slices.Clone(p.namespaces[:o.scope])}
	}
	if p.root == nil {
		p.root = e
	} else {
		parent := p.open[len(p.open)-1]
		e.at = len(parent.text)
		parent.element.children = append(parent.element.children, e)
	}
	p.open = append(p.open, o)
	return nil
}

func (p *parser) endElement(t xml.EndElement, end int64) error {
	if len(p.open) == 0 || p.open[len(p.open)-1].element.written.Name != t.Name {
		return reject(Structure, "the element %s ends without having started", quote(t.Name.Local))
	}
	o := p.open[len(p.open)-1]
	o.element.text = string(o.text)
	if o.element.source != nil {
		o.element.source.to = end
	}
	p.namespaces = p.namespaces[:o.scope]
	p.open = p.open[:len(p.open)-1]
	return nil
}

// declare takes in the namespaces that an element declares; those from scope on are its own.
func (p *parser) declare(attributes []xml.Attr, scope int) error {
	for _, a := range attributes {
		prefix, is := declares(a.Name)
		if !is {
			continue
		}
		switch {
		case a.Value == "":
			return reject(Structure, "it declares the namespace prefix %s as nothing", quote(prefix))
		case prefix == "xml" || prefix == "xmlns" || a.Value == xmlSpace || a.Value == xmlnsSpace:
			return reject(Structure, "it declares a reserved namespace")
		case slices.ContainsFunc(p.namespaces[scope:], func(b binding) bool { return b.prefix == prefix }):
			return reject(Structure, "an element declares the namespace prefix %s twice", quote(prefix))
		case len(p.namespaces) >= maxNamespaces:
			return reject(Structure, "it has more than %d namespaces at one place", maxNamespaces)
		case len(a.Value) > maxNamespaceBytes:
			return reject(Structure, "it has a namespace with a name of more than %d bytes", maxNamespaceBytes)
		}
		p.namespaces = append(p.namespaces, binding{prefix, a.Value})
	}
	return nil
}

// declares returns the prefix that an attribute declares ("" for the default namespace), and whether it declares one.
func declares(n xml.Name) (string, bool) {
	if n.Space == "" && n.Local == "xmlns" {
		return "", true
	}
	return n.Local, n.Space == "xmlns"
}

// resolve returns a name with one of our prefixes. Without a prefix only elements are in the default namespace.
func (p *parser) resolve(n xml.Name, isElement bool) (string, error) {
	if n.Local == "" || strings.Contains(n.Local, ":") || strings.Contains(n.Space, ":") {
		return "", reject(Structure, "the name %s has a colon at a wrong place", quote(n.Local))
	}
	if n.Space == "xml" {
		return "xml:" + n.Local, nil
	}
	if n.Space == "" && !isElement {
		return n.Local, nil
	}
	for _, b := range slices.Backward(p.namespaces) {
		if b.prefix != n.Space {
			continue
		}
		if ours, ok := spaces[b.uri]; ok {
			return ours + n.Local, nil
		}
		return "{" + b.uri + "}" + n.Local, nil
	}
	if n.Space == "" {
		return n.Local, nil
	}
	return "", reject(Structure, "the namespace prefix %s is not declared", quote(n.Space))
}

func (p *parser) attributes(e *element, attributes []xml.Attr) error {
	for _, a := range attributes {
		if _, is := declares(a.Name); is {
			if strings.Contains(a.Name.Local, ":") {
				return reject(Structure, "the name %s has a colon at a wrong place", quote(a.Name.Local))
			}
			continue
		}
		name, err := p.resolve(a.Name, false)
		if err != nil {
			return err
		}
		if _, twice := e.get(name); twice {
			return reject(Structure, "the element %s has the attribute %s twice", quote(e.name), quote(name))
		}
		e.attributes = append(e.attributes, attribute{name, a.Value})
		// What may be meant as an identifier has to be one of its own, in whatever way a parser looks for it.
		if id := name[strings.LastIndexAny(name, ":}")+1:]; strings.EqualFold(id, "ID") {
			if p.ids[a.Value] {
				return reject(Structure, "it has the ID %s twice", quote(a.Value))
			}
			p.ids[a.Value] = true
		}
	}
	return nil
}
