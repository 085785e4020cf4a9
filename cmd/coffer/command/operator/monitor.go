package operator

import (
	"context"
	"io"
	"net/http"

	"github.com/urfave/cli/v3"

	"github.com/coffer-project/coffer/cmd/coffer/command"
)

// MonitorCommand prints a node's log as it is written.
func MonitorCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "monitor", Usage: "print the log of the server asked as it is written",
		Help: `Prints the log of the server asked, as it is written, until interrupted. The level is for this command only: what the server writes to its
own log stays as it is.

Examples:

  $ coffer monitor
  $ coffer monitor -log-level=debug -log-format=json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "lowest `LEVEL` to print: trace, debug, info, warn or error"},
			&cli.StringFlag{Name: "log-format", Value: "standard", Usage: "standard (text) or json"},
		},
	}, func(ctx context.Context, c *command.Call) error {
		client, err := c.SendingClient()
		if err != nil {
			return err
		}
		client.SetClientTimeout(0)
		req := client.NewRequest(http.MethodGet, "/v1/sys/monitor")
		req.Params.Set("log_level", c.String("log-level"))
		req.Params.Set("log_format", c.String("log-format"))
		resp, err := client.RawRequestWithContext(ctx, req)
		if err != nil {
			return c.Failed(http.MethodGet, "sys/monitor", err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(c.Out, resp.Body); err != nil && ctx.Err() == nil {
			return c.Failed(http.MethodGet, "sys/monitor", err)
		}
		return nil
	})
}
