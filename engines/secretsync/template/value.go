package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines/nametemplate"
)

// maxRenamed bounds the names of keys in Plan.Rename.
const maxRenamed = 512

// valueFields are the fields of value templates, besides the keys of the secret.
func (p *Plan) valueFields() []string {
	if p.Keys() {
		return append([]string{"SecretValue"}, fields...)
	}
	return slices.DeleteFunc(slices.Clone(fields), func(name string) bool { return name == "SecretKey" })
}

// valueData is the data of value templates.
type valueData struct {
	Source
	SecretValue string            // with granularity secret-key
	Secrets     map[string]string // the keys that are synced, by their own names
}

// valueOf returns what makes the value of a key, "" for all of the secret; nil: there is no template.
func (p *Plan) valueOf(src Source, secret map[string]json.RawMessage) (func(key string) ([]byte, error), error) {
	if p.ValueTemplate == "" {
		return nil, nil
	}
	t, err := nametemplate.ParseValue(p.ValueTemplate, p.valueFields())
	if err != nil {
		return nil, err
	}
	keys := make(map[string]string, len(secret))
	for key, v := range secret {
		keys[key] = text(v)
	}
	run, err := t.Of(keys)
	if err != nil {
		return nil, err
	}
	return func(key string) ([]byte, error) {
		src.SecretKey = p.external(key)
		return run.Execute(valueData{src, keys[key], keys})
	}, nil
}

// external returns what a key is called at the destination.
func (p *Plan) external(key string) string {
	if name, ok := p.Rename[key]; ok {
		return name
	}
	return key
}

// renamed returns a secret with its keys as they are called at the destination.
func (p *Plan) renamed(secret map[string]json.RawMessage) (out map[string]json.RawMessage, problem string) {
	if len(p.Rename) == 0 {
		return secret, ""
	}
	out, from := make(map[string]json.RawMessage, len(secret)), map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(secret)) {
		name := p.external(key)
		if other, taken := from[name]; taken {
			return nil, fmt.Sprintf("the keys %q and %q would both be called %q: change rename, or exclude one of them", abbreviate(other), abbreviate(key), abbreviate(name))
		}
		out[name], from[name] = secret[key], key
	}
	return out, ""
}

// checkValues returns what is wrong with the settings that values depend on.
func (p *Plan) checkValues() (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	switch {
	case p.Format != "" && p.Format != JSON && p.Format != Raw && p.Format != Dotenv:
		wrong(`field "format": must be "json", "raw" or "dotenv"`)
	case p.Format == Dotenv && p.Keys():
		wrong(`field "format": dotenv is for whole secrets: set granularity to secret-path, or format to raw`)
	}
	if p.ValueTemplate != "" {
		if p.Format != "" {
			wrong(`field "value_template": says how values are written, and so does format: leave one of them empty`)
		}
		if _, err := nametemplate.ParseValue(p.ValueTemplate, p.valueFields()); err != nil {
			wrong(`field "value_template": %s`, nametemplate.Text(err))
		}
	}
	if len(p.Rename) > 0 && !p.Keys() && p.ValueTemplate != "" {
		wrong(`field "rename": has no effect, because value_template names the keys: leave one of them empty, or set granularity to secret-key`)
	}
	if len(p.Rename) > 0 && !p.Keys() && p.Format == Raw {
		wrong(`field "rename": has no effect, because the format raw has no names of keys: leave it empty, or set format to json or dotenv`)
	}
	from := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(p.Rename)) {
		switch name := p.Rename[key]; {
		case key == "" || name == "":
			wrong(`field "rename": has an empty name: give the key of the secret, and what it is called at the destination`)
		case len(key) > maxRenamed || len(name) > maxRenamed:
			wrong(`field "rename": has a name of more than %d bytes`, maxRenamed)
		case from[name] != "":
			wrong(`field "rename": calls the keys %q and %q the same: give each a name of its own`, from[name], key)
		case p.Format == Dotenv && !variable.MatchString(name):
			wrong(`field "rename": %q is no name of a variable: with format dotenv it may have letters, digits and "_" only, and no digit at first`, name)
		default:
			from[name] = key
		}
	}
	return problems
}

// text returns the value of a key as text: a text as it is, anything else as JSON.
func text(v json.RawMessage) string {
	var s string
	if string(v) != "null" && json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(compact(v))
}

func compact(v json.RawMessage) []byte {
	var out bytes.Buffer
	if json.Compact(&out, v) != nil {
		return v
	}
	return out.Bytes()
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// dotenv returns a secret as lines KEY="value", ordered by key.
func dotenv(secret map[string]json.RawMessage) (value []byte, problem string) {
	var out bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(secret)) {
		if !variable.MatchString(key) {
			return nil, fmt.Sprintf(`the key %q is no name of a variable, which has letters, digits and "_" only, and no digit at first: rename it, or exclude it`, abbreviate(key))
		}
		text := text(secret[key])
		if strings.Contains(text, "\x00") {
			return nil, fmt.Sprintf("the value of the key %q has a zero byte, which variables cannot have: exclude it", abbreviate(key))
		}
		fmt.Fprintf(&out, "%s=%s\n", key, quoted(text))
	}
	return out.Bytes(), ""
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "`", "\\`")

// quoted returns a text in quotes, in the way that most readers of such files, and shells, agree on: in single quotes, which need no
// escapes, if it has a character that double quotes would need one for. A text with a backslash or a single quote has no such way.
func quoted(text string) string {
	if strings.ContainsAny(text, "\"$`") && !strings.ContainsAny(text, `\'`) {
		return "'" + text + "'"
	}
	return `"` + escapes.Replace(text) + `"`
}
