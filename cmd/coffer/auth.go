package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

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
	"approle": `Logging in with approle is for programs. It takes the id of a role and one of the role's secret ids:

  $ coffer login -method=approle role_id=@role_id secret_id=@secret_id

Roles and their ids are made with:

  $ coffer auth enable approle
  $ coffer write auth/approle/role/shop token_policies=app token_ttl=20m
  $ coffer read -field=role_id auth/approle/role/shop/role-id >role_id
  $ coffer write -force -field=secret_id auth/approle/role/shop/secret-id >secret_id`,
}

func authHelpCommand() *cli.Command {
	return command(spec{
		name: "help", args: "[TYPE|PATH]", max: 1, usage: "show how to log in with a method, and what the server says about it",
		help: `Shows how to log in with the auth method of a type or at a path, then what the server says about it, if it is enabled there.

Examples:

  $ coffer auth help userpass
  $ coffer auth help team-a`,
	}, authHelp)
}

func authHelp(ctx context.Context, c *call) error {
	if c.arg(0) == "" {
		return cli.ShowSubcommandHelp(c.Lineage()[1])
	}
	at := strings.TrimPrefix(c.path(0), methodKind.prefix)
	known, asked := loginHelp[at], c.format() == formatTable
	if known != "" && asked {
		fmt.Fprintln(c.out, known)
	}
	found, err := c.send(ctx, request{method: http.MethodGet, path: methodKind.prefix + at, query: helpQuery()})
	switch {
	case err != nil && (known == "" || !asked):
		if statusOf(err) == http.StatusNotFound {
			return serverErrorf("no auth method is enabled at %s%s/, and %q is no type of one; there are %s",
				methodKind.prefix, at, at, strings.Join(slices.Sorted(maps.Keys(loginHelp)), ", "))
		}
		return err
	case err != nil:
		return nil // how to log in has been said; there is no server, or nothing enabled there
	}
	if known != "" && asked {
		fmt.Fprintf(c.out, "\nThe server says about %s%s/:\n\n", methodKind.prefix, at)
	}
	return c.printHelpAnswer(found, methodKind.prefix+at)
}
