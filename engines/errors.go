package engines

import (
	"fmt"
	"net/http"
	"strings"
)

// Kind says what sort of failure an Error is, and so which status a client sees. Clusters tell each other the numbers: new
// kinds go to the end.
type Kind int

const (
	KindInternal     Kind = iota // 500; Detail is replaced by "internal error" and the request id
	KindInvalid                  // 400
	KindDenied                   // 403
	KindNotFound                 // 404
	KindUnsupported              // 405
	KindPrecondition             // 412
	KindTooLarge                 // 413
	KindLimited                  // 429
	KindUpstream                 // 502
	KindUnavailable              // 503
	KindUnauthorized             // 401; only where clients wait for it: a login that is not finished
	KindFailed                   // 500, with Detail: what is configured cannot work
)

// Error is a failure with the one text a client may see. Err, the cause, goes to the log only.
type Error struct {
	Kind   Kind
	Detail string
	Err    error
	// Reason goes into the audit log behind Detail: what the client must not be told and an auditor must.
	Reason string
	// Page, if set, is sent instead of the JSON error, with the status of the Kind: where a browser shows the answer.
	Page *Raw
	// Header goes out with the answer, for instance when to try again.
	Header http.Header
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Detail + ": " + e.Err.Error()
	}
	return e.Detail
}

func (e *Error) Unwrap() error { return e.Err }

// Invalid is a 400. The text names the field and says what to change.
func Invalid(format string, args ...any) *Error {
	return &Error{Kind: KindInvalid, Detail: fmt.Sprintf(format, args...)}
}

// NotFound is a 404. An empty detail answers {"errors":[]}, as clients expect of a missing object.
func NotFound(detail string) *Error { return &Error{Kind: KindNotFound, Detail: detail} }

// Denied is a 403. It never says why: that is in the audit log and the log.
func Denied(cause error) *Error {
	return &Error{Kind: KindDenied, Detail: "permission denied", Err: cause}
}

// Problems are what is wrong with the fields of an input, one text for each.
type Problems []string

// Add adds what is wrong with a field.
func (p *Problems) Add(field, format string, args ...any) {
	*p = append(*p, fmt.Sprintf("field %q: ", field)+fmt.Sprintf(format, args...))
}

// Err returns all problems in one Error of KindInvalid, nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return Invalid("%s", strings.Join(p, "; "))
}
