// Package cloud has the commands for credentials of cloud providers: issuing them, printing them for shells and the provider's own tools,
// signing in to its console, and the state of the mount.
package cloud

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func Command() *cli.Command {
	return command.Group("cloud", "get credentials of a cloud provider, and look after their engine", `Commands for the engine of cloud credentials. docs/cloud.md leads through it.

Examples:

  $ coffer cloud creds deploy
  $ eval "$(coffer cloud creds -as=env deploy)"
  $ coffer cloud login readonly`,
		credsCommand(), staticCredsCommand(), loginCommand(), statusCommand(), rotateCommand(), rotateRootCommand())
}

func mountFlag() cli.Flag {
	return &cli.StringFlag{Name: "mount", Value: "cloud", Usage: "`PATH` of the engine"}
}

// apiPath is a path of the engine that -mount names.
func apiPath(c *command.Call, what string) string { return mountPath(c) + "/" + what }

func mountPath(c *command.Call) string { return cmp.Or(command.CleanPath(c.String("mount")), "cloud") }

// roleFlags are those of commands that ask a role for credentials.
func roleFlags() []cli.Flag {
	return []cli.Flag{
		mountFlag(),
		&cli.StringFlag{Name: "ttl", Usage: "ask for temporary credentials that last for `DURATION`; without it as the role has it, or an hour"},
		&cli.StringFlag{Name: "role-arn", Usage: "assume the role `ARN`, if the role here allows several"},
		&cli.StringFlag{Name: "session-name", Usage: "`NAME` of the session of an assumed role"},
		&cli.StringFlag{Name: "mfa-code", Usage: "`CODE` that the role's MFA device shows now"},
		&cli.BoolFlag{Name: "sts", Usage: "ask for temporary credentials of a role that was made with a legacy parameter"},
	}
}

// issue asks the role that the first argument names for credentials.
func issue(ctx context.Context, c *command.Call, unwrapped bool) (*command.Response, error) {
	path := apiPath(c, "creds/"+c.Path(0))
	if c.Bool("sts") {
		path = apiPath(c, "sts/"+c.Path(0))
	}
	r := command.Request{Method: http.MethodGet, Path: path, Query: url.Values{}, Unwrapped: unwrapped}
	for flag, field := range map[string]string{"ttl": "ttl", "role-arn": "role_arn", "session-name": "role_session_name"} {
		if v := c.String(flag); v != "" {
			r.Query.Set(field, v)
		}
	}
	if code := c.String("mfa-code"); code != "" { // not into the logs of what stands between
		body := map[string]string{"mfa_code": code}
		for field := range r.Query {
			body[field] = r.Query.Get(field)
		}
		r.Method, r.Query, r.Body = http.MethodPut, nil, body
	}
	return c.Send(ctx, r)
}

func credsCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "creds", Args: "ROLE", Min: 1, Max: 1, Usage: "get credentials of a role",
		Help: `Gets credentials of a role: a new user's with a lease, or temporary ones, which end by themselves.

-as prints them for others: "env" as commands for a shell, "json" as a plain object, "credential-process" as the provider's SDKs and
command line want them of a program that ~/.aws/config names as credential_process. They run it again when the credentials expire.

Examples:

  $ coffer cloud creds deploy
  $ coffer cloud creds -ttl=15m -field=access_key deploy
  $ eval "$(coffer cloud creds -as=env deploy)"
  $ coffer cloud creds -as=credential-process -role-arn=arn:aws:iam::123456789012:role/read audit`,
		Flags: append(roleFlags(), asFlag(), command.FieldFlag(), command.WrapFlag()),
	}, func(ctx context.Context, c *command.Call) error {
		if err := checkAs(c); err != nil {
			return err
		}
		asked := time.Now().UTC().Truncate(time.Second)
		a, err := issue(ctx, c, c.String("as") != "")
		if err != nil || c.String("as") == "" {
			return c.PrintOr(a, err)
		}
		creds, err := issuedCredentials(a, asked)
		if err != nil {
			return err
		}
		return printAs(c, a, creds)
	})
}

func staticCredsCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "static-creds", Args: "NAME", Min: 1, Max: 1, Usage: "get the key of a static role",
		Help: `Gets the key that a static role's user has now. It is good until it is replaced, and for a while after that: the expiration shown is
when to ask again. -as is that of "coffer cloud creds".

Examples:

  $ coffer cloud static-creds billing
  $ eval "$(coffer cloud static-creds -as=env billing)"`,
		Flags: []cli.Flag{mountFlag(), asFlag(), command.FieldFlag(), command.WrapFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		if err := checkAs(c); err != nil {
			return err
		}
		path := apiPath(c, "static-creds/"+c.Path(0))
		a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: path, Unwrapped: c.String("as") != ""})
		if command.NothingThere(err) {
			return command.ServerErrorf("there is no static role at %s", path)
		}
		if err != nil || c.String("as") == "" {
			return c.PrintOr(a, err)
		}
		creds, err := staticCredentials(a)
		if err != nil {
			return err
		}
		return printAs(c, a, creds)
	})
}

func rotateCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "rotate", Args: "STATIC-ROLE", Min: 1, Max: 1, Usage: "replace the key of a static role now",
		Help: `Makes a new key for the user of a static role at once and restarts its period. The key before stays good until the next rotation.

Examples:

  $ coffer cloud rotate billing
  $ coffer cloud rotate -mount=aws -field=next_rotation billing`,
		Flags: []cli.Flag{mountFlag(), command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		return c.PrintOr(c.Send(ctx, command.Request{Method: http.MethodPut, Path: apiPath(c, "static-roles/"+c.Path(0)+"/rotate")}))
	})
}

func rotateRootCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "rotate-root", Usage: "replace the root key by one that only the server knows",
		Help: `Replaces the key of config/root by a new one of the same user, which never leaves the server, and deletes the old one at the provider.
The user may have no other key. For some seconds afterwards the provider may not know the new key everywhere.

Examples:

  $ coffer cloud rotate-root
  $ coffer cloud rotate-root -field=access_key`,
		Flags: []cli.Flag{mountFlag(), command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, command.Request{Method: http.MethodPut, Path: apiPath(c, "config/rotate-root")})
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable || c.String("field") != "" {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		fmt.Fprintf(c.Out, "Success! The root key is now %s.\n", table.Text(a.Data()["access_key"]))
		return nil
	})
}
