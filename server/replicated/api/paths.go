// Package api answers the paths below sys/replication: the changes of role by operators (paths.go), the status, and what repairs have replaced.
//
// It promises that everything but the status is for the root namespace and is done by the active node of this cluster, never by
// its primary. What the paths do is in package replicated. Start reading at Routes.
package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/filter"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// Routes declares the replication paths on the sys router: those below replication/performance/, and for most of them the
// names without "performance", which mean the same.
func (s *API) Routes(r *engines.Router) {
	const open = engines.Unauthenticated | engines.WorksSealed | engines.Active | engines.ClusterLocal
	shape := engines.ShapeOf(primaryStatus{}, secondaryStatus{})
	engines.On(r, engines.Read, "replication/status", "Tell how all sorts of replication are doing.", open, s.serveCombined).
		Returns("dr: {mode}, performance: {" + shape + "}")
	engines.On(r, engines.Read, performance+"status", "Tell how performance replication is doing.", open, s.serveStatus).Returns(shape)
	engines.On(r, engines.Read, "replication/dr/status", "Tell that there is no replication for disaster recovery.", open, s.serveNone).
		Returns("mode")
	for _, prefix := range []string{performance, "replication/"} {
		s.primaryRoutes(r, prefix+"primary/")
		s.secondaryRoutes(r, prefix+"secondary/")
	}
	const sudo = restricted | engines.Sudo
	engines.On(r, engines.Update, "replication/recover", "Have this secondary compare everything with its primary, and repair what differs.", sudo, s.serveRepair("recover"))
	engines.On(r, engines.Update, "replication/reindex", "The same as recover.", sudo, s.serveRepair("reindex"))
	engines.On(r, engines.Update, "replication/merkle-check", "Report what differs between this secondary and its primary.", sudo, s.serveCheck).
		Returns(`merkle_corruption_report: {corrupted_root: boolean, exact: boolean, merkle_root, mode, units: integer, units_incomplete:
			integer, units_quarantined: integer}`)
	engines.On(r, engines.Read, performance+"conflicts", "List what only this cluster had and a repair has replaced. With a path or a key: its value, too.", sudo, s.serveConflicts).
		Returns("conflicts: [{at, key, mine, part, path, theirs, value}], value")
}

const (
	performance = "replication/performance/"
	// restricted are the flags of everything but the status.
	restricted = engines.RootNamespace | engines.ClusterLocal | engines.Active
)

func (s *API) primaryRoutes(r *engines.Router, prefix string) {
	engines.On(r, engines.Update, prefix+"enable", "Make this cluster the primary of a new replication set.", restricted, s.serveEnablePrimary)
	engines.On(r, engines.Update, prefix+"demote", "Make this primary a secondary that follows no primary yet.", restricted, s.serveDemote)
	engines.On(r, engines.Update, prefix+"disable", "End replication for this primary.", restricted, s.serveDisable(s.DisablePrimary))
	engines.On(r, engines.Update, prefix+"secondary-token", "Make an activation token for a new secondary.", restricted|engines.Sudo, s.registry.SecondaryToken).
		Returns("empty; token")
	engines.On(r, engines.Update, prefix+"revoke-secondary", "Disconnect a secondary for good.", restricted, s.registry.RevokeSecondary)
	engines.On(r, engines.Read, prefix+"paths-filter/{id}", "Read what a secondary may have.", restricted, s.serveFilter).
		Returns("mode, paths: [string]")
	engines.On(r, engines.Update, prefix+"paths-filter/{id}", "Say what a secondary may have.", restricted, s.serveSetFilter)
	engines.On(r, engines.Delete, prefix+"paths-filter/{id}", "Let a secondary have everything.", restricted, s.serveDeleteFilter)
	engines.On(r, engines.Read, prefix+"dynamic-filter/{id}", "Tell which mounts and namespaces a secondary does not get at present.", restricted, s.serveExcluded).
		Returns(dynamicFilterShape)
}

func (s *API) secondaryRoutes(r *engines.Router, prefix string) {
	engines.On(r, engines.Update, prefix+"enable", "Make this cluster a secondary. All that it holds is removed.", restricted, s.serveEnableSecondary)
	engines.On(r, engines.Update, prefix+"promote", "Make this secondary the primary of its set.", restricted, s.servePromote).
		Returns(`epoch: integer, failed_checks: [string], forced: boolean, last_equal, last_heard, position, primary_final: boolean,
			primary_position`)
	engines.On(r, engines.Update, prefix+"disable", "End replication for this secondary.", restricted, s.serveDisable(s.DisableSecondary))
	engines.On(r, engines.Update, prefix+"update-primary", "Give this secondary another primary of its set.", restricted, s.serveUpdatePrimary)
	engines.On(r, engines.Update, prefix+"generate-public-key", "Make a key pair that an activation token can be encrypted to.", restricted, s.registry.GeneratePublicKey).
		Returns("secondary_public_key")
	engines.On(r, engines.Read, prefix+"dynamic-filter/{id}", "Tell which mounts and namespaces this secondary does not get at present, as far as it may know.", restricted, s.serveGiven).
		Returns(dynamicFilterShape)
}

type noInput struct{}

type enablePrimaryInput struct {
	Addr string `json:"primary_cluster_addr" max:"512" help:"Cluster address, host:port, that secondaries are given. Empty: those of this cluster's nodes."`
}

type promoteInput struct {
	Addr  string `json:"primary_cluster_addr" max:"512" help:"Cluster address, host:port, that secondaries are given. Empty: those of this cluster's nodes."`
	Force bool   `json:"force" help:"Promote without the primary's final word, or although another safety check fails. May lose data: the answer says what was last heard of the primary, and when."`
}

type filterInput struct {
	ID    string             `json:"id" max:"256" help:"Cluster id of the secondary, or the id of its token."`
	Mode  string             `json:"mode" default:"allow" enum:"allow,deny" help:"allow: the secondary gets what is listed. deny: it gets everything else."`
	Paths engines.StringList `json:"paths" max:"4096" help:"Paths of mounts and namespaces, such as secret/, auth/userpass/ or team/secret/."`
}

type secondaryIDInput struct {
	ID string `json:"id" max:"256" help:"Cluster id of the secondary, or the id of its token."`
}

type activationInput struct {
	Token          engines.Sensitive `json:"token" max:"65536" help:"Activation token from the primary. Of update-primary, blank: forget the primary."`
	PrimaryAPIAddr string            `json:"primary_api_addr" max:"2048" help:"URL of the primary's API, instead of the one in the token."`
	CAFile         string            `json:"ca_file" max:"4096" help:"File on this node with the CA of the primary's API, PEM."`
	CAPath         string            `json:"ca_path" max:"4096" help:"Directory on this node of such files."`
	ClientCert     string            `json:"client_cert_pem" max:"65536" help:"Not used: the certificate comes from the primary."`
	ClientKey      engines.Sensitive `json:"client_key_pem" max:"65536" help:"Not used."`
}

func (in *activationInput) activation() registry.Activation {
	return registry.Activation{Token: in.Token, PrimaryAPIAddr: in.PrimaryAPIAddr, CAFile: in.CAFile, CAPath: in.CAPath}
}

type updatePrimaryInput struct {
	activationInput
	Addrs engines.StringList `json:"update_primary_addrs" max:"32" help:"Cluster addresses of the new primary, host:port, instead of a token. The first one that answers is taken."`
}

type repairInput struct {
	Diff      bool `json:"diff" help:"Accepted. Only what differs is ever transferred."`
	Force     bool `json:"force" help:"Accepted."`
	SkipFlush bool `json:"skip_flush" help:"Accepted."`
}

type conflictsInput struct {
	Key string `json:"key" max:"4096" help:"Path or key of one conflict: the response has its value."`
}

func warned(warnings ...string) (*engines.Response, error) {
	return &engines.Response{Warnings: warnings}, nil
}

func (s *API) serveEnablePrimary(ctx context.Context, _ *engines.Request, in *enablePrimaryInput) (*engines.Response, error) {
	if err := s.EnablePrimary(ctx, in.Addr); err != nil {
		return nil, err
	}
	return warned("This cluster is becoming a replication primary and may be unavailable for a short time.")
}

func (s *API) serveDemote(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	if err := s.Demote(ctx); err != nil {
		return nil, err
	}
	return warned("This cluster is becoming a replication secondary and may be unavailable for a short time. It takes no writes to shared data until it is given a primary with secondary/update-primary.")
}

func (s *API) serveDisable(disable func(context.Context) error) engines.Handler[noInput] {
	return func(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
		if err := disable(ctx); err != nil {
			return nil, err
		}
		return warned("Replication is being disabled. The data stays; enabled again, this cluster has another cluster id, and as a secondary begins with nothing.")
	}
}

func (s *API) serveFilter(ctx context.Context, _ *engines.Request, in *secondaryIDInput) (*engines.Response, error) {
	if err := roles.WantPrimary(ctx, s.store); err != nil {
		return nil, err
	}
	f, err := s.Filter(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"mode": f.Mode, "paths": texts(f.Paths)}}, nil
}

// texts makes an empty list of none.
func texts(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

func (s *API) serveSetFilter(ctx context.Context, _ *engines.Request, in *filterInput) (*engines.Response, error) {
	namespaces, err := s.opts.Data.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	f, err := filter.New(in.Mode, in.Paths, namespaces)
	if err != nil {
		return nil, err
	}
	return nil, s.SetFilter(ctx, in.ID, f)
}

func (s *API) serveDeleteFilter(ctx context.Context, _ *engines.Request, in *secondaryIDInput) (*engines.Response, error) {
	return nil, s.SetFilter(ctx, in.ID, nil)
}

func (s *API) serveExcluded(ctx context.Context, _ *engines.Request, in *secondaryIDInput) (*engines.Response, error) {
	if err := roles.WantPrimary(ctx, s.store); err != nil {
		return nil, err
	}
	scope, err := s.Excluded(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: filtered(scope.Mounts, scope.Namespaces)}, nil
}

func filtered(mounts, namespaces []string) map[string]any {
	return map[string]any{"dynamic_filtered_mounts": texts(mounts), "dynamic_filtered_namespaces": texts(namespaces)}
}

func (s *API) serveGiven(ctx context.Context, _ *engines.Request, in *secondaryIDInput) (*engines.Response, error) {
	r, err := s.Current(ctx)
	if err != nil {
		return nil, err
	}
	if r.Mode != roles.Secondary {
		return nil, engines.Invalid("this cluster is not a replication secondary (mode: %s): ask it on the primary with primary/dynamic-filter", r.Mode)
	}
	up, err := traffic.ReadUpstream(ctx, s.store)
	if err != nil {
		return nil, err
	}
	if in.ID != r.ClusterID && (up == nil || in.ID != up.SecondaryID) {
		return nil, engines.NotFound("this is not an id of this secondary: cluster_id and secondary_id of sys/replication/performance/status are")
	}
	f, err := s.Given(ctx)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, engines.NotFound("")
	}
	out := &engines.Response{Data: filtered(f.Mounts, f.Namespaces)}
	if f.Mode == filter.Allow {
		out.Warnings = []string{"In mode allow a secondary is not told the names of what it does not get: ask on the primary with primary/dynamic-filter."}
	}
	return out, nil
}

func (s *API) serveEnableSecondary(ctx context.Context, _ *engines.Request, in *activationInput) (*engines.Response, error) {
	if err := s.EnableSecondary(ctx, in.activation()); err != nil {
		return nil, err
	}
	return warned("The primary has enrolled this cluster as a secondary. All that it held is being removed, tokens included; the first copy may take a while, and until then the cluster may be unavailable. Log in with what the primary's users have.")
}

func (s *API) servePromote(ctx context.Context, _ *engines.Request, in *promoteInput) (*engines.Response, error) {
	p, err := s.Promote(ctx, in.Addr, in.Force)
	if err != nil {
		return nil, err
	}
	warnings := []string{"This cluster is becoming the replication primary and may be unavailable for a short time. Other secondaries of the set need new activation tokens, with secondary/update-primary."}
	warnings = append(warnings, p.Notes...)
	if in.Force {
		warnings = append(warnings, forcedText(p)) // warnings are readable in the audit log, data is not
	}
	for _, check := range p.Lost {
		warnings = append(warnings, "Promoted by force although "+check+". What the former primary had and this cluster had not is lost to the set, unless that is still there.")
	}
	return &engines.Response{Warnings: warnings, Data: promotion{
		Forced: in.Force, Epoch: p.Epoch, Position: p.Position.String(), PrimaryPosition: p.Heard.Position.String(), PrimaryFinal: p.Heard.Final,
		LastHeard: replicated.TimeText(p.Heard.At), LastEqual: replicated.TimeText(p.Heard.Equal), Failed: texts(p.Lost),
	}}, nil
}

// promotion is what promote answers.
type promotion struct {
	Forced          bool     `json:"forced"`
	Epoch           uint32   `json:"epoch"`
	Position        string   `json:"position"`         // up to where this cluster has the history of the set
	PrimaryPosition string   `json:"primary_position"` // of the former primary, as last heard; "0:0": not known
	PrimaryFinal    bool     `json:"primary_final"`    // that was its final word
	LastHeard       string   `json:"last_heard"`       // "": not since this node became the active one
	LastEqual       string   `json:"last_equal"`       // when both were last known to be equal
	Failed          []string `json:"failed_checks"`
}

// forcedText says what a cluster that was promoted by force had heard of the former primary.
func forcedText(p *replicated.Promotion) string {
	at, position, equal := replicated.TimeText(p.Heard.At), p.Heard.Position.String(), replicated.TimeText(p.Heard.Equal)
	if at == "" {
		at, position = "not since this node became the active one", "unknown"
	}
	return fmt.Sprintf("Promoted by force into epoch %d, at position %s. The former primary was last heard: %s; its position then: %s; both clusters were last known to be equal: %s.",
		p.Epoch, p.Position, at, position, cmp.Or(equal, "never"))
}

func (s *API) serveUpdatePrimary(ctx context.Context, req *engines.Request, in *updatePrimaryInput) (*engines.Response, error) {
	if !req.Given("token") && len(in.Addrs) == 0 {
		return nil, engines.Invalid("field \"token\": is required; a blank one clears what is known of the primary. Or give \"update_primary_addrs\"")
	}
	if err := s.UpdatePrimary(ctx, in.activation(), in.Addrs); err != nil {
		return nil, err
	}
	return warned("The primary of this cluster is being changed. The data stays; what differs is repaired.")
}

func (s *API) serveRepair(cause string) engines.Handler[repairInput] {
	return func(ctx context.Context, _ *engines.Request, _ *repairInput) (*engines.Response, error) {
		r, err := s.Current(ctx)
		switch {
		case err != nil:
			return nil, err
		case r.Mode == roles.Primary:
			return warned("A primary has nothing to rebuild: what secondaries compare with is made from the data itself. Send this to a secondary to have it compared.")
		case r.Mode != roles.Secondary:
			return nil, engines.Invalid("replication is disabled on this cluster")
		}
		if err := s.link.Repair(cause); err != nil {
			return nil, unavailable("the repair was not started", err)
		}
		return warned("Everything is being compared with the primary, and what differs is repaired. \"last_repair\" of sys/replication/performance/status tells how far it is.")
	}
}

// unavailable makes a 503 of a link's refusal.
func unavailable(what string, err error) error {
	var e *engines.Error
	if errors.As(err, &e) {
		return err
	}
	return &engines.Error{Kind: engines.KindUnavailable, Detail: what + ": " + err.Error(), Err: err}
}

func (s *API) serveCheck(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	r, err := s.Current(ctx)
	if err != nil {
		return nil, err
	}
	st := s.link.FollowStatus()
	units := map[string]bool{}
	if r.Mode == roles.Secondary {
		if units, err = s.link.Units(ctx); err != nil {
			return nil, err
		}
	}
	return &engines.Response{Data: map[string]any{"merkle_corruption_report": map[string]any{
		"mode": r.Mode, "merkle_root": s.link.Root(), "corrupted_root": replicated.CountQuarantined(&st) > 0,
		"units": len(units), "units_incomplete": replicated.CountFalse(units), "units_quarantined": replicated.CountQuarantined(&st), "exact": r.Mode != roles.Secondary || st.Exact,
	}}}, nil
}

// API answers the paths below sys/replication.
type API struct {
	*replicated.Store
	opts     replicated.Options
	store    storage.Store
	link     traffic.Link
	registry *registry.Registry
}

// New returns the API of a Store.
func New(s *replicated.Store) *API {
	o := s.Options()
	return &API{Store: s, opts: o, store: o.Store, link: o.Link, registry: s.Registry()}
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	dynamicFilterShape = "dynamic_filtered_mounts: [string], dynamic_filtered_namespaces: [string]"
)
