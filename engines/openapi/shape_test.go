package openapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
)

// A shape is read as engines.Route.Returns describes it, and one made of a struct has its fields and their help.
func TestShapes(t *testing.T) {
	type inner struct {
		At string `json:"at" help:"When; empty: never."`
	}
	type status struct {
		inner
		Count   int64             `json:"count,omitempty"`
		Rate    float64           `json:"rate"`
		Names   []string          `json:"names"`
		Labels  map[string]string `json:"labels"`
		Last    *inner            `json:"last"`
		Skipped string            `json:"-"`
	}
	for shape, want := range map[string]string{
		`ttl: integer?, size: integer|string "Bytes; or \"auto\"."`: "",
		`name "Not the id; it may change.", on: boolean`:            `{"properties":{"name":{"description":"Not the id; it may change.","type":"string"},"on":{"type":"boolean"}},"type":"object"}`,
		`size: integer|string, revoked: {*: {}}`: `{"properties":{"revoked":{"additionalProperties":{"additionalProperties":false,"type":"object"},"type":"object"},` +
			`"size":{"oneOf":[{"type":"integer"},{"type":"string"}]}},"type":"object"}`,
		engines.ShapeOf(status{}, &inner{}): `{"properties":{"at":{"description":"When; empty: never.","type":"string"},"count":{"type":"integer"},` +
			`"labels":{"additionalProperties":{"type":"string"},"type":"object"},"last":{"nullable":true,"properties":{"at":{"description":"When; empty: never.","type":"string"}},"type":"object"},` +
			`"names":{"items":{"type":"string"},"type":"array"},"rate":{"type":"number"}},"type":"object"}`,
		`name "without an end`: "",
	} {
		r, err := parseShape(&engines.Route{Shape: shape}, func(string) string { return "" })
		if want == "" {
			if err == nil {
				t.Errorf("%s is accepted", shape)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", shape, err)
			continue
		}
		got, err := json.Marshal(r.fields)
		if err != nil || string(got) != want {
			t.Errorf("%s:\n%s (%v), want\n%s", shape, got, err, want)
		}
	}
	r, err := parseShape(&engines.Route{Shape: `top empty; name "One; two."`}, func(string) string { return "" })
	if err != nil || !r.both || !r.empty || !strings.Contains(r.fields["properties"].(object)["name"].(object)["description"].(string), "; two") {
		t.Errorf("%+v, %v", r, err)
	}
}
