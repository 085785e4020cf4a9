// Package api answers the paths of leases, sys/leases and their old names.
//
// What leases are, and what happens when one is renewed or revoked, is in package lease. Start reading at Routes.
package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lease"
	"github.com/coffer-project/coffer/server/lease/record"
)

// paths answer for one Manager.
type paths struct {
	leases *lease.Manager
	tokens func(ctx context.Context, ns, prefix string) (int, error)
}

// Routes declares the paths of leases, on the router of the sys paths. tokens revokes the tokens of logins below prefix, which
// begins with "auth/", and returns how many; nil revokes none.
func Routes(r *engines.Router, leases *lease.Manager, tokens func(ctx context.Context, ns, prefix string) (int, error)) {
	p := &paths{leases, tokens}
	engines.On(r, engines.Update, "leases/lookup", "Show a lease.", engines.ClusterLocal, p.serveLookup).
		Returns("expire_time, id, issue_time, last_renewal: string?, renewable: boolean, ttl: integer")
	engines.On(r, engines.List, "leases/lookup/{prefix...?}", "List the leases below a prefix.", engines.Sudo|engines.ClusterLocal, p.serveList).
		Returns("keys: [string]")
	engines.On(r, engines.Read, "leases/count", "Count the leases of the namespace.", engines.Active|engines.ClusterLocal, p.serveCount).
		Returns("counts: {leases_u1: integer, leases_ua: integer}, lease_count: integer")
	engines.On(r, engines.Read, "leases", "List the leases that could not be revoked.", engines.Sudo|engines.Active|engines.ClusterLocal, p.serveIrrevocable).
		Returns("counts: {leases_u1: integer, leases_ua: integer}, lease_count: integer, leases: [{error, lease_id, mount_id}]")
	engines.On(r, engines.Update, "leases/tidy", "Mend the indexes of leases and try irrevocable leases again, in the background.", engines.Sudo|engines.ClusterLocal|engines.RootNamespace, p.serveTidy)
	for _, at := range []string{"leases/", ""} { // the second are the old paths
		engines.On(r, engines.Update, at+"renew", "Renew a lease.", engines.ClusterLocal, p.serveRenew)
		engines.On(r, engines.Update, at+"renew/{url_lease_id...}", "Renew a lease.", engines.ClusterLocal, p.serveRenewPath)
		engines.On(r, engines.Update, at+"revoke", "Revoke a lease.", engines.ClusterLocal, p.serveRevoke)
		engines.On(r, engines.Update, at+"revoke/{url_lease_id...}", "Revoke a lease.", engines.ClusterLocal, p.serveRevokePath)
		engines.On(r, engines.Update, at+"revoke-prefix/{prefix...}", "Revoke all leases and logins below a prefix.", engines.Sudo|engines.ClusterLocal, p.serveRevokePrefix)
		engines.On(r, engines.Update, at+"revoke-force/{prefix...}", "Remove all leases below a prefix, even if their engine fails.", engines.Sudo|engines.ClusterLocal, p.serveRevokeForce)
	}
}

type noInput struct{}

type idInput struct {
	LeaseID string `json:"lease_id" max:"4096" help:"ID of the lease."`
}

func (in *idInput) check() error {
	if in.LeaseID == "" {
		return engines.Invalid(`field "lease_id": must be given`)
	}
	return nil
}

func (p *paths) serveLookup(ctx context.Context, req *engines.Request, in *idInput) (*engines.Response, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	d, err := p.leases.Lookup(ctx, req.Mount.NamespaceID, in.LeaseID)
	if errors.Is(err, lease.ErrNotFound) {
		return nil, engines.Invalid("invalid lease")
	}
	if err != nil {
		return nil, err
	}
	data := map[string]any{
		"id": d.ID, "issue_time": stamp(d.IssuedAt), "expire_time": stamp(d.ExpiresAt), "last_renewal": nil,
		"renewable": d.Renewable, "ttl": int64(d.TTL.Round(time.Second) / time.Second),
	}
	if !d.RenewedAt.IsZero() {
		data["last_renewal"] = stamp(d.RenewedAt)
	}
	if d.State != "" {
		data["state"], data["error"] = d.State, d.Reason
	}
	return &engines.Response{Data: data}, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

type prefixInput struct {
	Prefix string `json:"prefix" help:"Beginning of lease IDs, up to a slash."`
}

func (p *paths) serveList(ctx context.Context, req *engines.Request, in *prefixInput) (*engines.Response, error) {
	return engines.Listed(p.leases.List(ctx, req.Mount.NamespaceID, in.Prefix))
}

// fromURL takes the id of the path, which is the one that policies were asked about.
func (in *idInput) fromURL(id string) error {
	if in.LeaseID != "" && in.LeaseID != id {
		return engines.Invalid(`field "lease_id" names another lease than the path: give one of them`)
	}
	in.LeaseID = id
	return nil
}

type renewInput struct {
	idInput
	Increment engines.Duration `json:"increment" help:"Lifetime asked for, counted from now; 0 is the one the engine gives."`
}

type renewPathInput struct {
	URLLeaseID string `json:"url_lease_id" help:"ID of the lease."`
	renewInput
}

func (p *paths) serveRenewPath(ctx context.Context, req *engines.Request, in *renewPathInput) (*engines.Response, error) {
	if err := in.fromURL(in.URLLeaseID); err != nil {
		return nil, err
	}
	return p.serveRenew(ctx, req, &in.renewInput)
}

func (p *paths) serveRenew(ctx context.Context, req *engines.Request, in *renewInput) (*engines.Response, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	info, err := p.leases.Renew(ctx, req.Mount.NamespaceID, in.LeaseID, time.Duration(in.Increment))
	if err != nil {
		return nil, err
	}
	return &engines.Response{
		Held:     &engines.HeldLease{ID: info.ID, Seconds: int64(info.TTL.Round(time.Second) / time.Second), Renewable: info.Renewable},
		Warnings: info.Warnings,
	}, nil
}

type revokeInput struct {
	idInput
	Sync bool `json:"sync" help:"Answer when it is done, not when it is certain."`
}

type revokePathInput struct {
	URLLeaseID string `json:"url_lease_id" help:"ID of the lease."`
	revokeInput
}

func (p *paths) serveRevokePath(ctx context.Context, req *engines.Request, in *revokePathInput) (*engines.Response, error) {
	if err := in.fromURL(in.URLLeaseID); err != nil {
		return nil, err
	}
	return p.serveRevoke(ctx, req, &in.revokeInput)
}

// serveRevoke answers the same whether the lease was there or not.
func (p *paths) serveRevoke(ctx context.Context, req *engines.Request, in *revokeInput) (*engines.Response, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	if err := p.leases.Revoke(ctx, req.Mount.NamespaceID, in.LeaseID, in.Sync); err != nil && !errors.Is(err, lease.ErrNotFound) {
		return nil, err
	}
	return accepted(in.Sync), nil
}

// accepted is 204 for what is done and 202 for what is certain.
func accepted(done bool) *engines.Response {
	if done {
		return nil
	}
	return &engines.Response{Status: http.StatusAccepted}
}

type revokePrefixInput struct {
	prefixInput
	Sync bool `json:"sync" help:"Answer when it is done, not when it is certain."`
}

func (p *paths) serveRevokePrefix(ctx context.Context, req *engines.Request, in *revokePrefixInput) (*engines.Response, error) {
	if err := p.revokeTokens(ctx, req, in.Prefix); err != nil {
		return nil, err
	}
	if _, err := p.leases.RevokePrefix(ctx, req.Mount.NamespaceID, in.Prefix, in.Sync); err != nil {
		return nil, err
	}
	return accepted(in.Sync), nil
}

func (p *paths) serveRevokeForce(ctx context.Context, req *engines.Request, in *prefixInput) (*engines.Response, error) {
	if err := p.revokeTokens(ctx, req, in.Prefix); err != nil {
		return nil, err
	}
	_, err := p.leases.RevokeForce(ctx, req.Mount.NamespaceID, in.Prefix)
	return nil, err
}

// revokeTokens revokes what logins below prefix were given.
func (p *paths) revokeTokens(ctx context.Context, req *engines.Request, prefix string) error {
	if p.tokens == nil || !strings.HasPrefix(prefix+"/", "auth/") {
		return nil
	}
	_, err := p.tokens(ctx, cmp.Or(req.Mount.NamespaceID, record.RootNamespace), prefix)
	return err
}

func (p *paths) serveTidy(context.Context, *engines.Request, *noInput) (*engines.Response, error) {
	running, err := p.leases.StartTidy()
	if err != nil {
		return nil, err
	}
	text := "Tidy operation successfully started. Any information from the operation will be printed to the server's logs."
	if running {
		text = "Tidy operation already in progress."
	}
	return &engines.Response{Status: http.StatusAccepted, Warnings: []string{text}}, nil
}

type countInput struct {
	Type  string `json:"type" enum:"irrevocable" help:"Which leases: \"irrevocable\", or all if absent."`
	Below bool   `json:"include_child_namespaces" help:"Count those of namespaces below, too."`
}

func (p *paths) serveCount(ctx context.Context, req *engines.Request, in *countInput) (*engines.Response, error) {
	ns := cmp.Or(req.Mount.NamespaceID, record.RootNamespace)
	var byMount map[string]int
	var err error
	if in.Type == "" {
		byMount, err = p.leases.CountByMount(ctx, ns, in.Below)
	} else {
		_, byMount, err = p.leases.Irrevocable(ctx, ns, in.Below, 1)
	}
	if err != nil {
		return nil, err
	}
	total, counts := p.shown(ctx, byMount)
	return &engines.Response{Data: map[string]any{"lease_count": total, "counts": counts}}, nil
}

// shown names mounts by accessor, as clients know them.
func (p *paths) shown(ctx context.Context, byMount map[string]int) (total int, counts map[string]int) {
	counts = map[string]int{}
	for uuid, n := range byMount {
		total += n
		counts[p.leases.MountAccessor(ctx, uuid)] += n
	}
	return total, counts
}

// mostListed is how many irrevocable leases are listed unless the client asks for another number.
const mostListed = 10_000

type irrevocableInput struct {
	Type  string `json:"type" enum:"irrevocable" help:"Only \"irrevocable\" leases can be listed."`
	Limit string `json:"limit" help:"How many to list at most, or \"none\" for all."`
	Below bool   `json:"include_child_namespaces" help:"List those of namespaces below, too."`
}

func (p *paths) serveIrrevocable(ctx context.Context, req *engines.Request, in *irrevocableInput) (*engines.Response, error) {
	limit := mostListed
	switch n, err := strconv.Atoi(in.Limit); {
	case in.Limit == "none":
		limit = 0
	case in.Limit == "":
	case err != nil || n < 1:
		return nil, engines.Invalid(`field "limit": must be a number above 0, or "none"`)
	default:
		limit = n
	}
	list, byMount, err := p.leases.Irrevocable(ctx, req.Mount.NamespaceID, in.Below, limit)
	if err != nil {
		return nil, err
	}
	total, counts := p.shown(ctx, byMount)
	leases := make([]map[string]string, 0, len(list))
	for _, l := range list {
		leases = append(leases, map[string]string{"lease_id": l.ID, "mount_id": p.leases.MountAccessor(ctx, l.MountUUID), "error": l.Reason})
	}
	response := &engines.Response{Data: map[string]any{"lease_count": total, "counts": counts, "leases": leases}}
	if len(list) < total {
		response.Warnings = []string{"there are more leases: set limit to \"none\" to see all"}
	}
	return response, nil
}
