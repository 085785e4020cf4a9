package main

import (
	"context"

	"github.com/urfave/cli/v3"
)

const namespacePath = "sys/namespaces"

func namespaceCommand() *cli.Command {
	return group("namespace", "create, list and delete namespaces", `Commands for namespaces, each with its own mounts, policies and tokens. They work below the namespace in use, -namespace or
COFFER_NAMESPACE.

Examples:

  $ coffer namespace create team-a
  $ coffer namespace list`,
		command(spec{
			name: "list", usage: "list the namespaces",
			help: `Lists the namespaces right below the one in use.

Examples:

  $ coffer namespace list
  $ coffer namespace list -namespace=team-a`,
		}, func(ctx context.Context, c *call) error { return listPath(ctx, c, namespacePath) }),
		command(spec{
			name: "lookup", args: "PATH", min: 1, max: 1, usage: "show a namespace",
			help: `Shows the id and metadata of a namespace.

Examples:

  $ coffer namespace lookup team-a
  $ coffer namespace lookup -field=id team-a`,
			flags: []cli.Flag{fieldFlag()},
		}, func(ctx context.Context, c *call) error {
			a, err := c.get(ctx, namespacePath+"/"+c.path(0))
			if nothingThere(err) {
				return serverErrorf("there is no namespace %s/", c.path(0))
			}
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}),
		command(spec{
			name: "create", args: "PATH", min: 1, max: 1, usage: "create a namespace",
			help: `Creates a namespace.

Examples:

  $ coffer namespace create team-a
  $ coffer namespace create -custom-metadata=owner=payments -namespace=team-a staging`,
			flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "custom-metadata", Usage: "`KEY=VALUE` to keep with it; repeatable"}, fieldFlag(),
			},
		}, func(ctx context.Context, c *call) error {
			metadata, err := keyValues("custom-metadata", c.StringSlice("custom-metadata"))
			if err != nil {
				return err
			}
			a, err := c.put(ctx, namespacePath+"/"+c.path(0), map[string]any{"custom_metadata": metadata})
			if err != nil {
				return err
			}
			return c.printWritten(a, namespacePath+"/"+c.path(0))
		}),
		command(spec{
			name: "delete", args: "PATH", min: 1, max: 1, usage: "delete a namespace with all it holds",
			help: `Deletes a namespace with all it holds. There is no way back.

Examples:

  $ coffer namespace delete team-a
  $ coffer namespace delete -namespace=team-a staging`,
		}, func(ctx context.Context, c *call) error {
			a, err := c.remove(ctx, namespacePath+"/"+c.path(0))
			if err != nil {
				return err
			}
			c.printWarnings(a)
			c.sayf("Success! Deleted the namespace (if it existed) at: %s/", c.path(0))
			return nil
		}))
}
