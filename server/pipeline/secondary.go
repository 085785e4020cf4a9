package pipeline

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/record"
	"github.com/coffer-project/coffer/server/remote"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/rights"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// ServeSecondary does what a secondary asks of this primary. The index covers what was written. The caller has made
// sure which secondary it is; what it may reach is looked at here, at every call.
func (p *Pipeline) ServeSecondary(ctx context.Context, peer roles.Peer, kind string, payload []byte) (answer []byte, at storage.Index, err error) {
	if p.Node.Sealed() {
		return nil, 0, storage.ErrSealed
	}
	if err := p.Node.ReadIndex(ctx); err != nil {
		return nil, 0, err
	}
	role, err := p.Replicated.Current(ctx)
	if err != nil {
		return nil, 0, err
	}
	if role.Mode != roles.Primary || role.Fenced != 0 {
		return nil, 0, fmt.Errorf("%w: this cluster is no primary (any more)", storage.ErrUnavailable)
	}
	units, _, err := p.Replicated.Scope(ctx, peer)
	if err != nil {
		return nil, 0, err
	}
	scope := remote.Scope{Units: units, Mounts: p.Mounts, Namespaces: p.Namespaces}
	var out any
	switch kind {
	case remote.CallRequest:
		out, err = p.requestOf(ctx, peer, scope, payload)
	case remote.CallLogin:
		out, err = p.loginOf(ctx, peer, scope, payload)
	case remote.CallLease:
		out, err = p.leaseOf(ctx, peer, scope, payload)
	default:
		return p.Replicated.Answer(ctx, peer, kind, payload)
	}
	if err != nil {
		return nil, 0, err
	}
	answer, err = json.Marshal(out)
	return answer, p.Link.Head(), err
}

// maxIDBytes is the longest id of a request that a secondary passes on: it gets into logs and the audit log.
const maxIDBytes = 256

// requestOf runs a request of a secondary's client. Where a secondary may not reach, it is told that nothing is there.
func (p *Pipeline) requestOf(ctx context.Context, peer roles.Peer, scope remote.Scope, payload []byte) (*remote.Answer, error) {
	var r remote.Request
	if err := json.Unmarshal(payload, &r); err != nil {
		return nil, engines.Invalid("the request of the secondary cannot be read")
	}
	// It has not come through an API of ours.
	if len(r.ID) > maxIDBytes || len(r.Namespace) > maxPathBytes {
		return nil, engines.Invalid("the request of the secondary has an id or a namespace that is too long")
	}
	if err := CheckPath(r.Path); err != nil {
		return nil, err
	}
	c := &call{Request: &Request{
		ID: r.ID, Op: r.Op, Namespace: r.Namespace, Path: r.Path, Body: r.Body, Query: r.Query, Header: r.Header, Remote: r.Remote,
	}}
	if c.Header == nil {
		c.Header = map[string][]string{}
	}
	for _, der := range r.Certificates {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, engines.Invalid("the request of the secondary has a certificate that cannot be read")
		}
		c.Certificates = append(c.Certificates, cert)
	}
	ctx = engines.WithCertificates(ctx, c.Certificates)
	response, err := p.handleRemote(ctx, c, peer, scope, r.Caller)
	if failure := remote.FailureOf(err); failure != nil {
		if failure.Kind == engines.KindInternal {
			p.Logger.Error("a request of a secondary failed", "request_id", c.ID, "secondary", peer.ID, "err", err)
		}
		return &remote.Answer{Failure: failure}, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := remote.ResponseOf(response)
	if failure := remote.FailureOf(err); failure != nil {
		return &remote.Answer{Failure: failure}, nil
	}
	return &remote.Answer{Response: out}, err
}

// handleRemote is Handle for a caller whose token another cluster has looked at.
func (p *Pipeline) handleRemote(ctx context.Context, c *call, peer roles.Peer, scope remote.Scope, caller *remote.Caller) (*engines.Response, error) {
	own, _ := p.systemRoute(c.Request)
	if err := p.resolve(ctx, c, own); err != nil {
		return nil, err
	}
	c.flight.ID, c.flight.Op, c.flight.Path, c.flight.Remote = c.ID, c.Op, c.Request.Path, c.Remote
	p.Flights.Begin(&c.flight)
	defer p.Flights.End(&c.flight)
	denied := p.admitRemote(ctx, c, scope, caller)
	if denied != nil && !answered(denied) {
		return nil, denied
	}
	c.record.Request.ForwardedFrom = "secondary " + peer.ID
	if err := p.Audit.Request(ctx, p.describe(c, denied)); err != nil {
		return nil, p.unrecorded("request refused: it could not be recorded", c.ID, err)
	}
	var response *engines.Response
	err := denied
	if err == nil {
		if err = c.hold(); err == nil {
			defer c.release()
			response, err = p.engine(p.inRoom(ctx, c), c)
		}
	}
	if err := p.recordResponse(ctx, c, response, err); err != nil {
		return nil, err
	}
	return response, err
}

// admitRemote authorises a request of a secondary: within the secondary's scope, by the policies that the token names as
// they are here, and nothing that needs more than policies. Root of a secondary is root over the data of mounts only: it
// can neither make itself more here nor reach what concerns this cluster.
func (p *Pipeline) admitRemote(ctx context.Context, c *call, scope remote.Scope, caller *remote.Caller) error {
	if c.mount == nil || c.mount.Mount.Local && c.mount.Type != "cubbyhole" || !scope.Mount(c.mount.UUID) || !scope.Namespace(c.ns.ID) {
		return noRoute(c.path)
	}
	if c.route == nil {
		return c.miss
	}
	const own = engines.ClusterLocal | engines.AnyNode | engines.WorksSealed | engines.RawBody | engines.Sudo
	if c.flags&own != 0 || c.flags.Has(engines.RootNamespace) && !c.flags.Has(engines.Primary) || c.mount.Type == "cubbyhole" || c.mount.Type == "token" && !c.flags.Has(engines.Primary) && !sharedTokenPath(c) {
		return engines.Denied(errors.New("not for secondaries: it has to be sent to this cluster"))
	}
	if c.mount.Builtin() && !writes(c.Op) && !c.flags.Has(engines.Primary) {
		return engines.Denied(errors.New("a secondary reads its own copy"))
	}
	if c.mount.Type == "system" {
		if err := scope.Target(ctx, c.ns.ID, c.Op, c.route.Pattern, c.params["path"]); err != nil {
			return err
		}
	}
	if c.ns.Locked() {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "API access to this namespace has been locked by an administrator"}
	}
	if caller == nil {
		if c.flags.Has(engines.Unauthenticated) {
			return nil
		}
		return engines.Denied(errors.New("the secondary named no caller"))
	}
	entry := &token.Entry{
		Accessor: caller.Accessor, DisplayName: caller.DisplayName, EntityID: caller.EntityID, Namespace: caller.Namespace,
		Policies: caller.Policies, Meta: caller.Meta, Type: caller.Type, CreatedAt: caller.CreatedAt,
	}
	if entry.Namespace == "" || !scope.Namespace(entry.Namespace) {
		return engines.Denied(errors.New("the caller's namespace is not one of the secondary's"))
	}
	who, acl, err := p.Rights.Of(ctx, entry, c.ns.ID)
	if err != nil {
		return err
	}
	if acl.Root() && (c.mount.Builtin() || c.mount.IsAuth()) {
		return engines.Denied(errors.New("root of a secondary is not root of the primary"))
	}
	c.token, c.who, c.acl = entry, who, acl.In(c.ns.Path)
	c.inner.Caller = engines.Caller{
		Accessor: entry.Accessor, DisplayName: entry.DisplayName, EntityID: entry.EntityID,
		Policies: rights.Policies(entry, who), TokenPolicies: entry.Policies, Root: acl.Root(), NamespaceID: entry.Namespace,
		Access: scope.Access(ctx, c.acl, c.ns.ID),
		Mounts: scope.Mount,
	}
	if who != nil {
		c.inner.Caller.Identity = func(name string) (string, bool) { return who.FillIn(entry.Namespace, name) }
	}
	if c.flags.Has(engines.AnyToken) {
		return nil
	}
	return p.authorise(ctx, c)
}

// sharedTokenPath reports whether a path of auth/token/ is about roles, which are shared.
func sharedTokenPath(c *call) bool {
	return c.route != nil && strings.HasPrefix(c.route.Pattern, "roles")
}

// loginOf finds or makes the entity of a login on a secondary.
func (p *Pipeline) loginOf(ctx context.Context, peer roles.Peer, scope remote.Scope, payload []byte) (*remote.Entity, error) {
	var r remote.Login
	if err := json.Unmarshal(payload, &r); err != nil {
		return nil, engines.Invalid("the login of the secondary cannot be read")
	}
	login := loginRecord(peer, r)
	if err := p.Audit.Request(ctx, login); err != nil {
		return nil, p.unrecorded("login refused: it could not be recorded", login.Request.ID, err)
	}
	id, err := p.entityOf(ctx, scope, r)
	if login.Error = clientText(err); err == nil {
		login.Response = &record.Response{Auth: &record.Auth{EntityID: id}}
	}
	if err := p.Audit.Response(ctx, login); err != nil {
		return nil, p.unrecorded("login withheld: it could not be recorded", login.Request.ID, err)
	}
	if failure := remote.FailureOf(err); failure != nil {
		return &remote.Entity{Failure: failure}, nil
	}
	return &remote.Entity{EntityID: id}, err
}

// loginPath is what the audit log calls a login on a secondary that concerns this cluster's identities.
const loginPath = "identity/login-on-secondary"

func loginRecord(peer roles.Peer, r remote.Login) *record.Record {
	data, err := json.Marshal(map[string]any{"name": r.Alias.Name, "metadata": r.Alias.Metadata, "groups": r.GroupAliases})
	if err != nil {
		panic(err) // texts
	}
	return &record.Record{Request: record.Request{
		ID: uuid.NewString(), Operation: string(engines.Update), Path: loginPath, Data: data, ForwardedFrom: "secondary " + peer.ID,
		NamespaceID: r.NamespaceID, MountAccessor: r.Accessor, MountClass: "auth",
	}}
}

func (p *Pipeline) entityOf(ctx context.Context, scope remote.Scope, r remote.Login) (string, error) {
	if !scope.Namespace(r.NamespaceID) {
		return "", engines.Denied(errors.New("the namespace is not one of the secondary's"))
	}
	m, err := p.Mounts.ByAccessor(ctx, r.NamespaceID, r.Accessor)
	if err != nil {
		return "", err
	}
	at := engines.Mount{UUID: r.MountUUID, Accessor: r.Accessor, NamespaceID: r.NamespaceID, Local: true}
	switch {
	case m == nil && r.Local: // a local mount of the secondary, which only it knows
	case m == nil || r.Local || m.UUID != r.MountUUID || !m.IsAuth() || !scope.Mount(m.UUID):
		return "", engines.Denied(errors.New("the auth method is not one of the secondary's"))
	default:
		if err := m.Hold(); err != nil {
			return "", err
		}
		defer m.Release()
		at = m.Mount
	}
	return p.Identity.Login(ctx, at, r.Alias, r.GroupAliases)
}

// writes reports whether the operation is meant to change something.
func writes(op engines.Operation) bool {
	return op == engines.Create || op == engines.Update || op == engines.Patch || op == engines.Delete
}

// secondary reports whether this cluster follows a primary.
func (p *Pipeline) secondary() bool { return p.Replicated.Role().Mode == roles.Secondary }

// primaryFirst reports whether a request goes to the primary without being tried here: what writes to a shared mount would
// otherwise be judged by data that may be behind. Of what the server itself answers much is this cluster's own, so that is
// tried here, and sent on when it turns out to write shared data. So are logins.
func (p *Pipeline) primaryFirst(c *call) bool {
	if c.route == nil || c.mount == nil || c.mount.Local {
		return false
	}
	if c.flags.Has(engines.Primary) {
		return p.secondary()
	}
	return c.elsewhere && c.mount.Type != "system" && c.mount.Type != "token" && !c.flags.Has(engines.ClusterLocal) && !c.open
}

// viaPrimary has a request of a secondary's client done by the primary.
func (p *Pipeline) viaPrimary(ctx context.Context, c *call) (*engines.Response, error) {
	if c.inner.RawBody != nil {
		return nil, engines.Invalid("this has to be sent to the primary cluster")
	}
	r := remote.Request{
		ID: c.ID, Op: c.Op, Namespace: c.Namespace, Path: c.Request.Path, Body: c.Body, Query: c.Query,
		Header: c.Header, Remote: c.Remote,
	}
	for _, cert := range c.Certificates {
		r.Certificates = append(r.Certificates, cert.Raw)
	}
	if t := c.token; t != nil && !c.open {
		r.Caller = &remote.Caller{
			Accessor: t.Accessor, DisplayName: t.DisplayName, EntityID: t.EntityID, Namespace: t.Namespace,
			Policies: t.Policies, Meta: t.Meta, Type: t.Type, CreatedAt: t.CreatedAt,
		}
	}
	return p.Primary.Request(ctx, r)
}
