package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"unicode/utf8"

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

// maxPathBytes bounds a request path; every storage key derived from one stays below storage.MaxKeyBytes.
const maxPathBytes = 2 << 10

// CheckPath refuses what could mean different things to different layers.
func CheckPath(path string) error {
	switch {
	case len(path) > maxPathBytes:
		return engines.Invalid("the path is %d bytes long, the limit is %d", len(path), maxPathBytes)
	case !utf8.ValidString(path):
		return engines.Invalid("the path is not valid UTF-8")
	}
	for i := 0; i < len(path); i++ {
		if path[i] < ' ' || path[i] == 0x7f {
			return engines.Invalid("the path contains a control character")
		}
	}
	start := 0
	for i := 0; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		switch seg := path[start:i]; {
		case seg == "." || seg == "..":
			return engines.Invalid("the path contains a %q segment", seg)
		case seg == "" && i < len(path):
			return engines.Invalid("the path contains an empty segment")
		}
		start = i + 1
	}
	return nil
}
