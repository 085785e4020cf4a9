package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

func syncPlanCommand() *cli.Command {
	return command(spec{
		name: "plan", args: "DESTINATION [SECRET]", min: 1, max: 2, usage: "show what syncing would do, and change nothing",
		help: `Shows name by name what would be created, updated and deleted at a destination, and what would be refused or be a conflict, with the
reason. Values are never shown. With a SECRET it shows what associating that would do; the flags are those of "coffer sync associate".
What is as it should be is counted only, unless -all is given.

Examples:

  $ coffer sync plan cloud1-sm/prod
  $ coffer sync plan -template='prod/{{ .SecretPath }}' cloud1-sm/prod secret/app
  $ coffer sync plan -prefix repohost/web secret/ci/`,
		flags: append(syncRuleFlags(), &cli.BoolFlag{Name: "all", Usage: "show what is as it should be, too"}),
	}, func(ctx context.Context, c *call) error {
		p, body, err := c.association(ctx)
		if err != nil {
			return err
		}
		if err := c.addRules(body); err != nil {
			return err
		}
		a, err := c.postTo(ctx, p, "/plan", body)
		if err != nil || c.format() != formatTable {
			return c.printOr(a, err)
		}
		c.printWarnings(a)
		var out struct {
			Data struct {
				Actions []syncChange
				Totals  map[string]int
			}
		}
		if err := json.Unmarshal(a.raw, &out); err != nil {
			return serverErrorf("the answer is not a plan")
		}
		return c.printPlan(out.Data.Actions, out.Data.Totals)
	})
}

// syncChange is one name in a plan, or in what a scan for drift has found.
type syncChange struct {
	Mount  string `json:"mount"`
	Secret string `json:"secret_name"`
	Key    string `json:"sub_key"`
	Name   string `json:"external_name"`
	Action string `json:"action"`
	Reason string `json:"reason"`
	Drift  string `json:"drift"`
}

// secret is the secret's path, as far as the server tells it.
func (ch *syncChange) secret() string {
	if ch.Mount == "" {
		return printable(ch.Secret)
	}
	return printable(strings.TrimSuffix(ch.Mount, "/") + "/" + ch.Secret)
}

// planWords say how many of an action there are, if "to" and its name do not.
var planWords = map[string]string{"conflict": "in conflict", "refuse": "refused", "wait": "waiting"}

func (c *call) printPlan(changes []syncChange, totals map[string]int) error {
	rows := heading([]string{"Action", "Secret", "Key", "External Name", "Reason"})
	for _, ch := range changes {
		if ch.Action != "none" || c.Bool("all") {
			rows = append(rows, []string{printable(ch.Action), ch.secret(), dashed(ch.Key), dashed(ch.Name), dashed(ch.Reason)})
		}
	}
	var out bytes.Buffer
	if len(rows) > 2 {
		if err := writeColumns(&out, rows); err != nil {
			return err
		}
		fmt.Fprintln(&out)
	}
	var parts []string
	for _, action := range slices.Sorted(maps.Keys(totals)) {
		if action != "none" {
			parts = append(parts, fmt.Sprintf("%d %s", totals[action], cmp.Or(planWords[action], "to "+printable(action))))
		}
	}
	parts = append(parts, fmt.Sprintf("%d as they should be", totals["none"]))
	line := strings.Join(parts, ", ")
	if len(changes) == 0 {
		line = "Nothing would be done: there is no secret to be synced, or no key of one."
	}
	fmt.Fprintln(&out, line)
	return c.printColoured(out.String())
}

func syncDriftCommand() *cli.Command {
	return command(spec{
		name: "drift", args: "DESTINATION", min: 1, max: 1, usage: "look for what others have changed at a destination",
		help: `Compares what is at a destination with what was written there, now. What was changed or removed by another client is reported, or
repaired, as the association's drift policy says. It costs a listing, whatever the number of secrets, and reads no values. The server does
so by itself every hour. The exit status is 2 if there is something that is not being repaired.

Examples:

  $ coffer sync drift cloud1-sm/prod
  $ coffer sync drift -format=json cloud1-sm/prod`,
	}, func(ctx context.Context, c *call) error {
		p, err := c.place()
		if err != nil {
			return err
		}
		a, err := c.postTo(ctx, p, "/drift", map[string]any{})
		if err != nil {
			return err
		}
		var out struct {
			Data struct {
				Drifted []syncChange
				Names   int
			}
		}
		if err := json.Unmarshal(a.raw, &out); err != nil {
			return serverErrorf("the answer does not say what differs")
		}
		if c.format() != formatTable {
			err = c.printAnswer(a)
		} else {
			c.printWarnings(a)
			err = c.printDrift(out.Data.Drifted, out.Data.Names)
		}
		if err == nil && slices.ContainsFunc(out.Data.Drifted, func(d syncChange) bool { return d.Action != "repaired" }) {
			err = &exitError{code: exitServer}
		}
		return err
	})
}

func (c *call) printDrift(drifted []syncChange, names int) error {
	rows := heading([]string{"Drift", "Secret", "Key", "External Name", "Done"})
	for _, d := range drifted {
		rows = append(rows, []string{printable(d.Drift), d.secret(), dashed(d.Key), printable(d.Name), printable(d.Action)})
	}
	var out bytes.Buffer
	if len(drifted) > 0 {
		if err := writeColumns(&out, rows); err != nil {
			return err
		}
		fmt.Fprintln(&out)
	}
	fmt.Fprintf(&out, "%d of %d names differ\n", len(drifted), names)
	return c.printColoured(out.String())
}
