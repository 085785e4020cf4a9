package main

import (
	"context"
	"net/http"

	"github.com/urfave/cli/v3"
)

// defaultWrapTTL is how long what "wrap" hides can be taken, unless -wrap-ttl says otherwise.
const defaultWrapTTL = "5m"

// usedHint is said when a wrapping token does not open: perhaps it was stolen on its way.
const usedHint = `It was used before, has expired, or was cut while copied. If you did not use it, another party may have opened it:
treat what it held as known to them, replace that, and ask the sender for a new one.`

// elsewhereHint is said when a wrapping token has no say where it was sent.
const elsewhereHint = `A wrapping token opens in the namespace it was made in: name that with -namespace. coffer unwrap -lookup shows it, before the path.`

func wrapCommand() *cli.Command {
	return command(spec{
		name: "wrap", args: "KEY=VALUE …", min: 1, max: -1, usage: "hide data behind a token which opens once",
		help: `Passes data to another client: prints a wrapping token, which "coffer unwrap" exchanges for the data, once. The server keeps the data
nowhere but behind the token. ` + writeHelp + `

Examples:

  $ coffer wrap user=app password=-
  $ coffer wrap -wrap-ttl=1h -field=wrapping_token @credentials.json`,
		flags: []cli.Flag{
			&cli.StringFlag{Name: "wrap-ttl", Value: defaultWrapTTL, Sources: wrapTTLVariables, Usage: "it opens once within `DURATION`"}, fieldFlag(),
		},
	}, func(ctx context.Context, c *call) error {
		data, err := c.parseData(ctx, c.Args().Slice())
		if err != nil {
			return err
		}
		a, err := c.put(ctx, "sys/wrapping/wrap", data)
		if err != nil {
			return err
		}
		return c.printAnswer(a)
	})
}

func unwrapCommand() *cli.Command {
	return command(spec{
		name: "unwrap", args: "[TOKEN | -]", max: 1, usage: "get the answer hidden behind a wrapping token",
		help: `Gets the answer hidden behind a wrapping token, as made by "coffer wrap" or -wrap-ttl. That works once: if it fails, another party may
have opened it. -lookup tells where a token comes from without using it; -rewrap exchanges it for a new one with the same lifetime,
for an answer that has to wait longer.

Examples:

  $ coffer unwrap - <wrapping-token
  $ coffer unwrap -field=password hvs.CAESIJ…
  $ coffer unwrap -lookup hvs.CAESIJ…`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "lookup", Usage: "show when and for which path it was made; it still opens"},
			&cli.BoolFlag{Name: "rewrap", Usage: "get a new wrapping token for the answer"},
			fieldFlag(),
		},
	}, unwrap)
}

func unwrap(ctx context.Context, c *call) error {
	if c.Bool("lookup") && c.Bool("rewrap") {
		return usagef("-lookup and -rewrap exclude each other")
	}
	client, err := c.connect()
	if err != nil {
		return err
	}
	token := client.Token()
	if c.arg(0) != "" {
		if token, err = c.readSecret(ctx, c.arg(0), "wrapping token"); err != nil {
			return err
		}
	}
	if token == "" {
		return usagef("name the wrapping token, or - to read it from stdin")
	}
	var a *answer
	switch {
	case c.Bool("lookup"):
		a, err = c.put(ctx, "sys/wrapping/lookup", map[string]string{"token": token})
	case c.Bool("rewrap"):
		a, err = c.openWrapped(ctx, "sys/wrapping/rewrap", token)
	default:
		a, err = c.openWrapped(ctx, "sys/wrapping/unwrap", token)
	}
	switch statusOf(err) {
	case http.StatusBadRequest:
		err = withHint(err, usedHint)
	case http.StatusForbidden:
		err = withHint(err, elsewhereHint)
	}
	if err != nil {
		return err
	}
	if len(answerRows(a)) == 0 && c.format() == formatTable && c.String("field") == "" {
		c.printWarnings(a)
		c.sayf("The token is used up. The answer behind it was empty.")
		return nil
	}
	return c.printAnswer(a)
}

// openWrapped uses a wrapping token as the caller's own, so that one needs no other. Where it has no say, because it was
// made in another namespace, the token in use speaks for it; such a refusal uses nothing up.
func (c *call) openWrapped(ctx context.Context, path, token string) (*answer, error) {
	client, err := c.connect()
	if err != nil {
		return nil, err
	}
	own := client.Token()
	client.SetToken(token)
	defer client.SetToken(own)
	a, err := c.send(ctx, request{method: http.MethodPut, path: path, unwrapped: true})
	if statusOf(err) != http.StatusForbidden || own == "" || own == token {
		return a, err
	}
	client.SetToken(own)
	return c.send(ctx, request{method: http.MethodPut, path: path, unwrapped: true, body: map[string]string{"token": token}})
}
