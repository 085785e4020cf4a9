package secretsync

import (
	"context"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/urfave/cli/v3"
)

func importCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "import", Args: "DESTINATION PATH", Min: 2, Max: 2, Usage: "copy what a destination has into the key/value engine",
		Help: `Creates a secret below PATH for each name at the destination, with the value that is there: a JSON object as it is, any other text
under the key "value". PATH is a mount, or a path in one. Secrets that exist are never overwritten, nothing is changed at the destination,
and names that are synced from here are left out. The token needs sudo for the import, and create on each secret. -names chooses by name;
-plan changes nothing, reads no value, and shows what would be created and what not, with the reason.

Destinations whose values cannot be read back, repositories and hosts of web sites, cannot be imported.

Examples:

  $ coffer sync import -plan cloud1-sm/prod secret/
  $ coffer sync import -names='app/*' cloud1-sm/prod secret/imported/`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "mount", Usage: "`PATH` or accessor of the engine, PATH being relative to it"},
			&cli.StringSliceFlag{Name: "names", Usage: "only the names `NAME` at the destination, in which * is any text; repeatable"},
			&cli.BoolFlag{Name: "plan", Usage: "change nothing, and show what would be created"},
		},
	}, func(ctx context.Context, c *command.Call) error {
		p, err := destinationArg(c)
		if err != nil {
			return err
		}
		body := map[string]any{"mount": command.CleanPath(c.String("mount")), "path_prefix": strings.Trim(c.Arg(1), "/")}
		if body["mount"] == "" {
			at, err := kv.PathOf(ctx, c, c.Arg(1))
			if err != nil {
				return err
			}
			body["mount"], body["path_prefix"] = command.CleanPath(at.Mount), strings.Trim(at.Name, "/")
		}
		words := map[string]string{"create": "created", "same": "there already, with the same value", "skip": "skipped"}
		if c.Bool("plan") {
			body["plan"] = true
			words = map[string]string{"create": "to create", "skip": "skipped"}
		}
		if names := c.StringSlice("names"); len(names) > 0 {
			body["names"] = names
		}
		return printPages(ctx, c, p, "/import", body, words, "create")
	})
}
