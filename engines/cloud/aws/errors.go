package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const (
	maxTextBytes = 400
	hidden       = "[hidden]"
	noCode       = "UnknownError" // the SDK's word for an error without a code
)

// kinds of the provider's codes, without the "Exception" that some of them end in.
var kinds = map[string]Kind{
	"NoSuchEntity":        NotFound,
	"EntityAlreadyExists": Exists,
	"LimitExceeded":       Limit,

	"AccessDenied":               Denied,
	"AuthFailure":                Denied,
	"ExpiredToken":               Denied,
	"IDPCommunicationError":      Unavailable,
	"IDPRejectedClaim":           Denied,
	"IncompleteSignature":        Denied,
	"InvalidAccessKeyId":         Denied,
	"InvalidClientTokenId":       Denied,
	"InvalidIdentityToken":       Denied,
	"MissingAuthenticationToken": Denied,
	"OptInRequired":              Denied,
	"RegionDisabled":             Denied,
	"RequestExpired":             Denied,
	"SignatureDoesNotMatch":      Denied,
	"UnrecognizedClient":         Denied,

	"InvalidInput":            Invalid,
	"InvalidParameterValue":   Invalid,
	"MalformedInput":          Invalid,
	"MalformedPolicyDocument": Invalid,
	"MissingParameter":        Invalid,
	"PackedPolicyTooLarge":    Invalid,
	"PolicyNotAttachable":     Invalid,
	"UnmodifiableEntity":      Invalid,
	"Validation":              Invalid,
	"ValidationError":         Invalid,

	"RequestLimitExceeded": Throttled,
	"RequestThrottled":     Throttled,
	"SlowDown":             Throttled,
	"Throttled":            Throttled,
	"Throttling":           Throttled,
	"TooManyRequests":      Throttled,

	"ConcurrentModification":        Conflict,
	"DeleteConflict":                Conflict,
	"EntityTemporarilyUnmodifiable": Conflict,

	"InternalError":      Unavailable,
	"InternalFailure":    Unavailable,
	"RequestTimeout":     Unavailable,
	"ServiceFailure":     Unavailable,
	"ServiceUnavailable": Unavailable,
}

// KindOf returns the Kind of an error of this package, and Other for all others.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Other
}

// failed makes what the SDK returns an *Error. Nothing of the original is kept but the end of the context: its texts have
// requests and responses in them.
func (c *Client) failed(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok { // of the credentials that the call needed, as others did
		own := *e
		return &own
	}
	e := &Error{}
	if op, ok := errors.AsType[*smithy.OperationError](err); ok {
		e.Action = op.Operation()
	}
	status := 0
	if answer, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		status = answer.HTTPStatusCode()
	}
	said, isAnswer := errors.AsType[smithy.APIError](err)
	switch {
	case isAnswer && said.ErrorCode() != noCode:
		e.Code = codeOf(said)
		e.Kind = kindOf(e.Code, status)
		e.Text = bounded(c.hide(said.ErrorMessage()))
	case errors.Is(err, context.Canceled):
		e.Kind, e.Text, e.Err = Unavailable, "canceled", context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		e.Kind, e.Text, e.Err = Unavailable, "timed out", context.DeadlineExceeded
	case is[*smithyhttp.RequestSendError](err):
		e.Kind, e.Text = Unavailable, "not reached: "+bounded(c.hide(innermost(err)))
	case status >= http.StatusMultipleChoices:
		e.Kind, e.Text = kindOf("", status), fmt.Sprintf("an answer with status %d that is not the provider's", status)
	case is[*smithy.DeserializationError](err) || status != 0:
		e.Kind, e.Text = Unavailable, "an answer that cannot be read"
	case is[smithy.InvalidParamsError](err) || is[*smithy.InvalidParamsError](err):
		e.Kind, e.Text = Invalid, bounded(c.hide(innermost(err)))
	default:
		e.Kind, e.Text = Other, bounded(c.hide(innermost(err)))
	}
	return e
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func codeOf(said smithy.APIError) string {
	code := strings.TrimSuffix(said.ErrorCode(), "Exception")
	if len(code) > 64 || strings.ContainsFunc(code, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) }) {
		return noCode
	}
	return code
}

// kindOf goes by the code, and else by the status; but nothing is NotFound that the provider does not say is, for that is
// as good as removed.
func kindOf(code string, status int) Kind {
	if k, ok := kinds[code]; ok {
		return k
	}
	switch {
	case status == http.StatusTooManyRequests:
		return Throttled
	case status >= http.StatusInternalServerError, status == http.StatusRequestTimeout:
		return Unavailable
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Denied
	case status == http.StatusConflict:
		return Conflict
	}
	return Other
}

// maybeDone reports whether a failed attempt may have been carried out.
func maybeDone(err error) bool {
	if is[*Error](err) {
		return false // there were no credentials to try with
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return false
	}
	if is[*net.DNSError](err) {
		return false
	}
	said, isAnswer := errors.AsType[smithy.APIError](err)
	answer, hasStatus := errors.AsType[*smithyhttp.ResponseError](err)
	if !hasStatus {
		return true
	}
	status := answer.HTTPStatusCode()
	if isAnswer {
		return kindOf(codeOf(said), status) == Unavailable
	}
	return status < http.StatusBadRequest || status >= http.StatusInternalServerError
}

// innermost returns the text of the first cause, which does not repeat what is around it.
func innermost(err error) string {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		if op, ok := err.(*net.OpError); ok {
			return op.Error()
		}
		err = next
	}
}

var (
	// Validation errors quote what was sent: documents, codes. From the first quotation to the last, for it may hold quotes.
	quoted = regexp.MustCompile(`(?s)[Vv]alue '.*' at '`)
	// Ids of keys, and of users and roles that look like them.
	ids = regexp.MustCompile(`\bA[A-Z]{3}[A-Z0-9]{12,}\b`)
	// Identity tokens, in whose alphabet are dashes.
	tokens = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]*)+`)
	// Secret keys, session tokens and signatures. Names of users are as long, but have dashes.
	long = regexp.MustCompile(`[A-Za-z0-9+/=]{40,}`)
)

// bounded removes key ids, secrets and quoted values from the provider's message and truncates it. The error of a rejected
// signature repeats the signed request from the second line on.
func bounded(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = quoted.ReplaceAllString(text, "Value at '")
	text = ids.ReplaceAllString(tokens.ReplaceAllString(text, hidden), hidden)
	text = long.ReplaceAllString(text, hidden)
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= maxTextBytes {
		return text
	}
	cut := maxTextBytes
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + " …"
}
