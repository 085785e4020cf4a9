package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/admission"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/storage"
)

// kinds is the one table from error kinds to statuses.
var kinds = map[engines.Kind]int{
	engines.KindInternal:     http.StatusInternalServerError,
	engines.KindInvalid:      http.StatusBadRequest,
	engines.KindDenied:       http.StatusForbidden,
	engines.KindUnauthorized: http.StatusUnauthorized,
	engines.KindNotFound:     http.StatusNotFound,
	engines.KindUnsupported:  http.StatusMethodNotAllowed,
	engines.KindPrecondition: http.StatusPreconditionFailed,
	engines.KindTooLarge:     http.StatusRequestEntityTooLarge,
	engines.KindLimited:      http.StatusTooManyRequests,
	engines.KindUpstream:     http.StatusBadGateway,
	engines.KindUnavailable:  http.StatusServiceUnavailable,
	engines.KindFailed:       http.StatusInternalServerError,
}

// sentinels maps storage's errors, where nothing nearer to the request has put them into words.
var sentinels = []struct {
	err    error
	status int
	text   string
}{
	{storage.ErrSealed, http.StatusServiceUnavailable, "Vault is sealed"}, // the words clients look for
	{storage.ErrOutcomeUnknown, http.StatusServiceUnavailable, "outcome unknown: the active node was lost while the request ran; it may or may not have taken effect, read before you write again"},
	{storage.ErrReadOnly, http.StatusServiceUnavailable, "no active node: the cluster is electing one, try again"},
	{storage.ErrUnavailable, http.StatusServiceUnavailable, "the cluster takes no requests right now: no active node, or its queue is full; try again"},
	{admission.ErrBusy, http.StatusServiceUnavailable, "too many request bodies are under way on this node, or from this address: try again"},
	{storage.ErrConflict, http.StatusServiceUnavailable, "too many concurrent changes of the same data, try again"},
	{storage.ErrTooLarge, http.StatusRequestEntityTooLarge, "the value is too large: one entry may hold 1 MiB"},
	{storage.ErrNotFound, http.StatusNotFound, ""},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, "the request took too long and was given up; a write may still have taken effect"},
	{context.Canceled, http.StatusServiceUnavailable, "the request was cancelled"},
}

// describe returns the status and the text for the client. An empty text answers an empty list. internal
// says that the cause is for the log only.
func describe(err error) (status int, text string, internal bool) {
	var e *engines.Error
	if errors.As(err, &e) && e.Kind != engines.KindInternal {
		return kinds[e.Kind], e.Detail, false
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.status, s.text, false
		}
	}
	return http.StatusInternalServerError, "internal error", true
}

// fail writes an error.
func (x *exchange) fail(err error) {
	status, text, internal := describe(err)
	log := x.api.log.Debug
	if internal {
		log = x.api.log.Error
		text += ": request_id " + x.req.ID
	}
	log("request failed", "request_id", x.req.ID, "status", status, "err", err)
	errs := []string{}
	if text != "" {
		errs = append(errs, text)
	}
	if status == http.StatusServiceUnavailable && !errors.Is(err, storage.ErrSealed) {
		x.w.Header().Set("Retry-After", "1")
	}
	var e *engines.Error
	if errors.As(err, &e) {
		maps.Copy(x.w.Header(), e.Header)
		if e.Page != nil {
			x.raw(&pipeline.Reply{Response: &engines.Response{Status: status, Raw: e.Page}})
			return
		}
	}
	body, err := json.Marshal(map[string][]string{"errors": errs})
	if err != nil {
		panic(err) // strings only
	}
	x.send(status, append(body, '\n'))
}
