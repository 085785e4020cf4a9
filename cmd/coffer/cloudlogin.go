package main

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

func cloudLoginCommand() *cli.Command {
	return command(spec{
		name: "login", args: "ROLE", min: 1, max: 1, usage: "open the provider's web console as a role",
		help: `Gets temporary credentials of a role and opens the provider's web console with them. The role must be of the type assumed_role or
federation_token. Without a browser the URL is printed. It lets anyone who has it log in, within 15 minutes: do not paste it anywhere.

Where the console is follows from the credentials; -federation-endpoint and -destination name others.

Examples:

  $ coffer cloud login readonly
  $ coffer cloud login -ttl=4h -destination=https://console.aws.amazon.com/s3/home readonly
  $ coffer cloud login -print readonly`,
		flags: append(cloudRoleFlags(),
			&cli.BoolFlag{Name: "print", Usage: "only print the URL"},
			&cli.StringFlag{Name: "destination", Usage: "`URL` of the page of the console to open"},
			&cli.StringFlag{Name: "session-duration", Usage: "how long the console lets you work, `DURATION`; only for roles assumed with the key of a user"},
			&cli.StringFlag{Name: federationField, Usage: "`URL` that signs in to the console"},
		),
	}, cloudLogin)
}

// consoleLogin is what -format=json prints.
type consoleLogin struct {
	URL       string    `json:"url"`
	ARN       string    `json:"arn,omitempty"`
	ExpiresAt time.Time `json:"expires_at"` // the URL
}

func cloudLogin(ctx context.Context, c *call) error {
	if err := c.checkFormat(); err != nil {
		return err
	}
	params, err := c.signinParams()
	if err != nil {
		return err
	}
	asked := time.Now().UTC().Truncate(time.Second)
	a, err := c.cloudIssue(ctx, true)
	if err != nil {
		return err
	}
	creds, err := issuedCredentials(a, asked)
	if err != nil {
		return err
	}
	if creds.SessionToken == "" {
		return c.noConsole(ctx, creds)
	}
	c.printWarnings(a)
	place, err := c.console(creds)
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
	if c.format() != formatTable {
		return c.printValue(login)
	}
	return c.openConsole(ctx, login, creds)
}

// signinParams are the further parameters of the flags, looked at before there are credentials.
func (c *call) signinParams() (url.Values, error) {
	params := url.Values{}
	if text := c.String("session-duration"); text != "" {
		d, err := parseDuration(text)
		if err != nil || d < 15*time.Minute || d > 12*time.Hour {
			return nil, usagef("-session-duration is %q, want a duration from 15m to 12h", text)
		}
		params.Set("SessionDuration", strconv.FormatInt(int64(d/time.Second), 10))
	}
	if d := c.String("destination"); d != "" && !isWebURL(d) {
		return nil, usagef("-destination must be a URL of the console")
	}
	if f := c.String(federationField); f != "" {
		if u, err := url.Parse(f); err != nil || !isWebURL(f) || u.Scheme != "https" && !isLoopback(f) {
			return nil, usagef("-%s must be a URL with https: credentials are sent there", federationField)
		}
	}
	return params, nil
}

// console is that of the partition which the credentials are of, or what the flags say instead.
func (c *call) console(creds *cloudCredentials) (console, error) {
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
		return place, usagef("the console of the partition %q is not known: give -%s and -destination", partition, federationField)
	}
	return place, nil
}

// noConsole takes back a user that was made, as far as the token may do that.
func (c *call) noConsole(ctx context.Context, creds *cloudCredentials) error {
	text := "the role makes users, whose keys do not open the console: take one of the type assumed_role or federation_token"
	if creds.LeaseID == "" {
		return serverErrorf("%s", text)
	}
	_, err := c.send(ctx, request{method: http.MethodPut, path: "sys/leases/revoke", body: map[string]any{"lease_id": creds.LeaseID}, unwrapped: true})
	if err != nil {
		return serverErrorf("%s. The user that was made lives on until its lease ends, or is revoked: %s", text, printable(creds.LeaseID))
	}
	return serverErrorf("%s. The user that was made is removed again", text)
}

// openConsole hands the URL to a browser, or to the user.
func (c *call) openConsole(ctx context.Context, login consoleLogin, creds *cloudCredentials) error {
	if c.Bool("print") {
		fmt.Fprintln(c.out, login.URL)
		return nil
	}
	who := c.path(0)
	if creds.ARN != "" {
		who = creds.ARN
	}
	until := creds.Expiration.Format(time.RFC3339)
	why := noBrowser()
	if why == "" {
		c.warnf("Opening your browser at the console, as %s, until %s …", printable(who), until)
		if why = browserTrouble(ctx, openBrowser(login.URL)); why == "" {
			return nil
		}
		c.warnf("The browser could not be opened: %s.", printable(why))
	} else {
		c.warnf("Not opening a browser: %s.", why)
	}
	c.warnf("This URL opens the console as %s, within 15 minutes. Keep it to yourself:\n", printable(who))
	fmt.Fprintln(c.out, login.URL)
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
func signinToken(ctx context.Context, endpoint string, creds *cloudCredentials, params url.Values) (string, error) {
	session, err := json.Marshal(map[string]string{"sessionId": creds.AccessKey, "sessionKey": creds.SecretKey, "sessionToken": creds.SessionToken})
	if err != nil {
		return "", err
	}
	params.Set("Action", "getSigninToken")
	params.Set("Session", string(session))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, withQuery(endpoint, params), nil)
	if err != nil {
		return "", usagef("-%s cannot be used", federationField)
	}
	client := &http.Client{Timeout: federationTime, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		var failed *url.Error // it holds the URL, and so the credentials
		if errors.As(err, &failed) {
			err = failed.Err
		}
		return "", serverErrorf("the console's sign-in at %s was not reached: %w", endpoint, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxFederation))
	if err != nil {
		return "", serverErrorf("the console's sign-in at %s did not answer to the end: %w", endpoint, err)
	}
	var out struct{ SigninToken string }
	switch {
	case resp.StatusCode != http.StatusOK:
		return "", serverErrorf("the console's sign-in at %s refused the credentials with the status %d. The role has to be of the type assumed_role or federation_token, "+
			"-session-duration no longer than the role allows, and the root credentials those of a user", endpoint, resp.StatusCode)
	case json.Unmarshal(text, &out) != nil || out.SigninToken == "":
		return "", serverErrorf("what answers at %s is not the console's sign-in", endpoint)
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
