package template_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/template"
)

// TestValues: what is made of the keys of a secret: other names, a file of variables, or the text of a template.
func TestValues(t *testing.T) {
	const name = " vault/kv_1/app/db_main"
	secret := `{"user":"shop","pass word":"p@ss/1","port":5432,"tags":["a", "b"]}`
	wide := rules(false)
	wide.MaxValue = 1 << 20
	for what, c := range map[string]struct {
		plan template.Plan
		data string
		want []string
	}{
		"renamed in JSON": {template.Plan{Rename: map[string]string{"user": "DB_USER", "gone": "X"}, Include: []string{"user", "port"}}, secret, []string{name + `={"DB_USER":"shop","port":5432}`}},
		"two keys of one name": {template.Plan{Rename: map[string]string{"user": "port"}}, secret,
			[]string{name + `!the keys "port" and "user" would both be called "port": change rename, or exclude one of them`}},
		"names that change places": {template.Plan{Rename: map[string]string{"a": "b", "b": "a"}}, `{"a":"1","b":"2"}`, []string{name + `={"a":"2","b":"1"}`}},
		"renamed keys of their own": {template.Plan{Granularity: destination.SecretKey, Template: "X_{{ .SecretKey }}", Rename: map[string]string{"user": "login"}, Include: []string{"user", "port"}}, secret,
			[]string{"port X_port=5432", "user X_login=shop"}},
		"renamed to the name of another key": {template.Plan{Granularity: destination.SecretKey, Template: "{{ .SecretKey }}", Rename: map[string]string{"user": "port"}, Include: []string{"user", "port"}}, secret,
			[]string{`port port!the name "port" is that of the key "user", too: choose another secret_name_template, or exclude one of the keys`, `user port!the name "port" is that of the key "port", too: choose another secret_name_template, or exclude one of the keys`}},
		"dotenv": {template.Plan{Format: template.Dotenv, Rename: map[string]string{"pass word": "PASSWORD", "user": "ZUSER"}}, secret,
			[]string{name + "=PASSWORD=\"p@ss/1\"\nZUSER=\"shop\"\nport=\"5432\"\ntags='[\"a\",\"b\"]'\n"}},
		"dotenv of a key that is no variable": {template.Plan{Format: template.Dotenv}, secret,
			[]string{name + `!the key "pass word" is no name of a variable, which has letters, digits and "_" only, and no digit at first: rename it, or exclude it`}},
		"a template": {template.Plan{ValueTemplate: `postgres://{{ .Secrets.user }}:{{ get "pass word" | urlencode }}@db:{{ .Secrets.port }}/{{ .SecretBaseName }}{{ if has "none" }}!{{ end }}`}, secret,
			[]string{name + "=postgres://shop:p%40ss%2F1@db:5432/db-main"}},
		"a template that makes JSON": {template.Plan{ValueTemplate: `{"u":{{ json .Secrets.user }},"tags":{{ .Secrets.tags }}}`}, secret, []string{name + `={"u":"shop","tags":["a","b"]}`}},
		"a template for each key": {template.Plan{Granularity: destination.SecretKey, Template: "{{ .SecretKey }}", ValueTemplate: `{{ .SecretKey }}={{ .SecretValue | base64 }}`, Include: []string{"user"}, Rename: map[string]string{"user": "U"}}, secret,
			[]string{"user U=U=c2hvcA=="}},
		"a key that the template does not fit": {template.Plan{Granularity: destination.SecretKey, Template: "{{ .SecretKey }}", ValueTemplate: `{{ if eq .SecretKey "user" }}{{ .Secrets.none }}{{ end }}ok`, Include: []string{"user", "port"}}, secret,
			[]string{"port port=ok", `user user!value_template: 1:40: executing "" at <.Secrets.none>: map has no entry for key "none"`}},
		"an excluded key is not in the template": {template.Plan{Granularity: destination.SecretKey, Template: "{{ .SecretKey }}", ValueTemplate: `{{ has "user" }}`, Exclude: []string{"user", "p*", "tags"}}, `{"user":"u","k":"v"}`, []string{"k k=false"}},
	} {
		c.plan.Rules = wide
		items, err := c.plan.Items(source, json.RawMessage(c.data))
		if got := shown(items); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", what, got, err, c.want)
		}
		if problems := c.plan.Check(); problems != nil {
			t.Errorf("%s: %q", what, problems)
		}
		for _, it := range items {
			if it.Object != (c.plan.ValueTemplate == "" && c.plan.Format == "" && !c.plan.Keys()) {
				t.Errorf("%s: Object is %t", what, it.Object)
			}
		}
	}
}

// TestValueTemplatesThatFail: the error says where, and no value.
func TestValueTemplatesThatFail(t *testing.T) {
	secret := `{"user":"hidden","big":"` + strings.Repeat("hidden", 150_000) + `"}`
	for text, want := range map[string]string{
		"{{ .Secrets.usr }}":                            `1:11: executing "" at <.Secrets.usr>: map has no entry for key "usr"`,
		"{{ get .Secrets.user }}":                       `1:3: executing "" at <get .Secrets.user>: error calling get: the secret has no such key`,
		"{{ truncate .Secrets.user 3 }}":                `1:20: executing "" at <.Secrets.user>: wrong type for value; expected int; got string`,
		"{{ printf .Secrets.user 3 | truncate 0 }}":     "takes a length of at least 1",
		"{{ .Secrets.big }}{{ .Secrets.big }}":          "makes more than 1048576 bytes",
		"{{ replace \"h\" .Secrets.big .Secrets.big }}": "works on more than 8388608 bytes",
		strings.Repeat("{{ sha256 .Secrets.big }}", 10): "works on more than 8388608 bytes",
		"{{ printf \"" + strings.Repeat("%s", 10) + "\"" + strings.Repeat(" .Secrets.big", 10) + " }}": "works on more than 8388608 bytes",
	} {
		p := template.Plan{Rules: rules(false), ValueTemplate: text}
		if problems := p.Check(); problems != nil {
			t.Errorf("%q: %q", text, problems)
		}
		_, err := p.Items(source, json.RawMessage(secret))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "value_template: ") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

// TestWorkIsOfOneSecret: the keys of a secret together have the work of one template.
func TestWorkIsOfOneSecret(t *testing.T) {
	keys := map[string]string{"big": strings.Repeat("x", 500_000)}
	for _, key := range strings.Split("abcdefghijklmnopqrstuvwxyz", "") {
		keys[key] = "1"
	}
	data, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	r := rules(false)
	r.MaxValue = 1 << 20
	p := template.Plan{Rules: r, Granularity: destination.SecretKey, ValueTemplate: "{{ .Secrets.big }}"}
	items, err := p.Items(source, data)
	failed := 0
	for _, it := range items {
		if strings.Contains(it.Problem, "works on more than") {
			failed++
		}
	}
	if err != nil || failed != len(keys)-16 {
		t.Errorf("%d of %d have failed, %v", failed, len(keys), err)
	}
}

func TestCheckOfValues(t *testing.T) {
	const key = destination.SecretKey
	for what, c := range map[string]struct {
		plan template.Plan
		want string
	}{
		"dotenv of keys":             {template.Plan{Granularity: key, Format: template.Dotenv}, `field "format": dotenv is for whole secrets: set granularity to secret-path, or format to raw`},
		"a template and a format":    {template.Plan{ValueTemplate: "x", Format: template.JSON}, `field "value_template": says how values are written, and so does format: leave one of them empty`},
		"no template":                {template.Plan{ValueTemplate: "{{"}, `field "value_template": 1: unclosed action`},
		"an unknown field":           {template.Plan{ValueTemplate: "{{ .Password }}"}, `field "value_template": there is no .Password: there are`},
		"the value of no key":        {template.Plan{ValueTemplate: "{{ .SecretValue }}"}, `field "value_template": there is no .SecretValue`},
		"no key of the secret":       {template.Plan{ValueTemplate: "{{ .Secrets }}"}, `field "value_template": .Secrets needs one key behind it, such as .Secrets.password`},
		"everything":                 {template.Plan{ValueTemplate: "{{ . }}"}, `field "value_template": "." alone stands for everything: name a field, such as .Secrets.password`},
		"everything, by another way": {template.Plan{ValueTemplate: "{{ with .SecretPath }}{{ print $ }}{{ end }}"}, `field "value_template": "$" alone`},
		"one field":                  {template.Plan{ValueTemplate: "{{ with $x := .Secrets.a }}{{ . }}{{ $x }}{{ $.Secrets.b }}{{ else }}none{{ end }}"}, ""},
		"too deep":                   {template.Plan{ValueTemplate: "{{ .Secrets.a.b }}"}, `field "value_template": .Secrets needs one key`},
		"a loop":                     {template.Plan{ValueTemplate: "{{ range .Secrets }}{{ end }}"}, `field "value_template": loops (range) cannot be used here`},
		"the environment":            {template.Plan{ValueTemplate: `{{ env "HOME" }}`}, `field "value_template": 1: function "env" not defined`},
		"something new each time":    {template.Plan{ValueTemplate: `{{ random 8 }}`}, `field "value_template": 1: function "random" not defined`},
		"two keys of one name":       {template.Plan{Rename: map[string]string{"a": "X", "b": "X"}}, `field "rename": calls the keys "a" and "b" the same: give each a name of its own`},
		"no name":                    {template.Plan{Rename: map[string]string{"a": ""}}, `field "rename": has an empty name: give the key of the secret, and what it is called at the destination`},
		"a long name":                {template.Plan{Rename: map[string]string{"a": strings.Repeat("x", 513)}}, `field "rename": has a name of more than 512 bytes`},
		"no variable":                {template.Plan{Format: template.Dotenv, Rename: map[string]string{"a": "B-C"}}, `field "rename": "B-C" is no name of a variable`},
		"renamed for a template":     {template.Plan{ValueTemplate: "x", Rename: map[string]string{"a": "b"}}, `field "rename": has no effect, because value_template names the keys`},
		"renamed in a text":          {template.Plan{Format: template.Raw, Rename: map[string]string{"a": "b"}}, `field "rename": has no effect, because the format raw has no names of keys`},
		"renamed keys have a format": {template.Plan{Granularity: key, Format: template.Raw, Rename: map[string]string{"a": "b"}}, ""},
	} {
		c.plan.Rules = rules(false)
		got := strings.Join(c.plan.Check(), "; ")
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" || strings.Contains(got, ";") && !strings.Contains(c.want, ";") {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// TestDotenv: shells and readers of such files get the very values. sh is the independent one of them.
func TestDotenv(t *testing.T) {
	values := []string{
		"plain", "", "with space", "a#b", "it's", `say "hi"`, "$HOME ${HOME} `id`", `back\slash`, `\n`, `'"$x\`, "two\nlines", "-----BEGIN-----\nAb+/=\n-----END-----\n", "tab\there", "=", "ünï", "!", `\`, `"`, `'`,
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh")
	}
	for _, value := range values {
		data, err := json.Marshal(map[string]string{"A": value, "B": "after"})
		if err != nil {
			t.Fatal(err)
		}
		r := rules(false)
		r.MaxValue = 1000
		p := template.Plan{Rules: r, Format: template.Dotenv}
		items, err := p.Items(source, data)
		if err != nil || items[0].Problem != "" {
			t.Fatalf("%q: %v, %v", value, items, err)
		}
		file := string(items[0].Value)
		out, err := exec.Command(sh, "-c", file+`printf '%s|%s' "$A" "$B"`).CombinedOutput()
		if err != nil || string(out) != value+"|after" {
			t.Errorf("%q is read from %q as %q, %v", value, file, out, err)
		}
	}
	for value, want := range map[string]string{
		"plain": `A="plain"`, "it's": `A="it's"`, "$x": `A='$x'`, `say "hi"`: `A='say "hi"'`, `a\b`: `A="a\\b"`, `'$"`: `A="'\$\""`, "two\nlines": "A=\"two\nlines\"",
	} {
		data, err := json.Marshal(map[string]string{"A": value})
		if err != nil {
			t.Fatal(err)
		}
		p := template.Plan{Rules: rules(false), Format: template.Dotenv}
		if items, err := p.Items(source, data); err != nil || string(items[0].Value) != want+"\n" {
			t.Errorf("%q: %q, %v; want %s", value, shown(items), err, want)
		}
	}
	p := template.Plan{Rules: rules(false), Format: template.Dotenv}
	if items, err := p.Items(source, json.RawMessage(`{"A":"hid\u0000den"}`)); err != nil || !strings.Contains(items[0].Problem, "has a zero byte") || strings.Contains(items[0].Problem, "hid") {
		t.Errorf("%q, %v", shown(items), err)
	}
}

// FuzzValueTemplate: a template comes to an end, makes the same of the same, and its error tells no value.
func FuzzValueTemplate(f *testing.F) {
	for _, text := range []string{
		"{{ .Secrets.user }}:{{ urlencode .Secrets.pass }}", `{{ get .Secrets.user }}`, `{{ printf "%d" .Secrets.pass }}`, `{{ truncate .Secrets.pass 3 }}`, `{{ if lt .Secrets.pass 3 }}{{ end }}`,
		`{{ with .Secrets.pass }}{{ .x }}{{ end }}`, `{{ replace "" "x" .Secrets.pass }}`, `{{ $x := .Secrets.pass }}{{ $x | json | sha256 }}`, `{{ len .Secrets.pass }}`, `{{ eq .Secrets.pass 1 }}`, `{{ not (has .Secrets.pass) }}`,
	} {
		f.Add(text, false)
		f.Add(text, true)
	}
	const hidden = "Hidden-Value-0123456789"
	f.Fuzz(func(t *testing.T, text string, keys bool) {
		p := template.Plan{Rules: rules(false), ValueTemplate: text}
		if keys {
			p.Granularity = destination.SecretKey
		}
		if len(p.Check()) > 0 {
			return
		}
		data := json.RawMessage(`{"user":"` + hidden + `","pass":"` + hidden + hidden + `"}`)
		items, err := p.Items(source, data)
		again, _ := p.Items(source, data)
		if !slices.Equal(shown(items), shown(again)) {
			t.Errorf("%q, then %q", shown(items), shown(again))
		}
		if err != nil && strings.Contains(err.Error(), hidden) {
			t.Errorf("the error tells a value: %v", err)
		}
		for _, it := range items {
			if strings.Contains(it.Problem, hidden) {
				t.Errorf("the problem tells a value: %s", it.Problem)
			}
		}
	})
}
