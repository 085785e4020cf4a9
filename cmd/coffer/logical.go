package main

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/urfave/cli/v3"
)

func readCommand() *cli.Command {
	return command(spec{
		name: "read", args: "PATH [KEY=VALUE …]", min: 1, max: -1, usage: "read any path of the API",
		help: `Reads any path of the API, given without "v1/". KEY=VALUE arguments are sent as query parameters.

Examples:

  $ coffer read sys/mounts/secret/tune
  $ coffer read -field=access_key cloud/creds/deploy ttl=15m`,
		flags: []cli.Flag{fieldFlag(), wrapFlag()},
	}, read)
}

func read(ctx context.Context, c *call) error {
	query, err := c.queryData(ctx)
	if err != nil {
		return err
	}
	path := c.path(0)
	a, err := c.send(ctx, request{method: http.MethodGet, path: path, query: query})
	if nothingThere(err) {
		return serverErrorf("no value found at %s", path)
	}
	if err != nil {
		return err
	}
	return c.printAnswer(a)
}

// nothingThere reports whether the server said "not found" and nothing else.
func nothingThere(err error) bool {
	e, ok := err.(*requestError)
	if !ok || statusOf(err) != http.StatusNotFound {
		return false
	}
	return e.silent()
}

// queryData reads the arguments after the path as query parameters.
func (c *call) queryData(ctx context.Context) (url.Values, error) {
	data, err := c.parseData(ctx, c.Args().Tail())
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
			text, err := bare(e)
			if err != nil {
				return nil, err
			}
			query.Add(k, text)
		}
	}
	return query, nil
}

const writeHelp = `DATA is KEY=VALUE, KEY=@FILE, KEY=- for stdin, @FILE with a JSON object, or - for a JSON object on stdin. A key
given twice is sent as a list.`

func writeCommand() *cli.Command {
	return command(spec{
		name: "write", args: "PATH [DATA …]", min: 1, max: -1, usage: "write to any path of the API",
		help: `Writes to any path of the API, given without "v1/", and prints the answer, if there is one. ` + writeHelp + `

Examples:

  $ coffer write auth/userpass/users/ada password=- policies=app
  $ coffer write -force sys/rotate`,
		flags: []cli.Flag{&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "write without data"}, fieldFlag(), wrapFlag()},
	}, func(ctx context.Context, c *call) error {
		data, err := c.parseData(ctx, c.Args().Tail())
		if err != nil {
			return err
		}
		if len(data) == 0 && !c.Bool("force") {
			return usagef("there is no data to write; -force writes without")
		}
		a, err := c.put(ctx, c.path(0), data)
		if err != nil {
			return err
		}
		return c.printWritten(a, c.path(0))
	})
}

func patchCommand() *cli.Command {
	return command(spec{
		name: "patch", args: "PATH DATA …", min: 2, max: -1, usage: "change part of what is at a path of the API",
		help: `Changes part of what is at a path of the API, given without "v1/", and keeps the rest; a JSON null removes a key. ` + writeHelp + `

Examples:

  $ coffer patch secret/data/app - <patch.json
  $ coffer patch sys/namespaces/team-a custom_metadata=@metadata.json`,
		flags: []cli.Flag{fieldFlag(), wrapFlag()},
	}, func(ctx context.Context, c *call) error {
		data, err := c.parseData(ctx, c.Args().Tail())
		if err != nil {
			return err
		}
		a, err := c.send(ctx, request{method: http.MethodPatch, path: c.path(0), body: data})
		if err != nil {
			return err
		}
		return c.printWritten(a, c.path(0))
	})
}

func listCommand() *cli.Command {
	return command(spec{
		name: "list", args: "PATH", min: 1, max: 1, usage: "list what is below any path of the API",
		help: `Lists what is below any path of the API, given without "v1/". With -format=json it is a JSON list.

Examples:

  $ coffer list auth/userpass/users
  $ coffer list -format=json secret/metadata/teams`,
		flags: []cli.Flag{wrapFlag()},
	}, func(ctx context.Context, c *call) error { return listPath(ctx, c, c.path(0)) })
}

// listPath prints the names below path. None at all is an error.
func listPath(ctx context.Context, c *call, path string) error {
	a, err := c.send(ctx, request{method: "LIST", path: path})
	if nothingThere(err) {
		return serverErrorf("no value found at %s", path)
	}
	if err != nil {
		return err
	}
	if a.secret != nil && a.secret.WrapInfo != nil {
		return c.printAnswer(a)
	}
	c.printWarnings(a)
	names := stringsOf(a.data()["keys"])
	if len(names) == 0 {
		return serverErrorf("no value found at %s", path)
	}
	return c.printList("Keys", names)
}

func deleteCommand() *cli.Command {
	return command(spec{
		name: "delete", args: "PATH [KEY=VALUE …]", min: 1, max: -1, usage: "delete what is at any path of the API",
		help: `Deletes what is at any path of the API, given without "v1/". KEY=VALUE arguments are sent as query parameters.

Examples:

  $ coffer delete auth/userpass/users/ada
  $ coffer delete sys/policies/acl/app`,
		flags: []cli.Flag{wrapFlag()},
	}, func(ctx context.Context, c *call) error {
		query, err := c.queryData(ctx)
		if err != nil {
			return err
		}
		a, err := c.send(ctx, request{method: http.MethodDelete, path: c.path(0), query: query})
		if err != nil {
			return err
		}
		if len(answerRows(a)) > 0 {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		c.sayf("Success! Data deleted (if it existed) at: %s", c.path(0))
		return nil
	})
}

func unwrapCommand() *cli.Command {
	return command(spec{
		name: "unwrap", args: "[TOKEN | -]", max: 1, usage: "get the answer hidden behind a wrapping token",
		help: `Gets the answer hidden behind a wrapping token, as made by -wrap-ttl. That works once: if it fails, somebody else may have read it.

Examples:

  $ coffer unwrap - <wrapping-token
  $ coffer unwrap -field=password hvs.CAESIJ…`,
		flags: []cli.Flag{fieldFlag()},
	}, func(ctx context.Context, c *call) error {
		client, err := c.client()
		if err != nil {
			return err
		}
		if c.arg(0) != "" {
			token, err := c.readSecret(ctx, strings.TrimSpace(c.arg(0)), "wrapping token")
			if err != nil {
				return err
			}
			client.SetToken(token)
		}
		if client.Token() == "" {
			return usagef("name the wrapping token, or - to read it from stdin")
		}
		a, err := c.put(ctx, "sys/wrapping/unwrap", nil)
		if err != nil {
			return err
		}
		return c.printAnswer(a)
	})
}
