package login

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/browser"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/openbao/openbao/api/v2"
)

// samlKeys are the arguments of a SAML login.
var samlKeys = []string{"role", "acs_url", "skip_browser", "abort_on_error", "code"}

// samlLogin is a login that a user completes in a browser. The verifier never leaves this process before the response is
// asked for: who knows no more than the URL and the poll id gets no token.
type samlLogin struct {
	call        *command.Call
	server      string // where it logs in: address and namespace
	mount, role string
	acsURL      string
	code        string // of a login that began at the identity provider, else ""
	skip, abort bool
	fromMemory  []string // which of mount and role were not given
	verifier    string
	retryAfter  time.Duration // that the server asked for in its last answer
}

// samlStart is what the server says of a login that was started. Servers of the family leave out all but the first two.
type samlStart struct {
	SSOURL    string `json:"sso_service_url"`
	PollID    string `json:"token_poll_id"`
	Code      string `json:"verification_code"`
	Role      string `json:"role"`
	ShortURL  string `json:"short_url"`
	ExpiresIn int    `json:"expires_in"` // seconds
}

// samlLoginTime is how long a login waits for its user if the server does not say.
const samlLoginTime = 5 * time.Minute

// newSAMLLogin reads the arguments.
func newSAMLLogin(ctx context.Context, c *command.Call) (*samlLogin, error) {
	data, err := c.ParseData(ctx, c.Args().Slice())
	if err != nil {
		return nil, err
	}
	given := map[string]string{}
	for key, value := range data {
		text, ok := value.(string)
		if !slices.Contains(samlKeys, key) {
			return nil, command.Usagef("a SAML login has no argument %q; it takes %s", key, strings.Join(samlKeys, ", "))
		}
		if !ok {
			return nil, command.Usagef("%s is given more than once", key)
		}
		given[key] = strings.TrimSpace(text)
	}
	l := &samlLogin{call: c, role: given["role"], acsURL: given["acs_url"], code: given["code"]}
	for key, into := range map[string]*bool{"skip_browser": &l.skip, "abort_on_error": &l.abort} {
		if given[key] == "" {
			continue
		}
		if *into, err = strconv.ParseBool(given[key]); err != nil {
			return nil, command.Usagef("%s is %q, want true or false", key, given[key])
		}
	}
	if _, ok := given["code"]; ok && (l.code == "" || len(given) > 1 || c.Bool("qr")) {
		return nil, command.Usagef("code=CODE finishes a login that began at the identity provider: it takes the code that the browser shows and nothing else")
	}
	client, err := c.Connect()
	if err != nil {
		return nil, err
	}
	codes, err := factorCodes(ctx, c)
	if err != nil {
		return nil, err
	}
	client.ClearToken() // an old one could only be a reason to refuse
	client.SetMFACreds(codes)
	c.API = client.WithResponseCallbacks(func(r *api.Response) { l.retryAfter = retryAfter(r) })
	l.server = serverName(client)
	_, named := given["role"]
	l.recall(named)
	if l.acsURL == "" {
		l.acsURL = CallbackURL(client, l.mount)
	}
	return l, nil
}

// recall fills in what the user leaves out and did not leave out last time. The page that shows a code shows all else
// that has to go with it.
func (l *samlLogin) recall(roleGiven bool) {
	l.mount = MethodPath(l.call.String("path"))
	last, ok := recallLogin(l.server)
	ok = ok && l.code == ""
	if l.mount == "" && ok && last.Mount != "saml" {
		l.mount, l.fromMemory = last.Mount, append(l.fromMemory, "-path")
	}
	l.mount = cmp.Or(l.mount, "saml")
	if !roleGiven && ok && last.Mount == l.mount && last.Role != "" {
		l.role, l.fromMemory = last.Role, append(l.fromMemory, "role=")
	}
}

// MethodPath is a path of an auth method as users write it, without auth/ and slashes around it.
func MethodPath(path string) string {
	return strings.TrimPrefix(command.CleanPath(path), command.AuthPrefix)
}

// serverName is what distinguishes servers: two namespaces of one count as two.
func serverName(client *api.Client) string {
	name := strings.TrimRight(client.Address(), "/")
	if ns := command.CleanPath(client.Namespace()); ns != "" {
		name += "/" + ns
	}
	return name
}

// CallbackURL is where the identity provider's answer reaches the cluster that this client talks to.
func CallbackURL(client *api.Client, mount string) string {
	return MethodURL(client, mount) + "/callback"
}

// MethodURL is the URL of an auth method, with its namespace in the path: browsers send no header.
func MethodURL(client *api.Client, mount string) string {
	text := strings.TrimRight(client.Address(), "/") + "/v1/"
	if ns := command.CleanPath(client.Namespace()); ns != "" {
		text += ns + "/"
	}
	return text + command.AuthPrefix + mount
}

// run logs in, and returns what the server answered to that.
func (l *samlLogin) run(ctx context.Context) (*command.Response, error) {
	if l.code != "" {
		a, err := l.redeem(ctx, map[string]any{"code": l.code})
		return a, l.refused(command.WithHint(err, "A code is good once, for two minutes. Start again at the identity provider."))
	}
	raw := make([]byte, 32)
	rand.Read(raw)
	l.verifier = base64.RawURLEncoding.EncodeToString(raw)
	started, err := l.start(ctx)
	if err != nil {
		return nil, err
	}
	life := samlLoginTime
	if n := started.ExpiresIn; n > 0 && n < 24*60*60 {
		life = time.Duration(n) * time.Second
	}
	wait := &browserWait{
		until: time.Now().Add(life), abort: l.abort,
		status: waiting(l.call), retryAfter: func() time.Duration { return l.retryAfter },
		ask: func() (*command.Response, error) {
			return l.redeem(ctx, map[string]any{"client_verifier": l.verifier, "token_poll_id": started.PollID})
		},
	}
	l.introduce(started)
	if why := l.notOpening(); why == "" {
		l.call.Warnf("Opening your browser …\n")
		wait.opened = browser.Open(started.SSOURL)
	} else {
		l.call.Warnf("Not opening a browser: %s.\n", why)
		if l.abort && !l.skip && !l.call.Bool("qr") {
			return nil, command.Usagef("no browser was opened, and abort_on_error is set: nothing was stored")
		}
	}
	a, err := wait.run(ctx)
	return a, l.refused(err)
}

// start asks the server for a login.
func (l *samlLogin) start(ctx context.Context) (*samlStart, error) {
	digest := sha256.Sum256([]byte(l.verifier))
	body := map[string]any{
		"client_challenge": base64.StdEncoding.EncodeToString(digest[:]), "client_type": "cli", "acs_url": l.acsURL, "role": l.role,
	}
	if l.call.Bool("qr") {
		body["short_link"] = true
	}
	a, err := l.call.Send(ctx, command.Request{Method: http.MethodPut, Path: l.path("sso_service_url"), Body: body, Unwrapped: true})
	if err != nil {
		return nil, l.notStarted(err)
	}
	var out struct{ Data samlStart }
	if err := json.Unmarshal(a.Raw, &out); err != nil || out.Data.PollID == "" {
		return nil, command.ServerErrorf("the answer is not that of a SAML login; is there another method at auth/%s/?", l.mount)
	}
	started := &out.Data
	// What is handed to a browser must be a web page, whatever the server says.
	if !browser.IsWebURL(started.SSOURL) || started.ShortURL != "" && !browser.IsWebURL(started.ShortURL) {
		return nil, command.ServerErrorf("the server sent something else than the URL of a web page to sign in at")
	}
	if l.call.Bool("qr") && started.ShortURL == "" {
		return nil, command.ServerErrorf("the server makes no short links, which -qr needs; log in without it")
	}
	started.Role = cmp.Or(started.Role, l.role)
	return started, nil
}

func (l *samlLogin) path(what string) string { return command.AuthPrefix + l.mount + "/" + what }

func (l *samlLogin) redeem(ctx context.Context, body map[string]any) (*command.Response, error) {
	return l.call.Put(ctx, l.path("token"), body)
}

// introduce says what is about to happen, and to whom.
func (l *samlLogin) introduce(started *samlStart) {
	c, role := l.call, ""
	if started.Role != "" {
		role = fmt.Sprintf(", as role %s", table.Printable(started.Role))
	}
	c.Warnf("Logging in to %s with auth/%s/%s.", table.Printable(l.server), table.Printable(l.mount), role)
	if len(l.fromMemory) > 0 {
		c.Warnf("(As last time on this server; %s takes another.)", strings.Join(l.fromMemory, " or "))
	}
	c.Warnf("Sign in with a browser at\n\n%s\n", started.SSOURL)
	if started.ShortURL != "" {
		code, err := qrText(started.ShortURL, command.Coloured(c.Err))
		if err != nil {
			c.Warnf("The link is too long for a QR code.")
		}
		c.Warnf("or, with a phone, here. The link works once:\n\n%s\n%s\n", code, started.ShortURL)
		if browser.IsLoopback(started.ShortURL) {
			c.Warnf("That address is this machine's alone: a phone does not reach it. acs_url= names another.\n")
		}
	}
	if started.Code != "" {
		c.Warnf("Before you confirm: the page has to show the code %s. Another code belongs to another login.", table.Printable(started.Code))
	}
}

// notOpening says why no browser is opened, "" if one is.
func (l *samlLogin) notOpening() string {
	switch {
	case l.skip:
		return "skip_browser is set"
	case l.call.Bool("qr"):
		return "the QR code is for another device"
	}
	return browser.Unusable()
}

// notStarted explains why there is no login.
func (l *samlLogin) notStarted(err error) error {
	text := err.Error()
	switch {
	case command.StatusOf(err) == http.StatusBadRequest && strings.Contains(text, "acs_urls"):
		return command.WithHint(err, fmt.Sprintf("Identity providers may answer only where acs_urls of the method's configuration says. Have this URL added to those there are:\n\n"+
			"  %s\n\nor name one of them with acs_url=URL.", l.acsURL))
	case command.StatusOf(err) == http.StatusBadRequest && strings.Contains(text, "role") && slices.Contains(l.fromMemory, "role="):
		return command.WithHint(err, "The role was that of your last login here: role=NAME takes another, role= the default.")
	}
	if command.StatusOf(err) == http.StatusTooManyRequests {
		return command.WithHint(err, "Too many logins are going on, or a quota is used up. Try again in a moment.")
	}
	return loginRefused(err, l.mount, nil)
}

// refused gives the error of a login that was started a hint.
func (l *samlLogin) refused(err error) error {
	var e *command.RequestError
	if !errors.As(err, &e) || e.Hint != "" {
		return err
	}
	switch command.StatusOf(err) {
	case http.StatusForbidden:
		if strings.Contains(err.Error(), "permission denied") { // all that the server says about entities and addresses
			return command.WithHint(err, "Nothing was stored. The identity provider and the role let you in, but your entity is disabled, or this address may not log in: ask who administers the server.")
		}
		return command.WithHint(err, "Nothing was stored. Who administers the method sees which condition was not met with: coffer saml explain ROLE")
	case http.StatusBadRequest:
		return command.WithHint(err, "Nothing was stored. A login works once, within a few minutes. Start another with the same command.")
	}
	return err
}

// finish says who is logged in, and remembers what to log in with next time.
func (l *samlLogin) finish(ctx context.Context, a *command.Response, stored bool) (who string) {
	if stored && l.code == "" {
		if err := rememberLogin(l.server, lastLogin{Mount: l.mount, Role: l.role}); err != nil {
			l.call.Warnf("Warning: the role is not remembered for next time: %v", err)
		}
	}
	if auth := a.Secret.Auth; auth != nil && l.call.Format() == command.FormatTable && l.call.String("field") == "" && !l.call.Bool("token-only") && !l.call.Bool("no-print") {
		return l.user(ctx, a)
	}
	return ""
}

// user asks whom a token is for, unless that would use it up.
func (l *samlLogin) user(ctx context.Context, a *command.Response) string {
	var login struct {
		Auth struct {
			Uses int `json:"num_uses"`
		}
	}
	if err := json.Unmarshal(a.Raw, &login); err != nil || login.Auth.Uses > 0 {
		return ""
	}
	l.call.API.SetToken(a.Secret.Auth.ClientToken)
	defer l.call.API.ClearToken()
	found, err := l.call.Send(ctx, command.Request{Method: http.MethodGet, Path: "auth/token/lookup-self", Unwrapped: true})
	if err != nil {
		return ""
	}
	name, _ := found.Data()["display_name"].(string)
	return table.Printable(strings.TrimPrefix(name, strings.ReplaceAll(l.mount, "/", "-")+"-"))
}

// retryAfter is how long the server wants to be left alone.
func retryAfter(r *api.Response) time.Duration {
	if r == nil || r.Response == nil {
		return 0
	}
	seconds, err := strconv.Atoi(r.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, time.Minute)
}
