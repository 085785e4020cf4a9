package repohost

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-github/v89/github"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/githubapp"
)

const (
	callTimeout = 30 * time.Second // of a call whose context has no end
	maxAnswer   = 8 << 20          // bytes
	leastWait   = time.Minute      // the vendor's word for limits that come without a time
)

// client makes calls, each once.
type client struct {
	api   *github.Client
	token string     // fixed; "" with app
	app   *appTokens // nil without app_name
	base  string     // path of the secrets, without a slash at the end
	idle  func()     // closes connections
}

// newClient returns a client for the secrets that a resolved configuration names.
func newClient(c Config, env destination.Env) (*client, error) {
	if env.Client == nil {
		return nil, internal("no HTTP client")
	}
	hc := *env.Client
	// A redirect means that the repository has another name now. Its secrets would be written, but not where Location says.
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	hc.Transport = bounded{next: hc.Transport}
	opts := []github.ClientOptionsFunc{
		github.WithHTTPClient(&hc), github.WithUserAgent("coffer"),
		github.WithDisableRateLimitCheck(), // package workqueue limits the calls
	}
	if u := cmp.Or(githubapp.APIURL(c.EnterpriseURL), env.URL); u != "" {
		u = strings.TrimSuffix(u, "/") + "/"
		opts = append(opts, github.WithURLs(&u, nil))
	}
	api, err := github.NewClient(opts...)
	if err != nil {
		return nil, internal("the operator's URL of repohost is not one")
	}
	base := "repos/" + c.RepositoryOwner + "/" + c.RepisitoryName + "/actions/secrets"
	switch {
	case c.SecretsLocation == inOrganization:
		base = "orgs/" + c.Organization + "/actions/secrets"
	case c.EnvironmentName != "":
		base = "repos/" + c.RepositoryOwner + "/" + c.RepisitoryName + "/environments/" + url.PathEscape(c.EnvironmentName) + "/secrets"
	}
	cl := &client{api: api, token: c.AccessToken.Reveal(), base: base, idle: env.Client.CloseIdleConnections}
	if c.AppName != "" {
		cl.app, err = newAppTokens(&c, env.App)
	}
	return cl, err
}

// bounded cuts answers that are too long to be true.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	next := b.next
	if next == nil {
		next = http.DefaultTransport
	}
	resp, err := next.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}

// call is one request.
type call struct {
	method string
	path   string // below the API's URL
	body   any
	etag   string // 304 if what is there still has it
	into   any
	writes bool // it may take effect
}

// do makes a call. The response is there if there was one; the error, nil for 2xx and 304, is a *destination.Error. A token of an app
// that has ended before its time is replaced once.
func (c *client) do(ctx context.Context, what call) (*github.Response, error) {
	if c.app == nil {
		return c.send(ctx, what, c.token)
	}
	token, fresh, err := c.app.get(ctx, c)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, what, token)
	if err == nil || fresh || resp == nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	c.app.drop(token)
	if token, _, err = c.app.get(ctx, c); err != nil {
		return nil, err
	}
	return c.send(ctx, what, token)
}

// send makes a call with a token.
func (c *client) send(ctx context.Context, what call, token string) (*github.Response, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := c.api.NewRequest(ctx, what.method, what.path, what.body)
	if err != nil {
		return nil, internal("a request could not be made")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if what.etag != "" {
		req.Header.Set("If-None-Match", what.etag)
	}
	resp, err := c.api.Do(req, what.into)
	if err == nil {
		return resp, nil
	}
	if resp == nil || resp.Response == nil {
		return nil, destination.NoResponse("GitHub", err, what.writes && sent.Load())
	}
	switch code := resp.StatusCode; {
	case code == http.StatusNotModified && what.etag != "":
		return resp, nil
	case code >= 200 && code < 300:
		return resp, destination.UnexpectedResponse("GitHub", what.writes)
	}
	return resp, c.refusal(what, token, resp.Response, err)
}

func internal(text string) error {
	return &destination.Error{Class: destination.Internal, Code: destination.Unexpected, Text: "repohost: " + text}
}

// refusal is the error of a response that is neither 2xx nor 304.
func (c *client) refusal(what call, token string, resp *http.Response, err error) error {
	said, with := vendorMessage(what, token, err), c.credential()
	e := &destination.Error{Class: destination.Client, Code: destination.BadRequest}
	switch code := resp.StatusCode; {
	case throttled(resp, err):
		e.Class, e.Code, e.RetryAfter = destination.External, destination.Throttled, retryAfter(resp.Header)
		if resp.Header.Get("Retry-After") == "" && resp.Header.Get("X-Ratelimit-Remaining") != "0" {
			e.RetryAfter = leastWait
		}
		e.Text = "GitHub takes no more requests with " + with + " for now"
	case code == http.StatusUnauthorized:
		e.Code, e.Text = destination.Denied, "GitHub does not accept "+with+": it is wrong, expired or revoked"+said
	case code == http.StatusForbidden, code == http.StatusUnavailableForLegalReasons:
		e.Code, e.Text = destination.Denied, "GitHub rejects the call: "+with+" needs read and write access to the secrets of the place, and the organization's consent where it asks for that"+said
	case code == http.StatusNotFound:
		e.Code, e.Text = destination.NoLocation, "the repository, environment or organization is not there, or "+with+" may not see its secrets"
	case code >= 300 && code < 400:
		e.Code, e.Text = destination.NoLocation, "the repository or organization has another name now: write the new one to the destination"
	case code == http.StatusRequestEntityTooLarge:
		e.Code, e.Text = destination.TooLarge, "GitHub finds the value too large"
	case code >= 500:
		e.Class, e.Code, e.Unknown = destination.External, destination.Unavailable, what.writes
		e.Text, e.RetryAfter = "GitHub has trouble: it answers with status "+strconv.Itoa(code), retryAfter(resp.Header)
	default:
		e.Text = "GitHub does not take the request: status " + strconv.Itoa(code) + said
		if full(err) {
			e.Code, e.Text = destination.Quota, "the place has no room for more secrets: 100 fit in a repository, 100 in an environment, 1,000 in an organization"
		}
	}
	return e
}

func throttled(resp *http.Response, err error) bool {
	if resp.StatusCode == http.StatusTooManyRequests {
		return true
	}
	var primary *github.RateLimitError
	var secondary *github.AbuseRateLimitError
	return errors.As(err, &primary) || errors.As(err, &secondary) ||
		resp.StatusCode == http.StatusForbidden && resp.Header.Get("Retry-After") != ""
}

// retryAfter returns how long no request is to be made; 0 if GitHub does not say.
func retryAfter(h http.Header) time.Duration {
	if h.Get("Retry-After") == "" && h.Get("X-Ratelimit-Remaining") == "0" {
		if s, err := strconv.ParseInt(h.Get("X-Ratelimit-Reset"), 10, 64); err == nil {
			return destination.RetryAt(h, time.Unix(s, 0))
		}
	}
	return destination.RetryAfter(h)
}

// full reports whether a message says that there are too many secrets.
func full(err error) bool {
	var e *github.ErrorResponse
	if !errors.As(err, &e) || e.Response.StatusCode != http.StatusUnprocessableEntity && e.Response.StatusCode != http.StatusConflict {
		return false
	}
	m := strings.ToLower(e.Message)
	return strings.Contains(m, "limit") || strings.Contains(m, "maximum number") || strings.Contains(m, "too many")
}

// vendorMessage returns the vendor's message, to be put behind a text. It is left out where a request had a body, which it might quote.
func vendorMessage(what call, token string, err error) string {
	var e *github.ErrorResponse
	if what.body != nil || !errors.As(err, &e) {
		return ""
	}
	m := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, e.Message)
	if m == "" || strings.Contains(m, token) {
		return ""
	}
	return " (GitHub says: " + m[:min(len(m), 200)] + ")"
}

// publicKey is what values are sealed to.
type publicKey struct {
	id  string
	key [32]byte
}

func (c *client) publicKey(ctx context.Context) (*publicKey, *github.Response, error) {
	var in github.PublicKey
	resp, err := c.do(ctx, call{method: http.MethodGet, path: c.base + "/public-key", into: &in})
	if err != nil {
		return nil, resp, err
	}
	k, err := decodeKey(in)
	return k, resp, err
}

// secret is what the destination says of one.
type secret struct {
	name    string
	id      string // when it was created
	version string // when it was updated
	updated time.Time
	etag    string
}

func decodeSecret(in *github.Secret, etag string) (*secret, error) {
	if in == nil || in.Name == "" || in.CreatedAt.IsZero() || in.UpdatedAt.IsZero() {
		return nil, destination.UnexpectedResponse("GitHub", false)
	}
	at := func(t github.Timestamp) string { return t.UTC().Format(time.RFC3339Nano) }
	return &secret{name: in.Name, id: at(in.CreatedAt), version: at(in.UpdatedAt), updated: in.UpdatedAt.Time, etag: etag}, nil
}

// get returns a secret, nil if the destination answers that it is not there, and before if that is what is still there.
func (c *client) get(ctx context.Context, name string, before *secret) (*secret, *github.Response, error) {
	what := call{method: http.MethodGet, path: c.base + "/" + name, into: new(github.Secret)}
	if before != nil {
		what.etag = before.etag
	}
	resp, err := c.do(ctx, what)
	switch {
	case err != nil && resp != nil && resp.StatusCode == http.StatusNotFound:
		return nil, resp, nil
	case err != nil:
		return nil, resp, err
	case resp.StatusCode == http.StatusNotModified:
		return before, resp, nil
	}
	s, err := decodeSecret(what.into.(*github.Secret), resp.Header.Get("ETag"))
	return s, resp, err
}

// put writes a secret and reports whether it was not there before.
func (c *client) put(ctx context.Context, name string, body any) (created bool, resp *github.Response, err error) {
	resp, err = c.do(ctx, call{method: http.MethodPut, path: c.base + "/" + name, body: body, writes: true})
	if err != nil {
		return false, resp, err
	}
	switch resp.StatusCode {
	case http.StatusCreated:
		return true, resp, nil
	case http.StatusNoContent:
		return false, resp, nil
	}
	return false, resp, destination.UnexpectedResponse("GitHub", true)
}

// page is one page of the list.
type page struct {
	etag    string
	secrets []*secret
	next    int // 0: it is the last
}

// list returns a page, before if it is still the same.
func (c *client) list(ctx context.Context, n, size int, before *page) (*page, *github.Response, error) {
	var in struct {
		Secrets []*github.Secret `json:"secrets"`
	}
	what := call{method: http.MethodGet, into: &in, path: c.base + "?per_page=" + strconv.Itoa(size)}
	if n > 1 {
		what.path += "&page=" + strconv.Itoa(n)
	}
	if before != nil {
		what.etag = before.etag
	}
	resp, err := c.do(ctx, what)
	if err != nil {
		return nil, resp, err
	}
	if resp.StatusCode == http.StatusNotModified {
		return before, resp, nil
	}
	p := &page{etag: resp.Header.Get("ETag"), next: resp.NextPage}
	for _, s := range in.Secrets {
		out, err := decodeSecret(s, "")
		if err != nil {
			return nil, resp, err
		}
		p.secrets = append(p.secrets, out)
	}
	if in.Secrets == nil || p.next != 0 && p.next != n+1 {
		return nil, resp, destination.UnexpectedResponse("GitHub", false)
	}
	return p, resp, nil
}

// repositoryID returns the id of a repository.
func (c *client) repositoryID(ctx context.Context, owner, name string) (int64, error) {
	var in struct {
		ID int64 `json:"id"`
	}
	resp, err := c.do(ctx, call{method: http.MethodGet, path: "repos/" + owner + "/" + name, into: &in})
	var e *destination.Error
	if errors.As(err, &e) && resp != nil && resp.StatusCode == http.StatusNotFound {
		e.Text = "a repository of selected_repository_names, " + name + ", is not there, or " + c.credential() + " may not see it"
	}
	return in.ID, cmp.Or(err, badID(in.ID))
}

func badID(id int64) error {
	if id <= 0 {
		return destination.UnexpectedResponse("GitHub", false)
	}
	return nil
}
