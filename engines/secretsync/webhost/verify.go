package webhost

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// maxSkew is how far the clocks may be apart.
const maxSkew = 5 * time.Minute

// Verify implements destination.Destination. Writing is tried out only as far as deleting what is not there goes: a refusal is
// one, but that nothing was found may also be the response to a client that may not delete.
func (d *dest) Verify(ctx context.Context) []destination.Check {
	_, hidden, h, err := d.client.list(ctx)
	if err != nil {
		return failed(err)
	}
	checks := []destination.Check{
		{Name: "reachable", OK: true, Text: "Vercel answers"},
		{Name: "credentials", OK: true, Text: "access_token is accepted"},
		{Name: "read", OK: true, Text: "the variables can be listed"},
	}
	if hidden > 0 && slices.Contains(d.targets, production) {
		checks[2] = problem("read", hiddenError(hidden))
	}
	for _, name := range []string{"create", "write"} {
		checks = append(checks, destination.Check{Name: name, Unknown: true, Text: "this could not be tried without writing"})
	}
	switch err := d.client.remove(ctx, rand.Text()); {
	case err == nil || gone(err):
		checks = append(checks, destination.Check{Name: "delete", Unknown: true, Text: "deleting a variable that is not there was not rejected"})
	default:
		checks = append(checks, problem("delete", err))
	}
	return append(checks, clock(h.Get("Date"), time.Now()))
}

// failed says how far a first call has come.
func failed(err error) []destination.Check {
	var e *destination.Error
	if !errors.As(err, &e) {
		return []destination.Check{problem("reachable", err)}
	}
	reachable := destination.Check{Name: "reachable", OK: true, Text: "Vercel answers"}
	switch e.Code {
	case destination.Denied:
		return []destination.Check{reachable, problem("credentials", err)}
	case destination.NoPlace, destination.BadRequest:
		return []destination.Check{reachable, problem("read", err)}
	}
	return []destination.Check{problem("reachable", err)}
}

func problem(name string, err error) destination.Check {
	return destination.Check{Name: name, Text: err.Error()}
}

func clock(date string, now time.Time) destination.Check {
	at, err := http.ParseTime(date)
	if err != nil {
		return destination.Check{Name: "clock", Unknown: true, Text: "Vercel did not say what time it is"}
	}
	off := now.Sub(at).Abs().Round(time.Second)
	if off > maxSkew {
		return destination.Check{Name: "clock", Text: fmt.Sprintf("the clocks are %v apart: set that of this server", off)}
	}
	return destination.Check{Name: "clock", OK: true, Text: "the clocks agree"}
}
