package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/signature"
)

const maxHeaders = 20

// Config says where the receiver is, and how it recognises requests.
type Config struct {
	URL        string            `json:"url" form:"trim" max:"500" help:"URL that takes the requests: https, without credentials and query."`
	Method     string            `json:"method" enum:"POST,PUT" default:"POST" help:"Method of the requests."`
	SigningKey engines.Sensitive `json:"signing_key" max:"1024" help:"Key of the signatures, which the receiver has, too: at least 16 bytes."`
	Headers    engines.Sensitive `json:"headers" max:"8192" help:"Headers of the requests: a JSON object of names and values, such as {\"Authorization\": \"Bearer …\"}."`
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// ownHeaders are those that callers of the API cannot set.
var ownHeaders = []string{
	"Connection", "Content-Length", "Content-Type", "Content-Encoding", "Host", "Idempotency-Key", "Te", "Trailer", "Transfer-Encoding", "Upgrade", signature.Header,
}

// Check implements destination.Config.
func (c *Config) Check() (problems []string) {
	c.URL = strings.TrimSpace(c.URL)
	c.SigningKey = engines.Sensitive(strings.TrimSpace(c.SigningKey.Reveal()))
	c.Headers = engines.Sensitive(strings.TrimSpace(c.Headers.Reveal()))
	if c.Method == "" {
		c.Method = http.MethodPost
	}
	if c.URL == "" {
		problems = append(problems, "url must be given")
	} else if p := wire.URLProblem(c.URL); p != "" {
		problems = append(problems, "url "+p+"; what the receiver wants to know goes into headers")
	}
	if p := wire.CredentialProblem(c.SigningKey.Reveal()); p != "" {
		problems = append(problems, "signing_key "+p)
	} else if len(c.SigningKey.Reveal()) < signature.MinKey {
		problems = append(problems, fmt.Sprintf("signing_key must have at least %d bytes", signature.MinKey))
	}
	if _, p := c.headers(); p != "" {
		problems = append(problems, "headers "+p)
	}
	return problems
}

// headers returns the headers, or what is wrong with them, without any value.
func (c *Config) headers() (http.Header, string) {
	out := http.Header{}
	text := c.Headers.Reveal()
	if text == "" {
		return out, ""
	}
	var in map[string]string
	switch {
	case strings.HasPrefix(text, "@"):
		return nil, "must be a JSON object: @file is expanded by the command line only, the server reads no files that callers name"
	case text == destination.Mask:
		return nil, "must be a JSON object: what reads answer in its place is kept only where headers are stored already"
	case json.Unmarshal([]byte(text), &in) != nil:
		return nil, "must be a JSON object whose values are texts"
	case len(in) > maxHeaders:
		return nil, fmt.Sprintf("must be at most %d", maxHeaders)
	}
	for _, name := range slices.Sorted(maps.Keys(in)) {
		key := http.CanonicalHeaderKey(name)
		switch {
		case !headerName.MatchString(name) || len(name) > 100:
			return nil, "must have names of headers for names"
		case slices.Contains(ownHeaders, key) || strings.HasPrefix(key, "Coffer-"):
			return nil, "must not have " + key + ", which secret sync sets itself"
		case strings.ContainsFunc(in[name], func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, "must have printable ASCII for values"
		}
		out.Set(key, in[name])
	}
	return out, ""
}

// Location implements destination.Config.
func (c *Config) Location() string { return typeName + "/" + wire.Location(c.URL) }

// Owner implements destination.Owned: the receiver gets the headers.
func (c *Config) Owner() string { return wire.Location(c.URL) }

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	out := map[string]any{"url": c.URL, "method": c.Method}
	if c.SigningKey != "" {
		out["signing_key"] = destination.Mask
	}
	if c.Headers != "" {
		out["headers"] = destination.Mask
	}
	return out
}
