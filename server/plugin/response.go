package plugin

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/openbao/openbao/sdk/v2/logical"
	"github.com/openbao/openbao/sdk/v2/plugin/pb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// leaseKind is that of all leases of plugins: what they stand for is in what the plugin keeps with them.
const leaseKind = "plugin"

// response translates a response.
func (e *engine) response(req *engines.Request, in *pb.Response) (*engines.Response, error) {
	if in == nil {
		if req.Op == engines.Read || req.Op.Lists() {
			return nil, engines.NotFound("")
		}
		return nil, nil
	}
	var data map[string]json.RawMessage
	if text := in.GetData(); text != "" && text != "null" {
		if err := json.Unmarshal([]byte(text), &data); err != nil {
			return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin returned what cannot be read", Err: err}
		}
	}
	if text := ""; data["error"] != nil && len(data) <= 2 && json.Unmarshal(data["error"], &text) == nil {
		return nil, engines.Invalid("%s", text)
	}
	out := &engines.Response{Warnings: in.GetWarnings(), Header: responseHeaders(in.GetHeaders(), e.mount.ResponseHeaders)}
	if data["http_content_type"] != nil || data["http_status_code"] != nil {
		return out, raw(out, data)
	}
	if req.Op.Lists() && len(in.GetWarnings()) == 0 {
		if keys := []string{}; data["keys"] != nil && json.Unmarshal(data["keys"], &keys) == nil && len(keys) == 0 || len(data) == 0 {
			return nil, engines.NotFound("")
		}
	}
	if len(data) > 0 {
		out.Data = json.RawMessage(in.GetData())
	}
	if secret := in.GetSecret(); secret != nil {
		lease, err := leaseOf(secret)
		if err != nil {
			return nil, err
		}
		out.Lease = lease
	}
	if auth := in.GetAuth(); auth != nil {
		login, err := e.login(req.Path, auth)
		if err != nil {
			return nil, err
		}
		out.Auth = &engines.Auth{Login: login}
	}
	return out, nil
}

// raw is a response that is no envelope.
func raw(out *engines.Response, data map[string]json.RawMessage) error {
	var kind, body string
	code := http.StatusOK
	json.Unmarshal(data["http_content_type"], &kind) //nolint:errcheck // zero, then
	json.Unmarshal(data["http_status_code"], &code)  //nolint:errcheck // 200, then
	json.Unmarshal(data["http_raw_body"], &body)     //nolint:errcheck // empty, then
	text, err := base64.StdEncoding.DecodeString(body)
	if err != nil {
		text = []byte(body)
	}
	if code < 200 || code > 599 {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "the plugin returned a status that is none"}
	}
	out.Status, out.Raw = code, &engines.Raw{ContentType: kind, Body: text, Header: http.Header{
		"Content-Security-Policy": {"sandbox allow-scripts allow-forms"}, // a page of a plugin is none of the web UI's
		"X-Content-Type-Options":  {"nosniff"},
	}}
	return nil
}

func leaseOf(s *pb.Secret) (*engines.Lease, error) {
	o := s.GetLeaseOptions()
	if data := s.GetInternalData(); data == "" || data == "null" || data == "{}" { // nothing is to be revoked
		return &engines.Lease{TTL: time.Duration(o.GetTTL())}, nil
	}
	internal, err := json.Marshal(kept{Data: rawJSON(s.GetInternalData())})
	return &engines.Lease{
		TTL: time.Duration(o.GetTTL()), MaxTTL: time.Duration(o.GetMaxTTL()), Renewable: o.GetRenewable(), Kind: leaseKind, Internal: internal,
	}, err
}

// kept is what is stored with a lease or a token for the plugin.
type kept struct {
	Path string          `json:"path,omitempty"` // of the login
	Data json.RawMessage `json:"data,omitempty"`
	// Of logins.
	At          time.Time         `json:"at,omitzero"`
	DisplayName string            `json:"display_name,omitempty"`
	Policies    []string          `json:"policies,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Alias       string            `json:"alias,omitempty"`
	Period      time.Duration     `json:"period,omitempty"`
}

func rawJSON(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

func (e *engine) login(path string, a *pb.Auth) (*engines.Login, error) {
	policies := a.GetPolicies()
	token := tokenFields(a)
	internal, err := json.Marshal(kept{
		At: time.Now(), Path: path, Data: rawJSON(a.GetInternalData()), DisplayName: a.GetDisplayName(), Policies: policies, Metadata: a.GetMetadata(),
		Alias: a.GetAlias().GetName(), Period: time.Duration(a.GetPeriod()),
	})
	if err != nil {
		return nil, err
	}
	login := &engines.Login{
		DisplayName: a.GetDisplayName(), Metadata: a.GetMetadata(), Token: token, Internal: internal,
		NotRenewable: !a.GetLeaseOptions().GetRenewable(),
		Alias:        engines.Alias{Name: a.GetAlias().GetName(), Metadata: a.GetAlias().GetMetadata()},
	}
	for _, g := range a.GetGroupAliases() {
		login.GroupAliases = append(login.GroupAliases, g.GetName())
	}
	return login, token.Validate()
}

// tokenTypes are what the protocol's numbers of token types mean.
var tokenTypes = map[uint32]string{
	uint32(logical.TokenTypeDefault): "default", uint32(logical.TokenTypeService): "service", uint32(logical.TokenTypeBatch): "batch",
	uint32(logical.TokenTypeDefaultService): "default-service", uint32(logical.TokenTypeDefaultBatch): "default-batch",
}

func tokenFields(a *pb.Auth) engines.TokenFields {
	o := a.GetLeaseOptions()
	return engines.TokenFields{
		TokenTTL: engines.Duration(o.GetTTL()), TokenMaxTTL: engines.Duration(o.GetMaxTTL()), TokenPolicies: a.GetPolicies(),
		TokenBoundCIDRs: a.GetBoundCIDRs(), TokenExplicitMaxTTL: engines.Duration(a.GetExplicitMaxTTL()),
		TokenNoDefaultPolicy: a.GetNoDefaultPolicy(), TokenNumUses: int(a.GetNumUses()), TokenPeriod: engines.Duration(a.GetPeriod()),
		TokenType: tokenTypes[a.GetTokenType()],
	}
}

// secretRequest is one about a lease.
func (e *engine) secretRequest(operation string, l engines.LeaseRecord) (*pb.Request, error) {
	var k kept
	if err := json.Unmarshal(l.Internal, &k); err != nil {
		return nil, err
	}
	return &pb.Request{
		Operation: operation, Path: l.Path, MountPoint: e.mount.Path, MountType: e.mount.Type, MountAccessor: e.mount.Accessor,
		Secret: &pb.Secret{LeaseID: l.ID, InternalData: string(k.Data), LeaseOptions: &pb.LeaseOptions{
			TTL: int64(l.ExpiresAt.Sub(l.IssuedAt)), Renewable: true, IssueTime: timestamppb.New(l.IssuedAt),
		}},
	}, nil
}

// RevokeLease implements engines.Leaser.
func (e *engine) RevokeLease(ctx context.Context, m engines.Mount, l engines.LeaseRecord) error {
	_, err := e.lease(ctx, "revoke", l)
	if errors.Is(err, storage.ErrPrimaryOnly) && e.host.secondary() {
		_, err = e.host.opts.Node.LeaseAtPrimary(ctx, m, l, false)
	}
	return err
}

// RenewLease implements engines.Leaser.
func (e *engine) RenewLease(ctx context.Context, m engines.Mount, l engines.LeaseRecord) (engines.Lease, error) {
	out, err := e.lease(ctx, "renew", l)
	switch {
	case errors.Is(err, storage.ErrPrimaryOnly) && e.host.secondary():
		return e.host.opts.Node.LeaseAtPrimary(ctx, m, l, true)
	case err != nil:
		return engines.Lease{}, err
	case out == nil || out.Lease == nil:
		return engines.Lease{}, engines.Invalid("the plugin does not renew this lease")
	}
	return *out.Lease, nil
}

// lease sends a request about a lease.
func (e *engine) lease(ctx context.Context, operation string, l engines.LeaseRecord) (*engines.Response, error) {
	b, err := e.backend(ctx)
	if err != nil {
		return nil, err
	}
	req, err := e.secretRequest(operation, l)
	if err != nil {
		return nil, err
	}
	resp, err := e.send(ctx, b, req)
	if err != nil {
		return nil, err
	}
	return e.response(&engines.Request{Op: engines.Update}, resp)
}

// RenewLogin implements engines.Renewer.
func (e *engine) RenewLogin(ctx context.Context, _ engines.Mount, login engines.RenewedLogin) (engines.TokenFields, error) {
	b, err := e.backend(ctx)
	if err != nil {
		return engines.TokenFields{}, err
	}
	var k kept
	if err := json.Unmarshal(login.Internal, &k); err != nil {
		return engines.TokenFields{}, err
	}
	resp, err := e.send(ctx, b, &pb.Request{
		Operation: "renew", Path: k.Path, MountPoint: e.mount.Path, MountType: e.mount.Type, MountAccessor: e.mount.Accessor,
		EntityID: login.EntityID, Connection: connection(ctx, ""),
		Auth: &pb.Auth{
			InternalData: string(k.Data), DisplayName: k.DisplayName, Policies: k.Policies, TokenPolicies: login.Policies, Metadata: login.Metadata,
			EntityID: login.EntityID, Period: int64(k.Period),
			LeaseOptions: &pb.LeaseOptions{Renewable: true, IssueTime: timestamppb.New(k.At)},
			Alias:        &logical.Alias{Name: k.Alias, MountType: e.mount.Type, MountAccessor: e.mount.Accessor},
		},
	})
	if err != nil {
		return engines.TokenFields{}, err
	}
	out, err := e.response(&engines.Request{Op: engines.Update, Path: k.Path}, resp)
	switch {
	case err != nil:
		return engines.TokenFields{}, err
	case out == nil || out.Auth == nil:
		return engines.TokenFields{}, engines.Invalid("the plugin does not renew this login")
	}
	return out.Auth.Login.Token, nil
}
