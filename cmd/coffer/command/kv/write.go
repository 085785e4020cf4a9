package kv

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func casFlag() cli.Flag {
	return &cli.IntFlag{Name: "cas", Value: -1, HideDefault: true, Usage: "write only if the newest version is `N`; 0 only if there is none"}
}

func putCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "put", Args: "PATH DATA …", Min: 1, Max: -1, Usage: "write a secret",
		Help: `Writes a secret, replacing all of its data; version 2 keeps the old data as an older version. DATA is KEY=VALUE, KEY=@FILE,
KEY=- for stdin, @FILE with a JSON object, or - for a JSON object on stdin.

Examples:

  $ coffer kv put -mount=secret app user=app password=-
  $ coffer kv put -cas=3 secret/app @app.json`,
		Flags: []cli.Flag{mountFlag(), casFlag(), command.FieldFlag(), command.WrapFlag()},
	}, put)
}

func put(ctx context.Context, c *command.Call) error {
	data, err := parseData(ctx, c)
	if err != nil {
		return err
	}
	p, err := pathArg(ctx, c)
	if err != nil {
		return err
	}
	if p.Version == 1 {
		if c.IsSet("cas") {
			return command.Usagef("-cas needs version 2 of the key/value engine; %s has version 1", p.Mount)
		}
		a, err := c.Put(ctx, p.At("data"), data)
		if err != nil {
			return err
		}
		return c.PrintWritten(a, p.At("data"))
	}
	a, err := c.Put(ctx, p.At("data"), writeBody(c, data, c.Int("cas")))
	if err != nil {
		return err
	}
	return printVersion(c, p, a)
}

// parseData reads the data after the path.
func parseData(ctx context.Context, c *command.Call) (map[string]any, error) {
	data, err := c.ParseData(ctx, c.Args().Tail())
	if err == nil && len(data) == 0 {
		err = command.Usagef("there is no data to write: give KEY=VALUE, @FILE or -")
	}
	return data, err
}

// writeBody is the body of a write to version 2. A negative cas checks nothing.
func writeBody(c *command.Call, data map[string]any, cas int) map[string]any {
	body := map[string]any{"data": data, "options": map[string]any{}}
	if cas >= 0 {
		body["options"] = map[string]any{"cas": cas}
	}
	return body
}

// printVersion prints the metadata of the version a write has made.
func printVersion(c *command.Call, p Path, a *command.Response) error {
	if c.Format() != command.FormatTable || c.String("field") != "" || a.Secret == nil || a.Secret.WrapInfo != nil {
		return c.PrintResponse(a)
	}
	c.PrintWarnings(a)
	printTitle(c, "Secret Path", len("Secret Path"))
	fmt.Fprintf(c.Out, "%s\n\n", table.Printable(p.At("data")))
	return printTitled(c, "Metadata", response.Data(a.Data()))
}

func patchCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "patch", Args: "PATH DATA …", Min: 1, Max: -1, Usage: "change some keys of a secret and keep the others",
		Help: `Changes some keys of a secret and keeps the others. Version 2 of the engine only. DATA is as for "kv put"; a JSON null removes a key.

The method "patch" lets the server do it, for which the token needs the capability patch. "rw" reads the secret and writes it back, if
no other client did meanwhile. Without -method, "rw" is used where the server does not know how to patch.

Examples:

  $ coffer kv patch -mount=secret app password=-
  $ coffer kv patch -method=rw secret/app user=app2`,
		Flags: []cli.Flag{
			mountFlag(), casFlag(), &cli.StringFlag{Name: "method", Usage: "`patch or rw`"}, command.FieldFlag(), command.WrapFlag(),
		},
	}, patch)
}

func patch(ctx context.Context, c *command.Call) error {
	method := c.String("method")
	if method != "" && method != "patch" && method != "rw" {
		return command.Usagef("-method is patch or rw, not %q", method)
	}
	if method == "rw" && c.IsSet("cas") {
		return command.Usagef("-cas goes with the method patch; rw always checks")
	}
	data, err := parseData(ctx, c)
	if err != nil {
		return err
	}
	p, err := versionedPath(ctx, c)
	if err != nil {
		return err
	}
	if method != "rw" {
		a, err := c.Send(ctx, command.Request{Method: http.MethodPatch, Path: p.At("data"), Body: writeBody(c, data, c.Int("cas"))})
		switch {
		case err == nil:
			return printVersion(c, p, a)
		case command.StatusOf(err) == http.StatusNotFound:
			return p.nothingAt("data")
		case method == "patch" || c.IsSet("cas") || command.StatusOf(err) != http.StatusMethodNotAllowed:
			return err
		}
	}
	return readWrite(ctx, c, p, data)
}

// readWrite merges data into the newest version on this side. A null removes its key, as a patch does.
func readWrite(ctx context.Context, c *command.Call, p Path, data map[string]any) error {
	old, version, err := newest(ctx, c, p)
	if err != nil {
		return err
	}
	if old == nil {
		return p.nothingAt("data")
	}
	mergePatch(old, data)
	a, err := c.Put(ctx, p.At("data"), writeBody(c, old, version))
	if err != nil {
		return err
	}
	return printVersion(c, p, a)
}

// mergePatch applies an RFC 7396 patch to target.
func mergePatch(target, patch map[string]any) {
	for k, v := range patch {
		if v == nil {
			delete(target, k)
			continue
		}
		inner, ok := v.(map[string]any)
		if !ok {
			target[k] = v
			continue
		}
		old, ok := target[k].(map[string]any)
		if !ok {
			old = map[string]any{}
			target[k] = old
		}
		mergePatch(old, inner)
	}
}

// newest reads the newest version of a secret: its data, nil if that is deleted, and its number.
func newest(ctx context.Context, c *command.Call, p Path) (map[string]any, int, error) {
	a, err := readVersion(ctx, c, p, 0, true)
	if command.StatusOf(err) == http.StatusNotFound {
		return nil, 0, p.nothingAt("data")
	}
	if err != nil {
		return nil, 0, err
	}
	data, _ := a.Data()["data"].(map[string]any)
	metadata, _ := a.Data()["metadata"].(map[string]any)
	version, err := strconv.Atoi(table.Cell("", metadata["version"]))
	if err != nil {
		return nil, 0, command.ServerErrorf("the server did not say which version of %s is the newest", p.At("data"))
	}
	return data, version, nil
}

func rollbackCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "rollback", Args: "PATH", Min: 1, Max: 1, Usage: "make an older version the newest again",
		Help: `Writes the data of an older version as a new one. Version 2 of the engine only.

Examples:

  $ coffer kv rollback -version=2 secret/app
  $ coffer kv rollback -mount=secret -version=2 app`,
		Flags: []cli.Flag{mountFlag(), &cli.IntFlag{Name: "version", Usage: "go back to version `N`"}, command.FieldFlag()},
	}, rollback)
}

func rollback(ctx context.Context, c *command.Call) error {
	if c.Int("version") < 1 {
		return command.Usagef("-version says which version to go back to, from 1")
	}
	p, err := versionedPath(ctx, c)
	if err != nil {
		return err
	}
	_, newest, err := newest(ctx, c, p)
	if err != nil {
		return err
	}
	a, err := readVersion(ctx, c, p, c.Int("version"), true)
	if command.StatusOf(err) == http.StatusNotFound {
		return command.ServerErrorf("%s has no version %d", p.At("data"), c.Int("version"))
	}
	if err != nil {
		return err
	}
	data, ok := a.Data()["data"].(map[string]any)
	if !ok {
		metadata, _ := a.Data()["metadata"].(map[string]any)
		return deletedVersion(p, metadata)
	}
	if a, err = c.Put(ctx, p.At("data"), writeBody(c, data, newest)); err != nil {
		return err
	}
	return printVersion(c, p, a)
}

func deleteCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "delete", Args: "PATH", Min: 1, Max: 1, Usage: "delete a secret, or versions of it",
		Help: `Deletes a secret. In version 2 of the engine only its newest version, or those given, are marked as deleted: "kv undelete" brings them
back, "kv destroy" removes them, "kv metadata delete" removes everything.

Examples:

  $ coffer kv delete -mount=secret app
  $ coffer kv delete -versions=2,3 secret/app`,
		Flags: []cli.Flag{mountFlag(), &cli.StringSliceFlag{Name: "versions", Usage: "`N,M,…` to delete, instead of the newest"}},
	}, deleteVersions)
}

func deleteVersions(ctx context.Context, c *command.Call) error {
	versions, err := versions(c)
	if err != nil {
		return err
	}
	p, err := pathArg(ctx, c)
	if err != nil {
		return err
	}
	r := command.Request{Method: http.MethodDelete, Path: p.At("data")}
	if len(versions) > 0 {
		if p.Version == 1 {
			return command.Usagef("-versions needs version 2 of the key/value engine; %s has version 1", p.Mount)
		}
		r = command.Request{Method: http.MethodPost, Path: p.At("delete"), Body: map[string]any{"versions": versions}}
	}
	if _, err := c.Send(ctx, r); err != nil {
		return err
	}
	c.Sayf("Success! Data deleted (if it existed) at: %s", p.At("data"))
	return nil
}

// versions reads -versions, given as a list or repeated.
func versions(c *command.Call) ([]int, error) {
	var versions []int
	for _, list := range c.StringSlice("versions") {
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || n < 1 {
				return nil, command.Usagef("-versions takes numbers from 1, such as -versions=2,3; got %q", text)
			}
			versions = append(versions, n)
		}
	}
	return versions, nil
}

// versionsCommand is undelete or destroy.
func versionsCommand(name, usage, help string) *cli.Command {
	return command.New(command.Spec{
		Name: name, Args: "PATH", Min: 1, Max: 1, Usage: usage, Help: help,
		Flags: []cli.Flag{mountFlag(), &cli.StringSliceFlag{Name: "versions", Usage: "`N,M,…` of the secret"}},
	}, func(ctx context.Context, c *command.Call) error {
		versions, err := versions(c)
		if err != nil {
			return err
		}
		if len(versions) == 0 {
			return command.Usagef("-versions says which versions, such as -versions=2,3")
		}
		p, err := versionedPath(ctx, c)
		if err != nil {
			return err
		}
		body := map[string]any{"versions": versions}
		if _, err := c.Send(ctx, command.Request{Method: http.MethodPut, Path: p.At(name), Body: body}); err != nil {
			return err
		}
		c.Sayf("Success! Data written to: %s", p.At(name))
		return nil
	})
}
