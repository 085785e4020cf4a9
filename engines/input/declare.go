package input

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Declare reads the declaration of an input struct for one route. params are the names of its path parameters; fromQuery says that
// its fields come from the query string and not from a body.
func Declare(t reflect.Type, params []string, fromQuery bool) (*Plan, error) {
	if t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("input %s is not a struct", t)
	}
	p := &Plan{byName: map[string]int{}, whole: -1, template: reflect.New(t).Elem()}
	if err := p.add(t, nil, params, fromQuery); err != nil {
		return nil, err
	}
	p.name()
	for _, name := range params {
		if _, ok := p.byName[name]; !ok {
			return nil, fmt.Errorf("path parameter %q has no field in %s", name, t)
		}
	}
	if p.whole < 0 {
		return p, nil
	}
	for i := range p.fields {
		f := &p.fields[i]
		if f.In == "body" && f.fromQuery {
			f.In = "query"
		}
		if i != p.whole && f.In == "body" {
			return nil, fmt.Errorf("field %q: the entire body already goes to %q", f.Name, p.fields[p.whole].Name)
		}
	}
	return p, nil
}

// add reads the fields of t, which is found at index in the input struct.
func (p *Plan) add(t reflect.Type, index []int, params []string, fromQuery bool) error {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(slices.Clone(index), i)
		if sf.Anonymous && sf.Type.Kind() == reflect.Struct {
			if err := p.add(sf.Type, at, params, fromQuery); err != nil {
				return err
			}
			continue
		}
		if !sf.IsExported() {
			continue
		}
		f, err := newField(sf, at, params, fromQuery)
		if err != nil {
			return fmt.Errorf("field %s.%s: %w", t, sf.Name, err)
		}
		if _, ok := p.byName[f.Name]; ok {
			return fmt.Errorf("field %q is declared twice", f.Name)
		}
		if f.Default != "" {
			if problem := f.setText(p.template, f.Default); problem != "" {
				return fmt.Errorf("default of %q %s", f.Name, problem)
			}
		}
		if f.Default != "" && f.kind == listKind {
			p.lists = append(p.lists, len(p.fields))
		}
		if f.Whole {
			p.whole = len(p.fields)
		}
		p.byName[f.Name] = len(p.fields)
		p.fields = append(p.fields, f)
	}
	return nil
}

// name works out which names count as which fields. The names of fields that are another name of a field come after all
// others, so that a field that is declared itself is read by its own declaration.
func (p *Plan) name() {
	p.canonical, p.byCanonical = map[string][]string{}, map[string]int{}
	for i := range p.fields {
		if f := &p.fields[i]; f.Alias == nil {
			p.byCanonical[strings.ToLower(f.Name)] = i
		}
	}
	for i := range p.fields {
		f := &p.fields[i]
		if f.Alias == nil {
			continue
		}
		p.canonical[strings.ToLower(f.Name)] = f.Alias
		for _, name := range f.Alias {
			if _, ok := p.byCanonical[name]; !ok {
				p.byCanonical[name] = i
			}
		}
	}
}

// newField reads the declaration of one field.
func newField(sf reflect.StructField, index []int, params []string, fromQuery bool) (field, error) {
	tags, err := parseTags(sf.Tag)
	if err != nil {
		return field{}, err
	}
	f := field{index: index, Field: Field{
		Name: tags["json"], Help: tags["help"], Default: tags["default"],
		Required: tags["required"] == "true", Whole: tags["body"] == "true", In: "body",
	}}
	typ := sf.Type
	if f.pointer = typ.Kind() == reflect.Pointer; f.pointer {
		typ = typ.Elem()
	}
	f.kind = kindOf(typ)
	f.Sensitive = typ == reflect.TypeFor[Sensitive]()
	inPath := slices.Contains(params, f.Name)
	f.fromQuery = !inPath && f.kind != nil && f.kind.text != nil && (fromQuery || tags["query"] == "true")
	switch {
	case inPath:
		f.In = "path"
	case f.fromQuery && fromQuery:
		f.In = "query"
	}
	if max := tags["max"]; max != "" {
		if f.Max, err = strconv.Atoi(max); err != nil || f.Max <= 0 {
			return field{}, errors.New("max is not a positive number")
		}
	}
	if enum := tags["enum"]; enum != "" {
		f.Enum = strings.Split(enum, ",")
	}
	if alias := tags["alias"]; alias != "" {
		f.Alias = strings.Split(alias, ",")
	}
	if f.Form = tags["form"]; f.Form != "" {
		if f.form = forms[f.Form]; f.form == nil {
			return field{}, fmt.Errorf("has the unknown form %q", f.Form)
		}
	}
	if f.kind == nil {
		return field{}, fmt.Errorf("type %s is not supported", sf.Type)
	}
	f.Type = f.kind.name
	return f, f.validate(tags)
}

// validate reports tags that contradict each other.
func (f *field) validate(tags map[string]string) error {
	switch {
	case f.Name == "" || f.Name == "-" || strings.Contains(f.Name, ","):
		return errors.New("has no plain name in its json tag")
	case f.Default != "" && (f.Required || f.pointer || f.In == "path"):
		return errors.New("has a default it can never take")
	case f.In == "path" && (f.pointer || f.kind.text == nil || f.Whole):
		return errors.New("cannot be a path parameter")
	case f.Default != "" && (f.kind.text == nil || f.kind == mapKind), tags["query"] == "true" && f.kind.text == nil:
		return errors.New("has a type that no text can give")
	case f.Whole && (f.pointer || f.kind != anyKind && f.kind != objectKind):
		return errors.New("cannot receive the entire body")
	case f.Enum != nil && f.kind != stringKind && f.kind != listKind:
		return errors.New("has an enum but is not a text or a list")
	case f.form != nil && f.kind != stringKind && f.kind != listKind:
		return errors.New("has a form but is not a text or a list")
	case f.Max > 0 && (f.kind.scalar || f.kind == objectsKind):
		return errors.New("has a max but no length")
	}
	return nil
}

var knownTags = []string{"json", "help", "default", "required", "enum", "max", "query", "body", "alias", "form"}

// parseTags splits a struct tag and rejects unknown tags, which are nearly always misspelt ones.
func parseTags(tag reflect.StructTag) (map[string]string, error) {
	tags := map[string]string{}
	for rest := strings.TrimSpace(string(tag)); rest != ""; rest = strings.TrimSpace(rest) {
		key, after, ok := strings.Cut(rest, ":")
		quoted, err := strconv.QuotedPrefix(after)
		if !ok || err != nil {
			return nil, errors.New("has a malformed tag")
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, errors.New("has a malformed tag")
		}
		if !slices.Contains(knownTags, key) {
			return nil, fmt.Errorf("has the unknown tag %q", key)
		}
		if bools := key == "required" || key == "query" || key == "body"; bools && value != "true" {
			return nil, fmt.Errorf("tag %q can only be \"true\"", key)
		}
		tags[key] = value
		rest = after[len(quoted):]
	}
	return tags, nil
}
