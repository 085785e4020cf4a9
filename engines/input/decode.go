// Package input reads what a request gives to a route. A route declares its fields once, as a struct with tags; Declare works out
// how they are read. Decode fills the struct in for the handler, and reports everything that is wrong at once. Input has the
// same values in normal form for policies, which judge a request without handling it. Bodies are scanned by package jsontext.
// Start reading at the tags in decode.go, then Plan.
package input

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/input/jsontext"
)

// How input structs declare fields. Each exported field of a struct given to Declare is one input field; embedded
// structs are flattened. Tags:
//
//	json:"name"      the field's name; a name that occurs as "{name}" in the pattern of the route is a path parameter
//	help:"…"         one sentence for people
//	default:"…"      the value when the field is absent, in the form a query would carry
//	required:"true"  the field must be there, and not be an empty text, list or map
//	enum:"a,b"       the only texts allowed
//	max:"512"        most bytes of a text or of raw JSON, most elements of a list or map
//	query:"true"     also taken from the query string; a Read, List or Delete takes every field from there
//	alias:"name"     the field is another name of this one; several are separated by commas
//	form:"name"      texts that the handler makes the same of: see forms
//	body:"true"      receives the entire body (json.RawMessage or Object); excludes other body fields
//
// Types: string kinds, Sensitive, bool, int, int64, float64, Duration, StringList, StringMap, Object,
// json.RawMessage, map[string]json.RawMessage, and pointers to them, which stay nil when the field is absent.
// Raw JSON shares the request's body: do not modify it. A null is an absent field. Numbers and booleans may
// come as texts and texts as numbers or booleans.

// Field is one input field of a route, as declared by the tags of its input struct.
type Field struct {
	Name     string
	Type     string // "string", "boolean", "integer", "number", "duration", "list", "map", "object" or "any"
	In       string // "path", "query" or "body"
	Required bool
	Default  string
	Help     string
	Enum     []string // the only values allowed; nil when not restricted
	Max      int      // most bytes (texts, raw JSON) or elements (lists, maps); 0 is no limit of its own
	// Sensitive marks a field whose value must not be shown.
	Sensitive bool
	// Alias names the fields that this one is another name of; nil for most.
	Alias []string
	// Form says which texts are the same value: see forms. "" for most.
	Form string
	// Whole marks the one field that receives the entire body: the route takes free-form objects.
	Whole bool
}

// Plan is what is known about an input struct from its type, worked out once at start-up.
type Plan struct {
	fields   []field
	byName   map[string]int
	whole    int           // index of the field that receives the entire body, or -1
	lists    []int         // indexes of list fields with a default
	template reflect.Value // an input struct with every default set

	canonical   map[string][]string // the fields that a field is another name of, by its name in lower case
	byCanonical map[string]int      // the field that says how values are read, by name in lower case
}

// New returns an input struct with every default set.
func (p *Plan) New() reflect.Value {
	v := reflect.New(p.template.Type()).Elem()
	v.Set(p.template)
	return v
}

// field is one field of an input struct.
type field struct {
	Field
	index     []int // of the field in the struct, through embedded ones
	pointer   bool
	kind      *kind
	form      func(string) string // nil: texts are compared as they are
	fromQuery bool
}

// target returns the place for the value, making what a pointer field points to.
func (f *field) target(in reflect.Value) reflect.Value {
	var v reflect.Value
	if len(f.index) == 1 {
		v = in.Field(f.index[0])
	} else {
		v = in.FieldByIndex(f.index)
	}
	if f.pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	return v
}

// setText sets the field from a path parameter, a query or a default, setRaw from the body. They return what
// is wrong, without the value, or "".
func (f *field) setText(in reflect.Value, text string) string {
	v := f.target(in)
	if problem := f.kind.text(v, text); problem != "" {
		return problem
	}
	return f.check(v)
}

func (f *field) setRaw(in reflect.Value, raw []byte) string {
	v := f.target(in)
	if problem := f.kind.raw(v, raw); problem != "" {
		return problem
	}
	return f.check(v)
}

// check applies required, max and enum to a value that has been set.
func (f *field) check(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		switch n := v.Len(); {
		case f.Required && n == 0:
			return "must not be empty"
		case f.Max > 0 && n > f.Max:
			return fmt.Sprintf("is longer than %d bytes", f.Max)
		}
		if f.Enum != nil && v.Len() > 0 {
			return f.checkEnum(v.String())
		}
	case reflect.Slice:
		switch n := v.Len(); {
		case f.Required && n == 0:
			return "must not be empty"
		case f.Max > 0 && n > f.Max && v.Type().Elem().Kind() == reflect.Uint8:
			return fmt.Sprintf("is longer than %d bytes", f.Max)
		case f.Max > 0 && n > f.Max:
			return fmt.Sprintf("has more than %d elements", f.Max)
		}
		if f.Enum != nil { // only texts and lists have one
			for _, element := range v.Interface().(StringList) {
				if problem := f.checkEnum(element); problem != "" {
					return problem
				}
			}
		}
	case reflect.Map:
		switch n := v.Len(); {
		case f.Required && n == 0:
			return "must not be empty"
		case f.Max > 0 && n > f.Max:
			return fmt.Sprintf("has more than %d elements", f.Max)
		}
	}
	return ""
}

func (f *field) checkEnum(value string) string {
	for _, allowed := range f.Enum {
		if value == allowed {
			return ""
		}
	}
	return "must be one of " + QuoteAll(f.Enum)
}

// Fields returns the fields for people and documents, path parameters first, otherwise as declared.
func (p *Plan) Fields() []Field {
	var fields []Field
	for _, in := range []bool{true, false} {
		for i := range p.fields {
			if (p.fields[i].In == "path") == in {
				fields = append(fields, p.fields[i].Field)
			}
		}
	}
	return fields
}

// Source is where the fields of one request come from.
type Source struct {
	Params map[string]string // path parameters
	Query  url.Values
	Body   json.RawMessage // nil if there is none, or the handler reads it as a stream
	// Read says that the request is a read: Input then has what the query gives beyond the declared fields, too.
	Read bool
}

// Given says which fields came with a request.
type Given struct {
	Fields  []string // with a value
	Nulls   []string // as null
	Unknown []string // not declared
}

// Decode fills in from the source. The error lists everything that is wrong.
func (p *Plan) Decode(from Source, in reflect.Value) (Given, error) {
	d := decoding{Plan: p, in: in}
	for _, i := range p.lists {
		p.fields[i].setText(in, p.fields[i].Default) // a list of its own: handlers may keep or change it
	}
	d.path(from.Params)
	if len(from.Query) > 0 {
		d.query(from.Query)
	}
	if len(from.Body) > 0 {
		if err := d.body(from.Body); err != nil {
			return Given{}, err
		}
	}
	d.missing()
	if d.problems != nil {
		return Given{}, errors.New(strings.Join(d.problems, "; "))
	}
	return d.given, nil
}

// decoding is the state of one decode.
type decoding struct {
	*Plan
	in       reflect.Value
	given    Given
	problems []string
}

func (d *decoding) problem(name, text string) {
	if text != "" {
		d.problems = append(d.problems, "field "+jsontext.QuoteName(name)+": "+text)
	}
}

func (d *decoding) has(name string) bool {
	for _, g := range d.given.Fields {
		if g == name {
			return true
		}
	}
	return false
}

func (d *decoding) path(params map[string]string) {
	for i := range d.fields {
		if f := &d.fields[i]; f.In == "path" {
			d.problem(f.Name, f.setText(d.in, params[f.Name]))
		}
	}
}

func (d *decoding) query(query map[string][]string) {
	for i := range d.fields {
		f := &d.fields[i]
		values, ok := query[f.Name]
		if !ok || !f.fromQuery || len(values) == 0 {
			continue
		}
		text := values[0]
		if f.kind == listKind {
			text = strings.Join(values, ",")
		}
		d.given.Fields = append(d.given.Fields, f.Name)
		if !utf8.ValidString(text) {
			d.problem(f.Name, "is not valid UTF-8")
			continue
		}
		d.problem(f.Name, f.setText(d.in, text))
	}
}

// body takes the fields from the body; what it holds wins over the query.
func (d *decoding) body(body json.RawMessage) error {
	members, err := jsontext.Scan(body)
	if err != nil {
		return err
	}
	if d.whole >= 0 {
		f := &d.fields[d.whole]
		d.given.Fields = append(d.given.Fields, f.Name)
		d.problem(f.Name, f.setRaw(d.in, bytes.TrimSpace(body)))
		return nil
	}
	for _, m := range members {
		if string(m.Value) == "null" {
			d.given.Nulls = append(d.given.Nulls, m.Name)
			continue
		}
		i, ok := d.byName[m.Name]
		switch {
		case !ok:
			d.given.Unknown = append(d.given.Unknown, m.Name)
		case d.fields[i].In == "path":
			// Clients repeat path parameters in the body; the path decides.
		default:
			if !d.has(m.Name) {
				d.given.Fields = append(d.given.Fields, d.fields[i].Name)
			}
			d.problem(m.Name, d.fields[i].setRaw(d.in, m.Value))
		}
	}
	return nil
}

func (d *decoding) missing() {
	for i := range d.fields {
		if f := &d.fields[i]; f.Required && f.In != "path" && !d.has(f.Name) {
			d.problem(f.Name, "is required")
		}
	}
}

// maxNames bounds how many names that clients chose a message repeats.
const maxNames = 10

// QuoteAll quotes names for a message.
func QuoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = jsontext.QuoteName(name)
	}
	return strings.Join(quoted, ", ")
}

// QuoteNames lists the first names and counts the others.
func QuoteNames(names []string) string {
	if len(names) <= maxNames {
		return QuoteAll(names)
	}
	return fmt.Sprintf("%s and %d more", QuoteAll(names[:maxNames]), len(names)-maxNames)
}
