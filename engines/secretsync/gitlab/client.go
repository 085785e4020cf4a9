package gitlab

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

const (
	pageSize = 100
	maxPages = 1000
)

// variable is a CI/CD variable.
type variable struct {
	Key         string  `json:"key"`
	Value       *string `json:"value"` // nil if it is hidden
	Type        string  `json:"variable_type"`
	Protected   bool    `json:"protected"`
	Masked      bool    `json:"masked"`
	Hidden      bool    `json:"hidden,omitempty"`
	Raw         bool    `json:"raw"`
	Scope       string  `json:"environment_scope"`
	Description string  `json:"description"`
}

// client makes the calls that one project or group needs.
type client struct {
	*wire.Client
	api       string // URL without a slash at the end
	variables string // URL
	scope     string
}

func newClient(c *Config, env destination.Env) (*client, error) {
	w, err := wire.New("GitLab", "access_token", env)
	if err != nil {
		return nil, err
	}
	w.Header.Set("PRIVATE-TOKEN", c.AccessToken.Reveal())
	w.Header.Set("Accept", "application/json")
	base := c.base()
	if env.URL != "" {
		base = strings.TrimRight(env.URL, "/")
	}
	kind, id := c.of()
	api := base + "/api/v4"
	return &client{Client: w, api: api, variables: api + "/" + kind + "/" + url.PathEscape(id) + "/variables", scope: c.Scope}, nil
}

// one returns the URL of a variable in the scope.
func (c *client) one(name string) string {
	return c.variables + "/" + url.PathEscape(name) + "?" + url.Values{"filter[environment_scope]": {c.scope}}.Encode()
}

var absent = &destination.Error{Class: destination.Client, Code: destination.Changed, Text: "the variable has been deleted by another client"}

func (c *client) send(ctx context.Context, method, at string, body, into any) (http.Header, error) {
	what := wire.Call{Method: method, URL: at, Writes: method != http.MethodGet}
	if err := c.Encode(&what, body); err != nil {
		return nil, err
	}
	resp, err := c.Do(ctx, what)
	switch {
	case err != nil:
		return nil, err
	case !resp.OK():
		return resp.Header, c.refusal(resp)
	case into == nil:
		return resp.Header, nil
	}
	return resp.Header, c.Decode(resp, into)
}

// refusal is the error of a response that is not 2xx. What it says is looked at, and not quoted: it might quote the value.
func (c *client) refusal(resp *wire.Response) error {
	e := c.Refusal(resp)
	said := strings.ToLower(string(resp.Body[:min(len(resp.Body), 4096)]))
	switch {
	case resp.Status == http.StatusNotFound && strings.Contains(said, "variable not found"):
		return absent
	case resp.Status == http.StatusNotFound:
		e.Text = "GitLab does not have the project or group, or access_token may not see it: check project_id, group_id and base_url"
	case resp.Status == http.StatusForbidden:
		e.Text = "GitLab denies the call: access_token needs the scope api and the role Maintainer of the project, or Owner of the group"
	case resp.Status == http.StatusBadRequest && strings.Contains(said, "has already been taken"):
		e.Code, e.Text = destination.Exists, "a variable of this name exists in the environment scope"
	case resp.Status == http.StatusBadRequest && strings.Contains(said, "maximum number of"):
		e.Code, e.Text = destination.Quota, "the project or group has as many variables as GitLab allows"
	case resp.Status == http.StatusBadRequest && strings.Contains(said, "too long"):
		e.Code, e.Text = destination.TooLarge, "GitLab finds the value too long"
	case resp.Status == http.StatusBadRequest && strings.Contains(said, "masked"):
		e.Text = "GitLab cannot mask the value: " + maskRule
	}
	return e
}

const maskRule = "masked values are one line of at least 8 characters without blanks; set masked=false in the destination, or change the secret"

// get returns a variable in the scope, or the error absent.
func (c *client) get(ctx context.Context, name string) (*variable, error) {
	v := new(variable)
	if _, err := c.send(ctx, http.MethodGet, c.one(name), nil, v); err != nil {
		return nil, err
	}
	if v.Key != name || v.Scope != c.scope {
		return nil, destination.UnexpectedResponse(c.Vendor, false)
	}
	return v, nil
}

// put creates or updates a variable.
func (c *client) put(ctx context.Context, method, at string, v *variable) (*variable, error) {
	now := new(variable)
	if _, err := c.send(ctx, method, at, v, now); err != nil {
		return nil, err
	}
	if now.Key != v.Key || now.Scope != c.scope || now.Value == nil || *now.Value != *v.Value {
		return nil, destination.UnexpectedResponse(c.Vendor, true)
	}
	return now, nil
}

// list calls do with each variable in the scope, until it returns false.
func (c *client) list(ctx context.Context, do func(*variable) bool) (http.Header, error) {
	for page := 1; page <= maxPages; page++ {
		var all []variable
		query := url.Values{"per_page": {strconv.Itoa(pageSize)}, "page": {strconv.Itoa(page)}}
		h, err := c.send(ctx, http.MethodGet, c.variables+"?"+query.Encode(), nil, &all)
		if err != nil {
			return h, err
		}
		if all == nil {
			return h, destination.UnexpectedResponse(c.Vendor, false)
		}
		for i := range all {
			switch v := &all[i]; {
			case v.Key == "" || v.Scope == "":
				return h, destination.UnexpectedResponse(c.Vendor, false)
			case v.Scope != c.scope:
			case !do(v):
				return h, nil
			}
		}
		if h.Get("X-Next-Page") == "" || len(all) == 0 {
			return h, nil
		}
	}
	return nil, destination.UnexpectedResponse(c.Vendor, false)
}
