package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// pluginShape are the fields of describe: see engines.Route.Returns.
const pluginShape = "args: [string], builtin: boolean, command, deprecation_status, name, sha256, type, version"

// Routes declares the paths of the catalogue.
func (h *Host) Routes(r *engines.Router) {
	const operator = engines.Sudo | engines.RootNamespace
	engines.On(r, engines.Read, "plugins/catalog", "List all plugins, with versions.", operator, h.list).
		Returns("auth: [string], detailed: [{" + pluginShape + "}], secret: [string]")
	engines.On(r, engines.List, "plugins/catalog/{type}", "List the names of plugins of a type.", operator, h.names).
		Returns("keys: [string]")
	engines.On(r, engines.Read, "plugins/catalog/{type}/{name}", "Read a plugin.", operator, h.read).Returns(pluginShape)
	engines.On(r, engines.Update, "plugins/catalog/{type}/{name}", "Register a plugin.", operator|engines.Strict, h.register)
	engines.On(r, engines.Delete, "plugins/catalog/{type}/{name}", "Remove a plugin from the catalogue. Mounts of it stop working.", operator, h.remove)
	engines.On(r, engines.Read, "plugins/pins", "List the pinned versions.", operator, h.pins).Returns("pinned_versions: [{name, type, version}]")
	engines.On(r, engines.Read, "plugins/pins/{type}/{name}", "Read the pinned version of a plugin.", operator, h.readPin).
		Returns("name, type, version")
	engines.On(r, engines.Update, "plugins/pins/{type}/{name}", "Pin the version that mounts use which name none.", operator|engines.Strict, h.pin)
	engines.On(r, engines.Delete, "plugins/pins/{type}/{name}", "Remove a pin.", operator, h.unpin)
	engines.On(r, engines.Update, "plugins/reload/{type}/{name}", "Start the processes of a plugin again.", operator|engines.Strict, h.reload)
	engines.On(r, engines.Update, "plugins/reload/backend", "Start the processes of a plugin, or of mounts, again.", operator|engines.Strict, h.reloadBackend).
		Returns("reload_id")
}

type none struct{}

type typePath struct {
	Type string `json:"type" help:"auth or secret."`
}

type pluginPath struct {
	Type string `json:"type" help:"auth or secret."`
	Name string `json:"name" help:"Name of the plugin."`
}

type versioned struct {
	pluginPath
	Version string `json:"version" max:"64" help:"Version, such as v1.2.3."`
}

type registration struct {
	pluginPath
	SHA256  string             `json:"sha256" alias:"sha_256" required:"true" help:"SHA-256 of the file, in hexadecimal."`
	Command string             `json:"command" max:"255" help:"Name of the file in plugin_directory; without, the name of the plugin."`
	Args    engines.StringList `json:"args" max:"64" help:"Arguments."`
	Env     engines.StringList `json:"env" max:"64" help:"Environment, each NAME=value; the plugin has no other."`
	Version string             `json:"version" max:"64" help:"Version, such as v1.2.3."`
}

func describe(p *Plugin) map[string]any {
	return map[string]any{
		"name": p.Name, "type": p.Type, "version": p.Version, "command": p.Command, "args": append([]string{}, p.Args...),
		"sha256": p.SHA256, "builtin": p.Shipped, "deprecation_status": "",
	}
}

func (h *Host) list(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	all, err := h.all(ctx)
	if err != nil {
		return nil, err
	}
	data := map[string]any{}
	detailed := []map[string]any{}
	names := map[string][]string{typeAuth: {}, typeSecret: {}}
	for _, p := range all {
		detailed = append(detailed, describe(p))
		names[p.Type] = append(names[p.Type], p.Name)
	}
	for kind := range names {
		data[kind] = slices.Compact(names[kind])
	}
	data["detailed"] = detailed
	return &engines.Response{Data: data}, nil
}

func (h *Host) names(ctx context.Context, _ *engines.Request, in *typePath) (*engines.Response, error) {
	names, err := h.Names(ctx, in.Type == typeAuth)
	return engines.Listed(names, err)
}

func refOf(kind, name, version string) Ref { return Ref{kind == typeAuth, name, version} }

func (h *Host) read(ctx context.Context, _ *engines.Request, in *versioned) (*engines.Response, error) {
	p, err := h.Find(ctx, refOf(in.Type, in.Name, in.Version))
	if e, ok := errors.AsType[*engines.Error](err); ok && e.Kind == engines.KindInvalid {
		return nil, engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: describe(p)}, nil
}

func (h *Host) register(ctx context.Context, _ *engines.Request, in *registration) (*engines.Response, error) {
	p := &Plugin{Type: in.Type, Name: in.Name, Version: in.Version, Command: in.Command, Args: in.Args, Env: in.Env, SHA256: in.SHA256}
	if p.Command == "" {
		p.Command = p.Name
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	value, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	_, err = h.opts.Store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: p.storageKey(), Value: value}}})
	return nil, err
}

func (h *Host) remove(ctx context.Context, _ *engines.Request, in *versioned) (*engines.Response, error) {
	p := &Plugin{Type: in.Type, Name: in.Name, Version: in.Version}
	_, err := h.opts.Store.Commit(ctx, storage.Batch{Deletes: []storage.Key{p.storageKey()}})
	return nil, err
}

func pinKey(kind, name string) storage.Key { return pinKeys + storage.Key(kind+"/"+name) }

func (h *Host) pins(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	entries, err := h.opts.Store.Scan(ctx, pinKeys, "", 0)
	if err != nil {
		return nil, err
	}
	pins := []map[string]any{}
	for _, e := range entries {
		kind, name, _ := strings.Cut(string(e.Key[len(pinKeys):]), "/")
		pins = append(pins, map[string]any{"type": kind, "name": name, "version": string(e.Value)})
	}
	return &engines.Response{Data: map[string]any{"pinned_versions": pins}}, nil
}

func (h *Host) readPin(ctx context.Context, _ *engines.Request, in *pluginPath) (*engines.Response, error) {
	pinned, err := h.pinned(ctx, refOf(in.Type, in.Name, ""))
	switch {
	case err != nil:
		return nil, err
	case pinned == "":
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"type": in.Type, "name": in.Name, "version": pinned}}, nil
}

func (h *Host) pin(ctx context.Context, _ *engines.Request, in *versioned) (*engines.Response, error) {
	if in.Version == "" {
		return nil, engines.Invalid("field \"version\": name the version to pin")
	}
	if _, err := h.Find(ctx, refOf(in.Type, in.Name, in.Version)); err != nil {
		return nil, err
	}
	_, err := h.opts.Store.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: pinKey(in.Type, in.Name), Value: []byte(in.Version)}}})
	return nil, err
}

func (h *Host) unpin(ctx context.Context, _ *engines.Request, in *pluginPath) (*engines.Response, error) {
	_, err := h.opts.Store.Commit(ctx, storage.Batch{Deletes: []storage.Key{pinKey(in.Type, in.Name)}})
	return nil, err
}

func (h *Host) reload(_ context.Context, _ *engines.Request, in *pluginPath) (*engines.Response, error) {
	h.restart(func(e *engine) bool { return e.ref.kind() == in.Type && e.ref.Name == in.Name })
	return nil, nil
}

type reloadInput struct {
	Plugin string             `json:"plugin" max:"64" help:"Name of the plugin."`
	Mounts engines.StringList `json:"mounts" max:"256" help:"Paths of mounts, instead of a plugin."`
	Scope  string             `json:"scope" enum:",global" help:"Accepted: plugins run on the active node only."`
}

func (h *Host) reloadBackend(_ context.Context, _ *engines.Request, in *reloadInput) (*engines.Response, error) {
	if (in.Plugin == "") == (len(in.Mounts) == 0) {
		return nil, engines.Invalid("name either a \"plugin\" or its \"mounts\"")
	}
	h.restart(func(e *engine) bool {
		return in.Plugin != "" && e.ref.Name == in.Plugin || slices.Contains(in.Mounts, e.mount.Namespace+e.mount.Path)
	})
	return &engines.Response{Data: map[string]any{"reload_id": ""}}, nil
}
