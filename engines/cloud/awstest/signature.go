package awstest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// maxSkew is how old a signature may be.
const maxSkew = 15 * time.Minute

// signedRequest is a request as received, with what its Authorization header claims.
type signedRequest struct {
	http          *http.Request
	body          []byte
	form          url.Values
	authorization string
	accessKey     string
	date          string // of the scope, such as "20260102"
	region        string
	service       string
	headers       []string // that are signed, in lower case
	complete      bool     // the Authorization header has all its parts
}

// readSigned reads a request whole.
func readSigned(h *http.Request) (*signedRequest, error) {
	body, err := io.ReadAll(h.Body)
	if err != nil {
		return nil, err
	}
	r := &signedRequest{http: h, body: body, authorization: h.Header.Get("Authorization")}
	if r.form, err = url.ParseQuery(string(body)); err != nil {
		r.form = url.Values{}
	}
	fields, ok := strings.CutPrefix(r.authorization, "AWS4-HMAC-SHA256 ")
	if !ok {
		return r, nil
	}
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "Credential":
			if scope := strings.Split(value, "/"); len(scope) == 5 && scope[4] == "aws4_request" {
				r.accessKey, r.date, r.region, r.service = scope[0], scope[1], scope[2], scope[3]
				r.complete = true
			}
		case "SignedHeaders":
			r.headers = strings.Split(value, ";")
		}
	}
	r.complete = r.complete && slices.Contains(r.headers, "host")
	return r, nil
}

// authenticate returns who signed a request.
func (s *Server) authenticate(r *signedRequest, service string, now time.Time) (*principal, *refusal) {
	if r.authorization == "" {
		return nil, refuse("MissingAuthenticationToken", "Request is missing Authentication Token")
	}
	if !r.complete {
		return nil, refuse("IncompleteSignature", "Authorization header requires 'Credential', 'Signature' and 'SignedHeaders' parameters.")
	}
	p, refused := s.principal(r.accessKey, r.http.Header.Get("X-Amz-Security-Token"), now)
	if refused != nil {
		return nil, refused
	}
	signedAt, err := time.Parse("20060102T150405Z", r.http.Header.Get("X-Amz-Date"))
	if err != nil || signedAt.Format("20060102") != r.date {
		return nil, refuse("SignatureDoesNotMatch", "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP")
	}
	if d := time.Since(signedAt); d > maxSkew || d < -maxSkew {
		return nil, refuse("SignatureDoesNotMatch", "Signature expired: %s is now too far from the server's time", signedAt.Format("20060102T150405Z"))
	}
	if r.service != service {
		return nil, refuse("SignatureDoesNotMatch", "Credential should be scoped to correct service: '%s'.", service)
	}
	again, err := r.sign(p, signedAt)
	if err != nil || subtle.ConstantTimeCompare([]byte(again), []byte(r.authorization)) != 1 {
		return nil, r.mismatch()
	}
	if k := s.keys[r.accessKey]; k != nil {
		k.usedAt = now
	}
	return p, nil
}

// sign makes the Authorization header that a principal's signature of the request has.
func (r *signedRequest) sign(p *principal, at time.Time) (string, error) {
	again, err := http.NewRequest(r.http.Method, "http://"+r.http.Host+r.http.URL.RequestURI(), nil)
	if err != nil {
		return "", err
	}
	for _, name := range r.headers {
		switch name {
		case "host": // from the URL
		case "content-length":
			if again.ContentLength, err = strconv.ParseInt(r.http.Header.Get("Content-Length"), 10, 64); err != nil {
				again.ContentLength = r.http.ContentLength
			}
		default:
			again.Header[http.CanonicalHeaderKey(name)] = r.http.Header.Values(name)
		}
	}
	hash := sha256.Sum256(r.body)
	creds := aws.Credentials{AccessKeyID: r.accessKey, SecretAccessKey: p.secret, SessionToken: p.token}
	err = v4.NewSigner().SignHTTP(r.http.Context(), creds, again, hex.EncodeToString(hash[:]), r.service, r.region, at)
	return again.Header.Get("Authorization"), err
}

// mismatch says as much as the provider does, which is everything that was signed, the session token included.
func (r *signedRequest) mismatch() *refusal {
	var canonical strings.Builder
	for _, name := range r.headers {
		canonical.WriteString(name + ":" + r.http.Header.Get(name) + "\n")
	}
	return refuse("SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. "+
		"Check your AWS Secret Access Key and signing method. Consult the service documentation for details.\n\n"+
		"The Canonical String for this request should have been\n'%s\n%s\n\n%s\n%s'",
		r.http.Method, r.http.URL.Path, canonical.String(), strings.Join(r.headers, ";"))
}
