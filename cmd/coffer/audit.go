package main

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/urfave/cli/v3"
)

func auditCommand() *cli.Command {
	return group("audit", "enable and disable audit devices", `Commands for audit devices, which record every request before it is served. If none of those enabled can record, requests fail.

Examples:

  $ coffer audit enable file file_path=/var/log/coffer/audit.log
  $ coffer audit list -detailed`,
		command(spec{
			name: "enable", args: "TYPE [KEY=VALUE …]", min: 1, max: -1, usage: "enable a device",
			help: `Enables an audit device. KEY=VALUE arguments are its options.

Examples:

  $ coffer audit enable file file_path=/var/log/coffer/audit.log
  $ coffer audit enable -path=copy file file_path=/mnt/copy/audit.log`,
			flags: []cli.Flag{
				&cli.StringFlag{Name: "path", Usage: "`PATH` to know it by, instead of its type"},
				&cli.StringFlag{Name: "description", Usage: "`TEXT` for people"},
				&cli.BoolFlag{Name: "local", Usage: "keep it out of replication to other clusters"},
			},
		}, auditEnable),
		command(spec{
			name: "disable", args: "PATH", min: 1, max: 1, usage: "disable a device",
			help: `Disables an audit device. What it has recorded stays where it is.

Examples:

  $ coffer audit disable file
  $ coffer audit disable copy`,
		}, func(ctx context.Context, c *call) error {
			if _, err := c.remove(ctx, "sys/audit/"+c.path(0)); err != nil {
				return err
			}
			c.sayf("Success! Disabled the audit device (if it was enabled) at: %s/", c.path(0))
			return nil
		}),
		command(spec{
			name: "list", usage: "list the devices",
			help: `Lists the audit devices.

Examples:

  $ coffer audit list
  $ coffer audit list -detailed`,
			flags: []cli.Flag{&cli.BoolFlag{Name: "detailed", Usage: "show their options too"}},
		}, auditList))
}

func auditEnable(ctx context.Context, c *call) error {
	options, err := c.parseData(ctx, c.Args().Tail())
	if err != nil {
		return err
	}
	path := cleanPath(c.String("path"))
	if path == "" {
		path = c.path(0)
	}
	body := map[string]any{"type": c.arg(0), "description": c.String("description"), "local": c.Bool("local"), "options": options}
	if _, err := c.put(ctx, "sys/audit/"+path, body); err != nil {
		return err
	}
	c.sayf("Success! Enabled the %s audit device at: %s/", c.arg(0), path)
	return nil
}

func auditList(ctx context.Context, c *call) error {
	a, err := c.send(ctx, request{method: http.MethodGet, path: "sys/audit"})
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printValue(a.data())
	}
	if len(a.data()) == 0 {
		return serverErrorf("no audit devices are enabled")
	}
	heading := []string{"Path", "Type", "Description"}
	if c.Bool("detailed") {
		heading = []string{"Path", "Type", "Description", "Replication", "Options"}
	}
	rows := make([][]string, 0, len(a.data()))
	for _, path := range slices.Sorted(maps.Keys(a.data())) {
		d, ok := a.data()[path].(map[string]any)
		if !ok {
			continue
		}
		cells := []string{printable(path), cell("", d["type"]), text(d["description"])}
		if c.Bool("detailed") {
			replication := "replicated"
			if d["local"] == true {
				replication = "local"
			}
			cells = append(cells, replication, optionsText(d["options"]))
		}
		rows = append(rows, cells)
	}
	return c.printColumns(heading, rows)
}

// optionsText writes options as they are typed: a=1 b=2.
func optionsText(v any) string {
	options, _ := v.(map[string]any)
	text := ""
	for _, k := range slices.Sorted(maps.Keys(options)) {
		if text != "" {
			text += " "
		}
		text += printable(k) + "=" + cell("", options[k])
	}
	return text
}
