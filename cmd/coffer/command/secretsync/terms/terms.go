// Package terms has the flags that say how a secret is synced: under which names, in which form, and which of its keys. Start with Flags.
package terms

import (
	"context"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

// Flags are the terms of an association.
func Flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "granularity", Usage: "one name for a secret, or one for each of its keys, as `secret-path|secret-key`; without it as the destination has it"},
		&cli.StringFlag{Name: "template", Usage: "`TEMPLATE` of the names there; without it that of the destination"},
		&cli.StringFlag{Name: "value-format", Usage: "write values as `json|raw|dotenv`"},
		&cli.StringFlag{Name: "value-template", Usage: "`TEMPLATE` of the values, in place of a format; @FILE reads it"},
		&cli.StringSliceFlag{Name: "rename", Usage: "call a key something else there, as `KEY=NAME`; repeatable"},
		&cli.StringSliceFlag{Name: "include", Usage: "only the keys `NAME`, in which * is any text; repeatable"},
		&cli.StringSliceFlag{Name: "exclude", Usage: "not the keys `NAME`; repeatable"},
		&cli.StringFlag{Name: "deletion-policy", Usage: "what becomes of what is there when the secret goes, `delete|retain`"},
		&cli.StringFlag{Name: "drift-policy", Usage: "what becomes of changes by other clients, `report|repair|conflict|ignore`"},
	}
}

// Add puts the terms of an association into a request.
func Add(ctx context.Context, c *command.Call, body map[string]any) error {
	for flag, field := range map[string]string{
		"granularity": "granularity", "template": "secret_name_template", "value-format": "format", "deletion-policy": "deletion_policy", "drift-policy": "drift_policy",
	} {
		if c.IsSet(flag) {
			body[field] = c.String(flag)
		}
	}
	for _, flag := range []string{"include", "exclude"} {
		keys := c.StringSlice(flag)
		if slices.Contains(keys, "") { // a variable that is not set, for instance: it would choose all keys
			return command.Usagef("-%s takes the name of a key, in which * is any text", flag)
		}
		if len(keys) > 0 {
			body[flag] = keys
		}
	}
	if c.IsSet("rename") {
		names := map[string]string{}
		for _, pair := range c.StringSlice("rename") {
			key, name, ok := strings.Cut(pair, "=")
			if _, twice := names[key]; pair != "" && (!ok || key == "" || name == "" || twice) {
				return command.Usagef("-rename takes KEY=NAME, once for each key; -rename= alone gives all keys their own names again")
			}
			if names[key] = name; pair == "" {
				names = map[string]string{}
			}
		}
		body["rename"] = names
	}
	if !c.IsSet("value-template") {
		return nil
	}
	text, err := c.Expand(ctx, c.String("value-template"))
	body["value_template"] = text
	return err
}
