package command

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestParseData(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f.json")
	if err := os.WriteFile(file, []byte("{\"a\": 1.50}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		args  []string
		stdin string
		want  map[string]any
		err   string
	}{
		{name: "pairs", args: []string{"a=b", "c="}, want: map[string]any{"a": "b", "c": ""}},
		{name: "value with equals", args: []string{"a=b=c"}, want: map[string]any{"a": "b=c"}},
		{name: "repeated", args: []string{"a=1", "a=2", "a=3"}, want: map[string]any{"a": []any{"1", "2", "3"}}},
		{name: "file as value", args: []string{"a=@" + file}, want: map[string]any{"a": "{\"a\": 1.50}\n"}},
		{name: "file as object", args: []string{"@" + file}, want: map[string]any{"a": json.Number("1.50")}},
		{name: "stdin as value", args: []string{"a=-"}, stdin: " x\n", want: map[string]any{"a": " x\n"}},
		{name: "stdin as object", args: []string{"-", "b=2"}, stdin: `{"a":null}`, want: map[string]any{"a": nil, "b": "2"}},
		{name: "escaped at", args: []string{`a=\@b`, `c=\-`}, want: map[string]any{"a": "@b", "c": "-"}},
		{name: "other backslash", args: []string{`a=\b`}, want: map[string]any{"a": `\b`}},
		{name: "stdin twice", args: []string{"a=-", "b=-"}, stdin: "x", err: "stdin was already used"},
		{name: "no file", args: []string{"a=@" + dir + "/none"}, err: "no such file"},
		{name: "no object", args: []string{"-"}, stdin: `["a"]`, err: "stdin does not hold a JSON object"},
		{name: "null", args: []string{"-"}, stdin: `null`, err: "does not hold a JSON object"},
		{name: "two objects", args: []string{"-"}, stdin: `{} {}`, err: "more than one JSON object"},
		{name: "no key", args: []string{"=secret-value"}, err: "KEY=VALUE"},
		{name: "bare word", args: []string{"secret-value"}, err: "KEY=VALUE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &Call{In: strings.NewReader(tt.stdin)}
			got, err := c.ParseData(context.Background(), tt.args)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("parseData(%q) fails with %v, want %q in it", tt.args, err, tt.err)
				}
				if strings.Contains(err.Error(), "secret-value") {
					t.Errorf("the error repeats the value: %v", err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("parseData(%q) = %#v, %v, want %#v", tt.args, got, err, tt.want)
			}
		})
	}
}

// FuzzParseData gives hostile arguments and stdin: no panic, and what is accepted can be sent.
func FuzzParseData(f *testing.F) {
	f.Add("a=b", "")
	f.Add("-", `{"a":{"b":[1,null,"x"]}}`)
	f.Add("a=-", "\x00\xff")
	f.Add("-", `{"a":1e999}`)
	f.Fuzz(func(t *testing.T, arg, stdin string) {
		if strings.HasPrefix(arg, "@") || strings.Contains(arg, "=@") {
			t.Skip("names a file")
		}
		c := &Call{In: strings.NewReader(stdin)}
		data, err := c.ParseData(context.Background(), []string{arg})
		if err != nil {
			return
		}
		if _, err := json.Marshal(data); err != nil {
			t.Errorf("parseData(%q) cannot be sent: %v", arg, err)
		}
	})
}
