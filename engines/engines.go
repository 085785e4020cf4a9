// Package engines holds the contract between the server and everything that answers requests below a mount:
// secrets engines, auth methods, and the server's own sys paths.
//
// An engine declares its paths once, as data (see Router and On): pattern, operation, help, a typed input
// struct whose tags name, describe, default and require each field, and flags. From that one declaration
// come routing, decoding, validation, the OpenAPI document and path help. The server authenticates,
// authorises and audits before an engine sees a request. Start reading at Engine, then Request, then On.
package engines

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/engines/input/jsontext"
	"github.com/coffer-project/coffer/storage"
)

// Operation is what a request asks for. Create and Update are one operation in a Router (Update); they
// differ only for policies, by what Route.Exists answers.
type Operation string

const (
	Read   Operation = "read"
	Create Operation = "create"
	Update Operation = "update"
	Patch  Operation = "patch"
	Delete Operation = "delete"
	List   Operation = "list"
	Scan   Operation = "scan" // List of everything below a path, however deep; policies allow it apart
)

// Lists reports whether it lists names: List and Scan.
func (o Operation) Lists() bool { return o == List || o == Scan }

// Engine answers the requests of one mount. It is built by a Factory for each mount on each node, and all
// its durable state is in the stores of the request: an engine that keeps state in memory drops it in
// Invalidate. Safe for concurrent use.
type Engine interface {
	// Router returns the engine's paths, always the same ones.
	Router() *Router
}

// Invalidator is an Engine that caches. Changed is called, on every node, for each applied change to keys
// of this mount, with the engine's relative keys; reset means that anything may have changed. It runs on
// the apply path: it must not block or read the store.
type Invalidator interface {
	Changed(class storage.Class, keys []storage.Key, reset bool)
}

// Initializer is an Engine with something to write when its mount is enabled. It runs once, on the active
// node, before the mount takes requests; if it fails, the mount is not enabled.
type Initializer interface {
	Initialize(ctx context.Context, m Mount) error
}

// Renewer is an auth method that has a say when a token it issued is renewed: it returns what governs the token
// now, or an error that refuses the renewal, for instance because the user or role is gone. Methods that are not
// Renewers have their tokens renewed by the terms of the login.
type Renewer interface {
	RenewLogin(ctx context.Context, m Mount, login RenewedLogin) (TokenFields, error)
}

// RoleNamer is an auth method that can tell which role a login asks for, before anything is checked; "" if it is none.
// Quotas of roles need it.
type RoleNamer interface {
	LoginRole(ctx context.Context, req *Request) string
}

// RenewedLogin is what a Renewer needs to know of the token.
type RenewedLogin struct {
	Role     string // as in Login
	Internal json.RawMessage
	Metadata map[string]string
	Policies []string // of the token
	EntityID string
	// Waiting says that there is no token yet: the login waits for its second factor, and may be refused for anything that a
	// new login would be refused for.
	Waiting bool
}

// Leaser is an Engine that hands out leases with a Kind. Both methods run on the active node.
type Leaser interface {
	// RevokeLease ends what the lease stands for. It may be called again after it succeeded, or after a crash in
	// its middle, and must then succeed too.
	RevokeLease(ctx context.Context, m Mount, l LeaseRecord) error
	// RenewLease is asked before a lease is renewed for what its terms are now; its error refuses the renewal.
	RenewLease(ctx context.Context, m Mount, l LeaseRecord) (Lease, error)
}

// Worker is an Engine with work that no request asks for: what is due by its clock, or left to undo after a crash. Work is
// called on the active node every WorkInterval, for a mount never twice at once. owner reports whether this cluster writes
// the mount's Storage; the secondaries of a shared mount may only see to their ClusterStorage. Work returns when nothing
// is due any more, or soon after ctx has ended; its error is logged.
type Worker interface {
	Work(ctx context.Context, m Mount, owner bool) error
}

// Upgrader is an Engine that works with what the engine of another "version", a mount option, has stored. Upgrade is called
// before the option of a mount changes; an error keeps it as it was.
type Upgrader interface {
	Upgrade(ctx context.Context, m Mount) error
}

// Leaver is an Engine with something to undo, outside of what is stored, before its mount goes: what it has made that has no
// lease yet, for instance. Leave runs when all leases have been revoked and no request is under way. Its error keeps the
// mount, until a later attempt.
type Leaver interface {
	Leave(ctx context.Context, m Mount) error
}

// Documenter is an Engine that describes its paths itself, since its Router does not know them. On a node where it does not run both
// methods return storage.ErrReadOnly.
type Documenter interface {
	// PathHelp returns a text for people about a path, about the mount for "".
	PathHelp(ctx context.Context, path string) (string, error)
	// Description returns an OpenAPI document, as JSON, of the paths relative to the mount. Nothing in it has been checked.
	Description(ctx context.Context) ([]byte, error)
}

// WorkInterval is how often a Worker is called.
const WorkInterval = 10 * time.Second

// LeaseRecord is what an engine gets back of a Lease.
type LeaseRecord struct {
	ID       string
	Kind     string
	Path     string // of the request that made it, relative to the mount
	Internal json.RawMessage
	IssuedAt time.Time
	// ExpiresAt is when it ends (or ended).
	ExpiresAt time.Time
}

// Factory builds the engine of one mount.
type Factory func(Mount) (Engine, error)

// Mount is what an engine knows about the place it is mounted at.
type Mount struct {
	UUID      string
	Accessor  string
	Type      string // "kv", "approle", …
	Path      string // relative to its namespace, ends in "/"; auth methods begin with "auth/"
	Namespace string // namespace path, "" for root, else ends in "/"
	// NamespaceID is the namespace's id, "root" for root.
	NamespaceID string
	Options     map[string]string
	Local       bool // data stays in this cluster
	// DefaultLeaseTTL and MaxLeaseTTL are the effective ones, system defaults already applied.
	DefaultLeaseTTL time.Duration
	MaxLeaseTTL     time.Duration
	// Lockout is the effective one of a Locker.
	Lockout Lockout
	// RequestHeaders and ResponseHeaders are those that the operator lets an engine of a program of its own see, and set.
	RequestHeaders, ResponseHeaders []string
	// Storage is the mount's data: class s, or class l when Local. ClusterStorage is always class l: what
	// belongs to this cluster even when the mount is shared.
	Storage        storage.Store
	ClusterStorage storage.Store
	// IdentityToken returns a token of this server's issuer, by which a provider knows the mount: its subject has the accessor. The audience
	// is whom it is for; ttl 0 is an hour. An error of KindInvalid is about the arguments. nil: there is no issuer.
	IdentityToken func(ctx context.Context, audience string, ttl time.Duration) (Sensitive, error)
}

// Request is one request to one engine. Everything in it has been checked by the server: the path has no
// NUL, no "." or ".." segment, no empty inner segment and is valid UTF-8; the body is one JSON object or
// empty.
type Request struct {
	ID   string // request id, also in the audit log
	Op   Operation
	Path string // relative to the mount, no leading slash; LIST paths end in "/" or are ""

	Mount  Mount
	Caller Caller

	Body     json.RawMessage // nil when absent or the literal null
	Query    url.Values
	Header   http.Header // read only
	RemoteIP netip.Addr

	// WrapTTL is the lifetime of the wrapping token that the client wants the answer in; 0: no wrapping.
	WrapTTL time.Duration

	// RawBody is the unread body of routes with the RawBody flag, else nil.
	RawBody interface{ Read([]byte) (int, error) }

	// LoginID is set by an auth method whose logins take several requests: the same for all of them, no secret, and in the
	// clear in their audit records.
	LoginID string

	given  []string          // which input fields came with the request
	nulls  []string          // which came as null
	params map[string]string // path parameters of the matched route
}

// Given reports whether the input field came in the body or the query (with any value but null). Partial
// updates use it to tell "absent" from "set to the zero value". Path parameters do not count.
func (r *Request) Given(field string) bool { return slices.Contains(r.given, field) }

// Null reports whether the field came in the body as null, which a merge patch means as "back to the default".
// For everything else a null is an absent field.
func (r *Request) Null(field string) bool { return slices.Contains(r.nulls, field) }

// Param returns a path parameter of the matched route, or "". It is there for Route.Exists, which runs before
// the input is decoded; handlers have it in their input struct.
func (r *Request) Param(name string) string { return r.params[name] }

// Caller is who asks. The zero Caller is a client without a token, on an unauthenticated path.
type Caller struct {
	Accessor    string
	DisplayName string
	EntityID    string
	Policies    []string // of the token and, in the token's namespace, of its entity
	// TokenPolicies are those of the token alone.
	TokenPolicies []string
	Root          bool
	// NamespaceID is the id of the token's namespace: that of the request or one above it, except for what an
	// entity's groups elsewhere allow.
	NamespaceID string
	// Access answers what the caller may do; nil for a client without a token, which may do nothing more.
	Access Access
	// Identity returns what a template such as "identity.entity.name" stands for with this caller, and whether it stands for
	// anything. The names are those of policies. nil for a caller without an entity.
	Identity func(name string) (value string, ok bool)
	// Mounts reports whether a mount is there for the caller, by UUID; nil: all are. A caller that comes through another cluster
	// sees what that cluster has. See Sees.
	Mounts func(uuid string) bool
	// TokenKey identifies the token without being it: the keyed hash it is stored under. Never shown.
	TokenKey string
	// Token is the presented token itself, for the token paths that answer it (lookup-self). Sensitive.
	Token Sensitive
}

// Sees reports whether a mount is there for the caller, whatever they may do with it.
func (c *Caller) Sees(uuid string) bool { return c.Mounts == nil || c.Mounts(uuid) }

// Access answers what a caller may do. Paths are relative to the namespace of the request, without leading slash.
type Access interface {
	// Allowed reports whether the operation is allowed on path, whatever the body.
	Allowed(op Operation, path string) bool
	// AllowedAlways reports whether the operation is allowed on path with every body, and without response wrapping.
	AllowedAlways(op Operation, path string) bool
	// Sudo reports whether the caller has the sudo capability on path.
	Sudo(path string) bool
	// AnyUnder reports whether any operation is allowed on any path that begins with prefix.
	AnyUnder(prefix string) bool
}

// Response is the answer to a request. A nil *Response without an error is 204 No Content.
type Response struct {
	// Data becomes "data". Anything encoding/json takes; a json.RawMessage goes out as it is.
	Data any
	// Top is merged into the top level of the envelope beside "data", for the few sys paths whose clients
	// read it there.
	Top      map[string]any
	Warnings []string
	Auth     *Auth
	// Accessor is that of a credential in Data: who wraps the response can withdraw it without unwrapping.
	Accessor string
	// Lease asks for a lease; Held tells of one that is there already.
	Lease *Lease
	Held  *HeldLease
	// Wrap is where the rest of the answer is, if the client wanted it wrapped. The server fills it.
	Wrap *WrapInfo
	// Status overrides the status code (default 200, or 204 for an empty response). Data is still sent,
	// for instance with the 404 of a soft-deleted secret.
	Status int
	// Header are further headers; nil: none. Those that the server sets win.
	Header http.Header
	// Raw, if set, is sent instead of the envelope.
	Raw *Raw
}

// Listed answers a list, which a storage.Reader gave or failed to give: the names under "keys", and NotFound if there
// are none.
func Listed(names []string, err error) (*Response, error) {
	switch {
	case err != nil:
		return nil, err
	case len(names) == 0:
		return nil, NotFound("")
	}
	return &Response{Data: map[string]any{"keys": names}}, nil
}

// Raw is a body that is not an envelope: metrics, HTML, a snapshot.
type Raw struct {
	ContentType string
	Header      http.Header
	Body        []byte
	// Stream, if set, is called to write the body after the header is sent; Body is ignored.
	Stream func(ctx context.Context, w interface{ Write([]byte) (int, error) }) error
}

// Lease asks the server to hand out Data with a lease. Without a Kind only the duration is told: nothing is stored,
// and there is nothing to renew or revoke.
type Lease struct {
	TTL       time.Duration // 0: the mount's default
	MaxTTL    time.Duration // counted from the issue; 0: the mount's maximum
	Renewable bool
	// Kind names what was issued, for the engine, which then must be a Leaser.
	Kind string
	// Internal is kept with the lease and given back to the engine. It is never shown.
	Internal json.RawMessage
	// ID is what clients get without a Kind, "" if nothing; it leads to no lease. Some take a response without one for empty.
	ID string
	// Done are keys of the mount's ClusterStorage that go in the very commit that stores the lease: the engine's note of
	// what it has made, which from then on the lease stands for.
	Done []storage.Key
}

// WrapInfo stands for a response that is kept for the holder of the wrapping token.
type WrapInfo struct {
	Token           string `json:"token"`
	Accessor        string `json:"accessor"`
	TTL             int64  `json:"ttl"` // seconds
	CreationTime    string `json:"creation_time"`
	CreationPath    string `json:"creation_path"`
	WrappedAccessor string `json:"wrapped_accessor,omitempty"` // of the token or other credential inside
}

// EncodedData returns Data as it goes out: JSON, nil if there is none.
func (r *Response) EncodedData() (json.RawMessage, error) {
	switch data := r.Data.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return data, nil
	default:
		return jsontext.Append(nil, data)
	}
}

// HeldLease is what clients are told of a lease: one that was renewed, for instance, or taken out of a wrapping token.
type HeldLease struct {
	ID        string
	Seconds   int64
	Renewable bool
}

// Auth is a successful login or a new token. An auth method fills Login only, and the server issues the token; the
// token paths fill the rest themselves.
type Auth struct {
	ClientToken      string            `json:"client_token"`
	Accessor         string            `json:"accessor"`
	Policies         []string          `json:"policies"`
	TokenPolicies    []string          `json:"token_policies"`
	IdentityPolicies []string          `json:"identity_policies,omitempty"`
	Metadata         map[string]string `json:"metadata"`
	LeaseDuration    int64             `json:"lease_duration"` // seconds
	Renewable        bool              `json:"renewable"`
	EntityID         string            `json:"entity_id"`
	TokenType        string            `json:"token_type"`
	Orphan           bool              `json:"orphan"`
	MFARequirement   any               `json:"mfa_requirement"`
	NumUses          int               `json:"num_uses"`

	// DisplayName is the token's, for the audit record.
	DisplayName string `json:"-"`
	// Login is how an auth method fills an Auth: the server makes the token, and everything above, from it.
	Login *Login `json:"-"`
}

// Login is what an auth method has found out about a user or workload that it identified.
type Login struct {
	// DisplayName is put behind the mount's name: "bob" becomes "userpass-bob".
	DisplayName string
	// Alias is who this is within the mount; with an empty Name the token gets no entity.
	Alias Alias
	// GroupAliases are the names of the groups that the method says the user is in. The memberships in external
	// groups are made to fit them.
	GroupAliases []string
	// Metadata is shown with the token and written to the audit log.
	Metadata map[string]string
	Token    TokenFields
	// Role and Internal are kept with the token, for RenewLogin. Internal is never shown.
	Role     string
	Internal json.RawMessage
	// NotRenewable makes a token that cannot be renewed.
	NotRenewable bool
}

// Alias is a name of a user or workload at an auth method. Metadata is replaced at every login.
type Alias struct {
	Name     string
	Metadata map[string]string
}

// The types of fields of input structs, besides those of Go. Package input says how they are read.
type (
	Duration   = input.Duration
	StringList = input.StringList
	StringMap  = input.StringMap
	Object     = input.Object
	Sensitive  = input.Sensitive
)
