package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server"
	"github.com/coffer-project/coffer/server/plugin"
	"github.com/coffer-project/coffer/server/plugin/backend"
	"github.com/coffer-project/coffer/server/plugin/process"
)

// newPlugins returns what makes the host of plugins. Their sockets are in tempDir, which no other server uses; ui: the server has one.
func newPlugins(c config.Plugins, ui bool, tempDir, version string, log *slog.Logger) (func(server.PluginHost) server.Plugins, error) {
	var user *process.User
	if c.User != "" {
		var err error
		if user, err = process.FindUser(c.User); err != nil {
			return nil, fmt.Errorf("plugin_user: %w", err)
		}
	}
	left, err := filepath.Glob(filepath.Join(tempDir, "plugin-dir*")) // by a server that was killed
	for _, sockets := range left {
		err = errors.Join(err, os.RemoveAll(sockets))
	}
	if err != nil {
		return nil, err
	}
	if c.Directory == "" {
		c.Directory = shippedDirectory()
	}
	shipped, err := plugin.ReadManifest(c.Directory)
	if err != nil {
		return nil, err
	}
	for _, p := range c.Registered {
		entry := &plugin.Plugin{Type: p.Type, Name: p.Name, Version: p.Version, Command: cmp.Or(p.Command, p.Name), SHA256: p.SHA256, Args: p.Args, Env: p.Env, Shipped: true}
		if err := entry.Validate(); err != nil {
			return nil, fmt.Errorf("plugin %q %q: %w", p.Type, p.Name, err)
		}
		shipped = append(shipped, entry)
	}
	return func(h server.PluginHost) server.Plugins {
		return plugin.New(plugin.Options{
			Store: h.Store(), Node: h, Directory: c.Directory, Shipped: shipped, User: user, TempDir: tempDir, Version: version, Logger: log,
			UI: ui, Limits: process.Limits{MemoryBytes: uint64(c.MemoryLimit)},
			System: func(m engines.Mount) backend.System { return pluginSystem{h, m} },
		})
	}, nil
}

// shippedDirectory is where the plugins are that come with the server: beside its program. "": there are none.
func shippedDirectory() string {
	program, err := os.Executable()
	if err != nil {
		return ""
	}
	directory := filepath.Join(filepath.Dir(program), "plugins")
	if _, err := os.Stat(filepath.Join(directory, plugin.Manifest)); err != nil {
		return ""
	}
	return directory
}

// pluginSystem is what a mount's plugin may know of the server: a backend.System.
type pluginSystem struct {
	host  server.PluginHost
	mount engines.Mount
}

func (p pluginSystem) TTLs() (defaultTTL, maxTTL time.Duration) {
	return p.mount.DefaultLeaseTTL, p.mount.MaxLeaseTTL
}

func (p pluginSystem) Local() bool { return p.mount.Local }

func (p pluginSystem) Secondary() bool { return p.host.Secondary() }

func (p pluginSystem) Cluster() (name, id string) { return p.host.Cluster() }

func (p pluginSystem) Password(ctx context.Context, policy string) (string, error) {
	return p.host.Password(ctx, p.mount.NamespaceID, policy)
}

func (p pluginSystem) Wrap(ctx context.Context, data json.RawMessage, ttl time.Duration) (*engines.WrapInfo, error) {
	return p.host.Wrap(ctx, p.mount, data, ttl)
}

// Entity implements backend.System.
func (p pluginSystem) Entity(ctx context.Context, id string) (*backend.Entity, error) {
	var e struct {
		ID       string            `json:"id"`
		Name     string            `json:"name"`
		Disabled bool              `json:"disabled"`
		Metadata map[string]string `json:"metadata"`
		GroupIDs []string          `json:"group_ids"`
		Aliases  []struct {
			ID            string            `json:"id"`
			MountType     string            `json:"mount_type"`
			MountAccessor string            `json:"mount_accessor"`
			Name          string            `json:"name"`
			Metadata      map[string]string `json:"metadata"`
		} `json:"aliases"`
	}
	found, err := p.read(ctx, "entity/id/"+id, &e)
	if err != nil || !found {
		return nil, err
	}
	out := &backend.Entity{ID: e.ID, Name: e.Name, Disabled: e.Disabled, Metadata: e.Metadata, NamespaceID: p.mount.NamespaceID}
	for _, a := range e.Aliases {
		out.Aliases = append(out.Aliases, backend.Alias(a))
	}
	for _, id := range e.GroupIDs {
		var g struct {
			ID       string            `json:"id"`
			Name     string            `json:"name"`
			Metadata map[string]string `json:"metadata"`
		}
		if found, err := p.read(ctx, "group/id/"+id, &g); err != nil {
			return nil, err
		} else if found {
			out.Groups = append(out.Groups, backend.Group{ID: g.ID, Name: g.Name, Metadata: g.Metadata, NamespaceID: p.mount.NamespaceID})
		}
	}
	return out, nil
}

func (p pluginSystem) read(ctx context.Context, path string, into any) (bool, error) {
	data, err := p.host.Identity(ctx, p.mount.NamespaceID, path)
	if err != nil || data == nil {
		return false, err
	}
	return true, json.Unmarshal(data, into)
}
