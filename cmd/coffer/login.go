package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func loginCommand() *cli.Command {
	return command(spec{
		name: "login", args: "[TOKEN | - | KEY=VALUE …]", max: -1, usage: "log in and remember the token",
		help: `Logs in and stores the token in ~/.coffer-token, from where later commands take it.

With the method "token", the default, the token is checked and stored; without an argument it is asked for and not shown. Any other
method takes its own KEY=VALUE arguments. They are sent to auth/PATH/login, or to auth/PATH/login/NAME if there is username=NAME; a
username without a password asks for it.

Examples:

  $ coffer login
  $ coffer login -method=userpass username=ada`,
		flags: []cli.Flag{
			&cli.StringFlag{Name: "method", Value: "token", Usage: "log in with the auth method of this `TYPE`"},
			&cli.StringFlag{Name: "path", Usage: "`PATH` of the method, if it is not its type"},
			&cli.BoolFlag{Name: "no-store", Usage: "do not store the token"},
			&cli.BoolFlag{Name: "no-print", Usage: "do not print the token"},
			&cli.BoolFlag{Name: "token-only", Usage: "print nothing but the token, and do not store it"},
			fieldFlag(),
		},
	}, login)
}

func login(ctx context.Context, c *call) error {
	if c.Bool("token-only") {
		if c.IsSet("field") || c.Bool("no-print") {
			return usagef("-token-only goes with neither -field nor -no-print")
		}
		if err := c.Set("field", "token"); err != nil {
			return err
		}
	}
	var a *answer
	var err error
	if c.String("method") == "token" {
		a, err = loginToken(ctx, c)
	} else {
		a, err = loginMethod(ctx, c)
	}
	if err != nil {
		return err
	}
	stored := !c.Bool("no-store") && !c.Bool("token-only")
	if stored {
		if err := storeToken(a.secret.Auth.ClientToken); err != nil {
			return err
		}
	}
	return c.printLogin(a, stored)
}

func (c *call) printLogin(a *answer, stored bool) error {
	if stored && env("TOKEN") != "" {
		c.warnf("Warning: COFFER_TOKEN, VAULT_TOKEN or BAO_TOKEN is set and goes before the token just stored. Unset it to use that.")
	}
	if c.Bool("no-print") {
		return nil
	}
	if c.String("field") == "" {
		c.sayf("Success! You are logged in.")
		if stored {
			c.sayf("The token is stored in ~/%s, where later commands find it.", tokenFiles[0])
		}
		c.sayf("")
	}
	return c.printAnswer(a)
}

// loginToken checks a token by looking itself up, and makes of the answer what a login method would have sent.
func loginToken(ctx context.Context, c *call) (*answer, error) {
	arg := c.arg(0)
	if token, ok := strings.CutPrefix(arg, "token="); ok {
		arg = token
	}
	if c.Args().Len() > 1 {
		return nil, usagef("the method \"token\" takes one argument; name another with -method")
	}
	token, err := c.readSecret(ctx, arg, "token")
	if err != nil {
		return nil, err
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	client.SetToken(token)
	found, err := c.get(ctx, "auth/token/lookup-self")
	if err != nil {
		return nil, err
	}
	if found.secret == nil {
		return nil, serverErrorf("the server said nothing about the token")
	}
	auth, err := tokenAuth(found.secret, token)
	if err != nil {
		return nil, serverErrorf("the answer about the token is not usable: %v", err)
	}
	s := &api.Secret{RequestID: found.secret.RequestID, Auth: auth, Warnings: found.secret.Warnings}
	raw, err := json.Marshal(s)
	return &answer{raw: raw, secret: s}, err
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
		TokenPolicies: stringsOf(s.Data["policies"]), IdentityPolicies: stringsOf(s.Data["identity_policies"]),
	}
	auth.Policies = append(append(auth.Policies, auth.TokenPolicies...), auth.IdentityPolicies...)
	auth.Accessor, _ = s.Data["accessor"].(string)
	auth.EntityID, _ = s.Data["entity_id"].(string)
	auth.Orphan, _ = s.Data["orphan"].(bool)
	return auth, nil
}

// loginMethod logs in with any method whose login is one request.
func loginMethod(ctx context.Context, c *call) (*answer, error) {
	body, err := c.parseData(ctx, c.Args().Slice())
	if err != nil {
		return nil, err
	}
	mount := cleanPath(c.String("path"))
	if mount == "" {
		mount = c.String("method")
	}
	path := "auth/" + mount + "/login"
	if name, ok := body["username"].(string); ok && name != "" {
		path += "/" + name
		body = maps.Clone(body)
		delete(body, "username")
		if body["password"] == nil {
			if body["password"], err = c.ask(ctx, "password"); err != nil {
				return nil, err
			}
		}
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	client.ClearToken() // an old one could only be a reason to refuse
	a, err := c.put(ctx, path, body)
	if err != nil {
		return nil, err
	}
	if a.secret == nil || a.secret.Auth == nil {
		return nil, serverErrorf("the server answered without a token")
	}
	if m := a.secret.Auth.MFARequirement; m != nil && a.secret.Auth.ClientToken == "" {
		return nil, serverErrorf("the login needs a second factor, which this command line does not support; its request is %s", m.MFARequestID)
	}
	return a, nil
}

func printCommand() *cli.Command {
	return group("print", "print what commands would use", `Prints what later commands would use.

Examples:

  $ coffer print token
  $ curl -H "X-Vault-Token: $(coffer print token)" "$COFFER_ADDR/v1/sys/mounts"`,
		command(spec{
			name: "token", usage: "print the token in use", local: true,
			help: `Prints the token commands would send: COFFER_TOKEN, else the one stored by "coffer login".

Examples:

  $ coffer print token
  $ COFFER_TOKEN=$(coffer print token) ./deploy`,
		}, func(_ context.Context, c *call) error {
			token, err := currentToken()
			if err != nil {
				return err
			}
			if token == "" {
				return usagef("there is no token: run coffer login, or set COFFER_TOKEN")
			}
			_, err = fmt.Fprintln(c.out, token)
			return err
		}))
}
