package repohost_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
)

func hookedRig(t *testing.T, h desttest.Hook) (*repohosttest.Server, destination.Destination) {
	s := repohosttest.New(t)
	s.AddRepository("octo", "app")
	return s, openWith(t, repo(), desttest.Through(h, s.URL))
}

// A refusal that has nothing to do with the key is not tried again.
func TestOnlyAnotherKeyIsTriedAgain(t *testing.T) {
	s, d := rig(t)
	for i := range 100 {
		s.Put(app, fmt.Sprintf("N%d", i), "x")
	}
	_, err := d.Write(t.Context(), item("A", "the-value"), desttest.Read(t, d, "A"))
	fails(t, err, destination.Quota)
	writes := slices.DeleteFunc(s.Calls(), func(c string) bool { return !strings.HasPrefix(c, "PUT ") })
	if len(writes) != 1 {
		t.Errorf("written %d times", len(writes))
	}
}

// Without a connection nothing was written.
func TestWriteThatIsNotSent(t *testing.T) {
	_, d := hookedRig(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method == http.MethodPut {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
		return next.RoundTrip(r)
	})
	_, err := d.Write(t.Context(), item("A", "the-value"), desttest.Read(t, d, "A"))
	if e := fails(t, err, destination.Unreachable); e.Unknown {
		t.Error("it cannot have been written")
	}
}

// A caller that stops waiting while the destination does not show the write yet gets an error with Unknown.
func TestGivenUpAfterTheWrite(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	written := false
	s, d := hookedRig(t, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err != nil || !written {
			written = r.Method == http.MethodPut
			return resp, err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(body))
		cancel() // after the whole answer of the first look
		return resp, err
	})
	repohost.Pause(d, time.Hour)
	was := desttest.Read(t, d, "A")
	s.BeforePut(func() { s.Stale(100) })
	_, err := d.Write(ctx, item("A", "the-value"), was)
	if e := fails(t, err, destination.Unreachable); !e.Unknown || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v", e)
	}
}

// That the destination was there a moment ago is enough for a look, and not for a deletion, after which the name is forgotten.
func TestPlaceThatIsNotSeenAnyMore(t *testing.T) {
	s, d := rig(t)
	write(t, d, "A", "the-value")
	was := desttest.Read(t, d, "A")
	s.Calls()
	desttest.Read(t, d, "B")
	if calls := s.Calls(); len(calls) != 1 {
		t.Errorf("a look after another calls %v", calls)
	}
	s.Remove(app)
	fails(t, d.Delete(t.Context(), was), destination.NoLocation)
	repohost.Later(d, time.Minute)
	_, err := d.Read(t.Context(), "B")
	fails(t, err, destination.NoLocation)
}
