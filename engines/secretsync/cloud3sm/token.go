package cloud3sm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// tokens are the access tokens of a service account, of which one is kept until it ends. Safe for concurrent use.
type tokens struct {
	client  *http.Client
	url     string
	account account

	gate       chan struct{} // holds one element while a goroutine uses the fields below
	text       string
	until      time.Time
	ahead      time.Duration // how far the issuer's clock was before ours at the last token
	clockKnown bool          // ahead is set
}

func newTokens(client *http.Client, url string, a account) *tokens {
	return &tokens{client: client, url: url, account: a, gate: make(chan struct{}, 1)}
}

const (
	scope      = "https://www.googleapis.com/auth/cloud-platform"
	earlier    = 4 * time.Minute // before its end a token is replaced
	maxAnswer  = 64 << 10
	grantBySig = "urn:ietf:params:oauth:grant-type:jwt-bearer" // RFC 7523 section 2.1
)

// get returns a token, and whether it was issued just now.
func (t *tokens) get(ctx context.Context) (text string, fresh bool, err error) {
	select {
	case t.gate <- struct{}{}:
	case <-ctx.Done():
		return "", false, unreachable("waiting for a token", ctx.Err())
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

// drop forgets a token that is not taken any more.
func (t *tokens) drop(text string) {
	t.gate <- struct{}{}
	defer func() { <-t.gate }()
	if t.text == text {
		t.text = ""
	}
}

// clock returns how far the issuer's clock was before ours, if it is known.
func (t *tokens) clock() (ahead time.Duration, known bool) {
	t.gate <- struct{}{}
	defer func() { <-t.gate }()
	return t.ahead, t.clockKnown
}

func (t *tokens) issue(ctx context.Context) error {
	assertion, err := t.account.assertion(time.Now())
	if err != nil {
		return &destination.Error{Class: destination.Client, Code: destination.Denied, Text: "the private key of the credentials cannot sign"}
	}
	form := url.Values{"grant_type": {grantBySig}, "assertion": {assertion}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, strings.NewReader(form))
	if err != nil {
		return &destination.Error{Class: destination.Internal, Code: destination.Unexpected, Text: "the address of the token service is not one"}
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := t.client.Do(req)
	if err != nil {
		return unreachable("asking for a token", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return unreachable("asking for a token", err)
	}
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		t.ahead, t.clockKnown = time.Until(at).Round(time.Second), true
	}
	if resp.StatusCode != http.StatusOK {
		return refusedToken(resp, body)
	}
	text, life, ok := parseToken(body)
	if !ok {
		return &destination.Error{Class: destination.External, Code: destination.Unexpected, Text: "the token service answers without a token"}
	}
	t.text, t.until = text, time.Now().Add(max(life-earlier, life/2))
	return nil
}

// assertion is the JSON Web Token by which a service account asks for a token (RFC 7523).
func (a account) assertion(now time.Time) (string, error) {
	// The issuer takes none that lasts longer than an hour, nor one from its future.
	issued := now.Add(-10 * time.Second)
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": a.email, "scope": scope, "aud": tokenURL, "iat": issued.Unix(), "exp": issued.Add(time.Hour).Unix(),
	})
	t.Header["kid"] = a.keyID
	return t.SignedString(a.key)
}

// A token goes into a header of every call, so nothing that could end the header may be in it.
var tokenText = regexp.MustCompile(`^[!-~]+$`)

// parseToken reads the response of the token service.
func parseToken(body []byte) (text string, life time.Duration, ok bool) {
	var in struct {
		Token string `json:"access_token"`
		Type  string `json:"token_type"`
		Life  int64  `json:"expires_in"` // seconds
	}
	if json.Unmarshal(body, &in) != nil || !tokenText.MatchString(in.Token) || !strings.EqualFold(in.Type, "Bearer") {
		return "", 0, false
	}
	return in.Token, time.Duration(min(max(in.Life, 0), 24*3600)) * time.Second, true
}

var oauthCode = regexp.MustCompile(`^[a-z_]{1,40}$`)

// refusedToken says why there is no token. The description in the response is left out: the assertion could be in it.
func refusedToken(resp *http.Response, body []byte) error {
	var in struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(body, &in) != nil || !oauthCode.MatchString(in.Error) {
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
		e.Text += ": the service account or its key is disabled or deleted, or the clock of this server is wrong"
	}
	return e
}

// unreachable is the error of a call that got no response. What stopped it may be an *Error of the operator's own, for an
// address that may not be called.
func unreachable(doing string, err error) *destination.Error {
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
