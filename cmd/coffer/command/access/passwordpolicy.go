package access

import (
	"context"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

const passwordPath = "sys/policies/password/"

func passwordCommand() *cli.Command {
	return command.Group("password", "say what generated passwords are like", `Commands for password policies, which say how long generated passwords are and what they are made of.

A policy is HCL:

  length = 20
  rule "charset" {
    charset   = "abcdefghijklmnopqrstuvwxyz"
    min-chars = 1
  }
  rule "charset" {
    charset   = "0123456789"
    min-chars = 1
  }

Examples:

  $ coffer policy password write database database.hcl
  $ coffer policy password generate database`,
		command.New(command.Spec{
			Name: "write", Args: "NAME FILE|-", Min: 2, Max: 2, Usage: "create or replace a password policy",
			Help: `Creates or replaces a password policy with the content of a file or of stdin, once a password could be made by it.

Examples:

  $ coffer policy password write database database.hcl
  $ coffer policy password write database - <database.hcl`,
		}, func(ctx context.Context, c *command.Call) error { return writePolicy(ctx, c, passwordPath) }),
		command.New(command.Spec{
			Name: "read", Args: "NAME", Min: 1, Max: 1, Usage: "print a password policy",
			Help: `Prints a password policy as it was written.

Examples:

  $ coffer policy password read database
  $ coffer policy password read database >database.hcl`,
		}, func(ctx context.Context, c *command.Call) error {
			return readPolicy(ctx, c, passwordPath, "coffer policy password list")
		}),
		command.New(command.Spec{
			Name: "list", Usage: "list the password policies",
			Help: `Lists the names of all password policies.

Examples:

  $ coffer policy password list
  $ coffer policy password list -format=json`,
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Send(ctx, command.Request{Method: "LIST", Path: "sys/policies/password"})
			if command.NothingThere(err) {
				return command.ServerErrorf("there are no password policies")
			}
			if err != nil {
				return err
			}
			return c.PrintList("", command.StringsOf(a.Data()["keys"]))
		}),
		command.New(command.Spec{
			Name: "delete", Args: "NAME", Min: 1, Max: 1, Usage: "delete a password policy",
			Help: `Deletes a password policy. Passwords made by it stay as they are.

Examples:

  $ coffer policy password delete database
  $ coffer policy password delete team-a`,
		}, func(ctx context.Context, c *command.Call) error {
			if _, err := c.Remove(ctx, passwordPath+c.Path(0)); err != nil {
				return err
			}
			c.Sayf("Success! Deleted the password policy (if it existed): %s", c.Path(0))
			return nil
		}),
		command.New(command.Spec{
			Name: "generate", Args: "NAME", Min: 1, Max: 1, Usage: "make a password",
			Help: `Makes a password by a policy. The server keeps it nowhere.

Examples:

  $ coffer policy password generate -field=password database
  $ coffer policy password generate -wrap-ttl=60s database`,
			Flags: []cli.Flag{command.FieldFlag(), command.WrapFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Get(ctx, passwordPath+c.Path(0)+"/generate")
			if command.NothingThere(err) {
				return command.ServerErrorf("there is no policy %q; coffer policy password list shows those there are", c.Path(0))
			}
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}))
}
