package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/urfave/cli/v3"
)

func leaseCommand() *cli.Command {
	return group("lease", "look up, renew and revoke leases", `Commands for leases, which end the credentials the server handed out.

Examples:

  $ coffer lease lookup cloud/creds/deploy/2f6a614c
  $ coffer lease revoke -prefix cloud/creds/deploy`,
		command(spec{
			name: "lookup", args: "LEASE-ID", min: 1, max: 1, usage: "show a lease",
			help: `Shows when a lease was made and when it ends.

Examples:

  $ coffer lease lookup cloud/creds/deploy/2f6a614c
  $ coffer lease lookup -field=ttl cloud/creds/deploy/2f6a614c`,
			flags: []cli.Flag{fieldFlag()},
		}, func(ctx context.Context, c *call) error {
			a, err := c.put(ctx, "sys/leases/lookup", map[string]string{"lease_id": c.path(0)})
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}),
		command(spec{
			name: "renew", args: "LEASE-ID", min: 1, max: 1, usage: "make a lease last longer",
			help: `Makes a lease last longer.

Examples:

  $ coffer lease renew cloud/creds/deploy/2f6a614c
  $ coffer lease renew -increment=1h cloud/creds/deploy/2f6a614c`,
			flags: []cli.Flag{
				&cli.StringFlag{Name: "increment", Aliases: []string{"i"}, Usage: "ask for `DURATION` from now; the server may grant less"},
				fieldFlag(), wrapFlag(),
			},
		}, func(ctx context.Context, c *call) error {
			body := map[string]any{"lease_id": c.path(0)}
			setIfGiven(c, body, "increment", c.String("increment"))
			a, err := c.put(ctx, "sys/leases/renew", body)
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}),
		command(spec{
			name: "revoke", args: "LEASE-ID | PREFIX", min: 1, max: 1, usage: "end a lease, or all below a path",
			help: `Ends a lease, or with -prefix all below a path; the credentials they are for are revoked where they were made. It is certain to happen
when the command ends, and has happened with -sync. Below the path of an auth method it ends the tokens that logins there made. With
-force the leases are forgotten even if revoking fails, and the credentials may live on.

Examples:

  $ coffer lease revoke cloud/creds/deploy/2f6a614c
  $ coffer lease revoke -prefix -sync cloud/creds/deploy
  $ coffer lease revoke -prefix auth/userpass/login/ada`,
			flags: []cli.Flag{
				&cli.BoolFlag{Name: "prefix", Usage: "the argument is a path; end all leases below it"},
				&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "forget them even if revoking fails; needs -prefix"},
				&cli.BoolFlag{Name: "sync", Usage: "wait until it is done"},
			},
		}, leaseRevoke),
		leaseListCommand(), leaseCountCommand(), leaseTidyCommand())
}

func leaseListCommand() *cli.Command {
	return command(spec{
		name: "list", args: "[PREFIX]", max: 1, usage: "list the leases below a path",
		help: `Lists the leases below a path, one step at a time like a directory: what ends in a slash has more below it. With -irrevocable it
lists the leases whose credentials could not be revoked, and why. Both need sudo.

Examples:

  $ coffer lease list cloud/creds/deploy
  $ coffer lease list -irrevocable`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "irrevocable", Usage: "list those that could not be revoked, of the whole namespace"},
			&cli.BoolFlag{Name: "children", Usage: "with -irrevocable, list those of namespaces below, too"},
		},
	}, func(ctx context.Context, c *call) error {
		switch {
		case !c.Bool("irrevocable") && c.Bool("children"):
			return usagef("-children goes with -irrevocable")
		case !c.Bool("irrevocable"):
			return leaseList(ctx, c)
		case c.arg(0) != "":
			return usagef("-irrevocable lists those of the whole namespace and takes no prefix")
		}
		return leaseIrrevocable(ctx, c)
	})
}

func leaseList(ctx context.Context, c *call) error {
	a, err := c.send(ctx, request{method: "LIST", path: strings.TrimSuffix("sys/leases/lookup/"+c.path(0), "/")})
	if nothingThere(err) {
		return serverErrorf("there are no leases below %q", c.path(0)+"/")
	}
	if err != nil {
		return err
	}
	c.printWarnings(a)
	return c.printList("Keys", stringsOf(a.data()["keys"]))
}

func leaseIrrevocable(ctx context.Context, c *call) error {
	query := url.Values{"type": {"irrevocable"}, "limit": {"none"}}
	if c.Bool("children") {
		query.Set("include_child_namespaces", "true")
	}
	a, err := c.send(ctx, request{method: http.MethodGet, path: "sys/leases", query: query})
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printValue(a.data())
	}
	leases, _ := a.data()["leases"].([]any)
	if len(leases) == 0 {
		c.sayf("There are none: everything that had to be revoked was.")
		return nil
	}
	rows := make([][]string, 0, len(leases))
	for _, l := range leases {
		if m, ok := l.(map[string]any); ok {
			rows = append(rows, []string{text(m["lease_id"]), text(m["error"])})
		}
	}
	return c.printColumns([]string{"Lease", "Error"}, rows)
}

func leaseCountCommand() *cli.Command {
	return command(spec{
		name: "count", usage: "count the leases",
		help: `Counts the leases of the namespace in use, by the accessor of the mount they are from.

Examples:

  $ coffer lease count
  $ coffer lease count -irrevocable -field=lease_count`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "irrevocable", Usage: "count only those that could not be revoked"},
			&cli.BoolFlag{Name: "children", Usage: "count those of namespaces below, too"},
			fieldFlag(),
		},
	}, func(ctx context.Context, c *call) error {
		query := url.Values{}
		if c.Bool("irrevocable") {
			query.Set("type", "irrevocable")
		}
		if c.Bool("children") {
			query.Set("include_child_namespaces", "true")
		}
		a, err := c.send(ctx, request{method: http.MethodGet, path: "sys/leases/count", query: query})
		if err != nil {
			return err
		}
		if c.format() != formatTable || c.String("field") != "" {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		counts, _ := a.data()["counts"].(map[string]any)
		rows := dataRows(counts)
		return c.printTable(append(rows, row{"total", a.data()["lease_count"]}))
	})
}

func leaseTidyCommand() *cli.Command {
	return command(spec{
		name: "tidy", usage: "mend what is known of leases, and try again what could not be revoked",
		help: `Starts to compare the leases with their indexes, to mend what does not fit, and to revoke again what could not be revoked. It runs in
the background; the server's log tells what came of it. It does no harm at any time.

Examples:

  $ coffer lease tidy
  $ coffer lease tidy -namespace=team-a`,
	}, func(ctx context.Context, c *call) error {
		a, err := c.put(ctx, "sys/leases/tidy", nil)
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printAnswer(a)
		}
		for _, w := range a.warnings() {
			c.sayf("%s", printable(w))
		}
		return nil
	})
}

func leaseRevoke(ctx context.Context, c *call) error {
	prefix, force := c.Bool("prefix"), c.Bool("force")
	if force && !prefix {
		return usagef("-force needs -prefix")
	}
	r := request{method: http.MethodPut, path: "sys/leases/revoke", body: map[string]any{"lease_id": c.path(0), "sync": c.Bool("sync")}}
	switch {
	case force:
		r.path, r.body = "sys/leases/revoke-force/"+c.path(0), nil
	case prefix:
		r.path, r.body = "sys/leases/revoke-prefix/"+c.path(0), map[string]any{"sync": c.Bool("sync")}
	}
	a, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	c.printWarnings(a)
	switch {
	case prefix:
		c.sayf("Success! Revoked any leases with prefix: %s", c.path(0))
	case c.Bool("sync"):
		c.sayf("Success! Revoked lease: %s", c.path(0))
	default:
		c.sayf("All revocation operations queued successfully!")
	}
	return nil
}
