package httpapi

import (
	"bytes"

	"github.com/coffer-project/coffer/engines"
)

// Limits of a JSON body, checked before anything decodes it. They bound what the layers behind may be made to
// build of it, for any caller; an engine's own limits are tighter.
const (
	maxJSONDepth  = 100     // objects and lists in each other, the body itself included
	maxJSONValues = 100_000 // values in all objects and lists together
	maxJSONText   = 4 << 20 // bytes of one text or name, as written: a value of 1 MiB with every byte escaped fits
)

// checkJSON refuses a body beyond the limits. It only counts: whether the body is JSON is for those to say who
// decode it, and what does not begin as an object or list is none of its business.
func checkJSON(body []byte) error {
	switch first := bytes.TrimLeft(body[:min(len(body), 64)], " \t\r\n"); {
	case len(first) == 0 && len(body) <= 64:
		return nil
	case len(first) > 0 && first[0] != '{' && first[0] != '[':
		return nil
	}
	depth, values := 0, 0
	for i := 0; i < len(body); i++ {
		sign := jsonSigns[body[i]]
		values += int(sign & oneMore)
		if sign <= oneMore {
			continue
		}
		switch sign {
		case opens | oneMore:
			if depth++; depth > maxJSONDepth {
				return engines.Invalid("the request body nests objects and lists deeper than %d", maxJSONDepth)
			}
		case closes:
			depth--
		case quotes:
			begin := i + 1
			if i = textEnd(body, begin); i-begin > maxJSONText {
				return engines.Invalid("the request body holds a text of more than %d bytes: split it or send less", maxJSONText)
			}
		}
	}
	if values > maxJSONValues {
		return engines.Invalid("the request body holds more than %d values", maxJSONValues)
	}
	return nil
}

// What a byte outside of texts means. Most mean nothing, so they cost a look into jsonSigns and no branch taken.
const (
	oneMore uint8 = 1 << iota // a value more
	opens
	closes
	quotes
)

var jsonSigns = [256]uint8{',': oneMore, '{': opens | oneMore, '[': opens | oneMore, '}': closes, ']': closes, '"': quotes}

// textEnd returns the index of the quote that ends the text that begins at i, or the body's length. Short texts
// are searched byte by byte; calling for help costs more than they do.
func textEnd(body []byte, i int) int {
	const short = 16
	for i < len(body) {
		for stop := min(i+short, len(body)); i < stop; i++ {
			switch body[i] {
			case '"':
				return i
			case '\\':
				i++ // whatever it is, it does not end the text
			}
		}
		if i >= len(body) {
			break
		}
		next := bytes.IndexByte(body[i:], '"')
		if next < 0 {
			break
		}
		quote := i + next
		escapes := 0
		for escapes < next && body[quote-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return quote
		}
		i = quote + 1
	}
	return len(body)
}
