// Package replication has the commands for replication between clusters: roles, tokens, path filters, conflicts, and the status,
// once or watched.
package replication

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

const apiPath = "sys/replication/performance/"

func Command() *cli.Command {
	return command.Group("replication", "let other clusters follow this one", `Performance replication: one cluster is the primary, others are its secondaries. They hold the mounts, policies and identities that
the primary shares with them, answer reads by themselves and hand writes on. Tokens, leases and local mounts stay where they are.
docs/replication.md leads through it.

Examples:

  $ coffer replication primary enable
  $ coffer replication primary secondary-token eu
  $ coffer replication status -watch`,
		primaryCommand(), secondaryCommand(), statusCommand(), waitCommand(), conflictsCommand(), repairCommand())
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Usage: "do not ask first"}
}

// confirm has what is about to happen agreed to, by -yes or at the terminal.
func confirm(ctx context.Context, c *command.Call, what string) error {
	if c.Bool("yes") || c.Bool("output-curl-string") {
		return nil
	}
	if !command.IsTerminal(c.In) {
		return command.Usagef("%s, and stdin is no terminal to ask on; -yes goes ahead without asking", what)
	}
	fmt.Fprintf(c.Err, "%s. Go ahead? Type yes: ", strings.ToUpper(what[:1])+what[1:])
	line, err := command.Interruptible(ctx, func() ([]byte, error) { return bufio.NewReader(c.In).ReadBytes('\n') })
	if ctx.Err() != nil {
		fmt.Fprintln(c.Err)
		return ctx.Err()
	}
	if strings.ToLower(strings.TrimSpace(string(line))) != "yes" || err != nil {
		return command.Usagef("nothing was changed")
	}
	return nil
}

// change sends one operation of replication and says what has been done by it.
func change(ctx context.Context, c *command.Call, path string, body map[string]any, done string) error {
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: apiPath + path, Body: body})
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintResponse(a)
	}
	c.PrintWarnings(a)
	c.Sayf("Success! %s", done)
	return nil
}

func conflictsCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "conflicts", Args: "[PATH | KEY]", Max: 1, Usage: "list what was replaced here because the primary had something else",
		Help: `Lists what only this cluster had, when it began to follow a primary whose history does not contain it: what was written to it after
another cluster had been promoted by force. Nothing is merged. The values are kept; with a PATH, or the KEY that -format=json shows, its own
is shown, in base64.

Examples:

  $ coffer replication conflicts
  $ coffer replication conflicts secret/app`,
	}, conflicts)
}

func conflicts(ctx context.Context, c *command.Call) error {
	r := command.Request{Method: http.MethodGet, Path: apiPath + "conflicts"}
	if c.Arg(0) != "" {
		r.Query = map[string][]string{"key": {c.Arg(0)}}
	}
	a, err := c.Send(ctx, r)
	if command.NothingThere(err) && c.Arg(0) != "" {
		return command.ServerErrorf("nothing of %q was replaced here", c.Arg(0))
	}
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable || c.Arg(0) != "" {
		return c.PrintResponse(a)
	}
	list, _ := a.Data()["conflicts"].([]any)
	if len(list) == 0 {
		c.Sayf("There are none.")
		return nil
	}
	var rows [][]string
	for _, e := range list {
		m, _ := e.(map[string]any)
		rows = append(rows, []string{strings.TrimSpace(table.Text(m["path"]) + " " + partText(m["part"])), table.Text(m["mine"]), table.Text(m["theirs"]), table.Text(m["at"])})
	}
	return c.PrintColumns([]string{"Path", "Position Here", "Position There", "Replaced At"}, rows)
}

// partText says in brackets which part of what is at a path a conflict is about.
func partText(v any) string {
	if name, _ := v.(string); name != "" {
		return "(" + name + ")"
	}
	return ""
}

func repairCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "repair", Usage: "compare everything with the primary",
		Help: `Makes a secondary compare all it has with its primary and fetch what differs. It serves reads meanwhile. Checkpoints find
differences by themselves; this is for when something looks wrong all the same.

Examples:

  $ coffer replication repair
  $ coffer replication status -watch`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: "sys/replication/recover", Body: map[string]any{}})
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		c.Sayf("Success! The comparison has begun; coffer replication status -watch shows how far it is.")
		return nil
	})
}
