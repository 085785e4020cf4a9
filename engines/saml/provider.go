package saml

import (
	"cmp"
	"context"
	"fmt"
	"sync"
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
	newerEvery   = time.Minute      // for answers that do not fit what is known
	retryWaiting = 10 * time.Second // after a failure, for logins that cannot go on without
	retryFirst   = time.Minute      // after a failure, as long as there is a copy; doubled each time
	retryMax     = time.Hour
)

// providers keeps what the mount knows of its identity provider. The zero value is ready.
type providers struct {
	fetch func(ctx context.Context, url string) ([]byte, error) // nil: idp.Fetch

	mu       sync.Mutex
	explicit explicitCopy
	metadata *metadataCopy // the last good one, nil if none is known
	flight   *flight       // the fetch that runs, nil if none does
	attempts attempts
}

// explicitCopy is a parsed explicit configuration.
type explicitCopy struct {
	ssoURL, entityID, cert string
	descriptor             *idp.Descriptor
}

// metadataCopy is a good copy of metadata. It is not modified.
type metadataCopy struct {
	url        string
	fetchedAt  time.Time
	descriptor *idp.Descriptor
}

// flight is one fetch, for all who wait for it.
type flight struct {
	url string
	// done is closed once got and err are set.
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

// provider returns the identity provider that the configuration names. Metadata is fetched when it is first needed and
// refreshed later; while that fails, the last good copy serves, as long as it is valid.
func (e *engine) provider(ctx context.Context, m engines.Mount, c *config) (*idp.Descriptor, error) {
	p := &e.providers
	if c.IDPMetadataURL == "" {
		return p.explicitly(c)
	}
	now := time.Now()
	if known := e.known(ctx, m, c.IDPMetadataURL); known.usable(now) {
		if known.due(now) && !p.pausing(known.url, now) {
			e.fetched(m, known.url) // nobody waits for it
		}
		return known.descriptor, nil
	}
	if err := p.failedWithin(c.IDPMetadataURL, now, retryWaiting); err != nil {
		return nil, noMetadata(err)
	}
	got, err := e.fetched(m, c.IDPMetadataURL).wait(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, noMetadata(err)
	}
	return got.descriptor, nil
}

// noMetadata is what somebody who logs in gets to know.
func noMetadata(cause error) error {
	return &engines.Error{
		Kind: engines.KindUpstream, Err: cause,
		Detail: "the identity provider's metadata cannot be had at the moment: try again later, or ask an administrator to run config/verify",
	}
}

// newerProvider fetches the metadata again, because what old says did not fit an answer. It returns nil if there is
// nothing newer: explicit configuration, no certificate and entity id but those of old, it was asked for moments ago, or
// it cannot be had.
func (e *engine) newerProvider(ctx context.Context, m engines.Mount, c *config, old *idp.Descriptor) (*idp.Descriptor, error) {
	p, url := &e.providers, c.IDPMetadataURL
	if url == "" {
		return nil, nil
	}
	// Another login may have fetched it, or another node.
	if known := p.newest(e.stored(ctx, m, url), url); known.usable(time.Now()) && differs(known.descriptor, old) {
		return known.descriptor, nil
	}
	if p.triedWithin(url, time.Now(), newerEvery) {
		return nil, nil
	}
	got, err := e.fetched(m, url).wait(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil || !differs(got.descriptor, old): // the failure is in the log
		return nil, nil
	}
	return got.descriptor, nil
}

// differs reports whether an answer that did not fit old may fit d.
func differs(d, old *idp.Descriptor) bool {
	for _, c := range d.Certificates {
		if !old.Has(c) {
			return true
		}
	}
	return d.EntityID != old.EntityID
}

// explicitly returns the provider of an explicit configuration, which is parsed once.
func (p *providers) explicitly(c *config) (*idp.Descriptor, error) {
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

// known returns the newest copy of the URL's metadata that this node or the cluster has, nil if there is none. The stored
// copy is looked at when there is none in memory, or an old one: another node may have been the active one meanwhile.
func (e *engine) known(ctx context.Context, m engines.Mount, url string) *metadataCopy {
	now := time.Now()
	if last := e.providers.last(url); last.usable(now) && !last.due(now) {
		return last
	}
	return e.providers.newest(e.stored(ctx, m, url), url)
}

// last returns the copy in memory if it is of the URL, else nil.
func (p *providers) last(url string) *metadataCopy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lastLocked(url)
}

func (p *providers) lastLocked(url string) *metadataCopy {
	if p.metadata == nil || p.metadata.url != url {
		return nil
	}
	return p.metadata
}

// newest remembers the copy, which may be nil, if it is newer than the one in memory, and returns the newer one.
func (p *providers) newest(c *metadataCopy, url string) *metadataCopy {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.lastLocked(url); c == nil || last != nil && !c.fetchedAt.After(last.fetchedAt) {
		return last
	}
	p.metadata = c
	return c
}

// failedWithin returns the error of the last fetch from the URL if it failed less than d ago, else nil.
func (p *providers) failedWithin(url string, now time.Time, d time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.attempts; a.url == url && now.Before(a.at.Add(d)) {
		return a.err
	}
	return nil
}

// triedWithin reports whether the last fetch from the URL ended less than d ago.
func (p *providers) triedWithin(url string, now time.Time, d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts.url == url && now.Before(p.attempts.at.Add(d))
}

// pausing reports whether it is too early to try again after failures.
func (p *providers) pausing(url string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.attempts
	if a.url != url || a.failures == 0 {
		return false
	}
	pause := min(retryFirst<<min(a.failures-1, 10), retryMax)
	return now.Before(a.at.Add(pause))
}

// fetched returns the fetch from the URL that is under way, or starts one. It ends within fetchTimeout, whoever waits.
func (e *engine) fetched(m engines.Mount, url string) *flight {
	p := &e.providers
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.flight; f != nil && f.url == url {
		return f
	}
	f := &flight{url: url, done: make(chan struct{})}
	p.flight = f
	go e.fly(m, f)
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

// fly fetches, keeps what it got, and tells those who wait.
func (e *engine) fly(m engines.Mount, f *flight) {
	defer close(f.done)
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	f.got, f.err = e.fetch(ctx, f.url)
	if f.err != nil {
		e.counts.MetadataFailures.Add(1)
	}
	before, failures, current := e.providers.land(f)
	switch {
	case !current: // the configuration has another URL by now
	case f.err != nil:
		args := []any{"failures", failures, "err", f.err}
		if before.usable(time.Now()) {
			args = append(args, "serving_copy_of", before.fetchedAt)
		}
		e.log.Warn("the identity provider's metadata cannot be had", args...)
	default:
		if before != nil && before.descriptor.EntityID != f.got.descriptor.EntityID {
			e.log.Warn("the identity provider's metadata has another entity id than before", "before", before.descriptor.EntityID, "now", f.got.descriptor.EntityID)
		}
		if err := e.store(ctx, m, f.got); err != nil {
			e.log.Warn("the identity provider's metadata cannot be kept: another node will have to fetch it", "err", err)
		}
	}
}

// land ends a flight. It returns what was known before, how often fetching failed in a row, and whether the flight is the
// one whose result counts.
func (p *providers) land(f *flight) (before *metadataCopy, failures int, current bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flight != f {
		return nil, 0, false
	}
	p.flight = nil
	if p.attempts.url != f.url || f.err == nil {
		p.attempts = attempts{url: f.url}
	}
	p.attempts.at, p.attempts.err = time.Now(), f.err
	before = p.lastLocked(f.url)
	if f.err != nil {
		p.attempts.failures++
	} else {
		p.metadata = f.got
	}
	return before, p.attempts.failures, true
}

func (e *engine) fetch(ctx context.Context, url string) (*metadataCopy, error) {
	fetch := e.providers.fetch
	if fetch == nil {
		fetch = idp.Fetch
	}
	document, err := fetch(ctx, url)
	if err != nil {
		return nil, err
	}
	d, err := idp.Parse(document)
	if err != nil {
		return nil, err
	}
	got := &metadataCopy{url: url, fetchedAt: time.Now(), descriptor: d}
	if !got.usable(got.fetchedAt) {
		return nil, fmt.Errorf("it was valid until %s only", d.ValidUntil.Format(time.RFC3339))
	}
	return got, nil
}
