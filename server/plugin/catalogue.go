package plugin

import (
	"context"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// Plugin is one that is in the catalogue.
type Plugin struct {
	Type    string   `json:"type"` // "auth" or "secret"
	Name    string   `json:"name"`
	Version string   `json:"version,omitempty"`
	Command string   `json:"command"` // a file in plugin_directory
	Args    []string `json:"args,omitempty"`
	Env     []string `json:"env,omitempty"`
	SHA256  string   `json:"sha256"` // hexadecimal
	Builtin bool     `json:"-"`      // came with the server
}

// key says whether two plugins are one process.
func (p *Plugin) key() string {
	return strings.Join([]string{p.Type, p.SHA256, p.Command, strings.Join(p.Args, "\x00"), strings.Join(p.Env, "\x00")}, "\x01")
}

// Find returns the plugin that a reference names.
func (h *Host) Find(ctx context.Context, ref Ref) (*Plugin, error) {
	return nil, engines.Invalid("no plugin %s is registered: coffer plugin register", ref)
}
