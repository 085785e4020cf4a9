package pipeline

import (
	"crypto/x509"
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
	// ReadBody reads the body into memory, in JSON; it is called at most once, when it is known that the request may take
	// the memory. nil: Body is all there is.
	ReadBody func(BodyRule) (json.RawMessage, error)
	Query    url.Values
	Header   http.Header
	Remote   netip.AddrPort // of the client, also when the request was forwarded
	RawBody  io.Reader      // the unread body
	// Certificates are those by which the client has shown who it is in its TLS handshake, also when the request was forwarded: see
	// engines.WithCertificates.
	Certificates []*x509.Certificate
	Help         bool // ?help=1: describe the path instead of running it
	// Current asks for a read that includes every write acknowledged so far, also on a standby.
	Current bool
}

// BodyRule is what the body of a request may be.
type BodyRule struct {
	MaxBytes int64 // 0: what the listener allows
	Open     bool  // the route needs no token: anyone can send it
	Form     bool  // it may be the form that a browser posts
}

// The most that a body may hold where no token is needed. A form is an identity provider's response.
const (
	maxOpenBytes = 64 << 10
	maxFormBytes = 2 << 20
)

// bodyRule returns the rule of a route with the flags.
func bodyRule(op engines.Operation, flags engines.Flags) BodyRule {
	r := BodyRule{
		Open: flags&(engines.Unauthenticated|engines.WorksSealed|engines.Ceremony) != 0,
		Form: op == engines.Update && flags.Has(engines.Form),
	}
	switch {
	case r.Open && r.Form:
		r.MaxBytes = maxFormBytes
	case r.Open:
		r.MaxBytes = maxOpenBytes
	}
	return r
}

// fetch reads the body, if it has not been read.
func (r *Request) fetch(flags engines.Flags) error {
	read := r.ReadBody
	if read == nil {
		return nil
	}
	r.ReadBody = nil
	var err error
	r.Body, err = read(bodyRule(r.Op, flags))
	return err
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
	Path      string      // of the request, relative to its namespace
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
