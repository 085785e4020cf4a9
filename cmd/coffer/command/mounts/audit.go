package mounts

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func AuditCommand() *cli.Command {
	return command.Group("audit", "enable and disable audit devices", `Commands for audit devices, which record every request before it is served. If none of those enabled can record, requests fail.

Examples:

  $ coffer audit enable file file_path=/var/log/coffer/audit.log
  $ coffer audit list -detailed`,
		command.New(command.Spec{
			Name: "enable", Args: "TYPE [KEY=VALUE …]", Min: 1, Max: -1, Usage: "enable a device",
			Help: `Enables an audit device, once a test record could be written to it. KEY=VALUE arguments are its options.

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
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "path", Usage: "`PATH` to know it by, instead of its type"},
				&cli.StringFlag{Name: "description", Usage: "`TEXT` for people"},
				&cli.BoolFlag{Name: "local", Usage: "keep it out of replication to other clusters"},
			},
		}, auditEnable),
		command.New(command.Spec{
			Name: "disable", Args: "PATH", Min: 1, Max: 1, Usage: "disable a device",
			Help: `Disables an audit device. What it has recorded stays where it is.

Examples:

  $ coffer audit disable file
  $ coffer audit disable copy`,
		}, func(ctx context.Context, c *command.Call) error {
			if _, err := c.Remove(ctx, "sys/audit/"+c.Path(0)); err != nil {
				return err
			}
			c.Sayf("Success! Disabled the audit device (if it was enabled) at: %s/", c.Path(0))
			return nil
		}),
		command.New(command.Spec{
			Name: "list", Usage: "list the devices",
			Help: `Lists the audit devices.

Examples:

  $ coffer audit list
  $ coffer audit list -detailed`,
			Flags: []cli.Flag{&cli.BoolFlag{Name: "detailed", Usage: "show their options too"}},
		}, auditList),
		command.New(command.Spec{
			Name: "hash", Args: "PATH [TEXT | -]", Min: 1, Max: 2, Usage: "hash a text as a device does",
			Help: `Hashes a text the way a device hashes the values it records, to search its log for what was done with a secret or token. Without TEXT
it is asked for and not shown; with - it is the first line of stdin.

Examples:

  $ coffer audit hash file
  $ grep -F "$(coffer audit hash -field=hash file - <token)" /var/log/coffer/audit.log`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			value, err := c.ReadSecret(ctx, c.Arg(1), "text")
			if err != nil {
				return err
			}
			a, err := c.Put(ctx, "sys/audit-hash/"+c.Path(0), map[string]string{"input": value})
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}),
		command.New(command.Spec{
			Name: "search", Args: "PATH", Min: 1, Max: 1, Usage: "search the file of a device",
			Help: `Searches the file that a device writes on the active node, the newest records first. A search has bounds: 64 MiB of the file, 3 seconds, 500
records. It says when it went no further back. Files that were rotated away are not searched.

Examples:

  $ coffer audit search -since=24h -path=secret/data/app file
  $ coffer audit search -actor=userpass-ana -outcome=denied file
  $ coffer audit search -value file`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "since", Value: "1h", Usage: "how far back, such as 24h"},
				&cli.StringFlag{Name: "from", Usage: "`TIME` to begin at, instead of -since, such as 2026-05-01T12:00:00Z"},
				&cli.StringFlag{Name: "to", Usage: "`TIME` to end at"},
				&cli.StringFlag{Name: "actor", Usage: "display name, id of an entity, or accessor"},
				&cli.StringFlag{Name: "path", Usage: "what the path begins with, its namespace before it"},
				&cli.StringFlag{Name: "operation", Usage: "read, update, delete, list, …"},
				&cli.StringFlag{Name: "outcome", Usage: "ok, failed, or denied, which is what policies did not allow"},
				&cli.StringFlag{Name: "hash", Usage: "only records with this hash, as audit hash tells it"},
				&cli.BoolFlag{Name: "value", Usage: "ask for a value, and search for its hash"},
				&cli.IntFlag{Name: "limit", Value: 100, Usage: "records to show, at most 500"},
			},
		}, auditSearch))
}

func auditSearch(ctx context.Context, c *command.Call) error {
	body := map[string]any{"since": c.String("since"), "limit": c.Int("limit"), "buckets": 0}
	for flag, field := range map[string]string{"from": "from", "to": "to", "actor": "actor", "path": "path_prefix", "operation": "operation", "outcome": "outcome", "hash": "hash"} {
		if v := c.String(flag); v != "" {
			body[field] = v
		}
	}
	if c.Bool("value") {
		value, err := c.ReadSecret(ctx, "", "value")
		if err != nil {
			return err
		}
		a, err := c.Put(ctx, "sys/audit-hash/"+c.Path(0), map[string]string{"input": value})
		if err != nil {
			return err
		}
		body["hash"] = a.Data()["hash"]
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: "sys/audit-search/" + c.Path(0), Body: body})
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(a.Data())
	}
	records, _ := a.Data()["records"].([]any)
	rows := make([][]string, 0, len(records))
	for _, r := range records {
		r, _ := r.(map[string]any)
		who := table.Cell("", r["display_name"])
		if r["display_name"] == "" {
			who = "-"
		}
		namespace, _ := r["namespace"].(string)
		path, _ := r["path"].(string)
		rows = append(rows, []string{table.Cell("", r["time"]), who, table.Cell("", r["operation"]), table.Printable(namespace + path), table.Cell("", r["outcome"]), table.Text(r["error"])})
	}
	if err := c.PrintColumns([]string{"Time", "Who", "Operation", "Path", "Outcome", "Error"}, rows); err != nil {
		return err
	}
	if a.Data()["complete"] == false {
		c.Sayf("The search ended at its bounds, at %v: search the time before that with -to.", a.Data()["oldest"])
	}
	return nil
}

func auditEnable(ctx context.Context, c *command.Call) error {
	options, err := c.ParseData(ctx, c.Args().Tail())
	if err != nil {
		return err
	}
	path := command.CleanPath(c.String("path"))
	if path == "" {
		path = c.Path(0)
	}
	body := map[string]any{"type": c.Arg(0), "description": c.String("description"), "local": c.Bool("local"), "options": options}
	if _, err := c.Put(ctx, "sys/audit/"+path, body); err != nil {
		return err
	}
	c.Sayf("Success! Enabled the %s audit device at: %s/", c.Arg(0), path)
	return nil
}

func auditList(ctx context.Context, c *command.Call) error {
	a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/audit"})
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(a.Data())
	}
	if len(a.Data()) == 0 {
		return command.ServerErrorf("no audit devices are enabled")
	}
	heading := []string{"Path", "Type", "Description"}
	if c.Bool("detailed") {
		heading = []string{"Path", "Type", "Description", "Replication", "Options"}
	}
	rows := make([][]string, 0, len(a.Data()))
	for _, path := range slices.Sorted(maps.Keys(a.Data())) {
		d, ok := a.Data()[path].(map[string]any)
		if !ok {
			continue
		}
		cells := []string{table.Printable(path), table.Cell("", d["type"]), table.Text(d["description"])}
		if c.Bool("detailed") {
			replication := "replicated"
			if d["local"] == true {
				replication = "local"
			}
			cells = append(cells, replication, optionsText(d["options"]))
		}
		rows = append(rows, cells)
	}
	return c.PrintColumns(heading, rows)
}

// optionsText writes options as they are typed: a=1 b=2.
func optionsText(v any) string {
	options, _ := v.(map[string]any)
	text := ""
	for _, k := range slices.Sorted(maps.Keys(options)) {
		if text != "" {
			text += " "
		}
		text += table.Printable(k) + "=" + table.Cell("", options[k])
	}
	return text
}
