package mounts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

// lockoutFlags are the settings of auth methods with passwords.
func (k mountKind) lockoutFlags() []cli.Flag {
	if k.prefix == "" {
		return nil
	}
	return []cli.Flag{
		&cli.IntFlag{Name: "user-lockout-threshold", Usage: "`N` wrong passwords from one address lock a user out there"},
		&cli.StringFlag{Name: "user-lockout-duration", Usage: "a lockout lasts for `DURATION`"},
		&cli.StringFlag{Name: "user-lockout-counter-reset-duration", Usage: "wrong passwords are forgotten after `DURATION` without one"},
		&cli.BoolFlag{Name: "user-lockout-disable", Usage: "lock no user out"},
	}
}

// lockoutBody gathers those that were given.
func lockoutBody(c *command.Call) map[string]any {
	body := map[string]any{}
	for flag, field := range map[string]string{
		"user-lockout-threshold": "lockout_threshold", "user-lockout-duration": "lockout_duration",
		"user-lockout-counter-reset-duration": "lockout_counter_reset_duration", "user-lockout-disable": "lockout_disable",
	} {
		if c.IsSet(flag) {
			body[field] = c.Value(flag)
		}
	}
	return body
}

// lockedUsers is the response of sys/locked-users, as far as it is shown.
type lockedUsers struct {
	ByNamespace []struct {
		Path   string `json:"namespace_path"`
		Mounts []struct {
			Path  string `json:"mount_path"`
			Locks []struct {
				Name       string   `json:"alias_identifier"`
				Everywhere bool     `json:"everywhere"`
				Sources    []string `json:"sources"`
				Until      string   `json:"locked_until"`
			} `json:"locks"`
		} `json:"mount_accessors"`
	} `json:"by_namespace"`
}

func lockedUsersCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "locked-users", Usage: "list the users that are locked out",
		Help: `Lists the users that are locked out after too many wrong passwords, in the namespace in use and those below it. Sources are
the addresses that a user is locked out at; from others the user can log in. "all" means every address.

Examples:

  $ coffer auth locked-users
  $ coffer auth unlock userpass ana`,
	}, func(ctx context.Context, c *command.Call) error {
		a, err := c.Get(ctx, "sys/locked-users")
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintValue(a.Data())
		}
		c.PrintWarnings(a)
		var locked struct {
			Data lockedUsers `json:"data"`
		}
		if err := json.Unmarshal(a.Raw, &locked); err != nil {
			return fmt.Errorf("reading the response: %w", err)
		}
		var rows [][]string
		for _, ns := range locked.Data.ByNamespace {
			for _, m := range ns.Mounts {
				for _, l := range m.Locks {
					sources := strings.Join(l.Sources, ", ")
					if l.Everywhere {
						sources = "all"
					}
					rows = append(rows, []string{table.Printable(ns.Path + m.Path), table.Printable(l.Name), sources, l.Until})
				}
			}
		}
		if len(rows) == 0 {
			c.Sayf("No user is locked out.")
			return nil
		}
		return c.PrintColumns([]string{"Auth method", "User", "Sources", "Until"}, rows)
	})
}

func unlockCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "unlock", Args: "PATH USER", Min: 2, Max: 2, Usage: "end the lockout of a user",
		Help: `Ends the lockout of a user of the auth method at PATH, at all addresses, and forgets the wrong passwords.

Examples:

  $ coffer auth unlock userpass ana`,
	}, func(ctx context.Context, c *command.Call) error {
		path := strings.TrimPrefix(c.Path(0), "auth/")
		a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/mounts/auth/" + path, Plain: true})
		if err != nil {
			return err
		}
		accessor, ok := a.Data()["accessor"].(string)
		if !ok {
			return fmt.Errorf("the server did not say which accessor auth/%s/ has", path)
		}
		a, err = c.Send(ctx, command.Request{
			Method: http.MethodPost, Path: "sys/locked-users/" + url.PathEscape(accessor) + "/unlock/" + url.PathEscape(c.Arg(1)), Body: map[string]any{},
		})
		if err != nil {
			return err
		}
		c.PrintWarnings(a)
		c.Sayf("Success! User %s of auth/%s/ is not locked out.", c.Arg(1), path)
		return nil
	})
}
