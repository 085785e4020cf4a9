package policy

import (
	"cmp"
	"iter"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
)

// ACL is what the policies of one token allow together. It does not change and is safe for concurrent use.
//
// Of all patterns in its policies, the one that decides about a path is the path itself, written out; else,
// among the patterns with a wildcard that match (a "+" stands for one whole segment, a "*" at the end for
// anything, including nothing and more segments), the one
//
//  1. whose first wildcard comes later,
//  2. that does not end in "*",
//  3. with fewer "+" segments,
//  4. that is longer,
//  5. that is greater in byte order.
//
// It decides alone: patterns that lose add nothing. If several policies hold the same pattern, their
// capabilities add up, except that "deny" is final. A LIST of "foo/" may also be ruled by "foo", written out.
//
// Patterns count in the namespace of their policy and below it: there a pattern begins with the namespace's path. An
// ACL looks from one namespace (see In), the root at first: the paths it is asked about have no leading slash and are
// relative to that. Those of policies are compared as policy names are, without regard to case: see fold.
//
// Policies of several namespaces that lie in one another are several levels: those of the uppermost namespace, those with
// the ones of the next namespace below, and so on to all. What any level allows is allowed, so that a policy of a lower
// namespace adds to what a higher one grants and takes nothing from it. See Levels.
type ACL struct {
	*rules
	ns string // path of the namespace looked from, "" or ending in "/"
}

// rules are all that the policies say.
type rules struct {
	root bool
	patterns
	// named replaces patterns for the paths of policies, if the two differ.
	named *patterns
	// lower holds all patterns in lower case, if that makes a difference: see CheckCaseless.
	lower *patterns
	// higher are the levels above, the uppermost first, each with all of its patterns. They have no higher ones.
	higher []*rules
	// expiresAt is when the first of the rules runs out, zero if none does: the ACL is wrong from then on.
	expiresAt time.Time
	// personal is set if a template was met: the ACL is good only for the subject it was made for.
	personal bool
}

// patterns is a set of patterns.
type patterns struct {
	exact map[string]*grant
	globs node
	all   []*grant // every pattern once, in no order
}

// Levels yields, the uppermost first, an ACL for each level. A request is allowed if all that is asked of a Decision holds
// at one of them. Most tokens have one.
func (a *ACL) Levels() iter.Seq[*ACL] {
	return func(yield func(*ACL) bool) {
		for _, r := range a.higher {
			if !yield(&ACL{rules: r, ns: a.ns}) {
				return
			}
		}
		yield(a)
	}
}

// any reports whether holds is true of a level.
func (a *ACL) any(holds func(*ACL) bool) bool {
	for level := range a.Levels() {
		if holds(level) {
			return true
		}
	}
	return false
}

// In returns the same ACL, looking from the namespace with this path.
func (a *ACL) In(ns string) *ACL { return &ACL{rules: a.rules, ns: ns} }

// grant is one pattern with what all policies say about it.
type grant struct {
	pattern string // without the final "*"
	caps    capability
	params  parameters
	minWrap time.Duration
	maxWrap time.Duration

	glob     bool // ends in "*"
	pluses   int
	wildcard int // position of the first wildcard; -1 if there is none
}

// Decision is the answer to one request.
type Decision struct {
	Allowed bool
	// Ruled reports whether there is a pattern that decides.
	Ruled bool
	// Splits reports whether the deciding pattern gives only one of create and update, so that it matters whether a write creates
	// its object.
	Splits bool
	// Sudo reports whether the deciding pattern has the sudo capability, whatever Allowed says.
	Sudo bool
	// MinWrapTTL and MaxWrapTTL bound the response wrapping that the client must ask for; 0 is no bound. See
	// AllowsWrap.
	MinWrapTTL time.Duration
	MaxWrapTTL time.Duration
	// Err is why rules about parameters could not be applied: the input is not one that an engine would take. Allowed is
	// false then.
	Err error
}

// Input returns what a request gives to an engine. It is called if there are rules about that.
type Input func() (*input.Input, error)

// AllowsWrap reports whether the request may be answered wrapped for ttl, or unwrapped when ttl is 0.
func (d Decision) AllowsWrap(ttl time.Duration) bool {
	if d.MinWrapTTL == 0 && d.MaxWrapTTL == 0 {
		return true
	}
	return ttl > 0 && ttl >= d.MinWrapTTL && (d.MaxWrapTTL == 0 || ttl <= d.MaxWrapTTL)
}

// And is what a decision and a second one about the same request, by another name of its path, say together: what both
// allow, or the first alone if no pattern has made the second.
func (d Decision) And(e Decision) Decision {
	if !e.Ruled {
		return d
	}
	return Decision{
		Allowed: d.Allowed && e.Allowed, Ruled: d.Ruled, Splits: d.Splits || e.Splits, Sudo: d.Sudo && e.Sudo,
		MinWrapTTL: max(d.MinWrapTTL, e.MinWrapTTL), MaxWrapTTL: lesser(d.MaxWrapTTL, e.MaxWrapTTL),
		Err: cmp.Or(d.Err, e.Err),
	}
}

var required = map[engines.Operation]capability{
	engines.Read:   capRead,
	engines.Create: capCreate,
	engines.Update: capUpdate,
	engines.Patch:  capPatch,
	engines.Delete: capDelete,
	engines.List:   capList,
	engines.Scan:   capScan,
}

// Allowed is Allow, for engines.Access.
func (a *ACL) Allowed(op engines.Operation, path string) bool { return a.Allow(op, path) }

// AllowedAlways is for engines.Access: where there are rules about parameters or wrapping, nothing is allowed always.
func (a *ACL) AllowedAlways(op engines.Operation, path string) bool {
	return a.root || a.any(func(l *ACL) bool {
		g := l.find(op, path)
		return g.allows(op) && g.params.empty() && g.minWrap == 0 && g.maxWrap == 0
	})
}

// Allow reports whether the capability for op is given on path, whatever the body. It does not know about
// wrapping: use Check for requests.
func (a *ACL) Allow(op engines.Operation, path string) bool {
	return a.root || a.any(func(l *ACL) bool { return l.find(op, path).allows(op) })
}

// Check decides about a request at one level, that of all policies unless the ACL is one of Levels. Rules about parameters are applied to the input; as elsewhere in this family of servers
// they concern reads and writes, not deletes and lists. The caller must also ask the Decision's AllowsWrap.
func (a *ACL) Check(op engines.Operation, path string, input Input) Decision {
	if a.root {
		return Decision{Allowed: true, Ruled: true, Sudo: true}
	}
	return decide(a.find(op, path), op, input)
}

// CheckSynonym is Check of a path one segment of which has another name: other is the path with that, and neutral the path with
// engines.Unnamed in its place. A pattern that would decide whatever the segment is gives way to one that is about either name; if there is one
// for each name, both must allow the request.
func (a *ACL) CheckSynonym(op engines.Operation, path, other, neutral string, input Input) Decision {
	if a.root {
		return Decision{Allowed: true, Ruled: true, Sudo: true}
	}
	g, h := about(a.find(op, path), a.find(op, other), a.find(op, neutral))
	return decide(g, op, input).And(decide(h, op, input))
}

// about returns which of the grants for the two names of a path decide, given the one for any name.
func about(own, other, neutral *grant) (g, h *grant) {
	switch neutral {
	case other:
		return own, own
	case own:
		return other, other
	}
	return own, other
}

// CheckCaseless is Check as if neither paths nor patterns had upper case: for names that an engine takes in any case.
func (a *ACL) CheckCaseless(op engines.Operation, path string, input Input) Decision {
	if a.root {
		return Decision{Allowed: true, Ruled: true, Sudo: true}
	}
	set := &a.patterns
	if a.lower != nil {
		set = a.lower
	}
	list := op.Lists()
	if list && path != "" && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	return decide(set.match(strings.ToLower(a.ns+strings.TrimLeft(path, "/")), list), op, input)
}

// decide is what a grant, nil for none, says of a request.
func decide(g *grant, op engines.Operation, input Input) Decision {
	if g == nil {
		return Decision{}
	}
	d := Decision{
		Allowed:    g.allows(op),
		Ruled:      true,
		Splits:     g.allows(engines.Create) != g.allows(engines.Update),
		Sudo:       g.caps&capSudo != 0,
		MinWrapTTL: g.minWrap,
		MaxWrapTTL: g.maxWrap,
	}
	if !d.Allowed || op == engines.Delete || op.Lists() || g.params.empty() {
		return d
	}
	in, err := input()
	d.Allowed, d.Err = err == nil && g.params.allow(in), err
	return d
}

// Sudo reports whether the sudo capability is given on path. A path that ends in a slash is looked up as
// LIST does.
func (a *ACL) Sudo(path string) bool {
	return a.root || a.any(func(l *ACL) bool {
		g := l.match(path, true)
		return g != nil && g.caps&capSudo != 0
	})
}

// Capabilities returns the sorted capabilities on path, ["root"] for the root policy, and ["deny"] when
// there are none.
func (a *ACL) Capabilities(path string) []string { return a.CapabilitiesSynonym(path, path, path) }

// CapabilitiesSynonym is Capabilities of a path one segment of which has another name: see CheckSynonym.
func (a *ACL) CapabilitiesSynonym(path, other, neutral string) []string {
	if a.root {
		return []string{RootName}
	}
	var all capability
	for level := range a.Levels() {
		if g, h := about(level.match(path, true), level.match(other, true), level.match(neutral, true)); g != nil && h != nil {
			all = all.or(g.caps & h.caps)
		}
	}
	return all.names()
}

// PathCapabilities are the capabilities of one pattern, as the web UI reads them.
type PathCapabilities struct {
	Capabilities []string `json:"capabilities"`
}

// Summary returns all patterns at and below the namespace with their capabilities: paths written out, and patterns
// with wildcards, without their final "*". Neither map is nil.
func (a *ACL) Summary() (exact, glob map[string]PathCapabilities) {
	exact, glob = map[string]PathCapabilities{}, map[string]PathCapabilities{}
	for _, g := range a.all {
		to := glob
		if g.wildcard < 0 {
			to = exact
		}
		pattern, ok := strings.CutPrefix(g.pattern, a.ns)
		if !ok {
			if !g.glob || !strings.HasPrefix(a.ns, g.pattern) {
				continue
			}
			pattern = "" // it covers the whole namespace
		}
		if _, ok := to[pattern]; ok && !g.glob {
			continue // "a/+/" beside "a/+/*": the wider one stands for both
		}
		caps := g.caps
		if path, ok := g.example(""); ok {
			for _, r := range a.higher {
				if h := r.match(path, false); h != nil {
					caps = caps.or(h.caps)
				}
			}
		}
		to[pattern] = PathCapabilities{Capabilities: caps.names()}
	}
	return exact, glob
}

// current reports whether no rule has run out since the ACL was made.
func (a *rules) current() bool { return a.expiresAt.IsZero() || time.Now().Before(a.expiresAt) }

// Root reports whether the ACL allows everything.
func (a *ACL) Root() bool { return a.root }

func (g *grant) allows(op engines.Operation) bool {
	return g != nil && g.caps&required[op] != 0
}

// some reports whether the grant gives any capability.
func (g *grant) some() bool { return g != nil && g.caps&^capDeny != 0 }

func (a *ACL) find(op engines.Operation, path string) *grant {
	if !op.Lists() {
		return a.match(path, false)
	}
	if path != "" && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	return a.match(path, true)
}

// match returns the grant that decides about path, or nil.
func (a *ACL) match(path string, list bool) *grant {
	path = strings.TrimLeft(path, "/")
	folded := foldPath(path)
	set := &a.patterns
	if a.named != nil && isNamed(path) {
		set = a.named
	}
	return set.match(a.ns+folded, list)
}

func (p *patterns) match(path string, list bool) *grant {
	if g := p.exact[path]; g != nil {
		return g
	}
	if list {
		if g := p.exact[strings.TrimSuffix(path, "/")]; g != nil {
			return g
		}
	}
	return p.globs.match(path, nil)
}

// AnyUnder reports whether any capability is given on any path that begins with prefix, such as a mount
// path ("secret/"). It tries, for each pattern that reaches below prefix, one path that the pattern matches.
func (a *ACL) AnyUnder(prefix string) bool {
	prefix = strings.TrimLeft(prefix, "/")
	return a.root || a.any(func(l *ACL) bool { return l.match(prefix, true).some() || l.reaches(prefix) })
}

// reaches reports whether there is a path that begins with prefix on which this level gives any capability.
func (a *ACL) reaches(prefix string) bool {
	for _, g := range a.all {
		if !g.some() {
			continue
		}
		if path, ok := g.example(a.ns + prefix); ok && a.patterns.match(path, false).some() {
			return true
		}
	}
	return false
}

// example returns a path that begins with prefix and that the pattern matches, if there is one.
func (g *grant) example(prefix string) (string, bool) {
	var path []byte
	rest := g.pattern
	for {
		segment, tail, more := strings.Cut(rest, "/")
		if segment == "+" {
			segment = engines.Unnamed
			if len(path) < len(prefix) {
				segment, _, _ = strings.Cut(prefix[len(path):], "/")
			}
		}
		path = append(path, segment...)
		if !more {
			break
		}
		path, rest = append(path, '/'), tail
	}
	if g.glob {
		if len(path) < len(prefix) && strings.HasPrefix(prefix, string(path)) {
			path = append(path[:0], prefix...)
		}
		path = append(path, engines.Unnamed...)
	}
	return string(path), strings.HasPrefix(string(path), prefix)
}
