package cloud2kv

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// operation is one thing that is asked of the vault.
type operation struct {
	doing      string // as in "Key Vault rejects …"
	permission string
}

var (
	getting    = operation{"reading the secret", "secrets/get"}
	setting    = operation{"writing the secret", "secrets/set"}
	deleting   = operation{"deleting the secret", "secrets/delete"}
	recovering = operation{"recovering the deleted secret", "secrets/recover"}
	listing    = operation{"listing the secrets", "secrets/list"}
)

// refusal is a response of the vendor's that is no success. It is what an Error wraps: it has nothing of the response's text, in
// which there may be anything.
type refusal struct {
	status int
	code   string // one of known, or ""
	number string // such as AKV10032 or AADSTS7000215, or ""
}

func (r *refusal) Error() string {
	text := strconv.Itoa(r.status)
	for _, more := range []string{r.code, r.number} {
		if more != "" {
			text += " " + more
		}
	}
	return text
}

// known are the codes that the vault is known to answer, and what they say beyond the status. Others are left out of texts.
var known = map[string]string{
	"Unauthorized":                  "",
	"Forbidden":                     "",
	"AccessDenied":                  "",
	"ForbiddenByPolicy":             "the vault has no access policy for the app registration that allows it",
	"ForbiddenByRbac":               "the app registration has no role on the vault that allows it, such as Key Vault Secrets Officer",
	"ForbiddenByFirewall":           "the firewall of the vault does not let this server in",
	"ForbiddenByConnection":         "the network rules of the vault do not let this server in",
	"SecretDisabled":                "the secret is disabled",
	"BadParameter":                  "",
	"Conflict":                      "",
	"Throttled":                     "",
	"InternalServerError":           "",
	"ServiceUnavailable":            "",
	codeNotFound:                    "",
	"VaultNotFound":                 "there is no such vault",
	codeDeleted:                     "a secret of this name is deleted, but not purged",
	codeBeingDeleted:                "a secret of this name is still being deleted",
	codeBeingRecovered:              "a secret of this name is still being recovered",
	"CertificateManagedSecret":      "",
	"NotSupported":                  "",
	"RequestDisallowedByPolicy":     "a policy of the vault's owner does not allow it",
	"PolicyViolation":               "a policy of the vault's owner does not allow it",
	"ForbiddenByNetworkSecurityACL": "the network rules of the vault do not let this server in",
}

const (
	codeNotFound       = "SecretNotFound"
	codeDeleted        = "ObjectIsDeletedButRecoverable"
	codeBeingDeleted   = "ObjectIsBeingDeleted"
	codeBeingRecovered = "ObjectIsBeingRecovered"
	codeDisabled       = "SecretDisabled"
)

// credentialProblems are what the token endpoint may find wrong with the credentials, by its number.
var credentialProblems = map[string]string{
	"AADSTS7000215": "client_secret is wrong: give the secret's value, not its ID",
	"AADSTS7000222": "client_secret has expired: make a new one for the app registration",
	"AADSTS70021":   "the app registration has no federated credential for the identity token: compare its issuer, audience and subject",
	"AADSTS700211":  "the app registration has no federated credential with the issuer of the identity token (identity/oidc/config)",
	"AADSTS700212":  "the app registration has no federated credential with this identity_token_audience",
	"AADSTS700213":  "the app registration has no federated credential with the subject of the identity token",
	"AADSTS700016":  "there is no app registration with this client_id in the tenant of tenant_id",
	"AADSTS7000112": "the app registration of client_id is disabled",
	"AADSTS7000229": "the app registration of client_id has no service principal in the tenant of tenant_id",
	"AADSTS90002":   "there is no tenant with this tenant_id in this cloud",
	"AADSTS900023":  "tenant_id is neither the ID nor the domain of a tenant",
	"AADSTS500011":  "the tenant does not know Key Vault: look at tenant_id and cloud",
	"AADSTS650057":  "the app registration may not use Key Vault",
	"AADSTS53003":   "conditional access does not let this server in",
}

// do makes one call of the SDK and says what went wrong, as a *destination.Error.
func (v *vault) do(ctx context.Context, op operation, call func(context.Context) error) error {
	x := &exchange{}
	err := call(context.WithValue(ctx, exchangeKey{}, x))
	if err == nil {
		return nil
	}
	e := v.explain(op, x, err)
	if x.sent && !certain(e) {
		e.Unknown = true
	}
	return e
}

// certain reports whether the vault has said that it did nothing.
func certain(e *destination.Error) bool {
	r, ok := errors.AsType[*refusal](e.Err)
	return ok && r.status >= 400 && r.status < 500 && r.status != http.StatusRequestTimeout
}

// refusalOf returns what the vault has answered, the zero refusal if it has not.
func refusalOf(err error) refusal {
	if r, ok := errors.AsType[*refusal](err); ok {
		return *r
	}
	return refusal{}
}

func (v *vault) explain(op operation, x *exchange, err error) *destination.Error {
	if x.rejected != nil {
		return copied(x.rejected)
	}
	for _, err := range []error{err, x.broken} {
		if ours, ok := errors.AsType[*destination.Error](err); ok {
			return copied(ours)
		}
	}
	if answered, ok := errors.AsType[*azcore.ResponseError](err); ok && answered.RawResponse != nil {
		return v.answered(op, answered.RawResponse)
	}
	if rejected, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok && rejected.RawResponse != nil && rejected.RawResponse.StatusCode >= 300 {
		return tokenRefused(rejected.RawResponse)
	}
	if x.broken != nil {
		return unanswered(op, x)
	}
	for _, ended := range []error{context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, ended) {
			x.broken = ended
			return unanswered(op, x)
		}
	}
	if x.atAuthority {
		return unexpected("the token endpoint gives an unexpected response")
	}
	return unexpected("Key Vault gives an unexpected response, " + op.doing)
}

func copied(e *destination.Error) *destination.Error {
	c := *e
	return &c
}

func unexpected(text string) *destination.Error {
	return &destination.Error{Class: destination.External, Code: destination.Unexpected, Text: text}
}

// answered is the vault's answer, other than the one that was hoped for.
func (v *vault) answered(op operation, resp *http.Response) *destination.Error {
	r := vaultRefusal(resp)
	e := &destination.Error{Class: destination.Client, Err: r}
	text := "Key Vault rejects " + op.doing + " (" + r.Error() + ")"
	if known[r.code] != "" {
		text += ": " + known[r.code]
	}
	switch {
	case r.status == http.StatusUnauthorized:
		e.Code = destination.Denied
		text += ": it does not accept the token; look at tenant_id and cloud, and at the clock of this server"
	case r.status == http.StatusForbidden && r.code != codeDisabled:
		e.Code = destination.Denied
		text += ": the app registration needs the permission " + op.permission
	case r.status == http.StatusNotFound && r.code != codeNotFound:
		e.Code = destination.NoLocation
		text = "key_vault_uri does not lead to a vault (" + r.Error() + ")"
	case r.status == http.StatusConflict:
		e.Class, e.Code = destination.External, destination.Recovering
	case r.status == http.StatusRequestEntityTooLarge:
		e.Code = destination.TooLarge
	case r.status == http.StatusTooManyRequests:
		e.Class, e.Code = destination.External, destination.Throttled
		e.RetryAfter = destination.RetryAfter(resp.Header)
		text = "Key Vault gets too many requests (" + r.Error() + ")"
	case r.status >= 500, r.status == http.StatusRequestTimeout:
		e.Class, e.Code = destination.External, destination.Unavailable
		e.RetryAfter = destination.RetryAfter(resp.Header)
		text = "Key Vault has trouble " + op.doing + " (" + r.Error() + ")"
	case r.status >= 400:
		e.Code = destination.BadRequest
	default:
		e.Class, e.Code = destination.External, destination.Unexpected
	}
	e.Text = text
	return e
}

var (
	vaultNumber = regexp.MustCompile(`\bAKV[0-9]{5}\b`)
	tokenNumber = regexp.MustCompile(`\bAADSTS[0-9]{2,9}\b`)
)

// vaultRefusal reads the body of an error: the inner code says more than the outer one.
func vaultRefusal(resp *http.Response) *refusal {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Inner   struct {
				Code string `json:"code"`
			} `json:"innererror"`
		} `json:"error"`
	}
	if text, err := runtime.Payload(resp); err == nil {
		_ = json.Unmarshal(text, &body) // without it, the status has to do
	}
	r := &refusal{status: resp.StatusCode, number: vaultNumber.FindString(body.Error.Message)}
	for _, code := range []string{body.Error.Code, body.Error.Inner.Code} {
		if _, ok := known[code]; ok {
			r.code = code
		}
	}
	return r
}

// tokenRefused is a response of the token endpoint's that is no token.
func tokenRefused(resp *http.Response) *destination.Error {
	r := &refusal{status: resp.StatusCode}
	if text, err := runtime.Payload(resp); err == nil {
		r.number = tokenNumber.FindString(string(text))
	}
	e := &destination.Error{Class: destination.External, Code: destination.Unavailable, Err: r, RetryAfter: destination.RetryAfter(resp.Header)}
	switch {
	case r.status == http.StatusTooManyRequests:
		e.Code, e.Text = destination.Throttled, "the token endpoint gets too many requests ("+r.Error()+")"
	case r.status >= 500, r.status < 400:
		e.Text = "the token endpoint has trouble (" + r.Error() + ")"
	default:
		e.Class, e.Code = destination.Client, destination.Denied
		problem := credentialProblems[r.number]
		if problem == "" {
			problem = "look at tenant_id, client_id, client_secret and cloud"
		}
		e.Text = fmt.Sprintf("the token endpoint rejects the credentials (%v): %s", r, problem)
	}
	return e
}

// unanswered is a call without a response, or with a part of one.
func unanswered(op operation, x *exchange) *destination.Error {
	whom := "Key Vault"
	if x.atAuthority {
		whom = "the token endpoint"
	}
	e := &destination.Error{Class: destination.External, Code: destination.Unreachable}
	_, certificate := errors.AsType[*tls.CertificateVerificationError](x.broken)
	name, unresolved := errors.AsType[*net.DNSError](x.broken)
	dial, _ := errors.AsType[*net.OpError](x.broken)
	switch {
	case errors.Is(x.broken, context.Canceled):
		e.Err, e.Text = context.Canceled, op.doing+" was given up before "+whom+" answered"
	case errors.Is(x.broken, context.DeadlineExceeded):
		e.Err, e.Text = context.DeadlineExceeded, whom+" gives no answer in time, "+op.doing
	case certificate:
		e.Text = "the certificate of " + whom + " is not to be trusted"
	case unresolved && name.IsNotFound && !x.atAuthority:
		e.Class, e.Code = destination.Client, destination.NoLocation
		e.Text = "the host of key_vault_uri is not known: there is no such vault, or it is only known inside of its network"
	case unresolved:
		e.Text = "the host of " + whom + " cannot be looked up"
	case dial != nil && dial.Op == "dial":
		e.Text = whom + " cannot be connected to" + destination.WhyNoResponse(x.broken)
	default:
		e.Text = "the connection to " + whom + " broke, " + op.doing + destination.WhyNoResponse(x.broken)
	}
	return e
}
