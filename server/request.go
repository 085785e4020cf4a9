package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/coffer-project/coffer/engines"
)

// Request is one API request, decoded from HTTP but not yet looked at.
type Request struct {
	ID        string
	Op        engines.Operation
	Namespace string // path as the client gave it, "" for root
	Path      string // without "/v1/", no leading slash; LIST paths end in "/"
	Token     engines.Sensitive
	Body      json.RawMessage // nil when absent; not for routes with the RawBody flag
	Query     url.Values
	Header    http.Header
	Remote    netip.AddrPort // of the client, also when the request was forwarded
	RawBody   io.Reader      // the unread body
	Help      bool           // ?help=1: describe the path instead of running it
	// Current asks for a read that includes every write acknowledged so far, also on a standby.
	Current bool
}

// wrapHeader asks for a wrapped answer. Written so, it need not be brought into this form at each request.
const wrapHeader = "X-Vault-Wrap-Ttl"

// wraps reports whether the client wants the answer in a wrapping token.
func (r *Request) wraps() bool {
	ttl := r.Header.Get(wrapHeader)
	return ttl != "" && ttl != "0"
}

// Reply is the answer to a Request.
type Reply struct {
	*engines.Response
	MountType string
	Header    http.Header // further headers; may be nil
}

// Place says where a request must run.
type Place int

const (
	Here   Place = iota // on this node
	Active              // on the active node
	Only                // on this node and no other: the request is about the node
)
