package replication

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

func primaryCommand() *cli.Command {
	return command.Group("primary", "what is done on the primary cluster", `Commands for the primary: become one, let secondaries in and out, and say what each of them may have.

Examples:

  $ coffer replication primary enable
  $ coffer replication primary secondary-token eu
  $ coffer replication primary filter set -mode=deny eu payments/`,
		command.New(command.Spec{
			Name: "enable", Usage: "make this cluster the primary",
			Help: `Makes this cluster the primary of a new set. Secondaries reach it on the cluster ports of its nodes, or where
-primary-cluster-addr says if those have other addresses from outside.

Examples:

  $ coffer replication primary enable
  $ coffer replication primary enable -primary-cluster-addr=coffer-us.example.com:8201`,
			Flags: []cli.Flag{clusterAddrFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			body := map[string]any{}
			command.SetIfGiven(c, body, "primary-cluster-addr", c.String("primary-cluster-addr"))
			return change(ctx, c, "primary/enable", body, "This cluster is a primary. Let a secondary in with: coffer replication primary secondary-token ID")
		}),
		command.New(command.Spec{
			Name: "demote", Usage: "make the primary a secondary, to promote another cluster",
			Help: `Stops shared writes and makes this cluster a secondary which follows no primary yet. Its data stays. Promote a secondary next, then
make this one follow it with "coffer replication secondary update-primary".

Examples:

  $ coffer replication primary demote
  $ coffer replication status`,
		}, func(ctx context.Context, c *command.Call) error {
			return change(ctx, c, "primary/demote", map[string]any{}, "This cluster takes no shared writes any more. Next, on the cluster to take over: coffer replication secondary promote")
		}),
		command.New(command.Spec{
			Name: "disable", Usage: "end replication on the primary",
			Help: `Ends replication. Secondaries lose the connection for good: to follow this cluster again they have to be enabled again, which wipes them.

Examples:

  $ coffer replication primary disable
  $ coffer replication primary disable -yes`,
			Flags: []cli.Flag{yesFlag()},
		}, disableReplication("primary", "no secondary can connect again without being wiped")),
		secondaryTokenCommand(),
		command.New(command.Spec{
			Name: "revoke", Args: "ID", Min: 1, Max: 1, Usage: "shut a secondary out",
			Help: `Shuts the secondary out that the token for ID has let in: it is disconnected at once, and only a new token lets it in again. An
unused token of that ID is void, too. What the secondary has stays there.

Examples:

  $ coffer replication primary revoke eu
  $ coffer replication status`,
		}, func(ctx context.Context, c *command.Call) error {
			return change(ctx, c, "primary/revoke-secondary", map[string]any{"id": c.Arg(0)}, c.Arg(0)+" is shut out.")
		}),
		filterCommand())
}

func clusterAddrFlag() cli.Flag {
	return &cli.StringFlag{Name: "primary-cluster-addr", Usage: "`HOST:PORT` that secondaries are told to connect to"}
}

func disableReplication(side, loss string) func(context.Context, *command.Call) error {
	return func(ctx context.Context, c *command.Call) error {
		if err := confirm(ctx, c, "this ends replication: "+loss); err != nil {
			return err
		}
		return change(ctx, c, side+"/disable", map[string]any{}, "Replication is off.")
	}
}

func secondaryTokenCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "secondary-token", Args: "ID", Min: 1, Max: 1, Usage: "make a token that lets one secondary in",
		Help: `Makes an activation token, which lets one cluster become a secondary, once. ID is any name for it that is not in use. Anyone with the
token can get everything that is shared: hand it over as you would a password.

The secondary asks this cluster's API to redeem the token. Where it cannot reach the API, make a key there with "coffer
replication secondary public-key" and give it here: the token is then encrypted for that cluster.

Examples:

  $ coffer replication primary secondary-token eu
  $ coffer replication primary secondary-token -ttl=2h -field=wrapping_token eu
  $ coffer replication primary secondary-token -secondary-public-key=@eu.pub -field=token eu`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "ttl", Usage: "the token is void after `DURATION` (default 30m)"},
			&cli.StringFlag{Name: "secondary-public-key", Usage: "`KEY` of the secondary, @file"},
			command.FieldFlag(),
		},
	}, func(ctx context.Context, c *command.Call) error {
		body := map[string]any{"id": c.Arg(0)}
		command.SetIfGiven(c, body, "ttl", c.String("ttl"))
		key, err := c.Expand(ctx, c.String("secondary-public-key"))
		if err != nil {
			return command.Usagef("-secondary-public-key: %w", err)
		}
		command.SetIfGiven(c, body, "secondary-public-key", strings.TrimSpace(key))
		a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: apiPath + "primary/secondary-token", Body: body})
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	})
}

func filterCommand() *cli.Command {
	return command.Group("filter", "say which mounts and namespaces a secondary gets", `A filter limits what a secondary gets. ID is the one its token was made for, or its cluster id. In the mode "allow" it gets the mounts and
namespaces that are listed, in the mode "deny" all but those; policies, identities and the rest of the namespaces it sees are not
filtered. What a filter takes away is deleted on the secondary, what it gives is fetched and appears whole.

Examples:

  $ coffer replication primary filter set -mode=deny eu payments/ team-us/
  $ coffer replication primary filter get -resolved eu`,
		command.New(command.Spec{
			Name: "set", Args: "ID PATH …", Min: 1, Max: -1, Usage: "set the filter of a secondary",
			Help: `Sets the filter of a secondary, in place of the one it has. A PATH is that of a mount (auth/… for an auth method) or of a namespace, from
the root namespace on. It need not exist yet.

Examples:

  $ coffer replication primary filter set eu secret/ team-eu/
  $ coffer replication primary filter set -mode=deny eu payments/ auth/staff/`,
			Flags: []cli.Flag{&cli.StringFlag{Name: "mode", Usage: "`allow|deny`: only the paths, or all but the paths (default allow)"}},
		}, func(ctx context.Context, c *command.Call) error {
			body := map[string]any{"paths": c.Args().Slice()[1:]}
			command.SetIfGiven(c, body, "mode", c.String("mode"))
			return change(ctx, c, filterPath("primary/paths-filter", c.Arg(0)), body, "The filter is set; coffer replication primary filter get -resolved "+c.Arg(0)+" shows what it takes away.")
		}),
		command.New(command.Spec{
			Name: "get", Args: "ID", Min: 1, Max: 1, Usage: "show the filter of a secondary",
			Help: `Shows the filter of a secondary as it was set, or with -resolved the mounts and namespaces that it keeps from the secondary now.

Examples:

  $ coffer replication primary filter get eu
  $ coffer replication primary filter get -resolved eu`,
			Flags: []cli.Flag{&cli.BoolFlag{Name: "resolved", Usage: "what the filter comes to at present"}, command.FieldFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			path := "primary/paths-filter"
			if c.Bool("resolved") {
				path = "primary/dynamic-filter"
			}
			return showFilter(ctx, c, path, c.Arg(0))
		}),
		command.New(command.Spec{
			Name: "delete", Args: "ID", Min: 1, Max: 1, Usage: "remove the filter of a secondary",
			Help: `Removes the filter of a secondary: it gets everything that is shared.

Examples:

  $ coffer replication primary filter delete eu
  $ coffer replication status -watch`,
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Remove(ctx, apiPath+filterPath("primary/paths-filter", c.Arg(0)))
			if err != nil {
				return err
			}
			c.PrintWarnings(a)
			c.Sayf("Success! Removed the filter (if there was one) of: %s", c.Arg(0))
			return nil
		}))
}

func filterPath(path, id string) string { return path + "/" + url.PathEscape(id) }

func showFilter(ctx context.Context, c *command.Call, path, id string) error {
	a, err := c.Get(ctx, apiPath+filterPath(path, id))
	if command.NothingThere(err) {
		return command.ServerErrorf("there is no filter for %q: the secondary gets everything that is shared", id)
	}
	if err != nil {
		return err
	}
	return c.PrintResponse(a)
}
