// Package access has the commands for who may do what: tokens, policies for access and for passwords, and identities.
package access

import (
	"context"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

func TokenCommand() *cli.Command {
	return command.Group("token", "create, look up, renew and revoke tokens", `Commands for tokens, with which every request says who it is from.

Examples:

  $ coffer token create -policy=app -ttl=1h
  $ coffer token lookup`,
		tokenCreateCommand(), tokenLookupCommand(), tokenRenewCommand(), tokenRevokeCommand(), capabilitiesCommand())
}

func tokenCreateCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "create", Usage: "create a token",
		Help: `Creates a token, by default a child of the one used: it has the same policies, and is revoked with it. A batch token is not stored:
it costs the server nothing, and can be neither renewed nor revoked.

Examples:

  $ coffer token create -policy=app -policy=metrics -ttl=1h
  $ coffer token create -orphan -period=24h -display-name=ci -field=token
  $ coffer token create -role=deploy -metadata=build=421 -use-limit=5
  $ coffer token create -type=batch -policy=app -ttl=10m -wrap-ttl=60s`,
		Flags: []cli.Flag{
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
			command.FieldFlag(), command.WrapFlag(),
		},
	}, tokenCreate)
}

func tokenCreate(ctx context.Context, c *command.Call) error {
	meta, err := command.KeyValues("metadata", c.StringSlice("metadata"))
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
		command.SetIfGiven(c, body, flag, c.String(flag))
	}
	if c.IsSet("id") {
		if body["id"], err = c.ReadSecret(ctx, c.String("id"), "token"); err != nil {
			return err
		}
	}
	if c.IsSet("entity-alias") && c.String("role") == "" {
		return command.Usagef("-entity-alias needs -role: the role says which aliases its tokens may act as")
	}
	command.SetIfGiven(c, body, "renewable", c.Bool("renewable"))
	command.SetIfGiven(c, body, "no-default-policy", c.Bool("no-default-policy"))
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
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: path, Body: body})
	if err != nil {
		return err
	}
	return c.PrintResponse(a)
}

func tokenLookupCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "lookup", Args: "[TOKEN | -]", Max: 1, Usage: "show what is known about a token",
		Help: `Shows policies, time to live and the rest of a token: the one in use, the one given, or that of an accessor.

Examples:

  $ coffer token lookup
  $ coffer token lookup -accessor 5QzqmQFvXXLRn2dPqR6LVfWM`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "accessor", Usage: "the argument is an accessor"}, command.FieldFlag(), command.WrapFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		path, body, err := tokenTarget(ctx, c, "lookup")
		if err != nil {
			return err
		}
		var a *command.Response
		if body == nil {
			a, err = c.Get(ctx, path)
		} else {
			a, err = c.Send(ctx, command.Request{Method: http.MethodPost, Path: path, Body: body})
		}
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	})
}

// tokenTarget picks the path and body of an operation on the token in use (a nil body), a token or an accessor.
func tokenTarget(ctx context.Context, c *command.Call, operation string) (string, map[string]any, error) {
	path := "auth/token/" + operation
	if c.Arg(0) == "" {
		if c.Bool("accessor") {
			return "", nil, command.Usagef("-accessor needs the accessor as argument")
		}
		return path + "-self", nil, nil
	}
	value, err := c.ReadSecret(ctx, c.Arg(0), "token")
	if err != nil {
		return "", nil, err
	}
	if c.Bool("accessor") {
		return path + "-accessor", map[string]any{"accessor": value}, nil
	}
	return path, map[string]any{"token": value}, nil
}

func tokenRenewCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "renew", Args: "[TOKEN | -]", Max: 1, Usage: "make a token live longer",
		Help: `Makes a token live longer: the one in use, the one given, or that of an accessor.

Examples:

  $ coffer token renew
  $ coffer token renew -increment=30m - <token`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "accessor", Usage: "the argument is an accessor"},
			&cli.StringFlag{Name: "increment", Aliases: []string{"i"}, Usage: "ask for `DURATION` from now; the server may grant less"},
			command.FieldFlag(),
		},
	}, func(ctx context.Context, c *command.Call) error {
		path, body, err := tokenTarget(ctx, c, "renew")
		if err != nil {
			return err
		}
		if body == nil {
			body = map[string]any{}
		}
		command.SetIfGiven(c, body, "increment", c.String("increment"))
		a, err := c.Put(ctx, path, body)
		if err != nil {
			return err
		}
		return c.PrintResponse(a)
	})
}

func tokenRevokeCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "revoke", Args: "[TOKEN | ACCESSOR | -]", Max: 1, Usage: "end a token, its children and its leases",
		Help: `Ends a token, its leases and the tokens made with it. With -mode=orphan its children live on without a parent; with -mode=path
the argument is a path, and every token created below it ends. Batch tokens cannot be revoked.

Examples:

  $ coffer token revoke -self
  $ coffer token revoke -accessor 5QzqmQFvXXLRn2dPqR6LVfWM
  $ coffer token revoke -mode=path auth/userpass/login/ada`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "accessor", Usage: "the argument is an accessor"},
			&cli.BoolFlag{Name: "self", Usage: "end the token in use"},
			&cli.StringFlag{Name: "mode", Usage: "`orphan or path`"},
		},
	}, tokenRevoke)
}

func tokenRevoke(ctx context.Context, c *command.Call) error {
	self, mode := c.Bool("self"), c.String("mode")
	switch {
	case self && (c.Arg(0) != "" || c.Bool("accessor") || mode != ""):
		return command.Usagef("-self takes no argument, -accessor or -mode")
	case !self && c.Arg(0) == "":
		return command.Usagef("name the token to end, or give -self for the one in use")
	case mode != "" && (c.Bool("accessor") || mode != "orphan" && mode != "path"):
		return command.Usagef("-mode is orphan or path, and does not go with -accessor")
	}
	if mode == "path" {
		if _, err := c.Put(ctx, "sys/leases/revoke-prefix/"+c.Path(0), nil); err != nil {
			return err
		}
		c.Sayf("Success! The tokens below %s are ended.", c.Path(0))
		return nil
	}
	path, body, err := tokenTarget(ctx, c, "revoke")
	if err != nil {
		return err
	}
	if mode == "orphan" {
		path = "auth/token/revoke-orphan"
	}
	r := command.Request{Method: http.MethodPost, Path: path}
	if body != nil {
		r.Body = body
	}
	if _, err := c.Send(ctx, r); err != nil {
		return err
	}
	c.Sayf("Success! The token is ended, if it existed.")
	return nil
}

func capabilitiesCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "capabilities", Args: "[TOKEN | ACCESSOR] PATH", Min: 1, Max: 2, Usage: "show what a token may do on a path",
		Help: `Shows what a token may do on a path: the token in use, or the one given. "deny" means nothing.

Examples:

  $ coffer token capabilities secret/data/app
  $ coffer token capabilities -accessor 5QzqmQFvXXLRn2dPqR6LVfWM secret/data/app`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "accessor", Usage: "the first argument is an accessor"}},
	}, capabilities)
}

func capabilities(ctx context.Context, c *command.Call) error {
	// A slash at the end stays: "secret/metadata/" is listed, "secret/metadata" is not.
	target := strings.TrimLeft(c.Arg(0), "/")
	path, body := "sys/capabilities-self", map[string]any{}
	if c.Args().Len() == 2 {
		target = strings.TrimLeft(c.Arg(1), "/")
		value, err := c.ReadSecret(ctx, c.Arg(0), "token")
		if err != nil {
			return err
		}
		path, body = "sys/capabilities", map[string]any{"token": value}
		if c.Bool("accessor") {
			path, body = "sys/capabilities-accessor", map[string]any{"accessor": value}
		}
	} else if c.Bool("accessor") {
		return command.Usagef("-accessor needs two arguments, the accessor and the path")
	}
	body["paths"] = []string{target}
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: path, Body: body})
	if err != nil {
		return err
	}
	list := command.StringsOf(a.Data()[target])
	if len(list) == 0 {
		list = command.StringsOf(a.Data()["capabilities"])
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(list)
	}
	return c.PrintList("", []string{strings.Join(list, ", ")})
}
