package process

import (
	"context"

	"github.com/coffer-project/coffer/engines"
)

// ConfigState tells the configuration that this node runs with.
type ConfigState struct {
	// Sanitized is the configuration without anything secret, as JSON shows it.
	Sanitized func() map[string]any
}

// Routes declares sys/config/state/sanitized.
func (c ConfigState) Routes(r *engines.Router) {
	engines.On(r, engines.Read, "config/state/sanitized", "Read the configuration that this node runs with, without secrets.", engines.AnyNode|engines.RootNamespace, c.read).
		Returns("top; *: any")
}

func (c ConfigState) read(context.Context, *engines.Request, *none) (*engines.Response, error) {
	return both(c.Sanitized()), nil
}
