// Package operator has the commands for the operators of servers: status, keys and their ceremonies, seal, members and the Raft cluster.
// Snapshots are in package snapshot.
package operator

import (
	"cmp"
	"context"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/snapshot"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

// Command is "coffer operator". diagnose comes from outside: it needs the parts of a server, which no other command does.
func Command(diagnose *cli.Command) *cli.Command {
	return command.Group("operator", "run the cluster: keys, seal, members, snapshots", `Commands for those who run the servers.

Examples:

  $ coffer operator init -key-shares=5 -key-threshold=3
  $ coffer operator raft list-peers`,
		initCommand(), unsealCommand(), sealCommand(), stepDownCommand(), membersCommand(), keyStatusCommand(), rotateCommand(),
		rekeyCommand(), generateRootCommand(),
		raftCommand(), snapshot.Command(), waitCommand(), diagnose)
}

func sealCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "seal", Usage: "make the server forget its keys until it is unsealed again",
		Help: `Seals the server: it leaves the cluster and restarts in place, with nothing in memory, and serves nothing until it is unsealed or,
with an automatic seal, the service is restarted. Meant for an intrusion, not for maintenance, where "coffer operator step-down"
or stopping the process do.

Examples:

  $ coffer operator seal
  $ coffer operator seal -address=https://10.0.0.7:8200`,
	}, func(ctx context.Context, c *command.Call) error {
		if _, err := c.Put(ctx, "sys/seal", nil); err != nil {
			return err
		}
		c.Sayf("Success! The server is sealed.")
		return nil
	})
}

func stepDownCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "step-down", Usage: "make the active node hand over to another",
		Help: `Makes the active node give up its role, so that another node of the cluster becomes active. Nothing is lost.

Examples:

  $ coffer operator step-down
  $ coffer operator step-down -address=https://10.0.0.7:8200`,
	}, func(ctx context.Context, c *command.Call) error {
		if _, err := c.Put(ctx, "sys/step-down", nil); err != nil {
			return err
		}
		c.Sayf("Success! The active node has stepped down.")
		return nil
	})
}

func membersCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "members", Usage: "list the nodes and which is active",
		Help: `Lists the unsealed nodes of the cluster, their addresses and which of them is active.

Examples:

  $ coffer operator members
  $ coffer operator members -format=json`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Get(ctx, "sys/ha-status")
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintRaw(a.Raw)
		}
		var s struct {
			Nodes []struct {
				api.HANode
				NodeID string `json:"node_id"`
				Disk   string
			}
		}
		if err := command.DecodeRaw(a.Raw, &s); err != nil {
			return command.ServerErrorf("the answer is not a list of nodes: %v", err)
		}
		rows := make([][]string, len(s.Nodes))
		for i, n := range s.Nodes {
			echo := "n/a"
			if n.LastEcho != nil {
				echo = table.Cell("", *n.LastEcho)
			}
			host := n.Hostname
			if host == n.NodeID { // the server knows the name of its own machine only
				host = "-"
			}
			rows[i] = []string{table.Cell("", n.NodeID), table.Printable(host), table.Cell("", n.APIAddress), table.Cell("", n.ClusterAddress), table.Cell("", n.ActiveNode), table.Cell("", n.Version), echo, table.Printable(cmp.Or(n.Disk, "-"))}
		}
		return c.PrintColumns([]string{"Node", "Host Name", "API Address", "Cluster Address", "Active Node", "Version", "Last Echo", "Disk"}, rows)
	})
}

func keyStatusCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "key-status", Usage: "show the age of the encryption key in use",
		Help: `Shows the term of the key new values are encrypted with, since when it is in use and how often it was.

Examples:

  $ coffer operator key-status
  $ coffer operator key-status -format=json`,
		Flags: []cli.Flag{command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error { return printKeyStatus(ctx, c) })
}

func printKeyStatus(ctx context.Context, c *command.Call) error {
	a, err := c.Get(ctx, "sys/key-status")
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable || c.String("field") != "" {
		return c.PrintResponse(a)
	}
	d := a.Data()
	return c.PrintTable([]response.Row{
		{Key: "Key Term", Value: d["term"]}, {Key: "Install Time", Value: d["install_time"]}, {Key: "Encryption Count", Value: d["encryptions"]},
	})
}
