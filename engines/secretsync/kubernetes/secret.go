package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	annotationOwner  = "coffer.dev/sync"        // the ownership tag
	annotationLayout = "coffer.dev/sync-layout" // how the value is kept
	labelManagedBy   = "app.kubernetes.io/managed-by"

	opaque = "Opaque"
)

// The layouts of values.
const (
	layoutKeys  = "keys"  // a data key for each key of the secret; all of them are texts
	layoutOther = "other" // likewise, but the value cannot be put together again to the letter
	layoutValue = "value" // all of it under dataKey
)

const dataKey = "value"

// secret is a Secret, or of a list its metadata.
type secret struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   metadata          `json:"metadata"`
	Type       string            `json:"type,omitempty"`
	Immutable  bool              `json:"immutable,omitempty"`
	Data       map[string][]byte `json:"data,omitempty"`
}

type metadata struct {
	Name              string            `json:"name,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	DeletionTimestamp string            `json:"deletionTimestamp,omitempty"`
}

// patch is a JSON merge patch of a Secret. A nil is what goes.
type patch struct {
	Metadata struct {
		UID             string             `json:"uid"`
		ResourceVersion string             `json:"resourceVersion"`
		Labels          map[string]*string `json:"labels"`
		Annotations     map[string]string  `json:"annotations"`
	} `json:"metadata"`
	Data map[string][]byte `json:"data"`
}

// seen is what Read leaves for Write in Found.Handle.
type seen struct {
	keys      []string // of the data
	kind      string
	immutable bool
	deleting  bool
}

func (m *metadata) found() destination.Found {
	return destination.Found{
		Name: m.Name, State: destination.Present, OwnerTag: m.Annotations[annotationOwner], ID: m.UID, Version: m.ResourceVersion,
	}
}

// complete reports whether a response has what tells Secrets apart.
func (m *metadata) complete(name string) bool {
	return m.UID != "" && m.ResourceVersion != "" && m.Name == name
}

var legalKey = engines.Pattern(`^[-._A-Za-z0-9]{1,253}$`)

// lay returns the data keys of an item, and their layout.
func lay(it destination.Item) (data map[string][]byte, layout string, err error) {
	if !it.Object {
		return map[string][]byte{dataKey: it.Value}, layoutValue, nil
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(it.Value, &keys) != nil {
		return nil, "", invalid("the secret is not a JSON object")
	}
	data = map[string][]byte{}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !legalKey().MatchString(key) || key == "." || key == ".." {
			return nil, "", invalid(fmt.Sprintf("%.60q cannot be a data key of a Secret: those are letters, digits, \"-\", \"_\" and \".\", at most 253; exclude the key, or give it another name", key))
		}
		var text string
		if json.Unmarshal(keys[key], &text) == nil && string(keys[key]) != "null" {
			data[key] = []byte(text)
		} else {
			data[key] = keys[key]
		}
		total += len(data[key])
	}
	if total > maxData {
		return nil, "", tooLarge(total)
	}
	if whole, ok := whole(data); !ok || !bytes.Equal(whole, it.Value) {
		return data, layoutOther, nil
	}
	return data, layoutKeys, nil
}

// whole returns data keys as the JSON object that templates make of a secret; false if that cannot hold them.
func whole(data map[string][]byte) ([]byte, bool) {
	texts := map[string]string{}
	for key, value := range data {
		if !utf8.Valid(value) {
			return nil, false
		}
		texts[key] = string(value)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(texts) != nil {
		return nil, false
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), true
}

// value returns what Write was given for a Secret, false if it cannot be known.
func (s *secret) value() ([]byte, bool) {
	layout := s.Metadata.Annotations[annotationLayout]
	if value, ok := s.Data[dataKey]; ok && layout == layoutValue && len(s.Data) == 1 {
		return value, true
	}
	if layout == layoutOther {
		return nil, false
	}
	return whole(s.Data)
}

func invalid(text string) error {
	return &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: text}
}

func tooLarge(n int) error {
	return &destination.Error{Class: destination.Client, Code: destination.TooLarge, Text: fmt.Sprintf("the value has %d bytes, a Secret has at most %d (1 MiB)", n, maxData)}
}
