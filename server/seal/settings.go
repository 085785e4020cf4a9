package seal

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Settings reads the stanza of one seal and collects what is wrong with it, so that all of it is said at once.
// Problems name settings, never values.
type Settings struct {
	kind     string
	values   map[string]string
	known    map[string]bool
	problems []error
}

// NewSettings begins to read the stanza of a seal of this type.
func NewSettings(kind string, values map[string]string) *Settings {
	return &Settings{kind: kind, values: values, known: map[string]bool{}}
}

// Text returns a setting, or else the first environment variable of env that is set, or "".
func (s *Settings) Text(name string, env ...string) string {
	s.known[name] = true
	if v := s.values[name]; v != "" {
		return v
	}
	for _, e := range env {
		if v := os.Getenv(e); v != "" {
			return v
		}
	}
	return ""
}

// Required is Text, and a problem if there is none.
func (s *Settings) Required(name string, env ...string) string {
	v := s.Text(name, env...)
	if v == "" {
		s.Problem("%s", s.missing(name, env))
	}
	return v
}

func (s *Settings) missing(name string, env []string) string {
	text := name + " must be set"
	if len(env) > 0 {
		text += ", or the environment variable " + strings.Join(env, " or ")
	}
	return text
}

// Secret is Text of a secret, which may also be "file://PATH" or "env://NAME".
func (s *Settings) Secret(name string, env ...string) string {
	v, err := ReadSecret(s.Text(name, env...))
	if err != nil {
		s.Problem("%s: %v", name, err)
	}
	return v
}

// Bool is Text of a truth value.
func (s *Settings) Bool(name string, env ...string) bool {
	text := s.Text(name, env...)
	if text == "" {
		return false
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		s.Problem("%s must be true or false", name)
	}
	return v
}

// Problem notes that something is wrong.
func (s *Settings) Problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Errorf("seal %q: "+format, append([]any{s.kind}, args...)...))
}

// Err returns everything that is wrong, also with unknown settings, or nil. Call it last.
func (s *Settings) Err() error {
	for _, name := range slices.Sorted(maps.Keys(s.values)) {
		if !s.known[name] {
			s.Problem("unknown setting %q", name)
		}
	}
	return errors.Join(s.problems...)
}

// ReadSecret resolves "file://PATH", of which it returns the text without white space around it, and "env://NAME".
// Everything else is the secret itself.
func ReadSecret(text string) (string, error) {
	if path, ok := strings.CutPrefix(text, "file://"); ok {
		raw, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("reading the file: %w", err)
		}
		return strings.TrimSpace(string(raw)), nil
	}
	if name, ok := strings.CutPrefix(text, "env://"); ok {
		value, set := os.LookupEnv(name)
		if !set {
			return "", fmt.Errorf("the environment variable %s is not set", name)
		}
		return value, nil
	}
	return text, nil
}
