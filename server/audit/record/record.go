// Package record builds the lines of the audit log: JSON in which every text value and every token is a keyed hash, with a
// limit to its size.
//
// It promises that a line reveals no value that is not meant to be read, that it is valid JSON whatever the body holds, and
// that the two lines of a request without a valid token are short. Bodies come as raw JSON: values are replaced while scanning, and
// nothing is decoded twice. Package audit writes the lines to devices. Start reading at Record, then Format, then walker.
package record

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Record is what the audit log says of one request. The same Record, with Response or Error filled, serves for
// both lines. Nothing in it is modified or kept.
type Record struct {
	Time     time.Time // zero: now
	Auth     *Auth     // of the caller; nil without a valid token
	Request  Request
	Response *Response // only used in the line of the response; nil when there is none
	Error    string    // as the client sees it, and why; "" for success
	// Unauthenticated says that no valid token came with the request: the size of its records has a bound. Brief says that
	// it has this one record, with the hash and the length of its body: it was rejected before anything was done, say.
	Unauthenticated bool
	Brief           bool
}

// Auth is a token, the caller's or one that is handed out. Both secrets are given in the clear and hashed here.
type Auth struct {
	ClientToken      string
	Accessor         string
	DisplayName      string
	Policies         []string
	TokenPolicies    []string
	IdentityPolicies []string
	// ExternalNamespacePolicies are those that the entity's groups give in other namespaces, by namespace id.
	ExternalNamespacePolicies map[string][]string
	NoDefaultPolicy           bool
	Metadata                  map[string]string
	EntityID                  string
	TokenType                 string
	TTL                       time.Duration
	IssuedAt                  time.Time // zero: not written
	NumUses                   int
}

// Request is the request's part of a record.
type Request struct {
	ID                  string
	LoginID             string // of a login that takes several requests; only in the record of the response
	Operation           string
	MountType           string
	MountPoint          string
	MountAccessor       string
	MountClass          string // "secret", "auth" or "system"
	ClientToken         string // hashed
	ClientTokenAccessor string // hashed, unless the device has hmac_accessor=false
	NamespaceID         string
	NamespacePath       string
	Path                string
	Data                json.RawMessage // the body; nil if none. What is not JSON, or has no room, is hashed as one text
	Unread              int64           // length of a body that was rejected unread, as the client announced it; -1: not announced
	PlainKeys           []string        // top-level keys of Data to leave readable (audit_non_hmac_request_keys)
	Query               url.Values      // values are hashed
	RemoteAddress       string
	RemotePort          int
	Headers             http.Header // all of them: those that are configured are written
	ForwardedFrom       string      // node that forwarded the request, if any
	WrapTTL             time.Duration
}

// Response is the response's part of a record.
type Response struct {
	Auth      *Auth // a token handed out
	Data      json.RawMessage
	PlainKeys []string // as in Request (audit_non_hmac_response_keys)
	Warnings  []string
	LeaseID   string
	Wrap      *Wrap
	Status    int // HTTP status; 0 is not written
}

// Wrap is the wrapping token a response was replaced by.
type Wrap struct {
	Token           string // hashed
	Accessor        string // hashed, unless the device has hmac_accessor=false
	WrappedAccessor string
	CreationPath    string
	CreatedAt       time.Time
	TTL             time.Duration
}

// Event is a record on its way to the devices, as one of its two lines.
type Event struct {
	*Record
	OfResponse bool // the line of the response
	At         time.Time
	Headers    *Headers // the request headers to write
}

// Headers are the request headers that are recorded, by name.
type Headers []struct {
	name string // in lower case
	key  string // as in http.Header
	hmac bool
}

func NewHeaders(m map[string]bool) *Headers {
	h := make(Headers, len(m))
	for i, name := range slices.Sorted(maps.Keys(m)) {
		h[i].name, h[i].key, h[i].hmac = name, http.CanonicalHeaderKey(name), m[name]
	}
	return &h
}
