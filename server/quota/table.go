package quota

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
)

// table is all quotas, made to be looked up. Immutable but for the counters in it.
type table struct {
	at       uint64 // Quotas.changes when it was read
	rates    ruleSet
	leases   ruleSet
	storage  ruleSet
	config   Config
	exempt   patterns // relative to the namespace
	absolute patterns
}

// activeRule is a rule with its counters.
type activeRule struct {
	Rule
	limiter    *limiter       // of rate limits
	meter      *meter         // of storage quotas
	violations *atomic.Uint64 // kept when the rule is read again
}

// newTable makes a table. Counters of rules that old had too go on, buckets if what they depend on is the same.
func newTable(rules []Rule, config Config, old *table) *table {
	t := &table{config: config, exempt: newPatterns(config.Exempt), absolute: newPatterns(config.AbsoluteExempt)}
	before := map[string]*activeRule{}
	if old != nil {
		for _, r := range slices.Concat(old.rates.all, old.leases.all, old.storage.all) {
			before[r.id()] = r
		}
	}
	for _, rule := range rules {
		r := &activeRule{Rule: rule, violations: new(atomic.Uint64)}
		was := before[rule.id()]
		if was != nil {
			r.violations = was.violations
		}
		same := was != nil && was.Rule == rule
		switch {
		case rule.Type == LeaseCount:
			t.leases.add(r)
		case rule.Type == Storage && same:
			r.meter = was.meter
			t.storage.add(r)
		case rule.Type == Storage:
			r.meter = &meter{}
			t.storage.add(r)
		case same:
			r.limiter = was.limiter
			t.rates.add(r)
		default:
			r.limiter = newLimiter(rule.Rate, rule.interval(), rule.block())
			t.rates.add(r)
		}
	}
	t.rates.sort()
	t.leases.sort()
	return t
}

// ruleSet is the rules of one type.
type ruleSet struct {
	all    []*activeRule
	roles  map[string]*activeRule // by the mount's full path and the role
	exact  map[string]*activeRule // by full path, of everything but roles and globs
	prefix []*activeRule          // globs, the longest first
}

func (s *ruleSet) add(r *activeRule) {
	if s.all == nil {
		s.roles, s.exact = map[string]*activeRule{}, map[string]*activeRule{}
	}
	s.all = append(s.all, r)
	switch {
	case r.Role != "":
		s.roles[roleKey(r.Path, r.Role)] = r
	case r.glob():
		s.prefix = append(s.prefix, r)
	default:
		s.exact[r.Path] = r
	}
}

func (s *ruleSet) sort() {
	slices.SortFunc(s.prefix, func(a, b *activeRule) int { return cmp.Compare(len(b.Path), len(a.Path)) })
}

func roleKey(mount, role string) string { return mount + "\x00" + role }

// find returns the most specific rule for a request, or nil. full is the request's path from the root namespace, by each of its names.
func (s *ruleSet) find(r Request, full ...string) *activeRule {
	mount := r.NamespacePath + r.MountPath
	if len(s.roles) > 0 {
		role := r.Role
		if r.FindRole != nil {
			role = r.FindRole()
		}
		if rule := s.roles[roleKey(mount, role)]; rule != nil {
			return rule
		}
	}
	for _, path := range full {
		// Rules of paths have no slash at their end, LIST paths have one.
		if rule := s.exact[strings.TrimSuffix(path, "/")]; rule != nil && path != "" && path != "/" {
			return rule
		}
	}
	for _, rule := range s.prefix {
		before := rule.Path[:len(rule.Path)-1]
		if slices.ContainsFunc(full, func(path string) bool { return strings.HasPrefix(path, before) }) {
			return rule
		}
	}
	if rule := s.exact[mount]; rule != nil && r.MountPath != "" {
		return rule
	}
	return s.namespace(r.NamespacePath)
}

// namespace returns the rule of a namespace, or the one it inherits, or nil.
func (s *ruleSet) namespace(path string) *activeRule {
	for own := true; ; own = false {
		if rule := s.exact[path]; rule != nil && (own || rule.Inheritable) {
			return rule
		}
		if path == "" {
			return nil
		}
		// "a/b/" lies in "a/", which lies in "".
		path = path[:strings.LastIndexByte(path[:len(path)-1], '/')+1]
	}
}

// scope says what a lease count or storage rule counts. r is a request that it concerns.
func (a *activeRule) scope(r Request) Scope {
	mount := r.NamespacePath + r.MountPath
	switch {
	case r.MountPath != "" && strings.HasPrefix(a.Path, mount):
		return Scope{Namespace: r.NamespacePath, Mount: r.MountPath, Path: a.Path[len(mount):], Role: a.Role}
	case a.glob(): // it ends within the mount's name
		return Scope{Namespace: r.NamespacePath, Mount: r.MountPath}
	}
	return Scope{Namespace: a.Path, Below: a.Inheritable}
}

// patterns are paths, some with a "*" at the end.
type patterns struct {
	exact    map[string]bool
	prefixes []string
}

func newPatterns(paths []string) patterns {
	p := patterns{exact: map[string]bool{}}
	for _, path := range paths {
		if before, glob := strings.CutSuffix(path, "*"); glob {
			p.prefixes = append(p.prefixes, before)
		} else {
			p.exact[strings.TrimSuffix(path, "/")] = true
		}
	}
	return p
}

func (p *patterns) match(path string) bool {
	if p.exact[strings.TrimSuffix(path, "/")] {
		return true
	}
	return slices.ContainsFunc(p.prefixes, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}
