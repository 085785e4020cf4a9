package saml

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const configKey storage.Key = "config"

// config is the stored configuration of a mount, as JSON.
type config struct {
	Format int `json:"format"` // 1

	// Either the metadata's URL is set, or the three fields after it.
	IDPMetadataURL string `json:"idp_metadata_url,omitempty"`
	IDPSSOURL      string `json:"idp_sso_url,omitempty"`
	IDPEntityID    string `json:"idp_entity_id,omitempty"`
	IDPCert        string `json:"idp_cert,omitempty"` // PEM, one certificate or several

	EntityID       string             `json:"entity_id"`
	ACSURLs        engines.StringList `json:"acs_urls"`
	DefaultRole    string             `json:"default_role,omitempty"`
	VerboseLogging bool               `json:"verbose_logging,omitempty"`

	ValidateResponseSignature  bool `json:"validate_response_signature,omitempty"`
	ValidateAssertionSignature bool `json:"validate_assertion_signature,omitempty"`
	SignAuthnRequests          bool `json:"sign_authn_requests,omitempty"`
	AllowIDPInitiated          bool `json:"allow_idp_initiated,omitempty"`
}

func (c *config) format() *int { return &c.Format }

var errNotConfigured = engines.Invalid("the method is not configured: write its config first")

// getConfig returns the configuration, or errNotConfigured.
func getConfig(ctx context.Context, s getter) (*config, error) {
	c := new(config)
	found, err := get(ctx, s, configKey, c)
	if err == nil && !found {
		err = errNotConfigured
	}
	return c, err
}

type none struct{}

func configExists(ctx context.Context, req *engines.Request) (bool, error) {
	return get(ctx, req.Mount.Storage, configKey, new(config))
}

func readConfig(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }

func writeConfig(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }

func (e *engine) verifyConfig(context.Context, *engines.Request, *none) (*engines.Response, error) {
	panic("todo")
}
