package state

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

var SensitiveType = reflect.TypeFor[engines.Sensitive]()

// Fields returns the fields of a configuration's type, those of embedded structs among them.
func Fields(config reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(config), func(f reflect.StructField) bool { return f.Anonymous || !f.IsExported() })
}

// EachField calls do with every field of a configuration.
func EachField(c destination.Config, do func(name string, v reflect.Value)) {
	v := reflect.ValueOf(c).Elem()
	for _, f := range Fields(v.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		do(name, v.FieldByIndex(f.Index))
	}
}

// EncodeConfig returns what is stored of a configuration. Fields that are not set are left out.
func EncodeConfig(c destination.Config) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	var failed error
	EachField(c, func(name string, v reflect.Value) {
		if v.IsZero() {
			return
		}
		value := v.Interface()
		if v.Type() == SensitiveType {
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

// DecodeConfig fills a configuration with what was stored.
func DecodeConfig(stored map[string]json.RawMessage, c destination.Config) error {
	var failed error
	EachField(c, func(name string, v reflect.Value) {
		if raw, ok := stored[name]; ok && json.Unmarshal(raw, v.Addr().Interface()) != nil {
			failed = fmt.Errorf("decoding the field %s of a destination", name)
		}
	})
	return failed
}
