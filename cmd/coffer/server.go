package main

import (
	"cmp"
	"context"
	"slices"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/cmd/coffer/node"
	"github.com/coffer-project/coffer/cmd/coffer/node/dev"
	"github.com/urfave/cli/v3"
)

// execute replaces the process image. main sets it: nil, as in tests that run a server in their own process, lets a
// server that is sealed go on in the same process.
var execute func(path string, args, env []string) error

func serverCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "server", Usage: "run a server", Local: true, Max: 0,
		Help: `Runs one node until it is interrupted. Send SIGHUP to reload TLS certificates, log level,
custom response headers, audit and user_lockout stanzas, and to reopen audit and log files.

Examples:

  $ coffer server -dev
  $ coffer server -config=/etc/coffer/coffer.hcl`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "config", Usage: "file or directory with the configuration; may be repeated"},
			&cli.BoolFlag{Name: "check", Usage: "check the configuration, list every problem, and stop"},
			&cli.StringFlag{Name: "log-level", Usage: "trace, debug, info, warn or error (overrides the configuration)"},
			&cli.StringFlag{Name: "log-format", Usage: "text or json (overrides the configuration)"},
			&cli.StringFlag{Name: "log-file", Usage: "file for the log (overrides the configuration)"},
			&cli.StringFlag{Name: "log-rotate-bytes", Usage: "size at which the log file is moved away (overrides the configuration, as do the other two)"},
			&cli.StringFlag{Name: "log-rotate-duration", Usage: "time after which the log file is moved away, such as 24h"},
			&cli.StringFlag{Name: "log-rotate-max-files", Usage: "older log files that are kept; -1: none"},
			&cli.BoolFlag{Name: "exit-on-core-shutdown", Hidden: true, Usage: "does nothing: the server always exits when it cannot go on"},
			&cli.BoolFlag{Name: "dev", Usage: "start one unsealed node for development, with its data in a temporary directory"},
			&cli.StringFlag{Name: "dev-root-token-id", Usage: "root token of the development server (default: a random one)"},
			&cli.StringFlag{Name: "dev-listen-address", Usage: "address of the development server (default: 127.0.0.1:8200)"},
			&cli.StringFlag{Name: "dev-data-dir", Usage: "keep the development server's data in this directory"},
			&cli.BoolFlag{Name: "dev-ha", Usage: "start a development cluster of three nodes, at the address and the five ports after it"},
			&cli.BoolFlag{Name: "dev-three-node", Hidden: true, Usage: "the same as -dev-ha"},
			&cli.BoolFlag{Name: "dev-tls", Usage: "start a development server with TLS, by a CA of its own"},
			&cli.StringFlag{Name: "dev-tls-cert-dir", Usage: "keep the certificates of -dev-tls in this directory (default: a temporary one)"},
			&cli.StringSliceFlag{Name: "dev-tls-san", Usage: "another name or IP address for the certificate of -dev-tls; may be repeated"},
			&cli.BoolFlag{Name: "dev-no-kv", Usage: "start a development server without a secrets engine at secret/"},
			&cli.BoolFlag{Name: "dev-kv-v1", Usage: "start a development server with version 1 of the kv engine at secret/"},
			&cli.BoolFlag{Name: "dev-no-store-token", Usage: "do not save the root token for the other commands"},
		},
	}, func(ctx context.Context, c *command.Call) error {
		return node.Run(ctx, node.Options{
			Config: c.StringSlice("config"), Check: c.Bool("check"), LogLevel: c.String("log-level"), LogFormat: c.String("log-format"), LogFile: c.String("log-file"),
			Rotation: map[string]string{
				"log_rotate_bytes": c.String("log-rotate-bytes"), "log_rotate_duration": c.String("log-rotate-duration"), "log_rotate_max_files": c.String("log-rotate-max-files"),
			},
			Dev: dev.Options{
				On:        slices.ContainsFunc([]string{"dev", "dev-tls", "dev-no-kv", "dev-kv-v1", "dev-ha"}, c.Bool),
				Three:     c.Bool("dev-ha") || c.Bool("dev-three-node"),
				RootToken: cmp.Or(c.String("dev-root-token-id"), local.Env("DEV_ROOT_TOKEN_ID")),
				Listen:    cmp.Or(c.String("dev-listen-address"), local.Env("DEV_LISTEN_ADDRESS"), "127.0.0.1:8200"),
				TLS:       c.Bool("dev-tls"), TLSDir: c.String("dev-tls-cert-dir"), TLSNames: c.StringSlice("dev-tls-san"),
				NoKV: c.Bool("dev-no-kv"), KV1: c.Bool("dev-kv-v1"),
				Dir: c.String("dev-data-dir"), KeepToken: !c.Bool("dev-no-store-token"),
			},
			Version: version(), Execute: execute, Out: c.Out, Err: c.Err,
		})
	})
}
