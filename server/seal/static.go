package seal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// staticWrapper is the seal whose key the operator's configuration provides. The previous key only unwraps.
type staticWrapper struct {
	current  kek
	previous *kek
}

// NewStatic builds the static seal from its configuration stanza: "current_key_id" and "current_key", and while
// rotating also "previous_key_id" and "previous_key". A key is 32 bytes in hex or base64, or "file://PATH" (the
// file holds either of those, or the 32 bytes themselves), or "env://NAME". Errors list all problems and name
// settings, never values.
func NewStatic(cfg map[string]string) (Wrapper, error) {
	var problems []error
	fail := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("seal \"static\": "+format, args...))
	}
	for _, name := range slices.Sorted(maps.Keys(cfg)) {
		switch name {
		case "current_key_id", "current_key", "previous_key_id", "previous_key":
		default:
			fail("unknown setting %q", name)
		}
	}
	load := func(which string) kek {
		id, text := cfg[which+"_key_id"], cfg[which+"_key"]
		if id == "" || len(id) > maxKeyID {
			fail("%s_key_id must be set, to at most %d bytes", which, maxKeyID)
		}
		key, err := readKey(text)
		if err != nil {
			fail("%s_key: %w", which, err)
		}
		defer clear(key)
		return newKEK(id, key)
	}
	w := staticWrapper{current: load("current")}
	if cfg["previous_key_id"] != "" || cfg["previous_key"] != "" {
		prev := load("previous")
		w.previous = &prev
		if prev.id == w.current.id {
			fail("current_key_id and previous_key_id must differ")
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return w, nil
}

// readKey resolves one key setting.
func readKey(text string) ([]byte, error) {
	if path, ok := strings.CutPrefix(text, "file://"); ok {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading the key file: %w", err)
		}
		defer clear(raw)
		if len(raw) == KeyBytes {
			return slices.Clone(raw), nil
		}
		text = string(raw)
	} else if name, ok := strings.CutPrefix(text, "env://"); ok {
		value, set := os.LookupEnv(name)
		if !set {
			return nil, fmt.Errorf("the environment variable %s is not set", name)
		}
		text = value
	}
	if text == "" {
		return nil, errors.New("must be set")
	}
	key, ok := decodeKey(text, KeyBytes)
	if !ok {
		return nil, fmt.Errorf("must be %d bytes in hex or base64, file://PATH or env://NAME", KeyBytes)
	}
	return key, nil
}

func (w staticWrapper) Type() string { return TypeStatic }

// KeyID names the current key.
func (w staticWrapper) KeyID() string { return w.current.id }

func (w staticWrapper) Wrap(_ context.Context, plain []byte, purpose string) ([]byte, error) {
	return w.current.wrap(plain, purpose)
}

func (w staticWrapper) Unwrap(_ context.Context, blob []byte, purpose string) ([]byte, error) {
	id, _, err := parseBlob(blob)
	switch {
	case err != nil:
		return nil, err
	case id == w.current.id:
		return w.current.unwrap(blob, purpose)
	case w.previous != nil && id == w.previous.id:
		return w.previous.unwrap(blob, purpose)
	}
	return nil, fmt.Errorf("%w: it was sealed under key id %q, which is neither the current nor the previous one", ErrWrongKey, id)
}

func (w staticWrapper) needsRewrap(blob []byte) bool {
	id, _, err := parseBlob(blob)
	return err == nil && id != w.current.id
}
