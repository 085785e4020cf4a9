package policy

import (
	"slices"
	"strings"
)

// node is a point in the trie of patterns with wildcards, one level for each segment. A path visits a node
// at most once, so a lookup costs at most the size of the trie, and usually a few map lookups.
type node struct {
	children map[string]*node
	plus     *node
	end      *grant            // a pattern without "*" ends here
	globs    map[string]*grant // patterns with "*" in the next segment, by what stands before it
	lengths  []int             // lengths of the keys of globs, longest first, each once
}

func (n *node) insert(g *grant) {
	rest := g.pattern
	for {
		segment, tail, more := strings.Cut(rest, "/")
		if !more && g.glob {
			n.addGlob(segment, g)
			return
		}
		n = n.child(segment)
		if !more {
			n.end = g
			return
		}
		rest = tail
	}
}

func (n *node) child(segment string) *node {
	if segment == "+" {
		if n.plus == nil {
			n.plus = &node{}
		}
		return n.plus
	}
	if n.children == nil {
		n.children = map[string]*node{}
	}
	c := n.children[segment]
	if c == nil {
		c = &node{}
		n.children[segment] = c
	}
	return c
}

func (n *node) addGlob(front string, g *grant) {
	if n.globs == nil {
		n.globs = map[string]*grant{}
	}
	n.globs[front] = g
	if !slices.Contains(n.lengths, len(front)) {
		n.lengths = append(n.lengths, len(front))
		slices.Sort(n.lengths)
		slices.Reverse(n.lengths)
	}
}

// match returns the strongest of best and the patterns at and below n that match rest, the segments of the
// path that are left (at least one, perhaps empty).
func (n *node) match(rest string, best *grant) *grant {
	// The patterns in globs differ only in their last segment, so the longest is the strongest.
	for _, length := range n.lengths {
		if length > len(rest) {
			continue
		}
		if g := n.globs[rest[:length]]; g != nil {
			best = stronger(g, best)
			break
		}
	}
	segment, tail, more := strings.Cut(rest, "/")
	for _, c := range [2]*node{n.children[segment], n.plus} {
		switch {
		case c == nil:
		case more:
			best = c.match(tail, best)
		case c.end != nil:
			best = stronger(c.end, best)
		}
	}
	return best
}

// stronger returns the one of two different matching patterns that decides: see ACL. b may be nil.
func stronger(a, b *grant) *grant {
	var aWins bool
	switch {
	case b == nil:
		aWins = true
	case a.wildcard != b.wildcard:
		aWins = a.wildcard > b.wildcard
	case a.glob != b.glob:
		aWins = b.glob
	case a.pluses != b.pluses:
		aWins = a.pluses < b.pluses
	case len(a.pattern) != len(b.pattern):
		aWins = len(a.pattern) > len(b.pattern)
	default:
		aWins = a.pattern > b.pattern
	}
	if aWins {
		return a
	}
	return b
}
