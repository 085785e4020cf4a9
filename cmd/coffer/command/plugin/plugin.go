// Package plugin has the commands for the catalogue of plugins: secrets engines and auth methods that are programs of their own.
package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

const catalogPath = "sys/plugins/catalog/"

func versionFlag() cli.Flag {
	return &cli.StringFlag{Name: "version", Usage: "`VERSION` of the plugin, such as v1.2.3"}
}

// Command is "coffer plugin".
func Command() *cli.Command {
	return command.Group("plugin", "register plugins, and see those there are", `Commands for plugins: secrets engines and auth methods that are programs of their own, in the
plugin_directory of every node. TYPE is auth or secret.

Examples:

  $ coffer plugin list
  $ coffer plugin register -file=/usr/lib/coffer/plugins/transit secret transit
  $ coffer secrets enable transit`,
		listCommand(), registerCommand(), infoCommand(), deregisterCommand(), reloadCommand(), pinCommand())
}

func listCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list", Usage: "list the plugins",
		Help: `Lists all plugins: those that came with the server, and those that were registered.

Examples:

  $ coffer plugin list
  $ coffer plugin list -format=json`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Get(ctx, strings.TrimSuffix(catalogPath, "/"))
		if err != nil {
			return err
		}
		all, _ := a.Data()["detailed"].([]any)
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		if len(all) == 0 {
			return command.ServerErrorf("there are no plugins: coffer plugin register adds one")
		}
		var rows [][]string
		for _, raw := range all {
			p, _ := raw.(map[string]any)
			shipped := "no"
			if p["builtin"] == true {
				shipped = "yes"
			}
			rows = append(rows, []string{fmt.Sprint(p["type"]), fmt.Sprint(p["name"]), fmt.Sprint(p["version"]), shipped})
		}
		return c.PrintColumns([]string{"Type", "Name", "Version", "Comes with the server"}, rows)
	})
}

func registerCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "register", Args: "TYPE NAME", Min: 2, Max: 2, Usage: "register a plugin",
		Help: `Registers a program in the plugin_directory of the nodes as a plugin. It runs only if it has this SHA-256. -file computes that from
a copy on this machine. Registering again replaces; mounts use the new program from their next start on (coffer plugin reload).

Examples:

  $ coffer plugin register -file=./transit secret transit
  $ coffer plugin register -sha256=$(sha256sum jwt | cut -d' ' -f1) -command=jwt -version=v0.26.1 auth jwt`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "sha256", Usage: "`SHA256` of the program, in hexadecimal"},
			&cli.StringFlag{Name: "file", Usage: "compute the SHA-256 of this `FILE`, and take its name for the command"},
			&cli.StringFlag{Name: "command", Usage: "`NAME` of the program in plugin_directory, if it is not that of the plugin"},
			&cli.StringSliceFlag{Name: "args", Usage: "an `ARGUMENT` of the program; repeatable"},
			&cli.StringSliceFlag{Name: "env", Usage: "`NAME=VALUE` in its environment, which is empty otherwise; repeatable"},
			versionFlag(),
		},
	}, func(ctx context.Context, c *command.Call) error {
		body := map[string]any{"sha256": c.String("sha256"), "command": c.String("command"), "version": c.String("version")}
		if file := c.String("file"); file != "" {
			sum, err := sumOf(file)
			if err != nil {
				return err
			}
			if given := c.String("sha256"); given != "" && !strings.EqualFold(given, sum) {
				return command.Usagef("%s has the SHA-256 %s, not that of -sha256", file, sum)
			}
			body["sha256"] = sum
			if body["command"] == "" {
				body["command"] = filepath.Base(file)
			}
		}
		if body["sha256"] == "" {
			return command.Usagef("name the program's checksum with -sha256, or a copy of it with -file")
		}
		if args := c.StringSlice("args"); len(args) > 0 {
			body["args"] = args
		}
		if env := c.StringSlice("env"); len(env) > 0 {
			body["env"] = env
		}
		if _, err := c.Put(ctx, catalogPath+c.Arg(0)+"/"+c.Arg(1), body); err != nil {
			return err
		}
		c.Sayf("Success! Registered the plugin %s/%s.", c.Arg(0), c.Arg(1))
		return nil
	})
}

func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", command.Usagef("%v", err)
	}
	defer f.Close()
	digest := sha256.New()
	if _, err := io.Copy(digest, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(digest.Sum(nil)), nil
}

// versioned is a request about a plugin, with the version of the flag.
func versioned(c *command.Call, method string) command.Request {
	r := command.Request{Method: method, Path: catalogPath + c.Arg(0) + "/" + c.Arg(1), Query: url.Values{}, Plain: true}
	if v := c.String("version"); v != "" {
		r.Query.Set("version", v)
	}
	return r
}

func infoCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "info", Args: "TYPE NAME", Min: 2, Max: 2, Usage: "print a plugin",
		Help: `Prints what the catalogue has of a plugin. Its environment is not shown.

Examples:

  $ coffer plugin info auth jwt
  $ coffer plugin info -version=v1.2.3 secret transit`,
		Flags: []cli.Flag{versionFlag(), command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, versioned(c, http.MethodGet))
		if command.NothingThere(err) {
			return command.ServerErrorf("there is no such plugin; coffer plugin list shows those there are")
		}
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	})
}

func deregisterCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "deregister", Args: "TYPE NAME", Min: 2, Max: 2, Usage: "remove a plugin from the catalogue",
		Help: `Removes a plugin from the catalogue. Its mounts keep their data, and stop working when their process ends.

Examples:

  $ coffer plugin deregister secret transit
  $ coffer plugin deregister -version=v1.2.3 secret transit`,
		Flags: []cli.Flag{versionFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		if _, err := c.Send(ctx, versioned(c, http.MethodDelete)); err != nil {
			return err
		}
		c.Sayf("Success! Removed the plugin (if it was registered): %s/%s", c.Arg(0), c.Arg(1))
		return nil
	})
}

func reloadCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "reload", Args: "TYPE NAME", Min: 2, Max: 2, Usage: "start the processes of a plugin again",
		Help: `Ends the processes of a plugin. The next request of each mount starts the program that is registered then.

Examples:

  $ coffer plugin reload auth jwt
  $ coffer plugin reload secret transit`,
	}, func(ctx context.Context, c *command.Call) error {
		if _, err := c.Put(ctx, "sys/plugins/reload/"+c.Arg(0)+"/"+c.Arg(1), nil); err != nil {
			return err
		}
		c.Sayf("Success! Ended the processes of the plugin %s/%s: the next requests start it again.", c.Arg(0), c.Arg(1))
		return nil
	})
}

func pinCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "pin", Args: "TYPE NAME [VERSION]", Min: 2, Max: 3, Usage: "pin the version that mounts use which name none",
		Help: `Pins a version of a plugin: mounts that name no version use it. Without VERSION the pin is removed.

Examples:

  $ coffer plugin pin secret transit v1.2.3
  $ coffer plugin pin secret transit`,
	}, func(ctx context.Context, c *command.Call) error {
		path := "sys/plugins/pins/" + c.Arg(0) + "/" + c.Arg(1)
		if c.Arg(2) == "" {
			_, err := c.Send(ctx, command.Request{Method: http.MethodDelete, Path: path})
			if err == nil {
				c.Sayf("Success! Removed the pin (if there was one) of %s/%s.", c.Arg(0), c.Arg(1))
			}
			return err
		}
		if _, err := c.Put(ctx, path, map[string]any{"version": c.Arg(2)}); err != nil {
			return err
		}
		c.Sayf("Success! Pinned %s/%s to %s.", c.Arg(0), c.Arg(1), c.Arg(2))
		return nil
	})
}
