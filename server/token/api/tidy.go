package api

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/token"
)

// tidyStatus tells of the runs of Tidy that were started on this node.
type tidyStatus struct {
	State      string // "never", "running", "finished" or "failed"
	Namespace  string // id
	StartedAt  time.Time
	FinishedAt time.Time // zero until then
	Result     token.TidyResult
}

// tidying is the state of the latest run.
type tidying struct {
	mu     sync.Mutex
	status tidyStatus
}

// begin reports whether a run may begin.
func (t *tidying) begin(now time.Time, namespace string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status.State == "running" {
		return false
	}
	t.status = tidyStatus{State: "running", Namespace: namespace, StartedAt: now}
	return true
}

func (t *tidying) end(now time.Time, r token.TidyResult, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status.FinishedAt, t.status.Result, t.status.State = now, r, "finished"
	if err != nil {
		t.status.State = "failed"
	}
}

// latest returns the state of the latest run.
func (t *tidying) latest() tidyStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status.State == "" {
		return tidyStatus{State: "never"}
	}
	return t.status
}

// startTidy begins a run in the background, and reports whether it did: one goes on at a time.
func (e *Engine) startTidy(ctx context.Context, namespace string) bool {
	if !e.tidying.begin(e.tokens.Now(), namespace) {
		return false
	}
	e.tokens.InBackground(ctx, func(ctx context.Context, log *slog.Logger) {
		r, err := e.tokens.TidyBelow(ctx, namespace)
		e.tidying.end(e.tokens.Now(), r, err)
		if err != nil {
			log.Warn("tidying tokens", "err", err)
			return
		}
		log.Info("tokens tidied", "tokens", r.Tokens, "accessors", r.Accessors, "children", r.Children, "expiries", r.Expiries, "revoked", r.Revoked)
	})
	return true
}

// tidy answers at once where there is a background to work in.
func (e *Engine) tidy(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	text := "The tidy operation has begun: read auth/token/tidy for its result."
	if !e.startTidy(ctx, namespace(req)) {
		text = "A tidy operation is already running: read auth/token/tidy for its result."
	}
	return &engines.Response{Status: http.StatusAccepted, Warnings: []string{text}}, nil
}

func (e *Engine) readTidy(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	s := e.tidying.latest()
	if !e.tokens.Below(ctx, namespace(req), s.Namespace) {
		s = tidyStatus{State: "never"}
	}
	data := map[string]any{"state": s.State, "started_at": timeText(s.StartedAt), "finished_at": timeText(s.FinishedAt)}
	if !s.FinishedAt.IsZero() {
		data["tokens"], data["revoked"] = s.Result.Tokens, s.Result.Revoked
		data["accessors_mended"], data["children_mended"], data["expiries_mended"] = s.Result.Accessors, s.Result.Children, s.Result.Expiries
	}
	return &engines.Response{Data: data}, nil
}

// timeText is null for no time.
func timeText(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}
