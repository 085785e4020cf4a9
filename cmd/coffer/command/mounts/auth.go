package mounts

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

// loginHelp says how to log in with each type of auth method.
var loginHelp = map[string]string{
	"token": `Logging in with a token checks and stores it:

  $ coffer login
  $ coffer login - <token`,
	"userpass": `Logging in with userpass takes a user's name and password. Without the password it is asked for and not shown:

  $ coffer login -method=userpass username=ada
  $ coffer login -method=userpass username=ada password=- <password

Users are made with:

  $ coffer auth enable userpass
  $ coffer write auth/userpass/users/ada password=- token_policies=app`,
	"saml": `Logging in with SAML signs you in with a browser, on any machine that reaches the identity provider and the server:

  $ coffer login -method=saml
  $ coffer login -method=saml role=dev

Arguments, all of them optional:

  role=NAME            the role; without it that of the last login here, else the default of the method; role= takes that default
  acs_url=URL          where the identity provider answers, one of the configured acs_urls; without it this server's address
  skip_browser=true    only print the URL
  abort_on_error=true  give up if no browser can be opened
  code=CODE            finish a login that began at the identity provider, with the code that the browser shows; - reads it from stdin

The flag -qr prints a QR code, to sign in with a phone. BROWSER names the browser to open, or none.

Methods are made with:

  $ coffer auth enable saml
  $ coffer saml config -metadata=idp.xml
  $ coffer write auth/saml/role/dev bound_attributes=groups=dev token_policies=app`,
	"cert": `Logging in with cert is for programs that have a TLS client certificate of a CA that a role trusts, and its key:

  $ coffer login -method=cert -client-cert=web.pem -client-key=web.key name=web

name=ROLE may be left out: the first role that accepts the certificate is taken. COFFER_CLIENT_CERT and COFFER_CLIENT_KEY do for the flags.

Roles are made with:

  $ coffer auth enable cert
  $ coffer write auth/cert/certs/web certificate=@ca.pem allowed_common_names='*.example.com' token_policies=app`,
	"approle": `Logging in with approle is for programs. It takes the id of a role and one of the role's secret ids:

  $ coffer login -method=approle role_id=@role_id secret_id=@secret_id

Roles and their ids are made with:

  $ coffer auth enable approle
  $ coffer write auth/approle/role/shop token_policies=app token_ttl=20m
  $ coffer read -field=role_id auth/approle/role/shop/role-id >role_id
  $ coffer write -force -field=secret_id auth/approle/role/shop/secret-id >secret_id`,
}

func authHelpCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "help", Args: "[TYPE|PATH]", Max: 1, Usage: "show how to log in with a method, and what the server says about it",
		Help: `Shows how to log in with the auth method of a type or at a path, then what the server says about it, if it is enabled there.

Examples:

  $ coffer auth help userpass
  $ coffer auth help team-a`,
	}, authHelp)
}

func authHelp(ctx context.Context, c *command.Call) error {
	if c.Arg(0) == "" {
		return cli.ShowSubcommandHelp(c.Lineage()[1])
	}
	at := strings.TrimPrefix(c.Path(0), command.AuthPrefix)
	known, asked := loginHelp[at], c.Format() == command.FormatTable
	if known != "" && asked {
		fmt.Fprintln(c.Out, known)
	}
	found, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: command.AuthPrefix + at, Query: command.HelpQuery()})
	switch {
	case err != nil && (known == "" || !asked):
		if command.StatusOf(err) == http.StatusNotFound {
			return command.ServerErrorf("no auth method is enabled at %s%s/, and %q is no type of one; there are %s",
				command.AuthPrefix, at, at, strings.Join(slices.Sorted(maps.Keys(loginHelp)), ", "))
		}
		return err
	case err != nil:
		return nil // how to log in has been said; there is no server, or nothing enabled there
	}
	if known != "" && asked {
		fmt.Fprintf(c.Out, "\nThe server says about %s%s/:\n\n", command.AuthPrefix, at)
	}
	return c.PrintHelpResponse(found, command.AuthPrefix+at)
}
