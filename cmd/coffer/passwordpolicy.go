package main

import (
	"context"

	"github.com/urfave/cli/v3"
)

const passwordPath = "sys/policies/password/"

func passwordCommand() *cli.Command {
	return group("password", "say what generated passwords are like", `Commands for password policies, which say how long generated passwords are and what they are made of.

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
		command(spec{
			name: "write", args: "NAME FILE|-", min: 2, max: 2, usage: "create or replace a password policy",
			help: `Creates or replaces a password policy with the content of a file or of stdin, once a password could be made by it.

Examples:

  $ coffer policy password write database database.hcl
  $ coffer policy password write database - <database.hcl`,
		}, func(ctx context.Context, c *call) error { return c.writePolicy(ctx, passwordPath) }),
		command(spec{
			name: "read", args: "NAME", min: 1, max: 1, usage: "print a password policy",
			help: `Prints a password policy as it was written.

Examples:

  $ coffer policy password read database
  $ coffer policy password read database >database.hcl`,
		}, func(ctx context.Context, c *call) error {
			return c.readPolicy(ctx, passwordPath, "coffer policy password list")
		}),
		command(spec{
			name: "list", usage: "list the password policies",
			help: `Lists the names of all password policies.

Examples:

  $ coffer policy password list
  $ coffer policy password list -format=json`,
		}, func(ctx context.Context, c *call) error {
			a, err := c.send(ctx, request{method: "LIST", path: "sys/policies/password"})
			if nothingThere(err) {
				return serverErrorf("there are no password policies")
			}
			if err != nil {
				return err
			}
			return c.printList("", stringsOf(a.data()["keys"]))
		}),
		command(spec{
			name: "delete", args: "NAME", min: 1, max: 1, usage: "delete a password policy",
			help: `Deletes a password policy. Passwords made by it stay as they are.

Examples:

  $ coffer policy password delete database
  $ coffer policy password delete team-a`,
		}, func(ctx context.Context, c *call) error {
			if _, err := c.remove(ctx, passwordPath+c.path(0)); err != nil {
				return err
			}
			c.sayf("Success! Deleted the password policy (if it existed): %s", c.path(0))
			return nil
		}),
		command(spec{
			name: "generate", args: "NAME", min: 1, max: 1, usage: "make a password",
			help: `Makes a password by a policy. The server keeps it nowhere.

Examples:

  $ coffer policy password generate -field=password database
  $ coffer policy password generate -wrap-ttl=60s database`,
			flags: []cli.Flag{fieldFlag(), wrapFlag()},
		}, func(ctx context.Context, c *call) error {
			a, err := c.get(ctx, passwordPath+c.path(0)+"/generate")
			if nothingThere(err) {
				return serverErrorf("there is no policy %q; coffer policy password list shows those there are", c.path(0))
			}
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}))
}
