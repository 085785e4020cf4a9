package cert

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const configKey storage.Key = "config"

// config is the stored form, as JSON.
type config struct {
	Format            int  `json:"format"` // 1
	DisableBinding    bool `json:"disable_binding,omitempty"`
	AliasMetadata     bool `json:"enable_identity_alias_metadata,omitempty"`
	MetadataOnFailure bool `json:"enable_metadata_on_failures,omitempty"`
}

// RecordFormat implements engines.Record.
func (c *config) RecordFormat() *int { return &c.Format }

func getConfig(ctx context.Context, s engines.Getter) (*config, error) {
	c := new(config)
	_, err := engines.GetRecord(ctx, s, configKey, c)
	return c, err
}

// The sizes of caches that the family has, and this method does not: their defaults can be written.
const (
	ocspCacheSize = 100
	roleCacheSize = 200
)

type configIn struct {
	DisableBinding    bool `json:"disable_binding" help:"Let a token be renewed without the certificate of its login."`
	AliasMetadata     bool `json:"enable_identity_alias_metadata" help:"Keep the metadata of the certificate with the alias of the entity, too."`
	MetadataOnFailure bool `json:"enable_metadata_on_failures" help:"Name the certificate in the audit record of a login that is refused."`
	OCSPCacheSize     int  `json:"ocsp_cache_size" default:"100" help:"There is no OCSP: nothing but the default."`
	RoleCacheSize     int  `json:"role_cache_size" default:"200" help:"All roles are kept in memory: nothing but the default."`
}

func readConfig(ctx context.Context, req *engines.Request, _ *struct{}) (*engines.Response, error) {
	c, err := getConfig(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{
		"disable_binding": c.DisableBinding, "enable_identity_alias_metadata": c.AliasMetadata,
		"enable_metadata_on_failures": c.MetadataOnFailure, "ocsp_cache_size": ocspCacheSize, "role_cache_size": roleCacheSize,
	}}, nil
}

func writeConfig(ctx context.Context, req *engines.Request, in *configIn) (*engines.Response, error) {
	var p engines.Problems
	if in.OCSPCacheSize != ocspCacheSize {
		p.Add("ocsp_cache_size", "there is no OCSP, and no cache of it: leave it out; revocation lists go to crls/NAME")
	}
	if in.RoleCacheSize != roleCacheSize {
		p.Add("role_cache_size", "all roles are kept in memory: leave it out")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		c, err := getConfig(ctx, t)
		if err != nil {
			return err
		}
		for field, set := range map[string]struct {
			into *bool
			to   bool
		}{
			"disable_binding":                {&c.DisableBinding, in.DisableBinding},
			"enable_identity_alias_metadata": {&c.AliasMetadata, in.AliasMetadata},
			"enable_metadata_on_failures":    {&c.MetadataOnFailure, in.MetadataOnFailure},
		} {
			if req.Given(field) {
				*set.into = set.to
			}
		}
		return engines.PutRecord(t, configKey, c)
	})
	return nil, err
}
