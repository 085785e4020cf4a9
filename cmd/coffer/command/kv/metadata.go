package kv

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func metadataCommand() *cli.Command {
	settings := func(more ...cli.Flag) []cli.Flag {
		return append([]cli.Flag{
			mountFlag(),
			&cli.IntFlag{Name: "max-versions", Usage: "keep `N` versions; 0 leaves it to the engine"},
			&cli.BoolFlag{Name: "cas-required", Usage: "refuse writes without check-and-set"},
			&cli.StringFlag{Name: "delete-version-after", Usage: "delete a version `DURATION` after it was written; 0s never"},
			&cli.StringSliceFlag{Name: "custom-metadata", Usage: "`KEY=VALUE` to keep beside the secret; repeatable"},
		}, more...)
	}
	return command.Group("metadata", "versions and settings of a secret", `Commands for what is kept about a secret beside its data. Version 2 of the engine only.

Examples:

  $ coffer kv metadata get secret/app
  $ coffer kv metadata put -max-versions=5 secret/app`,
		command.New(command.Spec{
			Name: "get", Args: "PATH", Min: 1, Max: 1, Usage: "show the versions and settings",
			Help: `Shows the settings of a secret and when each of its versions was written or deleted.

Examples:

  $ coffer kv metadata get secret/app
  $ coffer kv metadata get -mount=secret -field=current_version app`,
			Flags: []cli.Flag{mountFlag(), command.FieldFlag(), command.WrapFlag()},
		}, metadataGet),
		command.New(command.Spec{
			Name: "put", Args: "PATH", Min: 1, Max: 1, Usage: "set the settings",
			Help: `Sets the settings given. Custom metadata is replaced as a whole.

Examples:

  $ coffer kv metadata put -max-versions=5 -cas-required secret/app
  $ coffer kv metadata put -mount=secret -custom-metadata=owner=payments app`,
			Flags: settings(),
		}, metadataWrite(http.MethodPut)),
		command.New(command.Spec{
			Name: "patch", Args: "PATH", Min: 1, Max: 1, Usage: "change some settings and keep the others",
			Help: `Changes the settings given and keeps the others, also among the custom metadata.

Examples:

  $ coffer kv metadata patch -custom-metadata=owner=payments secret/app
  $ coffer kv metadata patch -mount=secret -remove-custom-metadata=owner app`,
			Flags: settings(&cli.StringSliceFlag{Name: "remove-custom-metadata", Usage: "`KEY` to remove; repeatable"}),
		}, metadataWrite(http.MethodPatch)),
		command.New(command.Spec{
			Name: "delete", Args: "PATH", Min: 1, Max: 1, Usage: "remove a secret with all its versions",
			Help: `Removes a secret with all its versions and settings. There is no way back.

Examples:

  $ coffer kv metadata delete secret/app
  $ coffer kv metadata delete -mount=secret app`,
			Flags: []cli.Flag{mountFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			p, err := versionedPath(ctx, c)
			if err != nil {
				return err
			}
			if _, err := c.Remove(ctx, p.At("metadata")); err != nil {
				return err
			}
			c.Sayf("Success! Data deleted (if it existed) at: %s", p.At("metadata"))
			return nil
		}))
}

func metadataGet(ctx context.Context, c *command.Call) error {
	p, err := versionedPath(ctx, c)
	if err != nil {
		return err
	}
	a, err := c.Get(ctx, p.At("metadata"))
	if command.StatusOf(err) == http.StatusNotFound {
		return p.nothingAt("metadata")
	}
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable || c.String("field") != "" || a.Secret == nil || a.Secret.WrapInfo != nil {
		return c.PrintResponse(a)
	}
	versions, _ := a.Data()["versions"].(map[string]any)
	rows := response.Data(a.Data())
	rows = slices.DeleteFunc(rows, func(r response.Row) bool { return r.Key == "versions" })
	printTitle(c, "Metadata Path", len("Metadata Path"))
	fmt.Fprintf(c.Out, "%s\n\n", table.Printable(p.At("metadata")))
	if err := printTitled(c, "Metadata", rows); err != nil {
		return err
	}
	return printVersions(c, versions)
}

// printVersions prints a table for each version, oldest first.
func printVersions(c *command.Call, versions map[string]any) error {
	numbers := make([]int, 0, len(versions))
	for text := range versions {
		if n, err := strconv.Atoi(text); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		version, _ := versions[strconv.Itoa(n)].(map[string]any)
		fmt.Fprintln(c.Out)
		if err := printTitled(c, fmt.Sprintf("Version %d", n), response.Data(version)); err != nil {
			return err
		}
	}
	return nil
}

// metadataWrite sets settings with the method PUT or PATCH.
func metadataWrite(method string) func(context.Context, *command.Call) error {
	return func(ctx context.Context, c *command.Call) error {
		body := map[string]any{}
		command.SetIfGiven(c, body, "max-versions", c.Int("max-versions"))
		command.SetIfGiven(c, body, "cas-required", c.Bool("cas-required"))
		command.SetIfGiven(c, body, "delete-version-after", c.String("delete-version-after"))
		custom := map[string]any{}
		given, err := command.KeyValues("custom-metadata", c.StringSlice("custom-metadata"))
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
		p, err := versionedPath(ctx, c)
		if err != nil {
			return err
		}
		a, err := c.Send(ctx, command.Request{Method: method, Path: p.At("metadata"), Body: body})
		if err != nil {
			return err
		}
		return c.PrintWritten(a, p.At("metadata"))
	}
}
