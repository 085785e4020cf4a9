package cloud1

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	maxWords = 200 // of the provider's
	hidden   = "[hidden]"
)

// Code is the service's word for a refusal, without the "Exception" that some end in. It is the Err of an error.
type Code string

func (c Code) Error() string { return string(c) }

const (
	NotFound         = Code("ResourceNotFound")
	Exists           = Code("ResourceExists")
	InvalidRequest   = Code("InvalidRequest")
	InvalidParameter = Code("InvalidParameter")
	LimitExceeded    = Code("LimitExceeded")
	AccessDenied     = Code("AccessDenied")
	Decryption       = Code("DecryptionFailure")
	Encryption       = Code("EncryptionFailure")
	noCode           = Code("UnknownError") // the SDK's, for an error without a code
)

// Meaning is what a code means to secret sync.
type Meaning struct {
	Class destination.Class
	Code  string
}

// meaning of the provider's codes. What is not here is told from the status.
var meaning = map[Code]Meaning{
	NotFound:               {destination.Client, destination.NoLocation},
	Exists:                 {destination.Client, destination.Exists},
	InvalidRequest:         {destination.Client, destination.BadRequest},
	InvalidParameter:       {destination.Client, destination.BadRequest},
	LimitExceeded:          {destination.Client, destination.Quota},
	Decryption:             {destination.Client, destination.BadRequest},
	Encryption:             {destination.Client, destination.BadRequest},
	"InvalidNextToken":     {destination.External, destination.Unexpected},
	"MalformedInput":       {destination.Client, destination.BadRequest},
	"PreconditionNotMet":   {destination.Client, destination.BadRequest},
	"Serialization":        {destination.Client, destination.BadRequest},
	"Validation":           {destination.Client, destination.BadRequest},
	"ValidationError":      {destination.Client, destination.BadRequest},
	"RegionDisabled":       {destination.Client, destination.NoLocation},
	"UnknownOperation":     {destination.Client, destination.NoLocation},
	"InternalFailure":      {destination.External, destination.Unavailable},
	"InternalServiceError": {destination.External, destination.Unavailable},

	AccessDenied:                 {destination.Client, destination.Denied},
	"ExpiredToken":               {destination.Client, destination.Denied},
	"IDPCommunicationError":      {destination.External, destination.Unavailable},
	"IDPRejectedClaim":           {destination.Client, destination.Denied},
	"InvalidIdentityToken":       {destination.Client, destination.Denied},
	"IncompleteSignature":        {destination.Client, destination.Denied},
	"InvalidAccessKeyId":         {destination.Client, destination.Denied},
	"InvalidClientTokenId":       {destination.Client, destination.Denied},
	"InvalidSignature":           {destination.Client, destination.Denied},
	"MissingAuthenticationToken": {destination.Client, destination.Denied},
	"NotAuthorized":              {destination.Client, destination.Denied},
	"OptInRequired":              {destination.Client, destination.Denied},
	"RequestExpired":             {destination.Client, destination.Denied},
	"SignatureDoesNotMatch":      {destination.Client, destination.Denied},
	"UnrecognizedClient":         {destination.Client, destination.Denied},
	"BandwidthLimitExceeded":     {destination.External, destination.Throttled},
	"RequestLimitExceeded":       {destination.External, destination.Throttled},
	"RequestThrottled":           {destination.External, destination.Throttled},
	"SlowDown":                   {destination.External, destination.Throttled},
	"Throttled":                  {destination.External, destination.Throttled},
	"Throttling":                 {destination.External, destination.Throttled},
	"TooManyRequests":            {destination.External, destination.Throttled},
}

var (
	errForeign = errors.New("an answer that is not the provider's")
	// ErrCredentials is the Err of an error about the credentials that a call needs.
	ErrCredentials = errors.New("there are no credentials to make the call with")
)

// Client is an error that an operator has to mend.
func Client(code, text string) *destination.Error {
	return &destination.Error{Class: destination.Client, Code: code, Text: text}
}

// UnexpectedResponse is the error of a response without a required field.
func UnexpectedResponse(call string, changes bool) *destination.Error {
	return &destination.Error{
		Class: destination.External, Code: destination.Unexpected, Unknown: changes,
		Text: call + ": AWS did not answer as its API does: an incompatible service or a proxy is at this address; see the endpoint in the server's configuration, and proxies",
	}
}

func stopped(err error, call string, changes bool) *destination.Error {
	e := &destination.Error{Class: destination.External, Code: destination.Unreachable, Unknown: changes, Text: call + ": no answer in time", Err: context.DeadlineExceeded}
	if errors.Is(err, context.Canceled) {
		e.Text, e.Err = call+": canceled", context.Canceled
	}
	return e
}

// failed makes what the SDK returns an error of a destination. Its own texts have requests and answers in them, so none is
// kept.
func (s *Session) failed(err error, call string, changes bool) *destination.Error {
	if e, ok := errors.AsType[*destination.Error](err); ok { // of a rejected address, or of the credentials that were needed
		own := *e
		return &own
	}
	status, retryAfter := 0, time.Duration(0)
	if answer, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		status, retryAfter = answer.HTTPStatusCode(), destination.RetryAfter(answer.Response.Header)
	}
	said, isAnswer := errors.AsType[smithy.APIError](err)
	switch {
	case isAnswer && codeOf(said) != noCode:
		e := s.rejected(codeOf(said), said.ErrorMessage(), status, call)
		e.RetryAfter, e.Unknown = retryAfter, changes && e.Code == destination.Unavailable
		return e
	case errors.Is(err, errForeign):
		return UnexpectedResponse(call, changes)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return stopped(err, call, changes)
	case status >= http.StatusMultipleChoices:
		e := s.rejected(noCode, "", status, call)
		e.RetryAfter, e.Unknown = retryAfter, changes && status >= http.StatusInternalServerError
		return e
	case is[*smithyhttp.RequestSendError](err), is[*net.OpError](err), errors.Is(err, io.ErrUnexpectedEOF): // perhaps in the middle
		return unanswered(err, call, changes)
	case is[*smithy.DeserializationError](err) || status != 0:
		return UnexpectedResponse(call, changes)
	}
	return destination.InternalError(call + ": the request could not be made")
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// unanswered is a call that got no response. Whether it was sent at all is known of some causes.
func unanswered(err error, call string, changes bool) *destination.Error {
	e := &destination.Error{Class: destination.External, Code: destination.Unreachable}
	dial, dialled := errors.AsType[*net.OpError](err)
	switch {
	case is[*net.DNSError](err):
		e.Text = call + ": the name of AWS's host cannot be resolved"
	case dialled && dial.Op == "dial":
		e.Text = call + ": AWS cannot be connected to" + destination.WhyNoResponse(err)
	case is[*tls.CertificateVerificationError](err), is[x509.UnknownAuthorityError](err), is[x509.HostnameError](err), is[tls.RecordHeaderError](err):
		e.Text = call + ": the certificate of AWS's host is not trusted"
	default:
		e.Text, e.Unknown = call+": the connection to AWS broke"+destination.WhyNoResponse(err), changes
	}
	return e
}

func codeOf(said smithy.APIError) Code {
	code := strings.TrimSuffix(said.ErrorCode(), "Exception")
	if code == "" || len(code) > 64 || strings.ContainsFunc(code, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsLetter(r) }) {
		return noCode
	}
	return Code(code)
}

// rejected is a response that is an error.
func (s *Session) rejected(code Code, message string, status int, call string) *destination.Error {
	e := &destination.Error{Class: destination.Client, Code: destination.BadRequest, Err: code}
	m, ok := s.service.Meaning[code]
	if !ok {
		m, ok = meaning[code]
	}
	switch {
	case ok:
		e.Class, e.Code = m.Class, m.Code
	case status == http.StatusTooManyRequests:
		e.Class, e.Code = destination.External, destination.Throttled
	case status >= http.StatusInternalServerError || status == http.StatusRequestTimeout:
		e.Class, e.Code = destination.External, destination.Unavailable
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		e.Code = destination.Denied
	case status == http.StatusRequestEntityTooLarge:
		e.Code = destination.TooLarge
	case status < http.StatusBadRequest: // a redirect
		e.Class, e.Code = destination.External, destination.Unexpected
	}
	words := ""
	if s.service.Advice != nil {
		words = s.service.Advice(call, code)
	}
	e.Text = call + ": " + cmp.Or(words, advice(call, e.Code, code))
	if code == noCode {
		e.Text += fmt.Sprintf(" (status %d)", status)
	} else {
		e.Text += " (" + string(code) + ")"
	}
	if words = s.fitting(code, message, call); words != "" {
		e.Text += ": " + words
	}
	return e
}

// advice says what a refusal means and what to do.
func advice(call, code string, said Code) string {
	switch said {
	case Encryption, Decryption:
		return "the key of KMS cannot be used: see kms_key_id, whether it is enabled, and whether the credentials may use it"
	case AccessDenied:
		if call == "AssumeRoleWithWebIdentity" {
			return "AWS does not let the identity token assume the role: see whether the trust policy of role_arn has the identity provider, this audience and this subject"
		}
		return "AWS does not allow this call to the credentials: see the policies of the user, the role, the secret and the key"
	case "IDPCommunicationError":
		return "AWS cannot read the public keys of this server's identity tokens: see whether the issuer (identity/oidc/config) can be reached from the internet"
	case "IDPRejectedClaim", "InvalidIdentityToken":
		return "AWS does not take the identity token: see the identity provider in IAM, its audience, and the issuer (identity/oidc/config)"
	case "ExpiredToken", "RequestExpired":
		return "AWS does not take the credentials any more"
	case "InvalidSignature", "SignatureDoesNotMatch":
		return "AWS rejects the signature: see secret_access_key and the server's clock"
	}
	switch code {
	case destination.Denied:
		return "AWS does not take the credentials: see access_key_id"
	case destination.Throttled:
		return "too many requests"
	case destination.Unavailable:
		return "AWS has trouble"
	case destination.Quota:
		return "a quota of the account, or of what is written, is exhausted"
	case destination.Exists:
		return "the name is taken"
	case destination.NoLocation:
		return "it is not there"
	case destination.TooLarge:
		return "the request is too large"
	case destination.Unexpected:
		return "AWS answers something unexpected"
	}
	return "AWS does not take the request"
}

// fitting are the provider's words, where they tell more and cannot hold what was sent. A rejected signature comes with all
// that was signed, and a violated rule with the value that violates it.
func (s *Session) fitting(code Code, message, call string) string {
	if slices.Contains(s.service.Wordless, call) {
		return reason(message)
	}
	switch code {
	case AccessDenied, InvalidRequest, LimitExceeded, Decryption, Encryption, "PreconditionNotMet":
		return Cleaned(message)
	}
	return ""
}

// reasons are phrases of the provider that tell something and nothing of the request.
var reasons = []string{
	"explicit deny in a service control policy", "explicit deny in a resource control policy", "explicit deny in a permissions boundary",
	"explicit deny in a resource-based policy", "explicit deny in an identity-based policy", "explicit deny in a session policy",
	"explicit deny in a VPC endpoint policy", "no identity-based policy allows", "no resource-based policy allows",
	"no permissions boundary allows", "no session policy allows", "no service control policy allows", "no VPC endpoint policy allows",
	"Access to KMS is not allowed", "scheduled for deletion", "marked for deletion", "because it was deleted",
}

func reason(message string) string {
	for _, phrase := range reasons {
		if strings.Contains(message, phrase) {
			return phrase
		}
	}
	return ""
}

var (
	ids  = engines.Pattern(`\bA[A-Z]{3}[A-Z0-9]{12,}\b`) // of keys, and of users and roles
	long = engines.Pattern(`[A-Za-z0-9+/=]{40,}`)        // keys, tokens, signatures
)

// Cleaned takes out of the provider's words what looks like a credential, and cuts them.
func Cleaned(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	message = ids().ReplaceAllString(message, hidden)
	message = long().ReplaceAllString(message, hidden)
	message = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(message, "?"))
	if letters := []rune(message); len(letters) > maxWords {
		message = string(letters[:maxWords]) + " …"
	}
	return message
}
