package secretsync

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/columns"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/terms"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func planCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "plan", Args: "DESTINATION [SECRET]", Min: 1, Max: 2, Usage: "show what syncing would do, and change nothing",
		Help: `Shows name by name what would be created, updated and deleted at a destination, and what would be rejected or be a conflict, with the
reason. Values are never shown. With a SECRET it shows what associating that would do; the flags are those of "coffer sync associate".
What is as it should be is counted only, unless -all is given.

Examples:

  $ coffer sync plan cloud1-sm/prod
  $ coffer sync plan -template='prod/{{ .SecretPath }}' cloud1-sm/prod secret/app
  $ coffer sync plan -prefix repohost/web secret/ci/`,
		Flags: append(append(terms.Flags(), mountFlag(), prefixFlag()), &cli.BoolFlag{Name: "all", Usage: "show what is as it should be, too"}),
	}, func(ctx context.Context, c *command.Call) error {
		p, body, err := association(ctx, c)
		if err != nil {
			return err
		}
		if err := terms.Add(ctx, c, body); err != nil {
			return err
		}
		a, err := postTo(ctx, c, p, "/plan", body)
		if err != nil || c.Format() != command.FormatTable {
			return c.PrintOr(a, err)
		}
		c.PrintWarnings(a)
		var out struct {
			Data struct {
				Actions []change
				Totals  map[string]int
			}
		}
		if err := json.Unmarshal(a.Raw, &out); err != nil {
			return command.ServerErrorf("the answer is not a plan")
		}
		return printPlan(c, out.Data.Actions, out.Data.Totals)
	})
}

// change is one name in a plan, or in what a scan for drift has found.
type change struct {
	Mount  string `json:"mount"`
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key"`
	Name   string `json:"external_name"`
	Action string `json:"action"`
	Reason string `json:"reason"`
	Drift  string `json:"drift"`
}

// secret is the secret's path, as far as the server tells it.
func (ch *change) secret() string {
	if ch.Mount == "" {
		return table.Printable(ch.Secret)
	}
	return table.Printable(strings.TrimSuffix(ch.Mount, "/") + "/" + ch.Secret)
}

// planWords say how many of an action there are, if "to" and its name do not.
var planWords = map[string]string{"conflict": "in conflict", "refuse": "refused", "wait": "waiting"}

func printPlan(c *command.Call, changes []change, totals map[string]int) error {
	rows := columns.Heading([]string{"Action", "Secret", "Key", "External Name", "Reason"})
	for _, ch := range changes {
		if ch.Action != "none" || c.Bool("all") {
			rows = append(rows, []string{table.Printable(ch.Action), ch.secret(), columns.Dashed(ch.Key), columns.Dashed(ch.Name), columns.Dashed(ch.Reason)})
		}
	}
	if len(rows) > 2 {
		if err := command.StyleOf(c.Out).Write(c.Out, rows); err != nil {
			return err
		}
		fmt.Fprintln(c.Out)
	}
	var parts []string
	for _, action := range slices.Sorted(maps.Keys(totals)) {
		if action != "none" {
			parts = append(parts, fmt.Sprintf("%d %s", totals[action], cmp.Or(planWords[action], "to "+table.Printable(action))))
		}
	}
	parts = append(parts, fmt.Sprintf("%d as they should be", totals["none"]))
	line := strings.Join(parts, ", ")
	if len(changes) == 0 {
		line = "Nothing would be done: there is no secret to be synced, or no key of one."
	}
	_, err := fmt.Fprintln(c.Out, line)
	return err
}

func driftCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "drift", Args: "DESTINATION", Min: 1, Max: 1, Usage: "check what other clients have changed at a destination",
		Help: `Compares what is at a destination with what was written there, now. What was changed or removed by another client is reported, or
repaired, as the association's drift policy says. It costs a listing, whatever the number of secrets, and reads no values. The server does
so by itself every hour. The exit status is 2 if there is something that is not being repaired.

Examples:

  $ coffer sync drift cloud1-sm/prod
  $ coffer sync drift -format=json cloud1-sm/prod`,
	}, func(ctx context.Context, c *command.Call) error {
		p, err := destinationArg(c)
		if err != nil {
			return err
		}
		a, err := postTo(ctx, c, p, "/drift", map[string]any{})
		if err != nil {
			return err
		}
		var out struct {
			Data struct {
				Drifted []change
				Names   int
			}
		}
		if err := json.Unmarshal(a.Raw, &out); err != nil {
			return command.ServerErrorf("the answer does not say what differs")
		}
		if c.Format() != command.FormatTable {
			err = c.PrintResponse(a)
		} else {
			c.PrintWarnings(a)
			err = printDrift(c, out.Data.Drifted, out.Data.Names)
		}
		if err == nil && slices.ContainsFunc(out.Data.Drifted, func(d change) bool { return d.Action != "repaired" }) {
			err = &command.ExitError{Code: command.ExitServer}
		}
		return err
	})
}

func printDrift(c *command.Call, drifted []change, names int) error {
	rows := columns.Heading([]string{"Drift", "Secret", "Key", "External Name", "Done"})
	for _, d := range drifted {
		rows = append(rows, []string{table.Printable(d.Drift), d.secret(), columns.Dashed(d.Key), table.Printable(d.Name), table.Printable(d.Action)})
	}
	if len(drifted) > 0 {
		if err := command.StyleOf(c.Out).Write(c.Out, rows); err != nil {
			return err
		}
		fmt.Fprintln(c.Out)
	}
	_, err := fmt.Fprintf(c.Out, "%d of %d names differ\n", len(drifted), names)
	return err
}
