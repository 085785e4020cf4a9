package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/urfave/cli/v3"
)

func kvMetadataCommand() *cli.Command {
	settings := func(more ...cli.Flag) []cli.Flag {
		return append([]cli.Flag{
			mountFlag(),
			&cli.IntFlag{Name: "max-versions", Usage: "keep `N` versions; 0 leaves it to the engine"},
			&cli.BoolFlag{Name: "cas-required", Usage: "refuse writes without check-and-set"},
			&cli.StringFlag{Name: "delete-version-after", Usage: "delete a version `DURATION` after it was written; 0s never"},
			&cli.StringSliceFlag{Name: "custom-metadata", Usage: "`KEY=VALUE` to keep beside the secret; repeatable"},
		}, more...)
	}
	return group("metadata", "versions and settings of a secret", `Commands for what is kept about a secret beside its data. Version 2 of the engine only.

Examples:

  $ coffer kv metadata get secret/app
  $ coffer kv metadata put -max-versions=5 secret/app`,
		command(spec{
			name: "get", args: "PATH", min: 1, max: 1, usage: "show the versions and settings",
			help: `Shows the settings of a secret and when each of its versions was written or deleted.

Examples:

  $ coffer kv metadata get secret/app
  $ coffer kv metadata get -mount=secret -field=current_version app`,
			flags: []cli.Flag{mountFlag(), fieldFlag(), wrapFlag()},
		}, metadataGet),
		command(spec{
			name: "put", args: "PATH", min: 1, max: 1, usage: "set the settings",
			help: `Sets the settings given. Custom metadata is replaced as a whole.

Examples:

  $ coffer kv metadata put -max-versions=5 -cas-required secret/app
  $ coffer kv metadata put -mount=secret -custom-metadata=owner=payments app`,
			flags: settings(),
		}, metadataWrite(http.MethodPut)),
		command(spec{
			name: "patch", args: "PATH", min: 1, max: 1, usage: "change some settings and keep the others",
			help: `Changes the settings given and keeps the others, also among the custom metadata.

Examples:

  $ coffer kv metadata patch -custom-metadata=owner=payments secret/app
  $ coffer kv metadata patch -mount=secret -remove-custom-metadata=owner app`,
			flags: settings(&cli.StringSliceFlag{Name: "remove-custom-metadata", Usage: "`KEY` to remove; repeatable"}),
		}, metadataWrite(http.MethodPatch)),
		command(spec{
			name: "delete", args: "PATH", min: 1, max: 1, usage: "remove a secret with all its versions",
			help: `Removes a secret with all its versions and settings. There is no way back.

Examples:

  $ coffer kv metadata delete secret/app
  $ coffer kv metadata delete -mount=secret app`,
			flags: []cli.Flag{mountFlag()},
		}, func(ctx context.Context, c *call) error {
			p, err := c.kvPath2(ctx)
			if err != nil {
				return err
			}
			if _, err := c.remove(ctx, p.at("metadata")); err != nil {
				return err
			}
			c.sayf("Success! Data deleted (if it existed) at: %s", p.at("metadata"))
			return nil
		}))
}

func metadataGet(ctx context.Context, c *call) error {
	p, err := c.kvPath2(ctx)
	if err != nil {
		return err
	}
	a, err := c.get(ctx, p.at("metadata"))
	if statusOf(err) == http.StatusNotFound {
		return p.nothingAt("metadata")
	}
	if err != nil {
		return err
	}
	if c.format() != formatTable || c.String("field") != "" || a.secret == nil || a.secret.WrapInfo != nil {
		return c.printAnswer(a)
	}
	versions, _ := a.data()["versions"].(map[string]any)
	rows := dataRows(a.data())
	rows = slices.DeleteFunc(rows, func(r row) bool { return r.key == "versions" })
	c.printTitle("Metadata Path", len("Metadata Path"))
	fmt.Fprintf(c.out, "%s\n\n", printable(p.at("metadata")))
	if err := c.printTitled("Metadata", rows); err != nil {
		return err
	}
	return c.printVersions(versions)
}

// printVersions prints a table for each version, oldest first.
func (c *call) printVersions(versions map[string]any) error {
	numbers := make([]int, 0, len(versions))
	for text := range versions {
		if n, err := strconv.Atoi(text); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		version, _ := versions[strconv.Itoa(n)].(map[string]any)
		fmt.Fprintln(c.out)
		if err := c.printTitled(fmt.Sprintf("Version %d", n), dataRows(version)); err != nil {
			return err
		}
	}
	return nil
}

// metadataWrite sets settings with the method PUT or PATCH.
func metadataWrite(method string) func(context.Context, *call) error {
	return func(ctx context.Context, c *call) error {
		body := map[string]any{}
		setIfGiven(c, body, "max-versions", c.Int("max-versions"))
		setIfGiven(c, body, "cas-required", c.Bool("cas-required"))
		setIfGiven(c, body, "delete-version-after", c.String("delete-version-after"))
		custom := map[string]any{}
		given, err := keyValues("custom-metadata", c.StringSlice("custom-metadata"))
		if err != nil {
			return err
		}
		for k, v := range given {
			custom[k] = v
		}
		for _, k := range c.StringSlice("remove-custom-metadata") {
			custom[k] = nil
		}
		if len(custom) > 0 {
			body["custom_metadata"] = custom
		}
		p, err := c.kvPath2(ctx)
		if err != nil {
			return err
		}
		a, err := c.send(ctx, request{method: method, path: p.at("metadata"), body: body})
		if err != nil {
			return err
		}
		return c.printWritten(a, p.at("metadata"))
	}
}
