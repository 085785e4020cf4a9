// Package kv has the commands for key/value secrets of both versions: it asks the server which version a path is in. Start with Path.
package kv

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

// Command is "coffer kv" with the commands given, which bring secrets from files and to files.
func Command(more ...*cli.Command) *cli.Command {
	return command.Group("kv", "read and write versioned key/value secrets", `Commands for key/value secrets. They ask the server which version the engine at a path has, so that a path reads the same for both:
"secret/app", or -mount=secret app, without the "data/" and "metadata/" of the API.

Examples:

  $ coffer kv put -mount=secret app user=app password=-
  $ coffer kv get -mount=secret -field=user app`,
		append([]*cli.Command{getCommand(), putCommand(), patchCommand(), editCommand(), listCommand(), diffCommand(), deleteCommand(),
			versionsCommand("undelete", "bring deleted versions back", `Brings back versions that were deleted, not destroyed. Version 2 of the engine only.

Examples:

  $ coffer kv undelete -versions=3 secret/app
  $ coffer kv undelete -mount=secret -versions=3,4 app`),
			versionsCommand("destroy", "remove the data of versions for good", `Removes the data of versions for good. Version 2 of the engine only.

Examples:

  $ coffer kv destroy -versions=3 secret/app
  $ coffer kv destroy -mount=secret -versions=3,4 app`),
			rollbackCommand(), metadataCommand(), enableVersioningCommand()}, more...)...)
}

func mountFlag() cli.Flag {
	return &cli.StringFlag{Name: "mount", Usage: "`PATH` of the engine, the argument being relative to it"}
}

// Path is where a secret is: in which engine, of which version, under which name.
type Path struct {
	Mount   string // with a slash at the end
	Name    string
	Version int
}

// At returns the API path of one aspect of the secret: data, metadata, delete, …. Version 1 has no aspects.
func (p Path) At(aspect string) string {
	if p.Version == 1 {
		return p.Mount + p.Name
	}
	return p.Mount + aspect + "/" + p.Name
}

// pathArg resolves the first argument.
func pathArg(ctx context.Context, c *command.Call) (Path, error) { return PathOf(ctx, c, c.Arg(0)) }

// PathOf resolves an argument, after asking the server what is mounted there.
func PathOf(ctx context.Context, c *command.Call, arg string) (Path, error) {
	name, mount := strings.TrimLeft(arg, "/"), command.CleanPath(c.String("mount"))
	asked := name
	if mount != "" {
		asked = mount + "/"
	}
	if strings.Trim(asked, "/") == "" {
		return Path{}, command.Usagef("the path is empty")
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/internal/ui/mounts/" + strings.TrimRight(asked, "/"), Plain: true})
	if command.StatusOf(err) == http.StatusNotFound {
		// A server without this endpoint: all it can have is version 1.
		if mount == "" {
			mount, name, _ = strings.Cut(name, "/")
		}
		return Path{Mount: mount + "/", Name: name, Version: 1}, nil
	}
	if err != nil {
		if e, ok := err.(*command.RequestError); ok {
			e.Instead = fmt.Sprintf("Nothing is mounted at %q, or the token may do nothing there", asked)
			e.Denied = "See what is mounted with: coffer secrets list"
		}
		return Path{}, err
	}
	p := Path{Version: 1, Name: name}
	p.Mount, _ = a.Data()["path"].(string)
	if options, ok := a.Data()["options"].(map[string]any); ok && options["version"] == "2" {
		p.Version = 2
	}
	if p.Mount == "" {
		return p, command.ServerErrorf("the server did not say what is mounted at %s", asked)
	}
	if c.String("mount") == "" {
		p.Name = strings.TrimPrefix(strings.TrimPrefix(name, strings.TrimRight(p.Mount, "/")), "/")
	} else if command.CleanPath(p.Mount) != mount {
		return p, command.Usagef("nothing is mounted at %s/, it is part of %s", mount, p.Mount)
	}
	return p, nil
}

// versionedPath is pathArg for what only version 2 can do.
func versionedPath(ctx context.Context, c *command.Call) (Path, error) {
	p, err := pathArg(ctx, c)
	if err == nil && p.Version != 2 {
		err = command.Usagef("%s needs version 2 of the key/value engine; %s has version 1 (see coffer kv enable-versioning -h)", c.FullName(), p.Mount)
	}
	return p, err
}

// nothingAt is the error for a path that holds nothing, with a hint if the path looks like one of the API.
func (p Path) nothingAt(aspect string) error {
	hint := ""
	if p.Version == 2 && (strings.HasPrefix(p.Name, "data/") || strings.HasPrefix(p.Name, "metadata/")) {
		hint = "; leave out the part after the mount, kv commands add it"
	}
	return command.ServerErrorf("no value found at %s%s", p.At(aspect), hint)
}

func getCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "get", Args: "PATH", Min: 1, Max: 1, Usage: "read a secret",
		Help: `Reads a secret: its newest version, or an older one. The exit status is 2 if there is none, or if the version is deleted.

Examples:

  $ coffer kv get -mount=secret app
  $ coffer kv get -version=2 -field=password secret/app`,
		Flags: []cli.Flag{mountFlag(), &cli.IntFlag{Name: "version", Usage: "read version `N`"}, command.FieldFlag(), command.WrapFlag()},
	}, get)
}

func get(ctx context.Context, c *command.Call) error {
	p, err := pathArg(ctx, c)
	if err != nil {
		return err
	}
	a, err := readVersion(ctx, c, p, c.Int("version"), false)
	if command.StatusOf(err) == http.StatusNotFound {
		return p.nothingAt("data")
	}
	if err != nil {
		return err
	}
	if p.Version == 1 || a.Secret.WrapInfo != nil {
		return c.PrintResponse(a)
	}
	return printSecret2(c, p, a)
}

// readVersion reads a secret. Version 0 is the newest. Plain is as in request.
func readVersion(ctx context.Context, c *command.Call, p Path, version int, plain bool) (*command.Response, error) {
	r := command.Request{Method: http.MethodGet, Path: p.At("data"), Plain: plain}
	if version > 0 {
		if p.Version == 1 {
			return nil, command.Usagef("version 1 of the key/value engine keeps no versions")
		}
		r.Query = map[string][]string{"version": {fmt.Sprint(version)}}
	}
	a, err := c.Send(ctx, r)
	if err == nil && a.Secret == nil {
		err = command.ServerErrorf("the server sent an empty answer for %s", r.Path)
	}
	return a, err
}

// printSecret2 prints a secret of version 2. One whose data is gone is an error, after its metadata was shown.
func printSecret2(c *command.Call, p Path, a *command.Response) error {
	data, exists := a.Data()["data"].(map[string]any)
	metadata, _ := a.Data()["metadata"].(map[string]any)
	var gone error
	if !exists {
		gone = deletedVersion(p, metadata)
	}
	switch {
	case c.String("field") != "":
		if gone != nil {
			return gone
		}
		return c.PrintField(response.Data(data))
	case c.Format() != command.FormatTable:
		if err := c.PrintResponse(a); err != nil {
			return err
		}
		return gone
	}
	c.PrintWarnings(a)
	if err := c.CheckFormat(); err != nil {
		return err
	}
	printTitle(c, "Secret Path", len("Secret Path"))
	fmt.Fprintf(c.Out, "%s\n\n", table.Printable(p.At("data")))
	if err := printTitled(c, "Metadata", response.Data(metadata)); err != nil {
		return err
	}
	if gone != nil {
		return gone
	}
	fmt.Fprintln(c.Out)
	return printSecret(c, response.Data(data))
}

func deletedVersion(p Path, metadata map[string]any) error {
	version := table.Cell("", metadata["version"])
	if metadata["destroyed"] == true {
		return command.ServerErrorf("version %s of %s is destroyed", version, p.At("data"))
	}
	return command.ServerErrorf("version %s of %s is deleted; bring it back with: coffer kv undelete -versions=%s %s", version, p.At("data"), version, p.Mount+p.Name)
}

// printTitle prints title amid a line of equals signs as wide as the table below it.
func printTitle(c *command.Call, title string, width int) {
	signs := max(width-len(title)-2, 4)
	fmt.Fprintf(c.Out, "%s %s %s\n", strings.Repeat("=", signs/2), title, strings.Repeat("=", signs-signs/2))
}

func printTitled(c *command.Call, title string, rows []response.Row) error {
	titleOver(c, title, rows)
	return c.PrintTable(rows)
}

// printSecret prints the data of a secret.
func printSecret(c *command.Call, rows []response.Row) error {
	titleOver(c, "Data", rows)
	return c.PrintData(rows)
}

// titleOver prints a title as wide as the heading of a table.
func titleOver(c *command.Call, title string, rows []response.Row) {
	width := len("Key") + table.Gap + len("Value")
	for _, r := range rows {
		width = max(width, len(r.Key)+table.Gap+len("Value"))
	}
	printTitle(c, title, width)
}

func listCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list", Args: "PATH", Max: 1, Usage: "list the names below a path",
		Help: `Lists the names below a path. One that ends in a slash is a folder. With -format=json it is a JSON list.

Examples:

  $ coffer kv list -mount=secret
  $ coffer kv list -format=json secret/teams/`,
		Flags: []cli.Flag{mountFlag(), command.WrapFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		if c.Arg(0) == "" && c.String("mount") == "" {
			return command.Usagef("name the path to list, or the engine with -mount")
		}
		p, err := pathArg(ctx, c)
		if err != nil {
			return err
		}
		return command.ListPath(ctx, c, strings.TrimRight(p.At("metadata"), "/"))
	})
}

func enableVersioningCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "enable-versioning", Args: "MOUNT", Min: 1, Max: 1, Usage: "turn a version 1 engine into version 2",
		Help: `Turns a key/value engine of version 1 into one of version 2, in place. What it holds becomes the first version of each secret. Everything
can be read and written at once; the stored form is converted in the background. There is no way back.

Examples:

  $ coffer kv enable-versioning kv
  $ coffer kv enable-versioning teams/kv`,
	}, func(ctx context.Context, c *command.Call) error {
		body := map[string]any{"options": map[string]string{"version": "2"}}
		path := "sys/mounts/" + c.Path(0) + "/tune"
		a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: path, Body: body})
		if err != nil {
			return err
		}
		c.PrintWarnings(a)
		c.Sayf("Success! The engine at %s/ has version 2.", c.Path(0))
		return nil
	})
}
