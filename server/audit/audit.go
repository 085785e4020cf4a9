// Package audit writes the audit log: one JSON line for each request before it runs, and one for each response
// before it leaves, on every enabled device.
//
// It promises to fail closed: while any device is enabled, a request whose record reached none of them is an
// error, and the server must not go on. Every text value of request and response bodies, and every token, is
// written as "hmac-sha256:<hex>" under a key of its own for each device, so a log shows that two values are
// equal, and AuditHash finds a known one, but it reveals none. Numbers, booleans, null and the names of fields
// stay readable.
//
// It assumes that the caller hands over bodies as they travel, as raw JSON: values are replaced while scanning,
// and nothing is decoded twice. Start reading at Record, then Broker, then Table, which keeps the enabled
// devices, and the request headers to record, in storage.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// Sentinels. Use errors.Is.
var (
	// ErrNotRecorded means that no enabled device took the record: the request must fail.
	ErrNotRecorded = errors.New("no audit device could record this")
	// ErrNoDevice means that no device is enabled at this path.
	ErrNoDevice = errors.New("no such audit device")
)

// Record is what the audit log says of one request. The same Record, with Response or Error filled, serves for
// both lines. Nothing in it is modified or kept.
type Record struct {
	Time     time.Time // zero: now
	Auth     *Auth     // of the caller; nil without a valid token
	Request  Request
	Response *Response // only used by Broker.Response; nil when there is none
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

// Device stores lines. Safe for concurrent use.
type Device interface {
	// Write stores one line, which ends in a newline and may not be kept, completely or returns an error.
	// It does not give up because ctx ended: a record is due even if the client is gone.
	Write(ctx context.Context, line []byte) error
	// Reload reopens what an operator may have moved away. On error the device goes on as before.
	Reload() error
	Close() error
}
