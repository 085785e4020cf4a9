package operator

import (
	"context"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

func rotateCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "rotate", Usage: "encrypt what is written from now on with a new key",
		Help: `Adds a key to the key ring. What is written from now on is encrypted with it; older values stay readable. The server keeps serving,
and the unseal keys stay the same.

The server does the same by itself: when the key has been used max-operations times, and if interval is set, at that age. -config
shows that rule, or changes what is given with it.

Examples:

  $ coffer operator rotate
  $ coffer operator rotate -config
  $ coffer operator rotate -config -interval=2160h`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "config", Usage: "show or change the rule, and rotate nothing"},
			&cli.Int64Flag{Name: "max-operations", Usage: "rotate after `N` encryptions"},
			&cli.StringFlag{Name: "interval", Usage: "rotate at this age, `DURATION`; 0 for none"},
			&cli.BoolFlag{Name: "enabled", Usage: "whether the server rotates by itself"},
			command.FieldFlag(),
		},
	}, rotate)
}

func rotate(ctx context.Context, c *command.Call) error {
	body := map[string]any{}
	command.SetIfGiven(c, body, "max-operations", c.Int64("max-operations"))
	command.SetIfGiven(c, body, "interval", c.String("interval"))
	command.SetIfGiven(c, body, "enabled", c.Bool("enabled"))
	if c.Bool("config") {
		return rotationRule(ctx, c, body)
	}
	if len(body) > 0 {
		return command.Usagef("-max-operations, -interval and -enabled go with -config")
	}
	if _, err := c.Send(ctx, command.Request{Method: http.MethodPut, Path: "sys/rotate"}); err != nil {
		return err
	}
	if c.String("field") == "" {
		c.Sayf("Success! A new encryption key is in use.\n")
	}
	return printKeyStatus(ctx, c)
}

// rotationRule changes what is in body of the rule, and shows it.
func rotationRule(ctx context.Context, c *command.Call, body map[string]any) error {
	if len(body) > 0 {
		if _, err := c.Put(ctx, "sys/rotate/config", body); err != nil {
			return err
		}
	}
	a, err := c.Get(ctx, "sys/rotate/config")
	if err != nil {
		return err
	}
	return c.PrintResponse(a)
}
