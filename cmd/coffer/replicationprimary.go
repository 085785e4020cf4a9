package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/urfave/cli/v3"
)

func primaryCommand() *cli.Command {
	return group("primary", "what is done on the primary cluster", `Commands for the primary: become one, let secondaries in and out, and say what each of them may have.

Examples:

  $ coffer replication primary enable
  $ coffer replication primary secondary-token eu
  $ coffer replication primary filter set -mode=deny eu payments/`,
		command(spec{
			name: "enable", usage: "make this cluster the primary",
			help: `Makes this cluster the primary of a new set. Secondaries reach it on the cluster ports of its nodes, or where
-primary-cluster-addr says if those have other addresses from outside.

Examples:

  $ coffer replication primary enable
  $ coffer replication primary enable -primary-cluster-addr=coffer-us.example.com:8201`,
			flags: []cli.Flag{clusterAddrFlag()},
		}, func(ctx context.Context, c *call) error {
			body := map[string]any{}
			setIfGiven(c, body, "primary-cluster-addr", c.String("primary-cluster-addr"))
			return c.change(ctx, "primary/enable", body, "This cluster is a primary. Let a secondary in with: coffer replication primary secondary-token ID")
		}),
		command(spec{
			name: "demote", usage: "make the primary a secondary, to promote another cluster",
			help: `Stops shared writes and makes this cluster a secondary which follows no primary yet. Its data stays. Promote a secondary next, then
make this one follow it with "coffer replication secondary update-primary".

Examples:

  $ coffer replication primary demote
  $ coffer replication status`,
		}, func(ctx context.Context, c *call) error {
			return c.change(ctx, "primary/demote", map[string]any{}, "This cluster takes no shared writes any more. Next, on the cluster to take over: coffer replication secondary promote")
		}),
		command(spec{
			name: "disable", usage: "end replication on the primary",
			help: `Ends replication. Secondaries lose the connection for good: to follow this cluster again they have to be enabled again, which wipes them.

Examples:

  $ coffer replication primary disable
  $ coffer replication primary disable -yes`,
			flags: []cli.Flag{yesFlag()},
		}, disableReplication("primary", "no secondary can connect again without being wiped")),
		secondaryTokenCommand(),
		command(spec{
			name: "revoke", args: "ID", min: 1, max: 1, usage: "shut a secondary out",
			help: `Shuts the secondary out that the token for ID has let in: it is disconnected at once, and only a new token lets it in again. An
unused token of that ID is void, too. What the secondary has stays there.

Examples:

  $ coffer replication primary revoke eu
  $ coffer replication status`,
		}, func(ctx context.Context, c *call) error {
			return c.change(ctx, "primary/revoke-secondary", map[string]any{"id": c.arg(0)}, c.arg(0)+" is shut out.")
		}),
		filterCommand())
}

func clusterAddrFlag() cli.Flag {
	return &cli.StringFlag{Name: "primary-cluster-addr", Usage: "`HOST:PORT` that secondaries are told to connect to"}
}

func disableReplication(side, loss string) func(context.Context, *call) error {
	return func(ctx context.Context, c *call) error {
		if err := c.confirm(ctx, "this ends replication: "+loss); err != nil {
			return err
		}
		return c.change(ctx, side+"/disable", map[string]any{}, "Replication is off.")
	}
}

func secondaryTokenCommand() *cli.Command {
	return command(spec{
		name: "secondary-token", args: "ID", min: 1, max: 1, usage: "make a token that lets one secondary in",
		help: `Makes an activation token, which lets one cluster become a secondary, once. ID is any name for it that is not in use. Anyone with the
token can get everything that is shared: hand it over as you would a password.

The secondary asks this cluster's API to redeem the token. Where it cannot reach the API, make a key there with "coffer
replication secondary public-key" and give it here: the token is then encrypted for that cluster.

Examples:

  $ coffer replication primary secondary-token eu
  $ coffer replication primary secondary-token -ttl=2h -field=wrapping_token eu
  $ coffer replication primary secondary-token -secondary-public-key=@eu.pub -field=token eu`,
		flags: []cli.Flag{
			&cli.StringFlag{Name: "ttl", Usage: "the token is void after `DURATION` (default 30m)"},
			&cli.StringFlag{Name: "secondary-public-key", Usage: "`KEY` of the secondary, @file"},
			fieldFlag(),
		},
	}, func(ctx context.Context, c *call) error {
		body := map[string]any{"id": c.arg(0)}
		setIfGiven(c, body, "ttl", c.String("ttl"))
		key, err := c.expand(ctx, c.String("secondary-public-key"))
		if err != nil {
			return usagef("-secondary-public-key: %w", err)
		}
		setIfGiven(c, body, "secondary-public-key", strings.TrimSpace(key))
		a, err := c.send(ctx, request{method: http.MethodPost, path: replicationPath + "primary/secondary-token", body: body})
		if err != nil {
			return err
		}
		return c.printAnswer(a)
	})
}

func filterCommand() *cli.Command {
	return group("filter", "say which mounts and namespaces a secondary gets", `A filter limits what a secondary gets. ID is the one its token was made for, or its cluster id. In the mode "allow" it gets the mounts and
namespaces that are listed, in the mode "deny" all but those; policies, identities and the rest of the namespaces it sees are not
filtered. What a filter takes away is deleted on the secondary, what it gives is fetched and appears whole.

Examples:

  $ coffer replication primary filter set -mode=deny eu payments/ team-us/
  $ coffer replication primary filter get -resolved eu`,
		command(spec{
			name: "set", args: "ID PATH …", min: 1, max: -1, usage: "set the filter of a secondary",
			help: `Sets the filter of a secondary, in place of the one it has. A PATH is that of a mount (auth/… for an auth method) or of a namespace, from
the root namespace on. It need not exist yet.

Examples:

  $ coffer replication primary filter set eu secret/ team-eu/
  $ coffer replication primary filter set -mode=deny eu payments/ auth/staff/`,
			flags: []cli.Flag{&cli.StringFlag{Name: "mode", Usage: "`allow|deny`: only the paths, or all but the paths (default allow)"}},
		}, func(ctx context.Context, c *call) error {
			body := map[string]any{"paths": c.Args().Slice()[1:]}
			setIfGiven(c, body, "mode", c.String("mode"))
			return c.change(ctx, filterPath("primary/paths-filter", c.arg(0)), body, "The filter is set; coffer replication primary filter get -resolved "+c.arg(0)+" shows what it takes away.")
		}),
		command(spec{
			name: "get", args: "ID", min: 1, max: 1, usage: "show the filter of a secondary",
			help: `Shows the filter of a secondary as it was set, or with -resolved the mounts and namespaces that it keeps from the secondary now.

Examples:

  $ coffer replication primary filter get eu
  $ coffer replication primary filter get -resolved eu`,
			flags: []cli.Flag{&cli.BoolFlag{Name: "resolved", Usage: "what the filter comes to at present"}, fieldFlag()},
		}, func(ctx context.Context, c *call) error {
			path := "primary/paths-filter"
			if c.Bool("resolved") {
				path = "primary/dynamic-filter"
			}
			return c.showFilter(ctx, path, c.arg(0))
		}),
		command(spec{
			name: "delete", args: "ID", min: 1, max: 1, usage: "remove the filter of a secondary",
			help: `Removes the filter of a secondary: it gets everything that is shared.

Examples:

  $ coffer replication primary filter delete eu
  $ coffer replication status -watch`,
		}, func(ctx context.Context, c *call) error {
			a, err := c.remove(ctx, replicationPath+filterPath("primary/paths-filter", c.arg(0)))
			if err != nil {
				return err
			}
			c.printWarnings(a)
			c.sayf("Success! Removed the filter (if there was one) of: %s", c.arg(0))
			return nil
		}))
}

func filterPath(path, id string) string { return path + "/" + url.PathEscape(id) }

func (c *call) showFilter(ctx context.Context, path, id string) error {
	a, err := c.get(ctx, replicationPath+filterPath(path, id))
	if nothingThere(err) {
		return serverErrorf("there is no filter for %q: the secondary gets everything that is shared", id)
	}
	if err != nil {
		return err
	}
	return c.printAnswer(a)
}
