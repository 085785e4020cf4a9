package repohost

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// expirySoon is the remaining lifetime from which on a token fails the check.
const expirySoon = 7 * 24 * time.Hour

// Verify implements destination.Destination. Whether the token may write is tried by deleting a name that does not exist.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	_, resp, err := d.client.list(ctx, 1, 1, nil)
	if err != nil {
		return destination.FailedChecks("GitHub", err)
	}
	d.saw()
	checks := []destination.Check{
		{Name: "reachable", OK: true, Text: "GitHub answers"},
		{Name: "credentials", OK: true, Text: d.client.credential() + " is accepted"},
		{Name: "read", OK: true, Text: "the secrets can be listed"},
	}
	if _, err := d.fetchKey(ctx); err != nil {
		checks = append(checks, destination.FailedCheck("create", err))
	} else {
		checks = append(checks, d.verifyWrites(ctx)...)
	}
	if d.config.Visibility == "selected" {
		c := destination.Check{Name: "repositories", OK: true, Text: "all selected repositories are there"}
		if _, err := d.repositories(ctx); err != nil {
			c = destination.FailedCheck("repositories", err)
		}
		checks = append(checks, c)
	}
	if d.client.app == nil { // tokens of an app are renewed
		checks = append(checks, expiry(expirationOf(resp.Header), time.Now()))
	}
	return append(checks, destination.ClockCheck("GitHub", resp.Header.Get("Date"), time.Now()))
}

// verifyWrites tries the permission to write, which is one for creating, replacing and deleting.
func (d *dest) verifyWrites(ctx context.Context) []destination.Check {
	name := "COFFER_VERIFY_" + strings.ToUpper(rand.Text())
	resp, err := d.client.do(ctx, call{method: http.MethodDelete, path: d.client.base + "/" + name, writes: true})
	missing := err != nil && resp != nil && resp.Status == http.StatusNotFound
	var out []destination.Check
	for _, what := range []string{"create", "write", "delete"} {
		if err == nil || missing {
			out = append(out, destination.Check{Name: what, OK: true, Text: "deleting a name that is not there was let through, which takes the same permission"})
			continue
		}
		out = append(out, destination.FailedCheck(what, err))
	}
	return out
}

// expirationOf returns when the token of a request expires; zero if GitHub does not say.
func expirationOf(h http.Header) time.Time {
	text := h.Get("Github-Authentication-Token-Expiration")
	for _, layout := range []string{"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at
		}
	}
	return time.Time{}
}

func expiry(at, now time.Time) destination.Check {
	c := destination.Check{Name: "expiry", OK: true, Text: "GitHub names no time at which access_token expires"}
	if at.IsZero() {
		return c
	}
	c.Text = "access_token expires on " + at.UTC().Format(time.RFC3339)
	if at.Sub(now) < expirySoon {
		c.OK = false
		c.Text += ": replace it before then"
	}
	return c
}
