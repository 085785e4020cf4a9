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
			help: `Enables an audit device, once a test record could be written to it. KEY=VALUE arguments are its options.

Of type file:

  file_path=PATH       below a directory of audit { file_roots } in the servers' configuration (by default one beside the data),
                       relative to the first of them or absolute; or stdout, stderr, discard. After a rotation SIGHUP opens it again
  mode=0600            of the file, in octal; 0000 leaves it as it is

Of type syslog:

  facility=AUTH        of the records
  tag=coffer           of the records

Of type socket:

  address=HOST:PORT    of a listener, or the path of a unix socket
  socket_type=tcp      or udp, unix, unixgram
  write_timeout=2s     how long a record may take

Of all:

  log_raw=true               records values in clear: secrets, too
  hmac_accessor=false        records the accessors of tokens in clear
  elide_list_responses=true  records how many names a list has in place of the names
  prefix=TEXT                stands before each record: at most 32 letters, digits and signs of "@:._-"

Examples:

  $ coffer audit enable file file_path=/var/log/coffer/audit.log
  $ coffer audit enable -path=copy -description="on the other disk" file file_path=/mnt/copy/audit.log
  $ coffer audit enable syslog tag=coffer facility=AUTH
  $ coffer audit enable socket address=logs.example.com:9090 write_timeout=5s`,
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
		}, auditList),
		command(spec{
			name: "hash", args: "PATH [TEXT | -]", min: 1, max: 2, usage: "hash a text as a device does",
			help: `Hashes a text the way a device hashes the values it records, to search its log for what was done with a secret or token. Without TEXT
it is asked for and not shown; with - it is the first line of stdin.

Examples:

  $ coffer audit hash file
  $ grep -F "$(coffer audit hash -field=hash file - <token)" /var/log/coffer/audit.log`,
			flags: []cli.Flag{fieldFlag()},
		}, func(ctx context.Context, c *call) error {
			value, err := c.readSecret(ctx, c.arg(1), "text")
			if err != nil {
				return err
			}
			a, err := c.put(ctx, "sys/audit-hash/"+c.path(0), map[string]string{"input": value})
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}))
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
