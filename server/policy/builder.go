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
}

// placed is a rule with its pattern as it is compared.
type placed struct {
	*rule
	pattern string
}

// add takes policies of a namespace.
func (b *builder) add(ns Scope, subject Subject, policies []*Policy) {
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
	return &ACL{rules: &rules{
		root: b.root, expiresAt: b.expiresAt, personal: b.personal,
		patterns: newPatterns(b.found), named: b.respelled(foldInside), lower: b.respelled(strings.ToLower),
	}}
}

// respelled returns the patterns in another spelling, nil if it is the same.
func (b *builder) respelled(spell func(string) string) *patterns {
	found, differs := make([]placed, len(b.found)), false
	for i, r := range b.found {
		found[i] = placed{r.rule, spell(r.pattern)}
		differs = differs || found[i].pattern != r.pattern
	}
	if !differs {
		return nil
	}
	out := newPatterns(found)
	return &out
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
