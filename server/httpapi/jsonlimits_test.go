package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
)

func TestCheckJSON(t *testing.T) {
	nested := func(n int, open, inner, end string) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	list := func(n int, element string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
	}
	text := func(n int, piece string) string { return `{"a":"` + strings.Repeat(piece, n/len(piece)) + `"}` }
	const depth, values, size = "deeper than 100", "more than 100000 values", "more than 4194304 bytes"
	tests := []struct{ name, body, want string }{
		{"empty", "", ""},
		{"space", "  \n", ""},
		{"object", `{"a":{"b":["c",1,null]}}`, ""},
		{"deep lists", nested(100, "[", "", "]"), ""},
		{"too deep lists", nested(101, "[", "", "]"), depth},
		{"deep objects", nested(100, `{"a":`, "1", "}"), ""},
		{"too deep objects", nested(101, `{"a":`, "1", "}"), depth},
		{"never closed", strings.Repeat("[", 1<<20), depth},
		{"behind a lot of space", strings.Repeat(" ", 1000) + nested(101, "[", "", "]"), depth},
		{"beside each other", list(5000, nested(99, "[", "", "]"))[:1000], ""},
		{"brackets in a text", text(1000, "[{"), ""},
		{"brackets behind an escaped quote", text(1000, `\"[`), ""},
		{"brackets behind an escaped backslash", `{"a":"` + strings.Repeat("x", 100) + `\\",` + `"b":` + nested(100, "[", "", "]") + "}", depth},
		{"many values", list(99_999, "1"), ""},
		{"too many values", list(100_001, "1"), values},
		{"too many members", "{" + strings.TrimSuffix(strings.Repeat(`"a":1,`, 100_001), ",") + "}", values},
		{"too many values, spread", list(400, list(300, "1")), values},
		{"too many empty lists", list(60_000, "[]"), values},
		{"commas in a text", text(1<<20, ","), ""},
		{"long text", text(4<<20, "x"), ""},
		{"too long text", text(4<<20+1, "x"), size},
		{"too long text of escapes", text(4<<20+2, `\"`), size},
		{"too long name", `{"` + strings.Repeat("n", 4<<20+1) + `":1}`, size},
		{"too long text without an end", `["` + strings.Repeat("x", 5<<20), size},
		{"no JSON", strings.Repeat("[x", 50), ""},
		{"a form", "SAMLResponse=" + strings.Repeat("[", 1000), ""},
		{"a text alone", `"` + strings.Repeat("x", 5<<20) + `"`, ""},
	}
	for _, tt := range tests {
		err := checkJSON([]byte(tt.body))
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v, want no objection", tt.name, err)
			}
			continue
		}
		var e *engines.Error
		if !errors.As(err, &e) || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, tt.want) {
			t.Errorf("%s: %v, want a 400 with %q", tt.name, err, tt.want)
		}
	}
}

// measure counts depth, values and the longest text of valid JSON with the standard library's help. Texts are
// counted as written, so they must hold no escapes for that to agree.
func measure(body []byte) (depth, values int) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	for now := 0; ; {
		token, err := dec.Token()
		if err != nil {
			return depth, values
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			now++
			depth = max(depth, now)
		case json.Delim('}'), json.Delim(']'):
			now--
		}
		values++
	}
}

// FuzzCheckJSON: no body breaks it, and of valid JSON it refuses only what is beyond the limits, and everything
// that is too deep.
func FuzzCheckJSON(f *testing.F) {
	for _, seed := range []string{
		"", "{", `{"a":"\\\\\"[[["}`, `["\`, `{"a\"":[{}]}`, strings.Repeat("[", 101) + strings.Repeat("]", 101),
		`{"` + strings.Repeat("x", 40) + `\\\"":[]}`, `["` + strings.Repeat(`\\`, 40) + `",[]]`, "[\"\xff\\", strings.Repeat(" ", 70) + "[1]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		err := checkJSON(body)
		if !json.Valid(body) {
			return
		}
		depth, values := measure(body)
		switch {
		case depth > maxJSONDepth && err == nil:
			t.Errorf("depth %d is accepted", depth)
		case depth <= maxJSONDepth && values <= maxJSONValues && len(body) <= maxJSONText && err != nil:
			t.Errorf("depth %d, %d values: %v", depth, values, err)
		}
	})
}

// The end of a text is found whatever the escapes and wherever the search changes its way.
func TestTextEnd(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		var text []byte
		for range rng.IntN(100) {
			text = append(text, []string{"x", `\\`, `\"`, `\u0022`, "xxxxxxxxxxxxxxxxxxxx"}[rng.IntN(5)]...)
		}
		body := append(append([]byte(nil), text...), `","\"`...)
		if got := textEnd(body, 0); got != len(text) {
			t.Fatalf("the text of %s ends at %d, want %d", body, got, len(text))
		}
		if got := textEnd(text, 0); got != len(text) {
			t.Fatalf("%s has no end, got %d", text, got)
		}
	}
}

func BenchmarkCheckJSON(b *testing.B) {
	const size = 64 << 10
	filled := func(before, piece, after string) []byte {
		return []byte(before + strings.Repeat(piece, size/len(piece)) + after)
	}
	for name, body := range map[string][]byte{
		"secret":      filled("{", `"password":"`+strings.Repeat("x", 40)+`",`, `"a":1}`),
		"numbers":     filled("[", "1,", "1]"),
		"empty texts": filled("[", `"",`, "1]"),
		"escapes":     filled(`["`, `\"`, `"]`),
		"long text":   filled(`["`, "x", `"]`),
		"space":       filled("[", " \n", "]"),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := checkJSON(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
