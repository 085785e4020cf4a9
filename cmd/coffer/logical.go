package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

func readCommand() *cli.Command {
	return command(spec{
		name: "read", args: "PATH [KEY=VALUE …]", min: 1, max: -1, usage: "read any path of the API",
		help: `Reads any path of the API, given without "v1/". KEY=VALUE arguments are sent as query parameters. -format=raw prints the answer byte
for byte, for the few paths whose answer is not JSON.

Examples:

  $ coffer read sys/mounts/secret/tune
  $ coffer read -field=access_key cloud/creds/deploy ttl=15m
  $ coffer read -format=raw sys/metrics format=prometheus`,
		flags: []cli.Flag{fieldFlag(), wrapFlag()},
	}, read)
}

func read(ctx context.Context, c *call) error {
	query, err := c.queryData(ctx)
	if err != nil {
		return err
	}
	path := c.path(0)
	r := request{method: http.MethodGet, path: path, query: query, raw: c.format() == formatRaw}
	if r.raw && c.String("field") != "" {
		return usagef("-format=raw prints the answer as it is and goes without -field")
	}
	a, err := c.send(ctx, r)
	if nothingThere(err) {
		return serverErrorf("no value found at %s", path)
	}
	if err != nil {
		return err
	}
	if r.raw {
		_, err := c.out.Write(a.raw)
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
		help: `Lists what is below any path of the API, given without "v1/". With -format=json it is a JSON list. -detailed adds what the server
tells of each name, where it does.

Examples:

  $ coffer list auth/userpass/users
  $ coffer list -format=json secret/metadata/teams
  $ coffer list -detailed identity/entity/id`,
		flags: []cli.Flag{&cli.BoolFlag{Name: "detailed", Usage: "show what is known of each"}, fieldFlag(), wrapFlag()},
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
	if a.secret != nil && a.secret.WrapInfo != nil || c.String("field") != "" {
		return c.printAnswer(a)
	}
	c.printWarnings(a)
	names := stringsOf(a.data()["keys"])
	if len(names) == 0 {
		return serverErrorf("no value found at %s", path)
	}
	if c.Bool("detailed") {
		return c.printDetailed(a, names)
	}
	return c.printList("Keys", names)
}

// printDetailed prints names with a column for each thing the answer tells of any of them; all of it as JSON and YAML.
func (c *call) printDetailed(a *answer, names []string) error {
	if c.format() != formatTable {
		return c.printValue(a.data())
	}
	info, _ := a.data()["key_info"].(map[string]any)
	known := map[string]bool{}
	for _, about := range info {
		if m, ok := about.(map[string]any); ok {
			for k := range m {
				known[k] = true
			}
		}
	}
	heading := append([]string{"Keys"}, slices.Sorted(maps.Keys(known))...)
	rows := make([][]string, 0, len(names))
	for _, name := range names {
		about, _ := info[name].(map[string]any)
		cells := []string{printable(name)}
		for _, k := range heading[1:] {
			cells = append(cells, text(about[k]))
		}
		rows = append(rows, cells)
	}
	return c.printColumns(heading, rows)
}

func deleteCommand() *cli.Command {
	return command(spec{
		name: "delete", args: "PATH [KEY=VALUE …]", min: 1, max: -1, usage: "delete what is at any path of the API",
		help: `Deletes what is at any path of the API, given without "v1/". KEY=VALUE arguments are sent as query parameters.

Examples:

  $ coffer delete auth/userpass/users/ada
  $ coffer delete sys/policies/acl/app`,
		flags: []cli.Flag{fieldFlag(), wrapFlag()},
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

func pathHelpCommand() *cli.Command {
	return command(spec{
		name: "path-help", args: "PATH", min: 1, max: 1, usage: "show what the server says about any path of the API",
		help: `Shows the help the server has for a path of the API, given without "v1/": for a mount its paths, for a path what can be done there and
with which fields. The path need not hold anything yet, but the token must be allowed to do something there.

Examples:

  $ coffer path-help secret
  $ coffer path-help secret/data/app
  $ coffer path-help sys/quotas/rate-limit/name`,
	}, func(ctx context.Context, c *call) error { return c.printPathHelp(ctx, c.path(0)) })
}

// printPathHelp prints what the server says about a path.
func (c *call) printPathHelp(ctx context.Context, path string) error {
	a, err := c.send(ctx, request{method: http.MethodGet, path: path, query: helpQuery()})
	if err != nil {
		return err
	}
	return c.printHelpAnswer(a, path)
}

func helpQuery() url.Values { return url.Values{"help": {"1"}} }

func (c *call) printHelpAnswer(a *answer, path string) error {
	if c.format() != formatTable {
		return c.printRaw(a.raw)
	}
	var answered struct {
		Help string
		Data struct{ Help string }
	}
	if err := decodeRaw(a.raw, &answered); err != nil {
		return serverErrorf("the answer holds no help: %v", err)
	}
	text := strings.TrimSpace(answered.Help)
	if text == "" {
		text = strings.TrimSpace(answered.Data.Help)
	}
	if text == "" {
		return serverErrorf("the server has no help for %s", path)
	}
	_, err := fmt.Fprintln(c.out, printable(text))
	return err
}
