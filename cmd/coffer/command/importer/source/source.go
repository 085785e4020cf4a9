// Package source reads from the server that is imported from, and only reads: it sends no request but GET. It keeps to a rate, and waits when
// the server says that it is too fast or cannot respond. Start reading at Client.Get.
package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Options say where the server is and how it is treated.
type Options struct {
	Address   string
	Namespace string // of everything, "" for root
	Token     string
	HTTP      *http.Client
	Rate      float64       // requests per second
	Pause     time.Duration // before the first repetition of a request; 0: 500 ms
}

// Client reads. Safe for concurrent use.
type Client struct {
	opts     Options
	limiter  *rate.Limiter
	requests atomic.Int64
	notUntil atomic.Int64 // the server's wish, in nanoseconds since 1970
}

// New returns a client.
func New(o Options) *Client {
	if o.Pause == 0 {
		o.Pause = 500 * time.Millisecond
	}
	return &Client{opts: o, limiter: rate.NewLimiter(rate.Limit(o.Rate), max(1, int(o.Rate/20)))}
}

// Address returns where the server is.
func (c *Client) Address() string { return c.opts.Address }

// Requests returns how many requests were sent.
func (c *Client) Requests() int64 { return c.requests.Load() }

// Error is a response that is none of what was asked for.
type Error struct {
	Status int
	Path   string
	Texts  []string
}

func (e *Error) Error() string {
	text := strings.Join(e.Texts, "; ")
	if text == "" {
		text = strings.ToLower(http.StatusText(e.Status))
	}
	return fmt.Sprintf("reading %s at the source: %s (status %d)", e.Path, text, e.Status)
}

// Absent reports whether the server has nothing there: a status 404, and the ones of paths and features that it does not have.
func Absent(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed ||
		e.Status == http.StatusBadRequest && strings.Contains(strings.Join(e.Texts, " "), "unsupported"))
}

// Denied reports whether the token may not read it.
func Denied(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusForbidden
}

// ErrToken says that the server takes the token no longer: whatever is read from now on would be denied.
var ErrToken = errors.New("the source takes its token no longer, which has expired or was revoked: make another one, and run the command again with the same ledger")

// errConnection is in errors of requests that got no response.
var errConnection = errors.New("no response")

// Away reports whether the server could not be reached, or said that it cannot serve requests, for as long as they are repeated.
func Away(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return slices.Contains([]int{http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}, e.Status)
	}
	return errors.Is(err, errConnection)
}

// attempts bounds how often a request is sent that the server could not serve: with pauses that double, for about two minutes. What fails at
// the server is likely to fail again.
const attempts, attemptsFailing = 9, 4

// Get reads a path of a namespace, "" for the one that the client was made with, and returns the member "data" of the response. A response of
// status 404 that has data, as one about a deleted version, is returned together with its Error.
func (c *Client) Get(ctx context.Context, namespace, path string, query url.Values) (json.RawMessage, error) {
	pause := c.opts.Pause
	for attempt := 1; ; attempt++ {
		data, retryAfter, err := c.once(ctx, namespace, path, query)
		if Denied(err) && Denied(c.Check(ctx, Self)) {
			return nil, ErrToken
		}
		var e *Error
		passing := err != nil && (!errors.As(err, &e) || e.Status >= 500 && e.Status != http.StatusNotImplemented ||
			e.Status == http.StatusTooManyRequests || e.Status == http.StatusPreconditionFailed)
		failing := e != nil && e.Status == http.StatusInternalServerError && attempt == attemptsFailing
		if !passing || failing || attempt == attempts || ctx.Err() != nil {
			return data, err
		}
		if retryAfter > 0 {
			// All requests wait for as long as the server asks for.
			c.notUntil.Store(time.Now().Add(retryAfter).UnixNano())
		} else {
			retryAfter = pause
			pause *= 2
		}
		if err := sleep(ctx, retryAfter); err != nil {
			return nil, err
		}
	}
}

// Self is what every token may read.
const Self = "auth/token/lookup-self"

// Check reads a path once: a wrong address or token is reported at once.
func (c *Client) Check(ctx context.Context, path string) error {
	_, _, err := c.once(ctx, "", path, nil)
	return err
}

// List returns the names in a folder, none if there is nothing.
func (c *Client) List(ctx context.Context, namespace, path string) ([]string, error) {
	data, err := c.Get(ctx, namespace, path, url.Values{"list": {"true"}})
	if Absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out struct{ Keys []string }
	return out.Keys, json.Unmarshal(data, &out)
}

// Fields is Get with the data decoded; numbers are json.Number. They are nil if there is nothing.
func (c *Client) Fields(ctx context.Context, namespace, path string) (map[string]any, error) {
	data, err := c.Get(ctx, namespace, path, nil)
	if Absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return Decode(data)
}

// Decode decodes an object, with its numbers as they are.
func Decode(data json.RawMessage) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var out map[string]any
	return out, d.Decode(&out)
}

func (c *Client) once(ctx context.Context, namespace, path string, query url.Values) (json.RawMessage, time.Duration, error) {
	if wait := time.Until(time.Unix(0, c.notUntil.Load())); wait > 0 {
		if err := sleep(ctx, wait); err != nil {
			return nil, 0, err
		}
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return nil, 0, err
	}
	c.requests.Add(1)
	at := strings.TrimRight(c.opts.Address, "/") + "/v1/" + escape(path)
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("reading %s at the source: the address or path cannot be part of a URL", path)
	}
	req.Header.Set("X-Vault-Token", c.opts.Token)
	req.Header.Set("X-Vault-Request", "true")
	if ns := strings.Trim(strings.Trim(c.opts.Namespace, "/")+"/"+strings.Trim(namespace, "/"), "/"); ns != "" {
		req.Header.Set("X-Vault-Namespace", ns)
	}
	resp, err := c.opts.HTTP.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, 0, fmt.Errorf("reading %s at the source: %w: %w", path, errConnection, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, 0, fmt.Errorf("reading %s at the source: %w", path, err)
	}
	var out struct {
		Data   json.RawMessage
		Errors []string
	}
	if len(body) > 0 && json.Unmarshal(body, &out) != nil && resp.StatusCode < 300 {
		return nil, 0, &Error{Status: http.StatusNotImplemented, Path: path, Texts: []string{"the response is not JSON; is the address that of a server of the Vault family?"}}
	}
	if resp.StatusCode != http.StatusOK {
		seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return out.Data, time.Duration(min(seconds, 300)) * time.Second, &Error{Status: resp.StatusCode, Path: path, Texts: out.Errors}
	}
	return out.Data, 0, nil
}

// escape writes a path for a URL, segment by segment.
func escape(path string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
