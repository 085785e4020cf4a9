// Package secretsync has "coffer sync": destinations, the secrets that are associated with them, and the state of each, once or until
// all of it is settled. Start with status.go, which reads the state that the others show.
package secretsync

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/columns"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/config"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/githubapps"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/terms"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

const apiPath = "sys/sync/"

func Command() *cli.Command {
	return command.Group("sync", "keep secrets in sync with other secret stores", `Secret sync: secrets of the key/value engine, version 2, are written to destinations – the secret stores of cloud
providers, the settings of repositories and hosts – and kept in sync with them. docs/sync.md has the tasks, docs/sync-destinations.md the types.

A DESTINATION is TYPE/NAME, such as cloud1-sm/prod. A SECRET is a path as "coffer kv" takes it: "secret/app", or with -mount=secret "app".

Examples:

  $ coffer sync destinations write cloud1-sm/prod region=eu-central-1 access_key_id=@id secret_access_key=@key
  $ coffer sync associate cloud1-sm/prod secret/app
  $ coffer sync status -watch`,
		destinationsCommand(), githubapps.Command(), associateCommand(), dissociateCommand(), statusCommand(), waitCommand(), planCommand(), driftCommand(), adoptCommand(), importCommand(),
		retryCommand(), pauseCommand(true), pauseCommand(false), historyCommand(), config.Command())
}

// destination is the type and the name of one, as an argument has them.
type destination struct{ kind, name string }

func (p destination) String() string { return p.kind + "/" + p.name }

// api returns an API path of the destination; what is "" or begins with a slash.
func (p destination) api(what string) string { return apiPath + "destinations/" + p.String() + what }

// destinationArg reads the first argument. A format that there is not is told here: before anything is changed.
func destinationArg(c *command.Call) (destination, error) {
	if err := c.CheckFormat(); err != nil {
		return destination{}, err
	}
	kind, name, ok := strings.Cut(c.Path(0), "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return destination{}, command.Usagef("a destination is TYPE/NAME, such as cloud1-sm/prod; coffer sync destinations list shows them")
	}
	return destination{kind, name}, nil
}

// postTo sends a request about a destination.
func postTo(ctx context.Context, c *command.Call, p destination, what string, body map[string]any) (*command.Response, error) {
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: p.api(what), Body: body})
	if command.NothingThere(err) {
		return nil, noDestination(p)
	}
	return a, err
}

var errNoDestination = errors.New("there is no destination")

func noDestination(p destination) error {
	return command.ServerErrorf("%w %s; coffer sync destinations list shows them", errNoDestination, table.Printable(p.String()))
}

func mountFlag() cli.Flag {
	return &cli.StringFlag{Name: "mount", Usage: "`PATH` or accessor of the engine, the secret being relative to it"}
}

func prefixFlag() cli.Flag {
	return &cli.BoolFlag{Name: "prefix", Usage: "SECRET is the beginning of names: all secrets that have it, also those to come; just the mount for all of it"}
}

// secretBody is what a request names a secret by: the second argument, if there is one. With -mount the server is not asked what is
// mounted where, for which a token may lack the right.
func secretBody(ctx context.Context, c *command.Call) (map[string]any, error) {
	body := map[string]any{}
	if c.Arg(1) == "" {
		if c.String("mount") == "" || !c.Bool("prefix") {
			return body, nil
		}
		return map[string]any{"mount": command.CleanPath(c.String("mount")), "secret_prefix": "*"}, nil
	}
	mount, name := command.CleanPath(c.String("mount")), strings.TrimLeft(c.Arg(1), "/")
	if mount == "" {
		p, err := kv.PathOf(ctx, c, c.Arg(1))
		if err != nil {
			return nil, err
		}
		mount, name = command.CleanPath(p.Mount), p.Name
	}
	body["mount"] = mount
	switch {
	case !c.Bool("prefix"):
		body["secret_name"] = name
	case name == "":
		body["secret_prefix"] = "*"
	default:
		body["secret_prefix"] = name
	}
	return body, nil
}

// association reads the arguments DESTINATION and SECRET.
func association(ctx context.Context, c *command.Call) (destination, map[string]any, error) {
	p, err := destinationArg(c)
	if err != nil {
		return p, nil, err
	}
	body, err := secretBody(ctx, c)
	return p, body, err
}

func associateCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "associate", Args: "DESTINATION SECRET", Min: 1, Max: 2, Usage: "have a secret synced, or all below a prefix",
		Help: `Associates a secret with a destination: it is written there now, and again whenever it changes. The token must be able to read the secret,
and for as long as it is synced the association owner must. Done again it syncs the secret again, and keeps the terms that
are not given.

What exists at the destination and was not made here is never overwritten: the status is CONFLICT then, see "coffer sync adopt".
"coffer sync plan" takes the same flags and shows what would be done. The exit status is 2 unless the secret is synced, or on its way, also by
being tried again. With -exit-code it is 2 unless it is synced; with -wait, unless all of it is synced before -timeout is over.

Examples:

  $ coffer sync associate cloud1-sm/prod secret/app
  $ coffer sync associate -granularity=secret-key -exclude='*_TEST' repohost/web secret/ci
  $ coffer sync associate -prefix -wait -deletion-policy=retain cloud3-sm/prod secret/team/`,
		Flags: append(terms.Flags(), mountFlag(), prefixFlag(), &cli.BoolFlag{Name: "wait", Usage: "wait until all of it is synced"}, &cli.StringFlag{Name: "timeout", Value: "5m", Usage: "with -wait, give up after `DURATION`"},
			command.ExitCodeFlag("not all of it is synced")),
	}, func(ctx context.Context, c *command.Call) error {
		p, body, err := association(ctx, c)
		if err != nil {
			return err
		}
		if len(body) == 0 {
			return command.Usagef("name the secret, or -mount and -prefix for all of a mount")
		}
		if err := terms.Add(ctx, c, body); err != nil {
			return err
		}
		a, err := postTo(ctx, c, p, "/associations/set", body)
		if err != nil {
			return err
		}
		if !c.Bool("wait") {
			return printAssociated(c, a, p)
		}
		c.PrintWarnings(a)
		return followAssociated(ctx, c, p, body)
	})
}

// followAssociated waits for what was just associated, and shows what has come of it.
func followAssociated(ctx context.Context, c *command.Call, p destination, body map[string]any) error {
	var last *status
	err := awaitSynced(ctx, c, func(ctx context.Context) (*status, error) {
		s, err := fetchStatus(ctx, c, &p)
		if err == nil {
			last = s.of(body)
		}
		return last, err
	})
	if last == nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return errors.Join(err, c.PrintValue(last))
	}
	return errors.Join(err, printStatus(c, last))
}

// printAssociated shows the status of what was just associated or synced. What cannot go on by itself is an error.
func printAssociated(c *command.Call, a *command.Response, p destination) error {
	c.PrintWarnings(a)
	s, err := readStatus(p, a)
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		if err := c.PrintRaw(a.Raw); err != nil {
			return err
		}
	} else if len(s.Secrets) > 0 {
		if err := printStatus(c, s); err != nil {
			return err
		}
	}
	if s.stuck() {
		return &command.ExitError{Code: command.ExitServer}
	}
	return c.ExitUnless(s.settled(), nil)
}

func dissociateCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "dissociate", Args: "DESTINATION SECRET", Min: 1, Max: 2, Usage: "end an association, and remove what was synced",
		Help: `Ends an association. What was made at the destination is deleted, unless another owner has adopted it; -retain leaves it.

Examples:

  $ coffer sync dissociate cloud1-sm/prod secret/app
  $ coffer sync dissociate -retain -prefix cloud3-sm/prod secret/team/`,
		Flags: []cli.Flag{mountFlag(), prefixFlag(), &cli.BoolFlag{Name: "retain", Usage: "leave what was synced where it is"}},
	}, func(ctx context.Context, c *command.Call) error {
		p, body, err := association(ctx, c)
		if err != nil {
			return err
		}
		if len(body) == 0 {
			return command.Usagef("name the secret, or -mount and -prefix for all of a mount")
		}
		what := columns.Association(body)
		if c.Bool("retain") {
			body["retain"] = true
		}
		a, err := postTo(ctx, c, p, "/associations/remove", body)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		if len(a.Warnings()) == 0 {
			c.Sayf("Success! %s is no longer synced to %s.", what, p)
		}
		return nil
	})
}

func retryCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "retry", Args: "DESTINATION [SECRET]", Min: 1, Max: 2, Usage: "sync again now what has failed or drifted",
		Help: `Syncs again what has failed or drifted, without waiting for its next attempt; with a SECRET that one, whatever its state. A
destination that backs off after failures is tried once at once; one that has asked to wait is tried when that time is over. A warning
says which.

Examples:

  $ coffer sync retry cloud1-sm/prod
  $ coffer sync retry cloud1-sm/prod secret/app`,
		Flags: []cli.Flag{mountFlag(), prefixFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		p, body, err := association(ctx, c)
		if err != nil {
			return err
		}
		a, err := postTo(ctx, c, p, "/associations/retry", body)
		if err != nil {
			return err
		}
		queued, all := a.Data()["queued"]
		if !all {
			return printAssociated(c, a, p)
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		if table.Text(queued) == "0" {
			c.Sayf("Nothing has failed there, so there is nothing to be tried again.")
			return nil
		}
		c.PrintWarnings(a)
		c.Sayf("Success! %s queued; coffer sync status -watch %s shows how far they are.", table.Text(queued), p)
		return nil
	})
}

// pauseCommand is that of pause, or of resume.
func pauseCommand(pause bool) *cli.Command {
	s := command.Spec{
		Name: "resume", Args: "DESTINATION [SECRET]", Min: 1, Max: 2, Usage: "go on syncing what was paused",
		Help: `Goes on syncing to a destination, or one secret or prefix to it. What has changed meanwhile is done now.

Examples:

  $ coffer sync resume cloud1-sm/prod
  $ coffer sync resume cloud1-sm/prod secret/app`,
		Flags: []cli.Flag{mountFlag(), prefixFlag()},
	}
	done := "%s is synced again."
	if pause {
		s.Name, s.Usage, done = "pause", "stop syncing for a while", "Syncing %s is paused."
		s.Help = `Stops syncing to a destination, or one secret or prefix to it. Nothing at the destination changes until it is resumed; what changes
here meanwhile is done then.

Examples:

  $ coffer sync pause cloud1-sm/prod
  $ coffer sync pause -prefix cloud1-sm/prod secret/team/`
	}
	return command.New(s, func(ctx context.Context, c *command.Call) error {
		p, body, err := association(ctx, c)
		if err != nil {
			return err
		}
		path, what := "/"+s.Name, p.String()
		if len(body) > 0 {
			path, what = "/associations/"+s.Name, columns.Association(body)+" to "+p.String()
		}
		a, err := postTo(ctx, c, p, path, body)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			return c.PrintResponse(a)
		}
		c.PrintWarnings(a)
		c.Sayf("Success! "+done, what)
		return nil
	})
}

func historyCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "history", Args: "DESTINATION SECRET", Min: 2, Max: 2, Usage: "show what came of the last attempts to sync a secret",
		Help: `Shows the last attempts that came to something: when, of which version, what was done at the destination and how it ended.

Examples:

  $ coffer sync history cloud1-sm/prod secret/app
  $ coffer sync history -mount=secret -format=json cloud1-sm/prod app`,
		Flags: []cli.Flag{mountFlag()},
	}, func(ctx context.Context, c *command.Call) error {
		p, body, err := association(ctx, c)
		if err != nil {
			return err
		}
		a, err := postTo(ctx, c, p, "/associations/history", body)
		if err != nil || c.Format() != command.FormatTable {
			return c.PrintOr(a, err)
		}
		events, _ := a.Data()["events"].([]any)
		var rows [][]string
		for _, e := range events {
			m, _ := e.(map[string]any)
			rows = append(rows, []string{table.Text(m["at"]), columns.Dashed(m["version"]), columns.Dashed(m["done"]), table.Text(m["sync_status"]), columns.Dashed(m["code"]), columns.Dashed(m["cause"])})
		}
		return columns.Print(c, []string{"At", "Version", "Done", "Status", "Code", "Cause"}, rows)
	})
}
