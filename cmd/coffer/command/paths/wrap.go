package paths

import (
	"context"
	"net/http"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/urfave/cli/v3"
)

// defaultWrapTTL is how long what "wrap" hides can be taken, unless -wrap-ttl says otherwise.
const defaultWrapTTL = "5m"

// elsewhereHint is said when a wrapping token has no say where it was sent.
const elsewhereHint = `A wrapping token opens in the namespace it was made in: name that with -namespace. coffer unwrap -lookup shows it, before the path.`

func WrapCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "wrap", Args: "KEY=VALUE …", Min: 1, Max: -1, Usage: "hide data behind a token which opens once",
		Help: `Passes data to another client: prints a wrapping token, which "coffer unwrap" exchanges for the data, once. The server keeps the data
nowhere but behind the token. ` + command.DataHelp + `

Examples:

  $ coffer wrap user=app password=-
  $ coffer wrap -wrap-ttl=1h -field=wrapping_token @credentials.json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "wrap-ttl", Value: defaultWrapTTL, Sources: command.WrapTTLVariables, Usage: "it opens once within `DURATION`"}, command.FieldFlag(),
		},
	}, func(ctx context.Context, c *command.Call) error {
		data, err := c.ParseData(ctx, c.Args().Slice())
		if err != nil {
			return err
		}
		a, err := c.Put(ctx, "sys/wrapping/wrap", data)
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	})
}

func UnwrapCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "unwrap", Args: "[TOKEN | -]", Max: 1, Usage: "get the answer hidden behind a wrapping token",
		Help: `Gets the answer hidden behind a wrapping token, as made by "coffer wrap" or -wrap-ttl. That works once: if it fails, another party may
have opened it. -lookup tells where a token comes from without using it; -rewrap exchanges it for a new one with the same lifetime,
for an answer that has to wait longer.

Examples:

  $ coffer unwrap - <wrapping-token
  $ coffer unwrap -field=password hvs.CAESIJ…
  $ coffer unwrap -lookup hvs.CAESIJ…`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "lookup", Usage: "show when and for which path it was made; it still opens"},
			&cli.BoolFlag{Name: "rewrap", Usage: "get a new wrapping token for the answer"},
			command.FieldFlag(),
		},
	}, unwrap)
}

func unwrap(ctx context.Context, c *command.Call) error {
	if c.Bool("lookup") && c.Bool("rewrap") {
		return command.Usagef("-lookup and -rewrap exclude each other")
	}
	client, err := c.Connect()
	if err != nil {
		return err
	}
	token := client.Token()
	if c.Arg(0) != "" {
		if token, err = c.ReadSecret(ctx, c.Arg(0), "wrapping token"); err != nil {
			return err
		}
	}
	if token == "" {
		return command.Usagef("name the wrapping token, or - to read it from stdin")
	}
	var a *command.Response
	switch {
	case c.Bool("lookup"):
		a, err = c.Put(ctx, "sys/wrapping/lookup", map[string]string{"token": token})
	case c.Bool("rewrap"):
		a, err = c.OpenWrapped(ctx, "sys/wrapping/rewrap", token)
	default:
		a, err = c.OpenWrapped(ctx, "sys/wrapping/unwrap", token)
	}
	switch command.StatusOf(err) {
	case http.StatusBadRequest:
		err = command.WithHint(err, command.UsedHint)
	case http.StatusForbidden:
		err = command.WithHint(err, elsewhereHint)
	}
	if err != nil {
		return err
	}
	if len(response.Rows(a.Secret)) == 0 && c.Format() == command.FormatTable && c.String("field") == "" {
		c.PrintWarnings(a)
		c.Sayf("The token is used up. The answer behind it was empty.")
		return nil
	}
	if printed, err := kv.PrintData(c, a); printed {
		return err
	}
	return c.PrintResponse(a)
}
