package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/urfave/cli/v3"
)

const replicationPath = "sys/replication/performance/"

func replicationCommand() *cli.Command {
	return group("replication", "let other clusters follow this one", `Performance replication: one cluster is the primary, others are its secondaries. They hold the mounts, policies and identities that
the primary shares with them, answer reads by themselves and hand writes on. Tokens, leases and local mounts stay where they are.
docs/replication.md leads through it.

Examples:

  $ coffer replication primary enable
  $ coffer replication primary secondary-token eu
  $ coffer replication status -watch`,
		primaryCommand(), secondaryCommand(), replicationStatusCommand(), conflictsCommand(), repairCommand())
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Usage: "do not ask first"}
}

// confirm has what is about to happen agreed to, by -yes or at the terminal.
func (c *call) confirm(ctx context.Context, what string) error {
	if c.Bool("yes") || c.Bool("output-curl-string") {
		return nil
	}
	if !isTerminal(c.in) {
		return usagef("%s, and stdin is no terminal to ask on; -yes goes ahead without asking", what)
	}
	fmt.Fprintf(c.err, "%s. Go ahead? Type yes: ", strings.ToUpper(what[:1])+what[1:])
	line, err := interruptible(ctx, func() ([]byte, error) { return bufio.NewReader(c.in).ReadBytes('\n') })
	if ctx.Err() != nil {
		fmt.Fprintln(c.err)
		return ctx.Err()
	}
	if strings.ToLower(strings.TrimSpace(string(line))) != "yes" || err != nil {
		return usagef("nothing was changed")
	}
	return nil
}

// change sends one operation of replication and says what has been done by it.
func (c *call) change(ctx context.Context, path string, body map[string]any, done string) error {
	a, err := c.send(ctx, request{method: http.MethodPost, path: replicationPath + path, body: body})
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printAnswer(a)
	}
	c.printWarnings(a)
	c.sayf("Success! %s", done)
	return nil
}

func conflictsCommand() *cli.Command {
	return command(spec{
		name: "conflicts", args: "[PATH | KEY]", max: 1, usage: "list what was replaced here because the primary had something else",
		help: `Lists what only this cluster had, when it began to follow a primary whose history does not contain it: what was written to it after
another cluster had been promoted by force. Nothing is merged. The values are kept; with a PATH, or the KEY that -format=json shows, its own
is shown, in base64.

Examples:

  $ coffer replication conflicts
  $ coffer replication conflicts secret/app`,
	}, conflicts)
}

func conflicts(ctx context.Context, c *call) error {
	r := request{method: http.MethodGet, path: replicationPath + "conflicts"}
	if c.arg(0) != "" {
		r.query = map[string][]string{"key": {c.arg(0)}}
	}
	a, err := c.send(ctx, r)
	if nothingThere(err) && c.arg(0) != "" {
		return serverErrorf("nothing of %q was replaced here", c.arg(0))
	}
	if err != nil {
		return err
	}
	if c.format() != formatTable || c.arg(0) != "" {
		return c.printAnswer(a)
	}
	list, _ := a.data()["conflicts"].([]any)
	if len(list) == 0 {
		c.sayf("There are none.")
		return nil
	}
	var rows [][]string
	for _, e := range list {
		m, _ := e.(map[string]any)
		rows = append(rows, []string{strings.TrimSpace(text(m["path"]) + " " + partText(m["part"])), text(m["mine"]), text(m["theirs"]), text(m["at"])})
	}
	return c.printColumns([]string{"Path", "Position Here", "Position There", "Replaced At"}, rows)
}

// partText says in brackets which part of what is at a path a conflict is about.
func partText(v any) string {
	if name, _ := v.(string); name != "" {
		return "(" + name + ")"
	}
	return ""
}

func repairCommand() *cli.Command {
	return command(spec{
		name: "repair", usage: "compare everything with the primary",
		help: `Makes a secondary compare all it has with its primary and fetch what differs. It serves reads meanwhile. Checkpoints find
differences by themselves; this is for when something looks wrong all the same.

Examples:

  $ coffer replication repair
  $ coffer replication status -watch`,
	}, func(ctx context.Context, c *call) error {
		a, err := c.send(ctx, request{method: http.MethodPost, path: "sys/replication/recover", body: map[string]any{}})
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		c.sayf("Success! The comparison has begun; coffer replication status -watch shows how far it is.")
		return nil
	})
}
