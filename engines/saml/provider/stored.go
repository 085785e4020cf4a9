package provider

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
	"github.com/coffer-project/coffer/storage"
)

// Where a copy of the metadata is stored: what the cluster has fetched, and what an administrator has verified, which is
// shared, so that a certificate that has been removed is out in all clusters.
const (
	providerKey storage.Key = "provider" // in the ClusterStorage
	verifiedKey storage.Key = "verified" // in the Storage
)

// storedProvider is the stored form of a metadataCopy, as JSON: what logins need, as whole documents may be larger than an
// entry can be.
type storedProvider struct {
	Format    int       `json:"format"` // 1
	URL       string    `json:"url"`
	FetchedAt time.Time `json:"fetched_at"`
	// Epoch names the verified copy that this one is, or that was there when this one was fetched. A cluster's copy with
	// another epoch than the verified one is older. It is compared, and not the time, as clocks of clusters differ.
	Epoch string `json:"epoch,omitempty"`

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

// newCopy returns the copy of a document that has been fetched.
func newCopy(url string, fetchedAt time.Time, d *idp.Descriptor) *metadataCopy {
	s := &storedProvider{
		URL: url, FetchedAt: fetchedAt, EntityID: d.EntityID, SSOURL: d.SSOURL,
		WantsSignedRequests: d.WantsSignedRequests, ValidUntil: d.ValidUntil, CacheDuration: d.CacheDuration,
	}
	for _, certificate := range d.Certificates {
		s.Certificates = append(s.Certificates, certificate.Raw)
	}
	return &metadataCopy{fetchedAt: fetchedAt, descriptor: d, record: s}
}

// known returns the copy of the URL's metadata that logins go by, nil if there is none: the cluster's own, unless another
// one has been verified since that was fetched. A cluster's copy that cannot be read is none: it will be fetched again. A
// verified one that cannot be read is an error, as without it a certificate might come back.
func (p *Provider) known(ctx context.Context, m engines.Mount, url string) (*metadataCopy, error) {
	verified, err := stored(ctx, m.Storage, verifiedKey, url)
	if err != nil {
		return nil, fmt.Errorf("reading the verified copy of the identity provider's metadata: %w", err)
	}
	own, err := stored(ctx, m.ClusterStorage, providerKey, url)
	if verified != nil && (own == nil || own.Epoch != verified.Epoch) {
		return p.parsed(verified)
	}
	var c *metadataCopy
	if own != nil {
		c, err = p.parsed(own)
	}
	if err != nil && ctx.Err() == nil {
		p.log.Warn("reading the kept copy of the identity provider's metadata", "err", err)
	}
	return c, ctx.Err()
}

// stored returns the record of the URL's metadata under the key, nil if there is none.
func stored(ctx context.Context, g engines.Getter, key storage.Key, url string) (*storedProvider, error) {
	s := new(storedProvider)
	found, err := engines.GetRecord(ctx, g, key, s)
	if err != nil || !found || s.URL != url {
		return nil, err
	}
	return s, nil
}

// parsed returns the copy that a record holds.
func (p *Provider) parsed(s *storedProvider) (*metadataCopy, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.metadata; last != nil && last.record.same(s) {
		return &metadataCopy{s.FetchedAt, last.descriptor, s}, nil
	}
	d := &idp.Descriptor{
		EntityID: s.EntityID, SSOURL: s.SSOURL, WantsSignedRequests: s.WantsSignedRequests,
		ValidUntil: s.ValidUntil, CacheDuration: s.CacheDuration,
	}
	for _, der := range s.Certificates {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		d.Certificates = append(d.Certificates, c)
	}
	p.metadata = &metadataCopy{s.FetchedAt, d, s}
	return p.metadata, nil
}

// store makes a copy the one that logins of the cluster go by. It was fetched when before was the one.
func (p *Provider) store(ctx context.Context, m engines.Mount, c, before *metadataCopy) error {
	if before != nil {
		c.record.Epoch = before.record.Epoch
	}
	return put(ctx, m.ClusterStorage, providerKey, c.record)
}

// publish makes a copy that has just been fetched the one that logins of all clusters go by. A secondary cluster cannot:
// what it verifies is its own copy.
func (p *Provider) publish(ctx context.Context, m engines.Mount, c *metadataCopy) error {
	s := *c.record
	s.Epoch = rand.Text()
	if err := put(ctx, m.Storage, verifiedKey, &s); !errors.Is(err, storage.ErrPrimaryOnly) {
		return err
	}
	return nil
}

func put(ctx context.Context, to storage.Store, key storage.Key, s *storedProvider) error {
	_, err := storage.Update(ctx, to, func(t *storage.Txn) error { return engines.PutRecord(t, key, s) })
	return err
}
