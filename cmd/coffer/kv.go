package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/urfave/cli/v3"
)

func kvCommand() *cli.Command {
	return group("kv", "read and write versioned key/value secrets", `Commands for key/value secrets. They ask the server which version the engine at a path has, so that a path reads the same for both:
"secret/app", or -mount=secret app, without the "data/" and "metadata/" of the API.

Examples:

  $ coffer kv put -mount=secret app user=app password=-
  $ coffer kv get -mount=secret -field=user app`,
		kvGetCommand(), kvPutCommand(), kvPatchCommand(), kvListCommand(), kvDeleteCommand(),
		kvVersionsCommand("undelete", "bring deleted versions back", `Brings back versions that were deleted, not destroyed. Version 2 of the engine only.

Examples:

  $ coffer kv undelete -versions=3 secret/app
  $ coffer kv undelete -mount=secret -versions=3,4 app`),
		kvVersionsCommand("destroy", "remove the data of versions for good", `Removes the data of versions for good. Version 2 of the engine only.

Examples:

  $ coffer kv destroy -versions=3 secret/app
  $ coffer kv destroy -mount=secret -versions=3,4 app`),
		kvRollbackCommand(), kvMetadataCommand(), kvEnableVersioningCommand())
}

func mountFlag() cli.Flag {
	return &cli.StringFlag{Name: "mount", Usage: "`PATH` of the engine, the argument being relative to it"}
}

// kvPath is where a secret is: in which engine, of which version, under which name.
type kvPath struct {
	mount   string // with a slash at the end
	name    string
	version int
}

// at returns the API path of one aspect of the secret: data, metadata, delete, …. Version 1 has no aspects.
func (p kvPath) at(aspect string) string {
	if p.version == 1 {
		return p.mount + p.name
	}
	return p.mount + aspect + "/" + p.name
}

// kvPath resolves the first argument.
func (c *call) kvPath(ctx context.Context) (kvPath, error) { return c.kvPathOf(ctx, c.arg(0)) }

// kvPathOf resolves an argument, after asking the server what is mounted there.
func (c *call) kvPathOf(ctx context.Context, arg string) (kvPath, error) {
	name, mount := strings.TrimLeft(arg, "/"), cleanPath(c.String("mount"))
	asked := name
	if mount != "" {
		asked = mount + "/"
	}
	if strings.Trim(asked, "/") == "" {
		return kvPath{}, usagef("the path is empty")
	}
	a, err := c.send(ctx, request{method: http.MethodGet, path: "sys/internal/ui/mounts/" + strings.TrimRight(asked, "/"), plain: true})
	if statusOf(err) == http.StatusNotFound {
		// A server without this endpoint: all it can have is version 1.
		if mount == "" {
			mount, name, _ = strings.Cut(name, "/")
		}
		return kvPath{mount: mount + "/", name: name, version: 1}, nil
	}
	if err != nil {
		if e, ok := err.(*requestError); ok {
			e.denied = fmt.Sprintf("Nothing is mounted at %q, or the token may do nothing there. See what is mounted with: coffer secrets list", asked)
		}
		return kvPath{}, err
	}
	p := kvPath{version: 1, name: name}
	p.mount, _ = a.data()["path"].(string)
	if options, ok := a.data()["options"].(map[string]any); ok && options["version"] == "2" {
		p.version = 2
	}
	if p.mount == "" {
		return p, serverErrorf("the server did not say what is mounted at %s", asked)
	}
	if c.String("mount") == "" {
		p.name = strings.TrimPrefix(strings.TrimPrefix(name, strings.TrimRight(p.mount, "/")), "/")
	} else if cleanPath(p.mount) != mount {
		return p, usagef("nothing is mounted at %s/, it is part of %s", mount, p.mount)
	}
	return p, nil
}

// kvPath2 is kvPath for what only version 2 can do.
func (c *call) kvPath2(ctx context.Context) (kvPath, error) {
	p, err := c.kvPath(ctx)
	if err == nil && p.version != 2 {
		err = usagef("%s needs version 2 of the key/value engine; %s has version 1 (see coffer kv enable-versioning -h)", c.FullName(), p.mount)
	}
	return p, err
}

// nothingAt is the error for a path that holds nothing, with a hint if the path looks like one of the API.
func (p kvPath) nothingAt(aspect string) error {
	hint := ""
	if p.version == 2 && (strings.HasPrefix(p.name, "data/") || strings.HasPrefix(p.name, "metadata/")) {
		hint = "; leave out the part after the mount, kv commands add it"
	}
	return serverErrorf("no value found at %s%s", p.at(aspect), hint)
}

func kvGetCommand() *cli.Command {
	return command(spec{
		name: "get", args: "PATH", min: 1, max: 1, usage: "read a secret",
		help: `Reads a secret: its newest version, or an older one. The exit status is 2 if there is none, or if the version is deleted.

Examples:

  $ coffer kv get -mount=secret app
  $ coffer kv get -version=2 -field=password secret/app`,
		flags: []cli.Flag{mountFlag(), &cli.IntFlag{Name: "version", Usage: "read version `N`"}, fieldFlag(), wrapFlag()},
	}, kvGet)
}

func kvGet(ctx context.Context, c *call) error {
	p, err := c.kvPath(ctx)
	if err != nil {
		return err
	}
	a, err := c.readVersion(ctx, p, c.Int("version"), false)
	if statusOf(err) == http.StatusNotFound {
		return p.nothingAt("data")
	}
	if err != nil {
		return err
	}
	if p.version == 1 || a.secret.WrapInfo != nil {
		return c.printAnswer(a)
	}
	return c.printSecret2(p, a)
}

// readVersion reads a secret. Version 0 is the newest. Plain is as in request.
func (c *call) readVersion(ctx context.Context, p kvPath, version int, plain bool) (*answer, error) {
	r := request{method: http.MethodGet, path: p.at("data"), plain: plain}
	if version > 0 {
		if p.version == 1 {
			return nil, usagef("version 1 of the key/value engine keeps no versions")
		}
		r.query = map[string][]string{"version": {fmt.Sprint(version)}}
	}
	a, err := c.send(ctx, r)
	if err == nil && a.secret == nil {
		err = serverErrorf("the server sent an empty answer for %s", r.path)
	}
	return a, err
}

// printSecret2 prints a secret of version 2. One whose data is gone is an error, after its metadata was shown.
func (c *call) printSecret2(p kvPath, a *answer) error {
	data, exists := a.data()["data"].(map[string]any)
	metadata, _ := a.data()["metadata"].(map[string]any)
	var gone error
	if !exists {
		gone = deletedVersion(p, metadata)
	}
	switch {
	case c.String("field") != "":
		if gone != nil {
			return gone
		}
		return c.printField(dataRows(data))
	case c.format() != formatTable:
		if err := c.printAnswer(a); err != nil {
			return err
		}
		return gone
	}
	c.printWarnings(a)
	if err := c.checkFormat(); err != nil {
		return err
	}
	c.printTitle("Secret Path", len("Secret Path"))
	fmt.Fprintf(c.out, "%s\n\n", printable(p.at("data")))
	if err := c.printTitled("Metadata", dataRows(metadata)); err != nil {
		return err
	}
	if gone != nil {
		return gone
	}
	fmt.Fprintln(c.out)
	return c.printTitled("Data", dataRows(data))
}

func deletedVersion(p kvPath, metadata map[string]any) error {
	version := cell("", metadata["version"])
	if metadata["destroyed"] == true {
		return serverErrorf("version %s of %s is destroyed", version, p.at("data"))
	}
	return serverErrorf("version %s of %s is deleted; bring it back with: coffer kv undelete -versions=%s %s", version, p.at("data"), version, p.mount+p.name)
}

// printTitle prints title amid a line of equals signs as wide as the table below it.
func (c *call) printTitle(title string, width int) {
	signs := max(width-len(title)-2, 4)
	fmt.Fprintf(c.out, "%s %s %s\n", strings.Repeat("=", signs/2), title, strings.Repeat("=", signs-signs/2))
}

func (c *call) printTitled(title string, rows []row) error {
	width := len("Key") + columnGap + len("Value")
	for _, r := range rows {
		width = max(width, len(r.key)+columnGap+len("Value"))
	}
	c.printTitle(title, width)
	return c.printTable(rows)
}

func kvListCommand() *cli.Command {
	return command(spec{
		name: "list", args: "PATH", max: 1, usage: "list the names below a path",
		help: `Lists the names below a path. One that ends in a slash is a folder. With -format=json it is a JSON list.

Examples:

  $ coffer kv list -mount=secret
  $ coffer kv list -format=json secret/teams/`,
		flags: []cli.Flag{mountFlag(), wrapFlag()},
	}, func(ctx context.Context, c *call) error {
		if c.arg(0) == "" && c.String("mount") == "" {
			return usagef("name the path to list, or the engine with -mount")
		}
		p, err := c.kvPath(ctx)
		if err != nil {
			return err
		}
		return listPath(ctx, c, strings.TrimRight(p.at("metadata"), "/"))
	})
}

func kvEnableVersioningCommand() *cli.Command {
	return command(spec{
		name: "enable-versioning", args: "MOUNT", min: 1, max: 1, usage: "turn a version 1 engine into version 2",
		help: `Asks the server to turn a key/value engine of version 1 into one of version 2. Coffer rejects that: enable a second engine of version 2 and
copy the secrets. Other Vault-compatible servers make what the engine holds the first version of each secret.

Examples:

  $ coffer kv enable-versioning kv
  $ coffer kv enable-versioning teams/kv`,
	}, func(ctx context.Context, c *call) error {
		body := map[string]any{"options": map[string]string{"version": "2"}}
		path := "sys/mounts/" + c.path(0) + "/tune"
		a, err := c.send(ctx, request{method: http.MethodPost, path: path, body: body})
		if err != nil {
			return err
		}
		c.printWarnings(a)
		c.sayf("Success! The engine at %s/ has version 2.", c.path(0))
		return nil
	})
}
