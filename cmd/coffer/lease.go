package main

import (
	"context"
	"net/http"

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
				fieldFlag(),
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
			help: `Ends a lease, or with -prefix all below a path; the credentials they are for are revoked where they were made. With -force the leases
are forgotten even if that fails, and the credentials may live on.

Examples:

  $ coffer lease revoke cloud/creds/deploy/2f6a614c
  $ coffer lease revoke -prefix cloud/creds/deploy`,
			flags: []cli.Flag{
				&cli.BoolFlag{Name: "prefix", Usage: "the argument is a path; end all leases below it"},
				&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "forget them even if revoking fails; needs -prefix"},
				&cli.BoolFlag{Name: "sync", Usage: "wait until it is done"},
			},
		}, leaseRevoke))
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
