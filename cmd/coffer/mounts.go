package main

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

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
	methodKind = mountKind{"auth", "auth method", "an", "sys/auth", "auth/", "userpass"}
)

func secretsCommand() *cli.Command {
	k := engineKind
	return group(k.command, "enable, tune and move secrets engines", `Commands for secrets engines, which serve the paths they are mounted at.

Examples:

  $ coffer secrets enable -path=teams -version=2 kv
  $ coffer secrets list`,
		k.enableCommand(), k.disableCommand(), k.listCommand(), k.tuneCommand(), k.moveCommand())
}

func authCommand() *cli.Command {
	k := methodKind
	return group(k.command, "enable and tune auth methods", `Commands for auth methods, which turn other credentials into tokens.

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
func (c *call) tuneBody() (config map[string]any, options map[string]string, err error) {
	config = map[string]any{}
	for _, flag := range []string{"default-lease-ttl", "max-lease-ttl", "listing-visibility", "token-type"} {
		setIfGiven(c, config, flag, c.String(flag))
	}
	for _, flag := range []string{"audit-non-hmac-request-keys", "audit-non-hmac-response-keys", "passthrough-request-headers", "allowed-response-headers"} {
		setIfGiven(c, config, flag, c.StringSlice(flag))
	}
	if options, err = keyValues("options", c.StringSlice("options")); err != nil {
		return nil, nil, err
	}
	if c.IsSet("version") {
		options["version"] = cell("", c.Int("version"))
	}
	return config, options, nil
}

func (k mountKind) enableCommand() *cli.Command {
	return command(spec{
		name: "enable", args: "TYPE", min: 1, max: 1, usage: "mount one",
		help: "Mounts " + k.article + " " + k.thing + ", at its type unless -path names another place.\n\nExamples:\n\n  $ coffer " + k.command + " enable " + k.example +
			"\n  $ coffer " + k.command + " enable -path=team-a -max-lease-ttl=24h " + k.example,
		flags: append([]cli.Flag{
			&cli.StringFlag{Name: "path", Usage: "`PATH` to mount it at"},
			&cli.BoolFlag{Name: "local", Usage: "keep it out of replication to other clusters"},
			&cli.BoolFlag{Name: "seal-wrap", Usage: "accepted and ignored"},
		}, tuneFlags()...),
	}, func(ctx context.Context, c *call) error {
		config, options, err := c.tuneBody()
		if err != nil {
			return err
		}
		path := cleanPath(c.String("path"))
		if path == "" {
			path = c.path(0)
		}
		body := map[string]any{
			"type": c.arg(0), "description": c.String("description"), "local": c.Bool("local"), "config": config, "options": options,
		}
		a, err := c.send(ctx, request{method: http.MethodPost, path: k.api + "/" + path, body: body})
		if err != nil {
			return err
		}
		c.printWarnings(a)
		c.sayf("Success! Enabled the %s %s at: %s%s/", c.arg(0), k.thing, k.prefix, path)
		return nil
	})
}

func (k mountKind) disableCommand() *cli.Command {
	return command(spec{
		name: "disable", args: "PATH", min: 1, max: 1, usage: "unmount one and remove all its data",
		help: "Unmounts " + k.article + " " + k.thing + ", revokes its leases and removes all its data. There is no way back.\n\nExamples:\n\n  $ coffer " +
			k.command + " disable " + k.example + "\n  $ coffer " + k.command + " disable team-a",
	}, func(ctx context.Context, c *call) error {
		a, err := c.remove(ctx, k.api+"/"+c.path(0))
		if err != nil {
			return err
		}
		c.printWarnings(a)
		c.sayf("Success! Disabled the %s (if it existed) at: %s%s/", k.thing, k.prefix, c.path(0))
		return nil
	})
}

func (k mountKind) listCommand() *cli.Command {
	return command(spec{
		name: "list", usage: "list those mounted",
		help:  "Lists every " + k.thing + " that is mounted.\n\nExamples:\n\n  $ coffer " + k.command + " list\n  $ coffer " + k.command + " list -detailed",
		flags: []cli.Flag{&cli.BoolFlag{Name: "detailed", Usage: "show their settings too"}},
	}, func(ctx context.Context, c *call) error {
		a, err := c.get(ctx, k.api)
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printValue(a.data())
		}
		c.printWarnings(a)
		return c.printMounts(a.data(), c.Bool("detailed"))
	})
}

func (c *call) printMounts(mounts map[string]any, detailed bool) error {
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
			rows = append(rows, []string{printable(path), cell("", m["type"]), text(m["accessor"]), text(m["description"])})
			continue
		}
		config, _ := m["config"].(map[string]any)
		replication := "replicated"
		if m["local"] == true {
			replication = "local"
		}
		options := "map[]"
		if m["options"] != nil {
			options = cell("", m["options"])
		}
		rows = append(rows, []string{
			printable(path), cell("", m["type"]), text(m["accessor"]), lifetime(config["default_lease_ttl"]), lifetime(config["max_lease_ttl"]),
			replication, options, text(m["description"]), text(m["uuid"]),
		})
	}
	return c.printColumns(heading, rows)
}

// text is a cell for which nil means none.
func text(v any) string {
	if v == nil {
		v = ""
	}
	return cell("", v)
}

// lifetime is a duration of a mount, where 0 stands for that of the server.
func lifetime(v any) string {
	if s := text(v); s != "0" && s != "n/a" {
		return cell("ttl", v)
	}
	return "system"
}

func (k mountKind) tuneCommand() *cli.Command {
	return command(spec{
		name: "tune", args: "PATH", min: 1, max: 1, usage: "change the settings of one",
		help: "Changes the settings given of " + k.article + " " + k.thing + " and leaves the others as they are.\n\nExamples:\n\n  $ coffer " + k.command +
			" tune -max-lease-ttl=24h " + k.example + "\n  $ coffer " + k.command + " tune -description=\"of team A\" team-a",
		flags: append(k.lockoutFlags(), tuneFlags()...),
	}, func(ctx context.Context, c *call) error {
		body, options, err := c.tuneBody()
		if err != nil {
			return err
		}
		setIfGiven(c, body, "description", c.String("description"))
		if len(options) > 0 {
			body["options"] = options
		}
		if lockout := c.lockoutBody(); len(lockout) > 0 {
			body["user_lockout_config"] = lockout
		}
		if len(body) == 0 {
			return usagef("no setting was given; see %s -h", c.FullName())
		}
		a, err := c.send(ctx, request{method: http.MethodPost, path: k.api + "/" + c.path(0) + "/tune", body: body})
		if err != nil {
			return err
		}
		c.printWarnings(a)
		c.sayf("Success! Tuned the %s at: %s%s/", k.thing, k.prefix, c.path(0))
		return nil
	})
}

func (k mountKind) moveCommand() *cli.Command {
	return command(spec{
		name: "move", args: "FROM TO", min: 2, max: 2, usage: "mount one at another path",
		help: "Moves " + k.article + " " + k.thing + " to another path, with its data, and waits until it is there. What it handed out is revoked, and while it moves\n" +
			"it serves nothing. The paths may lead into namespaces below the one in use.\n\nExamples:\n\n  $ coffer " + k.command + " move " +
			k.example + " team-a\n  $ coffer " + k.command + " move -detach team-a/" + k.prefix + "x team-b/" + k.prefix + "x",
		flags: []cli.Flag{&cli.BoolFlag{Name: "detach", Usage: "do not wait until it is there"}},
	}, func(ctx context.Context, c *call) error {
		from, to := k.qualified(c.path(0)), k.qualified(c.path(1))
		a, err := c.send(ctx, request{method: http.MethodPost, path: "sys/remount", body: map[string]string{"from": from, "to": to}})
		if err != nil {
			return err
		}
		c.printWarnings(a)
		id, _ := a.data()["migration_id"].(string)
		if id == "" {
			c.sayf("Success! Moved %s/ to: %s/", from, to)
			return nil
		}
		status := "sys/remount/status/" + id
		if c.Bool("detach") {
			c.sayf("Started moving %s/ to %s/. Its state is at: %s", from, to, status)
			return nil
		}
		return c.awaitMove(ctx, status, from, to)
	})
}

// awaitMove asks how a move is going until it has ended.
func (c *call) awaitMove(ctx context.Context, status, from, to string) error {
	return c.poll(ctx, func() (bool, error) {
		a, err := c.get(ctx, status)
		if err != nil {
			return false, err
		}
		info, _ := a.data()["migration_info"].(map[string]any)
		switch info["status"] {
		case "success":
			c.sayf("Success! Moved %s/ to: %s/", from, to)
			return true, nil
		case "failure":
			return false, serverErrorf("%s/ was not moved and serves as before: %s", from, text(info["reason"]))
		}
		return false, nil
	})
}

// pollPatience is how many failures in a row poll takes for a passing one, such as another node becoming the active one.
const pollPatience = 10

// poll asks until the answer is yes or an error that stays, at first often, then every second.
func (c *call) poll(ctx context.Context, done func() (bool, error)) error {
	failures := 0
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ok, err := done()
		switch {
		case err == nil:
			failures = 0
		case passing(err) && failures < pollPatience:
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

// passing reports whether a request failed for a reason that may be gone soon.
func passing(err error) bool {
	var e *requestError
	if !errors.As(err, &e) {
		return false
	}
	status := statusOf(err)
	return status == 0 && !errors.Is(err, context.Canceled) || status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
}

// qualified adds the prefix of auth methods, unless it was typed, perhaps behind a namespace.
func (k mountKind) qualified(path string) string {
	if strings.HasPrefix(path, k.prefix) || strings.Contains(path, "/"+k.prefix) {
		return path
	}
	return k.prefix + path
}
