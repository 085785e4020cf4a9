package input

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/input/jsontext"
)

// Input is what one request gives to a route, in normal form: what the handler makes the same of is the same here,
// however the request spells it. Decisions that depend on the values of a request are made on it, and never on the body.
type Input struct {
	// Fields are the given fields by name: the field's own in lower case, whichever of its names the request used. A null
	// is a given field too, for it may mean "back to the default". Path parameters are not fields; what a body repeats of
	// them is.
	Fields map[string]*GivenField

	plan *Plan
}

// GivenField is one field that came with a request.
type GivenField struct {
	// Values has one value for each name that the request gave the field under.
	Values []Value
	// Got reports whether the request gives more than a null, and not by a name that only looks like one that the route
	// declares: the handler does not get that.
	Got bool
}

// Value is a value in normal form.
type Value struct {
	// Text is a text, a boolean ("true"), a number (decimal), a duration (its seconds, decimal), or the JSON of
	// everything else, without blanks and with sorted names.
	Text string
	// Compound reports whether it is a list, a map, an object or null: something that no text is.
	Compound bool
	// Elements are those of a list, the pairs of a declared map as texts "key=value", or the kinds of engines that a text
	// stands for. If the route declares the field as a list or map, they are sorted, each once.
	Elements []Value
}

// Paired is raw JSON that its handler reads as names with values, in more ways than the decoder knows: see StringMap. The
// type of such a field is a json.RawMessage with this method.
type Paired interface {
	// Pairs returns names with values; a name may come several times. false: it cannot be read.
	Pairs() ([][2]string, bool)
}

// Names returns the names in Fields of what a rule calls name: those of the fields that it is another name of, or else
// the name itself in lower case. It is never empty.
func (in *Input) Names(name string) []string {
	name = strings.ToLower(name)
	if names, ok := in.plan.canonical[name]; ok {
		return names
	}
	return []string{name}
}

// Value returns the normal form of a JSON value for a field, given by one of Names. What the field cannot have is taken
// for what it is in JSON: a pattern, for instance, stays itself.
func (in *Input) Value(name string, raw json.RawMessage) Value {
	i, ok := in.plan.byCanonical[name]
	if !ok || string(raw) == "null" {
		return rawValue(raw)
	}
	f := &in.plan.fields[i]
	v := reflect.New(in.plan.template.Type()).Elem()
	to := f.target(v)
	if f.kind.raw(to, raw) != "" {
		return rawValue(raw)
	}
	return f.value(v)
}

// Input returns what Decode would read from the source. The error is the one that Decode would return.
func (p *Plan) Input(from Source) (*Input, error) {
	in, v := &Input{plan: p, Fields: map[string]*GivenField{}}, p.New()
	given, err := p.Decode(from, v)
	if err != nil {
		return nil, err
	}
	for _, name := range given.Fields {
		if i := p.byName[name]; i != p.whole {
			in.addDecoded(&p.fields[i], v)
		}
	}
	if len(from.Body) > 0 {
		members, err := jsontext.Scan(from.Body)
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			in.addMember(m, given.Fields)
		}
	}
	if from.Read {
		for name, values := range from.Query {
			if i, ok := p.byName[name]; !ok || !p.fields[i].fromQuery {
				name = strings.ToLower(name)
				_, like := p.byCanonical[name]
				in.add(name, textsValue(values), !like)
			}
		}
	}
	return in, nil
}

// addDecoded adds a field that the handler gets, under all names that it counts as.
func (in *Input) addDecoded(f *field, v reflect.Value) {
	value := f.value(v)
	for _, name := range in.Names(f.Name) {
		if &in.plan.fields[in.plan.byCanonical[name]] == f {
			in.add(name, value, true)
			continue
		}
		// As if it had come under the field's own name.
		raw := value.Text
		if !value.Compound {
			raw = encoded(raw)
		}
		in.add(name, in.Value(name, json.RawMessage(raw)), true)
	}
}

// addMember adds a member of the body, unless addDecoded has.
func (in *Input) addMember(m jsontext.Member, given []string) {
	p := in.plan
	i, declared := p.byName[m.Name]
	null := string(m.Value) == "null"
	switch {
	case p.whole >= 0:
		in.add(strings.ToLower(m.Name), rawValue(m.Value), !null)
	case null && declared && !slices.Contains(given, m.Name):
		for _, name := range in.Names(m.Name) {
			in.add(name, rawValue(m.Value), false)
			in.add(name, p.fields[i].value(p.template), false)
		}
	case !declared || p.fields[i].In == "path":
		for _, name := range in.Names(m.Name) {
			_, like := p.byCanonical[name]
			in.add(name, in.Value(name, m.Value), !null && (declared || !like))
		}
	}
}

func (in *Input) add(name string, value Value, got bool) {
	f := in.Fields[name]
	if f == nil {
		f = new(GivenField)
		in.Fields[name] = f
	}
	f.Values, f.Got = append(f.Values, value), f.Got || got
}

// value returns the normal form of what the field holds.
func (f *field) value(in reflect.Value) Value {
	v := in.FieldByIndex(f.index)
	if f.pointer {
		if v.IsNil() {
			v = reflect.New(v.Type().Elem())
		}
		v = v.Elem()
	}
	switch f.kind {
	case stringKind:
		value := Value{Text: f.formed(v.String())}
		if f.Form == "engine" {
			value.Elements = kinds[value.Text]
		}
		return value
	case boolKind:
		return Value{Text: strconv.FormatBool(v.Bool())}
	case intKind:
		return Value{Text: strconv.FormatInt(v.Int(), 10)}
	case floatKind:
		return Value{Text: decimal(v.Float())}
	case durationKind:
		return Value{Text: seconds(time.Duration(v.Int()))}
	case listKind:
		texts := []string{}
		for _, text := range v.Interface().(StringList) {
			texts = append(texts, f.formed(text))
		}
		return textsValue(texts)
	case mapKind:
		pairs := [][2]string{}
		for key, value := range v.Interface().(StringMap) {
			pairs = append(pairs, [2]string{key, value})
		}
		return pairsValue(pairs)
	}
	if p, ok := v.Interface().(Paired); ok {
		if pairs, ok := p.Pairs(); ok {
			return pairsValue(pairs)
		}
	}
	if v.Kind() == reflect.Map {
		return rawValue(json.RawMessage(encoded(v.Interface())))
	}
	if v.Len() == 0 {
		return rawValue(json.RawMessage("null"))
	}
	return rawValue(v.Bytes())
}

func (f *field) formed(text string) string {
	if f.form == nil {
		return text
	}
	return f.form(text)
}

// textsValue is the value of a list of texts, or of pairs.
func textsValue(texts []string) Value {
	texts = append([]string{}, texts...)
	slices.Sort(texts)
	value := Value{Compound: true}
	texts = slices.Compact(texts)
	for _, text := range texts {
		value.Elements = append(value.Elements, Value{Text: text})
	}
	value.Text = encoded(texts)
	return value
}

// pairsValue is the value of a map. Only the first "=" of an element separates: a name that holds one is quoted.
func pairsValue(pairs [][2]string) Value {
	texts := []string{}
	for _, p := range pairs {
		name := p[0]
		if strings.Contains(name, "=") {
			name = strconv.Quote(name)
		}
		texts = append(texts, name+"="+p[1])
	}
	return textsValue(texts)
}

// rawValue returns the normal form of JSON that no declaration says more about.
func rawValue(raw json.RawMessage) Value {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		panic("input: a value that was not scanned") // an object's member, or what a policy lists
	}
	return plainValue(plainNumbers(v))
}

func plainValue(v any) Value {
	switch v := v.(type) {
	case string:
		return Value{Text: v}
	case nil, map[string]any:
		return Value{Text: encoded(v), Compound: true}
	case []any:
		value := Value{Text: encoded(v), Compound: true}
		for _, element := range v {
			value.Elements = append(value.Elements, plainValue(element))
		}
		return value
	}
	return Value{Text: encoded(v)}
}

func encoded(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // what has been read from JSON
	}
	return string(text)
}

// plainNumbers gives equal numbers one form: 60, 60.0 and 6e1 are all 60. It changes lists and maps in place.
func plainNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return json.Number(strconv.FormatInt(i, 10))
		}
		f, err := strconv.ParseFloat(v.String(), 64)
		if err != nil {
			return v
		}
		return json.Number(decimal(f))
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = plainNumbers(v[name])
		}
	}
	return v
}

func decimal(f float64) string {
	switch size := math.Abs(f); {
	case f == 0:
		return "0" // not "-0"
	case size < 1e-6 || size >= 1e21: // written out, these could be a hundred times as long as in the request
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

// seconds returns a duration in seconds. Fractions of more than a second are dropped, as engines do.
func seconds(d time.Duration) string {
	if d >= time.Second {
		d = d.Truncate(time.Second)
	}
	return decimal(d.Seconds())
}
