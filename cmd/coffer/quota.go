package main

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

const quotaPath = "sys/quotas/"

// quotaTypes are the types there are, in the order they are listed.
var quotaTypes = []string{"rate-limit", "lease-count", "storage"}

func quotaCommand() *cli.Command {
	return group("quota", "limit requests, leases and stored bytes", `Commands for quotas: limits of the requests that clients may send, of the leases and tokens there may be, and of what may be stored. A
TYPE is "rate-limit", "lease-count" or "storage". Quotas of all namespaces are kept in the root namespace.

Examples:

  $ coffer quota write rate-limit shop rate=100 path=secret/
  $ coffer quota list`,
		command(spec{
			name: "list", args: "[TYPE]", max: 1, usage: "list the quotas",
			help: `Lists the names of all quotas, or of those of one type.

Examples:

  $ coffer quota list
  $ coffer quota list rate-limit`,
		}, quotaList),
		command(spec{
			name: "read", args: "TYPE NAME", min: 2, max: 2, usage: "show a quota",
			help: `Shows a quota.

Examples:

  $ coffer quota read rate-limit shop
  $ coffer quota read -field=max_leases lease-count deploy`,
			flags: []cli.Flag{fieldFlag()},
		}, quotaRead),
		command(spec{
			name: "write", args: "TYPE NAME KEY=VALUE …", min: 3, max: -1, usage: "create or replace a quota",
			help: `Creates a quota, or replaces the one of this name. What is not given gets its default.

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
		command(spec{
			name: "delete", args: "TYPE NAME", min: 2, max: 2, usage: "delete a quota",
			help: `Deletes a quota: what it limited is free at once.

Examples:

  $ coffer quota delete rate-limit shop
  $ coffer quota delete lease-count deploy`,
		}, quotaDelete),
		command(spec{
			name: "config", args: "[KEY=VALUE …]", max: -1, usage: "show or change what concerns all quotas",
			help: `Shows what concerns all quotas, or changes what is given of it: rate_limit_exempt_paths and absolute_rate_limit_exempt_paths, which
no rate limit counts, enable_rate_limit_response_headers and enable_rate_limit_audit_logging.

Examples:

  $ coffer quota config
  $ coffer quota config enable_rate_limit_response_headers=true`,
			flags: []cli.Flag{fieldFlag()},
		}, quotaConfig))
}

// quotaType checks the type a quota was named with.
func (c *call) quotaType() (string, error) {
	kind := c.arg(0)
	if !slices.Contains(quotaTypes, kind) {
		return "", usagef("%q is no type of quotas; there are %s", kind, strings.Join(quotaTypes, ", "))
	}
	return kind, nil
}

func quotaList(ctx context.Context, c *call) error {
	kinds := quotaTypes
	if c.arg(0) != "" {
		kind, err := c.quotaType()
		if err != nil {
			return err
		}
		kinds = []string{kind}
	}
	found := map[string][]string{}
	var rows [][]string
	for _, kind := range kinds {
		a, err := c.send(ctx, request{method: "LIST", path: quotaPath + kind})
		if nothingThere(err) {
			continue
		}
		if err != nil {
			return err
		}
		for _, name := range stringsOf(a.data()["keys"]) {
			found[kind] = append(found[kind], name)
			rows = append(rows, []string{kind, printable(name)})
		}
	}
	switch {
	case len(rows) == 0:
		return serverErrorf("there are no quotas")
	case c.format() != formatTable:
		return c.printValue(found)
	}
	return c.printColumns([]string{"Type", "Name"}, rows)
}

func quotaRead(ctx context.Context, c *call) error {
	kind, err := c.quotaType()
	if err != nil {
		return err
	}
	a, err := c.get(ctx, quotaPath+kind+"/"+c.path(1))
	if nothingThere(err) {
		return serverErrorf("there is no %s quota %q; coffer quota list shows those there are", kind, c.path(1))
	}
	if err != nil {
		return err
	}
	return c.printAnswer(a)
}

func quotaWrite(ctx context.Context, c *call) error {
	kind, err := c.quotaType()
	if err != nil {
		return err
	}
	data, err := c.parseData(ctx, c.Args().Slice()[2:])
	if err != nil {
		return err
	}
	a, err := c.send(ctx, request{method: http.MethodPost, path: quotaPath + kind + "/" + c.path(1), body: data})
	if err != nil {
		return err
	}
	c.printWarnings(a)
	c.sayf("Success! Wrote the %s quota: %s", kind, c.path(1))
	return nil
}

func quotaDelete(ctx context.Context, c *call) error {
	kind, err := c.quotaType()
	if err != nil {
		return err
	}
	a, err := c.remove(ctx, quotaPath+kind+"/"+c.path(1))
	if err != nil {
		return err
	}
	c.printWarnings(a)
	c.sayf("Success! Deleted the %s quota (if it existed): %s", kind, c.path(1))
	return nil
}

func quotaConfig(ctx context.Context, c *call) error {
	if c.Args().Len() == 0 {
		a, err := c.get(ctx, quotaPath+"config")
		if err != nil {
			return err
		}
		return c.printAnswer(a)
	}
	data, err := c.parseData(ctx, c.Args().Slice())
	if err != nil {
		return err
	}
	if _, err := c.send(ctx, request{method: http.MethodPost, path: quotaPath + "config", body: data}); err != nil {
		return err
	}
	c.sayf("Success! Changed what concerns all quotas.")
	return nil
}
