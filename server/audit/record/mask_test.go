package record_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/audit/record"
)

// masked returns what a device writes as the data of a request.
func masked(t testing.TB, body string, plain ...string) string {
	t.Helper()
	line := recorded(t, &record.Record{Request: record.Request{Data: json.RawMessage(body), PlainKeys: plain}}, false, nil)
	_, data, _ := strings.Cut(line, `"data":`)
	return strings.TrimSuffix(data, "}}")
}

func TestMask(t *testing.T) {
	nested := strings.Repeat(`[`, 128) + `1` + strings.Repeat(`]`, 128)
	tests := []struct {
		name, body string
		plain      []string
		want       string
	}{
		{"text", `"a"`, nil, `"«a»"`},
		{"empty text", `{"a":""}`, nil, `{"a":"«»"}`},
		{"numbers and literals", `[0,-1.5e+3,1E9,true,false,null]`, nil, `[0,-1.5e+3,1E9,true,false,null]`},
		{"white space", " {\n\t\"a\" : [ 1 , \"b\" ] } \r\n", nil, `{"a":[1,"«b»"]}`},
		{"empty", `{"a":{},"b":[]}`, nil, `{"a":{},"b":[]}`},
		{"same name twice", `{"a":"1","a":"2"}`, nil, `{"a":"«1»","a":"«2»"}`},
		{"escapes", `{"a":"x\n\u00e9\"\\"}`, nil, "{\"a\":\"«x\né\"\\»\"}"},
		{"beyond ASCII", `{"ключ":"é"}`, nil, `{"ключ":"«é»"}`},
		{"surrogates", `["\ud83d\ude00"]`, nil, `["«😀»"]`},
		{"lone surrogate", `["\ud83d"]`, nil, "[\"«\ufffd»\"]"},
		{"not UTF-8", "{\"\xff\":\"\xff\"}", nil, "{\"\ufffd\":\"«\ufffd»\"}"},
		{"exempt", `{"a":"x","b":"y"}`, []string{"a"}, `{"a":"x","b":"«y»"}`},
		{"exempt below", `{"a":{"b":["x\n"]},"b":{"a":"y"}}`, []string{"a"}, `{"a":{"b":["x\n"]},"b":{"a":"«y»"}}`},
		{"exempt by another spelling", `{"\u0061":"x"}`, []string{"a"}, `{"\u0061":"x"}`},
		{"exempt, not UTF-8", "{\"a\":\"\xff\"}", []string{"a"}, "{\"a\":\"\ufffd\"}"},
		{"deep", nested, nil, nested},
		{"too deep", "[" + nested + "]", nil, `"«[` + nested + `]»"`},
		{"long number", strings.Repeat("9", 65), nil, `"«` + strings.Repeat("9", 65) + `»"`},
		{"form", `user=ann&password=x`, nil, `"«user=ann&password=x»"`},
		{"two values", `{} {}`, nil, `"«{} {}»"`},
		{"cut", `{"a":"x`, nil, `"«{"a":"x»"`},
		{"raw newline", "{\"a\":\"x\ny\"}", nil, "\"«{\"a\":\"x\ny\"}»\""},
		{"bad escape", `{"a":"\x"}`, nil, `"«{"a":"\x"}»"`},
		{"bad escape in a name", `{"\x":1}`, nil, `"«{"\x":1}»"`},
		{"leading zero", `[01]`, nil, `"«[01]»"`},
		{"trailing comma", `[1,]`, nil, `"«[1,]»"`},
		{"name without value", `{"a"}`, nil, `"«{"a"}»"`},
		{"NUL", "\x00", nil, "\"«\x00»\""},
		{"white space only", "  ", nil, `"«  »"`},
	}
	for _, tt := range tests {
		if got, want := masked(t, tt.body, tt.plain...), hashes(t, tt.want); got != want {
			t.Errorf("%s: %q is recorded as\n%s, want\n%s", tt.name, tt.body, got, want)
		}
	}
}

func TestMaskRaw(t *testing.T) {
	for body, want := range map[string]string{
		` {"a" : "b"} `: `{"a":"b"}`,
		"not\njson":     `"not\njson"`,
	} {
		line := recorded(t, &record.Record{Request: record.Request{Data: json.RawMessage(body)}}, false, map[string]string{"log_raw": "true"})
		if !strings.Contains(line, `"data":`+want) {
			t.Errorf("%q is recorded as %s", body, line)
		}
	}
}

// A body of very many brackets costs no stack.
func TestMaskDeep(t *testing.T) {
	body := strings.Repeat("[", 1<<20)
	if got := masked(t, body); len(got) > 100 {
		t.Errorf("a body of %d brackets is recorded in %d bytes", len(body), len(got))
	}
}

// FuzzMask compares the scanner with encoding/json: what that accepts is recorded value by value, with every
// text hashed and all else the same; what it refuses is one hash. The line is always valid JSON.
func FuzzMask(f *testing.F) {
	for _, s := range []string{
		`{"a":"b","c":[1,2.5e3,null,true,{"d":"\u00e9"}]}`, `"x"`, `[[[]]]`, `{"a":`, "{\"\xff\":\"\\ud800\"}", `-0.1e-1`, `{"a":1}x`, "\x00", `["\"]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) == 0 {
			return
		}
		got := []byte(masked(t, string(body), "plain"))
		if !json.Valid(got) || bytes.ContainsAny(got, "\n\r") {
			t.Fatalf("%q is recorded as %q: not one line of JSON", body, got)
		}
		want, err := decode(body)
		if err == nil && len(body) <= 64 {
			want = maskedTree(t, want, 0)
		} else if err != nil {
			want = hash(t, string(body))
		} else {
			return // may be beyond the limits
		}
		if have, err := decode(got); err != nil || !reflect.DeepEqual(have, want) {
			t.Fatalf("%q is recorded as %s, want %v", body, got, want)
		}
	})
}

// decode is encoding/json's view of one JSON text.
func decode(raw []byte) (v any, err error) {
	if !json.Valid(raw) {
		return nil, &json.SyntaxError{}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func maskedTree(t testing.TB, v any, depth int) any {
	switch v := v.(type) {
	case string:
		return hash(t, v)
	case []any:
		for i := range v {
			v[i] = maskedTree(t, v[i], depth+1)
		}
	case map[string]any:
		for k := range v {
			if depth > 0 || k != "plain" {
				v[k] = maskedTree(t, v[k], depth+1)
			}
		}
	}
	return v
}
