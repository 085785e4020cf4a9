package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

const syncPath = "sys/sync/"

func syncCommand() *cli.Command {
	return group("sync", "keep secrets right in the places that use them", `Secret sync: secrets of the key/value engine, version 2, are written to where programs look for them – the secret stores of cloud
providers, the settings of repositories and hosts – and stay right there. docs/sync.md leads through it.

A DESTINATION is TYPE/NAME, such as cloud1-sm/prod. A SECRET is a path as "coffer kv" takes it: "secret/app", or with -mount=secret "app".

Examples:

  $ coffer sync destinations write cloud1-sm/prod region=eu-central-1 access_key_id=@id secret_access_key=@key
  $ coffer sync associate cloud1-sm/prod secret/app
  $ coffer sync status -watch`,
		syncDestinationsCommand(), syncAssociateCommand(), syncDissociateCommand(), syncStatusCommand(), syncPlanCommand(), syncDriftCommand(), syncAdoptCommand(),
		syncRetryCommand(), syncPauseCommand(true), syncPauseCommand(false), syncHistoryCommand(), syncConfigCommand())
}

// place is a destination as an argument names it.
type place struct{ kind, name string }

func (p place) String() string { return p.kind + "/" + p.name }

// api returns an API path of the destination; what is "" or begins with a slash.
func (p place) api(what string) string { return syncPath + "destinations/" + p.String() + what }

// place reads the first argument. A format that there is not is told here: before anything is changed.
func (c *call) place() (place, error) {
	if err := c.checkFormat(); err != nil {
		return place{}, err
	}
	kind, name, ok := strings.Cut(c.path(0), "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return place{}, usagef("a destination is TYPE/NAME, such as cloud1-sm/prod; coffer sync destinations list shows them")
	}
	return place{kind, name}, nil
}

// postTo sends a request about a destination.
func (c *call) postTo(ctx context.Context, p place, what string, body map[string]any) (*answer, error) {
	a, err := c.send(ctx, request{method: http.MethodPost, path: p.api(what), body: body})
	if nothingThere(err) {
		return nil, noDestination(p)
	}
	return a, err
}

var errNoDestination = errors.New("there is no destination")

func noDestination(p place) error {
	return serverErrorf("%w %s; coffer sync destinations list shows them", errNoDestination, printable(p.String()))
}

func syncMountFlag() cli.Flag {
	return &cli.StringFlag{Name: "mount", Usage: "`PATH` or accessor of the engine, the secret being relative to it"}
}

func syncPrefixFlag() cli.Flag {
	return &cli.BoolFlag{Name: "prefix", Usage: "SECRET is the beginning of names: all secrets that have it, also those to come; just the mount for all of it"}
}

// secretBody is what a request names a secret by: the second argument, if there is one. With -mount the server is not asked what is
// mounted where, for which a token may lack the right.
func (c *call) secretBody(ctx context.Context) (map[string]any, error) {
	body := map[string]any{}
	if c.arg(1) == "" {
		if c.String("mount") == "" || !c.Bool("prefix") {
			return body, nil
		}
		return map[string]any{"mount": cleanPath(c.String("mount")), "secret_prefix": "*"}, nil
	}
	mount, name := cleanPath(c.String("mount")), strings.TrimLeft(c.arg(1), "/")
	if mount == "" {
		p, err := c.kvPathOf(ctx, c.arg(1))
		if err != nil {
			return nil, err
		}
		mount, name = cleanPath(p.mount), p.name
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
func (c *call) association(ctx context.Context) (place, map[string]any, error) {
	p, err := c.place()
	if err != nil {
		return p, nil, err
	}
	body, err := c.secretBody(ctx)
	return p, body, err
}

// named is how an association is called in what is said about it.
func named(body map[string]any) string {
	name, ok := body["secret_name"]
	if !ok {
		name = body["secret_prefix"]
		if name != "*" {
			name = fmt.Sprint(name, "*")
		}
	}
	return printable(fmt.Sprintf("%v/%v", body["mount"], name))
}

// syncRuleFlags are the terms of an association.
func syncRuleFlags() []cli.Flag {
	return []cli.Flag{
		syncMountFlag(), syncPrefixFlag(),
		&cli.StringFlag{Name: "granularity", Usage: "one name for a secret, or one for each of its keys, as `secret-path|secret-key`; without it as the destination has it"},
		&cli.StringFlag{Name: "template", Usage: "`TEMPLATE` of the names there; without it that of the destination"},
		&cli.StringFlag{Name: "value-format", Usage: "write values as `json|raw`"},
		&cli.StringSliceFlag{Name: "include", Usage: "only the keys `NAME`, in which * is any text; repeatable"},
		&cli.StringSliceFlag{Name: "exclude", Usage: "not the keys `NAME`; repeatable"},
		&cli.StringFlag{Name: "deletion-policy", Usage: "what becomes of what is there when the secret goes, `delete|retain`"},
		&cli.StringFlag{Name: "drift-policy", Usage: "what becomes of changes by others, `report|repair|ignore`"},
	}
}

// addRules puts the terms of an association into a request.
func (c *call) addRules(body map[string]any) error {
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
			return usagef("-%s takes the name of a key, in which * is any text", flag)
		}
		if len(keys) > 0 {
			body[flag] = keys
		}
	}
	return nil
}

func syncAssociateCommand() *cli.Command {
	return command(spec{
		name: "associate", args: "DESTINATION SECRET", min: 1, max: 2, usage: "have a secret synced, or all below a prefix",
		help: `Associates a secret with a destination: it is written there now, and again whenever it changes. The token must be able to read the secret,
and for as long as it is synced the association owner must. Done again it syncs the secret again, and keeps the terms that
are not given.

What exists at the destination and was not made here is never overwritten: the status is CONFLICT then, see "coffer sync adopt".
"coffer sync plan" takes the same flags and shows what would be done. The exit status is 2 unless the secret is synced, or on its way.

Examples:

  $ coffer sync associate cloud1-sm/prod secret/app
  $ coffer sync associate -granularity=secret-key -exclude='*_TEST' repohost/web secret/ci
  $ coffer sync associate -prefix -deletion-policy=retain cloud3-sm/prod secret/team/`,
		flags: syncRuleFlags(),
	}, func(ctx context.Context, c *call) error {
		p, body, err := c.association(ctx)
		if err != nil {
			return err
		}
		if len(body) == 0 {
			return usagef("name the secret, or -mount and -prefix for all of a mount")
		}
		if err := c.addRules(body); err != nil {
			return err
		}
		a, err := c.postTo(ctx, p, "/associations/set", body)
		if err != nil {
			return err
		}
		return c.printAssociated(a, p)
	})
}

// printAssociated shows the status of what was just associated or synced. What cannot go on by itself is an error.
func (c *call) printAssociated(a *answer, p place) error {
	c.printWarnings(a)
	s, err := readSyncStatus(p, a)
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		if err := c.printRaw(a.raw); err != nil {
			return err
		}
	} else if len(s.Secrets) > 0 {
		if err := c.printSyncStatus(s); err != nil {
			return err
		}
	}
	if s.stuck() {
		return &exitError{code: exitServer}
	}
	return nil
}

func syncDissociateCommand() *cli.Command {
	return command(spec{
		name: "dissociate", args: "DESTINATION SECRET", min: 1, max: 2, usage: "end an association, and remove what was synced",
		help: `Ends an association. What was made at the destination is deleted, unless another owner has adopted it; -retain leaves it.

Examples:

  $ coffer sync dissociate cloud1-sm/prod secret/app
  $ coffer sync dissociate -retain -prefix cloud3-sm/prod secret/team/`,
		flags: []cli.Flag{syncMountFlag(), syncPrefixFlag(), &cli.BoolFlag{Name: "retain", Usage: "leave what was synced where it is"}},
	}, func(ctx context.Context, c *call) error {
		p, body, err := c.association(ctx)
		if err != nil {
			return err
		}
		if len(body) == 0 {
			return usagef("name the secret, or -mount and -prefix for all of a mount")
		}
		what := named(body)
		if c.Bool("retain") {
			body["retain"] = true
		}
		a, err := c.postTo(ctx, p, "/associations/remove", body)
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		if len(a.warnings()) == 0 {
			c.sayf("Success! %s is no longer synced to %s.", what, p)
		}
		return nil
	})
}

func syncAdoptCommand() *cli.Command {
	return command(spec{
		name: "adopt", args: "DESTINATION SECRET [NAME …]", min: 2, max: -1, usage: "adopt names at the destination that have another owner",
		help: `Has a secret whose status is CONFLICT take over what is under its names at the destination: THE VALUES THERE ARE OVERWRITTEN, and from
then on the names are ours, to be deleted with the secret. With a NAME only that one. Names that other associations have are not taken.

Examples:

  $ coffer sync adopt cloud1-sm/prod secret/app
  $ coffer sync adopt repohost/web secret/ci DEPLOY_KEY`,
		flags: []cli.Flag{syncMountFlag()},
	}, func(ctx context.Context, c *call) error {
		p, body, err := c.association(ctx)
		if err != nil {
			return err
		}
		if names := c.Args().Slice()[2:]; len(names) > 0 {
			body["external_names"] = names
		}
		a, err := c.postTo(ctx, p, "/associations/adopt", body)
		if err != nil {
			return err
		}
		return c.printAssociated(a, p)
	})
}

func syncRetryCommand() *cli.Command {
	return command(spec{
		name: "retry", args: "DESTINATION [SECRET]", min: 1, max: 2, usage: "sync again now what has failed",
		help: `Syncs again what has failed, without waiting for its next attempt; with a SECRET that one, whatever its state.

Examples:

  $ coffer sync retry cloud1-sm/prod
  $ coffer sync retry cloud1-sm/prod secret/app`,
		flags: []cli.Flag{syncMountFlag(), syncPrefixFlag()},
	}, func(ctx context.Context, c *call) error {
		p, body, err := c.association(ctx)
		if err != nil {
			return err
		}
		a, err := c.postTo(ctx, p, "/associations/retry", body)
		if err != nil {
			return err
		}
		queued, all := a.data()["queued"]
		if !all {
			return c.printAssociated(a, p)
		}
		if c.format() != formatTable {
			return c.printAnswer(a)
		}
		if text(queued) == "0" {
			c.sayf("Nothing has failed there, so there is nothing to be tried again.")
			return nil
		}
		c.sayf("Success! %s queued; coffer sync status -watch %s shows how far they are.", text(queued), p)
		return nil
	})
}

// syncPauseCommand is that of pause, or of resume.
func syncPauseCommand(pause bool) *cli.Command {
	s := spec{
		name: "resume", args: "DESTINATION [SECRET]", min: 1, max: 2, usage: "go on syncing what was paused",
		help: `Goes on syncing to a destination, or one secret or prefix to it. What has changed meanwhile is done now.

Examples:

  $ coffer sync resume cloud1-sm/prod
  $ coffer sync resume cloud1-sm/prod secret/app`,
		flags: []cli.Flag{syncMountFlag(), syncPrefixFlag()},
	}
	done := "%s is synced again."
	if pause {
		s.name, s.usage, done = "pause", "stop syncing for a while", "Syncing %s is paused."
		s.help = `Stops syncing to a destination, or one secret or prefix to it. Nothing at the destination changes until it is resumed; what changes
here meanwhile is done then.

Examples:

  $ coffer sync pause cloud1-sm/prod
  $ coffer sync pause -prefix cloud1-sm/prod secret/team/`
	}
	return command(s, func(ctx context.Context, c *call) error {
		p, body, err := c.association(ctx)
		if err != nil {
			return err
		}
		path, what := "/"+s.name, p.String()
		if len(body) > 0 {
			path, what = "/associations/"+s.name, named(body)+" to "+p.String()
		}
		a, err := c.postTo(ctx, p, path, body)
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printAnswer(a)
		}
		c.printWarnings(a)
		c.sayf("Success! "+done, what)
		return nil
	})
}

func syncHistoryCommand() *cli.Command {
	return command(spec{
		name: "history", args: "DESTINATION SECRET", min: 2, max: 2, usage: "show what came of the last attempts to sync a secret",
		help: `Shows the last attempts that came to something: when, of which version, what was done at the destination and how it ended.

Examples:

  $ coffer sync history cloud1-sm/prod secret/app
  $ coffer sync history -mount=secret -format=json cloud1-sm/prod app`,
		flags: []cli.Flag{syncMountFlag()},
	}, func(ctx context.Context, c *call) error {
		p, body, err := c.association(ctx)
		if err != nil {
			return err
		}
		a, err := c.postTo(ctx, p, "/associations/history", body)
		if err != nil || c.format() != formatTable {
			return c.printOr(a, err)
		}
		events, _ := a.data()["events"].([]any)
		var rows [][]string
		for _, e := range events {
			m, _ := e.(map[string]any)
			rows = append(rows, []string{text(m["at"]), dashed(m["version"]), dashed(m["done"]), text(m["sync_status"]), dashed(m["cause"])})
		}
		return c.printColouredColumns([]string{"At", "Version", "Done", "Status", "Cause"}, rows)
	})
}

// dashed is a cell for which nothing is a dash.
func dashed(v any) string {
	s := text(v)
	if s == "n/a" || s == "0" {
		return "-"
	}
	return s
}

func syncConfigCommand() *cli.Command {
	return command(spec{
		name: "config", args: "[KEY=VALUE …]", max: -1, usage: "show or change how secret sync works as a whole",
		help: `Shows the configuration of secret sync, or changes it: "disabled" stops all syncing until it is false again, "queue_capacity" bounds how
much may be associated. -reset goes back to the defaults. In the root namespace only.

Examples:

  $ coffer sync config
  $ coffer sync config disabled=true
  $ coffer sync config -reset`,
		flags: []cli.Flag{&cli.BoolFlag{Name: "reset", Usage: "go back to the defaults"}, fieldFlag()},
	}, func(ctx context.Context, c *call) error {
		data, err := c.parseData(ctx, c.Args().Slice())
		if err != nil {
			return err
		}
		r := request{method: http.MethodGet, path: syncPath + "config"}
		switch {
		case c.Bool("reset") && len(data) > 0:
			return usagef("-reset goes without settings")
		case c.Bool("reset"):
			r.method = http.MethodDelete
		case len(data) > 0:
			r.method, r.body = http.MethodPatch, data
		}
		return c.printOr(c.send(ctx, r))
	})
}
