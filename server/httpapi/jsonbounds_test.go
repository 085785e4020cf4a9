package httpapi

import (
	"strings"
	"testing"
)

// The operator's bounds reject what is beyond them, and nothing else.
func TestJSONBounds(t *testing.T) {
	const body = `{"a": ["x", "yy", [1]], "b": {"c": "zzz"}}`
	for want, tight := range map[string][2]JSONBounds{
		"deeper than 2":            {{Depth: 2}, {Depth: 3}},
		"more than 5 texts":        {{Strings: 5}, {Strings: 6}},
		"a text of more than 2":    {{StringLength: 2}, {StringLength: 3}},
		"an object of more than 1": {{Entries: 1}, {Entries: 2}},
		"a list of more than 2":    {{Elements: 2}, {Elements: 3}},
		"more than 600 bytes":      {{Memory: 600}, {Memory: 720}},
	} {
		if err := tight[0].check([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want a word on %s", tight[0], err, want)
		}
		if err := tight[1].check([]byte(body)); err != nil {
			t.Errorf("%+v: %v", tight[1], err)
		}
	}
	for _, broken := range []string{"", "]", `{"a"`, "x=1"} {
		if err := (JSONBounds{Depth: 1}).check([]byte(broken)); err != nil {
			t.Errorf("%q: %v", broken, err)
		}
	}
}
