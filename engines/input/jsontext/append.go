package jsontext

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// Append appends a value to b as encoding/json would encode it without HTML escapes. What answers are mostly made of, which
// is maps of texts, numbers and lists of texts, takes no reflection. After an error, b holds nothing of use.
func Append(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case uint64:
		return strconv.AppendUint(b, v, 10), nil
	case string:
		return appendText(b, v)
	case []string:
		return appendList(b, v)
	case map[string]any:
		return appendMap(b, v)
	}
	return encode(b, v)
}

func appendText(b []byte, text string) ([]byte, error) {
	if !plain(text) {
		return encode(b, text)
	}
	return append(append(append(b, '"'), text...), '"'), nil
}

func appendList(b []byte, list []string) ([]byte, error) {
	if list == nil {
		return append(b, "null"...), nil
	}
	var err error
	b = append(b, '[')
	for i, text := range list {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendText(b, text); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

func appendMap(b []byte, m map[string]any) ([]byte, error) {
	if m == nil {
		return append(b, "null"...), nil
	}
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	var err error
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendText(b, name); err != nil {
			return nil, err
		}
		if b, err = Append(append(b, ':'), m[name]); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// plain reports whether a text stands in JSON as it is.
func plain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func encode(b []byte, v any) ([]byte, error) {
	out := bytes.NewBuffer(b)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return out.Bytes()[:out.Len()-1], nil // without the newline
}
