// Package mergepatch changes the JSON of secrets without decoding more of it than it has to: it applies merge patches, hides values,
// and compares.
package mergepatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// Apply applies a JSON merge patch (RFC 7396). Values that the patch does not touch stay as they are,
// byte for byte; names of changed objects come out sorted. Both texts must be valid JSON.
func Apply(target, patch json.RawMessage) (json.RawMessage, error) {
	if !isObject(patch) {
		return patch, nil
	}
	changes, err := members(patch)
	if err != nil {
		return nil, err
	}
	merged := map[string]json.RawMessage{}
	if isObject(target) {
		if merged, err = members(target); err != nil {
			return nil, err
		}
	}
	for name, change := range changes {
		if string(change) == "null" {
			delete(merged, name)
			continue
		}
		if merged[name], err = Apply(merged[name], change); err != nil {
			return nil, err
		}
	}
	return encode(merged)
}

// Subkeys returns the object with everything but objects replaced by null, and objects too below depth levels
// (0: any number).
func Subkeys(data json.RawMessage, depth int) (json.RawMessage, error) {
	fields, err := members(data)
	if err != nil {
		return nil, err
	}
	for name, value := range fields {
		if depth == 1 || !isObject(value) {
			fields[name] = json.RawMessage("null")
			continue
		}
		if fields[name], err = Subkeys(value, max(depth-1, 0)); err != nil {
			return nil, err
		}
	}
	return encode(fields)
}

func isObject(text json.RawMessage) bool { return len(text) > 0 && text[0] == '{' }

func members(object json.RawMessage) (map[string]json.RawMessage, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(object, &fields); err != nil {
		return nil, fmt.Errorf("decoding a secret: not a JSON object")
	}
	return fields, nil
}

// encode writes an object without HTML escapes, which would change values that the client did not change.
func encode(fields map[string]json.RawMessage) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(fields); err != nil {
		return nil, fmt.Errorf("encoding a secret: invalid JSON inside")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Same reports whether two texts are the same value, however it is written.
func Same(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	decode := func(raw []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		_ = d.Decode(&v) // it was checked when it came
		return v
	}
	return reflect.DeepEqual(decode(a), decode(b))
}
