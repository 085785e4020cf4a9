package saml

import (
	"bytes"
	"context"
	"crypto/x509"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
	"github.com/coffer-project/coffer/storage"
)

const providerKey storage.Key = "provider"

// storedProvider is the stored form of a metadataCopy, as JSON: what logins need, as whole documents may be larger than an
// entry can be.
type storedProvider struct {
	Format    int       `json:"format"` // 1
	URL       string    `json:"url"`
	FetchedAt time.Time `json:"fetched_at"`

	EntityID            string        `json:"entity_id"`
	SSOURL              string        `json:"sso_url"`
	Certificates        [][]byte      `json:"certificates"` // DER
	WantsSignedRequests bool          `json:"wants_signed_requests,omitempty"`
	ValidUntil          time.Time     `json:"valid_until,omitzero"`
	CacheDuration       time.Duration `json:"cache_duration,omitempty"` // nanoseconds
}

func (s *storedProvider) RecordFormat() *int { return &s.Format }

// same reports whether the other says the same about the provider, whenever it was fetched.
func (s *storedProvider) same(o *storedProvider) bool {
	return s.URL == o.URL && s.EntityID == o.EntityID && s.SSOURL == o.SSOURL && s.ValidUntil.Equal(o.ValidUntil) &&
		s.WantsSignedRequests == o.WantsSignedRequests && s.CacheDuration == o.CacheDuration &&
		slices.EqualFunc(s.Certificates, o.Certificates, bytes.Equal)
}

// stored returns the copy that the cluster keeps of the URL's metadata, nil if there is none. One that cannot be read is
// none: it will be fetched again.
func (e *engine) stored(ctx context.Context, m engines.Mount, url string) *metadataCopy {
	s := new(storedProvider)
	found, err := engines.GetRecord(ctx, m.ClusterStorage, providerKey, s)
	if err == nil && (!found || s.URL != url) {
		return nil
	}
	d := &idp.Descriptor{
		EntityID: s.EntityID, SSOURL: s.SSOURL, WantsSignedRequests: s.WantsSignedRequests,
		ValidUntil: s.ValidUntil, CacheDuration: s.CacheDuration,
	}
	for _, der := range s.Certificates {
		if err != nil {
			break
		}
		var c *x509.Certificate
		c, err = x509.ParseCertificate(der)
		d.Certificates = append(d.Certificates, c)
	}
	if err != nil {
		if ctx.Err() == nil {
			e.log.Warn("reading the kept copy of the identity provider's metadata", "err", err)
		}
		return nil
	}
	return &metadataCopy{url: url, fetchedAt: s.FetchedAt, descriptor: d}
}

// store keeps a copy for the nodes that become the active one later. What says nothing new is not written again.
func (e *engine) store(ctx context.Context, m engines.Mount, c *metadataCopy) error {
	d := c.descriptor
	s := &storedProvider{
		URL: c.url, FetchedAt: c.fetchedAt, EntityID: d.EntityID, SSOURL: d.SSOURL,
		WantsSignedRequests: d.WantsSignedRequests, ValidUntil: d.ValidUntil, CacheDuration: d.CacheDuration,
	}
	for _, certificate := range d.Certificates {
		s.Certificates = append(s.Certificates, certificate.Raw)
	}
	_, err := storage.Update(ctx, m.ClusterStorage, func(t *storage.Txn) error {
		old := new(storedProvider)
		if found, err := engines.GetRecord(ctx, t, providerKey, old); err == nil && found && old.same(s) {
			return nil
		}
		return engines.PutRecord(t, providerKey, s)
	})
	return err
}
