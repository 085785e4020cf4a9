package api

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/status"
	"github.com/coffer-project/coffer/storage"
)

type destinationIn struct {
	Type string `json:"type" max:"64" help:"Type of the destination."`
	Name string `json:"name" max:"128" help:"Name of the destination."`
}

func (s *API) destinationRoutes(r *engines.Router) {
	r.Synonym = s.Pool.Synonym
	var all []any // a configuration of each type
	for _, name := range s.Pool.AllTypeNames() {
		kind, _ := s.Pool.TypeNamed(name)
		one := destinationShape + "{" + engines.ShapeOf(kind.New()) + "}"
		all = append(all, kind.New())
		in := inputType(reflect.TypeFor[settingsIn](), kind.New())
		write := func(patch bool) func(context.Context, *engines.Request, reflect.Value) (*engines.Response, error) {
			return func(ctx context.Context, req *engines.Request, in reflect.Value) (*engines.Response, error) {
				resp, err := s.writeDestination(ctx, req, kind, name, in, patch)
				return resp, ClientError(err)
			}
		}
		exists := func(ctx context.Context, req *engines.Request) (bool, error) {
			var d state.Destination
			_, err := state.GetDestination(ctx, s.Host.Store(), state.DestinationKey(req.Mount.NamespaceID, kind.Name, req.Param("name")), &d)
			return d.ID != "", ClientError(err)
		}
		engines.OnType(r, engines.Update, "sync/destinations/"+name+"/{name}", "Create or change a destination: "+kind.Help, flags|engines.Strict, in, write(false)).Returns(one).Exists = exists
		engines.OnType(r, engines.Patch, "sync/destinations/"+name+"/{name}", "Change some fields of a destination; null goes back to the default.", flags|engines.Strict, in, write(true)).Returns(one)
	}
	either := destinationShape + "{" + engines.ShapeOf(all...) + "}"
	engines.On(r, engines.Update, "sync/destinations/{type}/{name}", "Rejected: there is no such type of destination.", flags,
		func(_ context.Context, _ *engines.Request, in *destinationIn) (*engines.Response, error) {
			return nil, s.unknownType(in.Type)
		})
	route(r, engines.Read, "sync/destinations/{type}/{name}", "Read a destination. Sensitive values are masked.", flags, s.readDestination).Returns(either)
	route(r, engines.Delete, "sync/destinations/{type}/{name}", "Delete a destination.", flags, s.deleteDestination).Returns("empty; " + either)
	route(r, engines.List, "sync/destinations", "List destinations by type.", flags, s.listDestinations).
		Returns(`health: {*: {circuit, circuit_code, circuit_open_until, drifted: integer, links: {*: integer}, oldest_unsynced_change}},
			key_info: {*: [string]}, keys: [string], total_destinations: integer`)
	route(r, engines.List, "sync/destinations/{type}", "List the destinations of a type.", flags, s.listType).
		Returns("keys: [string], total_destinations: integer")
	route(r, engines.Update, "sync/destinations/{type}/{name}/verify", "Try out whether a destination can be reached and allows what is needed.", flags, s.verifyDestination).
		Returns("checks: [{name, result, text}], ok: boolean")
	route(r, engines.Update, "sync/destinations/{type}/{name}/pause", "Stop syncing to a destination. What changes meanwhile is done when it is resumed.", flags, s.setPaused(true)).Returns(either)
	route(r, engines.Update, "sync/destinations/{type}/{name}/resume", "Go on syncing to a destination.", flags, s.setPaused(false)).Returns(either)
}

func (s *API) unknownType(kind string) error {
	if _, ok := s.Pool.TypeNamed(kind); ok {
		return engines.Invalid("this operation is not one of destinations")
	}
	return engines.Invalid("there are no destinations of this type: the types are %s", strings.Join(slices.Sorted(maps.Keys(s.Pool.Types)), ", "))
}

// FindDestination reads a destination that a request names. Responses have the name of its type that the request used.
func (s *API) FindDestination(ctx context.Context, g engines.Getter, ns, typeName, name string) (*state.Destination, error) {
	kind, ok := s.Pool.TypeNamed(typeName)
	if !ok {
		return nil, s.unknownType(typeName)
	}
	var d state.Destination
	if _, err := state.GetDestination(ctx, g, state.DestinationKey(ns, kind.Name, name), &d); err != nil {
		return nil, err
	}
	d.NamedType = typeName
	if d.ID == "" {
		return nil, engines.NotFound("")
	}
	return &d, nil
}

// DescribeDestination returns a destination as readers see it. Why its purge waits is shown only to callers who see all its associations.
func (s *API) DescribeDestination(ctx context.Context, req *engines.Request, d *state.Destination) (map[string]any, error) {
	c, err := s.Pool.ConfigOf(d)
	if err != nil {
		return nil, err
	}
	rules := s.Pool.Types[d.Type].Rules
	granularity, template := d.Granularity, d.Template
	if granularity == "" {
		granularity = rules.Granularity
	}
	a := state.Association{Granularity: granularity, Template: template}
	options := map[string]any{
		"granularity_level": granularity, "secret_name_template": a.Plan(rules).TemplateText(), "custom_tags": d.CustomTags, "removal_attempts": d.RemovalAttempts,
		"disable_strict_networking": d.DisableStrict, "allowed_ipv4_addresses": nonNil(d.IPv4), "allowed_ipv6_addresses": nonNil(d.IPv6), "allowed_ports": numbers(d.Ports),
	}
	if d.CustomTags == nil {
		options["custom_tags"] = map[string]string{}
	}
	out := map[string]any{
		"name": d.Name, "type": d.TypeName(), "connection_details": c.Shown(), "options": options, "paused": d.Paused,
		"created_at": d.CreatedAt, "updated_at": d.UpdatedAt,
	}
	h := s.Health()[d.ID]
	out["health"] = status.DescribeHealth(&h, s.seesAll(ctx, req, d), true)
	var left state.Orphans
	if _, err := engines.GetRecord(ctx, s.Host.Store(), state.OrphansKey(d.NS, d.Type, d.Name), &left); err != nil && !s.Unreadable(err) {
		return nil, err
	}
	if left.Total > 0 && req.Caller.Mounts == nil {
		out["left_behind"] = left.Describe()
	}
	if err := s.DescribeRedeploy(ctx, d, out); err != nil || d.PurgeAt.IsZero() {
		return out, err
	}
	out["purge_initiated_at"] = d.PurgeAt
	if !s.seesAll(ctx, req, d) {
		return out, nil
	}
	failed, err := s.PurgeFailure(ctx, d)
	if failed != "" {
		out["purge_error"] = failed
	}
	return out, err
}

// numbers returns ports as clients declare them.
func numbers(ports []string) []int {
	out := make([]int, len(ports))
	for i, port := range ports {
		out[i], _ = strconv.Atoi(port) // only ports are stored
	}
	return out
}

// seesAll reports whether a caller sees all associations of a destination.
func (s *API) seesAll(ctx context.Context, req *engines.Request, d *state.Destination) bool {
	return req.Caller.Mounts == nil || s.checkAllVisible(ctx, req, d) == nil
}

func (s *API) readDestination(ctx context.Context, req *engines.Request, in *destinationIn) (*engines.Response, error) {
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Name)
	if err != nil {
		return nil, err
	}
	data, err := s.DescribeDestination(ctx, req, d)
	return &engines.Response{Data: data}, err
}

func (s *API) listDestinations(ctx context.Context, req *engines.Request, _ *emptyIn) (*engines.Response, error) {
	info := map[string][]string{}
	health := map[string]any{}
	for _, h := range s.Health() {
		if h.NS == req.Mount.NamespaceID {
			health[h.Name] = status.DescribeHealth(&h, s.seesAll(ctx, req, &state.Destination{NS: h.NS, ID: h.ID}), false)
		}
	}
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(s.Pool.Types)) {
		prefix := state.Area(req.Mount.NamespaceID, "d/"+kind+"/")
		add := func(key storage.Key, d *state.Destination) bool {
			name := s.Pool.ListedType(d) + "/"
			info[name] = append(info[name], strings.TrimPrefix(string(key), string(prefix)))
			total++
			return true
		}
		err := state.ScanReadable(ctx, s.Host.Store(), prefix, add, func(key storage.Key, _ error) error {
			add(key, &state.Destination{Type: kind}) // it can be deleted
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if total == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"keys": slices.Sorted(maps.Keys(info)), "key_info": info, "total_destinations": total, "health": health}}, nil
}

type typeIn struct {
	Type string `json:"type" max:"64" help:"Type of the destinations."`
}

func (s *API) listType(ctx context.Context, req *engines.Request, in *typeIn) (*engines.Response, error) {
	kind, ok := s.Pool.TypeNamed(in.Type)
	if !ok {
		return nil, s.unknownType(in.Type)
	}
	names, err := s.Host.Store().List(ctx, state.Area(req.Mount.NamespaceID, "d/"+kind.Name+"/"), "", 0)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"keys": names, "total_destinations": len(names)}}, nil
}

func (s *API) verifyDestination(ctx context.Context, req *engines.Request, in *destinationIn) (*engines.Response, error) {
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Name)
	if err != nil {
		return nil, err
	}
	dest, err := s.Pool.Open(d)
	if err != nil {
		return nil, Upstream(err)
	}
	defer dest.Close() //nolint:errcheck // there is nothing to lose
	good := true
	checks := []map[string]any{}
	for _, c := range dest.Verify(ctx) {
		good = good && (c.OK || c.Unknown)
		result := "ok"
		switch {
		case c.Unknown:
			result = "unknown"
		case !c.OK:
			result = "failed"
		}
		checks = append(checks, map[string]any{"name": c.Name, "result": result, "text": c.Text})
	}
	return &engines.Response{Data: map[string]any{"ok": good, "checks": checks}}, nil
}

func (s *API) setPaused(pause bool) engines.Handler[destinationIn] {
	return func(ctx context.Context, req *engines.Request, in *destinationIn) (*engines.Response, error) {
		d, err := s.updateDestination(ctx, req, in, func(d *state.Destination) error { d.Paused = pause; return nil })
		if err != nil {
			return nil, err
		}
		data, err := s.DescribeDestination(ctx, req, d)
		return &engines.Response{Data: data}, err
	}
}

// destinationShape is that of responses with a destination, up to its settings, which depend on its type: see engines.Route.Returns.
const destinationShape = `created_at, health: {circuit, circuit_code, circuit_open_until, drift_check_cause,
	drift_check_code, drift_check_failed_at, drift_checked_at, drifted: integer, links: {*: integer}, oldest_unsynced_change}, left_behind:
	{names: [{at, external_name, mount, secret_name}], total: integer}, name, options: {granularity_level, secret_name_template, custom_tags: {*: string},
	removal_attempts: integer, disable_strict_networking: boolean, allowed_ipv4_addresses: [string], allowed_ipv6_addresses: [string],
	allowed_ports: [integer]}, paused: boolean, purge_error,
	purge_initiated_at, redeploy_error, redeploy_pending: boolean, redeploy_retry_at, redeployed_at, type, updated_at, connection_details: `
