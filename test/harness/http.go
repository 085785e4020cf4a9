package harness

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/openbao/openbao/api/v2"
)

// Answer is an HTTP answer, read whole.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Decode decodes the whole body into out, or fails the test.
func (a Answer) Decode(t TB, out any) {
	t.Helper()
	if err := json.Unmarshal(a.Body, out); err != nil {
		t.Fatalf("status %d, the body is not what was expected: %v\n%.500s", a.Status, err, a.Body)
	}
}

// Errors returns the texts of an error answer.
func (a Answer) Errors() []string {
	var out struct{ Errors []string }
	if json.Unmarshal(a.Body, &out) != nil {
		return nil
	}
	return out.Errors
}

// Curves are what the harness's own connections agree on keys with. Nothing of Coffer depends on the choice: with the race detector
// the standard one takes most of the time of a connection. The libraries that tests use as applications do make the standard choice.
var Curves = []tls.CurveID{tls.CurveP256}

// Described returns a transport that compares responses with the document, if the options of the cluster say so.
func (c *Cluster) Described(next http.RoundTripper) http.RoundTripper {
	if !c.opts.Described {
		return next
	}
	c.docs.Token, c.docs.Errorf = func() string { return c.RootToken }, c.t.Errorf
	return c.docs.Transport(next)
}

// Compared returns how many operations have had a response that is as their description says.
func (c *Cluster) Compared() int { return c.docs.Compared() }

func (c *Cluster) httpClient() *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.certs.pem)
	return &http.Client{
		Transport: c.Described(&http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, CurvePreferences: Curves}, ForceAttemptHTTP2: false,
			MaxIdleConnsPerHost: 128, IdleConnTimeout: time.Minute,
		}),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Do sends one request to the node. body may be nil, []byte (sent as it is), an io.Reader or anything that
// encodes as JSON. header holds names and values in turn. There are no retries and no redirects; ctx is the
// only time limit.
func (n *Node) Do(ctx context.Context, method, path, token string, body any, header ...string) (Answer, error) {
	var in io.Reader
	switch body := body.(type) {
	case nil:
	case []byte:
		in = bytes.NewReader(body)
	case io.Reader:
		in = body
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return Answer{}, err
		}
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, n.URL+path, in)
	if err != nil {
		return Answer{}, err
	}
	if token != "" {
		req.Header.Set("X-Vault-Token", token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return n.Send(req)
}

// Send sends a prepared request with the node's client.
func (n *Node) Send(req *http.Request) (Answer, error) {
	res, err := n.HTTP.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("reading the answer: %w", err)
	}
	return Answer{Status: res.StatusCode, Header: res.Header, Body: body}, nil
}

// DoAsRoot is Do with the root token, for 30 seconds at most.
func (n *Node) DoAsRoot(method, path string, body any) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return n.Do(ctx, method, path, n.c.RootToken, body)
}

// MustDo is DoAsRoot for a request that has to succeed.
func (n *Node) MustDo(method, path string, body any) Answer {
	n.c.t.Helper()
	a, err := n.DoAsRoot(method, path, body)
	if err != nil {
		n.c.t.Fatalf("%s %s on %s: %v", method, path, n.ID, err)
	}
	if a.Status >= 300 {
		n.c.t.Fatalf("%s %s on %s: status %d: %.500s", method, path, n.ID, a.Status, a.Body)
	}
	return a
}

// Create sends a POST which creates what the path names, until it is there: on a busy machine a cluster may lose its leader in the
// middle of a request, and nothing says then whether the write has been applied.
func (c *Cluster) Create(path string, body any, header ...string) {
	c.t.Helper()
	tried := false
	Await(c.t, "POST "+path, c.opts.ReadyIn, func() error {
		ctx, cancel := contextFor(30 * time.Second)
		defer cancel()
		leader := c.Leader()
		a, err := leader.Do(ctx, "POST", path, c.RootToken, body, header...)
		if err != nil || a.Status >= 500 {
			tried = true
			return fmt.Errorf("%s: status %d, %v: %.200s", leader.ID, a.Status, err, a.Body)
		}
		if a.Status == 400 && tried {
			if found, err := leader.Do(ctx, "GET", path, c.RootToken, nil, header...); err == nil && found.Status == 200 {
				return nil
			}
		}
		if a.Status >= 300 {
			c.t.Fatalf("POST %s on %s: status %d: %.500s", path, leader.ID, a.Status, a.Body)
		}
		return nil
	})
}

// Client returns the family's own client for this node, as an application would configure it, without retries.
func (n *Node) Client(token string) *api.Client {
	n.c.t.Helper()
	config := api.DefaultConfig()
	if config.Error != nil {
		n.c.t.Fatalf("%v", config.Error)
	}
	config.Address = n.URL
	config.MaxRetries = 0
	if err := config.ConfigureTLS(&api.TLSConfig{CACert: n.c.CAFile}); err != nil {
		n.c.t.Fatalf("%v", err)
	}
	config.HttpClient.Transport = n.c.Described(config.HttpClient.Transport)
	client, err := api.NewClient(config)
	if err != nil {
		n.c.t.Fatalf("%v", err)
	}
	client.SetToken(token)
	return client
}
