package main

import (
	"context"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/node"
	"github.com/urfave/cli/v3"
)

// execute replaces the process image. main sets it: nil, as in tests that run a server in their own process, lets a
// server that is sealed go on in the same process.
var execute func(path string, args, env []string) error

func serverCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "server", Usage: "run a server", Local: true, Max: 0,
		Help: `Runs one node until it is interrupted. Send SIGHUP to reload TLS certificates and reopen audit
and log files.

Examples:

  $ coffer server -dev
  $ coffer server -config=/etc/coffer/coffer.hcl`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "config", Usage: "file or directory with the configuration; may be repeated"},
			&cli.BoolFlag{Name: "check", Usage: "check the configuration, list every problem, and stop"},
			&cli.StringFlag{Name: "log-level", Usage: "trace, debug, info, warn or error (overrides the configuration)"},
			&cli.BoolFlag{Name: "dev", Usage: "start one unsealed node for development, with its data in a temporary directory"},
			&cli.StringFlag{Name: "dev-root-token-id", Usage: "root token of the development server (default: a random one)"},
			&cli.StringFlag{Name: "dev-listen-address", Value: "127.0.0.1:8200", Usage: "address of the development server"},
			&cli.StringFlag{Name: "dev-data-dir", Usage: "keep the development server's data in this directory"},
			&cli.BoolFlag{Name: "dev-no-store-token", Usage: "do not save the root token for the other commands"},
		},
	}, func(ctx context.Context, c *command.Call) error {
		return node.Run(ctx, node.Options{
			Config: c.StringSlice("config"), Check: c.Bool("check"), LogLevel: c.String("log-level"),
			Dev: node.Dev{
				On: c.Bool("dev"), RootToken: c.String("dev-root-token-id"), Listen: c.String("dev-listen-address"),
				Dir: c.String("dev-data-dir"), KeepToken: !c.Bool("dev-no-store-token"),
			},
			Version: version(), Execute: execute, Out: c.Out, Err: c.Err,
		})
	})
}
