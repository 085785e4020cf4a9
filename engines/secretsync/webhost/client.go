package webhost

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	vendorURL   = "https://api.vercel.com"
	callTimeout = 30 * time.Second // of a call whose context has no end
	maxAnswer   = 32 << 20         // bytes
)

// client makes calls, each once.
type client struct {
	http    *http.Client
	token   string
	base    string // without a slash at the end
	project string
	team    string
}

func newClient(c *Config, env destination.Env) (*client, error) {
	if env.Client == nil {
		return nil, internal("no HTTP client")
	}
	hc := *env.Client
	hc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	base := vendorURL
	if env.URL != "" {
		base = strings.TrimSuffix(env.URL, "/")
	}
	if u, err := url.Parse(base); err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, internal("the operator's URL of webhost-project is not one")
	}
	return &client{http: &hc, token: c.AccessToken.Reveal(), base: base, project: url.PathEscape(c.ProjectID), team: c.TeamID}, nil
}

// call is one request.
type call struct {
	method string
	path   string
	query  url.Values
	body   any
	writes bool // it may take effect
}

// do makes a call and returns the body of a 2xx. The header is there if there was a response; the error is a *destination.Error.
func (c *client) do(ctx context.Context, what call) ([]byte, http.Header, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }})
	req, err := c.request(ctx, what)
	if err != nil {
		return nil, nil, internal("a request could not be made")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, destination.NoResponse("Vercel", err, what.writes && sent.Load())
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, resp.Header, refusal(what, resp, data)
	}
	if err != nil {
		return nil, resp.Header, destination.NoResponse("Vercel", err, what.writes)
	}
	return data, resp.Header, nil
}

func (c *client) request(ctx context.Context, what call) (*http.Request, error) {
	query := url.Values{}
	for k, v := range what.query {
		query[k] = v
	}
	if c.team != "" {
		query.Set("teamId", c.team)
	}
	u := c.base + what.path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	var body io.Reader
	if what.body != nil {
		data, err := json.Marshal(what.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, what.method, u, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "coffer")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

func internal(text string) error {
	return &destination.Error{Class: destination.Internal, Code: destination.Unexpected, Text: "webhost-project: " + text}
}

// complaint is the body of a response that is no success.
type complaint struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Limit   struct {
			Reset float64 `json:"reset"`
		} `json:"limit"`
	} `json:"error"`
}

var plainCode = regexp.MustCompile(`^[A-Za-z]+([_-][A-Za-z]+)*$`)

// vendorCode returns the vendor's code, to be put behind a text; the message might quote what was sent.
func vendorCode(code string) string {
	if len(code) > 64 || !plainCode.MatchString(code) {
		return ""
	}
	return " (Vercel says: " + code + ")"
}

// refusal is the error of a response that is not 2xx.
func refusal(what call, resp *http.Response, data []byte) error {
	var in complaint
	if json.Unmarshal(data, &in) != nil {
		in = complaint{}
	}
	e := &destination.Error{Class: destination.Client, Code: destination.BadRequest}
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests:
		e.Class, e.Code, e.RetryAfter = destination.External, destination.Throttled, retryAfter(resp.Header, in.Error.Limit.Reset)
		e.Text = "Vercel takes no more of these requests for now"
	case code >= 500:
		e.Class, e.Code, e.Unknown = destination.External, destination.Unavailable, what.writes
		e.Text, e.RetryAfter = "Vercel has trouble: it answers with status "+strconv.Itoa(code), retryAfter(resp.Header, 0)
	case code < 400:
		e.Class, e.Code, e.Unknown, e.Text = destination.External, destination.Unexpected, what.writes, "Vercel sends us elsewhere, where we do not go"
	case what.writes && code != http.StatusNotFound && taken(in.Error.Code):
		e.Code, e.Text = destination.Exists, "a variable of this name is there in one of the environments"
	case code == http.StatusUnauthorized:
		e.Code, e.Text = destination.Denied, "Vercel does not accept access_token: it is wrong, expired or revoked"+vendorCode(in.Error.Code)
	case code == http.StatusPaymentRequired:
		e.Code, e.Text = destination.Denied, "the account is blocked, or has something to pay"+vendorCode(in.Error.Code)
	case code == http.StatusForbidden:
		e.Code, e.Text = destination.Denied, "Vercel rejects the call: access_token is wrong, or may not manage these variables of the project or of team_id"+vendorCode(in.Error.Code)
	case code == http.StatusNotFound:
		e.Code, e.Text = destination.NoLocation, "the project is not there, or access_token may not see it: check project_id and team_id"
	case code == http.StatusRequestEntityTooLarge:
		e.Code, e.Text = destination.TooLarge, "Vercel finds the value too large"
	case code == http.StatusConflict || busy(in.Error.Message):
		e.Class, e.Code, e.Text = destination.External, destination.Unavailable, "the project is being changed or moved"+vendorCode(in.Error.Code)
	case full(in.Error.Code, in.Error.Message):
		e.Code, e.Text = destination.Quota, "the project has no room for it: 1,000 variables of 64 KB together for an environment"+vendorCode(in.Error.Code)
	default:
		e.Text = "Vercel does not take the request: status " + strconv.Itoa(code) + vendorCode(in.Error.Code)
	}
	return e
}

// taken reports whether a code says that a name is there already.
func taken(code string) bool {
	return strings.EqualFold(code, "ENV_ALREADY_EXISTS") || strings.EqualFold(code, "ENV_CONFLICT")
}

func busy(message string) bool { return strings.Contains(strings.ToLower(message), "ongoing") }

func full(code, message string) bool {
	m := strings.ToLower(code + " " + message)
	return strings.Contains(m, "limit") || strings.Contains(m, "exceed") || strings.Contains(m, "too large") || strings.Contains(m, "too_large") || strings.Contains(m, "too many")
}

// retryAfter returns how long no request is to be made; 0 if Vercel does not say. reset is the time in the body, in seconds or
// milliseconds.
func retryAfter(h http.Header, reset float64) time.Duration {
	if s, err := strconv.ParseFloat(h.Get("X-Ratelimit-Reset"), 64); err == nil && reset == 0 {
		reset = s
	}
	if h.Get("Retry-After") != "" || reset <= 0 || reset >= 1e15 {
		return destination.RetryAfter(h)
	}
	if reset > 1e11 {
		reset /= 1000
	}
	return destination.RetryAt(h, time.Unix(int64(reset), 0))
}

// variable is what is sent of a record.
type variable struct {
	Key     string    `json:"key,omitempty"`
	Value   *string   `json:"value,omitempty"`
	Type    string    `json:"type,omitempty"`
	Target  []string  `json:"target"`
	Comment string    `json:"comment,omitempty"`
	Custom  *[]string `json:"customEnvironmentIds,omitempty"`
}

// list returns all records of the project, and how many of production are hidden.
func (c *client) list(ctx context.Context) (all []record, hidden int, h http.Header, err error) {
	var query url.Values
	for range 100 {
		var data []byte
		data, h, err = c.do(ctx, call{method: http.MethodGet, path: "/v10/projects/" + c.project + "/env", query: query})
		if err != nil {
			return nil, 0, h, err
		}
		a, err := decodeAnswer(data)
		if err != nil || a.Envs == nil {
			return nil, 0, h, destination.UnexpectedResponse("Vercel", false)
		}
		all, hidden = append(all, a.Envs...), a.Hidden
		if a.Pagination == nil || a.Pagination.Next == nil || a.Pagination.Next.String() == "" {
			return all, hidden, h, nil
		}
		query = url.Values{"until": {a.Pagination.Next.String()}}
	}
	return nil, 0, h, destination.UnexpectedResponse("Vercel", false)
}

// create makes records, all or, as the response says, some of them.
func (c *client) create(ctx context.Context, vars []variable) (*answer, error) {
	var body any = vars
	if len(vars) == 1 {
		body = vars[0]
	}
	data, _, err := c.do(ctx, call{method: http.MethodPost, path: "/v10/projects/" + c.project + "/env", body: body, writes: true})
	if err != nil {
		return nil, err
	}
	a, err := decodeAnswer(data)
	if err != nil {
		return nil, destination.UnexpectedResponse("Vercel", true)
	}
	return a, nil
}

// edit changes a record and returns it as it is then. The contract also allows a response that says nothing of it.
func (c *client) edit(ctx context.Context, id string, v variable) (record, error) {
	data, _, err := c.do(ctx, call{method: http.MethodPatch, path: "/v9/projects/" + c.project + "/env/" + url.PathEscape(id), body: v, writes: true})
	if err != nil {
		return record{}, err
	}
	var r record
	if json.Unmarshal(data, &r) != nil || r.ID != "" && r.ID != id {
		return record{}, destination.UnexpectedResponse("Vercel", true)
	}
	return r, nil
}

func (c *client) remove(ctx context.Context, id string) error {
	_, _, err := c.do(ctx, call{method: http.MethodDelete, path: "/v9/projects/" + c.project + "/env/" + url.PathEscape(id), writes: true})
	return err
}
