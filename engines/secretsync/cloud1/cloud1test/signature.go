package cloud1test

import (
	"crypto/subtle"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/coffer-project/coffer/engines/cloud/awstest/sigv4"
)

// maxSkew is how old or young a signature may be.
const maxSkew = 5 * time.Minute

// credential is a key of a client.
type credential struct {
	secret string
	token  string // "" of a user
}

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=(\w+)/(\d{8})/([a-z0-9-]+)/([a-z]+)/aws4_request, ?SignedHeaders=([a-z0-9;-]+), ?Signature=[0-9a-f]{64}$`)

// authenticate makes the signature again that a request must have.
func (s *Server) authenticate(h *http.Request, body []byte) *Refusal {
	header := h.Header.Get("Authorization")
	if header == "" {
		return Reject("MissingAuthenticationTokenException", "Missing Authentication Token")
	}
	m := authorization.FindStringSubmatch(header)
	if m == nil {
		return Reject("IncompleteSignatureException", "Authorization header requires 'Credential', 'SignedHeaders' and 'Signature' parameters.")
	}
	key, date, region, service, signed := m[1], m[2], m[3], m[4], strings.Split(m[5], ";")
	known, ok := s.credential(key)
	if !ok || known.token != h.Header.Get("X-Amz-Security-Token") {
		return Reject("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	if service != s.service.Signing || region != s.Region {
		return Reject("InvalidSignatureException", "Credential should be scoped to a valid region and to correct service: '%s'.", s.service.Signing)
	}
	for _, name := range []string{"host", "x-amz-date", "x-amz-target"} {
		if !slices.Contains(signed, name) {
			return Reject("InvalidSignatureException", "'%s' must be a 'SignedHeader' in the AWS Authorization.", name)
		}
	}
	at, err := time.Parse("20060102T150405Z", h.Header.Get("X-Amz-Date"))
	if err != nil || at.Format("20060102") != date {
		return Reject("InvalidSignatureException", "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP")
	}
	if d := s.clock().Sub(at); d.Abs() > maxSkew {
		return Reject("InvalidSignatureException", "Signature expired: %s is now earlier or later than the server's time allows", h.Header.Get("X-Amz-Date"))
	}
	as := aws.Credentials{AccessKeyID: key, SecretAccessKey: known.secret, SessionToken: known.token}
	again, err := sigv4.Sign(h, body, signed, as, service, region, at)
	if err != nil || subtle.ConstantTimeCompare([]byte(again), []byte(header)) != 1 {
		return s.mismatch(h, signed)
	}
	return nil
}

// mismatch says as much as the provider does, which is everything that was signed, the session token included.
func (s *Server) mismatch(h *http.Request, signed []string) *Refusal {
	var canonical strings.Builder
	for _, name := range signed {
		canonical.WriteString(name + ":" + h.Header.Get(name) + "\n")
	}
	return Reject("InvalidSignatureException", "The request signature we calculated does not match the signature you provided. "+
		"Check your AWS Secret Access Key and signing method. Consult the service documentation for details.\n\n"+
		"The Canonical String for this request should have been\n'%s\n%s\n\n%s'", h.Method, h.URL.Path, canonical.String())
}
