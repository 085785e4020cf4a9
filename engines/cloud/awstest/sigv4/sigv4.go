// Package sigv4 reads the signatures of requests to the vendor (version 4), and makes them again. Whether the key is one that
// may sign is for the service to say.
package sigv4

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
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

// Request is a request as received, with what its Authorization header claims.
type Request struct {
	HTTP          *http.Request
	body          []byte
	Form          url.Values
	Authorization string
	AccessKey     string
	Date          string // of the scope, such as "20260102"
	Region        string
	Service       string
	headers       []string // that are signed, in lower case
	Complete      bool     // the Authorization header has all its parts
}

// Read reads a request whole.
func Read(h *http.Request) (*Request, error) {
	body, err := io.ReadAll(h.Body)
	if err != nil {
		return nil, err
	}
	r := &Request{HTTP: h, body: body, Authorization: h.Header.Get("Authorization")}
	if r.Form, err = url.ParseQuery(string(body)); err != nil {
		r.Form = url.Values{}
	}
	fields, ok := strings.CutPrefix(r.Authorization, "AWS4-HMAC-SHA256 ")
	if !ok {
		return r, nil
	}
	for field := range strings.SplitSeq(fields, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		switch name {
		case "Credential":
			if scope := strings.Split(value, "/"); len(scope) == 5 && scope[4] == "aws4_request" {
				r.AccessKey, r.Date, r.Region, r.Service = scope[0], scope[1], scope[2], scope[3]
				r.Complete = true
			}
		case "SignedHeaders":
			r.headers = strings.Split(value, ";")
		}
	}
	r.Complete = r.Complete && slices.Contains(r.headers, "host")
	return r, nil
}

// Sign makes the Authorization header that the signature of the request has with a secret key and, if there is one, a token.
func (r *Request) Sign(secret, token string, at time.Time) (string, error) {
	key := aws.Credentials{AccessKeyID: r.AccessKey, SecretAccessKey: secret, SessionToken: token}
	return Sign(r.HTTP, r.body, r.headers, key, r.Service, r.Region, at)
}

// Sign makes the Authorization header that a request has which was signed with a key. headers are those that are signed, in
// lower case.
func Sign(h *http.Request, body []byte, headers []string, key aws.Credentials, service, region string, at time.Time) (string, error) {
	again, err := http.NewRequest(h.Method, "http://"+h.Host+h.URL.RequestURI(), nil)
	if err != nil {
		return "", err
	}
	for _, name := range headers {
		switch name {
		case "host": // from the URL
		case "content-length":
			if again.ContentLength, err = strconv.ParseInt(h.Header.Get("Content-Length"), 10, 64); err != nil {
				again.ContentLength = h.ContentLength
			}
		default:
			again.Header[http.CanonicalHeaderKey(name)] = h.Header.Values(name)
		}
	}
	hash := sha256.Sum256(body)
	err = v4.NewSigner().SignHTTP(h.Context(), key, again, hex.EncodeToString(hash[:]), service, region, at)
	return again.Header.Get("Authorization"), err
}

// Mismatch says as much as the provider does, which is everything that was signed, the session token included.
func (r *Request) Mismatch() string {
	var canonical strings.Builder
	for _, name := range r.headers {
		canonical.WriteString(name + ":" + r.HTTP.Header.Get(name) + "\n")
	}
	return fmt.Sprintf("The request signature we calculated does not match the signature you provided. "+
		"Check your AWS Secret Access Key and signing method. Consult the service documentation for details.\n\n"+
		"The Canonical String for this request should have been\n'%s\n%s\n\n%s\n%s'",
		r.HTTP.Method, r.HTTP.URL.Path, canonical.String(), strings.Join(r.headers, ";"))
}
