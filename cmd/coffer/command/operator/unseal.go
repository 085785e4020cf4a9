package operator

import (
	"context"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

func unsealCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "unseal", Args: "[KEY | -]", Max: 1, Usage: "give the server one of its unseal keys",
		Help: `Gives the server one share of its unseal key. It unseals once it has as many different shares as its threshold, which may be given by
different people from different machines. Without an argument the share is asked for and not shown: an argument stays in the
shell's history.

With -migrate the server changes to the seal that its configuration names: the shares are those of the seal it has, of its unseal
key or of its recovery key.

Examples:

  $ coffer operator unseal
  $ coffer operator unseal - <share
  $ coffer operator unseal -migrate`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "reset", Usage: "forget the shares that were given from this address so far, or with -nonce in that attempt"},
			&cli.StringFlag{Name: "nonce", Usage: "`NONCE` of the attempt that the share belongs to (default: that of this address)"},
			&cli.BoolFlag{Name: "migrate", Usage: "change to the configured seal; give it with every share"},
		},
	}, unseal)
}

func unseal(ctx context.Context, c *command.Call) error {
	body := map[string]any{"reset": true}
	if !c.Bool("reset") {
		key, err := c.ReadSecret(ctx, c.Arg(0), "unseal key")
		if err != nil {
			return err
		}
		body = map[string]any{"key": key}
		command.SetIfGiven(c, body, "migrate", c.Bool("migrate"))
	} else if c.Arg(0) != "" {
		return command.Usagef("-reset takes no key")
	}
	command.SetIfGiven(c, body, "nonce", c.String("nonce"))
	s, raw, err := sealStatusOf(ctx, c, http.MethodPut, body)
	if err != nil {
		return err
	}
	return printStatus(c, s, raw, nil, nil)
}
