package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"
)

func casFlag() cli.Flag {
	return &cli.IntFlag{Name: "cas", Value: -1, HideDefault: true, Usage: "write only if the newest version is `N`; 0 only if there is none"}
}

func kvPutCommand() *cli.Command {
	return command(spec{
		name: "put", args: "PATH DATA …", min: 1, max: -1, usage: "write a secret",
		help: `Writes a secret, replacing all of its data; version 2 keeps the old data as an older version. DATA is KEY=VALUE, KEY=@FILE,
KEY=- for stdin, @FILE with a JSON object, or - for a JSON object on stdin.

Examples:

  $ coffer kv put -mount=secret app user=app password=-
  $ coffer kv put -cas=3 secret/app @app.json`,
		flags: []cli.Flag{mountFlag(), casFlag(), fieldFlag(), wrapFlag()},
	}, kvPut)
}

func kvPut(ctx context.Context, c *call) error {
	data, err := c.kvData(ctx)
	if err != nil {
		return err
	}
	p, err := c.kvPath(ctx)
	if err != nil {
		return err
	}
	if p.version == 1 {
		if c.IsSet("cas") {
			return usagef("-cas needs version 2 of the key/value engine; %s has version 1", p.mount)
		}
		a, err := c.put(ctx, p.at("data"), data)
		if err != nil {
			return err
		}
		return c.printWritten(a, p.at("data"))
	}
	a, err := c.put(ctx, p.at("data"), c.kvBody(data, c.Int("cas")))
	if err != nil {
		return err
	}
	return c.printVersion(p, a)
}

// kvData reads the data after the path.
func (c *call) kvData(ctx context.Context) (map[string]any, error) {
	data, err := c.parseData(ctx, c.Args().Tail())
	if err == nil && len(data) == 0 {
		err = usagef("there is no data to write: give KEY=VALUE, @FILE or -")
	}
	return data, err
}

// kvBody is the body of a write to version 2. A negative cas checks nothing.
func (c *call) kvBody(data map[string]any, cas int) map[string]any {
	body := map[string]any{"data": data, "options": map[string]any{}}
	if cas >= 0 {
		body["options"] = map[string]any{"cas": cas}
	}
	return body
}

// printVersion prints the metadata of the version a write has made.
func (c *call) printVersion(p kvPath, a *answer) error {
	if c.format() != formatTable || c.String("field") != "" || a.secret == nil || a.secret.WrapInfo != nil {
		return c.printAnswer(a)
	}
	c.printWarnings(a)
	c.printTitle("Secret Path", len("Secret Path"))
	fmt.Fprintf(c.out, "%s\n\n", printable(p.at("data")))
	return c.printTitled("Metadata", dataRows(a.data()))
}

// printWritten prints the answer of a write, or that it was done if it has none.
func (c *call) printWritten(a *answer, path string) error {
	if a.secret == nil || len(answerRows(a)) == 0 && c.format() == formatTable {
		c.printWarnings(a)
		c.sayf("Success! Data written to: %s", path)
		return c.checkFormat()
	}
	return c.printAnswer(a)
}

func kvPatchCommand() *cli.Command {
	return command(spec{
		name: "patch", args: "PATH DATA …", min: 1, max: -1, usage: "change some keys of a secret and keep the others",
		help: `Changes some keys of a secret and keeps the others. Version 2 of the engine only. DATA is as for "kv put"; a JSON null removes a key.

The method "patch" lets the server do it, for which the token needs the capability patch. "rw" reads the secret and writes it back, if
no other client did meanwhile. Without -method, "rw" is used where the server does not know how to patch.

Examples:

  $ coffer kv patch -mount=secret app password=-
  $ coffer kv patch -method=rw secret/app user=app2`,
		flags: []cli.Flag{
			mountFlag(), casFlag(), &cli.StringFlag{Name: "method", Usage: "`patch or rw`"}, fieldFlag(), wrapFlag(),
		},
	}, kvPatch)
}

func kvPatch(ctx context.Context, c *call) error {
	method := c.String("method")
	if method != "" && method != "patch" && method != "rw" {
		return usagef("-method is patch or rw, not %q", method)
	}
	if method == "rw" && c.IsSet("cas") {
		return usagef("-cas goes with the method patch; rw always checks")
	}
	data, err := c.kvData(ctx)
	if err != nil {
		return err
	}
	p, err := c.kvPath2(ctx)
	if err != nil {
		return err
	}
	if method != "rw" {
		a, err := c.send(ctx, request{method: http.MethodPatch, path: p.at("data"), body: c.kvBody(data, c.Int("cas"))})
		switch {
		case err == nil:
			return c.printVersion(p, a)
		case statusOf(err) == http.StatusNotFound:
			return p.nothingAt("data")
		case method == "patch" || c.IsSet("cas") || statusOf(err) != http.StatusMethodNotAllowed:
			return err
		}
	}
	return kvReadWrite(ctx, c, p, data)
}

// kvReadWrite merges data into the newest version on this side. A null removes its key, as a patch does.
func kvReadWrite(ctx context.Context, c *call, p kvPath, data map[string]any) error {
	old, version, err := c.newest(ctx, p)
	if err != nil {
		return err
	}
	if old == nil {
		return p.nothingAt("data")
	}
	mergePatch(old, data)
	a, err := c.put(ctx, p.at("data"), c.kvBody(old, version))
	if err != nil {
		return err
	}
	return c.printVersion(p, a)
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
func (c *call) newest(ctx context.Context, p kvPath) (map[string]any, int, error) {
	a, err := c.readVersion(ctx, p, 0, true)
	if statusOf(err) == http.StatusNotFound {
		return nil, 0, p.nothingAt("data")
	}
	if err != nil {
		return nil, 0, err
	}
	data, _ := a.data()["data"].(map[string]any)
	metadata, _ := a.data()["metadata"].(map[string]any)
	version, err := strconv.Atoi(cell("", metadata["version"]))
	if err != nil {
		return nil, 0, serverErrorf("the server did not say which version of %s is the newest", p.at("data"))
	}
	return data, version, nil
}

func kvRollbackCommand() *cli.Command {
	return command(spec{
		name: "rollback", args: "PATH", min: 1, max: 1, usage: "make an older version the newest again",
		help: `Writes the data of an older version as a new one. Version 2 of the engine only.

Examples:

  $ coffer kv rollback -version=2 secret/app
  $ coffer kv rollback -mount=secret -version=2 app`,
		flags: []cli.Flag{mountFlag(), &cli.IntFlag{Name: "version", Usage: "go back to version `N`"}, fieldFlag()},
	}, kvRollback)
}

func kvRollback(ctx context.Context, c *call) error {
	if c.Int("version") < 1 {
		return usagef("-version says which version to go back to, from 1")
	}
	p, err := c.kvPath2(ctx)
	if err != nil {
		return err
	}
	_, newest, err := c.newest(ctx, p)
	if err != nil {
		return err
	}
	a, err := c.readVersion(ctx, p, c.Int("version"), true)
	if statusOf(err) == http.StatusNotFound {
		return serverErrorf("%s has no version %d", p.at("data"), c.Int("version"))
	}
	if err != nil {
		return err
	}
	data, ok := a.data()["data"].(map[string]any)
	if !ok {
		metadata, _ := a.data()["metadata"].(map[string]any)
		return deletedVersion(p, metadata)
	}
	if a, err = c.put(ctx, p.at("data"), c.kvBody(data, newest)); err != nil {
		return err
	}
	return c.printVersion(p, a)
}

func kvDeleteCommand() *cli.Command {
	return command(spec{
		name: "delete", args: "PATH", min: 1, max: 1, usage: "delete a secret, or versions of it",
		help: `Deletes a secret. In version 2 of the engine only its newest version, or those given, are marked as deleted: "kv undelete" brings them
back, "kv destroy" removes them, "kv metadata delete" removes everything.

Examples:

  $ coffer kv delete -mount=secret app
  $ coffer kv delete -versions=2,3 secret/app`,
		flags: []cli.Flag{mountFlag(), &cli.StringSliceFlag{Name: "versions", Usage: "`N,M,…` to delete, instead of the newest"}},
	}, kvDelete)
}

func kvDelete(ctx context.Context, c *call) error {
	versions, err := c.versions()
	if err != nil {
		return err
	}
	p, err := c.kvPath(ctx)
	if err != nil {
		return err
	}
	r := request{method: http.MethodDelete, path: p.at("data")}
	if len(versions) > 0 {
		if p.version == 1 {
			return usagef("-versions needs version 2 of the key/value engine; %s has version 1", p.mount)
		}
		r = request{method: http.MethodPost, path: p.at("delete"), body: map[string]any{"versions": versions}}
	}
	if _, err := c.send(ctx, r); err != nil {
		return err
	}
	c.sayf("Success! Data deleted (if it existed) at: %s", p.at("data"))
	return nil
}

// versions reads -versions, given as a list or repeated.
func (c *call) versions() ([]int, error) {
	var versions []int
	for _, list := range c.StringSlice("versions") {
		for text := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil || n < 1 {
				return nil, usagef("-versions takes numbers from 1, such as -versions=2,3; got %q", text)
			}
			versions = append(versions, n)
		}
	}
	return versions, nil
}

// kvVersionsCommand is undelete or destroy.
func kvVersionsCommand(name, usage, help string) *cli.Command {
	return command(spec{
		name: name, args: "PATH", min: 1, max: 1, usage: usage, help: help,
		flags: []cli.Flag{mountFlag(), &cli.StringSliceFlag{Name: "versions", Usage: "`N,M,…` of the secret"}},
	}, func(ctx context.Context, c *call) error {
		versions, err := c.versions()
		if err != nil {
			return err
		}
		if len(versions) == 0 {
			return usagef("-versions says which versions, such as -versions=2,3")
		}
		p, err := c.kvPath2(ctx)
		if err != nil {
			return err
		}
		body := map[string]any{"versions": versions}
		if _, err := c.send(ctx, request{method: http.MethodPut, path: p.at(name), body: body}); err != nil {
			return err
		}
		c.sayf("Success! Data written to: %s", p.at(name))
		return nil
	})
}
