package access

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Source gets a token by calls of client.
type Source interface {
	// Who names the identity that calls, for people.
	Who() string
	// issue also returns the Date of a response, "" if there was none.
	issue(ctx context.Context, client *http.Client) (text string, life time.Duration, date string, err error)
}

// Tokens are the access tokens of an identity, of which one is kept until it ends. Safe for concurrent use.
type Tokens struct {
	Source
	client *http.Client

	gate       chan struct{} // holds one element while a goroutine uses the fields below
	text       string
	until      time.Time
	ahead      time.Duration // how far the issuer's clock was before ours at the last token
	clockKnown bool          // ahead is set
}

// New returns the tokens of a source. It makes no call.
func New(client *http.Client, s Source) *Tokens {
	return &Tokens{Source: s, client: client, gate: make(chan struct{}, 1)}
}

// Close closes idle connections.
func (t *Tokens) Close() { t.client.CloseIdleConnections() }

const (
	scope      = "https://www.googleapis.com/auth/cloud-platform"
	earlier    = 4 * time.Minute // before its end a token is replaced
	maxAnswer  = 64 << 10
	grantBySig = "urn:ietf:params:oauth:grant-type:jwt-bearer" // RFC 7523 section 2.1
)

// Get returns a token, and whether it was issued just now.
func (t *Tokens) Get(ctx context.Context) (text string, fresh bool, err error) {
	select {
	case t.gate <- struct{}{}:
	case <-ctx.Done():
		return "", false, Unreachable("waiting for a token", ctx.Err())
	}
	defer func() { <-t.gate }()
	if t.text != "" && time.Now().Before(t.until) {
		return t.text, false, nil
	}
	if err := t.issue(ctx); err != nil {
		return "", false, err
	}
	return t.text, true, nil
}

// Drop forgets a token that is not taken any more.
func (t *Tokens) Drop(text string) {
	t.gate <- struct{}{}
	defer func() { <-t.gate }()
	if t.text == text {
		t.text = ""
	}
}

// Clock returns how far the issuer's clock was before ours, if it is known.
func (t *Tokens) Clock() (ahead time.Duration, known bool) {
	t.gate <- struct{}{}
	defer func() { <-t.gate }()
	return t.ahead, t.clockKnown
}

func (t *Tokens) issue(ctx context.Context) error {
	text, life, date, err := t.Source.issue(ctx, t.client)
	if at, wrong := http.ParseTime(date); wrong == nil {
		t.ahead, t.clockKnown = time.Until(at).Round(time.Second), true
	}
	if err != nil {
		return err
	}
	t.text, t.until = text, time.Now().Add(max(life-earlier, life/2))
	return nil
}

// ServiceAccount gets tokens with the key of a service account at the token service at a URL, "" for the vendor's.
type ServiceAccount struct {
	Account
	URL string
}

// Who implements Source.
func (s *ServiceAccount) Who() string { return "the service account " + s.Email }

func (s *ServiceAccount) issue(ctx context.Context, client *http.Client) (text string, life time.Duration, date string, err error) {
	assertion, err := s.assertion(time.Now())
	if err != nil {
		return "", 0, "", &destination.Error{Class: destination.Client, Code: destination.Denied, Text: "the private key of the credentials cannot sign"}
	}
	form := url.Values{"grant_type": {grantBySig}, "assertion": {assertion}}
	body, resp, err := post(ctx, client, cmp.Or(s.URL, tokenURL), "application/x-www-form-urlencoded", form.Encode(), "")
	if err != nil {
		return "", 0, "", err
	}
	date = resp.Header.Get("Date")
	if resp.StatusCode != http.StatusOK {
		return "", 0, date, refusedToken(resp, body, "the service account or its key is disabled or deleted, or the clock of this server is wrong")
	}
	text, life, ok := parseToken(body)
	if !ok {
		return "", 0, date, errNoToken
	}
	return text, life, date, nil
}

var errNoToken = &destination.Error{Class: destination.External, Code: destination.Unexpected, Text: "the token service answers without a token"}

// post makes one request, and returns the response with its body, which is closed.
func post(ctx context.Context, client *http.Client, address, contentType, content, bearer string) ([]byte, *http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(content))
	if err != nil {
		return nil, nil, &destination.Error{Class: destination.Internal, Code: destination.Unexpected, Text: "the address of the token service is not one"}
	}
	req.Header.Set("Content-Type", contentType)
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, Unreachable("asking for a token", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, nil, Unreachable("asking for a token", err)
	}
	return body, resp, nil
}

// assertion is the JSON Web Token by which a service account asks for a token (RFC 7523).
func (a *Account) assertion(now time.Time) (string, error) {
	// The issuer takes none that lasts longer than an hour, nor one from its future.
	issued := now.Add(-10 * time.Second)
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": a.Email, "scope": scope, "aud": tokenURL, "iat": issued.Unix(), "exp": issued.Add(time.Hour).Unix(),
	})
	t.Header["kid"] = a.KeyID
	return t.SignedString(a.Key)
}

// A token goes into a header of every call, so nothing that could end the header may be in it.
var tokenText = engines.Pattern(`^[!-~]+$`)

// parseToken reads the response of the token service.
func parseToken(body []byte) (text string, life time.Duration, ok bool) {
	var in struct {
		Token string `json:"access_token"`
		Type  string `json:"token_type"`
		Life  int64  `json:"expires_in"` // seconds
	}
	if json.Unmarshal(body, &in) != nil || !tokenText().MatchString(in.Token) || !strings.EqualFold(in.Type, "Bearer") {
		return "", 0, false
	}
	return in.Token, time.Duration(min(max(in.Life, 0), 24*3600)) * time.Second, true
}

var oauthCode = engines.Pattern(`^[a-z_]{1,40}$`)

// refusedToken says why there is no token. The description in the response is left out: the assertion could be in it.
func refusedToken(resp *http.Response, body []byte, advice string) error {
	var in struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &in) != nil || !oauthCode().MatchString(in.Error) {
		in.Error = "no reason given"
	}
	e := &destination.Error{
		Class: destination.External, Code: destination.Unavailable, RetryAfter: destination.RetryAfter(resp.Header),
		Text: fmt.Sprintf("the token service answers %d (%s)", resp.StatusCode, in.Error),
	}
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		e.Code = destination.Throttled
	case resp.StatusCode >= 500:
	case resp.StatusCode < 400:
		e.Code = destination.Unexpected
	default:
		e.Class, e.Code = destination.Client, destination.Denied
		e.Text += ": " + advice
	}
	return e
}

// Unreachable is the error of a call that got no response. What stopped it may be an *Error of the operator's own, for an
// address that may not be called.
func Unreachable(doing string, err error) *destination.Error {
	if own := (*destination.Error)(nil); errors.As(err, &own) {
		blocked := *own
		return &blocked
	}
	e := &destination.Error{Class: destination.External, Code: destination.Unreachable, Text: doing + ": no answer"}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.Text, e.Err = doing+": no answer in time", context.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		e.Text, e.Err = doing+": given up before there was an answer", context.Canceled
	default:
		e.Text += destination.WhyNoResponse(err)
	}
	return e
}
