package idp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	fetchTimeout = 10 * time.Second // of one fetch, redirects and body included
	maxRedirects = 3
)

// client has no cookie jar and no other state than its connections.
var client = newClient(http.DefaultTransport.(*http.Transport).Clone())

func newClient(t *http.Transport) *http.Client {
	t.MaxResponseHeaderBytes = 64 << 10
	// Metadata is asked for once an hour: a connection kept for that long is of no use.
	t.DisableKeepAlives = true
	return &http.Client{Transport: t, Timeout: fetchTimeout, CheckRedirect: checkRedirect}
}

func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("it redirects more than %d times", maxRedirects)
	case via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https":
		return errors.New("it redirects from https to a URL without TLS")
	}
	if err := CheckURL(req.URL.String()); err != nil {
		return fmt.Errorf("it redirects to what %w", err)
	}
	return nil
}

// Fetch returns the document at a URL, of at most MaxDocumentBytes. It takes ten seconds at most, follows three redirects
// and never one that leaves https. The error does not repeat the URL.
func Fetch(ctx context.Context, from string) ([]byte, error) { return fetch(ctx, client, from) }

func fetch(ctx context.Context, c *http.Client, from string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, errors.New("the URL is not well-formed")
	}
	req.Header.Set("User-Agent", "coffer")
	req.Header.Set("Accept", "application/samlmetadata+xml, application/xml;q=0.9, text/xml;q=0.9, */*;q=0.5")
	resp, err := c.Do(req)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answered with the status %d", resp.StatusCode)
	}
	document, err := io.ReadAll(io.LimitReader(resp.Body, MaxDocumentBytes+1))
	switch {
	case err != nil:
		return nil, withoutURL(err)
	case len(document) > MaxDocumentBytes:
		return nil, tooLarge()
	}
	return document, nil
}

func tooLarge() error { return fmt.Errorf("it is larger than %d bytes", MaxDocumentBytes) }

// withoutURL returns the cause of a failed request. The URL stays out of logs: some providers have a key in its query.
func withoutURL(err error) error {
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fmt.Errorf("it did not answer within %v", fetchTimeout)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
