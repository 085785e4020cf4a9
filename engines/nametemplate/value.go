package nametemplate

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"text/template"
)

// MaxValueBytes is the longest value that a template makes.
const MaxValueBytes = 1 << 20

// maxWork bounds the bytes that the functions of templates take, and that come out of them, for one secret. It bounds the time, too: there
// are no loops.
const maxWork = 8 << 20

var errWork = fmt.Errorf("works on more than %d bytes: use less, or shorter keys", maxWork)

// secretsField is the field of the data of values that has the keys of the secret.
const secretsField = "Secrets"

// Value is a template of a value that has been checked. Safe for concurrent use.
type Value struct{ parsed *template.Template }

// ParseValue reads a template of a value. It may use the given fields of its data, and any key of the field Secrets, a map of texts.
// Its functions are those of names that always make the same of the same, and json, urlencode, get and has. Text makes something
// readable of its error.
func ParseValue(text string, fields []string) (*Value, error) {
	t, err := parsed(text, checker{fields: fields, maps: secretsField, funcs: (&Secret{}).funcs()})
	if err != nil {
		return nil, err
	}
	return &Value{t}, nil
}

// Secret executes a template for one secret. An error of it tells no value.
type Secret struct {
	keys   map[string]string
	parsed *template.Template
	worked int
}

// Of returns the template for a secret with the given keys. What it does for all values of the secret together is bounded.
func (v *Value) Of(keys map[string]string) (*Secret, error) {
	t, err := v.parsed.Clone()
	if err != nil {
		return nil, err
	}
	s := &Secret{keys: keys}
	s.parsed = t.Funcs(s.funcs())
	return s, nil
}

// Execute fills the template in with a struct that has the fields that ParseValue was told of, and Secrets, the keys.
func (s *Secret) Execute(data any) ([]byte, error) {
	out := valueBuffer{of: s}
	if err := s.parsed.Execute(&out, data); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

type valueBuffer struct {
	bytes.Buffer
	of *Secret
}

func (b *valueBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > MaxValueBytes {
		return 0, fmt.Errorf("makes more than %d bytes", MaxValueBytes)
	}
	if err := b.of.work(len(p)); err != nil {
		return 0, err
	}
	return b.Buffer.Write(p)
}

// work counts bytes that are about to be worked on.
func (s *Secret) work(n int) error {
	if s.worked += n; s.worked > maxWork {
		return errWork
	}
	return nil
}

// funcs are the functions of values. What they return is a few times as long as what they take, at most.
func (s *Secret) funcs() template.FuncMap {
	of := func(do func(string) (string, error)) func(string) (string, error) {
		return func(text string) (string, error) {
			if err := s.work(len(text)); err != nil {
				return "", err
			}
			return do(text)
		}
	}
	plain := func(do func(string) string) func(string) (string, error) {
		return of(func(text string) (string, error) { return do(text), nil })
	}
	cut := func(do func(int, string) (string, error)) func(int, string) (string, error) {
		return func(n int, text string) (string, error) {
			return of(func(text string) (string, error) { return do(n, text) })(text)
		}
	}
	return template.FuncMap{
		"truncate":        cut(truncate),
		"truncate_sha256": cut(truncateSHA256),
		"uppercase":       plain(strings.ToUpper),
		"lowercase":       plain(strings.ToLower),
		"sha256":          plain(hexSum),
		"base64":          plain(func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }),
		"urlencode":       plain(func(text string) string { return strings.ReplaceAll(url.QueryEscape(text), "+", "%20") }),
		"json":            of(jsonText),
		"replace":         s.replace,
		"print": func(args ...any) (string, error) {
			if err := s.workOn(args); err != nil {
				return "", err
			}
			return fmt.Sprint(args...), nil
		},
		"printf": func(format string, args ...any) (string, error) {
			if strings.Contains(verb.ReplaceAllString(format, ""), "%") {
				return "", errVerb
			}
			if err := s.workOn(append(args, format)); err != nil {
				return "", err
			}
			return fmt.Sprintf(format, args...), nil
		},
		"get": func(key string) (string, error) {
			text, ok := s.keys[key]
			if !ok {
				return "", errors.New("the secret has no such key")
			}
			return text, nil
		},
		"has": func(key string) bool { _, ok := s.keys[key]; return ok },
	}
}

func (s *Secret) workOn(args []any) error {
	for _, arg := range args {
		if text, ok := arg.(string); ok {
			if err := s.work(len(text)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Secret) replace(old, with, text string) (string, error) {
	if err := s.work(len(text) + strings.Count(text, old)*len(with)); err != nil {
		return "", err
	}
	return strings.ReplaceAll(text, old, with), nil
}

// jsonText returns a text as JSON has it, in quotes.
func jsonText(text string) (string, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(text)
	return strings.TrimSuffix(out.String(), "\n"), err
}
