package desttest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Hooked is a Fake of a type that speaks HTTP. The suite runs more tests with it.
type Hooked interface {
	// OpenThrough is Fake.Open, with a hook between.
	OpenThrough(t *testing.T, h Hook) destination.Destination
}

// Listing is a Hooked whose lists come in pages.
type Listing interface {
	Hooked
	// EndlessLists are lists that lead nowhere, by what is wrong with them. Each answers the n-th request for a page, the first being 1.
	EndlessLists() map[string]func(r *http.Request, n int) (header http.Header, body string)
}

// hooked has the tests of types that speak HTTP; others pass.
var hooked = map[string]func(*suite, Hooked){
	"every call has a deadline": (*suite).deadlines,
	"long responses are cut":    (*suite).longResponses,
	"a list that does not end":  (*suite).endlessList,
}

// through opens the destination with a hook.
func (s *suite) through(f Hooked, h Hook) destination.Destination {
	d := f.OpenThrough(s.t, h)
	if s.rules.WriteOnly {
		d = &remembering{Destination: d, held: map[string]destination.Found{}}
	}
	return d
}

// deadlines: each call has a timeout, although the context has none.
func (s *suite) deadlines(f Hooked) {
	calls, unbounded := 0, 0
	d := s.through(f, func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		calls++
		if end, ok := r.Context().Deadline(); !ok || time.Until(end) > 30*time.Second {
			unbounded++
		}
		return next.RoundTrip(r)
	})
	ctx := context.WithoutCancel(s.ctx())
	it := s.item("one", "the-value")
	was, err := d.Read(ctx, it.Name)
	if err == nil {
		_, err = d.Write(ctx, it, was)
	}
	if err == nil {
		was, err = d.Read(ctx, it.Name)
	}
	if err == nil {
		for range d.List(ctx) { //nolint:revive // it is about the calls
		}
		d.Verify(ctx)
		err = d.Delete(ctx, was)
	}
	if err != nil || calls == 0 || unbounded != 0 {
		s.t.Errorf("%v; %d of %d calls have no deadline", err, unbounded, calls)
	}
}

// longResponses: a response without an end does not fill the memory.
func (s *suite) longResponses(f Hooked) {
	for _, status := range []int{200, 422, 500} {
		read := 0
		d := s.through(f, func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			h := http.Header{"Content-Type": {"application/json"}, "X-Amzn-Requestid": {"1"}} // the vendor's, for those that look
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(Endless{N: &read}), Request: r}, nil
		})
		_, err := d.Read(s.ctx(), s.name("one"))
		if s.rules.WriteOnly {
			_, err = d.Write(s.ctx(), s.item("one", "the-value"), destination.Found{Name: s.name("one")})
		}
		if err == nil || read > 40<<20 {
			s.t.Errorf("%d: %v, and %d bytes are read", status, err, read)
		}
	}
}

// endlessList: a list that leads nowhere ends with an error.
func (s *suite) endlessList(f Hooked) {
	listing, ok := f.(Listing)
	if !ok {
		return
	}
	for name, page := range listing.EndlessLists() {
		n := 0
		d := s.through(f, func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			if n++; n > 2000 {
				return nil, errors.New("it goes on and on")
			}
			header, body := page(r, n)
			return Response(r, header, body), nil
		})
		ends := false
		for _, err := range d.List(s.ctx()) {
			if err != nil {
				s.failed(err, destination.Unexpected)
				ends = true
			}
		}
		if !ends || n > 1000 {
			s.t.Errorf("%s: %d pages, with an error: %v", name, n, ends)
		}
	}
}
