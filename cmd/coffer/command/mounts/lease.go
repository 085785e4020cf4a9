package mounts

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func LeaseCommand() *cli.Command {
	return command.Group("lease", "look up, renew and revoke leases", `Commands for leases, which end the credentials the server handed out.

Examples:

  $ coffer lease lookup cloud/creds/deploy/2f6a614c
  $ coffer lease revoke -prefix cloud/creds/deploy`,
		command.New(command.Spec{
			Name: "lookup", Args: "LEASE-ID", Min: 1, Max: 1, Usage: "show a lease",
			Help: `Shows when a lease was made and when it ends.

Examples:

  $ coffer lease lookup cloud/creds/deploy/2f6a614c
  $ coffer lease lookup -field=ttl cloud/creds/deploy/2f6a614c`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Put(ctx, "sys/leases/lookup", map[string]string{"lease_id": c.Path(0)})
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}),
		command.New(command.Spec{
			Name: "renew", Args: "LEASE-ID", Min: 1, Max: 1, Usage: "make a lease last longer",
			Help: `Makes a lease last longer.

Examples:

  $ coffer lease renew cloud/creds/deploy/2f6a614c
  $ coffer lease renew -increment=1h cloud/creds/deploy/2f6a614c`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "increment", Aliases: []string{"i"}, Usage: "ask for `DURATION` from now; the server may grant less"},
				command.FieldFlag(), command.WrapFlag(),
			},
		}, func(ctx context.Context, c *command.Call) error {
			body := map[string]any{"lease_id": c.Path(0)}
			command.SetIfGiven(c, body, "increment", c.String("increment"))
			a, err := c.Put(ctx, "sys/leases/renew", body)
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}),
		command.New(command.Spec{
			Name: "revoke", Args: "LEASE-ID | PREFIX", Min: 1, Max: 1, Usage: "end a lease, or all below a path",
			Help: `Ends a lease, or with -prefix all below a path; the credentials they are for are revoked where they were made. It is certain to happen
when the command ends, and has happened with -sync. Below the path of an auth method it ends the tokens that logins there made. With
-force the leases are forgotten even if revoking fails, and the credentials may live on.

Examples:

  $ coffer lease revoke cloud/creds/deploy/2f6a614c
  $ coffer lease revoke -prefix -sync cloud/creds/deploy
  $ coffer lease revoke -prefix auth/userpass/login/ada`,
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "prefix", Usage: "the argument is a path; end all leases below it"},
				&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "forget them even if revoking fails; needs -prefix"},
				&cli.BoolFlag{Name: "sync", Usage: "wait until it is done"},
			},
		}, leaseRevoke),
		leaseListCommand(), leaseCountCommand(), leaseTidyCommand())
}

func leaseListCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list", Args: "[PREFIX]", Max: 1, Usage: "list the leases below a path",
		Help: `Lists the leases below a path, one step at a time like a directory: what ends in a slash has more below it. With -irrevocable it
lists the leases whose credentials could not be revoked, and why. Both need sudo.

Examples:

  $ coffer lease list cloud/creds/deploy
  $ coffer lease list -irrevocable`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "irrevocable", Usage: "list those that could not be revoked, of the whole namespace"},
			&cli.BoolFlag{Name: "children", Usage: "with -irrevocable, list those of namespaces below, too"},
		},
	}, func(ctx context.Context, c *command.Call) error {
		switch {
		case !c.Bool("irrevocable") && c.Bool("children"):
			return command.Usagef("-children goes with -irrevocable")
		case !c.Bool("irrevocable"):
			return leaseList(ctx, c)
		case c.Arg(0) != "":
			return command.Usagef("-irrevocable lists those of the whole namespace and takes no prefix")
		}
		return leaseIrrevocable(ctx, c)
	})
}

func leaseList(ctx context.Context, c *command.Call) error {
	a, err := c.Send(ctx, command.Request{Method: "LIST", Path: strings.TrimSuffix("sys/leases/lookup/"+c.Path(0), "/")})
	if command.NothingThere(err) {
		return command.ServerErrorf("there are no leases below %q", c.Path(0)+"/")
	}
	if err != nil {
		return err
	}
	c.PrintWarnings(a)
	return c.PrintList("Keys", command.StringsOf(a.Data()["keys"]))
}

func leaseIrrevocable(ctx context.Context, c *command.Call) error {
	query := url.Values{"type": {"irrevocable"}, "limit": {"none"}}
	if c.Bool("children") {
		query.Set("include_child_namespaces", "true")
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/leases", Query: query})
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(a.Data())
	}
	leases, _ := a.Data()["leases"].([]any)
	if len(leases) == 0 {
		c.Sayf("There are none: everything that had to be revoked was.")
		return nil
	}
	rows := make([][]string, 0, len(leases))
	for _, l := range leases {
		if m, ok := l.(map[string]any); ok {
			rows = append(rows, []string{table.Text(m["lease_id"]), table.Text(m["error"])})
		}
	}
	return c.PrintColumns([]string{"Lease", "Error"}, rows)
}

func leaseCountCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "count", Usage: "count the leases",
		Help: `Counts the leases of the namespace in use, by the accessor of the mount they are from.

Examples:

  $ coffer lease count
  $ coffer lease count -irrevocable -field=lease_count`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "irrevocable", Usage: "count only those that could not be revoked"},
			&cli.BoolFlag{Name: "children", Usage: "count those of namespaces below, too"},
			command.FieldFlag(),
		},
	}, func(ctx context.Context, c *command.Call) error {
		query := url.Values{}
		if c.Bool("irrevocable") {
			query.Set("type", "irrevocable")
		}
		if c.Bool("children") {
			query.Set("include_child_namespaces", "true")
		}
		a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/leases/count", Query: query})
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable || c.String("field") != "" {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		counts, _ := a.Data()["counts"].(map[string]any)
		rows := response.Data(counts)
		return c.PrintTable(append(rows, response.Row{Key: "total", Value: a.Data()["lease_count"]}))
	})
}

func leaseTidyCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "tidy", Usage: "mend what is known of leases, and try again what could not be revoked",
		Help: `Starts to compare the leases with their indexes, to mend what does not fit, and to revoke again what could not be revoked. It runs in
the background; the server's log tells what came of it. It does no harm at any time.

Examples:

  $ coffer lease tidy
  $ coffer lease tidy -namespace=team-a`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Put(ctx, "sys/leases/tidy", nil)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		for _, w := range a.Warnings() {
			c.Sayf("%s", table.Printable(w))
		}
		return nil
	})
}

func leaseRevoke(ctx context.Context, c *command.Call) error {
	prefix, force := c.Bool("prefix"), c.Bool("force")
	if force && !prefix {
		return command.Usagef("-force needs -prefix")
	}
	r := command.Request{Method: http.MethodPut, Path: "sys/leases/revoke", Body: map[string]any{"lease_id": c.Path(0), "sync": c.Bool("sync")}}
	switch {
	case force:
		r.Path, r.Body = "sys/leases/revoke-force/"+c.Path(0), nil
	case prefix:
		r.Path, r.Body = "sys/leases/revoke-prefix/"+c.Path(0), map[string]any{"sync": c.Bool("sync")}
	}
	a, err := c.Send(ctx, r)
	if err != nil {
		return err
	}
	c.PrintWarnings(a)
	switch {
	case prefix:
		c.Sayf("Success! Revoked any leases with prefix: %s", c.Path(0))
	case c.Bool("sync"):
		c.Sayf("Success! Revoked lease: %s", c.Path(0))
	default:
		c.Sayf("All revocation operations queued successfully!")
	}
	return nil
}
