package secretsync

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/columns"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func destinationsCommand() *cli.Command {
	return command.Group("destinations", "look after the places that secrets are synced to", `Commands for destinations, each named TYPE/NAME. The types are cloud1-sm, cloud1-ssm, cloud2-kv, cloud3-sm, gitlab, kubernetes,
repohost, webhook and webhost-project;
"coffer path-help sys/sync/destinations/TYPE/NAME" has the fields of each.

Examples:

  $ coffer sync destinations write cloud3-sm/prod credentials=@key.json
  $ coffer sync destinations verify cloud3-sm/prod`,
		listCommand(), readCommand(), writeCommand(), patchCommand(), deleteCommand(), verifyCommand(),
		pauseDestinationCommand(true), pauseDestinationCommand(false))
}

func listCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list", Args: "[TYPE]", Max: 1, Usage: "list destinations",
		Help: `Lists the destinations of the namespace, or those of a type: how many of their secrets are in sync, since when the oldest change waits,
whether the destination is called (closed) or not for a while (open), how many names have drifted and when that was last checked.

Examples:

  $ coffer sync destinations list
  $ coffer sync destinations list -format=json cloud1-sm`,
	}, func(ctx context.Context, c *command.Call) error {
		if kind := c.Path(0); kind != "" {
			return listType(ctx, c, kind)
		}
		destinations, health, err := listWithHealth(ctx, c)
		if err != nil || c.Bool("output-curl-string") {
			return err
		}
		names := make([]string, len(destinations))
		for i, p := range destinations {
			names[i] = p.String()
		}
		if len(health) == 0 || c.Format() != command.FormatTable {
			return c.PrintList("Destination", names)
		}
		return printHealth(c, names, health)
	})
}

// health is how a destination is doing.
type health struct {
	Links         map[string]int `json:"links"`
	OldestChange  *time.Time     `json:"oldest_unsynced_change"`
	Circuit       string         `json:"circuit"`
	CircuitUntil  *time.Time     `json:"circuit_open_until"`
	CircuitCode   string         `json:"circuit_code"`
	Drifted       int            `json:"drifted"`
	DriftAt       *time.Time     `json:"drift_checked_at"`
	DriftFailedAt *time.Time     `json:"drift_check_failed_at"`
	DriftCode     string         `json:"drift_check_code"`
}

// printHealth prints a table of destinations with their health.
func printHealth(c *command.Call, names []string, all map[string]health) error {
	now := time.Now()
	var rows [][]string
	for _, name := range names {
		h := all[name]
		secrets := 0
		for _, n := range h.Links {
			secrets += n
		}
		circuit, check := columns.Dashed(table.Printable(h.Circuit)), table.Ago(h.DriftAt, now)
		if h.CircuitUntil != nil {
			circuit += fmt.Sprintf(" until %s (%s)", h.CircuitUntil.UTC().Format("15:04:05 UTC"), table.Printable(h.CircuitCode))
		}
		if h.DriftFailedAt != nil {
			check += fmt.Sprintf(", failed %s (%s)", table.Ago(h.DriftFailedAt, now), table.Printable(h.DriftCode))
		}
		synced := fmt.Sprintf("%d of %d", h.Links[statusSynced]+h.Links[statusUnsynced], secrets)
		rows = append(rows, []string{table.Printable(name), synced, table.Ago(h.OldestChange, now), circuit, fmt.Sprint(h.Drifted), check})
	}
	return c.PrintColumns([]string{"Destination", "In Sync", "Oldest Change", "Circuit", "Drifted", "Drift Checked"}, rows)
}

// listType prints the names of the destinations of a type.
func listType(ctx context.Context, c *command.Call, kind string) error {
	a, err := c.Send(ctx, command.Request{Method: "LIST", Path: apiPath + "destinations/" + kind})
	if command.NothingThere(err) {
		return command.ServerErrorf("there are no destinations of type %s", table.Printable(kind))
	}
	if err != nil {
		return err
	}
	return c.PrintList("Name", command.StringsOf(a.Data()["keys"]))
}

// listDestinations returns all destinations of the namespace. None at all is an error.
func listDestinations(ctx context.Context, c *command.Call) ([]destination, error) {
	all, _, err := listWithHealth(ctx, c)
	return all, err
}

// listWithHealth also returns their health, by name, if the server says it.
func listWithHealth(ctx context.Context, c *command.Call) ([]destination, map[string]health, error) {
	a, err := c.Send(ctx, command.Request{Method: "LIST", Path: apiPath + "destinations"})
	if command.NothingThere(err) {
		return nil, nil, command.ServerErrorf("there are no destinations; coffer sync destinations write -h shows how to make one")
	}
	if command.StatusOf(err) == http.StatusForbidden {
		return nil, nil, command.WithHint(err, "The token may not list destinations. One that it may read can be named: coffer sync status TYPE/NAME")
	}
	if err != nil {
		return nil, nil, err
	}
	var out struct {
		Data struct {
			Info   map[string][]string `json:"key_info"`
			Health map[string]health   `json:"health"`
		}
	}
	if err := json.Unmarshal(a.Raw, &out); err != nil || len(out.Data.Info) == 0 {
		return nil, nil, command.ServerErrorf("the answer is not a list of destinations")
	}
	var all []destination
	for _, kind := range slices.Sorted(maps.Keys(out.Data.Info)) {
		for _, name := range out.Data.Info[kind] {
			all = append(all, destination{command.CleanPath(kind), name})
		}
	}
	return all, out.Data.Health, nil
}

func readCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "read", Args: "DESTINATION", Min: 1, Max: 1, Usage: "show a destination",
		Help: `Shows how a destination is configured, and how it is doing. Credentials are masked.

Examples:

  $ coffer sync destinations read cloud1-sm/prod
  $ coffer sync destinations read -field=region cloud1-sm/prod`,
		Flags: []cli.Flag{command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		p, err := destinationArg(c)
		if err != nil {
			return err
		}
		a, err := c.Get(ctx, p.api(""))
		if command.NothingThere(err) {
			return noDestination(p)
		}
		return printDestination(c, a, err)
	})
}

// printDestination prints a destination, its fields beside one another.
func printDestination(c *command.Call, a *command.Response, err error) error {
	if err != nil || c.Format() != command.FormatTable && c.String("field") == "" {
		return c.PrintOr(a, err)
	}
	c.PrintWarnings(a)
	var rows []response.Row
	for _, r := range response.Rows(a.Secret) {
		if fields, ok := r.Value.(map[string]any); ok && (r.Key == "connection_details" || r.Key == "options" || r.Key == "health") {
			rows = append(rows, response.Data(fields)...)
			continue
		}
		if left, ok := r.Value.(map[string]any); ok && r.Key == "left_behind" {
			r.Value = fmt.Sprint(table.Text(left["total"]), " names; -format=json lists them")
		}
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b response.Row) int { return strings.Compare(a.Key, b.Key) })
	if c.String("field") != "" {
		return c.PrintField(rows)
	}
	return c.PrintTable(rows)
}

func writeCommand() *cli.Command {
	return storeCommand(http.MethodPut, command.Spec{
		Name: "write", Usage: "make or replace a destination",
		Help: `Makes a destination, or replaces one: fields that are not given go back to their defaults. Credentials that are not given stay.
"coffer sync destinations patch" changes single fields.

` + command.DataHelp + `
Credentials belong into files or stdin, where other users of the machine do not see them; only this command reads them, the server
never does.

-verify then tries out whether the destination can be reached and allows what is needed; the exit status is 2 if it does not.

Examples:

  $ coffer sync destinations write -verify cloud3-sm/prod credentials=@key.json
  $ coffer sync destinations write repohost/web access_token=- repository_owner=acme repository_name=web
  $ coffer sync destinations write cloud1-sm/prod region=eu-central-1 secret_name_template='prod/{{ .SecretPath }}'`,
	})
}

func patchCommand() *cli.Command {
	return storeCommand(http.MethodPatch, command.Spec{
		Name: "patch", Usage: "change fields of a destination",
		Help: `Changes the fields that are given, and keeps the rest.

` + command.DataHelp + `

Examples:

  $ coffer sync destinations patch cloud1-sm/prod secret_name_template='prod/{{ .SecretPath }}'
  $ coffer sync destinations patch -verify repohost/web access_token=-`,
	})
}

// storeCommand sends the fields of a destination by method.
func storeCommand(method string, spec command.Spec) *cli.Command {
	spec.Args, spec.Min, spec.Max = "DESTINATION [DATA …]", 1, -1
	spec.Flags = []cli.Flag{&cli.BoolFlag{Name: "verify", Usage: "try it out afterwards"}, command.FieldFlag()}
	return command.New(spec, func(ctx context.Context, c *command.Call) error {
		p, err := destinationArg(c)
		if err != nil {
			return err
		}
		data, err := c.ParseData(ctx, c.Args().Tail())
		if err != nil {
			return err
		}
		if c.Bool("verify") && (c.String("field") != "" || c.Bool("output-curl-string")) {
			return command.Usagef("-verify goes without -field and -output-curl-string")
		}
		a, err := c.Send(ctx, command.Request{Method: method, Path: p.api(""), Body: data})
		if err != nil && strings.Contains(err.Error(), "being purged") {
			return command.WithHint(err, "The command for that is: coffer sync destinations patch "+p.String()+" KEY=VALUE")
		}
		if err != nil {
			return err
		}
		if !c.Bool("verify") {
			return printDestination(c, a, nil)
		}
		c.PrintWarnings(a)
		c.Sayf("Success! The destination %s is stored.\n", p)
		return verifyDestination(ctx, c, p)
	})
}

func deleteCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "delete", Args: "DESTINATION", Min: 1, Max: 1, Usage: "delete a destination",
		Help: `Deletes a destination that has no associations. -purge ends those that there are, with what was synced, and deletes the destination
behind the last one, in the background. -force deletes it at once and leaves what was synced where it is, without an owner, and lists it:
for a destination that cannot be used any more.

Examples:

  $ coffer sync destinations delete cloud1-sm/prod
  $ coffer sync destinations delete -purge cloud1-sm/prod`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "purge", Usage: "remove what was synced, first"},
			&cli.BoolFlag{Name: "force", Usage: "leave what was synced, and forget about it"},
		},
	}, func(ctx context.Context, c *command.Call) error {
		p, err := destinationArg(c)
		if err != nil {
			return err
		}
		r := command.Request{Method: http.MethodDelete, Path: p.api(""), Query: map[string][]string{}}
		for flag, field := range map[string]string{"purge": "purge", "force": "force_delete"} {
			if c.Bool(flag) {
				r.Query.Set(field, "true")
			}
		}
		if len(r.Query) == 2 {
			return command.Usagef("-purge and -force exclude each other")
		}
		a, err := c.Send(ctx, r)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		if err := printLeftBehind(c, a); err != nil {
			return err
		}
		if a.Data()["purge_initiated_at"] != nil {
			c.Sayf("Success! The destination %s goes when all that was synced there has gone; coffer sync status -watch %s shows how far that is.", p, p)
			return nil
		}
		c.Sayf("Success! The destination %s is deleted (if it existed).", p)
		return nil
	})
}

// printLeftBehind lists what stays at a destination that was deleted.
func printLeftBehind(c *command.Call, a *command.Response) error {
	var out struct {
		Data struct {
			Left struct {
				Total int
				Names []change
			} `json:"left_behind"`
		}
	}
	if a.Raw == nil || json.Unmarshal(a.Raw, &out) != nil || out.Data.Left.Total == 0 {
		return nil
	}
	left := out.Data.Left
	var rows [][]string
	for _, n := range left.Names {
		rows = append(rows, []string{table.Printable(n.Name), n.secret()})
	}
	if err := columns.Print(c, []string{"Left Behind", "Secret"}, rows); err != nil {
		return err
	}
	if more := left.Total - len(left.Names); more > 0 {
		c.Sayf("… and %d more", more)
	}
	return nil
}

func verifyCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "verify", Args: "DESTINATION", Min: 1, Max: 1, Usage: "try out whether a destination works",
		Help: `Tries out whether a destination can be reached, lets the server in and allows what is needed, without leaving anything there. What
cannot be tried without writing is unknown. The exit status is 2 if something fails.

Examples:

  $ coffer sync destinations verify cloud1-sm/prod
  $ coffer sync destinations verify -format=json cloud1-sm/prod`,
	}, func(ctx context.Context, c *command.Call) error {
		p, err := destinationArg(c)
		if err != nil {
			return err
		}
		return verifyDestination(ctx, c, p)
	})
}

func verifyDestination(ctx context.Context, c *command.Call, p destination) error {
	a, err := postTo(ctx, c, p, "/verify", map[string]any{})
	if err != nil {
		return err
	}
	var out struct {
		Data struct {
			OK     bool
			Checks []struct{ Name, Result, Text string }
		}
	}
	if err := json.Unmarshal(a.Raw, &out); err != nil {
		return command.ServerErrorf("the answer does not say what was tried")
	}
	if c.Format() != command.FormatTable {
		err = c.PrintResponse(a)
	} else {
		c.PrintWarnings(a)
		var rows [][]string
		for _, check := range out.Data.Checks {
			rows = append(rows, []string{table.Text(check.Name), table.Text(check.Result), table.Text(check.Text)})
		}
		err = columns.Print(c, []string{"Check", "Status", "What Was Seen"}, rows)
	}
	if err == nil && !out.Data.OK {
		err = &command.ExitError{Code: command.ExitServer}
	}
	return err
}

// pauseDestinationCommand is pause or resume of a destination.
func pauseDestinationCommand(pause bool) *cli.Command {
	s := command.Spec{
		Name: "resume", Args: "DESTINATION", Min: 1, Max: 1, Usage: "go on syncing to a destination",
		Help: `Goes on syncing to a destination. What has changed meanwhile is done now.

Examples:

  $ coffer sync destinations resume cloud1-sm/prod
  $ coffer sync status -watch cloud1-sm/prod`,
	}
	done := "%s is synced again."
	if pause {
		s.Name, s.Usage, done = "pause", "stop syncing to a destination for a while", "Syncing %s is paused."
		s.Help = `Stops syncing to a destination: nothing there changes until it is resumed.

Examples:

  $ coffer sync destinations pause cloud1-sm/prod
  $ coffer sync destinations resume cloud1-sm/prod`
	}
	return command.New(s, func(ctx context.Context, c *command.Call) error {
		p, err := destinationArg(c)
		if err != nil {
			return err
		}
		a, err := postTo(ctx, c, p, "/"+s.Name, map[string]any{})
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		c.Sayf("Success! "+done, p)
		return nil
	})
}
