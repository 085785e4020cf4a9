package mounts

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

const quotaPath = "sys/quotas/"

// quotaTypes are the types there are, in the order they are listed.
var quotaTypes = []string{"rate-limit", "lease-count", "storage"}

func QuotaCommand() *cli.Command {
	return command.Group("quota", "limit requests, leases and stored bytes", `Commands for quotas: limits of the requests that clients may send, of the leases and tokens there may be, and of what may be stored. A
TYPE is "rate-limit", "lease-count" or "storage". Quotas of all namespaces are kept in the root namespace.

Examples:

  $ coffer quota write rate-limit shop rate=100 path=secret/
  $ coffer quota list`,
		command.New(command.Spec{
			Name: "list", Args: "[TYPE]", Max: 1, Usage: "list the quotas",
			Help: `Lists the names of all quotas, or of those of one type.

Examples:

  $ coffer quota list
  $ coffer quota list rate-limit`,
		}, quotaList),
		command.New(command.Spec{
			Name: "read", Args: "TYPE NAME", Min: 2, Max: 2, Usage: "show a quota",
			Help: `Shows a quota.

Examples:

  $ coffer quota read rate-limit shop
  $ coffer quota read -field=max_leases lease-count deploy`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, quotaRead),
		command.New(command.Spec{
			Name: "write", Args: "TYPE NAME KEY=VALUE …", Min: 3, Max: -1, Usage: "create or replace a quota",
			Help: `Creates a quota, or replaces the one of this name. What is not given gets its default.

  path=PATH         what it limits: a namespace, a mount, or what is below a path that ends in *; everything if left out
  role=NAME         only logins with this role; path has to be that of an auth method
  inheritable=true  of a namespace: count those below it, too
  rate=N            of a rate-limit: requests that one client may send in each interval
  interval=1s       of a rate-limit: the interval
  block_interval=0  of a rate-limit: how long a client that sent too many gets nothing at all
  max_leases=N      of a lease-count: leases and tokens there may be at once, those of wrapped responses, too
  max_bytes=N       of a storage quota: bytes of key/value secrets, cubbyholes and wrapped responses, as stored

Examples:

  $ coffer quota write rate-limit shop rate=100 interval=10s path=secret/
  $ coffer quota write lease-count deploy max_leases=500 path=cloud/
  $ coffer quota write storage team max_bytes=50000000 path=team/ inheritable=true`,
		}, quotaWrite),
		command.New(command.Spec{
			Name: "delete", Args: "TYPE NAME", Min: 2, Max: 2, Usage: "delete a quota",
			Help: `Deletes a quota: what it limited is free at once.

Examples:

  $ coffer quota delete rate-limit shop
  $ coffer quota delete lease-count deploy`,
		}, quotaDelete),
		command.New(command.Spec{
			Name: "config", Args: "[KEY=VALUE …]", Max: -1, Usage: "show or change what concerns all quotas",
			Help: `Shows what concerns all quotas, or changes what is given of it: rate_limit_exempt_paths and absolute_rate_limit_exempt_paths, which
no rate limit counts, enable_rate_limit_response_headers and enable_rate_limit_audit_logging.

Examples:

  $ coffer quota config
  $ coffer quota config enable_rate_limit_response_headers=true`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, quotaConfig))
}

// quotaType checks the type a quota was named with.
func quotaType(c *command.Call) (string, error) {
	kind := c.Arg(0)
	if !slices.Contains(quotaTypes, kind) {
		return "", command.Usagef("%q is no type of quotas; there are %s", kind, strings.Join(quotaTypes, ", "))
	}
	return kind, nil
}

func quotaList(ctx context.Context, c *command.Call) error {
	kinds := quotaTypes
	if c.Arg(0) != "" {
		kind, err := quotaType(c)
		if err != nil {
			return err
		}
		kinds = []string{kind}
	}
	found := map[string][]string{}
	var rows [][]string
	for _, kind := range kinds {
		a, err := c.Send(ctx, command.Request{Method: "LIST", Path: quotaPath + kind})
		if command.NothingThere(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, name := range command.StringsOf(a.Data()["keys"]) {
			found[kind] = append(found[kind], name)
			rows = append(rows, []string{kind, table.Printable(name)})
		}
	}
	switch {
	case len(rows) == 0:
		return command.ServerErrorf("there are no quotas")
	case c.Format() != command.FormatTable:
		return c.PrintValue(found)
	}
	return c.PrintColumns([]string{"Type", "Name"}, rows)
}

func quotaRead(ctx context.Context, c *command.Call) error {
	kind, err := quotaType(c)
	if err != nil {
		return err
	}
	a, err := c.Get(ctx, quotaPath+kind+"/"+c.Path(1))
	if command.NothingThere(err) {
		return command.ServerErrorf("there is no %s quota %q; coffer quota list shows those there are", kind, c.Path(1))
	}
	if err != nil {
		return err
	}
	return c.PrintResponse(a)
}

func quotaWrite(ctx context.Context, c *command.Call) error {
	kind, err := quotaType(c)
	if err != nil {
		return err
	}
	data, err := c.ParseData(ctx, c.Args().Slice()[2:])
	if err != nil {
		return err
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: quotaPath + kind + "/" + c.Path(1), Body: data})
	if err != nil {
		return err
	}
	c.PrintWarnings(a)
	c.Sayf("Success! Wrote the %s quota: %s", kind, c.Path(1))
	return nil
}

func quotaDelete(ctx context.Context, c *command.Call) error {
	kind, err := quotaType(c)
	if err != nil {
		return err
	}
	a, err := c.Remove(ctx, quotaPath+kind+"/"+c.Path(1))
	if err != nil {
		return err
	}
	c.PrintWarnings(a)
	c.Sayf("Success! Deleted the %s quota (if it existed): %s", kind, c.Path(1))
	return nil
}

func quotaConfig(ctx context.Context, c *command.Call) error {
	if c.Args().Len() == 0 {
		a, err := c.Get(ctx, quotaPath+"config")
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	}
	data, err := c.ParseData(ctx, c.Args().Slice())
	if err != nil {
		return err
	}
	if _, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: quotaPath + "config", Body: data}); err != nil {
		return err
	}
	c.Sayf("Success! Changed what concerns all quotas.")
	return nil
}
