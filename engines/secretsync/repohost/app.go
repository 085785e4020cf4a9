package repohost

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
)

const (
	// issuedBefore and assertionTTL are of the JSON Web Token by which the app signs in. GitHub accepts none from its future, and none
	// that lasts longer than ten minutes.
	issuedBefore = time.Minute
	assertionTTL = 9 * time.Minute
	// renewBefore is how long before its end a token is replaced.
	renewBefore = 5 * time.Minute
	// tolerableSkew is the difference of the clocks from which on it explains that a JSON Web Token is rejected.
	tolerableSkew = 45 * time.Second
)

// appTokens are the tokens of an installation of a GitHub App, of which one is kept in memory until shortly before its end. Safe for
// concurrent use.
type appTokens struct {
	name         string
	app          *destination.App
	installation int64

	gate  chan struct{} // holds one element while a goroutine uses the fields below
	token string
	until time.Time
}

// newAppTokens returns the tokens of the app that a configuration names.
func newAppTokens(c *Config, app *destination.App) (*appTokens, error) {
	e := &destination.Error{Class: destination.Client, Code: destination.Denied}
	switch {
	case app == nil:
		e.Text = fmt.Sprintf("app_name: there is no GitHub App %q in this namespace: write it to sys/sync/github-apps/%s", c.AppName, c.AppName)
		return nil, e
	case app.URL != c.EnterpriseURL: // the signature could be used at the app's own installation of GitHub
		e.Text = fmt.Sprintf("enterprise_url: the GitHub App %q is one of %s, and its key is not used elsewhere: give the destination the enterprise_url of the app", c.AppName, cmp.Or(app.URL, "github.com"))
		return nil, e
	}
	return &appTokens{name: c.AppName, app: app, installation: c.Installation, gate: make(chan struct{}, 1)}, nil
}

// get returns a token, and whether it was issued just now.
func (a *appTokens) get(ctx context.Context, c *client) (token string, fresh bool, err error) {
	select {
	case a.gate <- struct{}{}:
	case <-ctx.Done():
		return "", false, destination.NoResponse("GitHub", ctx.Err(), false)
	}
	defer func() { <-a.gate }()
	if a.token != "" && time.Now().Before(a.until) {
		return a.token, false, nil
	}
	if err := a.issue(ctx, c); err != nil {
		return "", false, err
	}
	return a.token, true, nil
}

// drop forgets a token that is not accepted any more.
func (a *appTokens) drop(token string) {
	a.gate <- struct{}{}
	defer func() { <-a.gate }()
	if a.token == token {
		a.token = ""
	}
}

// issue exchanges a signature of the app for a token. The gate is held.
func (a *appTokens) issue(ctx context.Context, c *client) error {
	now := time.Now()
	assertion, err := a.assertion(now)
	if err != nil {
		return &destination.Error{Class: destination.Client, Code: destination.Denied, Text: "the private key of the GitHub App " + a.name + " cannot sign"}
	}
	var in struct {
		Token     string    `json:"token"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	resp, err := c.send(ctx, call{method: http.MethodPost, path: "app/installations/" + strconv.FormatInt(a.installation, 10) + "/access_tokens", into: &in}, assertion)
	if err != nil {
		return a.refusal(resp, err, now)
	}
	if tokenProblem(in.Token) != "" || in.Token == "" || in.ExpiresAt.IsZero() {
		return destination.UnexpectedResponse("GitHub", false)
	}
	life := destination.RetryAt(resp.Header, in.ExpiresAt)
	a.token, a.until = in.Token, now.Add(max(life-renewBefore, life/2))
	return nil
}

// assertion is the JSON Web Token by which the app signs in.
func (a *appTokens) assertion(now time.Time) (string, error) {
	issued := now.Add(-issuedBefore)
	return jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": strconv.FormatInt(a.app.ID, 10), "iat": issued.Unix(), "exp": issued.Add(assertionTTL).Unix(),
	}).SignedString(a.app.Key)
}

// refusal returns an error that says what is wrong with the app, where the response tells.
func (a *appTokens) refusal(resp *wire.Response, err error, now time.Time) error {
	if resp == nil {
		return err
	}
	text, who := "", "the GitHub App "+a.name
	switch resp.Status {
	case http.StatusUnauthorized:
		text = "GitHub does not accept the signature of " + who + ": app_id and private_key do not belong together, or the key or the app was deleted"
		if at, perr := http.ParseTime(resp.Header.Get("Date")); perr == nil {
			if ahead := now.Sub(at).Round(time.Second); ahead.Abs() > tolerableSkew {
				text = fmt.Sprintf("GitHub does not accept the signature of %s, because the clocks differ: that of this server is %v %s: set it", who, ahead.Abs(), map[bool]string{true: "ahead", false: "behind"}[ahead > 0])
			}
		}
	case http.StatusForbidden:
		text = "GitHub gives " + who + " no token: the installation is suspended, or the organization does not allow this server's address"
	case http.StatusNotFound:
		text = fmt.Sprintf("there is no installation %d of %s: check installation_id, the app_id of the app, and that it is still installed", a.installation, who)
	}
	e, ok := err.(*destination.Error) //nolint:errorlint // as send returns it
	if text == "" || !ok || e.Code == destination.Throttled {
		return err
	}
	return &destination.Error{Class: destination.Client, Code: destination.Denied, Text: text}
}

// credential names what the destination signs in with.
func (c *client) credential() string {
	if c.app != nil {
		return "the installation of the GitHub App " + c.app.name
	}
	return "access_token"
}
