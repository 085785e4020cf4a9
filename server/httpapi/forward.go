package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// forward relays to the active node, or says why it cannot.
func (x *exchange) forward(r *http.Request) {
	backend := x.api.opts.Backend
	if r.Header.Get("X-Vault-No-Request-Forwarding") != "" {
		addr := backend.ActiveAddr()
		if addr == "" || x.redaction().Addresses {
			x.fail(storage.ErrUnavailable)
			return
		}
		x.status = http.StatusTemporaryRedirect
		x.w.Header().Set("Location", addr+r.URL.RequestURI())
		x.responding()
		x.w.WriteHeader(x.status)
		return
	}
	raw := x.api.opts.Requests.WantsRawBody(r.Context(), &x.req)
	rule := x.api.opts.Requests.BodyRule(r.Context(), &x.req)
	if r.ContentLength > x.maxBody(rule) && !raw {
		x.fail(tooLarge(x.maxBody(rule)))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	sw := &statusWriter{ResponseWriter: x.w, before: func() { x.responding(); x.catchUp(ctx) }}
	if x.hasBody() {
		x.take(rule.Open || x.req.Token == "")
		if err := x.share.Grow(forwardBytes); err != nil {
			x.fail(err)
			return
		}
		defer x.share.Release()
		b := x.openBody(x.maxBody(rule))
		if raw {
			b = x.openStream()
		}
		defer b.leave()
		r = r.WithContext(ctx)
		r.Body = b
	}
	x.takeTime() // the answer may be a stream
	if !raw {
		late := time.AfterFunc(x.api.opts.Timeout, cancel)
		defer late.Stop()
		sw.before = func() { late.Stop(); x.responding(); x.catchUp(ctx) }
	}
	err := backend.Forward(sw, r.WithContext(ctx))
	x.status = sw.status
	switch {
	case err == nil || sw.status != 0:
	case x.body != nil && x.body.over():
		x.fail(tooLarge(x.body.most))
	case errors.Is(err, storage.ErrUnavailable) && !x.again && backend.AwaitActive(r.Context()):
		x.again = true // nothing was sent: this node has become the active one
		x.share.Release()
		x.serve()
	default:
		x.fail(err)
	}
}

// catchUpWait is how long catchUp waits.
const catchUpWait = 2 * time.Second

// catchUp waits until this node has what the active node's answer was made from, so that the client's next
// read here finds what it wrote. A node that lags for longer than that answers all the same, and
// one that is known to lag does not wait: the client's X-Vault-Index still tells the difference.
func (x *exchange) catchUp(ctx context.Context) {
	state := x.w.Header().Get("X-Vault-Index")
	if state == "" {
		return
	}
	if age := x.api.opts.Backend.Behind(); age < 0 || age > catchUpWait {
		return // it will not be there in time: a full disk, say
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	if err := x.api.opts.Backend.AwaitState(ctx, state); err != nil {
		x.api.log.Warn("answering a forwarded request before this node has its effects", "request_id", x.req.ID, "err", err)
	}
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
	before func() // runs once, before the header goes out
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && w.before != nil {
		w.before()
	}
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
