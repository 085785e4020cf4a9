package policy

import (
	"strings"
	"time"
)

// Subject is who an ACL is for. It fills the templates of policies.
type Subject interface {
	// FillIn returns the value of a template's name, such as "identity.entity.id", in a policy of the namespace with
	// this id; false: there is none.
	FillIn(ns, name string) (string, bool)
	// Tag changes whenever an answer of FillIn does.
	Tag() string
}

// builder collects the rules of policies.
type builder struct {
	root      bool
	personal  bool
	expiresAt time.Time
	found     []placed
	// ends are how many of found are of the policies of a namespace and those above it, for each namespace but the lowest.
	ends []int
	path string // of the namespace that was added last
}

// placed is a rule with its pattern as it is compared.
type placed struct {
	*rule
	pattern string
}

// add takes policies of a namespace, after those of the namespaces above it.
func (b *builder) add(ns Scope, subject Subject, policies []*Policy) {
	if ns.Path != b.path && len(b.found) > 0 {
		b.ends = append(b.ends, len(b.found))
	}
	b.path = ns.Path
	now := time.Now()
	for _, p := range policies {
		b.root = b.root || p.root && ns.Namespace == rootNS
		for i := range p.rules {
			r := &p.rules[i]
			if !r.expires.IsZero() && !r.expires.After(now) {
				continue
			}
			pattern := r.pattern
			if r.template {
				b.personal = true
				filled, ok, wide := fill(pattern, ns.Namespace, subject)
				switch {
				case ok:
					pattern = filled
				case wide != "" && r.caps&capDeny != 0:
					pattern = wide
				default:
					continue
				}
			}
			if !r.expires.IsZero() && (b.expiresAt.IsZero() || r.expires.Before(b.expiresAt)) {
				b.expiresAt = r.expires
			}
			b.found = append(b.found, placed{r, ns.Path + pattern})
		}
	}
}

func (b *builder) acl() *ACL {
	all := newRules(b.found)
	all.root, all.expiresAt, all.personal = b.root, b.expiresAt, b.personal
	for _, end := range b.ends {
		if end < len(b.found) { // else the namespaces below have no rules
			all.higher = append(all.higher, newRules(b.found[:end]))
		}
	}
	return &ACL{rules: all}
}

func newRules(found []placed) *rules {
	return &rules{patterns: newPatterns(found), named: respelled(found, foldInside), lower: respelled(found, strings.ToLower)}
}

// respelled returns the patterns in another spelling, nil if it is the same.
func respelled(found []placed, spell func(string) string) *patterns {
	out, differs := make([]placed, len(found)), false
	for i, r := range found {
		out[i] = placed{r.rule, spell(r.pattern)}
		differs = differs || out[i].pattern != r.pattern
	}
	if !differs {
		return nil
	}
	set := newPatterns(out)
	return &set
}

func newPatterns(found []placed) patterns {
	out := patterns{exact: map[string]*grant{}}
	grants := map[string]*grant{}
	for _, r := range found {
		g := grants[r.pattern]
		if g == nil {
			g = newGrant(r.pattern)
			grants[r.pattern] = g
		}
		g.add(r.rule)
	}
	for pattern, g := range grants {
		out.all = append(out.all, g)
		if g.wildcard < 0 {
			out.exact[pattern] = g
		} else {
			out.globs.insert(g)
		}
	}
	return out
}

func newGrant(pattern string) *grant {
	g := &grant{pattern: pattern, wildcard: -1}
	pos := 0
	for segment := range strings.SplitSeq(pattern, "/") {
		if segment == "+" {
			if g.pluses++; g.wildcard < 0 {
				g.wildcard = pos
			}
		}
		pos += len(segment) + 1
	}
	if g.pattern, g.glob = strings.CutSuffix(pattern, "*"); g.glob && g.wildcard < 0 {
		g.wildcard = len(g.pattern)
	}
	return g
}

// add joins one more rule for the pattern.
func (g *grant) add(r *rule) {
	switch {
	case g.caps&capDeny != 0:
		return
	case r.caps&capDeny != 0:
		*g = grant{pattern: g.pattern, caps: capDeny, glob: g.glob, pluses: g.pluses, wildcard: g.wildcard}
		return
	}
	g.caps |= r.caps
	g.params.merge(r.params)
	g.minWrap = lesser(g.minWrap, r.minWrap)
	g.maxWrap = lesser(g.maxWrap, r.maxWrap)
}

// lesser returns the smaller of two bounds, of which 0 is none.
func lesser(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
