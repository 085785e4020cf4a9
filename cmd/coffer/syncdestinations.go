package main

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

func syncDestinationsCommand() *cli.Command {
	return group("destinations", "look after the places that secrets are synced to", `Commands for destinations, each named TYPE/NAME. The types are cloud1-sm, cloud2-kv, cloud3-sm, repohost and webhost-project;
"coffer path-help sys/sync/destinations/TYPE/NAME" has the fields of each.

Examples:

  $ coffer sync destinations write cloud3-sm/prod credentials=@key.json
  $ coffer sync destinations verify cloud3-sm/prod`,
		syncListCommand(), syncReadCommand(), syncWriteCommand(), syncDeleteCommand(), syncVerifyCommand(),
		syncDestinationPauseCommand(true), syncDestinationPauseCommand(false))
}

func syncListCommand() *cli.Command {
	return command(spec{
		name: "list", args: "[TYPE]", max: 1, usage: "list destinations",
		help: `Lists the destinations of the namespace, or those of a type.

Examples:

  $ coffer sync destinations list
  $ coffer sync destinations list -format=json cloud1-sm`,
	}, func(ctx context.Context, c *call) error {
		if kind := c.path(0); kind != "" {
			return c.listType(ctx, kind)
		}
		places, err := c.syncPlaces(ctx)
		if err != nil || c.Bool("output-curl-string") {
			return err
		}
		names := make([]string, len(places))
		for i, p := range places {
			names[i] = p.String()
		}
		return c.printList("Destination", names)
	})
}

// listType prints the names of the destinations of a type.
func (c *call) listType(ctx context.Context, kind string) error {
	a, err := c.send(ctx, request{method: "LIST", path: syncPath + "destinations/" + kind})
	if nothingThere(err) {
		return serverErrorf("there are no destinations of type %s", printable(kind))
	}
	if err != nil {
		return err
	}
	return c.printList("Name", stringsOf(a.data()["keys"]))
}

// syncPlaces returns all destinations of the namespace. None at all is an error.
func (c *call) syncPlaces(ctx context.Context) ([]place, error) {
	a, err := c.send(ctx, request{method: "LIST", path: syncPath + "destinations"})
	if nothingThere(err) {
		return nil, serverErrorf("there are no destinations; coffer sync destinations write -h shows how to make one")
	}
	if statusOf(err) == http.StatusForbidden {
		return nil, withHint(err, "The token may not list destinations. One that it may read can be named: coffer sync status TYPE/NAME")
	}
	if err != nil {
		return nil, err
	}
	var out struct {
		Data struct {
			Info map[string][]string `json:"key_info"`
		}
	}
	if err := json.Unmarshal(a.raw, &out); err != nil || len(out.Data.Info) == 0 {
		return nil, serverErrorf("the answer is not a list of destinations")
	}
	var all []place
	for _, kind := range slices.Sorted(maps.Keys(out.Data.Info)) {
		for _, name := range out.Data.Info[kind] {
			all = append(all, place{cleanPath(kind), name})
		}
	}
	return all, nil
}

func syncReadCommand() *cli.Command {
	return command(spec{
		name: "read", args: "DESTINATION", min: 1, max: 1, usage: "show a destination",
		help: `Shows how a destination is configured. Credentials are masked.

Examples:

  $ coffer sync destinations read cloud1-sm/prod
  $ coffer sync destinations read -field=region cloud1-sm/prod`,
		flags: []cli.Flag{fieldFlag()},
	}, func(ctx context.Context, c *call) error {
		p, err := c.place()
		if err != nil {
			return err
		}
		a, err := c.get(ctx, p.api(""))
		if nothingThere(err) {
			return noDestination(p)
		}
		return c.printDestination(a, err)
	})
}

// printDestination prints a destination, its fields beside one another.
func (c *call) printDestination(a *answer, err error) error {
	if err != nil || c.format() != formatTable && c.String("field") == "" {
		return c.printOr(a, err)
	}
	c.printWarnings(a)
	var rows []row
	for _, r := range answerRows(a) {
		if fields, ok := r.value.(map[string]any); ok && (r.key == "connection_details" || r.key == "options") {
			rows = append(rows, dataRows(fields)...)
			continue
		}
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.key, b.key) })
	if c.String("field") != "" {
		return c.printField(rows)
	}
	return c.printTable(rows)
}

func syncWriteCommand() *cli.Command {
	return command(spec{
		name: "write", args: "DESTINATION [DATA …]", min: 1, max: -1, usage: "make or change a destination",
		help: `Makes a destination, or changes the fields that are given.

` + writeHelp + `
Credentials belong into files or stdin, where other users of the machine do not see them; only this command reads them, the server
never does.

-verify then tries out whether the destination can be reached and allows what is needed; the exit status is 2 if it does not.

Examples:

  $ coffer sync destinations write -verify cloud3-sm/prod credentials=@key.json
  $ coffer sync destinations write repohost/web access_token=- repository_owner=acme repository_name=web
  $ coffer sync destinations write cloud1-sm/prod secret_name_template='prod/{{ .SecretPath }}'`,
		flags: []cli.Flag{&cli.BoolFlag{Name: "verify", Usage: "try it out afterwards"}, fieldFlag()},
	}, func(ctx context.Context, c *call) error {
		p, err := c.place()
		if err != nil {
			return err
		}
		data, err := c.parseData(ctx, c.Args().Tail())
		if err != nil {
			return err
		}
		if c.Bool("verify") && (c.String("field") != "" || c.Bool("output-curl-string")) {
			return usagef("-verify goes without -field and -output-curl-string")
		}
		a, err := c.put(ctx, p.api(""), data)
		if err != nil && strings.Contains(err.Error(), "being purged") {
			return withHint(err, "The command for that is: coffer patch "+p.api("")+" KEY=VALUE")
		}
		if err != nil {
			return err
		}
		if !c.Bool("verify") {
			return c.printDestination(a, nil)
		}
		c.printWarnings(a)
		c.sayf("Success! The destination %s is stored.\n", p)
		return c.verifyDestination(ctx, p)
	})
}

func syncDeleteCommand() *cli.Command {
	return command(spec{
		name: "delete", args: "DESTINATION", min: 1, max: 1, usage: "delete a destination",
		help: `Deletes a destination that has no associations. -purge ends those that there are, with what was synced, and deletes the destination
behind the last one, in the background. -force deletes it at once and leaves what was synced where it is, without an owner.

Examples:

  $ coffer sync destinations delete cloud1-sm/prod
  $ coffer sync destinations delete -purge cloud1-sm/prod`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "purge", Usage: "remove what was synced, first"},
			&cli.BoolFlag{Name: "force", Usage: "leave what was synced, and forget about it"},
		},
	}, func(ctx context.Context, c *call) error {
		p, err := c.place()
		if err != nil {
			return err
		}
		r := request{method: http.MethodDelete, path: p.api(""), query: map[string][]string{}}
		for flag, field := range map[string]string{"purge": "purge", "force": "force_delete"} {
			if c.Bool(flag) {
				r.query.Set(field, "true")
			}
		}
		if len(r.query) == 2 {
			return usagef("-purge and -force exclude each other")
		}
		a, err := c.send(ctx, r)
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		if a.data()["purge_initiated_at"] != nil {
			c.sayf("Success! The destination %s goes when all that was synced there has gone; coffer sync status -watch %s shows how far that is.", p, p)
			return nil
		}
		c.sayf("Success! The destination %s is deleted (if it existed).", p)
		return nil
	})
}

func syncVerifyCommand() *cli.Command {
	return command(spec{
		name: "verify", args: "DESTINATION", min: 1, max: 1, usage: "try out whether a destination works",
		help: `Tries out whether a destination can be reached, lets the server in and allows what is needed, without leaving anything there. What
cannot be tried without writing is unknown. The exit status is 2 if something fails.

Examples:

  $ coffer sync destinations verify cloud1-sm/prod
  $ coffer sync destinations verify -format=json cloud1-sm/prod`,
	}, func(ctx context.Context, c *call) error {
		p, err := c.place()
		if err != nil {
			return err
		}
		return c.verifyDestination(ctx, p)
	})
}

func (c *call) verifyDestination(ctx context.Context, p place) error {
	a, err := c.postTo(ctx, p, "/verify", map[string]any{})
	if err != nil {
		return err
	}
	var out struct {
		Data struct {
			OK     bool
			Checks []struct{ Name, Result, Text string }
		}
	}
	if err := json.Unmarshal(a.raw, &out); err != nil {
		return serverErrorf("the answer does not say what was tried")
	}
	if c.format() != formatTable {
		err = c.printAnswer(a)
	} else {
		c.printWarnings(a)
		var rows [][]string
		for _, check := range out.Data.Checks {
			rows = append(rows, []string{text(check.Name), text(check.Result), text(check.Text)})
		}
		err = c.printColouredColumns([]string{"Check", "Status", "What Was Seen"}, rows)
	}
	if err == nil && !out.Data.OK {
		err = &exitError{code: exitServer}
	}
	return err
}

// syncDestinationPauseCommand is pause or resume of a destination.
func syncDestinationPauseCommand(pause bool) *cli.Command {
	s := spec{
		name: "resume", args: "DESTINATION", min: 1, max: 1, usage: "go on syncing to a destination",
		help: `Goes on syncing to a destination. What has changed meanwhile is done now.

Examples:

  $ coffer sync destinations resume cloud1-sm/prod
  $ coffer sync status -watch cloud1-sm/prod`,
	}
	done := "%s is synced again."
	if pause {
		s.name, s.usage, done = "pause", "stop syncing to a destination for a while", "Syncing %s is paused."
		s.help = `Stops syncing to a destination: nothing there changes until it is resumed.

Examples:

  $ coffer sync destinations pause cloud1-sm/prod
  $ coffer sync destinations resume cloud1-sm/prod`
	}
	return command(s, func(ctx context.Context, c *call) error {
		p, err := c.place()
		if err != nil {
			return err
		}
		a, err := c.postTo(ctx, p, "/"+s.name, map[string]any{})
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		c.sayf("Success! "+done, p)
		return nil
	})
}
