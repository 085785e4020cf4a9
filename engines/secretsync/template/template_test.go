package template_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/template"
)

// rules are those of a destination that knows upper from lower case, or does not.
func rules(fold bool) destination.Rules {
	r := destination.Rules{
		Granularity: destination.SecretPath, Template: "vault/{{ .MountAccessor }}/{{ .SecretPath }}", MinValue: 1, MaxValue: 40,
		Normalise: func(name string) string {
			return strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '/' {
					return r
				}
				return '_'
			}, name)
		},
		CheckName: func(name string) string {
			if name == "" || len(name) > 40 {
				return "must have 1 to 40 letters"
			}
			return ""
		},
	}
	if fold {
		r.Fold = strings.ToUpper
	}
	return r
}

var source = template.NewSource("type", "dest", "team/a/", "n1", "kv/sub/", "kv_1", "app/db-main")

// shown is an item for comparison.
func shown(items []template.Item) []string {
	var out []string
	for _, it := range items {
		text := fmt.Sprintf("%s %s=%s", it.Key, it.Name, it.Value)
		if it.Problem != "" {
			text = fmt.Sprintf("%s %s!%s", it.Key, it.Name, it.Problem)
		}
		out = append(out, text)
	}
	return out
}

func TestItems(t *testing.T) {
	const key = destination.SecretKey
	for name, c := range map[string]struct {
		plan template.Plan
		data string
		fold bool
		want []string
	}{
		"a whole secret":                 {template.Plan{}, `{"b":"2","a":"<1>"}`, false, []string{` vault/kv_1/app/db_main={"a":"<1>","b":"2"}`}},
		"white space does not matter":    {template.Plan{}, "{ \"a\" :\n [1, {\"x\": null}] }", false, []string{` vault/kv_1/app/db_main={"a":[1,{"x":null}]}`}},
		"the keys of a secret":           {template.Plan{Granularity: key}, `{"b":"2","a":"1"}`, false, []string{"a vault/kv_1/app/db_main/a=1", "b vault/kv_1/app/db_main/b=2"}},
		"raw values that are no strings": {template.Plan{Granularity: key}, `{"n":12.50,"o":{"x": 1},"z":null,"t":true}`, false, []string{"n vault/kv_1/app/db_main/n=12.50", `o vault/kv_1/app/db_main/o={"x":1}`, "t vault/kv_1/app/db_main/t=true", "z vault/kv_1/app/db_main/z=null"}},
		"keys as JSON":                   {template.Plan{Granularity: key, Format: template.JSON}, `{"a":"x\"y"}`, false, []string{`a vault/kv_1/app/db_main/a="x\"y"`}},
		"a whole secret, raw":            {template.Plan{Format: template.Raw}, `{"a":"line\nline"}`, false, []string{" vault/kv_1/app/db_main=line\nline"}},
		"raw takes one key":              {template.Plan{Format: template.Raw}, `{"a":"1","b":"2"}`, false, []string{" vault/kv_1/app/db_main!the format raw takes one key, the secret has 2: choose one with include, or granularity secret-key"}},
		"raw, one key is chosen":         {template.Plan{Format: template.Raw, Include: []string{"b"}}, `{"a":"1","b":"2"}`, false, []string{" vault/kv_1/app/db_main=2"}},
		"included and excluded":          {template.Plan{Granularity: key, Include: []string{"DB_*", "x"}, Exclude: []string{"*_OLD", "DB_*X*Y"}}, `{"DB_A":"1","DB_OLD":"2","x":"3","y":"4","DB_1X2Y":"5","DB_Y":"6"}`, false, []string{"DB_A vault/kv_1/app/db_main/DB_A=1", "DB_Y vault/kv_1/app/db_main/DB_Y=6", "x vault/kv_1/app/db_main/x=3"}},
		"nothing is chosen":              {template.Plan{Include: []string{"z"}}, `{"a":"1"}`, false, nil},
		"an empty secret":                {template.Plan{}, `{}`, false, nil},
		"all fields": {template.Plan{Granularity: key, Template: "{{ .DestinationType }}_{{ .DestinationName }}_{{ .NamespaceBaseName }}_{{ .MountBaseName }}_{{ .SecretBaseName }}_{{ .SecretKey }}"}, `{"k":"1"}`, false,
			[]string{"k type_dest_a_sub_db_main_k=1"}},
		"paths":                               {template.Plan{Template: "{{ .NamespacePath }} {{ .NamespaceID }} {{ .MountPath }}"}, `{"k":"1"}`, false, []string{` team/a_n1_kv/sub={"k":"1"}`}},
		"two keys, one name":                  {template.Plan{Granularity: key}, `{"a-b":"1","a_b":"2"}`, false, []string{`a-b vault/kv_1/app/db_main/a_b!the name "vault/kv_1/app/db_main/a_b" is that of the key "a_b", too: choose another secret_name_template, or exclude one of the keys`, `a_b vault/kv_1/app/db_main/a_b!the name "vault/kv_1/app/db_main/a_b" is that of the key "a-b", too: choose another secret_name_template, or exclude one of the keys`}},
		"upper and lower case are one":        {template.Plan{Granularity: key, Template: "{{ .SecretKey }}"}, `{"a":"1","A":"2"}`, true, []string{`A A!the name "A" is that of the key "a", too: choose another secret_name_template, or exclude one of the keys`, `a a!the name "a" is that of the key "A", too: choose another secret_name_template, or exclude one of the keys`}},
		"upper and lower case are two":        {template.Plan{Granularity: key, Template: "{{ .SecretKey }}"}, `{"a":"1","A":"2"}`, false, []string{"A A=2", "a a=1"}},
		"a name that is too long":             {template.Plan{Granularity: key, Template: "{{ .SecretKey }}"}, `{"` + strings.Repeat("k", 41) + `":"1"}`, false, []string{strings.Repeat("k", 41) + " " + strings.Repeat("k", 41) + `!the name "` + strings.Repeat("k", 41) + `": must have 1 to 40 letters`}},
		"a key that makes too long a name":    {template.Plan{Granularity: key, Template: "{{ .SecretKey }}{{ .SecretKey }}"}, `{"` + strings.Repeat("k", 3000) + `":"1","a":"2"}`, false, []string{"a aa=2", strings.Repeat("k", 3000) + " !secret_name_template: makes more than 4096 bytes"}},
		"a value that is too long":            {template.Plan{Granularity: key}, `{"k":"` + strings.Repeat("v", 41) + `"}`, false, []string{"k vault/kv_1/app/db_main/k!the value is 41 bytes long, the destination takes 40 at most"}},
		"a value that is just short enough":   {template.Plan{Granularity: key}, `{"k":"` + strings.Repeat("v", 40) + `"}`, false, []string{"k vault/kv_1/app/db_main/k=" + strings.Repeat("v", 40)}},
		"a value that is too short":           {template.Plan{Granularity: key}, `{"k":""}`, false, []string{"k vault/kv_1/app/db_main/k!the value is 0 bytes long, the destination wants 1 at least"}},
		"one bad key does not stop the other": {template.Plan{Granularity: key}, `{"a":"","b":"2"}`, false, []string{"a vault/kv_1/app/db_main/a!the value is 0 bytes long, the destination wants 1 at least", "b vault/kv_1/app/db_main/b=2"}},
	} {
		c.plan.Rules = rules(c.fold)
		items, err := c.plan.Items(source, json.RawMessage(c.data))
		if got := shown(items); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestItemsOfWhatIsNoObject(t *testing.T) {
	for _, data := range []string{`"hidden"`, `["hidden"]`, `{"a":"hidden"`, ``, `12`} {
		p := template.Plan{Rules: rules(false)}
		if _, err := p.Items(source, json.RawMessage(data)); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %v", data, err)
		}
	}
}

func TestCheckFindsEveryProblem(t *testing.T) {
	for name, c := range map[string]struct {
		plan template.Plan
		want []string // begin so
	}{
		"good":                       {template.Plan{}, nil},
		"good, with all":             {template.Plan{Granularity: "secret-key", Template: "X_{{ .SecretPath }}_{{ .SecretKey }}", Format: "json", Include: []string{"*"}, Exclude: []string{"a"}}, nil},
		"all wrong":                  {template.Plan{Granularity: "secret", Template: "{{ .Nothing }}", Format: "xml", Include: []string{""}, Exclude: []string{""}}, []string{`field "exclude"`, `field "format"`, `field "granularity"`, `field "include"`, `field "secret_name_template"`}},
		"one name for all keys":      {template.Plan{Granularity: "secret-key", Template: "X_{{ .SecretPath }}"}, []string{`field "secret_name_template": makes the same name for every key`}},
		"keys that fold to one name": {template.Plan{Granularity: "secret-key", Template: "X{{ .SecretPath }}{{ .SecretKey }}{{"}, []string{`field "secret_name_template"`}},
		"a name that is too long":    {template.Plan{Template: strings.Repeat("x", 50)}, []string{`field "secret_name_template": makes names such as`}},
		"an empty name":              {template.Plan{Template: "{{ .SecretKey }}"}, []string{`field "secret_name_template": makes names such as "": must have 1 to 40 letters (.SecretKey is empty`}},
		"a template with a function that is not there": {template.Plan{Template: `{{ env "HOME" }}`}, []string{`field "secret_name_template"`}},
	} {
		c.plan.Rules = rules(false)
		got := c.plan.Check()
		if len(got) != len(c.want) {
			t.Errorf("%s: %q", name, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], c.want[i]) {
				t.Errorf("%s: %q, want %q", name, got[i], c.want[i])
			}
		}
	}
}

// FuzzItems: whatever a secret and its rules are, the same comes of the same, names are legal and apart, and values within
// their limits, or there is a problem; and a problem tells no value.
func FuzzItems(f *testing.F) {
	f.Add(`{"a":"1","B":"secret-value"}`, "X_{{ .SecretKey }}", "secret-key", "raw", "*", "b*")
	f.Add(`{"a":{"x":[1,2]},"A":null,"":"y"}`, "", "secret-path", "json", "", "")
	f.Add(`{"a":1e999}`, "{{ .SecretPath | uppercase }}", "secret-key", "", "a", "")
	f.Fuzz(func(t *testing.T, data, text, granularity, format, include, exclude string) {
		p := template.Plan{Rules: rules(true), Granularity: granularity, Template: text, Format: format}
		if include != "" {
			p.Include = []string{include}
		}
		if exclude != "" {
			p.Exclude = []string{exclude}
		}
		if len(p.Check()) > 0 {
			return
		}
		items, err := p.Items(source, json.RawMessage(data))
		if again, againErr := p.Items(source, json.RawMessage(data)); !slices.Equal(shown(items), shown(again)) || (err == nil) != (againErr == nil) {
			t.Errorf("%q, then %q", shown(items), shown(again))
		}
		var secret map[string]json.RawMessage
		if err != nil || json.Unmarshal([]byte(data), &secret) != nil {
			return
		}
		seen := map[string]bool{}
		for _, it := range items {
			if it.Key != "" && secret[it.Key] == nil {
				t.Errorf("the key %q is none of the secret", it.Key)
			}
			if it.Problem != "" {
				var value string
				if json.Unmarshal(secret[it.Key], &value) == nil && len(value) > 8 && strings.Contains(it.Problem, value) && !strings.Contains(it.Name+it.Key, value) {
					t.Errorf("the problem %q tells a value", it.Problem)
				}
				continue
			}
			if name := strings.ToUpper(it.Name); seen[name] || p.Rules.CheckName(it.Name) != "" || p.Rules.Normalise(it.Name) != it.Name {
				t.Errorf("the name %q is not legal, or is there twice", it.Name)
			} else {
				seen[name] = true
			}
			if len(it.Value) > p.Rules.MaxValue || len(it.Value) < p.Rules.MinValue {
				t.Errorf("a value of %d bytes", len(it.Value))
			}
		}
	})
}

// TestTooManyKeysCostNothing: the writer of a secret cannot make the server work out hundreds of thousands of names.
func TestTooManyKeysCostNothing(t *testing.T) {
	made := 0
	r := rules(false)
	normalise := r.Normalise
	r.Normalise = func(name string) string { made++; return normalise(name) }
	for _, n := range []int{template.MaxItems, template.MaxItems + 1} {
		data := map[string]string{}
		for i := range n {
			data[fmt.Sprint("k", i)] = "v"
		}
		text, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		made = 0
		items, err := (&template.Plan{Rules: r, Granularity: destination.SecretKey, Template: "{{ .SecretKey }}"}).Items(source, text)
		if _, many := errors.AsType[template.TooManyKeys](err); many != (n > template.MaxItems) || !many && len(items) != n || many && made > 0 {
			t.Errorf("%d keys: %d items, %d names, %v", n, len(items), made, err)
		}
		if _, err := (&template.Plan{Rules: r}).Items(source, text); err != nil {
			t.Errorf("%d keys under one name: %v", n, err)
		}
	}
}

func TestAbbreviatedNamesAreWholeRunes(t *testing.T) {
	p := template.Plan{Rules: rules(true), Granularity: destination.SecretPath, Template: "x" + strings.Repeat("ä", 300)}
	p.Rules.Normalise = func(name string) string { return name }
	p.Rules.CheckName = func(string) string { return "too long" }
	items, err := p.Items(source, json.RawMessage(`{"a":"1"}`))
	if err != nil || len(items) != 1 || !strings.Contains(items[0].Problem, `ä…"`) {
		t.Errorf("%+v, %v", items, err)
	}
}
