package engines

import (
	"context"
)

// Flags say how a route is treated by the server.
type Flags uint32

const (
	// Unauthenticated routes need no token.
	Unauthenticated Flags = 1 << iota
	// Sudo routes need the sudo capability besides the one of the operation.
	Sudo
	// RootNamespace routes answer only in the root namespace.
	RootNamespace
	// Primary routes must run on the primary cluster even if they only read.
	Primary
	// ClusterLocal routes never leave the cluster, even when they write.
	ClusterLocal
	// Active routes run on the active node even if they only read: a standby forwards them.
	Active
	// AnyNode routes run where they arrive, even if they write: they concern this node.
	AnyNode
	// WorksSealed routes answer while the server is sealed or not initialised.
	WorksSealed
	// RawBody routes get the request body as a stream, whatever its size.
	RawBody
)

// Has reports whether all of the given flags are set.
func (f Flags) Has(g Flags) bool { return f&g == g }

// Handler answers a request whose input is decoded.
type Handler[In any] func(ctx context.Context, req *Request, in *In) (*Response, error)

// Field is one input field of a route, as declared by the tags of its input struct.
type Field struct {
	Name     string
	Type     string // "string", "boolean", "integer", "number", "duration", "list", "map", "object"
	In       string // "path", "query" or "body"
	Required bool
	Default  string
	Help     string
}

// Route is one declared path and operation.
type Route struct {
	Pattern string
	Op      Operation
	Help    string
	Flags   Flags
	Fields  []Field
	// Exists, if set, tells create from update on writes: it reports whether the object is already there.
	Exists func(ctx context.Context, req *Request) (bool, error)

	segments []segment
	handle   func(ctx context.Context, req *Request, params map[string]string) (*Response, error)
}
