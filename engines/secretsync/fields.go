package secretsync

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Configurations are stored field by field, so that sensitive ones, which do not encode themselves, are; and an update
// changes the fields that came with it.

var sensitive = reflect.TypeFor[engines.Sensitive]()

// fieldsOf calls do with every field of a configuration.
func eachField(c destination.Config, do func(name string, v reflect.Value)) {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		do(name, v.Field(i))
	}
}

// encodeConfig returns what is stored of a configuration. Fields that are not set are left out.
func encodeConfig(c destination.Config) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	var failed error
	eachField(c, func(name string, v reflect.Value) {
		if v.IsZero() {
			return
		}
		value := v.Interface()
		if v.Type() == sensitive {
			value = v.String()
		}
		raw, err := json.Marshal(value)
		if err != nil {
			failed = fmt.Errorf("encoding %s", name)
		}
		out[name] = raw
	})
	return out, failed
}

// decodeConfig fills a configuration with what was stored.
func decodeConfig(stored map[string]json.RawMessage, c destination.Config) error {
	var failed error
	eachField(c, func(name string, v reflect.Value) {
		if raw, ok := stored[name]; ok && json.Unmarshal(raw, v.Addr().Interface()) != nil {
			failed = fmt.Errorf("decoding the field %s of a destination", name)
		}
	})
	return failed
}

// mergeConfig takes over what came with a request: in are the decoded fields, with defaults for those that did not come. The
// mask keeps what there is, and a null goes back to the default.
func mergeConfig(c destination.Config, in reflect.Value, req *engines.Request, created bool) {
	// What comes under another spelling of a field replaces it.
	if other, ok := c.(interface{ Synonyms() map[string]string }); ok {
		for spelling, field := range other.Synonyms() {
			if req.Given(spelling) && !req.Given(field) {
				fieldNamed(reflect.ValueOf(c).Elem(), field).SetZero()
			}
		}
	}
	eachField(c, func(name string, v reflect.Value) {
		from := fieldNamed(in, name)
		switch {
		case created && !req.Given(name), req.Null(name):
			v.Set(from) // the default
		case !req.Given(name):
		case v.Type() == sensitive && from.String() == destination.Mask:
		default:
			v.Set(from)
		}
	})
}

func fieldNamed(in reflect.Value, name string) reflect.Value {
	for i := range in.NumField() {
		if tag, _, _ := strings.Cut(in.Type().Field(i).Tag.Get("json"), ","); tag == name {
			return in.Field(i)
		}
	}
	panic("secretsync: no input field " + name)
}

// inputType is the input of a route that writes a destination: the options, which all types have, and its configuration.
func inputType(options reflect.Type, c destination.Config) reflect.Type {
	var fields []reflect.StructField
	for _, t := range []reflect.Type{options, reflect.TypeOf(c).Elem()} {
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() {
				continue
			}
			f.Offset, f.Index = 0, nil
			fields = append(fields, f)
		}
	}
	return reflect.StructOf(fields)
}
