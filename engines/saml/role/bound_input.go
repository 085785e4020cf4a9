package role

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

var errAttributes = errors.New(`must be an object of names and values, or a list of "name=value"`)

// expected is what boundAttributes reads.
type expected json.RawMessage

// Pairs implements input.Paired.
func (raw expected) Pairs() (pairs [][2]string, ok bool) {
	read, err := boundAttributes(raw)
	for name, values := range read {
		for _, value := range values {
			pairs = append(pairs, [2]string{name, value})
		}
	}
	return pairs, err == nil
}

// boundAttributes reads the expected values of attributes. A text holds several, with commas between them; elements of a
// list are taken whole, because distinguished names have commas. Nothing is left of nothing: "", [] and {}.
func boundAttributes(raw expected) (map[string]engines.StringList, error) {
	read, err := attributes(json.RawMessage(raw), func(text string) []string {
		var values []string
		for value := range strings.SplitSeq(text, ",") {
			if value = strings.TrimSpace(value); value != "" {
				values = append(values, value)
			}
		}
		return values
	})
	bound := map[string]engines.StringList{}
	for name, values := range read {
		for _, value := range values {
			bound[name] = append(bound[name], strings.TrimSpace(value))
		}
		if values == nil {
			bound[name] = nil // for the check to reject
		}
	}
	return bound, err
}

// givenAttributes reads the attributes of a user: each text is one value.
func givenAttributes(raw json.RawMessage) (map[string][]string, error) {
	return attributes(raw, func(text string) []string { return []string{text} })
}

// attributes reads names with values: an object of name to text or list of texts, or what the command line makes of
// name=value: a text, or a list of them, in which a name may come several times. split takes a text apart that stands
// for the values of a name. raw is JSON that has been scanned, so no name comes twice in an object.
func attributes(raw json.RawMessage, split func(string) []string) (map[string][]string, error) {
	read := map[string][]string{}
	switch {
	case len(raw) == 0:
		return read, nil
	case raw[0] == '{':
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			return nil, errAttributes
		}
		for _, name := range slices.Sorted(maps.Keys(object)) {
			values, ok := texts(object[name], split)
			if !ok {
				return nil, fmt.Errorf("each value must be a text or a list of texts")
			}
			read[name] = values
		}
		return read, nil
	}
	pairs, ok := texts(raw, func(text string) []string {
		if text == "" {
			return nil
		}
		return []string{text}
	})
	if !ok || raw[0] != '[' && raw[0] != '"' {
		return nil, errAttributes
	}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		// JSON inside of a text is a mistake that would otherwise become a name.
		if !ok || name == "" || name[0] == '{' || name[0] == '[' {
			return nil, errAttributes
		}
		read[name] = append(read[name], split(value)...)
	}
	return read, nil
}

// texts reads a list of texts, or one text, number or boolean, which it gives to split. It reports whether raw is either.
func texts(raw json.RawMessage, split func(string) []string) (values []string, ok bool) {
	if raw[0] != '[' {
		text, ok := scalar(raw)
		if !ok {
			return nil, false
		}
		return split(text), true
	}
	var elements []json.RawMessage
	if json.Unmarshal(raw, &elements) != nil {
		return nil, false
	}
	for _, element := range elements {
		text, ok := scalar(element)
		if !ok {
			return nil, false
		}
		values = append(values, text)
	}
	return values, true
}

// scalar returns the text of a JSON string, number or boolean.
func scalar(raw json.RawMessage) (string, bool) {
	switch raw[0] {
	case '{', '[', 'n':
		return "", false
	case '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err == nil
	}
	return string(raw), true
}
