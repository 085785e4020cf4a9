package engines

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// How input structs declare fields. Each exported field of a struct given to On is one input field; embedded
// structs are flattened. Tags:
//
//	json:"name"      the field's name; a name that occurs as "{name}" in the pattern is a path parameter
//	help:"…"         one sentence for people
//	default:"…"      the value when the field is absent, in the form a query would carry
//	required:"true"  the field must be there, and not be an empty text, list or map
//	enum:"a,b"       the only texts allowed
//	max:"512"        most bytes of a text or of raw JSON, most elements of a list or map
//	query:"true"     also taken from the query string; Read, List and Delete take every field from there
//	alias:"name"     the field is another name of this one; several are separated by commas
//	form:"name"      texts that the handler makes the same of: see forms
//	body:"true"      receives the entire body (json.RawMessage or Object); excludes other body fields
//
// Types: string kinds, Sensitive, bool, int, int64, float64, Duration, StringList, StringMap, Object,
// json.RawMessage, map[string]json.RawMessage, and pointers to them, which stay nil when the field is absent.
// Raw JSON shares the request's body: do not modify it. A null is an absent field. Numbers and booleans may
// come as texts and texts as numbers or booleans.

// plan is what is known about an input struct from its type, worked out once at start-up.
type plan struct {
	fields   []input
	byName   map[string]int
	whole    int           // index of the field that receives the entire body, or -1
	lists    []int         // indexes of list fields with a default
	template reflect.Value // an input struct with every default set

	canonical   map[string][]string // the fields that a field is another name of, by its name in lower case
	byCanonical map[string]int      // the field that says how values are read, by name in lower case
}

// new returns an input struct with every default set.
func (p *plan) new() reflect.Value {
	v := reflect.New(p.template.Type()).Elem()
	v.Set(p.template)
	return v
}

// input is one field of an input struct.
type input struct {
	Field
	index     []int // of the field in the struct, through embedded ones
	pointer   bool
	kind      *kind
	form      func(string) string // nil: texts are compared as they are
	fromQuery bool
}

// target returns the place for the value, making what a pointer field points to.
func (f *input) target(in reflect.Value) reflect.Value {
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
func (f *input) setText(in reflect.Value, text string) string {
	v := f.target(in)
	if problem := f.kind.text(v, text); problem != "" {
		return problem
	}
	return f.check(v)
}

func (f *input) setRaw(in reflect.Value, raw []byte) string {
	v := f.target(in)
	if problem := f.kind.raw(v, raw); problem != "" {
		return problem
	}
	return f.check(v)
}

// check applies required, max and enum to a value that has been set.
func (f *input) check(v reflect.Value) string {
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

func (f *input) checkEnum(value string) string {
	for _, allowed := range f.Enum {
		if value == allowed {
			return ""
		}
	}
	return "must be one of " + quoteAll(f.Enum)
}

// describe returns the fields for people and documents, path parameters first, otherwise as declared.
func (p *plan) describe() []Field {
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

// decode fills in from the request and returns the names of fields that are not declared. The error lists
// everything that is wrong.
func (p *plan) decode(req *Request, params map[string]string, in reflect.Value) (unknown []string, err error) {
	d := decoding{plan: p, in: in}
	for _, i := range p.lists {
		p.fields[i].setText(in, p.fields[i].Default) // a list of its own: handlers may keep or change it
	}
	d.path(params)
	if len(req.Query) > 0 {
		d.query(req.Query)
	}
	if len(req.Body) > 0 && req.RawBody == nil {
		if err := d.body(req.Body); err != nil {
			return nil, err
		}
	}
	d.missing()
	if d.problems != nil {
		return nil, &Error{Kind: KindInvalid, Detail: strings.Join(d.problems, "; ")}
	}
	req.given, req.nulls = d.given, d.nulls
	return d.unknown, nil
}

// decoding is the state of one decode.
type decoding struct {
	*plan
	in       reflect.Value
	given    []string
	nulls    []string
	unknown  []string
	problems []string
}

func (d *decoding) problem(name, text string) {
	if text != "" {
		d.problems = append(d.problems, "field "+quoteName(name)+": "+text)
	}
}

func (d *decoding) has(name string) bool {
	for _, g := range d.given {
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
		d.given = append(d.given, f.Name)
		if !utf8.ValidString(text) {
			d.problem(f.Name, "is not valid UTF-8")
			continue
		}
		d.problem(f.Name, f.setText(d.in, text))
	}
}

// body takes the fields from the body; what it holds wins over the query.
func (d *decoding) body(body json.RawMessage) error {
	members, err := scanObject(body)
	if err != nil {
		return Invalid("%v", err)
	}
	if d.whole >= 0 {
		f := &d.fields[d.whole]
		d.given = append(d.given, f.Name)
		d.problem(f.Name, f.setRaw(d.in, bytes.TrimSpace(body)))
		return nil
	}
	for _, m := range members {
		if string(m.value) == "null" {
			d.nulls = append(d.nulls, m.name)
			continue
		}
		i, ok := d.byName[m.name]
		switch {
		case !ok:
			d.unknown = append(d.unknown, m.name)
		case d.fields[i].In == "path":
			// Clients repeat path parameters in the body; the path decides.
		default:
			if !d.has(m.name) {
				d.given = append(d.given, d.fields[i].Name)
			}
			d.problem(m.name, d.fields[i].setRaw(d.in, m.value))
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

// maxNames and maxNameBytes bound what a message repeats of names that clients chose.
const (
	maxNames     = 10
	maxNameBytes = 64
)

func quoteName(name string) string {
	if len(name) > maxNameBytes {
		cut := maxNameBytes
		for !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + "…"
	}
	return strconv.Quote(name)
}

func quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quoteName(name)
	}
	return strings.Join(quoted, ", ")
}

// quoteNames lists the first names and counts the others.
func quoteNames(names []string) string {
	if len(names) <= maxNames {
		return quoteAll(names)
	}
	return fmt.Sprintf("%s and %d more", quoteAll(names[:maxNames]), len(names)-maxNames)
}
