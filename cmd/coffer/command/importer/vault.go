// Package importer has the commands that bring data of other systems to Coffer. The work is in the packages below: source reads the other
// server, inventory finds what it has, move and secrets bring it over, ledger remembers what is done. Start reading at run.
package importer

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/files"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/inventory"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/secrets"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/urfave/cli/v3"
)

// Command is "coffer import".
func Command() *cli.Command {
	return command.Group("import", "bring data of other systems here", `Commands that bring data of other systems to Coffer. What is in AWS Secrets Manager or another destination of secret sync comes with
"coffer sync import".

Examples:

  $ coffer import vault -source-address=https://vault.example.com:8200 -source-token-file=token -plan
  $ coffer import dotenv .env secret/app`,
		append([]*cli.Command{vaultCommand()}, files.ImportCommands()...)...)
}

const sourceCategory = "source"

func sourceFlags() []cli.Flag {
	str := func(name, usage string) cli.Flag {
		return &cli.StringFlag{Name: name, Usage: usage, Category: sourceCategory}
	}
	return []cli.Flag{
		str("source-address", "`URL` of the server to import from (COFFER_SOURCE_ADDR)"),
		str("source-token-file", "`FILE` with the token to read with, - for stdin (else COFFER_SOURCE_TOKEN)"),
		str("source-namespace", "namespace `PATH` to import from, with those below it"),
		str("source-ca-cert", "`FILE` with the CA certificates to trust"),
		str("source-client-cert", "`FILE` with the certificate to present"),
		str("source-client-key", "`FILE` with its private key"),
		str("source-tls-server-name", "`NAME` to expect in the server's certificate"),
		&cli.BoolFlag{Name: "source-tls-skip-verify", Usage: "do not check the server's certificate", Category: sourceCategory},
		&cli.FloatFlag{Name: "rate", Value: 500, Usage: "send at most `N` requests per second", Category: sourceCategory},
		&cli.IntFlag{Name: "concurrency", Value: 16, Usage: "send at most `N` requests at once", Category: sourceCategory},
	}
}

func vaultCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "vault", Usage: "import from Vault, OpenBao or Coffer",
		Help: `Reads a server of the Vault family with a token, and writes what it has to the cluster that COFFER_ADDR and -namespace name: namespaces,
key/value engines with all versions that can be read, policies, auth methods with their roles and users, identities, quotas and password
policies. The source is only read. -plan shows what comes and what cannot, and why.

The ledger is a file, without values of secrets, that says what is done: a run that was interrupted goes on where it ended, and a later one
brings what has changed since. What is at the destination already and differs is reported and left as it is, unless -overwrite is given.

Secrets, engines, auth methods and namespaces that came once and are not at the source any more are reported as gone, and stay. Secrets go
if -delete-gone is given, the others never: disable them where they are not needed.

-verify compares both servers, also the data of secrets, and prints none. -follow goes on until it is interrupted, so that the switch to the
new cluster takes no longer than the last changes. The exit status is 2 if there are conflicts or failures, or -verify finds differences.

Examples:

  $ coffer import vault -source-address=https://vault.example.com:8200 -source-token-file=token -plan
  $ coffer import vault -source-address=https://vault.example.com:8200 -source-token-file=token -ledger=move.jsonl
  $ coffer import vault -source-address=https://vault.example.com:8200 -source-token-file=token -ledger=move.jsonl -follow
  $ coffer import vault -source-address=https://vault.example.com:8200 -source-token-file=token -ledger=move.jsonl -verify`,
		Flags: append(sourceFlags(),
			&cli.BoolFlag{Name: "plan", Usage: "change nothing, and show what would come and what cannot"},
			&cli.BoolFlag{Name: "verify", Usage: "change nothing, and compare both servers"},
			&cli.BoolFlag{Name: "follow", Usage: "go on with what changes at the source until interrupted"},
			&cli.BoolFlag{Name: "follow-until-idle", Usage: "as -follow, until nothing more has changed"},
			&cli.DurationFlag{Name: "interval", Value: 10 * time.Second, Usage: "with -follow: `DURATION` between two looks at the source"},
			&cli.StringFlag{Name: "ledger", Value: "coffer-import.jsonl", Usage: "`FILE` that says what is done"},
			&cli.BoolFlag{Name: "overwrite", Usage: "replace what differs at the destination"},
			&cli.BoolFlag{Name: "delete-gone", Usage: "delete secrets that came once, have not changed here, and are not at the source any more"},
			&cli.BoolFlag{Name: "secrets-only", Usage: "only secrets, into mounts that are there"},
			&cli.StringSliceFlag{Name: "mount", Usage: "only the secrets of the mount `PATH`, with its namespace; repeatable"},
		),
	}, run)
}

// migration is one run of the command.
type migration struct {
	call        *command.Call
	mode        move.Mode
	source      *source.Client
	destination *move.Destination
	ledger      *ledger.Ledger
	bar         *progress.Bar
	copier      *secrets.Copier
	root        bool // the destination is a root namespace
}

func run(ctx context.Context, c *command.Call) error {
	m := &migration{call: c}
	if err := m.check(); err != nil {
		return err
	}
	client, err := c.SendingClient()
	if err != nil {
		return err
	}
	m.root = client.Namespace() == ""
	if m.source, err = openSource(c); err != nil {
		return err
	}
	m.destination = &move.Destination{Call: c}
	if err := m.connect(ctx); err != nil {
		return err
	}
	h := ledger.Header{Source: c.String("source-namespace") + "@" + m.source.Address(), Destination: client.Namespace() + "@" + m.cluster(ctx)}
	if m.mode == move.Apply {
		m.ledger, err = ledger.Open(c.String("ledger"), h)
	} else {
		m.ledger, err = ledger.Read(c.String("ledger"), h)
	}
	if err != nil {
		return command.Usagef("%w", err)
	}
	m.bar = c.Progress()
	m.copier = &secrets.Copier{
		Source: m.source, Destination: m.destination, Ledger: m.ledger, Bar: m.bar, Mode: m.mode,
		Overwrite: c.Bool("overwrite"), DeleteGone: c.Bool("delete-gone"), Workers: c.Int("concurrency"),
	}
	err = m.passes(ctx)
	return errors.Join(err, m.ledger.Close())
}

// check rejects flags that contradict each other.
func (m *migration) check() error {
	c := m.call
	follow := c.Bool("follow") || c.Bool("follow-until-idle")
	switch {
	case c.Bool("plan") && c.Bool("verify"), follow && (c.Bool("plan") || c.Bool("verify")):
		return command.Usagef("choose one of -plan, -verify and -follow")
	case c.Float("rate") <= 0, c.Int("concurrency") <= 0:
		return command.Usagef("-rate and -concurrency must be more than 0")
	case c.Duration("interval") <= 0:
		return command.Usagef("-interval must be more than 0")
	case c.Bool("plan"):
		m.mode = move.Plan
	case c.Bool("verify"):
		m.mode = move.Verify
	}
	return c.CheckFormat()
}

// connect tries both tokens.
func (m *migration) connect(ctx context.Context) error {
	if err := m.source.Check(ctx, source.Self); err != nil {
		return command.ServerErrorf("%w", err)
	}
	_, err := m.call.Send(ctx, command.Request{Method: http.MethodGet, Path: source.Self, Plain: true})
	return err
}

// cluster names the destination in the ledger: by its id, as it has many addresses.
func (m *migration) cluster(ctx context.Context) string {
	var out struct {
		ID string `json:"cluster_id"`
	}
	a, err := m.call.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/seal-status", Plain: true})
	if err != nil || json.Unmarshal(a.Raw, &out) != nil || out.ID == "" {
		return m.call.API.Address()
	}
	return out.ID
}

// passes goes over the source once, or again and again.
func (m *migration) passes(ctx context.Context) error {
	follow := m.call.Bool("follow") || m.call.Bool("follow-until-idle")
	written, gone, report := 0, 0, &move.Report{}
	for {
		latest := &move.Report{}
		err := m.pass(ctx, latest)
		m.bar.End()
		switch {
		case err == nil:
			report = latest
		case follow && ctx.Err() != nil:
			return m.finish(report, written)
		case m.call.Bool("follow") && (source.Away(err) || command.Passing(err)):
			m.call.Warnf("%s %v", time.Now().Format(time.TimeOnly), err)
		default:
			return err
		}
		changed := latest.Of(move.Create, move.Update, move.Overwrite, move.Delete)
		written += changed
		if !follow || err == nil && changed == 0 && m.call.Bool("follow-until-idle") {
			return m.finish(report, written)
		}
		if changed > 0 {
			m.call.Warnf("%s changes that came over: %d", time.Now().Format(time.TimeOnly), changed)
		}
		if n := report.Of(move.Gone); n != gone {
			gone = n
			m.call.Warnf("%s things that are not at the source any more, and stay here: %d", time.Now().Format(time.TimeOnly), gone)
		}
		select {
		case <-ctx.Done():
			return m.finish(report, written)
		case <-time.After(m.call.Duration("interval")):
		}
	}
}

// pass goes over the source once.
func (m *migration) pass(ctx context.Context, report *move.Report) error {
	v := &inventory.Inventory{
		Source: m.source, Destination: m.destination, Report: report,
		RootSource: m.call.String("source-namespace") == "", RootDestination: m.root,
		Planning: m.mode == move.Plan,
	}
	if err := v.Discover(ctx); err != nil {
		return explain(err)
	}
	only := m.call.StringSlice("mount")
	if !m.call.Bool("secrets-only") && len(only) == 0 {
		runner := &move.Runner{Mode: m.mode, Overwrite: m.call.Bool("overwrite"), Ledger: m.ledger, Report: report, Bar: m.bar}
		for _, step := range v.Steps() {
			m.bar.Begin("reading "+step.What, 0)
			objects, err := step.Objects(ctx)
			if err == nil {
				err = runner.Do(ctx, step.What, objects)
			}
			if err != nil {
				return explain(err)
			}
		}
		if err := v.Remarks(ctx); err != nil {
			return explain(err)
		}
		if err := v.Gone(ctx, m.ledger); err != nil {
			return explain(err)
		}
	}
	m.copier.Report = report
	for _, mount := range v.Engines {
		at := strings.Trim(mount.Namespace+"/"+mount.Path, "/")
		if mount.KV() == 0 || len(only) > 0 && !slices.ContainsFunc(only, func(p string) bool { return command.CleanPath(p) == at }) {
			continue
		}
		if _, err := m.copier.Mount(ctx, mount); err != nil {
			return explain(err)
		}
	}
	return nil
}

// explain gives errors of the source the exit status of a server.
func explain(err error) error {
	var request *command.RequestError
	if errors.As(err, &request) || errors.Is(err, context.Canceled) {
		return err
	}
	return command.ServerErrorf("%w", err)
}
