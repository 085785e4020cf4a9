package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/urfave/cli/v3"
)

const namespacePath = "sys/namespaces"

func namespaceCommand() *cli.Command {
	return group("namespace", "create, change, lock and delete namespaces", `Commands for namespaces, each with its own mounts, policies and tokens. They work below the namespace in use, -namespace or
COFFER_NAMESPACE.

Examples:

  $ coffer namespace create team-a
  $ coffer namespace list`,
		command(spec{
			name: "list", usage: "list the namespaces",
			help: `Lists the namespaces right below the one in use.

Examples:

  $ coffer namespace list
  $ coffer namespace list -namespace=team-a`,
		}, func(ctx context.Context, c *call) error { return listPath(ctx, c, namespacePath) }),
		command(spec{
			name: "lookup", alias: "read", args: "PATH", min: 1, max: 1, usage: "show a namespace",
			help: `Shows the id and metadata of a namespace, and how far its deletion has come.

Examples:

  $ coffer namespace lookup team-a
  $ coffer namespace lookup -field=id team-a`,
			flags: []cli.Flag{fieldFlag()},
		}, func(ctx context.Context, c *call) error {
			a, err := c.get(ctx, namespacePath+"/"+c.path(0))
			if nothingThere(err) {
				return serverErrorf("there is no namespace %s/", c.path(0))
			}
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}),
		command(spec{
			name: "create", args: "PATH", min: 1, max: 1, usage: "create a namespace",
			help: `Creates a namespace.

Examples:

  $ coffer namespace create team-a
  $ coffer namespace create -custom-metadata=owner=payments -namespace=team-a staging`,
			flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "custom-metadata", Usage: "`KEY=VALUE` to keep with it; repeatable"}, fieldFlag(),
			},
		}, func(ctx context.Context, c *call) error {
			metadata, err := keyValues("custom-metadata", c.StringSlice("custom-metadata"))
			if err != nil {
				return err
			}
			a, err := c.put(ctx, namespacePath+"/"+c.path(0), map[string]any{"custom_metadata": metadata})
			if err != nil {
				return err
			}
			return c.printWritten(a, namespacePath+"/"+c.path(0))
		}),
		command(spec{
			name: "patch", args: "PATH", min: 1, max: 1, usage: "change a namespace's metadata",
			help: `Changes the metadata given of a namespace and leaves the rest as it is.

Examples:

  $ coffer namespace patch -custom-metadata=owner=payments team-a
  $ coffer namespace patch -remove-custom-metadata=owner team-a`,
			flags: []cli.Flag{
				&cli.StringSliceFlag{Name: "custom-metadata", Usage: "`KEY=VALUE` to keep with it; repeatable"},
				&cli.StringSliceFlag{Name: "remove-custom-metadata", Usage: "`KEY` to remove; repeatable"}, fieldFlag(),
			},
		}, patchNamespace),
		command(spec{
			name: "delete", args: "PATH", min: 1, max: 1, usage: "delete a namespace with all it holds",
			help: `Deletes a namespace with all it holds, and waits until that is done. Child namespaces are deleted first, each by itself. A deleted
namespace answers nothing from the start; what it holds is removed and what it handed out is revoked, also with -detach. There is no way back.

Examples:

  $ coffer namespace delete team-a
  $ coffer namespace delete -detach -namespace=team-a staging`,
			flags: []cli.Flag{&cli.BoolFlag{Name: "detach", Usage: "do not wait until all is removed"}},
		}, deleteNamespace),
		command(spec{
			name: "lock", args: "[PATH]", max: 1, usage: "make a namespace answer nothing",
			help: `Locks a namespace, or else the one in use: it and those below it answer 503 to everything, until it is unlocked with the key that is
printed now and kept nowhere.

Examples:

  $ coffer namespace lock team-a
  $ coffer namespace lock -namespace=team-a -field=unlock_key`,
			flags: []cli.Flag{fieldFlag()},
		}, func(ctx context.Context, c *call) error {
			a, err := c.put(ctx, lockPath("lock", c.path(0)), nil)
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}),
		command(spec{
			name: "unlock", args: "[PATH]", max: 1, usage: "undo a lock",
			help: `Unlocks a namespace, or else the one in use. The key is asked for and not shown, or read from stdin with -key=-. A root token of the
root namespace needs none.

Examples:

  $ coffer namespace unlock team-a
  $ coffer namespace unlock -key=- team-a <key
  $ coffer namespace unlock -no-key team-a`,
			flags: []cli.Flag{
				&cli.StringFlag{Name: "key", Usage: "`-` reads the unlock key from stdin"},
				&cli.BoolFlag{Name: "no-key", Usage: "unlock by the rights of a root token"},
			},
		}, unlockNamespace))
}

// lockPath is where the namespace in use, or one below it, is locked or unlocked.
func lockPath(what, path string) string {
	return strings.TrimSuffix(namespacePath+"/api-lock/"+what+"/"+path, "/")
}

func patchNamespace(ctx context.Context, c *call) error {
	given, err := keyValues("custom-metadata", c.StringSlice("custom-metadata"))
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
		return usagef("no change was given; see %s -h", c.FullName())
	}
	path := namespacePath + "/" + c.path(0)
	a, err := c.send(ctx, request{method: http.MethodPatch, path: path, body: map[string]any{"custom_metadata": changes}})
	if err != nil {
		return err
	}
	return c.printWritten(a, path)
}

func deleteNamespace(ctx context.Context, c *call) error {
	path := namespacePath + "/" + c.path(0)
	a, err := c.remove(ctx, path)
	if err != nil {
		return err
	}
	c.printWarnings(a)
	if a.data()["status"] != nil {
		if c.Bool("detach") {
			c.sayf("The namespace %s/ is out of reach; what it held is being removed. See how far it is with: coffer namespace read %[1]s", c.path(0))
			return nil
		}
		if err := c.awaitDeletion(ctx, path); err != nil {
			return err
		}
	}
	c.sayf("Success! Deleted the namespace (if it existed) at: %s/", c.path(0))
	return nil
}

// awaitDeletion asks how far a deletion is until it is done, and tells it whenever it has gone on or failed.
func (c *call) awaitDeletion(ctx context.Context, path string) error {
	told := ""
	return c.poll(ctx, func() (bool, error) {
		a, err := c.get(ctx, path)
		if nothingThere(err) || err != nil && statusOf(err) == http.StatusNotFound {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if now := deletionText(a.data()["progress"]); now != told {
			c.warnf("%s", now)
			told = now
		}
		return false, nil
	})
}

// deletionText is the progress of a deletion in words, or "" if the server tells none.
func deletionText(v any) string {
	p, _ := v.(map[string]any)
	step, _ := p["step"].(string)
	if step == "" {
		return ""
	}
	now := fmt.Sprintf("%s: %s; %s left", text(p["namespace"]), printable(step), namespaces(p["namespaces_left"]))
	if why, _ := p["last_error"].(string); why != "" {
		now += "; failed and tried again: " + printable(why)
	}
	return now
}

func namespaces(n any) string {
	if count := text(n); count != "1" {
		return count + " namespaces"
	}
	return "1 namespace"
}

func unlockNamespace(ctx context.Context, c *call) error {
	body := map[string]any{}
	if !c.Bool("no-key") {
		if v := c.String("key"); v != "" && v != "-" {
			return usagef("-key takes - only, for stdin: an argument stays in the shell's history")
		}
		key, err := c.readSecret(ctx, c.String("key"), "unlock key")
		if err != nil {
			return err
		}
		body["unlock_key"] = key
	}
	if _, err := c.put(ctx, lockPath("unlock", c.path(0)), body); err != nil {
		return err
	}
	c.sayf("Success! The namespace is unlocked.")
	return nil
}
