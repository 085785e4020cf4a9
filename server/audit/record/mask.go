package record

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Limits of a body that is recorded value by value. Beyond them, and when it is not JSON, the whole body is
// recorded as one hashed text: a hostile body may cost neither the stack nor a line many times its size.
const (
	maxDepth  = 128
	maxNumber = 64 // bytes; a longer one hides more than it tells
)

// data writes a body: its structure, names, numbers and literals as they are, every text value hashed, except
// below the top-level names in plain. Members and elements that no longer fit in limit bytes are left out: then a member
// of its own, name_rest, has one hash of them. With elide, the response to a list is cut down to how much it holds.
func (l *line) data(name string, body json.RawMessage, plain []string, elide bool, limit int) {
	if len(body) == 0 {
		return
	}
	before := len(l.buf)
	l.name(name)
	start := len(l.buf)
	w := walker{l: l, src: body, plain: plain, elide: elide, limit: start + limit}
	if w.value(0, l.f.Raw) {
		switch w.space(); {
		case w.cut:
			l.rest(name+"_rest", body[w.rest:])
			return
		case !w.full && w.pos == len(body):
			return
		}
	}
	switch {
	case l.f.Raw && len(body) <= limit:
		l.buf = appendQuoted(l.buf[:start], string(body))
	case l.f.Raw || w.full:
		l.buf = l.buf[:before]
		l.rest(name+"_rest", body)
	default:
		l.buf = l.buf[:start]
		l.quotedHash(body)
	}
}

// walker copies one JSON text to the line, without its white space. Its methods report whether what they
// found is valid JSON (RFC 8259) within the limits; after false the copy is of no use.
type walker struct {
	l     *line
	src   []byte
	pos   int
	size  int // members or elements of the object or array that ended last
	plain []string
	elide bool // write the size of the top-level members "keys" and "key_info" in their place
	count bool // below such a member: its texts are not worth a hash

	limit int  // of the line's length
	full  bool // something did not fit: nothing more is read
	cut   bool // the copy ends before src[rest:], with its brackets closed
	rest  int
}

// room reports whether n more bytes fit.
func (w *walker) room(n int) bool {
	w.full = w.full || len(w.l.buf)+n > w.limit && !w.count
	return !w.full
}

// end closes an object or array of which the member or element that begins at src[at] does not fit. before is the line's
// length without it.
func (w *walker) end(bracket byte, before, at int) {
	if !w.cut {
		w.cut, w.rest = true, at
		w.l.buf = w.l.buf[:before]
	}
	w.l.buf = append(w.l.buf, bracket)
}

// next skips white space and returns the byte after it without taking it, or 0 at the end.
func (w *walker) next() byte {
	w.space()
	if w.pos == len(w.src) {
		return 0
	}
	return w.src[w.pos]
}

func (w *walker) space() {
	for w.pos < len(w.src) {
		switch w.src[w.pos] {
		case ' ', '\t', '\n', '\r':
			w.pos++
		default:
			return
		}
	}
}

// take copies the next byte if it is c.
func (w *walker) take(c byte) bool {
	if w.next() != c || w.pos == len(w.src) {
		return false
	}
	w.pos++
	w.l.buf = append(w.l.buf, c)
	return true
}

// value copies one value; plain leaves its texts as they are.
func (w *walker) value(depth int, plain bool) bool {
	switch {
	case depth > maxDepth:
		return false
	case !w.room(1):
		return true
	}
	switch c := w.next(); c {
	case '{':
		return w.object(depth, plain)
	case '[':
		return w.array(depth, plain)
	case '"':
		return w.text(plain)
	case 't':
		return w.literal("true")
	case 'f':
		return w.literal("false")
	case 'n':
		return w.literal("null")
	default:
		return w.number()
	}
}

func (w *walker) object(depth int, plain bool) bool {
	w.take('{')
	if w.take('}') {
		w.size = 0
		return true
	}
	before := len(w.l.buf)
	for n := 1; ; n++ {
		at := w.pos
		name, ok := w.memberName()
		if w.full {
			w.end('}', before, at)
			return true
		}
		if !ok || !w.take(':') {
			return false
		}
		exempt := plain || depth == 0 && len(w.plain) > 0 && slices.Contains(w.plain, string(name))
		start := len(w.l.buf)
		w.count = w.count || w.elide && depth == 0 && listed(string(name), w.next())
		if !w.value(depth+1, exempt) {
			return false
		}
		if w.full {
			w.end('}', before, at)
			return true
		}
		if w.count && depth == 0 {
			w.count = false
			w.l.buf = strconv.AppendInt(w.l.buf[:start], int64(w.size), 10)
		}
		before = len(w.l.buf)
		if w.take('}') {
			w.size = n
			return true
		}
		if !w.take(',') {
			return false
		}
	}
}

// listed reports whether a member is the keys of a list, or what it says of them: they are replaced by their number.
func listed(name string, first byte) bool {
	return name == "keys" && first == '[' || name == "key_info" && first == '{'
}

func (w *walker) array(depth int, plain bool) bool {
	w.take('[')
	if w.take(']') {
		w.size = 0
		return true
	}
	before := len(w.l.buf)
	for n := 1; ; n++ {
		at := w.pos
		if !w.value(depth+1, plain) {
			return false
		}
		if w.full {
			w.end(']', before, at)
			return true
		}
		before = len(w.l.buf)
		if w.take(']') {
			w.size = n
			return true
		}
		if !w.take(',') {
			return false
		}
	}
}

func (w *walker) literal(text string) bool {
	if !bytes.HasPrefix(w.src[w.pos:], []byte(text)) {
		return false
	}
	w.pos += len(text)
	if w.room(len(text)) {
		w.l.buf = append(w.l.buf, text...)
	}
	return true
}

// memberName copies a member's name and returns it decoded.
func (w *walker) memberName() ([]byte, bool) {
	if w.next() != '"' {
		return nil, false
	}
	raw, decoded, ok := w.scan()
	if ok {
		w.copyText(raw, decoded)
	}
	return decoded, ok
}

// text copies a text value, or its hash.
func (w *walker) text(plain bool) bool {
	raw, decoded, ok := w.scan()
	switch {
	case !ok:
		return false
	case w.count:
		w.l.buf = append(w.l.buf, '0')
	case plain:
		w.copyText(raw, decoded)
	case w.room(hashedBytes):
		w.l.quotedHash(decoded)
	}
	return true
}

// copyText copies a text as it was written, unless it is not valid UTF-8: the line must be.
func (w *walker) copyText(raw, decoded []byte) {
	switch valid := utf8.Valid(raw); {
	case valid && w.room(len(raw)):
		w.l.buf = append(w.l.buf, raw...)
	case !valid && w.room(6*len(raw)): // the longest that it can become
		w.l.buf = appendQuoted(w.l.buf, string(decoded))
	}
}

// scan takes a quoted text and returns it as written, quotes included, and decoded as the engines decode it.
func (w *walker) scan() (raw, decoded []byte, ok bool) {
	simple := true
	for i := w.pos + 1; i < len(w.src); i++ {
		switch c := w.src[i]; {
		case c == '"':
			raw = w.src[w.pos : i+1]
			w.pos = i + 1
			if simple {
				return raw, raw[1 : len(raw)-1], true
			}
			return decodeText(raw)
		case c == '\\':
			simple = false
			i++ // whatever it is, it does not end the text
		case c < 0x20:
			return nil, nil, false
		case c >= utf8.RuneSelf:
			simple = false
		}
	}
	return nil, nil, false
}

// decodeText decodes a quoted text with escapes or beyond ASCII.
func decodeText(raw []byte) ([]byte, []byte, bool) {
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) {
		return raw, inner, true
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, nil, false
	}
	return raw, []byte(text), true
}

// number copies a number.
func (w *walker) number() bool {
	start := w.pos
	w.skip('-')
	if !w.skip('0') && !w.digits() {
		return false
	}
	if w.skip('.') && !w.digits() {
		return false
	}
	if w.skip('e') || w.skip('E') {
		if !w.skip('+') {
			w.skip('-')
		}
		if !w.digits() {
			return false
		}
	}
	if w.pos-start > maxNumber {
		return false
	}
	if w.room(w.pos - start) {
		w.l.buf = append(w.l.buf, w.src[start:w.pos]...)
	}
	return true
}

func (w *walker) skip(c byte) bool {
	if w.pos < len(w.src) && w.src[w.pos] == c {
		w.pos++
		return true
	}
	return false
}

func (w *walker) digits() bool {
	start := w.pos
	for w.pos < len(w.src) && w.src[w.pos] >= '0' && w.src[w.pos] <= '9' {
		w.pos++
	}
	return w.pos > start
}
