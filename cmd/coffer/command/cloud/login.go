package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/browser"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

const (
	// signinTime is how long the provider accepts a sign-in URL.
	signinTime = 15 * time.Minute
	// browserTime is how long a browser has to fail. Some only return when they are closed.
	browserTime     = 2 * time.Second
	federationTime  = 20 * time.Second
	maxFederation   = 64 << 10
	consoleIssuer   = "coffer"
	federationField = "federation-endpoint"
)

// console is where people work with a cloud provider in a browser.
type console struct{ federation, home string }

// consoles are those of the provider's partitions.
var consoles = map[string]console{
	"aws":        {"https://signin.aws.amazon.com/federation", "https://console.aws.amazon.com/"},
	"aws-us-gov": {"https://signin.amazonaws-us-gov.com/federation", "https://console.amazonaws-us-gov.com/"},
	"aws-cn":     {"https://signin.amazonaws.cn/federation", "https://console.amazonaws.cn/"},
}

func loginCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "login", Args: "ROLE", Min: 1, Max: 1, Usage: "open the provider's web console as a role",
		Help: `Gets temporary credentials of a role and opens the provider's web console with them. The role must be of the type assumed_role or
federation_token. Without a browser the URL is printed. It lets anyone who has it log in, within 15 minutes: do not paste it anywhere.

Where the console is follows from the credentials; -federation-endpoint and -destination name others.

Examples:

  $ coffer cloud login readonly
  $ coffer cloud login -ttl=4h -destination=https://console.aws.amazon.com/s3/home readonly
  $ coffer cloud login -print readonly`,
		Flags: append(roleFlags(),
			&cli.BoolFlag{Name: "print", Usage: "only print the URL"},
			&cli.StringFlag{Name: "destination", Usage: "`URL` of the page of the console to open"},
			&cli.StringFlag{Name: "session-duration", Usage: "how long the console lets you work, `DURATION`; only for roles assumed with the key of a user"},
			&cli.StringFlag{Name: federationField, Usage: "`URL` that signs in to the console"},
		),
	}, login)
}

// consoleLogin is what -format=json prints.
type consoleLogin struct {
	URL       string    `json:"url"`
	ARN       string    `json:"arn,omitempty"`
	ExpiresAt time.Time `json:"expires_at"` // the URL
}

func login(ctx context.Context, c *command.Call) error {
	if err := c.CheckFormat(); err != nil {
		return err
	}
	params, err := signinParams(c)
	if err != nil {
		return err
	}
	asked := time.Now().UTC().Truncate(time.Second)
	a, err := issue(ctx, c, true)
	if err != nil {
		return err
	}
	creds, err := issuedCredentials(a, asked)
	if err != nil {
		return err
	}
	if creds.SessionToken == "" {
		return noConsole(ctx, c, creds)
	}
	c.PrintWarnings(a)
	place, err := consoleOf(c, creds)
	if err != nil {
		return err
	}
	token, err := signinToken(ctx, place.federation, creds, params)
	if err != nil {
		return err
	}
	page := withQuery(place.federation, url.Values{
		"Action": {"login"}, "Issuer": {consoleIssuer}, "Destination": {place.home}, "SigninToken": {token},
	})
	login := consoleLogin{URL: page, ARN: creds.ARN, ExpiresAt: time.Now().UTC().Truncate(time.Second).Add(signinTime)}
	if c.Format() != command.FormatTable {
		return c.PrintValue(login)
	}
	return openConsole(ctx, c, login, creds)
}

// signinParams are the further parameters of the flags, looked at before there are credentials.
func signinParams(c *command.Call) (url.Values, error) {
	params := url.Values{}
	if text := c.String("session-duration"); text != "" {
		d, err := command.ParseDuration(text)
		if err != nil || d < 15*time.Minute || d > 12*time.Hour {
			return nil, command.Usagef("-session-duration is %q, want a duration from 15m to 12h", text)
		}
		params.Set("SessionDuration", strconv.FormatInt(int64(d/time.Second), 10))
	}
	if d := c.String("destination"); d != "" && !browser.IsWebURL(d) {
		return nil, command.Usagef("-destination must be a URL of the console")
	}
	if f := c.String(federationField); f != "" {
		if u, err := url.Parse(f); err != nil || !browser.IsWebURL(f) || u.Scheme != "https" && !browser.IsLoopback(f) {
			return nil, command.Usagef("-%s must be a URL with https: credentials are sent there", federationField)
		}
	}
	return params, nil
}

// consoleOf is that of the partition which the credentials are of, or what the flags say instead.
func consoleOf(c *command.Call, creds *credentials) (console, error) {
	partition := "aws"
	if parts := strings.Split(creds.ARN, ":"); len(parts) > 1 {
		partition = parts[1]
	}
	place := consoles[partition]
	if f := c.String(federationField); f != "" {
		place.federation = f
	}
	if d := c.String("destination"); d != "" {
		place.home = d
	}
	if place.federation == "" || place.home == "" {
		return place, command.Usagef("the console of the partition %q is not known: give -%s and -destination", partition, federationField)
	}
	return place, nil
}

// noConsole takes back a user that was made, as far as the token may do that.
func noConsole(ctx context.Context, c *command.Call, creds *credentials) error {
	text := "the role makes users, whose keys do not open the console: take one of the type assumed_role or federation_token"
	if creds.LeaseID == "" {
		return command.ServerErrorf("%s", text)
	}
	_, err := c.Send(ctx, command.Request{Method: http.MethodPut, Path: "sys/leases/revoke", Body: map[string]any{"lease_id": creds.LeaseID}, Unwrapped: true})
	if err != nil {
		return command.ServerErrorf("%s. The user that was made lives on until its lease ends, or is revoked: %s", text, table.Printable(creds.LeaseID))
	}
	return command.ServerErrorf("%s. The user that was made is removed again", text)
}

// openConsole hands the URL to a browser, or to the user.
func openConsole(ctx context.Context, c *command.Call, login consoleLogin, creds *credentials) error {
	if c.Bool("print") {
		fmt.Fprintln(c.Out, login.URL)
		return nil
	}
	who := c.Path(0)
	if creds.ARN != "" {
		who = creds.ARN
	}
	until := creds.Expiration.Format(time.RFC3339)
	why := browser.Unusable()
	if why == "" {
		c.Warnf("Opening your browser at the console, as %s, until %s …", table.Printable(who), until)
		if why = browserTrouble(ctx, browser.Open(login.URL)); why == "" {
			return nil
		}
		c.Warnf("The browser could not be opened: %s.", table.Printable(why))
	} else {
		c.Warnf("Not opening a browser: %s.", why)
	}
	c.Warnf("This URL opens the console as %s, within 15 minutes. Keep it to yourself:\n", table.Printable(who))
	fmt.Fprintln(c.Out, login.URL)
	return nil
}

// browserTrouble says why a browser did not open, "" if nothing is known of that by now.
func browserTrouble(ctx context.Context, opened <-chan error) string {
	timer := time.NewTimer(browserTime)
	defer timer.Stop()
	select {
	case err := <-opened:
		if err != nil {
			return err.Error()
		}
	case <-timer.C:
	case <-ctx.Done():
	}
	return ""
}

// signinToken changes temporary credentials for a token that signs in to the console. Errors name the endpoint, and
// nothing of what was sent there.
func signinToken(ctx context.Context, endpoint string, creds *credentials, params url.Values) (string, error) {
	session, err := json.Marshal(map[string]string{"sessionId": creds.AccessKey, "sessionKey": creds.SecretKey, "sessionToken": creds.SessionToken})
	if err != nil {
		return "", err
	}
	params.Set("Action", "getSigninToken")
	params.Set("Session", string(session))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, withQuery(endpoint, params), nil)
	if err != nil {
		return "", command.Usagef("-%s cannot be used", federationField)
	}
	client := &http.Client{Timeout: federationTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		var failed *url.Error // it holds the URL, and so the credentials
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return "", command.ServerErrorf("the console's sign-in at %s was not reached: %w", endpoint, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxFederation))
	if err != nil {
		return "", command.ServerErrorf("the console's sign-in at %s did not answer to the end: %w", endpoint, err)
	}
	var out struct{ SigninToken string }
	switch {
	case resp.StatusCode != http.StatusOK:
		return "", command.ServerErrorf("the console's sign-in at %s refused the credentials with the status %d. The role has to be of the type assumed_role or federation_token, "+
			"-session-duration no longer than the role allows, and the root credentials those of a user", endpoint, resp.StatusCode)
	case json.Unmarshal(text, &out) != nil || out.SigninToken == "":
		return "", command.ServerErrorf("what answers at %s is not the console's sign-in", endpoint)
	}
	return out.SigninToken, nil
}

// withQuery adds parameters to a URL, which may have some already.
func withQuery(address string, params url.Values) string {
	if strings.Contains(address, "?") {
		return address + "&" + params.Encode()
	}
	return address + "?" + params.Encode()
}
