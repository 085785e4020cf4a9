package webhost

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Verify implements destination.Destination. Writing is tried out only as far as deleting what is not there goes: a refusal is
// one, but that nothing was found may also be the response to a client that may not delete.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	_, hidden, h, err := d.client.list(ctx)
	if err != nil {
		return destination.FailedChecks("Vercel", err)
	}
	checks := []destination.Check{
		{Name: "reachable", OK: true, Text: "Vercel answers"},
		{Name: "credentials", OK: true, Text: "access_token is accepted"},
		{Name: "read", OK: true, Text: "the variables can be listed"},
	}
	if hidden > 0 && slices.Contains(d.targets, production) {
		checks[2] = destination.FailedCheck("read", hiddenError(hidden))
	}
	for _, name := range []string{"create", "write"} {
		checks = append(checks, destination.Check{Name: name, Unknown: true, Text: "this could not be tried without writing"})
	}
	switch err := d.client.remove(ctx, rand.Text()); {
	case err == nil || gone(err):
		checks = append(checks, destination.Check{Name: "delete", Unknown: true, Text: "deleting a variable that is not there was not rejected"})
	default:
		checks = append(checks, destination.FailedCheck("delete", err))
	}
	return append(checks, destination.ClockCheck("Vercel", h.Get("Date"), time.Now()))
}
