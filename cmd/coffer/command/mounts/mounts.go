// Package mounts has the commands for what is mounted where and its limits: secrets engines, auth methods, audit devices, namespaces, leases and
// quotas.
package mounts

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

// mountKind is secrets engines or auth methods: the same commands over two parts of the API.
type mountKind struct {
	command string // "secrets"
	thing   string // "secrets engine"
	article string // "a"
	api     string // "sys/mounts"
	prefix  string // before the path when shown and moved: "auth/"
	example string // a type
}

var (
	engineKind = mountKind{"secrets", "secrets engine", "a", "sys/mounts", "", "kv"}
	methodKind = mountKind{"auth", "auth method", "an", "sys/auth", command.AuthPrefix, "userpass"}
)

func SecretsCommand() *cli.Command {
	k := engineKind
	return command.Group(k.command, "enable, tune and move secrets engines", `Commands for secrets engines, which serve the paths they are mounted at.

Examples:

  $ coffer secrets enable -path=teams -version=2 kv
  $ coffer secrets list`,
		k.enableCommand(), k.disableCommand(), k.listCommand(), k.tuneCommand(), k.moveCommand())
}

func AuthCommand() *cli.Command {
	k := methodKind
	return command.Group(k.command, "enable and tune auth methods", `Commands for auth methods, which turn other credentials into tokens.

Examples:

  $ coffer auth enable userpass
  $ coffer auth list`,
		k.enableCommand(), k.disableCommand(), k.listCommand(), k.tuneCommand(), k.moveCommand(), lockedUsersCommand(), unlockCommand(), authHelpCommand())
}

// tuneFlags are the settings both "enable" and "tune" take.
func tuneFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "description", Usage: "`TEXT` for people"},
		&cli.StringFlag{Name: "default-lease-ttl", Usage: "leases and tokens live for `DURATION` unless asked otherwise"},
		&cli.StringFlag{Name: "max-lease-ttl", Usage: "leases and tokens live for `DURATION` at most"},
		&cli.StringSliceFlag{Name: "options", Usage: "`KEY=VALUE` the engine understands; repeatable"},
		&cli.IntFlag{Name: "version", Usage: "version `N` of the engine; kv has 1 and 2"},
		&cli.StringFlag{Name: "listing-visibility", Usage: "`unauth or hidden`: whether it is listed to those not logged in"},
		&cli.StringFlag{Name: "token-type", Usage: "`TYPE` of the tokens an auth method makes: service, batch or a default"},
		&cli.StringSliceFlag{Name: "audit-non-hmac-request-keys", Usage: "`KEY` of requests written to the audit log in clear; repeatable"},
		&cli.StringSliceFlag{Name: "audit-non-hmac-response-keys", Usage: "`KEY` of answers written to the audit log in clear; repeatable"},
		&cli.StringSliceFlag{Name: "passthrough-request-headers", Usage: "`HEADER` of requests passed on to it; repeatable"},
		&cli.StringSliceFlag{Name: "allowed-response-headers", Usage: "`HEADER` it may set in answers; repeatable"},
	}
}

// tuneBody gathers the settings given. Description and options are apart, as the API has them elsewhere when enabling.
func tuneBody(c *command.Call) (config map[string]any, options map[string]string, err error) {
	config = map[string]any{}
	for _, flag := range []string{"default-lease-ttl", "max-lease-ttl", "listing-visibility", "token-type"} {
		command.SetIfGiven(c, config, flag, c.String(flag))
	}
	for _, flag := range []string{"audit-non-hmac-request-keys", "audit-non-hmac-response-keys", "passthrough-request-headers", "allowed-response-headers"} {
		command.SetIfGiven(c, config, flag, c.StringSlice(flag))
	}
	if options, err = command.KeyValues("options", c.StringSlice("options")); err != nil {
		return nil, nil, err
	}
	if c.IsSet("version") {
		options["version"] = table.Cell("", c.Int("version"))
	}
	return config, options, nil
}

func (k mountKind) enableCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "enable", Args: "TYPE", Min: 1, Max: 1, Usage: "mount one",
		Help: "Mounts " + k.article + " " + k.thing + ", at its type unless -path names another place.\n\nExamples:\n\n  $ coffer " + k.command + " enable " + k.example +
			"\n  $ coffer " + k.command + " enable -path=team-a -max-lease-ttl=24h " + k.example,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "path", Usage: "`PATH` to mount it at"},
			&cli.BoolFlag{Name: "local", Usage: "keep it out of replication to other clusters"},
			&cli.BoolFlag{Name: "seal-wrap", Usage: "accepted and ignored"},
		}, tuneFlags()...),
	}, func(ctx context.Context, c *command.Call) error {
		config, options, err := tuneBody(c)
		if err != nil {
			return err
		}
		path := command.CleanPath(c.String("path"))
		if path == "" {
			path = c.Path(0)
		}
		body := map[string]any{
			"type": c.Arg(0), "description": c.String("description"), "local": c.Bool("local"), "config": config, "options": options,
		}
		a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: k.api + "/" + path, Body: body})
		if err != nil {
			return err
		}
		c.PrintWarnings(a)
		c.Sayf("Success! Enabled the %s %s at: %s%s/", c.Arg(0), k.thing, k.prefix, path)
		return nil
	})
}

func (k mountKind) disableCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "disable", Args: "PATH", Min: 1, Max: 1, Usage: "unmount one and remove all its data",
		Help: "Unmounts " + k.article + " " + k.thing + ", revokes its leases and removes all its data. There is no way back.\n\nExamples:\n\n  $ coffer " +
			k.command + " disable " + k.example + "\n  $ coffer " + k.command + " disable team-a",
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Remove(ctx, k.api+"/"+c.Path(0))
		if err != nil {
			return err
		}
		c.PrintWarnings(a)
		c.Sayf("Success! Disabled the %s (if it existed) at: %s%s/", k.thing, k.prefix, c.Path(0))
		return nil
	})
}

func (k mountKind) listCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list", Usage: "list those mounted",
		Help:  "Lists every " + k.thing + " that is mounted.\n\nExamples:\n\n  $ coffer " + k.command + " list\n  $ coffer " + k.command + " list -detailed",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "detailed", Usage: "show their settings too"}},
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Get(ctx, k.api)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintValue(a.Data())
		}
		c.PrintWarnings(a)
		return printMounts(c, a.Data(), c.Bool("detailed"))
	})
}

func printMounts(c *command.Call, mounts map[string]any, detailed bool) error {
	heading := []string{"Path", "Type", "Accessor", "Description"}
	if detailed {
		heading = []string{"Path", "Type", "Accessor", "Default TTL", "Max TTL", "Replication", "Options", "Description", "UUID"}
	}
	rows := make([][]string, 0, len(mounts))
	for _, path := range slices.Sorted(maps.Keys(mounts)) {
		m, ok := mounts[path].(map[string]any)
		if !ok {
			continue
		}
		if !detailed {
			rows = append(rows, []string{table.Printable(path), table.Cell("", m["type"]), table.Text(m["accessor"]), table.Text(m["description"])})
			continue
		}
		config, _ := m["config"].(map[string]any)
		replication := "replicated"
		if m["local"] == true {
			replication = "local"
		}
		options := "-"
		if m["options"] != nil {
			options = table.Cell("", m["options"])
		}
		rows = append(rows, []string{
			table.Printable(path), table.Cell("", m["type"]), table.Text(m["accessor"]), lifetime(config["default_lease_ttl"]), lifetime(config["max_lease_ttl"]),
			replication, options, table.Text(m["description"]), table.Text(m["uuid"]),
		})
	}
	return c.PrintColumns(heading, rows)
}

// lifetime is a duration of a mount, where 0 stands for that of the server.
func lifetime(v any) string {
	if s := table.Text(v); s != "0" && s != "n/a" {
		return table.Cell("ttl", v)
	}
	return "system"
}

func (k mountKind) tuneCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "tune", Args: "PATH", Min: 1, Max: 1, Usage: "change the settings of one",
		Help: "Changes the settings given of " + k.article + " " + k.thing + " and leaves the others as they are.\n\nExamples:\n\n  $ coffer " + k.command +
			" tune -max-lease-ttl=24h " + k.example + "\n  $ coffer " + k.command + " tune -description=\"of team A\" team-a",
		Flags: append(k.lockoutFlags(), tuneFlags()...),
	}, func(ctx context.Context, c *command.Call) error {
		body, options, err := tuneBody(c)
		if err != nil {
			return err
		}
		command.SetIfGiven(c, body, "description", c.String("description"))
		if len(options) > 0 {
			body["options"] = options
		}
		if lockout := lockoutBody(c); len(lockout) > 0 {
			body["user_lockout_config"] = lockout
		}
		if len(body) == 0 {
			return command.Usagef("no setting was given; see %s -h", c.FullName())
		}
		a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: k.api + "/" + c.Path(0) + "/tune", Body: body})
		if err != nil {
			return err
		}
		c.PrintWarnings(a)
		c.Sayf("Success! Tuned the %s at: %s%s/", k.thing, k.prefix, c.Path(0))
		return nil
	})
}

func (k mountKind) moveCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "move", Args: "FROM TO", Min: 2, Max: 2, Usage: "mount one at another path",
		Help: "Moves " + k.article + " " + k.thing + " to another path, with its data, and waits until it is there. What it handed out is revoked, and while it moves\n" +
			"it serves nothing. The paths may lead into namespaces below the one in use.\n\nExamples:\n\n  $ coffer " + k.command + " move " +
			k.example + " team-a\n  $ coffer " + k.command + " move -detach team-a/" + k.prefix + "x team-b/" + k.prefix + "x",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "detach", Usage: "do not wait until it is there"}},
	}, func(ctx context.Context, c *command.Call) error {
		from, to := k.qualified(c.Path(0)), k.qualified(c.Path(1))
		a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: "sys/remount", Body: map[string]string{"from": from, "to": to}})
		if err != nil {
			return err
		}
		c.PrintWarnings(a)
		id, _ := a.Data()["migration_id"].(string)
		if id == "" {
			c.Sayf("Success! Moved %s/ to: %s/", from, to)
			return nil
		}
		status := "sys/remount/status/" + id
		if c.Bool("detach") {
			c.Sayf("Started moving %s/ to %s/. Its state is at: %s", from, to, status)
			return nil
		}
		return awaitMove(ctx, c, status, from, to)
	})
}

// awaitMove asks how a move is going until it has ended.
func awaitMove(ctx context.Context, c *command.Call, status, from, to string) error {
	return poll(ctx, c, func() (bool, error) {
		a, err := c.Get(ctx, status)
		if err != nil {
			return false, err
		}
		info, _ := a.Data()["migration_info"].(map[string]any)
		switch info["status"] {
		case "success":
			c.Sayf("Success! Moved %s/ to: %s/", from, to)
			return true, nil
		case "failure":
			return false, command.ServerErrorf("%s/ was not moved and serves as before: %s", from, table.Text(info["reason"]))
		}
		return false, nil
	})
}

// pollPatience is how many failures in a row poll takes for a passing one, such as another node becoming the active one.
const pollPatience = 10

// poll asks until it is done, or fails with an error that stays, at first often, then every second.
func poll(ctx context.Context, c *command.Call, done func() (bool, error)) error {
	failures := 0
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ok, err := done()
		switch {
		case err == nil:
			failures = 0
		case command.Passing(err) && failures < pollPatience:
			failures++
		default:
			return err
		}
		if ok {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// qualified adds the prefix of auth methods, unless it was typed, perhaps behind a namespace.
func (k mountKind) qualified(path string) string {
	if strings.HasPrefix(path, k.prefix) || strings.Contains(path, "/"+k.prefix) {
		return path
	}
	return k.prefix + path
}
