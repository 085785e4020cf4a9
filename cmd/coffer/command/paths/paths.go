// Package paths has the commands that work at any path of the API: read, write, list, delete, patch and path-help, and wrap and
// unwrap, which pass data and answers from one client to another.
package paths

import (
	"context"
	"net/http"
	"net/url"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/urfave/cli/v3"
)

func ReadCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "read", Args: "PATH [KEY=VALUE …]", Min: 1, Max: -1, Usage: "read any path of the API",
		Help: `Reads any path of the API, given without "v1/". KEY=VALUE arguments are sent as query parameters. -format=raw prints the answer byte
for byte, for the few paths whose answer is not JSON.

Examples:

  $ coffer read sys/mounts/secret/tune
  $ coffer read -field=access_key cloud/creds/deploy ttl=15m
  $ coffer read -format=raw sys/metrics format=prometheus`,
		Flags: []cli.Flag{command.FieldFlag(), command.WrapFlag()},
	}, read)
}

func read(ctx context.Context, c *command.Call) error {
	query, err := queryData(ctx, c)
	if err != nil {
		return err
	}
	path := c.Path(0)
	r := command.Request{Method: http.MethodGet, Path: path, Query: query, Raw: c.Format() == command.FormatRaw}
	if r.Raw && c.String("field") != "" {
		return command.Usagef("-format=raw prints the answer as it is and goes without -field")
	}
	a, err := c.Send(ctx, r)
	if command.NothingThere(err) {
		return command.ServerErrorf("no value found at %s", path)
	}
	if err != nil {
		return err
	}
	if r.Raw {
		_, err := c.Out.Write(a.Raw)
		return err
	}
	if printed, err := kv.PrintData(c, a); printed {
		return err
	}
	return c.PrintResponse(a)
}

// queryData reads the arguments after the path as query parameters.
func queryData(ctx context.Context, c *command.Call) (url.Values, error) {
	data, err := c.ParseData(ctx, c.Args().Tail())
	if err != nil {
		return nil, err
	}
	query := url.Values{}
	for k, v := range data {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, e := range list {
			text, err := response.Bare(e)
			if err != nil {
				return nil, err
			}
			query.Add(k, text)
		}
	}
	return query, nil
}

func WriteCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "write", Args: "PATH [DATA …]", Min: 1, Max: -1, Usage: "write to any path of the API",
		Help: `Writes to any path of the API, given without "v1/", and prints the answer, if there is one. ` + command.DataHelp + `

Examples:

  $ coffer write auth/userpass/users/ada password=- policies=app
  $ coffer write -force sys/rotate`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "write without data"}, command.FieldFlag(), command.WrapFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		data, err := c.ParseData(ctx, c.Args().Tail())
		if err != nil {
			return err
		}
		if len(data) == 0 && !c.Bool("force") {
			return command.Usagef("there is no data to write; -force writes without")
		}
		a, err := c.Put(ctx, c.Path(0), data)
		if err != nil {
			return err
		}
		return c.PrintWritten(a, c.Path(0))
	})
}

func PatchCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "patch", Args: "PATH DATA …", Min: 2, Max: -1, Usage: "change part of what is at a path of the API",
		Help: `Changes part of what is at a path of the API, given without "v1/", and keeps the rest; a JSON null removes a key. ` + command.DataHelp + `

Examples:

  $ coffer patch secret/data/app - <patch.json
  $ coffer patch sys/namespaces/team-a custom_metadata=@metadata.json`,
		Flags: []cli.Flag{command.FieldFlag(), command.WrapFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		data, err := c.ParseData(ctx, c.Args().Tail())
		if err != nil {
			return err
		}
		a, err := c.Send(ctx, command.Request{Method: http.MethodPatch, Path: c.Path(0), Body: data})
		if err != nil {
			return err
		}
		return c.PrintWritten(a, c.Path(0))
	})
}

func ListCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list", Args: "PATH", Min: 1, Max: 1, Usage: "list what is below any path of the API",
		Help: `Lists what is below any path of the API, given without "v1/". With -format=json it is a JSON list. -detailed adds what the server
tells of each name, where it does.

Examples:

  $ coffer list auth/userpass/users
  $ coffer list -format=json secret/metadata/teams
  $ coffer list -detailed identity/entity/id`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "detailed", Usage: "show what is known of each"}, command.FieldFlag(), command.WrapFlag()},
	}, func(ctx context.Context, c *command.Call) error { return command.ListPath(ctx, c, c.Path(0)) })
}

func DeleteCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "delete", Args: "PATH [KEY=VALUE …]", Min: 1, Max: -1, Usage: "delete what is at any path of the API",
		Help: `Deletes what is at any path of the API, given without "v1/". KEY=VALUE arguments are sent as query parameters.

Examples:

  $ coffer delete auth/userpass/users/ada
  $ coffer delete sys/policies/acl/app`,
		Flags: []cli.Flag{command.FieldFlag(), command.WrapFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		query, err := queryData(ctx, c)
		if err != nil {
			return err
		}
		a, err := c.Send(ctx, command.Request{Method: http.MethodDelete, Path: c.Path(0), Query: query})
		if err != nil {
			return err
		}
		if len(response.Rows(a.Secret)) > 0 {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		c.Sayf("Success! Data deleted (if it existed) at: %s", c.Path(0))
		return nil
	})
}

func PathHelpCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "path-help", Args: "PATH", Min: 1, Max: 1, Usage: "show what the server says about any path of the API",
		Help: `Shows the help the server has for a path of the API, given without "v1/": for a mount its paths, for a path what can be done there and
with which fields. The path need not hold anything yet, but the token must be allowed to do something there.

Examples:

  $ coffer path-help secret
  $ coffer path-help secret/data/app
  $ coffer path-help sys/quotas/rate-limit/name`,
	}, func(ctx context.Context, c *command.Call) error { return printPathHelp(ctx, c, c.Path(0)) })
}

// printPathHelp prints what the server says about a path.
func printPathHelp(ctx context.Context, c *command.Call, path string) error {
	a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: path, Query: command.HelpQuery()})
	if err != nil {
		return err
	}
	return c.PrintHelpResponse(a, path)
}
