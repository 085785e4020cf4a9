package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Plugin is one that is in the catalogue.
type Plugin struct {
	Type    string   `json:"type"` // "auth" or "secret"
	Name    string   `json:"name"`
	Version string   `json:"version,omitempty"` // semantic, with a "v"
	Command string   `json:"command"`           // a file in plugin_directory
	Args    []string `json:"args,omitempty"`
	Env     []string `json:"env,omitempty"` // "NAME=value"; may be secret
	SHA256  string   `json:"sha256"`        // hexadecimal
	Shipped bool     `json:"-"`             // came with the server
}

// Types of plugins in the catalogue.
const (
	typeAuth   = "auth"
	typeSecret = "secret"
)

// Manifest is the name of the file in plugin_directory that lists the plugins which come with the server.
const Manifest = "plugins.json"

var (
	prefix  = storage.NewKey(storage.Shared, "sys", "root/plugins/catalog/")
	pinKeys = storage.NewKey(storage.Shared, "sys", "root/plugins/pins/")
)

func (p *Plugin) storageKey() storage.Key {
	return prefix + storage.Key(p.Type+"/"+p.Name+"/"+cmp.Or(p.Version, "-"))
}

// processKey is the same for plugins that one process serves.
func (p *Plugin) processKey() string {
	return strings.Join([]string{p.Type, p.SHA256, p.Command, strings.Join(p.Args, "\x00"), strings.Join(p.Env, "\x00")}, "\x01")
}

// Lengths are checked apart: a counted repetition is unrolled when it is compiled, at each start of the program.
var (
	nameForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
	sumForm  = regexp.MustCompile(`^[0-9a-fA-F]*$`)
	envForm  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*=`)
)

// Validate reports all that is wrong with a plugin, and brings its version into the form of the catalogue.
func (p *Plugin) Validate() error {
	var problems engines.Problems
	if p.Type != typeAuth && p.Type != typeSecret {
		problems.Add("type", "must be auth or secret: plugins of databases need the database engine, which this version does not have")
	}
	if len(p.Name) > 64 || !nameForm.MatchString(p.Name) {
		problems.Add("name", "must be letters, digits, \"-\", \"_\" and \".\"")
	}
	if len(p.SHA256) != 64 || !sumForm.MatchString(p.SHA256) {
		problems.Add("sha256", "must be the SHA-256 of the file, 64 hexadecimal digits")
	}
	if p.Command == "" || filepath.Base(p.Command) != p.Command {
		problems.Add("command", "must be the name of a file in plugin_directory, without a path; arguments go to \"args\"")
	}
	for _, e := range p.Env {
		if !envForm.MatchString(e) {
			problems.Add("env", "must be a list of NAME=value")
			break
		}
	}
	if p.Version != "" {
		v, err := version.NewSemver(p.Version)
		if err != nil {
			problems.Add("version", "must be a semantic version such as v1.2.3")
		} else {
			p.Version = "v" + v.String()
		}
	}
	return problems.Err()
}

// all returns the plugins of the catalogue and those that came with the server, sorted by type, name, and version, oldest first. An
// entry of the catalogue takes the place of one that came with the server.
func (h *Host) all(ctx context.Context) ([]*Plugin, error) {
	entries, err := h.opts.Store.Scan(ctx, prefix, "", 0)
	if err != nil {
		return nil, err
	}
	var out []*Plugin
	has := map[storage.Key]bool{}
	for _, e := range entries {
		var p Plugin
		if err := json.Unmarshal(e.Value, &p); err != nil {
			return nil, fmt.Errorf("decoding %s: %w", e.Key, err)
		}
		out = append(out, &p)
		has[e.Key] = true
	}
	for _, p := range h.opts.Shipped {
		if !has[p.storageKey()] {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b *Plugin) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name), compareVersions(a.Version, b.Version))
	})
	return out, nil
}

func compareVersions(a, b string) int {
	x, err1 := version.NewSemver(a)
	y, err2 := version.NewSemver(b)
	if err1 != nil || err2 != nil {
		return strings.Compare(a, b)
	}
	return x.Compare(y)
}

// Find returns the plugin that a reference names: without a version the pinned one, else the one without a version, else the newest.
func (h *Host) Find(ctx context.Context, ref Ref) (*Plugin, error) {
	all, err := h.all(ctx)
	if err != nil {
		return nil, err
	}
	want := ref.Version
	if want == "" {
		if want, err = h.pinned(ctx, ref); err != nil {
			return nil, err
		}
	}
	var found *Plugin
	for _, p := range all {
		switch {
		case p.Type != ref.kind() || p.Name != ref.Name:
		case want == "" && (found == nil || found.Version != ""), want != "" && strings.TrimPrefix(p.Version, "v") == strings.TrimPrefix(want, "v"):
			found = p
		}
	}
	other := func(p *Plugin) bool { return p.Type == ref.kind() && p.Name == ref.Name }
	switch {
	case found != nil:
		return found, nil
	case release[Ref{Auth: ref.Auth, Name: ref.Name}] != "" && !slices.ContainsFunc(all, other):
		return nil, engines.Invalid("the plugin %s, which comes with Coffer, is not there: put the directory \"plugins\" of the release beside the program, or name it in plugin_directory; make plugins builds it", ref)
	}
	return nil, engines.Invalid("no plugin %s is registered: see coffer plugin list", ref)
}

func (h *Host) pinned(ctx context.Context, ref Ref) (string, error) {
	e, err := h.opts.Store.Get(ctx, pinKeys+storage.Key(ref.kind()+"/"+ref.Name))
	if errors.Is(err, storage.ErrNotFound) {
		return "", nil
	}
	return string(e.Value), err
}

// Check implements mount.Plugins.
func (h *Host) Check(ctx context.Context, auth bool, name, version string) error {
	_, err := h.Find(ctx, Ref{auth, name, version})
	return err
}

// Names implements mount.Plugins.
func (h *Host) Names(ctx context.Context, auth bool) ([]string, error) {
	all, err := h.all(ctx)
	var names []string
	for _, p := range all {
		if p.Type == (Ref{Auth: auth}).kind() {
			names = append(names, p.Name)
		}
	}
	return slices.Compact(names), err
}

// ReadManifest returns the plugins that came with the server. A directory without a manifest has none.
func ReadManifest(directory string) ([]*Plugin, error) {
	if directory == "" {
		return nil, nil
	}
	text, err := os.ReadFile(filepath.Join(directory, Manifest))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*Plugin
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", Manifest, err)
	}
	for _, p := range all {
		if p.Shipped = true; p.Validate() != nil {
			return nil, fmt.Errorf("%s: %w", Manifest, p.Validate())
		}
	}
	return all, nil
}
