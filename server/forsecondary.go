package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit"
	"github.com/coffer-project/coffer/server/mount"
	"github.com/coffer-project/coffer/server/namespace"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/token"
	"github.com/coffer-project/coffer/storage"
)

// ServeSecondary does what a secondary asks of this primary. The index covers what was written. The caller has made
// sure which secondary it is; what it may reach is looked at here, at every call.
func (s *Server) ServeSecondary(ctx context.Context, peer replicated.Peer, kind string, payload []byte) (answer []byte, at storage.Index, err error) {
	if s.node.Sealed() {
		return nil, 0, storage.ErrSealed
	}
	if err := s.node.ReadIndex(ctx); err != nil {
		return nil, 0, err
	}
	role, err := s.replicated.Current(ctx)
	if err != nil {
		return nil, 0, err
	}
	if role.Mode != replicated.Primary || role.Fenced != 0 {
		return nil, 0, fmt.Errorf("%w: this cluster is no primary (any more)", storage.ErrUnavailable)
	}
	scope, _, err := s.replicated.Scope(ctx, peer)
	if err != nil {
		return nil, 0, err
	}
	var out any
	switch kind {
	case callRequest:
		out, err = s.requestOf(ctx, peer, scope, payload)
	case callLogin:
		out, err = s.loginOf(ctx, peer, scope, payload)
	default:
		return s.replicated.Answer(ctx, peer, kind, payload)
	}
	if err != nil {
		return nil, 0, err
	}
	answer, err = json.Marshal(out)
	return answer, s.link.Head(), err
}

// maxIDBytes is the longest id of a request that a secondary passes on: it gets into logs and the audit log.
const maxIDBytes = 256

// requestOf runs a request of a secondary's client. Where a secondary may not reach, it is told that nothing is there.
func (s *Server) requestOf(ctx context.Context, peer replicated.Peer, scope map[string]bool, payload []byte) (*remoteAnswer, error) {
	var r remoteRequest
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
	response, err := s.handleRemote(ctx, c, peer, scope, r.Caller)
	if failure := failureOf(err); failure != nil {
		if failure.Kind == engines.KindInternal {
			s.log.Error("a request of a secondary failed", "request_id", c.ID, "secondary", peer.ID, "err", err)
		}
		return &remoteAnswer{Failure: failure}, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := remoteOf(response)
	if failure := failureOf(err); failure != nil {
		return &remoteAnswer{Failure: failure}, nil
	}
	return &remoteAnswer{Response: out}, err
}

// handleRemote is Handle for a caller whose token another cluster has looked at.
func (s *Server) handleRemote(ctx context.Context, c *call, peer replicated.Peer, scope map[string]bool, caller *remoteCaller) (*engines.Response, error) {
	if err := s.resolve(ctx, c); err != nil {
		return nil, err
	}
	c.flight.ID, c.flight.Op, c.flight.Path, c.flight.Remote = c.ID, c.Op, c.Request.Path, c.Remote
	s.flights.Begin(&c.flight)
	defer s.flights.End(&c.flight)
	denied := s.admitRemote(ctx, c, scope, caller)
	if denied != nil && !answered(denied) {
		return nil, denied
	}
	c.record.Request.ForwardedFrom = "secondary " + peer.ID
	if err := s.audit.Broker().Request(ctx, s.describe(c, denied)); err != nil {
		return nil, s.unrecorded("request refused: it could not be recorded", c.ID, err)
	}
	var response *engines.Response
	err := denied
	if err == nil {
		var release func()
		if release, err = c.hold(); err == nil {
			defer release()
			response, err = s.engine(s.inRoom(ctx, c), c)
		}
	}
	if err := s.recordResponse(ctx, c, response, err); err != nil {
		return nil, err
	}
	return response, err
}

// admitRemote authorises a request of a secondary: within the secondary's scope, by the policies that the token names as
// they are here, and nothing that needs more than policies. Root of a secondary is root over the data of mounts only: it
// can neither make itself more here nor reach what concerns this cluster.
func (s *Server) admitRemote(ctx context.Context, c *call, scope map[string]bool, caller *remoteCaller) error {
	if c.mount == nil || c.mount.Mount.Local && c.mount.Type != "cubbyhole" || !scope["mount/"+c.mount.UUID] || !scope["ns/"+c.ns.ID] {
		return engines.NotFound("no mount at this path: list what is there with sys/mounts and sys/auth")
	}
	if c.route == nil {
		return c.miss
	}
	const own = engines.ClusterLocal | engines.AnyNode | engines.WorksSealed | engines.RawBody | engines.Sudo
	if c.route.Flags&own != 0 || c.has(engines.RootNamespace) && !c.has(engines.Primary) || c.mount.Type == "cubbyhole" || c.mount.Type == "token" && !c.has(engines.Primary) && !sharedTokenPath(c) {
		return engines.Denied(errors.New("not for secondaries: it has to be sent to this cluster"))
	}
	if c.mount.Builtin() && !writes(c.Op) && !c.has(engines.Primary) {
		return engines.Denied(errors.New("a secondary reads its own copy"))
	}
	if err := s.targetInScope(ctx, c, scope); err != nil {
		return err
	}
	if c.ns.Locked() {
		return &engines.Error{Kind: engines.KindUnavailable, Detail: "API access to this namespace has been locked by an administrator"}
	}
	if caller == nil {
		if c.has(engines.Unauthenticated) {
			return nil
		}
		return engines.Denied(errors.New("the secondary named no caller"))
	}
	entry := &token.Entry{
		Accessor: caller.Accessor, DisplayName: caller.DisplayName, EntityID: caller.EntityID, Namespace: caller.Namespace,
		Policies: caller.Policies, Meta: caller.Meta, Type: caller.Type, CreatedAt: caller.CreatedAt,
	}
	if entry.Namespace == "" || !scope["ns/"+entry.Namespace] {
		return engines.Denied(errors.New("the caller's namespace is not one of the secondary's"))
	}
	who, acl, err := s.rights(ctx, entry, c.ns.ID)
	if err != nil {
		return err
	}
	if acl.Root() && (c.mount.Builtin() || c.mount.IsAuth()) {
		return engines.Denied(errors.New("root of a secondary is not root of the primary"))
	}
	c.token, c.who, c.acl = entry, who, acl.In(c.ns.Path)
	c.inner.Caller = engines.Caller{
		Accessor: entry.Accessor, DisplayName: entry.DisplayName, EntityID: entry.EntityID,
		Policies: policiesIn(entry, who), TokenPolicies: entry.Policies, Root: acl.Root(), NamespaceID: entry.Namespace,
		Access: scopedAccess{c.acl, func(path string) bool { return s.pathInScope(ctx, c.ns.ID, path, scope) }},
		Mounts: func(uuid string) bool { return scope["mount/"+uuid] },
	}
	if who != nil {
		c.inner.Caller.Identity = func(name string) (string, bool) { return who.FillIn(entry.Namespace, name) }
	}
	if c.has(engines.AnyToken) {
		return nil
	}
	return s.authorise(ctx, c)
}

// scopedAccess is what a caller of a secondary may do: nothing with mounts that the secondary does not have, whatever the policies
// allow, for it is the secondary that says whose they are.
type scopedAccess struct {
	engines.Access
	in func(path string) bool
}

func (a scopedAccess) Allowed(op engines.Operation, path string) bool {
	return a.Access.Allowed(op, path) && a.in(path)
}

func (a scopedAccess) Sudo(path string) bool { return a.Access.Sudo(path) && a.in(path) }

func (a scopedAccess) AnyUnder(prefix string) bool { return a.Access.AnyUnder(prefix) && a.in(prefix) }

// pathInScope reports whether the mount at a path of a namespace is one of a secondary's. Where there is none nothing is reached.
func (s *Server) pathInScope(ctx context.Context, ns, path string, scope map[string]bool) bool {
	at, rest, err := s.namespaces.ResolveFrom(ctx, ns, path)
	if err != nil {
		return false
	}
	m, _, err := s.mounts.Resolve(ctx, at, rest)
	return err == nil && (m == nil || m.Builtin() || scope["mount/"+m.UUID])
}

// targetInScope looks at what a path of sys/ is about: a mount or a namespace that the secondary may not have is not there
// for it, and cannot be changed or removed through it either.
func (s *Server) targetInScope(ctx context.Context, c *call, scope map[string]bool) error {
	if c.mount.Type != "system" {
		return nil
	}
	unit := ""
	kind, _, _ := strings.Cut(c.route.Pattern, "/")
	path := strings.Trim(c.params["path"], "/") + "/"
	switch kind {
	case "mounts", "auth":
		if kind == "auth" {
			path = mount.AuthPrefix + path
		}
		at, rest, err := s.namespaces.ResolveFrom(ctx, c.ns.ID, path)
		if err != nil {
			return err
		}
		m, _, err := s.mounts.Resolve(ctx, at, rest)
		if err != nil {
			return err
		}
		if unit = "ns/" + at; m != nil {
			unit = "mount/" + m.UUID
		}
	case "namespaces":
		id, _, err := s.namespaces.ResolveFrom(ctx, c.ns.ID, path)
		if err != nil {
			return err
		}
		if c.Op == engines.Delete {
			if err := s.wholeInScope(ctx, id, scope); err != nil {
				return err
			}
		}
		unit = "ns/" + id
	}
	if unit != "" && !scope[unit] {
		return engines.NotFound("")
	}
	return nil
}

// wholeInScope refuses a namespace that holds something which a secondary does not have: with it, that would go too.
func (s *Server) wholeInScope(ctx context.Context, id string, scope map[string]bool) error {
	mounts, err := s.mounts.Everywhere(ctx)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if s.below(ctx, id, m.Namespace) && !scope["mount/"+m.UUID] {
			return engines.Denied(errors.New("the namespace holds what the secondary does not have"))
		}
	}
	return nil
}

// sharedTokenPath reports whether a path of auth/token/ is about roles, which are shared.
func sharedTokenPath(c *call) bool {
	return c.route != nil && strings.HasPrefix(c.route.Pattern, "roles")
}

// loginOf finds or makes the entity of a login on a secondary.
func (s *Server) loginOf(ctx context.Context, peer replicated.Peer, scope map[string]bool, payload []byte) (*remoteEntity, error) {
	var r remoteLogin
	if err := json.Unmarshal(payload, &r); err != nil {
		return nil, engines.Invalid("the login of the secondary cannot be read")
	}
	record := loginRecord(peer, r)
	if err := s.audit.Broker().Request(ctx, record); err != nil {
		return nil, s.unrecorded("login refused: it could not be recorded", record.Request.ID, err)
	}
	id, err := s.entityOf(ctx, scope, r)
	if record.Error = clientText(err); err == nil {
		record.Response = &audit.Response{Auth: &audit.Auth{EntityID: id}}
	}
	if err := s.audit.Broker().Response(ctx, record); err != nil {
		return nil, s.unrecorded("login withheld: it could not be recorded", record.Request.ID, err)
	}
	if failure := failureOf(err); failure != nil {
		return &remoteEntity{Failure: failure}, nil
	}
	return &remoteEntity{EntityID: id}, err
}

// loginPath is what the audit log calls a login on a secondary that concerns this cluster's identities.
const loginPath = "identity/login-on-secondary"

func loginRecord(peer replicated.Peer, r remoteLogin) *audit.Record {
	data, err := json.Marshal(map[string]any{"name": r.Alias.Name, "metadata": r.Alias.Metadata, "groups": r.GroupAliases})
	if err != nil {
		panic(err) // texts
	}
	return &audit.Record{Request: audit.Request{
		ID: uuid.NewString(), Operation: string(engines.Update), Path: loginPath, Data: data, ForwardedFrom: "secondary " + peer.ID,
		NamespaceID: r.NamespaceID, MountAccessor: r.Accessor, MountClass: "auth",
	}}
}

func (s *Server) entityOf(ctx context.Context, scope map[string]bool, r remoteLogin) (string, error) {
	if !scope["ns/"+r.NamespaceID] {
		return "", engines.Denied(errors.New("the namespace is not one of the secondary's"))
	}
	m, err := s.mounts.ByAccessor(ctx, r.NamespaceID, r.Accessor)
	if err != nil {
		return "", err
	}
	at := engines.Mount{UUID: r.MountUUID, Accessor: r.Accessor, NamespaceID: r.NamespaceID, Local: true}
	switch {
	case m == nil && r.Local: // a local mount of the secondary, which only it knows
	case m == nil || r.Local || m.UUID != r.MountUUID || !m.IsAuth() || !scope["mount/"+m.UUID]:
		return "", engines.Denied(errors.New("the auth method is not one of the secondary's"))
	default:
		if err := m.Hold(); err != nil {
			return "", err
		}
		defer m.Release()
		at = m.Mount
	}
	return s.identity.Login(ctx, at, r.Alias, r.GroupAliases)
}

// entityFor finds or makes the entity of a login here; on a secondary, where it is not there yet or is to
// change, through the primary. Whether the user has left a group is never passed over: without the primary such a login
// fails.
func (s *Server) entityFor(ctx context.Context, m engines.Mount, alias engines.Alias, groups []string) (string, error) {
	id, err := s.identity.Login(ctx, m, alias, groups)
	if !errors.Is(err, storage.ErrPrimaryOnly) {
		return id, err
	}
	var answer remoteEntity
	visible, err := s.callPrimary(ctx, callLogin, remoteLogin{
		MountUUID: m.UUID, Accessor: m.Accessor, NamespaceID: m.NamespaceID, Local: m.Local, Alias: alias, GroupAliases: groups,
	}, &answer)
	switch {
	case err != nil:
		return "", err
	case answer.Failure != nil:
		return "", answer.Failure.error()
	case !visible:
		return "", &engines.Error{Kind: engines.KindUnavailable, Detail: "the login is known to the primary, but has not arrived on this secondary yet: try again"}
	}
	return answer.EntityID, nil
}

// unitDropped ends what was handed out of a unit that this secondary is about to lose.
func (s *Server) unitDropped(ctx context.Context, unit string) {
	kind, id := replicated.SplitUnit(unit)
	var errs []error
	switch kind {
	case "mount":
		errs = append(errs, s.mounts.Leave(ctx, id)) // from here on nothing is handed out of it
		_, err := s.leases.RevokeMount(ctx, id)
		_, more := s.tokens.RevokeMount(ctx, id)
		errs = append(errs, err, more, storage.DeletePrefix(ctx, s.barrier, storage.NewKey(storage.Local, id, "")))
	case "ns":
		if id == namespace.RootID {
			return
		}
		all, err := s.mounts.Everywhere(ctx)
		errs = append(errs, err)
		for _, m := range all {
			if m.Namespace == id {
				errs = append(errs, s.mounts.Leave(ctx, m.UUID))
			}
		}
		_, err = s.tokens.RevokeNamespace(ctx, id)
		errs = append(errs, err, storage.DeletePrefix(ctx, s.barrier, storage.NewKey(storage.Local, "sys", id+"/")))
	}
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("ending what was handed out of data that leaves this secondary", "unit", unit, "err", err)
	}
}
