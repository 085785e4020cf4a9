package provider

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/idp"
)

// expiresSoon is how long before its end a certificate is worth a warning.
const expiresSoon = 30 * 24 * time.Hour

// verifyConfig fetches the metadata now, or looks at the explicit fields again, and returns what logins go by and what
// will keep them from working.
func (p *Provider) verifyConfig(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	c, err := GetConfig(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	var d *idp.Descriptor
	var fetchedAt any
	if c.IDPMetadataURL == "" {
		d, err = p.explicitly(c)
	} else {
		var fetched *metadataCopy
		if fetched, err = p.fetchNow(ctx, req.Mount, c.IDPMetadataURL); err == nil {
			d, fetchedAt = fetched.descriptor, fetched.fetchedAt.UTC().Format(time.RFC3339)
		}
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	warnings, err := c.lacksRole(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	warnings = append(warnings, c.verifyWarnings(d, req.Mount, now)...)
	certificates := make([]map[string]any, len(d.Certificates))
	for i, cert := range d.Certificates {
		certificates[i] = map[string]any{
			"subject":            cert.Subject.String(),
			"sha256_fingerprint": fingerprint(cert),
			"not_before":         cert.NotBefore.UTC().Format(time.RFC3339),
			"not_after":          cert.NotAfter.UTC().Format(time.RFC3339),
		}
	}
	return &engines.Response{Warnings: warnings, Data: map[string]any{
		"entity_id":             d.EntityID,
		"sso_url":               d.SSOURL,
		"certificates":          certificates,
		"wants_signed_requests": d.WantsSignedRequests,
		"fetched_at":            fetchedAt,
	}}, nil
}

// fetchNow fetches the metadata for an administrator, with the reason if it fails, and makes it the one that logins go by
// in all clusters.
func (p *Provider) fetchNow(ctx context.Context, m engines.Mount, url string) (*metadataCopy, error) {
	if f := p.running(url); f != nil {
		_, _ = f.wait(ctx) // it began before the request: what it gets may be of before, too
	}
	fetched, err := p.fetched(m, url).wait(ctx)
	if err == nil {
		return fetched, p.publish(ctx, m, fetched)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if before, knownErr := p.known(ctx, m, url); knownErr == nil && before.usable(time.Now()) {
		return nil, unreachable("the metadata at %s cannot be had: %v; logins go on with the copy of %s", shownURL(url), err, before.fetchedAt.UTC().Format(time.RFC3339))
	}
	return nil, unreachable("the metadata at %s cannot be had: %v", shownURL(url), err)
}

func unreachable(format string, args ...any) error {
	return &engines.Error{Kind: engines.KindUpstream, Detail: fmt.Sprintf(format, args...)}
}

// verifyWarnings are what a look at the provider tells besides what a write of the configuration did.
func (c *Config) verifyWarnings(d *idp.Descriptor, m engines.Mount, now time.Time) []string {
	warnings := append(certificateWarnings(d.Certificates, now), c.nameWarnings()...)
	warn := func(text string, args ...any) { warnings = append(warnings, fmt.Sprintf(text, args...)) }
	if d.WantsSignedRequests && !c.SignAuthnRequests {
		warn("the identity provider wants signed requests: turn on sign_authn_requests, and give it the metadata or the certificate of this mount")
	}
	if d.EntityID == c.EntityID {
		warn("entity_id is the entity id of the identity provider: it must be the one of this service provider")
	}
	if withoutTLS(d.SSOURL) {
		warn("%s is a URL without TLS: the user's browser asks for the login there unprotected", d.SSOURL)
	}
	for _, u := range c.ACSURLs {
		if !strings.HasSuffix(u, "/"+m.Path+"callback") {
			warn("acs_urls: %s does not end in /%scallback: responses do not reach this mount, unless something on the way changes the path", u, m.Path)
		}
	}
	return warnings
}

// certificateWarnings tells of certificates that are not valid now, or not for long.
func certificateWarnings(certificates []*x509.Certificate, now time.Time) (warnings []string) {
	usable := 0
	for _, c := range certificates {
		if !now.Before(c.NotBefore) && !now.After(c.NotAfter) {
			usable++
		}
		name := fmt.Sprintf("the identity provider's certificate %q (SHA-256 %s…)", c.Subject, fingerprint(c)[:11])
		switch {
		case now.After(c.NotAfter):
			warnings = append(warnings, fmt.Sprintf("%s expired at %s", name, c.NotAfter.UTC().Format(time.RFC3339)))
		case now.Before(c.NotBefore):
			warnings = append(warnings, fmt.Sprintf("%s is valid from %s on only", name, c.NotBefore.UTC().Format(time.RFC3339)))
		case c.NotAfter.Sub(now) < expiresSoon:
			warnings = append(warnings, fmt.Sprintf("%s expires soon, at %s", name, c.NotAfter.UTC().Format(time.RFC3339)))
		}
	}
	if usable == 0 {
		warnings = append(warnings, "no certificate of the identity provider is valid now: every login will be rejected")
	}
	return warnings
}

// fingerprint formats the SHA-256 of a certificate as openssl and browsers show it.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return strings.ReplaceAll(fmt.Sprintf("% X", sum[:]), " ", ":")
}

// shownURL returns a URL for texts that go into logs and the audit log: some providers put a key into the query.
func shownURL(url string) string {
	if before, _, more := strings.Cut(url, "?"); more {
		return before + "?…"
	}
	return url
}

// withoutTLS reports whether a URL that has been checked is not https.
func withoutTLS(text string) bool {
	u, err := url.Parse(text)
	return err != nil || u.Scheme != "https"
}
