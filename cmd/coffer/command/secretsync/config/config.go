// Package config has "coffer sync config".
package config

import (
	"context"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

// Command is "coffer sync config".
func Command() *cli.Command {
	return command.New(command.Spec{
		Name: "config", Args: "[KEY=VALUE …]", Max: -1, Usage: "show or change how secret sync works as a whole",
		Help: `Shows the configuration of secret sync, or changes it: "disabled" stops all syncing until it is false again, "queue_capacity" bounds how
much may be associated, "drift_interval" is how often destinations are checked for drift. "notification_url" is told of failures, with
requests that are signed with "notification_signing_key"; an empty one ends that. -reset goes back to the defaults. In the root namespace
only.

Examples:

  $ coffer sync config
  $ coffer sync config disabled=true
  $ coffer sync config drift_interval=15m
  $ coffer sync config notification_url=https://ops.example.com/coffer notification_signing_key=@key
  $ coffer sync config -reset`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "reset", Usage: "go back to the defaults"}, command.FieldFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		data, err := c.ParseData(ctx, c.Args().Slice())
		if err != nil {
			return err
		}
		r := command.Request{Method: http.MethodGet, Path: "sys/sync/config"}
		switch {
		case c.Bool("reset") && len(data) > 0:
			return command.Usagef("-reset goes without settings")
		case c.Bool("reset"):
			r.Method = http.MethodDelete
		case len(data) > 0:
			r.Method, r.Body = http.MethodPatch, data
		}
		return c.PrintOr(c.Send(ctx, r))
	})
}
