package secretsync

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/columns"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func adoptCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "adopt", Args: "DESTINATION [SECRET [NAME …]]", Min: 1, Max: -1, Usage: "adopt names at the destination that have another owner",
		Help: `Has secrets whose status is CONFLICT adopt what is under their names at the destination: THE VALUES THERE ARE OVERWRITTEN, and from
then on the names are Coffer's, to be deleted with the secret. With a NAME only that one. With -prefix it adopts for all secrets
below a prefix or of a mount, with -all for all that are associated with the destination, in the background. Names that other
associations have are not adopted.

-equal adopts only what has the same value already, so that nothing changes for readers; repositories, and hosts of web sites, do not
let values be read back. -plan changes nothing, and shows what would be adopted and what not, with the reason.

Examples:

  $ coffer sync adopt cloud1-sm/prod secret/app
  $ coffer sync adopt -plan -equal -prefix cloud1-sm/prod secret/team/
  $ coffer sync adopt -equal cloud1-sm/prod
  $ coffer sync adopt repohost/web secret/ci DEPLOY_KEY`,
		Flags: []cli.Flag{
			mountFlag(), prefixFlag(),
			&cli.BoolFlag{Name: "equal", Usage: "adopt only what has the same value already"},
			&cli.BoolFlag{Name: "plan", Usage: "change nothing, and show what would be adopted"},
			&cli.BoolFlag{Name: "all", Usage: "without SECRET: all that is in conflict; -equal and -plan imply it"},
		},
	}, func(ctx context.Context, c *command.Call) error {
		p, body, err := association(ctx, c)
		if err != nil {
			return err
		}
		if c.Args().Len() > 2 {
			body["external_names"] = c.Args().Slice()[2:]
		}
		if len(body) == 0 {
			if !c.Bool("all") && !c.Bool("equal") && !c.Bool("plan") {
				return command.Usagef("name the secret, or -mount and -prefix; -all adopts, and overwrites, all that is in conflict at %s", p)
			}
			if mount := command.CleanPath(c.String("mount")); mount != "" {
				body["mount"] = mount
			}
		}
		for _, flag := range []string{"equal", "plan", "all"} {
			if c.Bool(flag) {
				body[flag] = true
			}
		}
		if c.Bool("plan") {
			return printPages(ctx, c, p, "/associations/adopt", body, map[string]string{"adopt": "to adopt", "skip": "skipped"}, "adopt")
		}
		a, err := postTo(ctx, c, p, "/associations/adopt", body)
		if err != nil {
			return err
		}
		if body["secret_name"] != nil {
			return printAssociated(c, a, p)
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		page, err := readPage(a)
		if err != nil {
			return err
		}
		if page.Totals["adopt"] == 0 {
			c.Sayf("Nothing there is in conflict with a name of another client, so there is nothing to adopt.")
			return nil
		}
		c.Sayf("Success! %d names are being adopted; coffer sync status -watch %s shows how far that is.", page.Totals["adopt"], p)
		return nil
	})
}

// page is one page of what is done about many names.
type page struct {
	Actions []change       `json:"actions"`
	Totals  map[string]int `json:"totals"`
	Next    string         `json:"next"`
}

func readPage(a *command.Response) (*page, error) {
	var out struct{ Data page }
	if err := json.Unmarshal(a.Raw, &out); err != nil {
		return nil, command.ServerErrorf("the answer does not show what is done about each name")
	}
	return &out.Data, nil
}

// printPages sends a request again until the last page of its response has come, and prints them as one. words say how many of each
// action there are, and main is the action that is counted while it goes on.
func printPages(ctx context.Context, c *command.Call, p destination, what string, body map[string]any, words map[string]string, main string) error {
	bar := c.Progress()
	defer bar.End()
	bar.Begin(words[main], 0)
	all := page{Actions: []change{}, Totals: map[string]int{}}
	for {
		a, err := postTo(ctx, c, p, what, body)
		if err != nil || c.Bool("output-curl-string") {
			return err
		}
		if len(all.Totals) == 0 || body["after"] == nil {
			c.PrintWarnings(a)
		}
		got, err := readPage(a)
		if err != nil {
			return err
		}
		all.Actions = append(all.Actions, got.Actions...)
		for action, n := range got.Totals {
			all.Totals[action] += n
		}
		if got.Next == "" {
			break
		}
		bar.Set(progress.State{What: words[main], Done: int64(all.Totals[main])})
		body["after"] = got.Next
	}
	bar.End()
	if c.Format() != command.FormatTable {
		return c.PrintValue(all)
	}
	var rows [][]string
	for _, ch := range all.Actions {
		rows = append(rows, []string{table.Printable(ch.Action), ch.secret(), columns.Dashed(ch.Key), columns.Dashed(ch.Name), columns.Dashed(ch.Reason)})
	}
	if len(rows) > 0 {
		if err := columns.Print(c, []string{"Action", "Secret", "Key", "External Name", "Reason"}, rows); err != nil {
			return err
		}
	}
	var parts []string
	for _, action := range slices.Sorted(maps.Keys(words)) {
		parts = append(parts, fmt.Sprintf("%d %s", all.Totals[action], words[action]))
	}
	c.Sayf("%s", strings.Join(parts, ", "))
	return nil
}
