package awstest

import (
	"crypto/subtle"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest/query"
	"github.com/coffer-project/coffer/engines/cloud/awstest/sigv4"
)

// maxSkew is how old a signature may be.
const maxSkew = 15 * time.Minute

// authenticate returns who signed a request.
func (s *Server) authenticate(r *sigv4.Request, service string, now time.Time) (*principal, *query.Refusal) {
	if r.Authorization == "" {
		return nil, query.Refuse("MissingAuthenticationToken", "Request is missing Authentication Token")
	}
	if !r.Complete {
		return nil, query.Refuse("IncompleteSignature", "Authorization header requires 'Credential', 'Signature' and 'SignedHeaders' parameters.")
	}
	p, refused := s.principal(r.AccessKey, r.HTTP.Header.Get("X-Amz-Security-Token"), now)
	if refused != nil {
		return nil, refused
	}
	signedAt, err := time.Parse("20060102T150405Z", r.HTTP.Header.Get("X-Amz-Date"))
	if err != nil || signedAt.Format("20060102") != r.Date {
		return nil, query.Refuse("SignatureDoesNotMatch", "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP")
	}
	if d := time.Since(signedAt); d > maxSkew || d < -maxSkew {
		return nil, query.Refuse("SignatureDoesNotMatch", "Signature expired: %s is now too far from the server's time", signedAt.Format("20060102T150405Z"))
	}
	if r.Service != service {
		return nil, query.Refuse("SignatureDoesNotMatch", "Credential should be scoped to correct service: '%s'.", service)
	}
	again, err := r.Sign(p.secret, p.token, signedAt)
	if err != nil || subtle.ConstantTimeCompare([]byte(again), []byte(r.Authorization)) != 1 {
		return nil, query.Refuse("SignatureDoesNotMatch", "%s", r.Mismatch())
	}
	if k := s.keys[r.AccessKey]; k != nil {
		k.usedAt = now
	}
	return p, nil
}
