package policy_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/policy"
)

// The model below decides from the rules in ACL's comment in the slowest way there is: it writes out every rule of
// every policy, joins those of one pattern, keeps those that match, sorts them, and asks the first.

// modelRule is one path block, with what it can be given.
type modelRule struct {
	pattern  string
	caps     []string
	allowed  map[string][]string // values are texts; nil: the key is left out
	denied   map[string][]string
	required []string
	past     bool // it has expired
}

func (r modelRule) String() string {
	var b strings.Builder
	list, _ := json.Marshal(r.caps)
	fmt.Fprintf(&b, "path %q { capabilities = %s", r.pattern, list)
	for key, params := range map[string]map[string][]string{"allowed_parameters": r.allowed, "denied_parameters": r.denied} {
		if params == nil {
			continue
		}
		fmt.Fprintf(&b, "\n  %s = {", key)
		for _, name := range slices.Sorted(maps.Keys(params)) {
			values, _ := json.Marshal(params[name])
			fmt.Fprintf(&b, "\n    %q = %s", name, values)
		}
		b.WriteString("\n  }")
	}
	if r.required != nil {
		names, _ := json.Marshal(r.required)
		fmt.Fprintf(&b, "\n  required_parameters = %s", names)
	}
	if r.past {
		b.WriteString("\n  expiration = \"2001-01-01T00:00:00Z\"")
	}
	b.WriteString(" }\n")
	return b.String()
}

// world is a random set of policies in namespaces, and a token that has some of them.
type world struct {
	rng    *rand.Rand
	texts  map[string]map[string][]modelRule // by namespace id and name
	scopes []policy.Scope
	who    subject
}

// worldNamespaces are the namespaces, by id. One begins as another does.
var worldNamespaces = map[string]string{"root": "", "t1": "a/", "t2": "a/b/", "t3": "ab/"}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func newWorld(rng *rand.Rand) *world {
	w := &world{rng: rng, texts: map[string]map[string][]modelRule{}}
	w.who = subject{"tag": strconv.FormatUint(rng.Uint64(), 36), "identity.entity.id": "e1"}
	if name := pick(rng, "bob", "Bob", "b", "*", "+", "a/b", "b*", "..", ""); name != "" {
		w.who["identity.entity.name"] = name
	}
	for _, ns := range slices.Sorted(maps.Keys(worldNamespaces)) {
		scope := policy.Scope{Namespace: ns, Path: worldNamespaces[ns]}
		w.texts[ns] = map[string][]modelRule{}
		for i := range rng.IntN(4) {
			name := "p" + strconv.Itoa(i)
			for range 1 + rng.IntN(4) {
				w.texts[ns][name] = append(w.texts[ns][name], w.rule())
			}
			if rng.IntN(3) > 0 {
				scope.Names = append(scope.Names, name)
			}
		}
		if rng.IntN(30) == 0 {
			scope.Names = append(scope.Names, "root")
		}
		if len(scope.Names) > 0 {
			w.scopes = append(w.scopes, scope)
		}
	}
	return w
}

// capitals stand in names of policies only: there they do not count.
func (w *world) pattern() string {
	if w.rng.IntN(4) == 0 {
		front := pick(w.rng, "sys/policies/acl/", "sys/policy/", "+/policies/+/", "sys/+/", "a/sys/policy/", "+/sys/policies/acl/")
		return front + pick(w.rng, "Ops", "ops", "O*", "oP*", "+", "*", "{{identity.entity.name}}", "ops/X")
	}
	parts := make([]string, 1+w.rng.IntN(4))
	for i := range parts {
		parts[i] = pick(w.rng, "a", "b", "ab", "+", "+", "x*y", "a+", "sys", "{{identity.entity.name}}", "{{ identity.entity.id }}", "{{identity.entity.metadata.none}}")
	}
	pattern := strings.Join(parts, "/")
	switch w.rng.IntN(6) {
	case 0, 1:
		if !strings.HasSuffix(pattern, "+") {
			pattern += "*"
		}
	case 2:
		pattern += "/*"
	case 3:
		pattern += "/"
	}
	return pick(w.rng, "", "", "", "/") + pattern
}

func (w *world) rule() modelRule {
	r := modelRule{pattern: w.pattern(), past: w.rng.IntN(12) == 0}
	for range 1 + w.rng.IntN(3) {
		r.caps = append(r.caps, pick(w.rng, "create", "delete", "list", "patch", "read", "sudo", "update", "read", "update"))
	}
	if w.rng.IntN(8) == 0 {
		r.caps = append(r.caps, "deny")
	}
	params := func() map[string][]string {
		out := map[string][]string{}
		for range 1 + w.rng.IntN(2) {
			values := []string{}
			for range w.rng.IntN(3) {
				values = append(values, pick(w.rng, "x", "y", "1", "true", "x*", "*y", "*x*"))
			}
			out[pick(w.rng, "k", "l", "*")] = values
		}
		return out
	}
	if w.rng.IntN(5) == 0 {
		r.allowed = params()
	}
	if w.rng.IntN(6) == 0 {
		r.denied = params()
	}
	if w.rng.IntN(8) == 0 {
		r.required = []string{pick(w.rng, "k", "L")}
	}
	return r
}

func (w *world) path() string {
	if w.rng.IntN(4) == 0 {
		// Not below another namespace's path: a request is asked about in the namespace that it leads to.
		return pick(w.rng, "sys/policies/acl/", "sys/policy/") + pick(w.rng, "ops", "OPS", "oPs ", "other", "bob", "BOB", "ops/x", "")
	}
	parts := make([]string, 1+w.rng.IntN(4))
	for i := range parts {
		parts[i] = pick(w.rng, "a", "b", "ab", "abc", "c", "bob", "e1", "x*y", "sys", "a+", "*", "+")
	}
	return strings.Join(parts, "/") + pick(w.rng, "", "", "", "/")
}

// fitting returns a path that one of the patterns matches, looking from ns, or any path.
func (w *world) fitting(ns string) string {
	for range 10 {
		all := w.everything(false)
		if len(all) == 0 {
			break
		}
		pattern, ok := strings.CutPrefix(pick(w.rng, slices.Sorted(maps.Keys(all))...), ns)
		if !ok || strings.Contains(pattern, "/sys/polic") {
			continue // of a policy, but in another namespace
		}
		front, glob := strings.CutSuffix(pattern, "*")
		if glob {
			front += pick(w.rng, "", "a", "b/c", "ops")
		}
		parts := strings.Split(front, "/")
		for i := range parts {
			if parts[i] == "+" {
				parts[i] = pick(w.rng, "a", "b", "bob", "c")
			}
		}
		return strings.Join(parts, "/")
	}
	return w.path()
}

// body returns a body and its fields by lower-case name.
func (w *world) body() (json.RawMessage, map[string][]string) {
	if w.rng.IntN(3) == 0 {
		return nil, nil
	}
	body, fields := map[string]any{}, map[string][]string{}
	for range w.rng.IntN(3) {
		name := pick(w.rng, "k", "K", "l", "m")
		if _, ok := body[name]; ok {
			continue
		}
		value := pick(w.rng, any("x"), any("y"), any("xy"), any("zy"), any(1), any(true), any(nil))
		body[name] = value
		text := fmt.Sprint(value)
		if value == nil {
			text = "null"
		}
		fields[strings.ToLower(name)] = append(fields[strings.ToLower(name)], text)
	}
	raw, _ := json.Marshal(body)
	return raw, fields
}

// joined is one pattern with what all rules say about it.
type joined struct {
	pattern  string
	caps     map[string]bool
	allowed  map[string][]string
	denied   map[string][]string
	required []string
}

// everything returns all patterns of a token, fully spelled, without regard to case if fold is set.
func (w *world) everything(fold bool) map[string]*joined {
	all := map[string]*joined{}
	for _, scope := range w.scopes {
		for _, name := range scope.Names {
			for _, r := range w.texts[scope.Namespace][name] {
				pattern, ok := filledIn(strings.TrimPrefix(r.pattern, "/"), w.who)
				if !ok && slices.Contains(r.caps, "deny") && known(r.pattern, w.who) {
					// A name that must not be filled in stands for all names, if the rule denies.
					pattern, ok = anyName(strings.TrimPrefix(r.pattern, "/")), true
				}
				if !ok || r.past {
					continue
				}
				if pattern = scope.Path + pattern; fold {
					pattern = strings.ToLower(pattern)
				}
				j := all[pattern]
				if j == nil {
					j = &joined{pattern: pattern, caps: map[string]bool{}, allowed: map[string][]string{}, denied: map[string][]string{}}
					all[pattern] = j
				}
				for _, c := range r.caps {
					j.caps[c] = true
				}
				join(j.allowed, r.allowed)
				join(j.denied, r.denied)
				j.required = append(j.required, r.required...)
			}
		}
	}
	for _, j := range all {
		if j.caps["deny"] {
			*j = joined{pattern: j.pattern, caps: map[string]bool{"deny": true}}
		}
	}
	return all
}

// join adds lists of values. An empty one is all values, whatever else is listed.
func join(into, from map[string][]string) {
	for name, values := range from {
		have, ok := into[name]
		if ok && len(have) == 0 || len(values) == 0 {
			into[name] = nil
			continue
		}
		into[name] = slices.Concat(have, values)
	}
}

// known reports whether there is a value for every template of a pattern, safe or not.
func known(pattern string, who subject) bool {
	for _, name := range []string{"identity.entity.name", "identity.entity.id", "identity.entity.metadata.none"} {
		if who[name] == "" && (strings.Contains(pattern, "{{"+name) || strings.Contains(pattern, "{{ "+name)) {
			return false
		}
	}
	return true
}

// anyName is the pattern with a wildcard for each segment that holds a template.
func anyName(pattern string) string {
	parts := strings.Split(pattern, "/")
	for i, part := range parts {
		if !strings.Contains(part, "{{") {
			continue
		}
		parts[i] = "+"
		if i == len(parts)-1 && strings.HasSuffix(part, "*") {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, "/")
}

func filledIn(pattern string, who subject) (string, bool) {
	for _, name := range []string{"identity.entity.name", "identity.entity.id", "identity.entity.metadata.none"} {
		for _, spelled := range []string{"{{" + name + "}}", "{{ " + name + " }}"} {
			if !strings.Contains(pattern, spelled) {
				continue
			}
			value := who[name]
			if value == "" || value == ".." || strings.ContainsAny(value, "/*+") {
				return "", false
			}
			pattern = strings.ReplaceAll(pattern, spelled, value)
		}
	}
	return pattern, true
}

// decider returns the pattern that decides about a path, nil if none does.
func (w *world) decider(ns string, op engines.Operation, path string) *joined {
	list := op == engines.List
	if list && path != "" && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	named := strings.HasPrefix(path, "sys/policies/acl/") || strings.HasPrefix(path, "sys/policy/")
	full := ns + path
	if named {
		full = strings.ToLower(strings.TrimSpace(full))
	}
	all := w.everything(named)
	if j := all[full]; j != nil && !wild(full) {
		return j
	}
	if short := strings.TrimSuffix(full, "/"); list && all[short] != nil && !wild(short) {
		return all[short]
	}
	var found []*joined
	for pattern, j := range all {
		if wild(pattern) && matches(pattern, full) {
			found = append(found, j)
		}
	}
	if len(found) == 0 {
		return nil
	}
	slices.SortFunc(found, func(a, b *joined) int { return stronger(a.pattern, b.pattern) })
	return found[0]
}

// stronger orders patterns by the five rules, the one that decides first.
func stronger(a, b string) int {
	firstWildcard := func(p string) int {
		at := len(p)
		if strings.HasSuffix(p, "*") {
			at--
		}
		for i := range p {
			if p[i] == '+' && (i == 0 || p[i-1] == '/') && (i == len(p)-1 || p[i+1] == '/') {
				return min(at, i)
			}
		}
		return at
	}
	glob := func(p string) int { return strings.Count(p[len(p)-1:], "*") }
	pluses := func(p string) (n int) {
		for _, s := range strings.Split(p, "/") {
			if s == "+" {
				n++
			}
		}
		return n
	}
	return cmp.Or(
		cmp.Compare(firstWildcard(b), firstWildcard(a)), // 1
		cmp.Compare(glob(a), glob(b)),                   // 2
		cmp.Compare(pluses(a), pluses(b)),               // 3
		cmp.Compare(len(b), len(a)),                     // 4
		cmp.Compare(b, a),                               // 5
	)
}

// decide returns whether a request is allowed, and whether with sudo.
func (w *world) decide(ns string, op engines.Operation, path string, body map[string][]string) (allowed, sudo bool) {
	for _, scope := range w.scopes {
		if scope.Namespace == "root" && slices.Contains(scope.Names, "root") {
			return true, true
		}
	}
	j := w.decider(ns, op, path)
	if j == nil {
		return false, false
	}
	allowed = j.caps[string(op)]
	if op != engines.Delete && op != engines.List {
		allowed = allowed && j.accepts(body)
	}
	return allowed, j.caps["sudo"]
}

func (j *joined) accepts(body map[string][]string) bool {
	for _, name := range j.required {
		if values := body[strings.ToLower(name)]; !slices.ContainsFunc(values, func(v string) bool { return v != "null" }) {
			return false
		}
	}
	for name, values := range body {
		if _, ok := j.denied["*"]; ok {
			return false
		}
		if listed, ok := j.denied[name]; ok && (len(listed) == 0 || slices.ContainsFunc(values, func(v string) bool { return inList(v, listed) })) {
			return false
		}
		if len(j.allowed) == 0 {
			continue
		}
		listed, ok := j.allowed[name]
		if !ok {
			if _, ok := j.allowed["*"]; !ok {
				return false
			}
			continue
		}
		if len(listed) > 0 && slices.ContainsFunc(values, func(v string) bool { return !inList(v, listed) }) {
			return false
		}
	}
	return true
}

func inList(value string, listed []string) bool {
	return slices.ContainsFunc(listed, func(l string) bool {
		inner := strings.Trim(l, "*")
		switch {
		case value == "null":
			return false // it is no text
		case strings.HasPrefix(l, "*") && strings.HasSuffix(l, "*"):
			return strings.Contains(value, inner)
		case strings.HasPrefix(l, "*"):
			return strings.HasSuffix(value, inner)
		case strings.HasSuffix(l, "*"):
			return strings.HasPrefix(value, inner)
		}
		return value == l
	})
}

// TestRandomPolicies compares what the store's ACLs decide with the model. POLICY_SEED repeats a run.
func TestRandomPolicies(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("POLICY_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("POLICY_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	ops := []engines.Operation{engines.Create, engines.Read, engines.Update, engines.Patch, engines.Delete, engines.List}
	var yes, no int
	for range 200 {
		w := newWorld(rng)
		s, _ := newStore(t)
		for ns, policies := range w.texts {
			for name, rules := range policies {
				var text strings.Builder
				for _, r := range rules {
					text.WriteString(r.String())
				}
				if err := s.Set(t.Context(), ns, name, text.String()); err != nil {
					t.Fatalf("%v in\n%s", err, text.String())
				}
			}
		}
		acl, err := s.ACL(t.Context(), w.who, w.scopes...)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			ns, op, path := pick(rng, "", "", "a/", "a/b/", "ab/"), pick(rng, ops...), w.path()
			if rng.IntN(3) > 0 {
				path = w.fitting(ns)
			}
			body, fields := w.body()
			got := acl.In(ns).Check(op, path, freeForm(string(body)))
			allowed, sudo := w.decide(ns, op, path, fields)
			if got.Allowed != allowed || got.Sudo != sudo {
				t.Fatalf("%s %q in %q with %s: allowed %v, sudo %v, the model says %v, %v; the entity %q has\n%s",
					op, path, ns, body, got.Allowed, got.Sudo, allowed, sudo, w.who["identity.entity.name"], w.describe())
			}
			if allowed && !acl.Root() {
				yes++
			} else {
				no++
			}
			if allowed && !strings.ContainsAny(path, "+*") && !acl.In(ns).AnyUnder(path) && op != engines.List && !w.denies() {
				t.Fatalf("%s %q in %q is allowed, but AnyUnder does not find it among\n%s", op, path, ns, w.describe())
			}
		}
	}
	if yes < 500 || no < 1000 {
		t.Errorf("%d requests were allowed and %d refused: that compares too little", yes, no)
	}
}

func (w *world) denies() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(w.everything(false))), func(j *joined) bool { return j.caps["deny"] })
}

func (w *world) describe() string {
	var b strings.Builder
	for _, scope := range w.scopes {
		for _, name := range scope.Names {
			fmt.Fprintf(&b, "# %s in %q\n", name, scope.Path)
			for _, r := range w.texts[scope.Namespace][name] {
				b.WriteString(r.String())
			}
		}
	}
	return b.String()
}
