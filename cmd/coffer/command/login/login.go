// Package login has "coffer login": with a token, with a password, with the code of a second factor, and with SAML through a browser
// (saml.go, wait.go). The token that comes out of it is stored for later commands. Start with login.
package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func Command() *cli.Command {
	return command.New(command.Spec{
		Name: "login", Args: "[TOKEN | - | KEY=VALUE …]", Max: -1, Usage: "log in and remember the token",
		Help: `Logs in and stores the token in ~/.coffer-token, from where later commands take it.

With the method "token", the default, the token is checked and stored; without an argument it is asked for and not shown. Any other
method takes its own KEY=VALUE arguments. They are sent to auth/PATH/login, or to auth/PATH/login/NAME if there is username=NAME; a
username without a password asks for it. Secrets can come from stdin or a file: password=- or secret_id=@FILE.

If the login needs a second factor, its code is asked for, or given with -mfa. With -wrap-ttl the token comes wrapped: it is unwrapped
and stored, or with -no-store or -token-only printed as it is.

The method "saml" signs you in with a browser, on this machine or another: coffer auth help saml lists its arguments. Its role and path
are remembered for the next login to the same server. The method "oidc" does so, too: the provider sends your browser back to
localhost:8250, or the port of port=N, which the role has to allow. The method "kubernetes" takes the token of the pod that it runs in,
and "cert" the certificate of -client-cert with the key of -client-key.

Examples:

  $ coffer login
  $ coffer login -method=userpass username=ada
  $ coffer login -method=userpass -mfa=phone:492039 username=ada
  $ coffer login -method=saml role=dev
  $ coffer login -method=oidc role=dev
  $ coffer login -method=kubernetes role=app
  $ coffer login -method=cert -client-cert=web.pem -client-key=web.key name=web
  $ coffer login -method=approle role_id=@role_id secret_id=@secret_id
  $ coffer login -method=userpass -path=staff -token-only username=ada password=- <password`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "method", Aliases: []string{"m"}, Value: "token", Usage: "log in with the auth method of this `TYPE`"},
			&cli.StringFlag{Name: "path", Usage: "`PATH` of the method, if it is not its type"},
			mfaFlag(),
			&cli.BoolFlag{Name: "qr", Usage: "with -method=saml: print a QR code, to sign in with a phone"},
			&cli.BoolFlag{Name: "no-store", Usage: "do not store the token"},
			&cli.BoolFlag{Name: "no-print", Usage: "do not print the token"},
			&cli.BoolFlag{Name: "token-only", Usage: "print nothing but the token, and do not store it"},
			command.FieldFlag(), command.WrapFlag(),
		},
	}, login)
}

func login(ctx context.Context, c *command.Call) error {
	if c.Bool("token-only") && (c.IsSet("field") || c.Bool("no-print")) {
		return command.Usagef("-token-only goes with neither -field nor -no-print")
	}
	if c.Bool("qr") && c.String("method") != "saml" {
		return command.Usagef("-qr is for -method=saml")
	}
	var a *command.Response
	var err error
	finish := func(context.Context, *command.Response, bool) string { return "" }
	switch c.String("method") {
	case "token":
		a, err = loginToken(ctx, c)
	case "saml":
		var l *samlLogin
		if l, err = newSAMLLogin(ctx, c); err != nil {
			return err
		}
		finish = l.finish
		a, err = l.run(ctx)
	case "oidc":
		a, err = loginOIDC(ctx, c)
	default:
		a, err = loginMethod(ctx, c)
	}
	if err != nil {
		return err
	}
	stored := !c.Bool("no-store") && !c.Bool("token-only")
	if a, err = finishLogin(ctx, c, a, stored); err != nil {
		return err
	}
	place := ""
	if stored {
		if place, err = c.KeepToken(a.Secret.Auth.ClientToken); err != nil {
			return err
		}
	}
	return printLogin(c, a, place, finish(ctx, a, stored))
}

// printLogin prints the response to a login; place is where the token is stored, "" if nowhere, and who is "" if that is not known.
func printLogin(c *command.Call, a *command.Response, place, who string) error {
	if place != "" && local.Env("TOKEN") != "" {
		c.Warnf("Warning: COFFER_TOKEN, VAULT_TOKEN or BAO_TOKEN is set and goes before the token just stored. Unset it to use that.")
	}
	if c.Bool("no-print") {
		return nil
	}
	if c.Bool("token-only") {
		field := "token"
		if a.Secret.WrapInfo != nil {
			field = "wrapping_token"
		}
		if err := c.Set("field", field); err != nil {
			return err
		}
	}
	if c.String("field") == "" {
		c.Sayf("%s", loginText(a, place, who))
	}
	return c.PrintResponse(a)
}

// loginText says what became of the token.
func loginText(a *command.Response, place, who string) string {
	if who != "" {
		who = " as " + who
	}
	switch {
	case place != "":
		return fmt.Sprintf("Success! You are logged in%s.\nThe token is stored in %s, where later commands find it.\n", who, place)
	case a.Secret.WrapInfo != nil:
		return "Success! The token is behind the wrapping token below; coffer unwrap gets it, once.\n"
	}
	return fmt.Sprintf("Success! You are logged in%s.\nThe token is not stored; commands use it if it is in COFFER_TOKEN.\n", who)
}

// loginToken checks a token by looking itself up, and makes of the response what a login method would have sent.
func loginToken(ctx context.Context, c *command.Call) (*command.Response, error) {
	arg := c.Arg(0)
	if token, ok := strings.CutPrefix(arg, "token="); ok {
		arg = token
	}
	if c.IsSet("mfa") || c.IsSet("wrap-ttl") {
		return nil, command.Usagef("-mfa and -wrap-ttl (or COFFER_WRAP_TTL) are for methods that make a token; name one with -method")
	}
	if c.Args().Len() > 1 {
		return nil, command.Usagef("the method \"token\" takes one argument; name another with -method")
	}
	token, err := c.ReadSecret(ctx, arg, "token")
	if err != nil {
		return nil, err
	}
	client, err := c.Connect()
	if err != nil {
		return nil, err
	}
	client.SetToken(token)
	found, err := c.Get(ctx, "auth/token/lookup-self")
	if err != nil {
		return nil, command.WithHint(err, "The token is wrong, has ended, or belongs to another namespace or server.")
	}
	if found.Secret == nil {
		return nil, command.ServerErrorf("the server said nothing about the token")
	}
	auth, err := tokenAuth(found.Secret, token)
	if err != nil {
		return nil, command.ServerErrorf("the answer about the token is not usable: %v", err)
	}
	s := &api.Secret{RequestID: found.Secret.RequestID, Auth: auth, Warnings: found.Secret.Warnings}
	raw, err := json.Marshal(s)
	return &command.Response{Raw: raw, Secret: s}, err
}

func tokenAuth(s *api.Secret, token string) (*api.SecretAuth, error) {
	ttl, err := s.TokenTTL()
	if err != nil {
		return nil, err
	}
	renewable, err := s.TokenIsRenewable()
	if err != nil {
		return nil, err
	}
	meta, err := s.TokenMetadata()
	if err != nil {
		return nil, err
	}
	auth := &api.SecretAuth{
		ClientToken: token, Metadata: meta, Renewable: renewable, LeaseDuration: int(ttl.Seconds()),
		TokenPolicies: command.StringsOf(s.Data["policies"]), IdentityPolicies: command.StringsOf(s.Data["identity_policies"]),
	}
	auth.Policies = append(append(auth.Policies, auth.TokenPolicies...), auth.IdentityPolicies...)
	auth.Accessor, _ = s.Data["accessor"].(string)
	auth.EntityID, _ = s.Data["entity_id"].(string)
	auth.Orphan, _ = s.Data["orphan"].(bool)
	return auth, nil
}

// namedMethods are those whose login path ends in a user's name.
var namedMethods = []string{"userpass", "ldap", "radius", "okta"}

// podTokenFile is where Kubernetes puts the token of a pod's service account.
const podTokenFile = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// loginMethod sends the login of any method whose login is one request.
func loginMethod(ctx context.Context, c *command.Call) (*command.Response, error) {
	body, err := c.ParseData(ctx, c.Args().Slice())
	if err != nil {
		return nil, err
	}
	method := c.String("method")
	mount := strings.TrimPrefix(command.CleanPath(c.String("path")), "auth/")
	if mount == "" {
		mount = method
	}
	path := "auth/" + mount + "/login"
	name, _ := body["username"].(string)
	switch {
	case name != "":
		path += "/" + name
		body = maps.Clone(body)
		delete(body, "username")
		if body["password"] == nil {
			if body["password"], err = c.Ask(ctx, "password"); err != nil {
				return nil, err
			}
		}
	case slices.Contains(namedMethods, method):
		return nil, command.Usagef("the method %q needs username=NAME; coffer auth help %s says more", method, method)
	}
	if method == "kubernetes" && body["jwt"] == nil {
		token, err := os.ReadFile(podTokenFile)
		if err != nil {
			return nil, command.Usagef("this is no pod with a token of its service account: %v; jwt=@FILE names another", err)
		}
		body = maps.Clone(body)
		body["jwt"] = strings.TrimSpace(string(token))
	}
	codes, err := factorCodes(ctx, c)
	if err != nil {
		return nil, err
	}
	client, err := c.Connect()
	if err != nil {
		return nil, err
	}
	client.ClearToken() // an old one could only be a reason to refuse
	client.SetMFACreds(codes)
	a, err := c.Put(ctx, path, body)
	if err != nil {
		return nil, loginRefused(err, mount, body)
	}
	return a, nil
}

// loginRefused gives the error of a login a hint that has to do with it.
func loginRefused(err error, mount string, body map[string]any) error {
	status := command.StatusOf(err)
	if status == http.StatusForbidden && strings.Contains(err.Error(), "missing client token") {
		status = http.StatusNotFound // nothing there that would take a request without a token
		var e *command.RequestError
		if errors.As(err, &e) {
			e.Instead = fmt.Sprintf("nothing at auth/%s/ takes a login", mount)
		}
	}
	switch status {
	case http.StatusBadRequest, http.StatusForbidden:
		for _, k := range slices.Sorted(maps.Keys(body)) {
			if text, ok := body[k].(string); ok && strings.HasSuffix(text, "\n") {
				return command.WithHint(err, fmt.Sprintf("The %s ends with a line break, which counts. printf writes a file without one.", k))
			}
		}
		return command.WithHint(err, fmt.Sprintf("See what a login takes with: coffer auth help %s", mount))
	case http.StatusNotFound:
		return command.WithHint(err, fmt.Sprintf("No auth method is enabled at auth/%s/, or its login is elsewhere. Name the place with -path.", mount))
	}
	return err
}

// finishLogin makes a token of the response to a login: it gives the second factor, and opens what is wrapped if opened.
func finishLogin(ctx context.Context, c *command.Call, a *command.Response, opened bool) (*command.Response, error) {
	for {
		var err error
		switch s := a.Secret; {
		case s != nil && s.WrapInfo != nil && opened:
			if a, err = c.OpenWrapped(ctx, "sys/wrapping/unwrap", s.WrapInfo.Token); err != nil {
				return nil, command.WithHint(err, command.UsedHint)
			}
		case s != nil && s.WrapInfo != nil:
			return a, nil
		case s == nil || s.Auth == nil:
			return nil, command.ServerErrorf("the server answered without a token")
		case s.Auth.ClientToken == "" && s.Auth.MFARequirement != nil:
			if a, err = secondFactor(ctx, c, a); err != nil {
				return nil, err
			}
		default:
			return a, nil
		}
	}
}

func PrintCommand() *cli.Command {
	return command.Group("print", "print what commands would use", `Prints what later commands would use.

Examples:

  $ coffer print token
  $ curl -H "X-Vault-Token: $(coffer print token)" "$COFFER_ADDR/v1/sys/mounts"`,
		command.New(command.Spec{
			Name: "token", Usage: "print the token in use", Local: true,
			Help: `Prints the token commands would send: COFFER_TOKEN, else the one stored by "coffer login".

Examples:

  $ coffer print token
  $ COFFER_TOKEN=$(coffer print token) ./deploy`,
		}, func(_ context.Context, c *command.Call) error {
			token, err := local.CurrentToken()
			if err != nil {
				return err
			}
			if token == "" {
				return command.Usagef("there is no token: run coffer login, or set COFFER_TOKEN")
			}
			_, err = fmt.Fprintln(c.Out, token)
			return err
		}))
}
