package engines

import (
	"reflect"
	"strings"
	"time"
)

// ShapeOf returns the shape of responses that have the fields of the given structs as JSON has them, in the form that Returns takes. The help
// tag of a field describes it. Of two fields with one name the first counts.
func ShapeOf(values ...any) string {
	var out []string
	seen := map[string]bool{}
	for _, v := range values {
		out = shapeOfFields(out, reflect.Indirect(reflect.ValueOf(v)).Type(), seen)
	}
	return strings.Join(out, ", ")
}

func shapeOfFields(out []string, t reflect.Type, seen map[string]bool) []string {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			out = shapeOfFields(out, f.Type, seen)
		case name == "" || name == "-" || seen[name]:
		default:
			seen[name] = true
			text := name + ": " + shapeOfType(f.Type)
			if help := f.Tag.Get("help"); help != "" {
				text += ` "` + strings.ReplaceAll(help, `"`, "`") + `"`
			}
			out = append(out, text)
		}
	}
	return out
}

func shapeOfType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.String:
		return "string"
	case reflect.Slice:
		return "[" + shapeOfType(t.Elem()) + "]"
	case reflect.Map:
		return "{*: " + shapeOfType(t.Elem()) + "}"
	case reflect.Pointer:
		return shapeOfType(t.Elem()) + "?"
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return "string"
		}
		return "{" + strings.Join(shapeOfFields(nil, t, map[string]bool{}), ", ") + "}"
	}
	return "integer"
}
