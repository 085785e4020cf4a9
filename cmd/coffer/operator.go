package main

import (
	"cmp"
	"context"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func operatorCommand() *cli.Command {
	return group("operator", "run the cluster: keys, seal, members, snapshots", `Commands for those who run the servers.

Examples:

  $ coffer operator init -key-shares=5 -key-threshold=3
  $ coffer operator raft list-peers`,
		initCommand(), unsealCommand(), sealCommand(), stepDownCommand(), membersCommand(), keyStatusCommand(), rotateCommand(),
		rekeyCommand(), generateRootCommand(),
		raftCommand(), snapshotCommand(), diagnoseCommand())
}

func sealCommand() *cli.Command {
	return command(spec{
		name: "seal", usage: "make the server forget its keys until it is unsealed again",
		help: `Seals the server: it leaves the cluster and restarts in place, with nothing in memory, and serves nothing until it is unsealed or,
with an automatic seal, the service is restarted. Meant for an intrusion, not for maintenance, where "coffer operator step-down"
or stopping the process do.

Examples:

  $ coffer operator seal
  $ coffer operator seal -address=https://10.0.0.7:8200`,
	}, func(ctx context.Context, c *call) error {
		if _, err := c.put(ctx, "sys/seal", nil); err != nil {
			return err
		}
		c.sayf("Success! The server is sealed.")
		return nil
	})
}

func stepDownCommand() *cli.Command {
	return command(spec{
		name: "step-down", usage: "make the active node hand over to another",
		help: `Makes the active node give up its role, so that another node of the cluster becomes active. Nothing is lost.

Examples:

  $ coffer operator step-down
  $ coffer operator step-down -address=https://10.0.0.7:8200`,
	}, func(ctx context.Context, c *call) error {
		if _, err := c.put(ctx, "sys/step-down", nil); err != nil {
			return err
		}
		c.sayf("Success! The active node has stepped down.")
		return nil
	})
}

func membersCommand() *cli.Command {
	return command(spec{
		name: "members", usage: "list the nodes and which is active",
		help: `Lists the unsealed nodes of the cluster, their addresses and which of them is active.

Examples:

  $ coffer operator members
  $ coffer operator members -format=json`,
	}, func(ctx context.Context, c *call) error {
		a, err := c.get(ctx, "sys/ha-status")
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printRaw(a.raw)
		}
		var s struct {
			Nodes []struct {
				api.HANode
				Disk string
			}
		}
		if err := decodeRaw(a.raw, &s); err != nil {
			return serverErrorf("the answer is not a list of nodes: %v", err)
		}
		rows := make([][]string, len(s.Nodes))
		for i, n := range s.Nodes {
			echo := "n/a"
			if n.LastEcho != nil {
				echo = cell("", *n.LastEcho)
			}
			rows[i] = []string{cell("", n.Hostname), cell("", n.APIAddress), cell("", n.ClusterAddress), cell("", n.ActiveNode), cell("", n.Version), echo, printable(cmp.Or(n.Disk, "-"))}
		}
		return c.printColumns([]string{"Host Name", "API Address", "Cluster Address", "Active Node", "Version", "Last Echo", "Disk"}, rows)
	})
}

func keyStatusCommand() *cli.Command {
	return command(spec{
		name: "key-status", usage: "show the age of the encryption key in use",
		help: `Shows the term of the key new values are encrypted with, since when it is in use and how often it was.

Examples:

  $ coffer operator key-status
  $ coffer operator key-status -format=json`,
		flags: []cli.Flag{fieldFlag()},
	}, func(ctx context.Context, c *call) error { return printKeyStatus(ctx, c) })
}

func printKeyStatus(ctx context.Context, c *call) error {
	a, err := c.get(ctx, "sys/key-status")
	if err != nil {
		return err
	}
	if c.format() != formatTable || c.String("field") != "" {
		return c.printAnswer(a)
	}
	d := a.data()
	return c.printTable([]row{{"Key Term", d["term"]}, {"Install Time", d["install_time"]}, {"Encryption Count", d["encryptions"]}})
}
