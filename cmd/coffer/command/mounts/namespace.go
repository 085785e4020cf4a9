package mounts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

const namespacePath = "sys/namespaces"

func NamespaceCommand() *cli.Command {
	return command.Group("namespace", "create, change, lock and delete namespaces", `Commands for namespaces, each with its own mounts, policies and tokens. They work below the namespace in use, -namespace or
COFFER_NAMESPACE.

Examples:

  $ coffer namespace create team-a
  $ coffer namespace list`,
		command.New(command.Spec{
			Name: "list", Usage: "list the namespaces",
			Help: `Lists the namespaces right below the one in use.

Examples:

  $ coffer namespace list
  $ coffer namespace list -namespace=team-a`,
		}, func(ctx context.Context, c *command.Call) error { return command.ListPath(ctx, c, namespacePath) }),
		command.New(command.Spec{
			Name: "lookup", Alias: "read", Args: "PATH", Min: 1, Max: 1, Usage: "show a namespace",
			Help: `Shows the id and metadata of a namespace, and how far its deletion has come.

Examples:

  $ coffer namespace lookup team-a
  $ coffer namespace lookup -field=id team-a`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Get(ctx, namespacePath+"/"+c.Path(0))
			if command.NothingThere(err) {
				return command.ServerErrorf("there is no namespace %s/", c.Path(0))
			}
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}),
		command.New(command.Spec{
			Name: "create", Args: "PATH", Min: 1, Max: 1, Usage: "create a namespace",
			Help: `Creates a namespace.

Examples:

  $ coffer namespace create team-a
  $ coffer namespace create -custom-metadata=owner=payments -namespace=team-a staging`,
			Flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "custom-metadata", Usage: "`KEY=VALUE` to keep with it; repeatable"}, command.FieldFlag(),
			},
		}, func(ctx context.Context, c *command.Call) error {
			metadata, err := command.KeyValues("custom-metadata", c.StringSlice("custom-metadata"))
			if err != nil {
				return err
			}
			a, err := c.Put(ctx, namespacePath+"/"+c.Path(0), map[string]any{"custom_metadata": metadata})
			if err != nil {
				return err
			}
			return c.PrintWritten(a, namespacePath+"/"+c.Path(0))
		}),
		command.New(command.Spec{
			Name: "patch", Args: "PATH", Min: 1, Max: 1, Usage: "change a namespace's metadata",
			Help: `Changes the metadata given of a namespace and leaves the rest as it is.

Examples:

  $ coffer namespace patch -custom-metadata=owner=payments team-a
  $ coffer namespace patch -remove-custom-metadata=owner team-a`,
			Flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "custom-metadata", Usage: "`KEY=VALUE` to keep with it; repeatable"},
				&cli.StringSliceFlag{Name: "remove-custom-metadata", Usage: "`KEY` to remove; repeatable"}, command.FieldFlag(),
			},
		}, patchNamespace),
		command.New(command.Spec{
			Name: "delete", Args: "PATH", Min: 1, Max: 1, Usage: "delete a namespace with all it holds",
			Help: `Deletes a namespace with all it holds, and waits until that is done. Child namespaces are deleted first, each by itself. A deleted
namespace answers nothing from the start; what it holds is removed and what it handed out is revoked, also with -detach. There is no way back.

Examples:

  $ coffer namespace delete team-a
  $ coffer namespace delete -detach -namespace=team-a staging`,
			Flags: []cli.Flag{&cli.BoolFlag{Name: "detach", Usage: "do not wait until all is removed"}},
		}, deleteNamespace),
		command.New(command.Spec{
			Name: "lock", Args: "[PATH]", Max: 1, Usage: "make a namespace answer nothing",
			Help: `Locks a namespace, or else the one in use: it and those below it answer 503 to everything, until it is unlocked with the key that is
printed now and kept nowhere.

Examples:

  $ coffer namespace lock team-a
  $ coffer namespace lock -namespace=team-a -field=unlock_key`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Put(ctx, lockPath("lock", c.Path(0)), nil)
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}),
		command.New(command.Spec{
			Name: "unlock", Args: "[PATH]", Max: 1, Usage: "undo a lock",
			Help: `Unlocks a namespace, or else the one in use. The key is asked for and not shown, or read from stdin with -key=-. A root token of the
root namespace needs none.

Examples:

  $ coffer namespace unlock team-a
  $ coffer namespace unlock -key=- team-a <key
  $ coffer namespace unlock -no-key team-a`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "key", Usage: "`-` reads the unlock key from stdin"},
				&cli.BoolFlag{Name: "no-key", Usage: "unlock by the rights of a root token"},
			},
		}, unlockNamespace))
}

// lockPath is where the namespace in use, or one below it, is locked or unlocked.
func lockPath(what, path string) string {
	return strings.TrimSuffix(namespacePath+"/api-lock/"+what+"/"+path, "/")
}

func patchNamespace(ctx context.Context, c *command.Call) error {
	given, err := command.KeyValues("custom-metadata", c.StringSlice("custom-metadata"))
	if err != nil {
		return err
	}
	changes := map[string]any{}
	for k, v := range given {
		changes[k] = v
	}
	for _, k := range c.StringSlice("remove-custom-metadata") {
		changes[k] = nil
	}
	if len(changes) == 0 {
		return command.Usagef("no change was given; see %s -h", c.FullName())
	}
	path := namespacePath + "/" + c.Path(0)
	a, err := c.Send(ctx, command.Request{Method: http.MethodPatch, Path: path, Body: map[string]any{"custom_metadata": changes}})
	if err != nil {
		return err
	}
	return c.PrintWritten(a, path)
}

func deleteNamespace(ctx context.Context, c *command.Call) error {
	path := namespacePath + "/" + c.Path(0)
	a, err := c.Remove(ctx, path)
	if err != nil {
		return err
	}
	c.PrintWarnings(a)
	if a.Data()["status"] != nil {
		if c.Bool("detach") {
			c.Sayf("The namespace %s/ is out of reach; what it held is being removed. See how far it is with: coffer namespace read %[1]s", c.Path(0))
			return nil
		}
		if err := awaitDeletion(ctx, c, path); err != nil {
			return err
		}
	}
	c.Sayf("Success! Deleted the namespace (if it existed) at: %s/", c.Path(0))
	return nil
}

// awaitDeletion asks how far a deletion is until it is done, and shows it.
func awaitDeletion(ctx context.Context, c *command.Call, path string) error {
	bar := c.Progress()
	defer bar.End()
	all := int64(0)
	return poll(ctx, c, func() (bool, error) {
		a, err := c.Get(ctx, path)
		if command.NothingThere(err) || err != nil && command.StatusOf(err) == http.StatusNotFound {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if left, note := deletion(a.Data()["progress"]); note != "" {
			all = max(all, left)
			bar.Set(progress.State{What: "deleting namespaces", Done: all - left, All: all, Note: note})
		}
		return false, nil
	})
}

// deletion reads how many namespaces are left to be deleted, and what is being done with one of them: "" if the server tells nothing.
func deletion(v any) (left int64, note string) {
	p, _ := v.(map[string]any)
	step, _ := p["step"].(string)
	if step == "" {
		return 0, ""
	}
	if n, ok := p["namespaces_left"].(json.Number); ok {
		left, _ = n.Int64()
	}
	note = fmt.Sprintf("%s: %s", table.Text(p["namespace"]), step)
	if why, _ := p["last_error"].(string); why != "" {
		note += "; failed and tried again: " + why
	}
	return left, note
}

func unlockNamespace(ctx context.Context, c *command.Call) error {
	body := map[string]any{}
	if !c.Bool("no-key") {
		if v := c.String("key"); v != "" && v != "-" {
			return command.Usagef("-key takes - only, for stdin: an argument stays in the shell's history")
		}
		key, err := c.ReadSecret(ctx, c.String("key"), "unlock key")
		if err != nil {
			return err
		}
		body["unlock_key"] = key
	}
	if _, err := c.Put(ctx, lockPath("unlock", c.Path(0)), body); err != nil {
		return err
	}
	c.Sayf("Success! The namespace is unlocked.")
	return nil
}
