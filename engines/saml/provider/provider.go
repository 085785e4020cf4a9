// Package provider is what a mount knows of its identity provider: the configuration, explicit or by the URL of metadata, the
// copies of the metadata that logins go by, and the key that requests are signed with, with the paths of all of these. Logins ask
// Provider.Descriptor whose responses to accept. Start reading at Config, then Provider.
package provider

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
)

// When metadata is fetched.
const (
	refreshDefault = time.Hour // if it does not say how long it may be kept
	refreshMin     = 5 * time.Minute
	refreshMax     = 24 * time.Hour

	fetchTimeout = 20 * time.Second // the fetch and keeping what it got
	newerEvery   = time.Minute      // for responses that do not fit what is known
	retryWaiting = 10 * time.Second // after a failure, for logins that cannot go on without
	retryFirst   = time.Minute      // after a failure, as long as there is a copy; doubled each time
	retryMax     = time.Hour
)

// Provider is what the node has of the mount's identity provider besides what is stored.
type Provider struct {
	log      *slog.Logger
	failures *atomic.Int64 // of fetches
	// FetchMetadata is idp.Fetch, unless a test has set another.
	FetchMetadata func(ctx context.Context, url string) ([]byte, error)

	mu       sync.Mutex
	explicit explicitCopy
	metadata *metadataCopy // what was parsed last: only to spare parsing it again
	flight   *flight       // the fetch that runs, nil if none does
	attempts attempts
}

// New returns the Provider of one mount. Fetches that fail are counted.
func New(log *slog.Logger, failures *atomic.Int64) *Provider {
	return &Provider{log: log, failures: failures, FetchMetadata: idp.Fetch}
}

// explicitCopy is a parsed explicit configuration.
type explicitCopy struct {
	ssoURL, entityID, cert string
	descriptor             *idp.Descriptor
}

// metadataCopy is a good copy of metadata. It is not modified.
type metadataCopy struct {
	fetchedAt  time.Time
	descriptor *idp.Descriptor
	record     *storedProvider // as it is stored
}

// flight is one fetch, for all who wait for it.
type flight struct {
	url string
	// done is closed once got and err are set, and got is stored.
	done chan struct{}
	got  *metadataCopy
	err  error
}

// attempts is how fetching from a URL went lately.
type attempts struct {
	url      string
	at       time.Time // of the last one's end
	failures int       // since the last good one
	err      error     // of the last one
}

// Descriptor returns the identity provider that the configuration names. What logins go by is what the cluster has stored, so
// that no node trusts a certificate that another has seen removed. Metadata is fetched when it is first needed and when it
// is due, and logins wait for that; if the fetch fails, the last good copy serves, as long as it is valid.
func (p *Provider) Descriptor(ctx context.Context, m engines.Mount, c *Config) (*idp.Descriptor, error) {
	url := c.IDPMetadataURL
	if url == "" {
		return p.explicitly(c)
	}
	known, err := p.known(ctx, m, url)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if known.usable(now) {
		if p.pausing(url, now) || !known.due(now) && p.running(url) == nil {
			return known.descriptor, nil
		}
	} else if err := p.failedWithin(url, now, retryWaiting); err != nil {
		return nil, noMetadata(err)
	}
	_, fetchErr := p.fetched(m, url).wait(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	switch known, err = p.known(ctx, m, url); {
	case err != nil:
		return nil, err
	case !known.usable(time.Now()):
		return nil, noMetadata(fetchErr)
	}
	return known.descriptor, nil // if fetching failed, the log says why
}

// noMetadata is the error that a user who logs in sees.
func noMetadata(cause error) error {
	return &engines.Error{
		Kind: engines.KindUpstream, Err: cause,
		Detail: "the identity provider's metadata cannot be had at the moment: try again later, or ask an administrator to run config/verify",
	}
}

// Newer fetches the metadata again, because what old says did not fit a response. It returns nil if there is
// nothing newer: explicit configuration, no certificate and entity id but those of old, it was asked for moments ago, or
// it cannot be had.
func (p *Provider) Newer(ctx context.Context, m engines.Mount, c *Config, old *idp.Descriptor) (*idp.Descriptor, error) {
	url := c.IDPMetadataURL
	if url == "" {
		return nil, nil
	}
	// Another login may have fetched it, or another node.
	known, err := p.known(ctx, m, url)
	if err == nil && !(known.usable(time.Now()) && differs(known.descriptor, old)) {
		if p.triedWithin(url, time.Now(), newerEvery) {
			return nil, nil
		}
		if _, fetchErr := p.fetched(m, url).wait(ctx); ctx.Err() != nil {
			return nil, ctx.Err()
		} else if fetchErr != nil { // which is in the log
			return nil, nil
		}
		known, err = p.known(ctx, m, url)
	}
	if err != nil || !known.usable(time.Now()) || !differs(known.descriptor, old) {
		return nil, err
	}
	return known.descriptor, nil
}

// differs reports whether a response that did not fit old may fit d.
func differs(d, old *idp.Descriptor) bool {
	for _, c := range d.Certificates {
		if !old.Has(c) {
			return true
		}
	}
	return d.EntityID != old.EntityID
}

// explicitly returns the provider of an explicit configuration, which is parsed once.
func (p *Provider) explicitly(c *Config) (*idp.Descriptor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := &p.explicit; x.descriptor != nil && x.ssoURL == c.IDPSSOURL && x.entityID == c.IDPEntityID && x.cert == c.IDPCert {
		return x.descriptor, nil
	}
	certificates, err := idp.ParseCertificates(c.IDPCert)
	if err != nil {
		return nil, fmt.Errorf("reading the configured idp_cert: it %w", err) // it was checked when it was written
	}
	d := &idp.Descriptor{EntityID: c.IDPEntityID, SSOURL: c.IDPSSOURL, Certificates: certificates}
	p.explicit = explicitCopy{c.IDPSSOURL, c.IDPEntityID, c.IDPCert, d}
	return d, nil
}

// usable reports whether logins may go by the copy, which may be nil.
func (c *metadataCopy) usable(now time.Time) bool {
	return c != nil && (c.descriptor.ValidUntil.IsZero() || now.Before(c.descriptor.ValidUntil))
}

// due reports whether it is time to ask again: well before the copy's end, if it has one.
func (c *metadataCopy) due(now time.Time) bool {
	interval := min(cmp.Or(c.descriptor.CacheDuration, refreshDefault), refreshMax)
	if end := c.descriptor.ValidUntil; !end.IsZero() {
		interval = min(interval, end.Sub(c.fetchedAt)/2)
	}
	age := now.Sub(c.fetchedAt)
	return age < 0 || age >= max(interval, refreshMin) // below 0: by a clock that was wrong
}

// failedWithin returns the error of the last fetch from the URL if it failed less than d ago, else nil.
func (p *Provider) failedWithin(url string, now time.Time, d time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.attempts; a.url == url && now.Before(a.at.Add(d)) {
		return a.err
	}
	return nil
}

// triedWithin reports whether the last fetch from the URL ended less than d ago.
func (p *Provider) triedWithin(url string, now time.Time, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts.url == url && now.Before(p.attempts.at.Add(d))
}

// pausing reports whether it is too early to try again after failures.
func (p *Provider) pausing(url string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.attempts
	if a.url != url || a.failures == 0 {
		return false
	}
	return now.Before(a.at.Add(engines.Backoff(retryFirst, retryMax, a.failures)))
}

// running returns the fetch from the URL that is under way, nil if none is.
func (p *Provider) running(url string) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flight; f != nil && f.url == url {
		return f
	}
	return nil
}

// fetched returns the fetch from the URL that is under way, or starts one. It ends within fetchTimeout, whether or not a login waits.
func (p *Provider) fetched(m engines.Mount, url string) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flight; f != nil && f.url == url {
		return f
	}
	f := &flight{url: url, done: make(chan struct{})}
	p.flight = f
	go p.fly(m, f)
	return f
}

func (f *flight) wait(ctx context.Context) (*metadataCopy, error) {
	select {
	case <-f.done:
		return f.got, f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fly fetches, stores what it got, and tells those who wait.
func (p *Provider) fly(m engines.Mount, f *flight) {
	defer close(f.done)
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	before, err := p.known(ctx, m, f.url) // before the fetch: what is verified meanwhile is newer
	if err == nil {
		f.got, err = p.fetch(ctx, f.url)
	}
	if err == nil && p.running(f.url) == f {
		err = p.store(ctx, m, f.got, before)
	}
	if err != nil {
		f.got, f.err = nil, err
		p.failures.Add(1)
	}
	failures, current := p.finishFetch(f)
	switch {
	case !current: // the configuration has another URL by now
	case f.err != nil:
		args := []any{"failures", failures, "err", f.err}
		if before.usable(time.Now()) {
			args = append(args, "serving_copy_of", before.fetchedAt)
		}
		p.log.Warn("the identity provider's metadata cannot be had", args...)
	case before != nil && before.descriptor.EntityID != f.got.descriptor.EntityID:
		p.log.Warn("the identity provider's metadata has another entity id than before", "before", before.descriptor.EntityID, "now", f.got.descriptor.EntityID)
	}
}

// finishFetch ends a flight. It returns how often fetching failed in a row, and whether the flight is the one whose result counts.
func (p *Provider) finishFetch(f *flight) (failures int, current bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flight != f {
		return 0, false
	}
	p.flight = nil
	if p.attempts.url != f.url || f.err == nil {
		p.attempts = attempts{url: f.url}
	}
	p.attempts.at, p.attempts.err = time.Now(), f.err
	if f.err != nil {
		p.attempts.failures++
	}
	return p.attempts.failures, true
}

func (p *Provider) fetch(ctx context.Context, url string) (*metadataCopy, error) {
	document, err := p.FetchMetadata(ctx, url)
	if err != nil {
		return nil, err
	}
	d, err := idp.Parse(document)
	if err != nil {
		return nil, err
	}
	got := newCopy(url, time.Now(), d)
	if !got.usable(got.fetchedAt) {
		return nil, fmt.Errorf("it was valid until %s only", d.ValidUntil.Format(time.RFC3339))
	}
	return got, nil
}
