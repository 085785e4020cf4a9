package openapitest

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSchema(t *testing.T) {
	const alternatives = `[{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}},{"type":"object","required":["b"]}]`
	for _, tt := range []struct {
		schema, good, bad, want string
	}{
		{`{"type":"string"}`, `"x"`, `1`, "is a number, want string"},
		{`{"type":"string"}`, `"x"`, `null`, "is of type null"},
		{`{"type":"string","nullable":true}`, `null`, `true`, "is of type boolean"},
		{`{"type":"number"}`, `1.5`, `"1.5"`, "is of type string"},
		{`{"type":"integer"}`, `2`, `1.5`, "want integer"},
		{`{"type":"boolean"}`, `false`, `0`, "want boolean"},
		{`{"type":"string","enum":["a","b"]}`, `"b"`, `"c"`, "is not one of [a b]"},
		{`{"type":"string","maxLength":2}`, `"äö"`, `"abc"`, "longer than 2"},
		{`{"type":"string","pattern":"^[a-z]+$"}`, `"a"`, `"A"`, "does not match"},
		{`{"type":"string","format":"date-time"}`, `"2026-01-02T03:04:05Z"`, `"yesterday"`, "not a date-time"},
		{`{"type":"array","items":{"type":"string"}}`, `["a"]`, `["a",1]`, "v/1 is a number"},
		{`{"type":"array"}`, `[1,"a"]`, `{}`, "is of type object, want array"},
		{`{"type":"object","required":["a"]}`, `{"a":1}`, `{"b":1}`, `has no property "a"`},
		{`{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":"x","b":1}`, `{"a":1}`, "v/a is a number"},
		{`{"type":"object","properties":{"a":{}},"additionalProperties":false}`, `{"a":[]}`, `{"b":1}`, `the unknown property "b"`},
		{`{"oneOf":` + alternatives + `}`, `{"a":"x"}`, `{"a":"x","b":1}`, "fits 2 alternatives"},
		{`{"oneOf":` + alternatives + `}`, `{"b":1}`, `{"a":1}`, "fits 0 alternatives"},
		{`{"anyOf":` + alternatives + `}`, `{"a":"x","b":1}`, `{}`, "fits no alternative"},
		{`{"$ref":"#/components/schemas/named"}`, `{"a":"x"}`, `{"a":1}`, "v/a is a number"},
	} {
		named := map[string]*schema{"named": {Type: "object", Properties: map[string]*schema{"a": {Type: "string"}}}}
		s := new(schema)
		if err := json.Unmarshal([]byte(tt.schema), s); err != nil {
			t.Fatal(err)
		}
		if err := s.resolve(named); err != nil {
			t.Fatal(err)
		}
		check := func(text string) error {
			var v any
			if err := json.Unmarshal([]byte(text), &v); err != nil {
				t.Fatal(err)
			}
			return s.check("v", v)
		}
		if err := check(tt.good); err != nil {
			t.Errorf("%s: %s: %v", tt.schema, tt.good, err)
		}
		if err := check(tt.bad); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %s: %v, want %q", tt.schema, tt.bad, err, tt.want)
		}
	}
}

func TestUnknownKeyword(t *testing.T) {
	for _, text := range []string{`{"minimum":1}`, `{"properties":{"a":{"minimum":1}}}`, `{"additionalProperties":{"type":"string"}}`} {
		if json.Unmarshal([]byte(text), new(schema)) == nil {
			t.Errorf("%s is understood", text)
		}
	}
}
