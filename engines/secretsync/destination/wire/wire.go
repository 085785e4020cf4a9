// Package wire makes the calls of destinations that speak plain HTTP. Every call is made once, ends after CallTimeout, follows no
// redirect, and reads a response of bounded length. An error says whether the request may have been carried out.
//
// A type of destination describes a request as a Call, reads the vendor's statuses from the Response, and leaves the others to
// Client.Refusal. Start reading at Client.Do.
package wire

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// CallTimeout is the timeout of a call whose context has no deadline.
const CallTimeout = 30 * time.Second

// maxBody is the default of Client.MaxBody.
const maxBody = 8 << 20

// maxRefusal is how much of the body of a response with another status than 2xx is read: the message of the vendor, not its data.
const maxRefusal = 64 << 10

// Client makes calls. Safe for concurrent use.
type Client struct {
	Vendor     string      // as texts of errors name it
	Credential string      // the field of the configuration that a response of 401 is about
	MaxBody    int64       // bytes of a response; 0: 8 MiB
	Header     http.Header // sent with every call
	HTTP       *http.Client
}

// New returns a Client that connects as the operator allows.
func New(vendor, credential string, env destination.Env) (*Client, error) {
	if env.Client == nil {
		return nil, destination.InternalError(vendor + ": there is no HTTP client")
	}
	own := *env.Client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{Vendor: vendor, Credential: credential, Header: http.Header{"User-Agent": {"coffer"}}, HTTP: &own}, nil
}

// Close closes idle connections.
func (c *Client) Close() error {
	c.HTTP.CloseIdleConnections()
	return nil
}

// Call is one request.
type Call struct {
	Method string
	URL    string
	Header http.Header // added to the client's
	Body   []byte
	Writes bool // it may take effect
}

// encode gives a call a body of JSON, nothing for nil.
func (c *Client) encode(what *Call, body any) (err error) {
	if body == nil {
		return nil
	}
	if what.Body, err = json.Marshal(body); err != nil {
		return destination.InternalError(c.Vendor + ": a request could not be made")
	}
	if what.Header == nil {
		what.Header = http.Header{}
	}
	if what.Header.Get("Content-Type") == "" {
		what.Header.Set("Content-Type", "application/json")
	}
	return nil
}

// Base returns the URL that calls begin with, without a slash at the end: the operator's, or the vendor's own.
func (c *Client) Base(operator, own string) (string, error) {
	base := strings.TrimRight(cmp.Or(operator, own), "/")
	if u, err := url.Parse(base); err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", destination.InternalError(c.Vendor + ": the operator's URL is not one")
	}
	return base, nil
}

// Response is a whole response, of any status.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
	writes bool
}

// OK reports whether the status is 2xx.
func (r *Response) OK() bool { return r.Status >= 200 && r.Status <= 299 }

// Do makes a call. The error, a *destination.Error, is about a response that did not arrive, or is too long.
func (c *Client) Do(ctx context.Context, what Call) (*Response, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, CallTimeout)
		defer cancel()
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, what.Method, what.URL, bytes.NewReader(what.Body))
	if err != nil {
		return nil, destination.InternalError(c.Vendor + ": a request could not be made")
	}
	for _, h := range []http.Header{c.Header, what.Header} {
		for name, values := range h {
			req.Header[name] = values
		}
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, destination.NoResponse(c.Vendor, err, what.Writes && sent.Load())
	}
	defer resp.Body.Close()
	ok := resp.StatusCode >= 200 && resp.StatusCode <= 299
	most := cmp.Or(c.MaxBody, maxBody)
	if !ok {
		most = maxRefusal
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch whole := err == nil && int64(len(body)) <= most; {
	case whole || !ok: // the status says enough
		return &Response{Status: resp.StatusCode, Header: resp.Header, Body: body, writes: what.Writes}, nil
	case err != nil:
		return nil, destination.NoResponse(c.Vendor, err, what.Writes)
	}
	return nil, destination.UnexpectedResponse(c.Vendor, what.Writes)
}

// Decode reads the JSON body of a response of 2xx.
func (c *Client) Decode(r *Response, into any) error {
	if json.Unmarshal(r.Body, into) != nil {
		return destination.UnexpectedResponse(c.Vendor, r.writes)
	}
	return nil
}

// JSON makes a call with a body of JSON, and decodes that of a response of 2xx; nil: there is none, or it does not matter. refusal makes the
// error of another response. The response is there if there was one.
func (c *Client) JSON(ctx context.Context, what Call, body, into any, refusal func(*Response) error) (*Response, error) {
	if err := c.encode(&what, body); err != nil {
		return nil, err
	}
	resp, err := c.Do(ctx, what)
	switch {
	case err != nil:
		return nil, err
	case !resp.OK():
		return resp, refusal(resp)
	case into == nil:
		return resp, nil
	}
	return resp, c.Decode(resp, into)
}

// Refusal is the error of a response that is not 2xx, as far as its status alone says it. It quotes nothing of the response, which may
// quote the request.
func (c *Client) Refusal(r *Response) *destination.Error {
	e := &destination.Error{Class: destination.Client, Code: destination.BadRequest}
	switch {
	case r.Status == http.StatusTooManyRequests:
		e.Class, e.Code, e.RetryAfter = destination.External, destination.Throttled, destination.RetryAfter(r.Header)
		e.Text = c.Vendor + " takes no more of these requests for now"
	case r.Status >= 500:
		e.Class, e.Code, e.Unknown, e.RetryAfter = destination.External, destination.Unavailable, r.writes, destination.RetryAfter(r.Header)
		e.Text = c.Vendor + " has trouble: it answers with status " + strconv.Itoa(r.Status)
	case r.Status < 400:
		e.Class, e.Code, e.Unknown = destination.External, destination.Unexpected, r.writes
		e.Text = c.Vendor + " redirects to another address, which is not followed"
	case r.Status == http.StatusUnauthorized:
		e.Code, e.Text = destination.Denied, c.Vendor+" does not accept "+c.Credential+": it is wrong, expired or revoked"
	case r.Status == http.StatusForbidden:
		e.Code, e.Text = destination.Denied, c.Vendor+" denies the call: "+c.Credential+" does not have the permission"
	case r.Status == http.StatusNotFound:
		e.Code, e.Text = destination.NoLocation, c.Vendor+" does not have this location, or "+c.Credential+" may not see it"
	case r.Status == http.StatusRequestEntityTooLarge:
		e.Code, e.Text = destination.TooLarge, c.Vendor+" finds the value too large"
	default:
		e.Text = c.Vendor + " rejects the request: status " + strconv.Itoa(r.Status)
	}
	return e
}

// URLProblem returns what is wrong with a URL that a caller of the API has chosen, "" if nothing: it has to be an https URL without
// credentials, query and fragment.
func URLProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "":
		return "must be a URL that begins with https://"
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		return "must be a URL without credentials, query and fragment"
	case strings.Contains(u.Path, "/../") || strings.HasSuffix(u.Path, "/.."):
		return "must be a URL without .. in its path"
	}
	return ""
}

// Location returns a URL as a part of destination.Config.Location: host and path, without what makes no difference.
func Location(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return strings.TrimSuffix(strings.ToLower(u.Host), ":443") + strings.TrimSuffix(u.EscapedPath(), "/")
}

// CredentialProblem returns what is wrong with a credential that is sent in a header, "" if nothing. It tells no part of it.
func CredentialProblem(value string) string {
	switch {
	case value == "":
		return "must be given"
	case strings.HasPrefix(value, "@"):
		return "must be the credential itself: @file is expanded by the command line only, the server reads no files that callers name"
	case value == destination.Mask:
		return "must be the credential itself: what reads answer in its place is kept only where one is stored already"
	case strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "must be printable ASCII without spaces and line breaks"
	}
	return ""
}
