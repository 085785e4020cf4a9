package repohost

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
	"github.com/coffer-project/coffer/engines/secretsync/githubapp"
)

const (
	vendorURL = "https://api.github.com"
	leastWait = time.Minute // the vendor's word for limits that come without a time
)

// client makes calls, each once. A redirect, which is not followed, means that the repository has another name now: its secrets would be
// written, but not where Location says.
type client struct {
	*wire.Client
	api   string     // URL without a slash at the end
	token string     // fixed; "" with app
	app   *appTokens // nil without app_name
	base  string     // path of the secrets, without a slash at the end
}

// newClient returns a client for the secrets that a resolved configuration names.
func newClient(c Config, env destination.Env) (*client, error) {
	w, err := wire.New("GitHub", "access_token", env)
	if err != nil {
		return nil, err
	}
	w.Header.Set("Accept", "application/vnd.github+json")
	w.Header.Set("X-Github-Api-Version", "2022-11-28")
	api, err := w.Base(cmp.Or(githubapp.APIURL(c.EnterpriseURL), env.URL), vendorURL)
	if err != nil {
		return nil, err
	}
	base := "repos/" + c.RepositoryOwner + "/" + c.RepisitoryName + "/actions/secrets"
	switch {
	case c.SecretsLocation == inOrganization:
		base = "orgs/" + c.Organization + "/actions/secrets"
	case c.EnvironmentName != "":
		base = "repos/" + c.RepositoryOwner + "/" + c.RepisitoryName + "/environments/" + url.PathEscape(c.EnvironmentName) + "/secrets"
	}
	cl := &client{Client: w, api: api, token: c.AccessToken.Reveal(), base: base}
	if c.AppName != "" {
		cl.app, err = newAppTokens(&c, env.App)
		w.Credential = cl.credential()
	}
	return cl, err
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
func (c *client) do(ctx context.Context, what call) (*wire.Response, error) {
	if c.app == nil {
		return c.send(ctx, what, c.token)
	}
	token, fresh, err := c.app.get(ctx, c)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(ctx, what, token)
	if err == nil || fresh || resp == nil || resp.Status != http.StatusUnauthorized {
		return resp, err
	}
	c.app.drop(token)
	if token, _, err = c.app.get(ctx, c); err != nil {
		return nil, err
	}
	return c.send(ctx, what, token)
}

// send makes a call with a token.
func (c *client) send(ctx context.Context, what call, token string) (*wire.Response, error) {
	out := wire.Call{Method: what.method, URL: c.api + "/" + what.path, Header: http.Header{"Authorization": {"Bearer " + token}}, Writes: what.writes}
	if what.etag != "" {
		out.Header.Set("If-None-Match", what.etag)
	}
	if err := c.Encode(&out, what.body); err != nil {
		return nil, err
	}
	resp, err := c.Do(ctx, out)
	switch {
	case err != nil:
		return nil, err
	case resp.Status == http.StatusNotModified && what.etag != "":
		return resp, nil
	case resp.Status == http.StatusAccepted:
		return resp, destination.UnexpectedResponse("GitHub", what.writes)
	case !resp.OK():
		return resp, c.refusal(what, token, resp)
	case what.into == nil:
		return resp, nil
	}
	return resp, c.Decode(resp, what.into)
}

// complaint is the body of a response that is no success.
type complaint struct {
	Message string `json:"message"`
	URL     string `json:"documentation_url"`
}

// refusal is the error of a response that is neither 2xx nor 304.
func (c *client) refusal(what call, token string, resp *wire.Response) error {
	var in complaint
	if json.Unmarshal(resp.Body, &in) != nil {
		in = complaint{}
	}
	said, with, e := in.quoted(what, token), c.credential(), c.Refusal(resp)
	switch code := resp.Status; {
	case in.throttled(resp):
		e.Class, e.Code, e.RetryAfter = destination.External, destination.Throttled, retryAfter(resp.Header)
		if resp.Header.Get("Retry-After") == "" && resp.Header.Get("X-Ratelimit-Remaining") != "0" {
			e.RetryAfter = leastWait
		}
		e.Text = "GitHub takes no more requests with " + with + " for now"
	case code == http.StatusUnauthorized:
		e.Text += said
	case code == http.StatusForbidden, code == http.StatusUnavailableForLegalReasons:
		e.Code, e.Text = destination.Denied, "GitHub rejects the call: "+with+" needs read and write access to the secrets of the place, and the organization's consent where it asks for that"+said
	case code == http.StatusNotFound:
		e.Text = "the repository, environment or organization is not there, or " + with + " may not see its secrets"
	case code < 400:
		e.Class, e.Unknown = destination.Client, false
		e.Code, e.Text = destination.NoLocation, "the repository or organization has another name now: write the new one to the destination"
	case code >= 500:
		e.RetryAfter = retryAfter(resp.Header)
	case in.full(code):
		e.Code, e.Text = destination.Quota, "the place has no room for more secrets: 100 fit in a repository, 100 in an environment, 1,000 in an organization"
	case code != http.StatusRequestEntityTooLarge:
		e.Text += said
	}
	return e
}

// throttled reports whether a response is about a limit of requests, of which GitHub has several.
func (in *complaint) throttled(resp *wire.Response) bool {
	return resp.Status == http.StatusTooManyRequests || resp.Status == http.StatusForbidden && (resp.Header.Get("Retry-After") != "" ||
		resp.Header.Get("X-Ratelimit-Remaining") == "0" || strings.HasSuffix(in.URL, "#abuse-rate-limits") || strings.HasSuffix(in.URL, "secondary-rate-limits"))
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

// full reports whether a response says that there are too many secrets.
func (in *complaint) full(code int) bool {
	m := strings.ToLower(in.Message)
	return (code == http.StatusUnprocessableEntity || code == http.StatusConflict) &&
		(strings.Contains(m, "limit") || strings.Contains(m, "maximum number") || strings.Contains(m, "too many"))
}

// quoted returns the vendor's message, to be put behind a text. It is left out where a request had a body, which it might quote.
func (in *complaint) quoted(what call, token string) string {
	if what.body != nil {
		return ""
	}
	m := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, in.Message)
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

func (c *client) publicKey(ctx context.Context) (*publicKey, *wire.Response, error) {
	var in keyIn
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

// secretIn is a secret as GitHub describes it.
type secretIn struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

func decodeSecret(in *secretIn, etag string) (*secret, error) {
	if in == nil || in.Name == "" || in.CreatedAt.IsZero() || in.UpdatedAt.IsZero() {
		return nil, destination.UnexpectedResponse("GitHub", false)
	}
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	return &secret{name: in.Name, id: at(in.CreatedAt), version: at(in.UpdatedAt), updated: in.UpdatedAt, etag: etag}, nil
}

// get returns a secret, nil if the destination answers that it is not there, and before if that is what is still there.
func (c *client) get(ctx context.Context, name string, before *secret) (*secret, *wire.Response, error) {
	what := call{method: http.MethodGet, path: c.base + "/" + name, into: new(secretIn)}
	if before != nil {
		what.etag = before.etag
	}
	resp, err := c.do(ctx, what)
	switch {
	case err != nil && resp != nil && resp.Status == http.StatusNotFound:
		return nil, resp, nil
	case err != nil:
		return nil, resp, err
	case resp.Status == http.StatusNotModified:
		return before, resp, nil
	}
	s, err := decodeSecret(what.into.(*secretIn), resp.Header.Get("ETag"))
	return s, resp, err
}

// put writes a secret and reports whether it was not there before.
func (c *client) put(ctx context.Context, name string, body any) (created bool, resp *wire.Response, err error) {
	resp, err = c.do(ctx, call{method: http.MethodPut, path: c.base + "/" + name, body: body, writes: true})
	if err != nil {
		return false, resp, err
	}
	switch resp.Status {
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
func (c *client) list(ctx context.Context, n, size int, before *page) (*page, *wire.Response, error) {
	var in struct {
		Secrets []*secretIn `json:"secrets"`
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
	if resp.Status == http.StatusNotModified {
		return before, resp, nil
	}
	p := &page{etag: resp.Header.Get("ETag"), next: nextPage(resp.Header)}
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

var nextLink = regexp.MustCompile(`<[^<>]*[?&]page=([0-9]{1,6})(?:&[^<>]*)?>; *rel="next"`)

// nextPage returns the number of the page behind one, 0 if it is the last.
func nextPage(h http.Header) int {
	if m := nextLink.FindStringSubmatch(strings.Join(h["Link"], ",")); m != nil {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	return 0
}

// repositoryID returns the id of a repository.
func (c *client) repositoryID(ctx context.Context, owner, name string) (int64, error) {
	var in struct {
		ID int64 `json:"id"`
	}
	resp, err := c.do(ctx, call{method: http.MethodGet, path: "repos/" + owner + "/" + name, into: &in})
	var e *destination.Error
	if errors.As(err, &e) && resp != nil && resp.Status == http.StatusNotFound {
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
