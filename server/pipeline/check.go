package pipeline

import (
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/policy"
)

// speller is an engine that knows its objects by names that can be spelled in several ways.
type speller interface {
	// StoredPath returns a path of the engine with the names in it spelled as they are stored.
	StoredPath(path string) string
}

// check asks the caller's policies of one level about the path as it was written and, where names can be spelled in several ways,
// once more without regard to case: what a policy says of a name holds however the policy and the request spell it. The same is
// true of a segment that has another name.
func (c *call) check(acl *policy.ACL, op engines.Operation) policy.Decision {
	if c.synonym != "" {
		return acl.CheckSynonym(op, c.path, c.synonym, c.neutral, c.input)
	}
	d := acl.Check(op, c.path, c.input)
	if !d.Allowed || c.mount == nil {
		return d
	}
	if _, named := c.mount.Engine.(speller); named {
		return d.And(acl.CheckCaseless(op, c.storedPath(), c.input))
	}
	return d
}

// Synonym is engines.Router.Synonym of a path below sys/, whose router is given, for paths of a namespace.
func Synonym(system *engines.Router, path string) (other, neutral string) {
	rest, ok := strings.CutPrefix(path, sysPrefix)
	if !ok || system.Synonym == nil {
		return "", ""
	}
	if other, neutral = system.Synonym(rest); other == "" {
		return "", ""
	}
	return sysPrefix + other, sysPrefix + neutral
}

// storedPath is the path with names spelled as they are stored. What is counted or revoked by path goes by it.
func (c *call) storedPath() string { return StoredPath(c.mount, c.path, c.inner.Path) }

// StoredPath does so for a path of which rest lies in the mount, which may be nil.
func StoredPath(m *mount.Mounted, path, rest string) string {
	if m == nil {
		return path
	}
	if named, ok := m.Engine.(speller); ok {
		return strings.TrimSuffix(path, rest) + named.StoredPath(rest)
	}
	return path
}

// input returns what the engine would get, for policies to judge. Where no route is, nothing is got.
func (c *call) input() (*input.Input, error) {
	if c.route == nil {
		return nil, c.miss
	}
	return c.route.Input(c.inner, c.params)
}
