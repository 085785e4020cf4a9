package role

import (
	"encoding/json"
	"strings"
	"testing"
)

// A policy stays JSON with as many texts, whatever its templates stand for.
func FuzzFill(f *testing.F) {
	f.Add(`{"a":{"b":"x{{identity.entity.name}}y"}}`, `","c":"`)
	f.Add(`{"{{identity.a}}":[{"a":"{{ identity.b }}{{identity.c}}"}]}`, "é\u2028\\")
	f.Add(`{"a":"{{identity.a\"}}"}`, "}}")
	f.Add(`{"a":"\{{identity.a}}"}`, "u0000")
	f.Fuzz(func(t *testing.T, text, value string) {
		filled, err := fill(text, func(string) (string, error) { return inJSON(value), nil })
		if err != nil {
			return
		}
		if !strings.Contains(text, "{{") && filled != text {
			t.Errorf("fill(%q) = %q without a template", text, filled)
		}
		if !json.Valid([]byte(text)) {
			return
		}
		if !json.Valid([]byte(filled)) {
			t.Fatalf("fill(%q) = %q is not JSON any more", text, filled)
		}
		if before, after := countTexts(t, text), countTexts(t, filled); before != after {
			t.Errorf("fill(%q) = %q has %d tokens, not %d", text, filled, after, before)
		}
	})
}

func countTexts(t *testing.T, text string) (n int) {
	t.Helper()
	for dec := json.NewDecoder(strings.NewReader(text)); ; n++ {
		if _, err := dec.Token(); err != nil {
			return n
		}
	}
}

// What is stored can be read and shown, and what is shown as valid stays so when it is stored again.
func FuzzDecodeRole(f *testing.F) {
	f.Add([]byte(`{"format":1,"types":["iam_user"],"policy_arns":["` + readOnly + `"]}`))
	f.Add([]byte(`{"format":1,"types":["assumed_role"],"role_arns":["` + devRole + `"],"session_tags":{"a":"{{identity.entity.id}}"}}`))
	f.Add([]byte(document))
	f.Add([]byte(opsRole))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"types":7}`))
	f.Fuzz(func(t *testing.T, stored []byte) {
		r, err := decode(stored)
		if err != nil {
			return
		}
		if _, err := json.Marshal(r.data()); err != nil {
			t.Fatal(err)
		}
		if r.invalid() != "" {
			return
		}
		r.Format = 1
		value, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decode(value); err != nil || again.invalid() != "" {
			t.Errorf("%q stored again is %q: error %v", stored, value, err)
		}
	})
}
