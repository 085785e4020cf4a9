package cloud3sm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/access"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// What the callers of call look for in an error: these are answers, and not always failures.
var (
	errNotFound     = errors.New("not found")
	errPrecondition = errors.New("failed precondition") // an etag that is not the stored one, or a version that is not enabled
	errDenied       = errors.New("permission denied")
)

// failure is a call without success.
type failure struct {
	op       op
	err      error
	sent     bool
	answered bool
	stale    bool   // the token was an old one
	token    string // that must not be in a text
	dial     *error // the last error of connecting, if that is the state
}

func (f failure) code() codes.Code { return status.Code(f.err) }

// explain returns the *Error.
func (f failure) explain(ctx context.Context) error {
	if !f.answered && f.transport() {
		return f.unanswered(ctx)
	}
	e := f.answer()
	e.Text = f.text(e.Text)
	return e
}

// transport reports whether the code is one of the library's own for a call without a response.
func (f failure) transport() bool {
	switch f.code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown, codes.DataLoss:
		return true
	}
	return false
}

func (f failure) unanswered(ctx context.Context) error {
	cause := ctx.Err()
	if cause == nil && !f.sent && f.dial != nil {
		cause = *f.dial
	}
	if f.code() == codes.DeadlineExceeded {
		cause = context.DeadlineExceeded
	}
	e := access.Unreachable("calling "+f.op.name+" of Secret Manager", cause)
	if cause == nil && !f.sent && strings.Contains(f.err.Error(), "handshake") {
		e.Text = "calling Secret Manager: no secure connection, its certificate is not one that this server trusts"
	}
	e.Unknown = f.op.writes && f.sent
	return e
}

// advice for the reasons that the service gives beside its codes.
var advice = map[string]string{
	"SERVICE_DISABLED": "enable the Secret Manager API in the project",
	"BILLING_DISABLED": "the project has no billing account",
	"CONSUMER_INVALID": "there is no such project, or the service account may not see it",
}

// answer returns the error for what the service answered, with the advice as its text.
func (f failure) answer() *destination.Error {
	e := &destination.Error{Class: destination.Client}
	reason, after := f.details()
	switch f.code() {
	case codes.InvalidArgument:
		e.Code = destination.BadRequest
	case codes.FailedPrecondition:
		e.Code, e.Err = destination.BadRequest, errPrecondition
	case codes.AlreadyExists:
		e.Code = destination.Exists
	case codes.NotFound:
		e.Code, e.Err = destination.NoLocation, errNotFound
	case codes.PermissionDenied:
		e.Code, e.Err, e.Text = destination.Denied, errDenied, "grant the service account secretmanager."+f.op.name+" in the project"
		if reason == "CONSUMER_INVALID" {
			e.Code = destination.NoLocation
		}
	case codes.Unauthenticated:
		e.Code, e.Text = destination.Denied, "the token of the service account is not taken"
		if f.stale { // it may just have ended: a new one is issued for the next call
			e.Class, e.Code = destination.External, destination.Unavailable
		}
	case codes.ResourceExhausted:
		e.Class, e.Code, e.RetryAfter = destination.External, destination.Throttled, after
	case codes.Unimplemented, codes.OutOfRange:
		e.Class, e.Code = destination.External, destination.Unexpected
	default: // Unavailable, Internal, Unknown, Aborted, DeadlineExceeded, Cancelled, DataLoss
		e.Class, e.Code, e.RetryAfter, e.Unknown = destination.External, destination.Unavailable, after, f.op.writes
	}
	if hint, ok := advice[reason]; ok {
		e.Text = hint
	}
	return e
}

var reasonText = engines.Pattern(`^[A-Z][A-Z0-9_]{1,62}$`)

// details returns what is in an error beside code and message.
func (f failure) details() (reason string, after time.Duration) {
	for _, d := range status.Convert(f.err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if reasonText().MatchString(d.Reason) {
				reason = d.Reason
			}
		case *errdetails.RetryInfo:
			after = min(max(d.GetRetryDelay().AsDuration(), 0), destination.MaxRetryAfter)
		}
	}
	return reason, after
}

const maxMessageText = 200

// text puts together what people see: what was called, the service's code and reason, our advice, and its own words where no
// value can be in them.
func (f failure) text(advice string) string {
	reason, _ := f.details()
	text := fmt.Sprintf("Secret Manager answers %s to %s", f.code(), f.op.name)
	if reason != "" {
		text += " (" + reason + ")"
	}
	if advice != "" {
		text += ": " + advice
	}
	if message := f.message(); message != "" {
		text += fmt.Sprintf("; it says: %s", message)
	}
	return text
}

func (f failure) message() string {
	message := status.Convert(f.err).Message()
	if f.op.value || strings.Contains(message, f.token) {
		return ""
	}
	message = strings.TrimSpace(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, message))
	if len(message) > maxMessageText {
		message = strings.ToValidUTF8(message[:maxMessageText], "") + "…"
	}
	return message
}

// changed is the error of a write to what is not any more what was read.
func changed(text string) *destination.Error {
	return &destination.Error{Class: destination.Client, Code: destination.Changed, Text: text}
}

// unexpected is the error of an unexpected response.
func unexpected(text string) *destination.Error {
	return &destination.Error{Class: destination.External, Code: destination.Unexpected, Text: text}
}
