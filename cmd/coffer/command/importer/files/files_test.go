package files

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

func TestParseDotenv(t *testing.T) {
	got, err := parseDotenv("# a comment\n\nA=plain # more\nexport B = x#y \nC='single $X \\n'\nD=\"two\\nlines \\\"\\$\"  # more\r\nE=\"over\nlines\"\nF=\nG=''\nH='a\nb'")
	if err != nil {
		t.Fatal(err)
	}
	if want := "map[A:plain B:x#y C:single $X \\n D:two\nlines \"$ E:over\nlines F: G: H:a\nb]"; fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	for text, want := range map[string]string{
		"A=1\nnothing\n":        "line 2 is not NAME=VALUE",
		"1A=x":                  "line 1 is not NAME=VALUE",
		"A=1\n\nA=2":            "line 3: A is there twice",
		"A=\"secret-value":      "line 1: the value of A has no end",
		"\nA='x' secret-value":  "line 2: there is something behind the quotes of A",
		"A=\"secret-value\\q\"": "a backslash with another character",
		"A=\"a\nb\"\nB":         "line 3 is not",
	} {
		if _, err := parseDotenv(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-value") {
			t.Errorf("%q: %v, want …%s", text, err, want)
		}
	}
}

var values = []string{
	"plain", "", " with space ", "a#b", "a # b", "it's", `say "hi"`, "$HOME ${HOME} `id`", `back\slash`, `\n`, `'"$x\`, "two\nlines", "tab\there", "=", "ünï", "\r\n",
}

func TestDotenvRoundTrip(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh")
	}
	for _, value := range values {
		raw, err := writeDotenv(map[string]any{"A": value, "B": json.Number("1.50"), "C": true})
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseDotenv(string(raw))
		if value != "\r\n" && (err != nil || back["A"] != value || back["B"] != "1.50" || back["C"] != "true") {
			t.Errorf("%q is %q, then %v, %v", value, raw, back, err)
		}
		if out, err := exec.Command(sh, "-c", string(raw)+`printf '%s|' "$A"`).CombinedOutput(); string(out) != value+"|" {
			t.Errorf("%q is read as %q by sh, %v", value, out, err)
		}
	}
	for _, data := range []map[string]any{{"a-b": "x"}, {"A": nil}, {"A": map[string]any{}}, {"A": []any{"x"}}, {"A": "\x00"}} {
		if raw, err := writeDotenv(data); err == nil {
			t.Errorf("%v is written as %q", data, raw)
		}
	}
}

func TestKubernetes(t *testing.T) {
	got, err := parseKubernetes([]byte("---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: db\n  namespace: shop\n  labels: {a: b}\ntype: Opaque\ndata:\n  password: Y29ycmVjdA==\n  \"n\": MQ==\nstringData:\n  user: \"shop\"\n---\n---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Secret\n  metadata: {name: other}\n  data: {}\n"))
	if want := "map[other:map[] shop/db:map[n:1 password:correct user:shop]]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("%v, %v, want %s", got, err, want)
	}
	for text, want := range map[string]string{
		"kind: ConfigMap\napiVersion: v1":                                            `of the kind "ConfigMap"`,
		"kind: Secret\napiVersion: v1":                                               "no name",
		"kind: Secret\napiVersion: v1\nmetadata: {name: a}\ndata: {k: secret-value}": `the key "k" is not base64`,
		"kind: Secret\napiVersion: v1\nmetadata: {name: a}\ndata: {k: /w==}":         `the key "k" is not text`,
		"a: [secret-value": "not YAML",
		"kind: Secret\napiVersion: v1\nmetadata: {name: a}\n---\nkind: Secret\napiVersion: v1\nmetadata: {name: a}": "twice",
	} {
		if _, err := parseKubernetes([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-value") {
			t.Errorf("%q: %v, want …%s", text, err, want)
		}
	}
	data := map[string]any{}
	for i, value := range values {
		data[fmt.Sprint("k", i)] = value
	}
	raw, err := writeKubernetes(map[string]map[string]any{"db": data, "web.one": {"x": "y"}})
	if err != nil {
		t.Fatal(err)
	}
	back, err := parseKubernetes(raw)
	if err != nil || fmt.Sprint(back["db"]) != fmt.Sprint(data) || back["web.one"]["x"] != "y" {
		t.Errorf("%v, %v", back, err)
	}
	for name, data := range map[string]map[string]any{"a/b": {"x": "y"}, "Upper": {"x": "y"}, "key": {"a b": "y"}, "value": {"x": nil}} {
		if _, err := writeKubernetes(map[string]map[string]any{name: data}); err == nil {
			t.Errorf("%s is written", name)
		}
	}
}

func TestParseJSON(t *testing.T) {
	got, err := parseJSON([]byte(`{"a/b":{"n":9007199254740993,"o":{"x":[1]}}}`))
	if err != nil || fmt.Sprint(got) != "map[a/b:map[n:9007199254740993 o:map[x:[1]]]]" {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{
		`[]`: "not a JSON object", `{"a":"secret-value"}`: `the member "a" is not an object`, `{"a":{}} {}`: "something behind", `{"a":{"b":secret-value}}`: "not a JSON object",
	} {
		if _, err := parseJSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-value") {
			t.Errorf("%s: %v, want …%s", text, err, want)
		}
	}
}
