// Package mounts declares the sys paths about mounts: enabling, describing, tuning and moving secrets engines and auth methods, the
// users that their auth methods have locked out, and what the web UI asks about them. What a mount is, and what changes with it in one
// transaction, is in server/mount: here requests are decoded and answers given their form.
package mounts

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/input"
	"github.com/coffer-project/coffer/server/mount"
)

// Paths are the paths below sys/ about the mounts of a table.
type Paths struct {
	Table      *mount.Table
	Namespaces Namespaces
	Members    Members
}

// Members are the nodes of the cluster.
type Members interface {
	// FormatsAgreed reports whether every one knows what this version stores.
	FormatsAgreed() bool
}

// Namespaces are those that mounts lie in: namespace.Store.
type Namespaces interface {
	// ResolveFrom follows a path from the namespace with the id base through namespaces below it, and returns the
	// id of the last one and what is left of the path.
	ResolveFrom(ctx context.Context, base, path string) (id, rest string, err error)
	// Below reports whether a namespace is another one or lies below it.
	Below(ctx context.Context, ancestor, id string) bool
}

// Routes declares them.
func (p Paths) Routes(r *engines.Router) {
	p.mountPaths(r)
	p.lockoutPaths(r)
	p.uiPaths(r)
	p.remountPaths(r)
}

// none is the input of paths without fields.
type none struct{}

// both answers data, and the same again at the top level, where older clients read it.
func both(data map[string]any) *engines.Response {
	return &engines.Response{Data: data, Top: data}
}

// namespaceOf returns the id of the namespace that a request is in.
func namespaceOf(req *engines.Request) string { return cmp.Or(req.Mount.NamespaceID, "root") }

// resolveFrom follows a path from the request's namespace through those below it.
func (p Paths) resolveFrom(ctx context.Context, req *engines.Request, path string) (ns, rest string, err error) {
	return p.Namespaces.ResolveFrom(ctx, namespaceOf(req), path)
}

// table is sys/mounts or sys/auth: the same paths over the two kinds of mounts.
type table struct {
	Paths
	prefix string // of the mounts' paths: "" or "auth/"
	flags  engines.Flags
}

func (p Paths) mountPaths(r *engines.Router) {
	for _, t := range []struct {
		pattern, what string
		table         table
	}{
		{"mounts", "secrets engine", table{p, "", 0}},
		{"auth", "auth method", table{p, mount.AuthPrefix, engines.Sudo}},
	} {
		pattern := t.pattern
		engines.On(r, engines.Read, pattern, "List every "+t.what+".", 0, t.table.list).Returns("top; *: {" + mountShape + "}")
		engines.On(r, engines.Read, pattern+"/{path...}", "Describe one "+t.what+".", t.table.flags, t.table.read).Returns("top; " + mountShape)
		engines.On(r, engines.Update, pattern+"/{path...}", "Enable a "+t.what+" at this path.", t.table.flags, t.table.enable)
		engines.On(r, engines.Delete, pattern+"/{path...}", "Disable the "+t.what+" at this path and delete all its data.", t.table.flags, t.table.disable)
		engines.On(r, engines.Read, pattern+"/{path...}/tune", "Read the configuration of a "+t.what+".", t.table.flags, t.table.readTune).
			Returns("top; " + configShape + ", description, options: {*: string}, " + lockoutShape)
		engines.On(r, engines.Update, pattern+"/{path...}/tune", "Change the configuration of a "+t.what+".", t.table.flags, t.table.tune)
	}
}

// The shapes of responses: see engines.Route.Returns.
const (
	lockoutShape = `user_lockout_counter_reset_duration: integer "Seconds without a wrong password after which the earlier ones do not count.",
		user_lockout_disable: boolean "Whether no user of the mount is locked out.", user_lockout_duration: integer "Seconds that a lock lasts.",
		user_lockout_threshold: integer "Wrong passwords that lock a user out."`
	configShape = `default_lease_ttl: integer "Seconds that leases and tokens live; 0: the system's.", max_lease_ttl: integer "Seconds that leases and tokens
		live at most; 0: the system's.", force_no_cache: boolean, audit_non_hmac_request_keys: [string], audit_non_hmac_response_keys: [string],
		passthrough_request_headers: [string], allowed_response_headers: [string], listing_visibility, token_type,
		user_lockout_config: {` + lockoutShape + "}"
	mountShape = `accessor "Names the mount in identities and audit records.", config: {` + configShape + `}, description,
		external_entropy_access: boolean "Always false.", local: boolean "Whether the mount and its data stay in this cluster.", options: {*: string}?,
		plugin_version "Version that was asked for; empty: the pinned one, or an engine of the server.", running_plugin_version, running_sha256,
		seal_wrap: boolean "Always false.", type "Type of the engine, or the name of a plugin.", uuid, deprecation_status`
)

// describe is a mount as clients read it.
func describe(m *mount.Mounted) map[string]any {
	e := m.Entry
	var options any
	if len(e.Options) > 0 {
		options = e.Options
	}
	config := configFields(e, e.Config.DefaultLeaseTTL, e.Config.MaxLeaseTTL)
	var version, sum string
	if plugin, ok := m.Engine.(interface {
		Running() (version, sha256 string)
	}); ok {
		version, sum = plugin.Running()
	}
	return map[string]any{
		"accessor": e.Accessor, "config": config, "description": e.Description, "external_entropy_access": false,
		"local": e.Local, "options": options, "plugin_version": e.PluginVersion, "running_plugin_version": version,
		"running_sha256": sum, "seal_wrap": false, "type": e.Type, "uuid": e.UUID, "deprecation_status": "supported",
	}
}

func configFields(e mount.Entry, def, max int64) map[string]any {
	c := e.Config
	out := map[string]any{"default_lease_ttl": def, "max_lease_ttl": max, "force_no_cache": c.ForceNoCache}
	for name, list := range map[string][]string{
		"audit_non_hmac_request_keys": c.AuditNonHMACRequestKeys, "audit_non_hmac_response_keys": c.AuditNonHMACResponseKeys,
		"passthrough_request_headers": c.PassthroughRequestHeaders, "allowed_response_headers": c.AllowedResponseHeaders,
	} {
		if len(list) > 0 {
			out[name] = list
		}
	}
	if c.ListingVisibility != "" {
		out["listing_visibility"] = c.ListingVisibility
	}
	if kind := c.TokenType; kind != "" {
		out["token_type"] = kind
	} else if e.IsAuth() {
		out["token_type"] = "default-service"
	}
	if c.UserLockout != nil {
		out["user_lockout_config"] = lockoutFields(c.UserLockout)
	}
	return out
}

func (t table) mine(m *mount.Mounted) bool { return m.IsAuth() == (t.prefix != "") }

func (t table) list(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	all, err := t.Table.All(ctx, namespaceOf(req))
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, m := range all {
		if t.mine(m) {
			out[strings.TrimPrefix(m.Path, t.prefix)] = describe(m)
		}
	}
	return both(out), nil
}

type mountPath struct {
	Path string `json:"path" help:"Path of the mount."`
}

// find returns the mount at the path, or the refusal that clients recognise.
func (t table) find(ctx context.Context, req *engines.Request, path string) (*mount.Mounted, error) {
	clean, err := mount.CleanPath(path)
	if err != nil {
		return nil, err
	}
	m, err := t.Table.Get(ctx, namespaceOf(req), t.prefix+clean)
	if err != nil {
		return nil, err
	}
	if m == nil || !t.mine(m) {
		if t.prefix != "" {
			return nil, engines.Invalid("No auth engine at %s", clean)
		}
		return nil, engines.Invalid("No secret engine mount at %s", clean)
	}
	return m, nil
}

func (t table) read(ctx context.Context, req *engines.Request, in *mountPath) (*engines.Response, error) {
	m, err := t.either(ctx, req, in.Path)
	if err != nil {
		return nil, err
	}
	return both(describe(m)), nil
}

type enableInput struct {
	mountPath
	Type          string            `json:"type" form:"engine" required:"true" max:"64" help:"Type of the engine, such as \"kv\", or the name of a plugin."`
	Description   string            `json:"description" max:"4096" help:"Description for people."`
	Options       engines.StringMap `json:"options" help:"Options of the engine, such as version=2 for kv."`
	Local         bool              `json:"local" help:"Keep the mount and its data in this cluster."`
	Config        json.RawMessage   `json:"config" help:"Configuration, as for tune."`
	SealWrap      bool              `json:"seal_wrap" help:"Not supported: everything is encrypted by the cluster's keys, nothing by the seal once more."`
	Entropy       bool              `json:"external_entropy_access" help:"Not supported."`
	PluginName    string            `json:"plugin_name" max:"64" help:"Name of the plugin, with the type \"plugin\"."`
	PluginVersion string            `json:"plugin_version" max:"64" help:"Version of the plugin; without, the pinned one or else the newest."`
}

func (t table) enable(ctx context.Context, req *engines.Request, in *enableInput) (*engines.Response, error) {
	path, err := mount.CleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	if t.prefix == "" && strings.HasPrefix(path, mount.AuthPrefix) {
		return nil, engines.Invalid("paths below %q are for auth methods: enable one with sys/auth", mount.AuthPrefix)
	}
	if in.SealWrap || in.Entropy {
		return nil, engines.Invalid("fields \"seal_wrap\", \"external_entropy_access\": are not supported: leave them out")
	}
	kind, options := in.Type, maps.Clone(map[string]string(in.Options))
	if kind == "plugin" {
		kind = in.PluginName
	}
	if kind == "generic" { // what version 1 was called
		kind = "kv-v1"
	}
	if kind == "kv-v2" || kind == "kv-v1" {
		if options == nil {
			options = map[string]string{}
		}
		options["version"] = kind[len("kv-v"):]
		kind = "kv"
	}
	e := mount.NewEntry(namespaceOf(req), t.prefix+path, kind, in.Description)
	e.Options, e.Local, e.PluginVersion = options, in.Local, in.PluginVersion
	if len(in.Config) > 0 && string(in.Config) != "null" {
		inner := &engines.Request{Op: engines.Update, Path: "config", Body: in.Config}
		// Decoded by the same declaration as tune.
		r := engines.NewRouter()
		engines.On(r, engines.Update, "config", "", 0, func(_ context.Context, req *engines.Request, in *tuneInput) (*engines.Response, error) {
			return nil, apply(e, in, req.Given)
		})
		if _, err := r.Handle(ctx, inner); err != nil {
			return nil, err
		}
	}
	return nil, t.Table.Enable(ctx, e)
}

func (t table) disable(ctx context.Context, req *engines.Request, in *mountPath) (*engines.Response, error) {
	path, err := mount.CleanPath(in.Path)
	if err != nil {
		return nil, err
	}
	if t.prefix == "" && strings.HasPrefix(path, mount.AuthPrefix) {
		return nil, nil // no secrets engine is there
	}
	err = t.Table.Disable(ctx, namespaceOf(req), t.prefix+path)
	if e, ok := errors.AsType[*engines.Error](err); ok && e.Kind == engines.KindUpstream {
		return &engines.Response{Warnings: []string{"The mount is disabled. Not all that it has made at its provider is removed yet; that is tried again until it is, and " +
			"the path stays taken meanwhile: " + e.Detail}}, nil
	}
	return nil, err
}

type tuneInput struct {
	DefaultLeaseTTL           string             `json:"default_lease_ttl" form:"duration" max:"64" help:"Default lifetime of leases and tokens, a duration; 0 or \"system\" means the system's."`
	MaxLeaseTTL               string             `json:"max_lease_ttl" form:"duration" max:"64" help:"Longest lifetime of leases and tokens, a duration; 0 or \"system\" means the system's."`
	ForceNoCache              bool               `json:"force_no_cache" help:"Accepted for compatibility."`
	Description               string             `json:"description" max:"4096" help:"Description for people."`
	Options                   engines.StringMap  `json:"options" help:"Options of the engine; given ones replace, others stay."`
	ListingVisibility         string             `json:"listing_visibility" enum:",hidden,unauth" help:"\"unauth\" shows the mount to callers without a token."`
	AuditNonHMACRequestKeys   engines.StringList `json:"audit_non_hmac_request_keys" help:"Request fields written to the audit log in clear."`
	AuditNonHMACResponseKeys  engines.StringList `json:"audit_non_hmac_response_keys" help:"Response fields written to the audit log in clear."`
	PassthroughRequestHeaders engines.StringList `json:"passthrough_request_headers" help:"Request headers passed to the engine."`
	AllowedResponseHeaders    engines.StringList `json:"allowed_response_headers" help:"Response headers the engine may set."`
	TokenType                 string             `json:"token_type" enum:",default-service,default-batch,service,batch" help:"Type of tokens an auth method issues."`
	DelegatedAuthAccessors    engines.StringList `json:"delegated_auth_accessors" help:"Not supported: engines do not log in for their clients."`
	IdentityTokenKey          string             `json:"identity_token_key" max:"256" help:"Not supported but for \"default\": identity tokens have the server's own key."`
	PluginVersion             string             `json:"plugin_version" max:"64" help:"Version of the plugin, from its next start on."`
	UserLockoutConfig         json.RawMessage    `json:"user_lockout_config" help:"When wrong passwords lock a user out: lockout_threshold, lockout_duration, lockout_counter_reset_duration, lockout_disable."`
}

type tunePathInput struct {
	mountPath
	tuneInput
}

// apply puts the given fields into the entry.
func apply(e *mount.Entry, in *tuneInput, given func(string) bool) error {
	if given("plugin_version") {
		if !e.Plugin && in.PluginVersion != "" && e.UUID != "" {
			return engines.Invalid("field \"plugin_version\": %q is part of the server", e.Type)
		}
		e.PluginVersion = in.PluginVersion
	}
	if len(in.DelegatedAuthAccessors) > 0 {
		return engines.Invalid("field \"delegated_auth_accessors\": is not supported: leave it out")
	}
	if in.IdentityTokenKey != "" && in.IdentityTokenKey != "default" {
		return engines.Invalid("field \"identity_token_key\": must be \"default\": identity tokens are signed with the server's own key")
	}
	defaultTTL, err := leaseTTL("default_lease_ttl", in.DefaultLeaseTTL)
	if err != nil {
		return err
	}
	maxTTL, err := leaseTTL("max_lease_ttl", in.MaxLeaseTTL)
	if err != nil {
		return err
	}
	c := &e.Config
	set := map[string]func(){
		"default_lease_ttl":            func() { c.DefaultLeaseTTL = defaultTTL },
		"max_lease_ttl":                func() { c.MaxLeaseTTL = maxTTL },
		"force_no_cache":               func() { c.ForceNoCache = in.ForceNoCache },
		"description":                  func() { e.Description = in.Description },
		"listing_visibility":           func() { c.ListingVisibility = in.ListingVisibility },
		"audit_non_hmac_request_keys":  func() { c.AuditNonHMACRequestKeys = in.AuditNonHMACRequestKeys },
		"audit_non_hmac_response_keys": func() { c.AuditNonHMACResponseKeys = in.AuditNonHMACResponseKeys },
		"passthrough_request_headers":  func() { c.PassthroughRequestHeaders = in.PassthroughRequestHeaders },
		"allowed_response_headers":     func() { c.AllowedResponseHeaders = in.AllowedResponseHeaders },
		"token_type":                   func() { c.TokenType = in.TokenType },
	}
	for name, do := range set {
		if given(name) {
			do()
		}
	}
	if given("user_lockout_config") {
		if err := tuneLockout(e, in.UserLockoutConfig); err != nil {
			return err
		}
	}
	if given("token_type") && in.TokenType != "" && !e.IsAuth() {
		return engines.Invalid("field \"token_type\" is for auth methods only")
	}
	if c.MaxLeaseTTL > 0 && c.DefaultLeaseTTL > c.MaxLeaseTTL {
		return engines.Invalid("field \"default_lease_ttl\" must not be longer than \"max_lease_ttl\"")
	}
	return applyOptions(e, in.Options)
}

// applyOptions merges options. A kv mount of version 1 can become one of version 2, and not go back: older versions of its
// secrets would be lost.
func applyOptions(e *mount.Entry, options engines.StringMap) error {
	if len(options) == 0 {
		return nil
	}
	merged := maps.Clone(e.Options)
	if merged == nil {
		merged = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if name == "version" && e.Type == "kv" && e.Options[name] == "2" && options[name] != "2" {
			return engines.Invalid("option \"version\" of a kv mount cannot go back from 2 to %s: enable another mount and copy the secrets", options[name])
		}
		merged[name] = options[name]
	}
	e.Options = merged
	return nil
}

// leaseTTL returns the seconds of a lease TTL as clients write it; 0 is the system's.
func leaseTTL(name, text string) (int64, error) {
	if text == "system" {
		return 0, nil
	}
	d, err := input.ParseDuration(text)
	if err != nil {
		return 0, engines.Invalid("field %q: %v, or \"system\"", name, err)
	}
	return int64(d / time.Second), nil
}

// either is find for reading and tuning. Clients do both with auth methods below sys/mounts too, where it needs no
// sudo, as in the family.
func (t table) either(ctx context.Context, req *engines.Request, path string) (*mount.Mounted, error) {
	if name, ok := strings.CutPrefix(strings.TrimLeft(path, "/"), mount.AuthPrefix); ok && t.prefix == "" {
		return table{Paths: t.Paths, prefix: mount.AuthPrefix}.find(ctx, req, name)
	}
	return t.find(ctx, req, path)
}

func (t table) readTune(ctx context.Context, req *engines.Request, in *mountPath) (*engines.Response, error) {
	m, err := t.either(ctx, req, in.Path)
	if err != nil {
		return nil, err
	}
	out := configFields(m.Entry, int64(m.Mount.DefaultLeaseTTL.Seconds()), int64(m.Mount.MaxLeaseTTL.Seconds()))
	out["description"] = m.Description
	if len(m.Options) > 0 {
		out["options"] = m.Options
	}
	if m.Config.UserLockout != nil {
		maps.Copy(out, lockoutFields(m.Config.UserLockout))
	}
	return both(out), nil
}

func (t table) tune(ctx context.Context, req *engines.Request, in *tunePathInput) (*engines.Response, error) {
	m, err := t.either(ctx, req, in.Path)
	if err != nil {
		return nil, err
	}
	return nil, t.Table.Tune(ctx, namespaceOf(req), m.Path, func(e *mount.Entry) error {
		version := e.Options["version"]
		err := apply(e, &in.tuneInput, req.Given)
		if err == nil && e.Type == "kv" && e.Options["version"] == "2" && version != "2" && !t.Members.FormatsAgreed() {
			err = engines.Invalid("option \"version\" of a kv mount can be changed once every node of the cluster runs this version, and knows how to read the secrets")
		}
		return err
	})
}
