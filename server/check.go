package server

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/policy"
)

// speller is an engine that knows its objects by names that can be spelled in several ways.
type speller interface {
	// StoredPath returns a path of the engine with the names in it spelled as they are stored.
	StoredPath(path string) string
}

// check asks the caller's policies about the path as it was written and, where names can be spelled in several ways,
// once more without regard to case: what a policy says of a name holds however the policy and the request spell it.
func (c *call) check(op engines.Operation) policy.Decision {
	input := c.input()
	d := c.acl.Check(op, c.path, input)
	if !d.Allowed || c.mount == nil {
		return d
	}
	if _, named := c.mount.Engine.(speller); named {
		return d.And(c.acl.CheckCaseless(op, c.storedPath(), input))
	}
	return d
}

// storedPath is the path with names spelled as they are stored. What is counted or revoked by path goes by it.
func (c *call) storedPath() string { return storedPath(c.mount, c.path, c.inner.Path) }

// storedPath does so for a path of which rest lies in the mount, which may be nil.
func storedPath(m *mount.Mounted, path, rest string) string {
	if m == nil {
		return path
	}
	if named, ok := m.Engine.(speller); ok {
		return strings.TrimSuffix(path, rest) + named.StoredPath(rest)
	}
	return path
}

// revokePath revokes the tokens that were made by requests to a path or below it.
func (s *Server) revokePath(ctx context.Context, ns, path string) (int, error) {
	m, rest, err := s.mounts.Resolve(ctx, ns, path)
	if err != nil {
		return 0, err
	}
	return s.tokens.RevokePath(ctx, ns, storedPath(m, path, rest))
}

// notOneInput stands for fields that policies and engines could understand differently. Rules about parameters refuse
// it.
var notOneInput = json.RawMessage("[]")

// input returns the fields that policies look at: the body, and for reads also the query, where their fields may come
// from. What the body holds wins, unless it is null, as it does when the input is decoded.
func (c *call) input() json.RawMessage {
	if c.Op != engines.Read || len(c.Query) == 0 {
		return c.Body
	}
	fields := map[string]any{}
	for name, values := range c.Query {
		if len(values) != 1 {
			return notOneInput // the first one, or all together: that depends on the field
		}
		fields[name] = values[0]
	}
	var body map[string]json.RawMessage
	if len(c.Body) > 0 && json.Unmarshal(c.Body, &body) != nil {
		return c.Body // not an object, which the check refuses
	}
	for name, value := range body {
		if _, inQuery := fields[name]; !inQuery || string(value) != "null" {
			fields[name] = value
		}
	}
	all, err := json.Marshal(fields)
	if err != nil {
		panic(err) // texts, and JSON that has been read
	}
	return all
}
