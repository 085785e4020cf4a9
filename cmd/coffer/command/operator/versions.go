package operator

import (
	"context"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

// VersionHistoryCommand is "coffer version-history".
func VersionHistoryCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "version-history", Usage: "list the versions that the cluster has run",
		Help: `Lists the versions that have been active in this cluster, oldest first.

Examples:

  $ coffer version-history
  $ coffer version-history -format=json`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Send(ctx, command.Request{Method: "LIST", Path: "sys/version-history"})
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		about, _ := a.Data()["key_info"].(map[string]any)
		var rows [][]string
		for _, version := range command.StringsOf(a.Data()["keys"]) {
			info, _ := about[version].(map[string]any)
			rows = append(rows, []string{table.Printable(version), table.Text(info["timestamp_installed"]), table.Text(info["build_date"])})
		}
		return c.PrintColumns([]string{"Version", "Installation Time", "Build Date"}, rows)
	})
}
