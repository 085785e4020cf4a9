package desttest

import (
	"net/http"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// closing is a transport that counts how often it is to close what is idle.
type closing struct {
	http.RoundTripper
	n int
}

func (c *closing) CloseIdleConnections() { c.n++ }

// Closes checks that a destination leaves no idle connections behind: every one has a client of its own.
func Closes(t *testing.T, kind destination.Type, c destination.Config, env destination.Env) {
	t.Helper()
	transport := &closing{RoundTripper: http.DefaultTransport}
	env.Client = &http.Client{Transport: transport}
	if problems := c.Check(); len(problems) > 0 {
		t.Fatal(problems)
	}
	d, err := kind.Open(c, env)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil || transport.n == 0 {
		t.Errorf("closing: %v, idle connections are closed %d times", err, transport.n)
	}
}
