package server

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
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
)

// What a secondary has its primary do, by kind of call.
const (
	callRequest = "request" // a request that writes shared data
	callLogin   = "login"   // to find or make the entity of a login
)

// remoteRequest is a request on its way to the primary. The secondary has authenticated its caller, whose token is its
// own; what the caller may do is decided again by the primary.
type remoteRequest struct {
	ID        string            `json:"id"`
	Op        engines.Operation `json:"op"`
	Namespace string            `json:"namespace,omitempty"`
	Path      string            `json:"path"`
	Body      json.RawMessage   `json:"body,omitempty"`
	Query     url.Values        `json:"query,omitempty"`
	Header    http.Header       `json:"header,omitempty"`
	Remote    netip.AddrPort    `json:"remote"`
	Caller    *remoteCaller     `json:"caller,omitempty"` // nil on unauthenticated paths
}

// remoteCaller is the token of a secondary, without what makes it one.
type remoteCaller struct {
	Accessor    string            `json:"accessor"`
	DisplayName string            `json:"display_name"`
	EntityID    string            `json:"entity_id,omitempty"`
	Namespace   string            `json:"namespace"` // id
	Policies    []string          `json:"policies"`
	Meta        map[string]string `json:"meta,omitempty"`
	Type        string            `json:"type"`
	CreatedAt   time.Time         `json:"created_at"`
}

// remoteAnswer is how the primary answers: with a failure that is an answer, or with what the engine said. Tokens, leases
// and wrapping are the secondary's.
type remoteAnswer struct {
	Failure  *remoteFailure  `json:"failure,omitempty"`
	Response *remoteResponse `json:"response,omitempty"` // nil without a failure: 204
}

type remoteFailure struct {
	Kind   engines.Kind `json:"kind"`
	Detail string       `json:"detail"`
	Header http.Header  `json:"header,omitempty"`
}

type remoteResponse struct {
	Data     json.RawMessage `json:"data,omitempty"`
	Top      map[string]any  `json:"top,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
	Status   int             `json:"status,omitempty"`
	Login    *engines.Login  `json:"login,omitempty"`
	Lease    *engines.Lease  `json:"lease,omitempty"`
}

// remoteLogin asks for the entity behind an alias. Mount says what the secondary knows of the mount: the primary knows the
// shared ones itself.
type remoteLogin struct {
	MountUUID    string        `json:"mount_uuid"`
	Accessor     string        `json:"accessor"`
	NamespaceID  string        `json:"namespace_id"`
	Local        bool          `json:"local,omitempty"`
	Alias        engines.Alias `json:"alias"`
	GroupAliases []string      `json:"group_aliases,omitempty"`
}

type remoteEntity struct {
	Failure  *remoteFailure `json:"failure,omitempty"`
	EntityID string         `json:"entity_id"`
}

// failureOf is how a failure travels; nil if it is not an answer and has to be an error of the call.
func failureOf(err error) *remoteFailure {
	var e *engines.Error
	switch {
	case errors.As(err, &e) && e.Kind != engines.KindInternal:
		return &remoteFailure{Kind: e.Kind, Detail: e.Detail, Header: e.Header}
	case err != nil && !errors.Is(err, storage.ErrUnavailable) && !errors.Is(err, storage.ErrReadOnly) && !errors.Is(err, storage.ErrOutcomeUnknown) && !errors.Is(err, storage.ErrSealed):
		return &remoteFailure{Kind: engines.KindInternal, Detail: "internal error on the primary"}
	}
	return nil
}

func (f *remoteFailure) error() error {
	if f.Kind == engines.KindInternal {
		return errors.New(f.Detail)
	}
	return &engines.Error{Kind: f.Kind, Detail: f.Detail, Header: f.Header}
}

// writes reports whether the operation is meant to change something.
func writes(op engines.Operation) bool {
	return op == engines.Create || op == engines.Update || op == engines.Patch || op == engines.Delete
}

// secondary reports whether this cluster follows a primary.
func (s *Server) secondary() bool { return s.replicated.Role().Mode == replicated.Secondary }

// primaryFirst reports whether a request goes to the primary without being tried here: what writes to a shared mount would
// otherwise be judged by data that may be behind. Of what the server itself answers much is this cluster's own, so that is
// tried here, and sent on when it turns out to write shared data. So are logins.
func (s *Server) primaryFirst(c *call) bool {
	if c.route == nil || c.mount == nil || c.mount.Local || !s.secondary() {
		return false
	}
	switch {
	case c.has(engines.Primary):
		return true
	case c.has(engines.ClusterLocal), c.open():
		return false
	}
	return writes(c.Op) && c.mount.Type != "system" && c.mount.Type != "token"
}

// visibleWait is how long the answer of a forwarded write waits until the write can be read here.
const visibleWait = 2 * time.Second

// viaPrimary has a request of a secondary's client done by the primary.
func (s *Server) viaPrimary(ctx context.Context, c *call) (*engines.Response, error) {
	if c.inner.RawBody != nil {
		return nil, engines.Invalid("this has to be sent to the primary cluster")
	}
	r := remoteRequest{
		ID: c.ID, Op: c.Op, Namespace: c.Namespace, Path: c.Request.Path, Body: c.Body, Query: c.Query,
		Header: passedOn(c.Header), Remote: c.Remote,
	}
	if t := c.token; t != nil && !c.open() {
		r.Caller = &remoteCaller{
			Accessor: t.Accessor, DisplayName: t.DisplayName, EntityID: t.EntityID, Namespace: t.Namespace,
			Policies: t.Policies, Meta: t.Meta, Type: t.Type, CreatedAt: t.CreatedAt,
		}
	}
	var answer remoteAnswer
	visible, err := s.callPrimary(ctx, callRequest, r, &answer)
	if err != nil {
		return nil, err
	}
	if answer.Failure != nil {
		return nil, answer.Failure.error()
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

// passedOn are the headers that an engine may look at. Tokens and codes stay here.
func passedOn(h http.Header) http.Header {
	out := h.Clone()
	for _, name := range []string{"X-Vault-Token", "Authorization", "Cookie", "X-Vault-Mfa", "X-Vault-Index", wrapHeader} {
		out.Del(name)
	}
	return out
}

// callPrimary sends a call and waits a moment until its effect is visible here.
func (s *Server) callPrimary(ctx context.Context, kind string, in, out any) (visible bool, err error) {
	payload, err := json.Marshal(in)
	if err != nil {
		return false, err
	}
	answer, at, err := s.link.Call(ctx, kind, payload)
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
	return s.link.AwaitCursor(wait, at) == nil, nil
}

func (r *remoteResponse) response() *engines.Response {
	if r == nil {
		return nil
	}
	out := &engines.Response{Top: r.Top, Warnings: r.Warnings, Status: r.Status, Lease: r.Lease}
	if r.Data != nil {
		out.Data = r.Data
	}
	if r.Login != nil {
		out.Auth = &engines.Auth{Login: r.Login}
	}
	return out
}

func remoteOf(r *engines.Response) (*remoteResponse, error) {
	if r == nil {
		return nil, nil
	}
	if r.Raw != nil || r.Held != nil || r.Wrap != nil || r.Auth != nil && r.Auth.Login == nil {
		return nil, engines.Invalid("this has to be sent to the primary cluster")
	}
	data, err := r.EncodedData()
	if err != nil {
		return nil, err
	}
	out := &remoteResponse{Data: data, Top: r.Top, Warnings: r.Warnings, Status: r.Status, Lease: r.Lease}
	if r.Auth != nil {
		out.Login = r.Auth.Login
	}
	return out, nil
}
