// Package diagnose has "coffer operator diagnose": checks of the machine, the configuration and the data of a server that is to be started.
// It changes nothing. checkGroups lists the checks; each adds findings to a diagnosis.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/node/settings"
	"github.com/urfave/cli/v3"
)

func Command() *cli.Command {
	return command.New(command.Spec{
		Name: "diagnose", Usage: "look for what would keep a server from running well", Local: true, Max: 0,
		Help: `Checks the machine, the configuration and the data of a server, best before it is started: nothing is changed, and a server that
runs is not disturbed. The exit status is 0 if everything is fine, 2 if there are only warnings, and 1 if something fails.

Examples:

  $ coffer operator diagnose -config=/etc/coffer/coffer.hcl
  $ coffer operator diagnose -config=/etc/coffer -skip=seal -skip=peers -format=json`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "config", Usage: "file or directory with the configuration; may be repeated"},
			&cli.StringSliceFlag{Name: "skip", Usage: "leave the checks of this `group` out: host, tls, listener, storage, seal, peers or files; may be repeated"},
			&cli.StringFlag{Name: "format", Usage: "print the findings as `table|json|yaml`"},
		},
	}, runDiagnose)
}

// Results of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
	checkSkip = "skip"
)

// finding is what one check found.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Detail string `json:"detail"`
}

// diagnosis collects findings.
type diagnosis struct {
	config   *config.Config
	findings []finding
	group    string
}

func (d *diagnosis) add(name, status, format string, args ...any) {
	d.findings = append(d.findings, finding{d.group + ": " + name, status, fmt.Sprintf(format, args...)})
}

func (d *diagnosis) ok(name, format string, args ...any)   { d.add(name, checkOK, format, args...) }
func (d *diagnosis) warn(name, format string, args ...any) { d.add(name, checkWarn, format, args...) }
func (d *diagnosis) fail(name, format string, args ...any) { d.add(name, checkFail, format, args...) }

// checkGroups are the groups of checks, in the order they run in. All but the host's need a configuration.
var checkGroups = []struct {
	name string
	run  func(context.Context, *diagnosis)
}{
	{"host", diagnoseHost},
	{"tls", diagnoseTLS},
	{"listener", diagnoseListeners},
	{"storage", diagnoseStorage},
	{"seal", diagnoseSeal},
	{"peers", diagnosePeers},
	{"files", diagnoseFiles},
}

func runDiagnose(ctx context.Context, c *command.Call) error {
	paths := c.StringSlice("config")
	if len(paths) == 0 {
		return command.Usagef("give -config=FILE")
	}
	if err := c.CheckFormat(); err != nil {
		return err
	}
	skip := map[string]bool{}
	for _, name := range c.StringSlice("skip") {
		skip[name] = true
	}
	findings := diagnose(ctx, paths, skip)
	if err := printFindings(c, findings); err != nil {
		return err
	}
	switch worst(findings) {
	case checkFail:
		return &command.ExitError{Code: command.ExitLocal}
	case checkWarn:
		return &command.ExitError{Code: command.ExitServer}
	}
	return nil
}

// diagnose runs every group that is not skipped.
func diagnose(ctx context.Context, paths []string, skip map[string]bool) []finding {
	d := &diagnosis{group: "config"}
	cfg, err := settings.Load(paths...)
	if err == nil {
		if err = cfg.Complete(); err == nil {
			_, err = settings.AuditDevices(cfg)
		}
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			d.fail("valid", "%s", strings.TrimSpace(line))
		}
	} else {
		d.config = cfg
		d.ok("valid", "every key is known and nothing is missing")
	}
	for _, g := range checkGroups {
		d.group = g.name
		switch {
		case skip[g.name]:
			d.add("all", checkSkip, "left out as asked")
		case d.config == nil && g.name != "host":
			d.add("all", checkSkip, "needs a valid configuration")
		default:
			g.run(ctx, d)
		}
	}
	return d.findings
}

func worst(findings []finding) string {
	result := checkOK
	for _, f := range findings {
		if f.Status == checkFail || f.Status == checkWarn && result == checkOK {
			result = f.Status
		}
	}
	return result
}

func printFindings(c *command.Call, findings []finding) error {
	if c.Format() != command.FormatTable {
		return c.PrintValue(map[string]any{"status": worst(findings), "findings": findings})
	}
	rows := make([][]string, len(findings))
	for i, f := range findings {
		rows[i] = []string{"[" + f.Status + "]", f.Check, table.Printable(f.Detail)}
	}
	return command.StyleOf(c.Out).Write(c.Out, rows)
}

// diagnoseSeal opens the seals and lets each encrypt and decrypt something.
func diagnoseSeal(ctx context.Context, d *diagnosis) {
	auto, old, err := settings.OpenSeals(d.config, slog.New(slog.DiscardHandler))
	switch {
	case err != nil:
		d.fail("opened", "%v", err)
		return
	case auto == nil:
		d.ok("opened", "shamir: people unseal this node with their keys")
	}
	const purpose, plain = "coffer operator diagnose", "not a secret"
	for _, w := range []struct {
		name    string
		wrapper interface {
			Type() string
			Wrap(context.Context, []byte, string) ([]byte, error)
			Unwrap(context.Context, []byte, string) ([]byte, error)
		}
		there bool
	}{{"answers", auto, auto != nil}, {"the old one answers", old, old != nil}} {
		if !w.there {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, sealTime)
		blob, err := w.wrapper.Wrap(limited, []byte(plain), purpose)
		var back []byte
		if err == nil {
			back, err = w.wrapper.Unwrap(limited, blob, purpose)
		}
		cancel()
		if err == nil && string(back) != plain {
			err = errors.New("what it decrypts is not what it encrypted")
		}
		if err != nil {
			d.fail(w.name, "%s: %v", w.wrapper.Type(), err)
			continue
		}
		d.ok(w.name, "%s encrypts and decrypts", w.wrapper.Type())
	}
}
