package httpapi

import (
	"bytes"
	"encoding/json"

	"github.com/coffer-project/coffer/engines"
)

// JSONBounds are an operator's own limits of JSON bodies, besides those that hold for all. 0: there is none.
type JSONBounds struct {
	Memory       int64 // bytes of the decoded body, estimated: its texts, and jsonValueBytes for each value and name
	Depth        int64 // objects and lists in each other, the body itself included
	Strings      int64 // texts, and names in objects
	StringLength int64 // bytes of one text or name
	Entries      int64 // of one object
	Elements     int64 // of one list
}

// jsonValueBytes is what a decoded value takes besides its text, about.
const jsonValueBytes = 64

// check rejects a body beyond the bounds. What is not JSON is for those to report who decode it.
func (b JSONBounds) check(body []byte) error {
	if b == (JSONBounds{}) {
		return nil
	}
	type container struct {
		object bool
		tokens int64 // in an object: names and values
	}
	var open []container
	var memory, texts int64
	beyond := func(n, most int64) bool { return most > 0 && n > most }
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return nil //nolint:nilerr // the end, or no JSON
		}
		if delim, ok := token.(json.Delim); ok && (delim == '}' || delim == ']') {
			open = open[:len(open)-1]
			continue
		}
		if len(open) > 0 {
			in := &open[len(open)-1]
			in.tokens++
			switch {
			case in.object && beyond((in.tokens+1)/2, b.Entries):
				return engines.Invalid("the request body has an object of more than %d entries", b.Entries)
			case !in.object && beyond(in.tokens, b.Elements):
				return engines.Invalid("the request body has a list of more than %d elements", b.Elements)
			}
		}
		memory += jsonValueBytes
		switch v := token.(type) {
		case json.Delim:
			open = append(open, container{object: v == '{'})
		case string:
			texts++
			memory += int64(len(v))
			if beyond(int64(len(v)), b.StringLength) {
				return engines.Invalid("the request body has a text of more than %d bytes", b.StringLength)
			}
		}
		switch {
		case beyond(int64(len(open)), b.Depth):
			return engines.Invalid("the request body nests objects and lists deeper than %d", b.Depth)
		case beyond(texts, b.Strings):
			return engines.Invalid("the request body has more than %d texts and names", b.Strings)
		case beyond(memory, b.Memory):
			return engines.Invalid("the request body would take more than %d bytes of memory", b.Memory)
		}
	}
}
