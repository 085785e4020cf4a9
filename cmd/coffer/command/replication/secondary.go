package replication

import (
	"context"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

func secondaryCommand() *cli.Command {
	return command.Group("secondary", "what is done on a secondary cluster", `Commands for a secondary: follow a primary, take its place, or stop following it.

Examples:

  $ coffer replication secondary enable
  $ coffer replication secondary promote`,
		command.New(command.Spec{
			Name: "enable", Args: "[TOKEN | -]", Max: 1, Usage: "wipe this cluster and let it follow a primary",
			Help: `Makes this cluster a secondary of the primary that made TOKEN. The token is redeemed first; if that works, everything this cluster has is
deleted, your own token included. Its seal and its unseal keys stay. Without an argument the token is asked for and not shown.

-primary-ca-file and -primary-ca-path are read by the server, from its own disk: they say whom it trusts as the primary's API. Without them it trusts
what its system trusts.

Examples:

  $ coffer replication secondary enable
  $ coffer replication secondary enable -yes -primary-ca-file=/etc/coffer/primary-ca.pem - <token`,
			Flags: append(tokenFlags(), yesFlag()),
		}, func(ctx context.Context, c *command.Call) error {
			if err := confirm(ctx, c, "this deletes everything that this cluster has"); err != nil {
				return err
			}
			body, err := activation(ctx, c)
			if err != nil {
				return err
			}
			return change(ctx, c, "secondary/enable", body, "This cluster is a secondary. Watch it being filled with: coffer replication status -watch")
		}),
		command.New(command.Spec{
			Name: "promote", Usage: "make this secondary the primary",
			Help: `Makes this cluster the primary. That takes the final word of its primary: it was demoted, and all that it wrote is here. A primary
that does not answer has not said it. -force promotes all the same, and what has not arrived is lost: it is for a primary that is gone.
The response says what was last heard of it, and when. The new primary announces itself to the old one until that takes no writes any more.

To wait for the final word, look at primary_final in "coffer replication status"; do not repeat promote until it succeeds.

The other clusters of the set need new tokens for "coffer replication secondary update-primary"; nothing is wiped by that.

Examples:

  $ coffer replication status -field=primary_final
  $ coffer replication secondary promote
  $ coffer replication secondary promote -force -primary-cluster-addr=coffer-eu.example.com:8201`,
			Flags: []cli.Flag{clusterAddrFlag(), &cli.BoolFlag{Name: "force", Usage: "without the primary's final word, even if writes are lost by it"}, yesFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			body := map[string]any{}
			command.SetIfGiven(c, body, "primary-cluster-addr", c.String("primary-cluster-addr"))
			command.SetIfGiven(c, body, "force", c.Bool("force"))
			if c.Bool("force") {
				if err := confirm(ctx, c, "this loses what the primary wrote and this cluster does not have yet"); err != nil {
					return err
				}
			}
			return change(ctx, c, "secondary/promote", body, "This cluster is the primary. Others follow it with: coffer replication secondary update-primary")
		}),
		command.New(command.Spec{
			Name: "disable", Usage: "end replication on a secondary",
			Help: `Ends replication here. The cluster keeps what it has and goes on by itself; to follow a primary again it has to be wiped.

Examples:

  $ coffer replication secondary disable
  $ coffer replication secondary disable -yes`,
			Flags: []cli.Flag{yesFlag()},
		}, disableReplication("secondary", "this cluster cannot follow a primary again without being wiped")),
		updatePrimaryCommand(),
		command.New(command.Spec{
			Name: "public-key", Usage: "make a key that a token can be encrypted for",
			Help: `Makes a key pair and prints the public key. A token made for it is encrypted for this cluster, and redeemed without asking the
primary's API. Each key is for one token; the one made before is forgotten.

Examples:

  $ coffer replication secondary public-key
  $ coffer replication secondary public-key -field=secondary_public_key >eu.pub`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: apiPath + "secondary/generate-public-key", Body: map[string]any{}})
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}),
		command.New(command.Spec{
			Name: "filter", Args: "[ID]", Max: 1, Usage: "show what the primary keeps from this cluster",
			Help: `Shows the mounts and namespaces that the primary's filter keeps from this cluster. ID is that of this cluster, which need not be given.

Examples:

  $ coffer replication secondary filter
  $ coffer replication secondary filter -format=json`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, secondaryFilter))
}

func tokenFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "primary-api-addr", Usage: "`URL` of the primary's API, in place of the one in the token"},
		&cli.StringFlag{Name: "primary-ca-file", Usage: "`FILE` on the server with the CA of the primary's API"},
		&cli.StringFlag{Name: "primary-ca-path", Usage: "`DIR` on the server with such files"},
	}
}

// activation is the body of a request that redeems an activation token.
func activation(ctx context.Context, c *command.Call) (map[string]any, error) {
	token, err := c.ReadSecret(ctx, c.Arg(0), "activation token")
	if err != nil {
		return nil, err
	}
	body := map[string]any{"token": token}
	command.SetIfGiven(c, body, "primary-api-addr", c.String("primary-api-addr"))
	for _, field := range []string{"ca_file", "ca_path"} {
		if file := c.String("primary-" + strings.ReplaceAll(field, "_", "-")); file != "" {
			body[field] = file
		}
	}
	return body, nil
}

func updatePrimaryCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "update-primary", Args: "[TOKEN | -]", Max: 1, Usage: "follow another primary, without a wipe",
		Help: `Makes this secondary follow another cluster of the same set, or the same one at other addresses. Nothing is wiped.

With a TOKEN of the new primary its trust is renewed: after a promotion this is what is needed. With -update-primary-addrs the cluster
addresses are tried one after the other, and the first that proves to be of the set is used. -forget makes it follow no primary.

Examples:

  $ coffer replication secondary update-primary - <token
  $ coffer replication secondary update-primary -update-primary-addrs=10.0.0.7:8201 -update-primary-addrs=10.0.0.8:8201
  $ coffer replication secondary update-primary -forget`,
		Flags: append(tokenFlags(),
			&cli.StringSliceFlag{Name: "update-primary-addrs", Usage: "`HOST:PORT` of a node of the primary; repeatable"},
			&cli.BoolFlag{Name: "forget", Usage: "forget the primary"}),
	}, updatePrimary)
}

func updatePrimary(ctx context.Context, c *command.Call) error {
	addrs := splitAll(c.StringSlice("update-primary-addrs"))
	given := 0
	for _, is := range []bool{c.Arg(0) != "", len(addrs) > 0, c.Bool("forget")} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return command.Usagef("a token, -update-primary-addrs and -forget exclude each other")
	case c.Bool("forget"):
		return change(ctx, c, "secondary/update-primary", map[string]any{"token": ""}, "This cluster follows no primary.")
	case len(addrs) > 0:
		return change(ctx, c, "secondary/update-primary", map[string]any{"update_primary_addrs": addrs}, "This cluster follows the primary at its new address.")
	}
	body, err := activation(ctx, c)
	if err != nil {
		return err
	}
	return change(ctx, c, "secondary/update-primary", body, "This cluster follows the new primary; coffer replication status shows how it is doing.")
}

// splitAll splits each value at its commas.
func splitAll(values []string) []string {
	var all []string
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}

func secondaryFilter(ctx context.Context, c *command.Call) error {
	id := c.Arg(0)
	if id == "" {
		s, _, err := fetchStatus(ctx, c)
		if err != nil {
			return err
		}
		if id = s.ClusterID; id == "" || s.Mode != "secondary" {
			return command.ServerErrorf("this cluster is no secondary")
		}
	}
	return showFilter(ctx, c, "secondary/dynamic-filter", id)
}
