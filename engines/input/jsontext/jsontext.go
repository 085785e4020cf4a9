// Package jsontext takes JSON objects apart without decoding their values: Scan checks a body strictly, within limits, and
// returns its members as slices of it. Messages name fields and never show values.
package jsontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// Limits of a JSON body. They bound what a hostile body costs, far above what any client sends.
const (
	MaxDepth    = 32     // nested objects and lists, the body itself included
	MaxMembers  = 10_000 // members of one object
	MaxElements = 10_000 // elements of one list
)

// Member is one name and value of a JSON object. The value is a slice of the body.
type Member struct {
	Name  string
	Value []byte
}

// Scan checks that data is exactly one JSON object, strictly by RFC 8259, within the limits and with
// each name once in each object, and returns its members. It decodes no values. Errors never show values;
// they name the member they are in.
func Scan(data []byte) ([]Member, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("the body is not valid UTF-8")
	}
	s := scanner{data: data}
	if s.next() != '{' {
		return nil, errors.New("the body must be one JSON object")
	}
	members, err := s.members()
	if err != nil {
		return nil, err
	}
	if s.next(); s.pos != len(data) {
		return nil, errors.New("the body goes on after its JSON object")
	}
	return members, nil
}

// scanner walks JSON text. It only finds boundaries and faults.
type scanner struct {
	data  []byte
	pos   int
	depth int // of objects and lists in the one that is read
}

var (
	errSyntax   = errors.New("malformed JSON")
	errDepth    = fmt.Errorf("nested deeper than %d", MaxDepth)
	errMembers  = fmt.Errorf("an object has more than %d members", MaxMembers)
	errElements = fmt.Errorf("a list has more than %d elements", MaxElements)
	errTwice    = errors.New("an object has the same name twice")
)

// peek returns the byte at the position, or 0 at the end; a real NUL is not JSON either.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// next steps over white space and returns the byte after it, or 0 at the end.
func (s *scanner) next() byte {
	for ; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// members reads the object at the position and keeps its members.
func (s *scanner) members() ([]Member, error) {
	members := make([]Member, 0, 4)
	err := s.object(func(name, value []byte) {
		members = append(members, Member{Name: Unquote(name), Value: value})
	}, true)
	return members, err
}

// object reads the object at the position and yields each member, the name still quoted. With top, errors
// are completed with the member's name.
func (s *scanner) object(yield func(name, value []byte), top bool) error {
	s.pos++
	c := s.next()
	if c == '}' {
		s.pos++
		return nil
	}
	var seen names
	for n := 1; ; n++ {
		if n > MaxMembers {
			return errMembers
		}
		name, err := s.name(c)
		if err != nil {
			return err
		}
		if err := seen.add(name); err != nil {
			return inField(top, name, err)
		}
		first := s.next()
		begin := s.pos
		if err := s.value(first); err != nil {
			return inField(top, name, err)
		}
		if yield != nil {
			yield(name, s.data[begin:s.pos:s.pos])
		}
		if more, err := s.more('}'); !more {
			return err
		}
		c = s.next()
	}
}

// inField names the member of the body that a fault is in.
func inField(top bool, name []byte, err error) error {
	if !top {
		return err
	}
	return fmt.Errorf("field %s: %w", QuoteName(Unquote(name)), err)
}

func (s *scanner) list() error {
	s.pos++
	if s.next() == ']' {
		s.pos++
		return nil
	}
	for n := 1; ; n++ {
		if n > MaxElements {
			return errElements
		}
		if err := s.value(s.next()); err != nil {
			return err
		}
		if more, err := s.more(']'); !more {
			return err
		}
	}
}

// inside reads the object or list that begins at the position, with c.
func (s *scanner) inside(c byte) (err error) {
	if s.depth++; s.depth >= MaxDepth { // the body itself counts, too
		return errDepth
	}
	if c == '{' {
		err = s.object(nil, false)
	} else {
		err = s.list()
	}
	s.depth--
	return err
}

// more steps over a comma and reports true, or over the closing bracket and reports false.
func (s *scanner) more(closing byte) (bool, error) {
	c := s.next()
	if c != ',' && c != closing {
		return false, errSyntax
	}
	s.pos++
	return c == ',', nil
}

// name reads a member's name, which begins at the position, with c, and the colon after it.
func (s *scanner) name(c byte) ([]byte, error) {
	if c != '"' {
		return nil, errSyntax
	}
	begin := s.pos
	if err := s.str(); err != nil {
		return nil, err
	}
	name := s.data[begin:s.pos]
	if s.next() != ':' {
		return nil, errSyntax
	}
	s.pos++
	return name, nil
}

// value reads the value that begins at the position, with c.
func (s *scanner) value(c byte) error {
	switch {
	case c == '{' || c == '[':
		return s.inside(c)
	case c == '"':
		return s.str()
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return errSyntax
}

func (s *scanner) word(w string) error {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(w)) {
		return errSyntax
	}
	s.pos += len(w)
	return nil
}

// str reads the string whose quote is at the position.
func (s *scanner) str() error {
	for s.pos++; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return nil
		case c < ' ':
			return errSyntax
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		}
	}
	return errSyntax
}

// escape steps from the backslash to the last byte of the escape.
func (s *scanner) escape() error {
	s.pos++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return nil
	case 'u':
		for range 4 {
			s.pos++
			if c := s.peek(); (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return errSyntax
			}
		}
		return nil
	}
	return errSyntax
}

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if s.digits() == 0 {
		return errSyntax
	}
	if s.peek() == '.' {
		if s.pos++; s.digits() == 0 {
			return errSyntax
		}
	}
	if s.peek()|0x20 == 'e' {
		if s.pos++; s.peek() == '+' || s.peek() == '-' {
			s.pos++
		}
		if s.digits() == 0 {
			return errSyntax
		}
	}
	return nil
}

func (s *scanner) digits() int {
	begin := s.pos
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.pos++
	}
	return s.pos - begin
}

// names finds repeated names in one object. Few names are compared one by one, without allocating.
type names struct {
	few  [8][]byte
	n    int
	many map[string]bool
}

func (s *names) add(quoted []byte) error {
	name := quoted
	if bytes.IndexByte(quoted, '\\') >= 0 { // two spellings of one name are one name
		name = []byte(`"` + Unquote(quoted) + `"`)
	}
	if s.many != nil {
		if s.many[string(name)] {
			return errTwice
		}
		s.many[string(name)] = true
		return nil
	}
	for _, other := range s.few[:s.n] {
		if bytes.Equal(other, name) {
			return errTwice
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return nil
	}
	s.many = make(map[string]bool, 4*len(s.few))
	for _, other := range s.few {
		s.many[string(other)] = true
	}
	s.many[string(name)] = true
	return nil
}

// Unquote returns the text of a JSON string that has been scanned.
func Unquote(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var text string
	if err := json.Unmarshal(quoted, &text); err != nil {
		panic("jsontext: unquoting a string that was not scanned")
	}
	return text
}

// Elements returns the elements of a list that has been scanned.
func Elements(raw []byte) []json.RawMessage {
	var out []json.RawMessage
	if err := json.Unmarshal(raw, &out); err != nil {
		panic("jsontext: taking apart a list that was not scanned")
	}
	return out
}

// Members returns the members of an object that has been scanned.
func Members(raw []byte) []Member {
	s := scanner{data: raw}
	members, err := s.members()
	if err != nil {
		panic("jsontext: taking apart an object that was not scanned")
	}
	return members
}

// maxNameBytes bounds what a message repeats of a name that a client chose.
const maxNameBytes = 64

// QuoteName returns a name that a client chose as messages repeat it: quoted, and cut if it is long.
func QuoteName(name string) string {
	if len(name) > maxNameBytes {
		cut := maxNameBytes
		for !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + "…"
	}
	return strconv.Quote(name)
}
