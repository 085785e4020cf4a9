// Package remote has what clusters ask of each other for their clients: the messages in which a secondary passes requests and logins to
// its primary, the primary as the secondary sees it, and the scope that a secondary has there. How the primary runs what it is asked is
// in server/pipeline; how the messages travel is in package replication.
package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// What a secondary has its primary do, by kind of call.
const (
	CallRequest = "request" // a request that writes shared data
	CallLogin   = "login"   // to find or make the entity of a login
	CallLease   = "lease"   // to revoke or renew at an engine, which writes shared data, what a lease stands for
)

// Request is a request on its way to the primary. The secondary has authenticated its caller, whose token is its
// own; what the caller may do is decided again by the primary.
type Request struct {
	ID        string            `json:"id"`
	Op        engines.Operation `json:"op"`
	Namespace string            `json:"namespace,omitempty"`
	Path      string            `json:"path"`
	Body      json.RawMessage   `json:"body,omitempty"`
	Query     url.Values        `json:"query,omitempty"`
	Header    http.Header       `json:"header,omitempty"`
	Remote    netip.AddrPort    `json:"remote"`
	Caller    *Caller           `json:"caller,omitempty"` // nil on unauthenticated paths
	// Certificates are those that the client has shown to the secondary, DER.
	Certificates [][]byte `json:"certificates,omitempty"`
}

// Caller is the token of a secondary, without what makes it one.
type Caller struct {
	Accessor    string            `json:"accessor"`
	DisplayName string            `json:"display_name"`
	EntityID    string            `json:"entity_id,omitempty"`
	Namespace   string            `json:"namespace"` // id
	Policies    []string          `json:"policies"`
	Meta        map[string]string `json:"meta,omitempty"`
	Type        string            `json:"type"`
	CreatedAt   time.Time         `json:"created_at"`
}

// Answer is how the primary answers: with a failure that is an answer, or with what the engine said. Tokens, leases
// and wrapping are the secondary's.
type Answer struct {
	Failure  *Failure  `json:"failure,omitempty"`
	Response *Response `json:"response,omitempty"` // nil without a failure: 204
}

// Failure is an answer that is an error.
type Failure struct {
	Kind   engines.Kind `json:"kind"`
	Detail string       `json:"detail"`
	Header http.Header  `json:"header,omitempty"`
}

// Response is what the engine said.
type Response struct {
	Data     json.RawMessage `json:"data,omitempty"`
	Top      map[string]any  `json:"top,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
	Status   int             `json:"status,omitempty"`
	Login    *engines.Login  `json:"login,omitempty"`
	Lease    *engines.Lease  `json:"lease,omitempty"`
	Header   http.Header     `json:"header,omitempty"`
	Raw      *Raw            `json:"raw,omitempty"`
}

// Raw is an engines.Raw that is no stream.
type Raw struct {
	ContentType string      `json:"content_type"`
	Header      http.Header `json:"header,omitempty"`
	Body        []byte      `json:"body"`
}

// Login asks for the entity behind an alias. Mount says what the secondary knows of the mount: the primary knows the
// shared ones itself.
type Login struct {
	MountUUID    string        `json:"mount_uuid"`
	Accessor     string        `json:"accessor"`
	NamespaceID  string        `json:"namespace_id"`
	Local        bool          `json:"local,omitempty"`
	Alias        engines.Alias `json:"alias"`
	GroupAliases []string      `json:"group_aliases,omitempty"`
}

// Entity is how the primary answers a Login.
type Entity struct {
	Failure  *Failure `json:"failure,omitempty"`
	EntityID string   `json:"entity_id"`
}

// Lease is a lease of the secondary, of a shared mount.
type Lease struct {
	MountUUID   string              `json:"mount_uuid"`
	Accessor    string              `json:"accessor"`
	NamespaceID string              `json:"namespace_id"`
	Renew       bool                `json:"renew,omitempty"` // else it is to be revoked
	Record      engines.LeaseRecord `json:"record"`
}

// LeaseAnswer is how the primary answers a Lease.
type LeaseAnswer struct {
	Failure *Failure      `json:"failure,omitempty"`
	Terms   engines.Lease `json:"terms,omitzero"` // of a renewal
}

// FailureOf is how a failure travels; nil if it is not an answer and has to be an error of the call.
func FailureOf(err error) *Failure {
	var e *engines.Error
	switch {
	case errors.As(err, &e) && e.Kind != engines.KindInternal:
		return &Failure{Kind: e.Kind, Detail: e.Detail, Header: e.Header}
	case err != nil && !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrReadOnly) && !errors.Is(err, storage.ErrOutcomeUnknown) && !errors.Is(err, storage.ErrSealed):
		return &Failure{Kind: engines.KindInternal, Detail: "internal error on the primary"}
	}
	return nil
}

// Err is the failure as the secondary's client gets it.
func (f *Failure) Err() error {
	if f.Kind == engines.KindInternal {
		return errors.New(f.Detail)
	}
	return &engines.Error{Kind: f.Kind, Detail: f.Detail, Header: f.Header}
}

// Primary is the primary cluster as a secondary sees it.
type Primary struct{ Link traffic.Caller }

// Request has a request of a secondary's client done by the primary.
func (p Primary) Request(ctx context.Context, r Request) (*engines.Response, error) {
	r.Header = passedOn(r.Header)
	var answer Answer
	visible, err := p.call(ctx, CallRequest, r, &answer)
	if err != nil {
		return nil, err
	}
	if answer.Failure != nil {
		return nil, answer.Failure.Err()
	}
	response := answer.Response.response()
	if !visible {
		if response == nil {
			response = &engines.Response{}
		}
		response.Warnings = append(response.Warnings, "written on the primary, but not yet readable on this secondary")
	}
	return response, nil
}

// Login has the primary find or make the entity of a login on this secondary, and returns its id.
func (p Primary) Login(ctx context.Context, l Login) (entityID string, err error) {
	var answer Entity
	visible, err := p.call(ctx, CallLogin, l, &answer)
	switch {
	case err != nil:
		return "", err
	case answer.Failure != nil:
		return "", answer.Failure.Err()
	case !visible:
		return "", &engines.Error{Kind: engines.KindUnavailable, Detail: "the login is known to the primary, but has not arrived on this secondary yet: try again"}
	}
	return answer.EntityID, nil
}

// Lease has the primary's engine renew or revoke what a lease stands for.
func (p Primary) Lease(ctx context.Context, l Lease) (engines.Lease, error) {
	var answer LeaseAnswer
	if _, err := p.call(ctx, CallLease, l, &answer); err != nil {
		return engines.Lease{}, err
	}
	if answer.Failure != nil {
		return engines.Lease{}, answer.Failure.Err()
	}
	return answer.Terms, nil
}

// visibleWait is how long the answer of a forwarded write waits until the write can be read here.
const visibleWait = 2 * time.Second

// passedOn are the headers that an engine may look at. Tokens and codes stay here.
func passedOn(h http.Header) http.Header {
	out := h.Clone()
	for _, name := range []string{"X-Vault-Token", "Authorization", "Cookie", "X-Vault-Mfa", "X-Vault-Index", "X-Vault-Wrap-Ttl"} {
		out.Del(name)
	}
	return out
}

// call sends a call and waits a moment until its effect is visible here.
func (p Primary) call(ctx context.Context, kind string, in, out any) (visible bool, err error) {
	payload, err := json.Marshal(in)
	if err != nil {
		return false, err
	}
	answer, at, err := p.Link.Call(ctx, kind, payload)
	switch {
	case errors.Is(err, storage.ErrUnavailable):
		return false, &engines.Error{Kind: engines.KindUnavailable, Err: err,
			Detail: "the primary cluster cannot be reached: shared data can be read on this secondary, but not written"}
	case err != nil:
		return false, err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return false, fmt.Errorf("decoding the primary's answer: %w", err)
	}
	wait, cancel := context.WithTimeout(ctx, visibleWait)
	defer cancel()
	return p.Link.AwaitCursor(wait, at) == nil, nil
}

func (r *Response) response() *engines.Response {
	if r == nil {
		return nil
	}
	out := &engines.Response{Top: r.Top, Warnings: r.Warnings, Status: r.Status, Lease: r.Lease, Header: r.Header}
	if r.Data != nil {
		out.Data = r.Data
	}
	if r.Raw != nil {
		out.Raw = &engines.Raw{ContentType: r.Raw.ContentType, Header: r.Raw.Header, Body: r.Raw.Body}
	}
	if r.Login != nil {
		out.Auth = &engines.Auth{Login: r.Login}
	}
	return out
}

// ResponseOf is how an engine's response travels.
func ResponseOf(r *engines.Response) (*Response, error) {
	if r == nil {
		return nil, nil
	}
	if r.Raw != nil && r.Raw.Stream != nil || r.Held != nil || r.Wrap != nil || r.Auth != nil && r.Auth.Login == nil {
		return nil, engines.Invalid("this has to be sent to the primary cluster")
	}
	data, err := r.EncodedData()
	if err != nil {
		return nil, err
	}
	out := &Response{Data: data, Top: r.Top, Warnings: r.Warnings, Status: r.Status, Lease: r.Lease, Header: r.Header}
	if r.Raw != nil {
		out.Raw = &Raw{ContentType: r.Raw.ContentType, Header: r.Raw.Header, Body: r.Raw.Body}
	}
	if r.Auth != nil {
		out.Login = r.Auth.Login
	}
	return out, nil
}
