package saml

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
)

// providers keeps what the mount knows of its identity provider.
type providers struct{}

// provider returns the identity provider that the configuration names. Metadata is fetched when it is first needed and
// refreshed later; while that fails, the last good copy serves, as long as it is valid.
func (e *engine) provider(ctx context.Context, m engines.Mount, c *config) (*idp.Descriptor, error) {
	panic("todo")
}

// newerProvider fetches the metadata again, because what old says did not fit an answer. It returns nil if there is
// nothing newer: explicit configuration, the same certificates as before, or it was fetched moments ago.
func (e *engine) newerProvider(ctx context.Context, m engines.Mount, c *config, old *idp.Descriptor) (*idp.Descriptor, error) {
	panic("todo")
}
