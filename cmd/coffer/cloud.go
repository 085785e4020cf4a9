package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/urfave/cli/v3"
)

func cloudCommand() *cli.Command {
	return group("cloud", "get credentials of a cloud provider, and look after their engine", `Commands for the engine of cloud credentials. docs/cloud.md leads through it.

Examples:

  $ coffer cloud creds deploy
  $ eval "$(coffer cloud creds -as=env deploy)"
  $ coffer cloud login readonly`,
		cloudCredsCommand(), cloudStaticCredsCommand(), cloudLoginCommand(), cloudStatusCommand(), cloudRotateCommand(), cloudRotateRootCommand())
}

func cloudMountFlag() cli.Flag {
	return &cli.StringFlag{Name: "mount", Value: "cloud", Usage: "`PATH` of the engine"}
}

// cloudPath is a path of the engine that -mount names.
func (c *call) cloudPath(what string) string { return c.cloudMount() + "/" + what }

func (c *call) cloudMount() string { return cmp.Or(cleanPath(c.String("mount")), "cloud") }

// cloudRoleFlags are those of commands that ask a role for credentials.
func cloudRoleFlags() []cli.Flag {
	return []cli.Flag{
		cloudMountFlag(),
		&cli.StringFlag{Name: "ttl", Usage: "ask for temporary credentials that last for `DURATION`; without it as the role has it, or an hour"},
		&cli.StringFlag{Name: "role-arn", Usage: "assume the role `ARN`, if the role here allows several"},
		&cli.StringFlag{Name: "session-name", Usage: "`NAME` of the session of an assumed role"},
		&cli.StringFlag{Name: "mfa-code", Usage: "`CODE` that the role's MFA device shows now"},
		&cli.BoolFlag{Name: "sts", Usage: "ask for temporary credentials of a role that was made with a legacy parameter"},
	}
}

// cloudIssue asks the role that the first argument names for credentials.
func (c *call) cloudIssue(ctx context.Context, unwrapped bool) (*answer, error) {
	path := c.cloudPath("creds/" + c.path(0))
	if c.Bool("sts") {
		path = c.cloudPath("sts/" + c.path(0))
	}
	r := request{method: http.MethodGet, path: path, query: url.Values{}, unwrapped: unwrapped}
	for flag, field := range map[string]string{"ttl": "ttl", "role-arn": "role_arn", "session-name": "role_session_name"} {
		if v := c.String(flag); v != "" {
			r.query.Set(field, v)
		}
	}
	if code := c.String("mfa-code"); code != "" { // not into the logs of what stands between
		body := map[string]string{"mfa_code": code}
		for field := range r.query {
			body[field] = r.query.Get(field)
		}
		r.method, r.query, r.body = http.MethodPut, nil, body
	}
	return c.send(ctx, r)
}

func cloudCredsCommand() *cli.Command {
	return command(spec{
		name: "creds", args: "ROLE", min: 1, max: 1, usage: "get credentials of a role",
		help: `Gets credentials of a role: a new user's with a lease, or temporary ones, which end by themselves.

-as prints them for others: "env" as commands for a shell, "json" as a plain object, "credential-process" as the provider's SDKs and
command line want them of a program that ~/.aws/config names as credential_process. They run it again when the credentials expire.

Examples:

  $ coffer cloud creds deploy
  $ coffer cloud creds -ttl=15m -field=access_key deploy
  $ eval "$(coffer cloud creds -as=env deploy)"
  $ coffer cloud creds -as=credential-process -role-arn=arn:aws:iam::123456789012:role/read audit`,
		flags: append(cloudRoleFlags(), cloudAsFlag(), fieldFlag(), wrapFlag()),
	}, func(ctx context.Context, c *call) error {
		if err := c.checkAs(); err != nil {
			return err
		}
		asked := time.Now().UTC().Truncate(time.Second)
		a, err := c.cloudIssue(ctx, c.String("as") != "")
		if err != nil || c.String("as") == "" {
			return c.printOr(a, err)
		}
		creds, err := issuedCredentials(a, asked)
		if err != nil {
			return err
		}
		return c.printAs(a, creds)
	})
}

func cloudStaticCredsCommand() *cli.Command {
	return command(spec{
		name: "static-creds", args: "NAME", min: 1, max: 1, usage: "get the key of a static role",
		help: `Gets the key that a static role's user has now. It is good until it is replaced, and for a while after that: the expiration shown is
when to ask again. -as is that of "coffer cloud creds".

Examples:

  $ coffer cloud static-creds billing
  $ eval "$(coffer cloud static-creds -as=env billing)"`,
		flags: []cli.Flag{cloudMountFlag(), cloudAsFlag(), fieldFlag(), wrapFlag()},
	}, func(ctx context.Context, c *call) error {
		if err := c.checkAs(); err != nil {
			return err
		}
		path := c.cloudPath("static-creds/" + c.path(0))
		a, err := c.send(ctx, request{method: http.MethodGet, path: path, unwrapped: c.String("as") != ""})
		if nothingThere(err) {
			return serverErrorf("there is no static role at %s", path)
		}
		if err != nil || c.String("as") == "" {
			return c.printOr(a, err)
		}
		creds, err := staticCredentials(a)
		if err != nil {
			return err
		}
		return c.printAs(a, creds)
	})
}

// printOr prints an answer unless there is an error instead.
func (c *call) printOr(a *answer, err error) error {
	if err != nil {
		return err
	}
	return c.printAnswer(a)
}

func cloudRotateCommand() *cli.Command {
	return command(spec{
		name: "rotate", args: "STATIC-ROLE", min: 1, max: 1, usage: "replace the key of a static role now",
		help: `Makes a new key for the user of a static role at once and restarts its period. The key before stays good until the next rotation.

Examples:

  $ coffer cloud rotate billing
  $ coffer cloud rotate -mount=aws -field=next_rotation billing`,
		flags: []cli.Flag{cloudMountFlag(), fieldFlag()},
	}, func(ctx context.Context, c *call) error {
		return c.printOr(c.send(ctx, request{method: http.MethodPut, path: c.cloudPath("static-roles/" + c.path(0) + "/rotate")}))
	})
}

func cloudRotateRootCommand() *cli.Command {
	return command(spec{
		name: "rotate-root", usage: "replace the root key by one that only the server knows",
		help: `Replaces the key of config/root by a new one of the same user, which never leaves the server, and deletes the old one at the provider.
The user may have no other key. For some seconds afterwards the provider may not know the new key everywhere.

Examples:

  $ coffer cloud rotate-root
  $ coffer cloud rotate-root -field=access_key`,
		flags: []cli.Flag{cloudMountFlag(), fieldFlag()},
	}, func(ctx context.Context, c *call) error {
		a, err := c.send(ctx, request{method: http.MethodPut, path: c.cloudPath("config/rotate-root")})
		if err != nil {
			return err
		}
		if c.format() != formatTable || c.String("field") != "" {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		fmt.Fprintf(c.out, "Success! The root key is now %s.\n", text(a.data()["access_key"]))
		return nil
	})
}
