package engines

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxPathBytes limits a path below a mount. It leaves room in a storage key for what engines put before it.
const MaxPathBytes = 3 << 10

// segment is one part of a pattern.
type segment struct {
	kind segmentKind
	name string // the literal, or the parameter's name
	// optional rests may be empty for every operation.
	optional bool
	suffix   string // of a rest: the literal text that must follow it ("/tune", or "")
}

type segmentKind int

const (
	literal segmentKind = iota
	param
	rest
)

// parsePattern splits a pattern into segments.
func parsePattern(pattern string) ([]segment, error) {
	if pattern == "" {
		return nil, nil
	}
	var segments []segment
	hasRest := false
	names := map[string]bool{}
	for part := range strings.SplitSeq(pattern, "/") {
		s, err := parseSegment(part)
		if err != nil {
			return nil, err
		}
		switch {
		case hasRest && s.kind != literal:
			return nil, errors.New("only literal segments may follow a rest")
		case s.kind != literal && names[s.name]:
			return nil, fmt.Errorf("parameter %q occurs twice", s.name)
		}
		if s.kind != literal {
			names[s.name] = true
		}
		hasRest = hasRest || s.kind == rest
		segments = append(segments, s)
	}
	if last := len(segments) - 1; segments[last].kind == literal {
		for _, s := range segments {
			if s.optional {
				return nil, errors.New("an optional rest must be the last segment")
			}
		}
	}
	for i := range segments {
		for _, s := range segments[i+1:] {
			segments[i].suffix += "/" + s.name
		}
	}
	return segments, nil
}

func parseSegment(part string) (segment, error) {
	inner, open := strings.CutPrefix(part, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	s := segment{name: inner}
	if open && closed {
		s.kind = param
		s.name, s.optional = strings.CutSuffix(s.name, "?")
		var dots bool
		if s.name, dots = strings.CutSuffix(s.name, "..."); dots {
			s.kind = rest
		}
		if s.optional && !dots {
			return s, errors.New("only a rest can be optional")
		}
	}
	switch {
	case s.name == "":
		return s, errors.New("a segment is empty")
	case open != closed, strings.ContainsAny(s.name, "{}"), s.kind != literal && strings.ContainsAny(s.name, "?."):
		return s, fmt.Errorf("segment %q is malformed", part)
	}
	return s, nil
}

// node is a place in the trie of patterns.
type node struct {
	literals map[string]*node
	param    *node
	ends     []*Route // of patterns that end here, one for each operation
	rests    []tail   // of patterns with a rest that begins here, longest suffix first
}

// tail is a rest with its suffix.
type tail struct {
	suffix string
	routes []*Route
}

// add puts a route into the trie and reports whether its place was free.
func (n *node) add(segments []segment, r *Route) bool {
	for _, s := range segments {
		switch s.kind {
		case literal:
			if n.literals == nil {
				n.literals = map[string]*node{}
			}
			if n.literals[s.name] == nil {
				n.literals[s.name] = &node{}
			}
			n = n.literals[s.name]
		case param:
			if n.param == nil {
				n.param = &node{}
			}
			n = n.param
		case rest:
			return n.addRest(s.suffix, r)
		}
	}
	return addRoute(&n.ends, r)
}

func (n *node) addRest(suffix string, r *Route) bool {
	i := slices.IndexFunc(n.rests, func(t tail) bool { return t.suffix == suffix })
	if i < 0 {
		n.rests = append(n.rests, tail{suffix: suffix})
		slices.SortStableFunc(n.rests, func(a, b tail) int { return len(b.suffix) - len(a.suffix) })
		i = slices.IndexFunc(n.rests, func(t tail) bool { return t.suffix == suffix })
	}
	return addRoute(&n.rests[i].routes, r)
}

func addRoute(routes *[]*Route, r *Route) bool {
	for _, other := range *routes {
		if other.Op == r.Op {
			return false
		}
	}
	*routes = append(*routes, r)
	return true
}

// find returns the best route below n for path[pos:] and op, trying literals, then parameters, then rests.
// It sets others if a pattern fits whose operations do not include op. The work is bounded by the trie. A position beyond the end
// of the path means that all segments are used up; the end itself is the empty segment after a trailing slash.
func (n *node) find(path string, pos int, op Operation, others *bool) *Route {
	if pos > len(path) {
		if r := pick(n.ends, op, false, others); r != nil {
			return r
		}
		return n.findRest("", op, others)
	}
	seg := path[pos:]
	if i := strings.IndexByte(seg, '/'); i >= 0 {
		seg = seg[:i]
	}
	next := pos + len(seg) + 1
	if seg != "" {
		if child := n.literals[seg]; child != nil {
			if r := child.find(path, next, op, others); r != nil {
				return r
			}
		}
		if n.param != nil {
			if r := n.param.find(path, next, op, others); r != nil {
				return r
			}
		}
	}
	return n.findRest(path[pos:], op, others)
}

func (n *node) findRest(value string, op Operation, others *bool) *Route {
	for _, t := range n.rests {
		trimmed, ok := strings.CutSuffix(value, t.suffix)
		if !ok || t.suffix != "" && trimmed == "" {
			continue
		}
		if r := pick(t.routes, op, trimmed == "", others); r != nil {
			return r
		}
	}
	return nil
}

// pick returns the route for op. empty says that the rest parameter would be empty.
func pick(routes []*Route, op Operation, empty bool, others *bool) *Route {
	for _, r := range routes {
		if empty && !r.Op.Lists() && !r.segments[len(r.segments)-1].optional {
			continue
		}
		if r.Op == op {
			return r
		}
		*others = true
	}
	return nil
}

// capture returns the path parameters of a path, from the position on, that fits the route.
func (r *Route) capture(path string, pos int) map[string]string {
	var params map[string]string
	for i, s := range r.segments {
		value := ""
		if pos <= len(path) {
			value = path[pos:]
		}
		if s.kind == rest {
			value = strings.TrimSuffix(value, s.suffix)
			if r.Op.Lists() && value != "" && i == len(r.segments)-1 {
				value += "/"
			}
		} else if j := strings.IndexByte(value, '/'); j >= 0 {
			value = value[:j]
		}
		pos += len(value) + 1
		if s.kind == literal {
			continue
		}
		if params == nil {
			params = make(map[string]string, 2)
		}
		if params[s.name] = value; s.kind == rest {
			break
		}
	}
	return params
}

// CheckPath refuses paths that must never reach an engine, as those in a body might. The server checks its own too; this is the second
// lock on that door, because engines put path parameters into storage keys.
func CheckPath(path string) error {
	if len(path) > MaxPathBytes {
		return Invalid("the path is %d bytes long, the limit is %d", len(path), MaxPathBytes)
	}
	begin := 0
	for i := 0; i <= len(path); i++ {
		if i < len(path) {
			if path[i] == 0 {
				return Invalid("the path contains a NUL byte")
			}
			if path[i] != '/' {
				continue
			}
		}
		switch seg := path[begin:i]; {
		case seg == "." || seg == "..":
			return Invalid("the path has a \".\" or \"..\" segment")
		case seg == "" && i < len(path):
			return Invalid("the path has an empty segment")
		}
		begin = i + 1
	}
	if !utf8.ValidString(path) {
		return Invalid("the path is not valid UTF-8")
	}
	return nil
}
