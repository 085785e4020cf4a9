package webhost

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

const (
	vendorURL = "https://api.vercel.com"
	maxAnswer = 32 << 20 // bytes
)

// client makes the calls that one project needs.
type client struct {
	*wire.Client
	base    string // without a slash at the end
	project string
	team    string
}

func newClient(c *Config, env destination.Env) (*client, error) {
	w, err := wire.New("Vercel", "access_token", env)
	if err != nil {
		return nil, err
	}
	w.MaxBody = maxAnswer
	w.Header.Set("Authorization", "Bearer "+c.AccessToken.Reveal())
	w.Header.Set("Accept", "application/json")
	base, err := w.Base(env.URL, vendorURL)
	return &client{Client: w, base: base, project: url.PathEscape(c.ProjectID), team: c.TeamID}, err
}

// call is one request.
type call struct {
	method string
	path   string
	query  url.Values
	body   any
}

// do makes a call and returns the body of a 2xx. The header is there if there was a response; the error is a *destination.Error.
func (c *client) do(ctx context.Context, what call) ([]byte, http.Header, error) {
	query := url.Values{}
	maps.Copy(query, what.query)
	if c.team != "" {
		query.Set("teamId", c.team)
	}
	out := wire.Call{Method: what.method, URL: c.base + what.path, Writes: what.method != http.MethodGet}
	if len(query) > 0 {
		out.URL += "?" + query.Encode()
	}
	if err := c.Encode(&out, what.body); err != nil {
		return nil, nil, err
	}
	resp, err := c.Do(ctx, out)
	if err != nil {
		return nil, nil, err
	}
	if !resp.OK() {
		return nil, resp.Header, c.refusal(resp, out.Writes)
	}
	return resp.Body, resp.Header, nil
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
func (c *client) refusal(resp *wire.Response, writes bool) error {
	var in complaint
	if json.Unmarshal(resp.Body, &in) != nil {
		in = complaint{}
	}
	e, said := c.Refusal(resp), vendorCode(in.Error.Code)
	switch code := resp.Status; {
	case code == http.StatusTooManyRequests:
		e.RetryAfter = retryAfter(resp.Header, in.Error.Limit.Reset)
	case code >= 500:
		e.RetryAfter = retryAfter(resp.Header, 0)
	case code < 400:
	case writes && code != http.StatusNotFound && taken(in.Error.Code):
		e.Code, e.Text = destination.Exists, "a variable of this name is there in one of the environments"
	case code == http.StatusUnauthorized:
		e.Text += said
	case code == http.StatusPaymentRequired:
		e.Code, e.Text = destination.Denied, "the account is blocked, or has something to pay"+said
	case code == http.StatusForbidden:
		e.Text = "Vercel rejects the call: access_token is wrong, or may not manage these variables of the project or of team_id" + said
	case code == http.StatusNotFound:
		e.Text = "the project is not there, or access_token may not see it: check project_id and team_id"
	case code == http.StatusRequestEntityTooLarge:
	case code == http.StatusConflict || busy(in.Error.Message):
		e.Class, e.Code, e.Text = destination.External, destination.Unavailable, "the project is being changed or moved"+said
	case full(in.Error.Code, in.Error.Message):
		e.Code, e.Text = destination.Quota, "the project has no room for it: 1,000 variables of 64 KB together for an environment"+said
	default:
		e.Text += said
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
	data, _, err := c.do(ctx, call{method: http.MethodPost, path: "/v10/projects/" + c.project + "/env", body: body})
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
	data, _, err := c.do(ctx, call{method: http.MethodPatch, path: "/v9/projects/" + c.project + "/env/" + url.PathEscape(id), body: v})
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
	_, _, err := c.do(ctx, call{method: http.MethodDelete, path: "/v9/projects/" + c.project + "/env/" + url.PathEscape(id)})
	return err
}
