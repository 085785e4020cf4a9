package main

import (
	"context"
	"net/http"
	"strings"

	"github.com/urfave/cli/v3"
)

func tokenCommand() *cli.Command {
	return group("token", "create, look up, renew and revoke tokens", `Commands for tokens, with which every request says who it is from.

Examples:

  $ coffer token create -policy=app -ttl=1h
  $ coffer token lookup`,
		tokenCreateCommand(), tokenLookupCommand(), tokenRenewCommand(), tokenRevokeCommand(), capabilitiesCommand())
}

func tokenCreateCommand() *cli.Command {
	return command(spec{
		name: "create", usage: "create a token",
		help: `Creates a token, by default a child of the one used: it has the same policies, and is revoked with it. A batch token is not stored:
it costs the server nothing, and can be neither renewed nor revoked.

Examples:

  $ coffer token create -policy=app -policy=metrics -ttl=1h
  $ coffer token create -orphan -period=24h -display-name=ci -field=token
  $ coffer token create -role=deploy -metadata=build=421 -use-limit=5
  $ coffer token create -type=batch -policy=app -ttl=10m -wrap-ttl=60s`,
		flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "policy", Usage: "`NAME` of a policy it gets; repeatable"},
			&cli.StringFlag{Name: "ttl", Usage: "it lives for `DURATION` unless renewed"},
			&cli.StringFlag{Name: "period", Usage: "it can be renewed for ever, each time for `DURATION`"},
			&cli.StringFlag{Name: "explicit-max-ttl", Usage: "it ends after `DURATION`, renewed or not"},
			&cli.BoolFlag{Name: "renewable", Value: true, Usage: "it may be renewed; -renewable=false forbids it"},
			&cli.BoolFlag{Name: "orphan", Usage: "it has no parent to be revoked with"},
			&cli.BoolFlag{Name: "no-default-policy", Usage: "it does not get the policy \"default\""},
			&cli.StringFlag{Name: "display-name", Usage: "`NAME` it has in the audit log"},
			&cli.IntFlag{Name: "use-limit", Usage: "it can be used `N` times"},
			&cli.StringSliceFlag{Name: "metadata", Usage: "`KEY=VALUE` written to the audit log; repeatable"},
			&cli.StringFlag{Name: "id", Usage: "`VALUE` of the token, or - to read it from stdin; needs sudo"},
			&cli.StringFlag{Name: "type", Usage: "`TYPE` of the token, service or batch"},
			&cli.StringFlag{Name: "role", Usage: "create it with the settings of the token role `NAME`"},
			&cli.StringFlag{Name: "entity-alias", Usage: "`NAME` of the alias it acts as; needs -role"},
			fieldFlag(), wrapFlag(),
		},
	}, tokenCreate)
}

func tokenCreate(ctx context.Context, c *call) error {
	meta, err := keyValues("metadata", c.StringSlice("metadata"))
	if err != nil {
		return err
	}
	body := map[string]any{}
	if len(meta) > 0 {
		body["meta"] = meta
	}
	if p := c.StringSlice("policy"); len(p) > 0 {
		body["policies"] = p
	}
	for _, flag := range []string{"ttl", "period", "explicit-max-ttl", "display-name", "type", "entity-alias"} {
		setIfGiven(c, body, flag, c.String(flag))
	}
	if c.IsSet("id") {
		if body["id"], err = c.readSecret(ctx, c.String("id"), "token"); err != nil {
			return err
		}
	}
	if c.IsSet("entity-alias") && c.String("role") == "" {
		return usagef("-entity-alias needs -role: the role says which aliases its tokens may act as")
	}
	setIfGiven(c, body, "renewable", c.Bool("renewable"))
	setIfGiven(c, body, "no-default-policy", c.Bool("no-default-policy"))
	if c.IsSet("use-limit") {
		body["num_uses"] = c.Int("use-limit")
	}
	path := "auth/token/create"
	if role := c.String("role"); role != "" {
		path += "/" + role
	}
	if c.Bool("orphan") {
		if c.String("role") == "" {
			path = "auth/token/create-orphan"
		} else {
			body["no_parent"] = true
		}
	}
	a, err := c.send(ctx, request{method: http.MethodPost, path: path, body: body})
	if err != nil {
		return err
	}
	return c.printAnswer(a)
}

// setIfGiven puts a flag that was given into a request; its field has underscores for dashes.
func setIfGiven(c *call, body map[string]any, flag string, value any) {
	if c.IsSet(flag) {
		body[strings.ReplaceAll(flag, "-", "_")] = value
	}
}

func tokenLookupCommand() *cli.Command {
	return command(spec{
		name: "lookup", args: "[TOKEN | -]", max: 1, usage: "show what is known about a token",
		help: `Shows policies, time to live and the rest of a token: the one in use, the one given, or that of an accessor.

Examples:

  $ coffer token lookup
  $ coffer token lookup -accessor 5QzqmQFvXXLRn2dPqR6LVfWM`,
		flags: []cli.Flag{&cli.BoolFlag{Name: "accessor", Usage: "the argument is an accessor"}, fieldFlag(), wrapFlag()},
	}, func(ctx context.Context, c *call) error {
		path, body, err := c.tokenTarget(ctx, "lookup")
		if err != nil {
			return err
		}
		var a *answer
		if body == nil {
			a, err = c.get(ctx, path)
		} else {
			a, err = c.send(ctx, request{method: http.MethodPost, path: path, body: body})
		}
		if err != nil {
			return err
		}
		return c.printAnswer(a)
	})
}

// tokenTarget picks the path and body of an operation on the token in use (a nil body), a token or an accessor.
func (c *call) tokenTarget(ctx context.Context, operation string) (string, map[string]any, error) {
	path := "auth/token/" + operation
	if c.arg(0) == "" {
		if c.Bool("accessor") {
			return "", nil, usagef("-accessor needs the accessor as argument")
		}
		return path + "-self", nil, nil
	}
	value, err := c.readSecret(ctx, c.arg(0), "token")
	if err != nil {
		return "", nil, err
	}
	if c.Bool("accessor") {
		return path + "-accessor", map[string]any{"accessor": value}, nil
	}
	return path, map[string]any{"token": value}, nil
}

func tokenRenewCommand() *cli.Command {
	return command(spec{
		name: "renew", args: "[TOKEN | -]", max: 1, usage: "make a token live longer",
		help: `Makes a token live longer: the one in use, the one given, or that of an accessor.

Examples:

  $ coffer token renew
  $ coffer token renew -increment=30m - <token`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "accessor", Usage: "the argument is an accessor"},
			&cli.StringFlag{Name: "increment", Aliases: []string{"i"}, Usage: "ask for `DURATION` from now; the server may grant less"},
			fieldFlag(),
		},
	}, func(ctx context.Context, c *call) error {
		path, body, err := c.tokenTarget(ctx, "renew")
		if err != nil {
			return err
		}
		if body == nil {
			body = map[string]any{}
		}
		setIfGiven(c, body, "increment", c.String("increment"))
		a, err := c.put(ctx, path, body)
		if err != nil {
			return err
		}
		return c.printAnswer(a)
	})
}

func tokenRevokeCommand() *cli.Command {
	return command(spec{
		name: "revoke", args: "[TOKEN | ACCESSOR | -]", max: 1, usage: "end a token, its children and its leases",
		help: `Ends a token, its leases and the tokens made with it. With -mode=orphan its children live on without a parent; with -mode=path
the argument is a path, and every token created below it ends. Batch tokens cannot be revoked.

Examples:

  $ coffer token revoke -self
  $ coffer token revoke -accessor 5QzqmQFvXXLRn2dPqR6LVfWM
  $ coffer token revoke -mode=path auth/userpass/login/ada`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "accessor", Usage: "the argument is an accessor"},
			&cli.BoolFlag{Name: "self", Usage: "end the token in use"},
			&cli.StringFlag{Name: "mode", Usage: "`orphan or path`"},
		},
	}, tokenRevoke)
}

func tokenRevoke(ctx context.Context, c *call) error {
	self, mode := c.Bool("self"), c.String("mode")
	switch {
	case self && (c.arg(0) != "" || c.Bool("accessor") || mode != ""):
		return usagef("-self takes no argument, -accessor or -mode")
	case !self && c.arg(0) == "":
		return usagef("name the token to end, or give -self for the one in use")
	case mode != "" && (c.Bool("accessor") || mode != "orphan" && mode != "path"):
		return usagef("-mode is orphan or path, and does not go with -accessor")
	}
	if mode == "path" {
		if _, err := c.put(ctx, "sys/leases/revoke-prefix/"+c.path(0), nil); err != nil {
			return err
		}
		c.sayf("Success! The tokens below %s are ended.", c.path(0))
		return nil
	}
	path, body, err := c.tokenTarget(ctx, "revoke")
	if err != nil {
		return err
	}
	if mode == "orphan" {
		path = "auth/token/revoke-orphan"
	}
	r := request{method: http.MethodPost, path: path}
	if body != nil {
		r.body = body
	}
	if _, err := c.send(ctx, r); err != nil {
		return err
	}
	c.sayf("Success! The token is ended, if it existed.")
	return nil
}

func capabilitiesCommand() *cli.Command {
	return command(spec{
		name: "capabilities", args: "[TOKEN | ACCESSOR] PATH", min: 1, max: 2, usage: "show what a token may do on a path",
		help: `Shows what a token may do on a path: the token in use, or the one given. "deny" means nothing.

Examples:

  $ coffer token capabilities secret/data/app
  $ coffer token capabilities -accessor 5QzqmQFvXXLRn2dPqR6LVfWM secret/data/app`,
		flags: []cli.Flag{&cli.BoolFlag{Name: "accessor", Usage: "the first argument is an accessor"}},
	}, capabilities)
}

func capabilities(ctx context.Context, c *call) error {
	// A slash at the end stays: "secret/metadata/" is listed, "secret/metadata" is not.
	target := strings.TrimLeft(c.arg(0), "/")
	path, body := "sys/capabilities-self", map[string]any{}
	if c.Args().Len() == 2 {
		target = strings.TrimLeft(c.arg(1), "/")
		value, err := c.readSecret(ctx, c.arg(0), "token")
		if err != nil {
			return err
		}
		path, body = "sys/capabilities", map[string]any{"token": value}
		if c.Bool("accessor") {
			path, body = "sys/capabilities-accessor", map[string]any{"accessor": value}
		}
	} else if c.Bool("accessor") {
		return usagef("-accessor needs two arguments, the accessor and the path")
	}
	body["paths"] = []string{target}
	a, err := c.send(ctx, request{method: http.MethodPost, path: path, body: body})
	if err != nil {
		return err
	}
	list := stringsOf(a.data()[target])
	if len(list) == 0 {
		list = stringsOf(a.data()["capabilities"])
	}
	if c.format() != formatTable {
		return c.printValue(list)
	}
	return c.printList("", []string{strings.Join(list, ", ")})
}
