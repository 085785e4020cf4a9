package secretsync

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/columns"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
	"github.com/urfave/cli/v3"
)

func statusCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "status", Args: "[DESTINATION]", Max: 1, Usage: "show how far each secret is at each destination",
		Help: `Shows for each associated secret, or each of its keys, whether it is at its destination, since when, and why not. Without DESTINATION
those of all destinations of the namespace; -secret shows one secret wherever it is synced to.

With -watch it shows that again and again until all is synced: redrawn on a terminal, otherwise a line for each change. The exit status
is then 0; it is 2 if what is left cannot go on by itself, such as a conflict, or if -timeout is over.

Examples:

  $ coffer sync status
  $ coffer sync status -secret=secret/app
  $ coffer sync status -watch -timeout=5m cloud1-sm/prod`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on showing it until all is synced"},
			&cli.StringFlag{Name: "interval", Usage: "look every `DURATION` with -watch", Value: "1s"},
			&cli.StringFlag{Name: "timeout", Usage: "give up after `DURATION` with -watch; without it never"},
			&cli.StringFlag{Name: "secret", Usage: "only the secret at `PATH`"},
			&cli.BoolFlag{Name: "problems", Usage: "leave out what is synced, or being synced for the first time"},
			command.ExitCodeFlag("something is not synced, without -watch"), mountFlag(),
		},
	}, func(ctx context.Context, c *command.Call) error {
		if c.Bool("output-curl-string") {
			return command.Usagef("-output-curl-string is not for %s: it sends several requests", c.FullName())
		}
		if err := c.CheckFormat(); err != nil {
			return err
		}
		look, err := statusReader(ctx, c)
		if err != nil {
			return err
		}
		if c.Bool("watch") {
			return watchStatus(ctx, c, look)
		}
		s, err := look(ctx)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable {
			err = c.PrintValue(s)
		} else {
			err = printStatus(c, s)
		}
		return c.ExitUnless(s.settled(), err)
	})
}

func waitCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "wait", Args: "[DESTINATION]", Max: 1, Usage: "wait until secrets are synced",
		Help: `Waits until all associated secrets, those of DESTINATION, or the one that -secret names, are at their destinations. The exit status is 2 if what
is left cannot go on by itself, such as a conflict, or if that takes longer than -timeout.

Examples:

  $ coffer sync wait -timeout=2m
  $ coffer sync wait -secret=secret/app cloud1-sm/prod`,
		Flags: watch.WaitFlags(&cli.StringFlag{Name: "secret", Usage: "only the secret at `PATH`"}, mountFlag()),
	}, func(ctx context.Context, c *command.Call) error {
		look, err := statusReader(ctx, c)
		if err != nil {
			return err
		}
		return awaitSynced(ctx, c, look)
	})
}

// awaitSynced waits until a status is settled. What cannot be by itself is an error.
func awaitSynced(ctx context.Context, c *command.Call, look func(context.Context) (*status, error)) error {
	return watch.Until(ctx, c, func(ctx context.Context) (bool, progress.State, error) {
		s, err := look(ctx)
		if err != nil {
			return false, progress.State{}, err
		}
		if s.stuck() {
			return false, progress.State{}, command.ServerErrorf("what is left cannot go on by itself: coffer sync status -problems shows why")
		}
		return s.settled(), s.progress(), nil
	})
}

// Statuses that the command line tells apart.
const (
	statusSynced    = "SYNCED"
	statusUnsynced  = "UNSYNCED"
	statusPending   = "PENDING"
	statusConflict  = "CONFLICT"
	statusClient    = "CLIENT_SIDE_ERROR"
	statusSyncing   = "SYNCING"
	statusUnsyncing = "UNSYNCING"
)

// codeRateLimited is the code of what waits for its next write, and needs nothing else.
const codeRateLimited = "rate_limited"

// status is what -format=json prints.
type status struct {
	Secrets []entry        `json:"secrets"`
	Totals  map[string]int `json:"totals"`

	hidden []string // destinations that the token may not read
}

// entry is a secret, or one of its keys, at a destination.
type entry struct {
	Destination     string `json:"destination"`
	Accessor        string `json:"accessor"`
	Mount           string `json:"mount"`
	Secret          string `json:"secret_name"`
	Key             string `json:"sub_key"`
	Prefix          string `json:"secret_prefix,omitempty"`
	ExternalName    string `json:"external_name,omitempty"`
	ExternalVersion string `json:"external_version,omitempty"`
	Status          string `json:"sync_status"`
	Code            string `json:"code,omitempty"`
	Cause           string `json:"cause,omitempty"`
	Adopting        bool   `json:"adopting,omitempty"`
	Drift           string `json:"drift,omitempty"`

	Format        string            `json:"format,omitempty"`
	Rename        map[string]string `json:"rename,omitempty"`
	ValueTemplate string            `json:"value_template,omitempty"`

	Version     int        `json:"version"`
	Attempts    int        `json:"attempts"`
	UpdatedAt   *time.Time `json:"updated_at,omitempty"`
	LastSuccess *time.Time `json:"last_success,omitempty"`
	LastAttempt *time.Time `json:"last_attempt,omitempty"`
	NextRetry   *time.Time `json:"next_retry,omitempty"`
}

// readStatus reads the associations that a response shows.
func readStatus(p destination, a *command.Response) (*status, error) {
	var out struct {
		Data struct {
			Secrets map[string]entry `json:"associated_secrets"`
		}
	}
	if err := json.Unmarshal(a.Raw, &out); err != nil || out.Data.Secrets == nil {
		return nil, command.ServerErrorf("the answer does not show associations")
	}
	s := &status{}
	for _, key := range slices.Sorted(maps.Keys(out.Data.Secrets)) {
		e := out.Data.Secrets[key]
		e.Destination = p.String()
		s.Secrets = append(s.Secrets, e)
	}
	return s.counted(), nil
}

// counted fills in the totals and orders the entries.
func (s *status) counted() *status {
	s.Totals = map[string]int{}
	for _, e := range s.Secrets {
		s.Totals[e.Status]++
	}
	slices.SortStableFunc(s.Secrets, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Mount, b.Mount), cmp.Compare(a.Secret, b.Secret), cmp.Compare(a.Key, b.Key))
	})
	if s.Secrets == nil {
		s.Secrets = []entry{}
	}
	return s
}

// settled reports whether an entry is as it is to be. That nothing of a secret is left to be synced is so, too.
func (e *entry) settled() bool { return e.Status == statusSynced || e.Status == statusUnsynced }

// waits reports whether an entry cannot go on until an operator acts.
func (e *entry) waits() bool {
	return e.Status == statusConflict && !e.Adopting || e.Status == statusClient || e.Status == statusPending && (e.Code == "paused" || e.Code == "disabled")
}

func (s *status) settled() bool {
	return !slices.ContainsFunc(s.Secrets, func(e entry) bool { return !e.settled() })
}

// leaving reports whether all is being removed.
func (s *status) leaving() bool {
	return !slices.ContainsFunc(s.Secrets, func(e entry) bool { return e.Status != statusUnsyncing })
}

// stuck reports whether something is not as it is to be, and nothing is on its way any more.
func (s *status) stuck() bool {
	return !s.settled() && !slices.ContainsFunc(s.Secrets, func(e entry) bool { return !e.settled() && !e.waits() })
}

// of returns the part of a status that an association is of.
func (s *status) of(body map[string]any) *status {
	part := &status{}
	prefix, below := body["secret_prefix"].(string)
	for _, e := range s.Secrets {
		mount := e.Accessor == body["mount"] || command.CleanPath(e.Mount) == body["mount"]
		if mount && (e.Secret == body["secret_name"] || below && (prefix == "*" || strings.HasPrefix(e.Secret, prefix))) {
			part.Secrets = append(part.Secrets, e)
		}
	}
	return part.counted()
}

// statusReader returns how to get the status that the arguments ask for.
func statusReader(ctx context.Context, c *command.Call) (func(context.Context) (*status, error), error) {
	var only *destination
	if c.Arg(0) != "" {
		p, err := destinationArg(c)
		if err != nil {
			return nil, err
		}
		only = &p
	}
	if c.String("secret") == "" {
		if c.String("mount") != "" {
			return nil, command.Usagef("-mount goes with -secret")
		}
		return func(ctx context.Context) (*status, error) { return fetchStatus(ctx, c, only) }, nil
	}
	mount, name := command.CleanPath(c.String("mount")), c.String("secret")
	if mount == "" {
		p, err := kv.PathOf(ctx, c, name)
		if err != nil {
			return nil, err
		}
		mount, name = command.CleanPath(p.Mount), p.Name
	}
	return func(ctx context.Context) (*status, error) { return fetchStatusOf(ctx, c, mount, name, only) }, nil
}

// fetchStatus reads the status of one destination, or with nil of all.
func fetchStatus(ctx context.Context, c *command.Call, only *destination) (*status, error) {
	destinations := []destination{}
	if only != nil {
		destinations = append(destinations, *only)
	} else {
		var err error
		if destinations, err = listDestinations(ctx, c); err != nil {
			return nil, err
		}
	}
	all := &status{}
	var denied error
	for _, p := range destinations {
		a, err := c.Get(ctx, p.api("/associations"))
		switch {
		case command.NothingThere(err) && only != nil:
			return nil, noDestination(p)
		case command.NothingThere(err): // deleted just now
			continue
		case command.StatusOf(err) == http.StatusForbidden && only == nil:
			all.hidden, denied = append(all.hidden, p.String()), err
			continue
		case err != nil:
			return nil, err
		}
		s, err := readStatus(p, a)
		if err != nil {
			return nil, err
		}
		all.Secrets = append(all.Secrets, s.Secrets...)
	}
	if denied != nil && len(all.hidden) == len(destinations) {
		return nil, denied
	}
	return all.counted(), nil
}

// fetchStatusOf reads where a secret is synced to.
func fetchStatusOf(ctx context.Context, c *command.Call, mount, name string, only *destination) (*status, error) {
	a, err := c.Send(ctx, command.Request{
		Method: http.MethodGet, Path: apiPath + "associations/destinations", Query: url.Values{"mount": {mount}, "secret_name": {name}},
	})
	if command.NothingThere(err) {
		return nil, command.ServerErrorf("%s is not synced to any destination", table.Printable(mount+"/"+name))
	}
	if err != nil {
		return nil, err
	}
	type found struct {
		entry
		Type  string   `json:"type"`
		Name  string   `json:"name"`
		Types []string `json:"type_names"` // the type's, of which the argument may have any
	}
	var out struct {
		Data struct {
			Destinations map[string]found `json:"associated_destinations"`
		}
	}
	if err := json.Unmarshal(a.Raw, &out); err != nil || out.Data.Destinations == nil {
		return nil, command.ServerErrorf("the answer does not show destinations")
	}
	s := &status{}
	for _, f := range out.Data.Destinations {
		p := destination{f.Type, f.Name}
		if only == nil || *only == p || only.name == p.name && slices.Contains(f.Types, only.kind) {
			f.Destination = p.String()
			s.Secrets = append(s.Secrets, f.entry)
		}
	}
	if len(s.Secrets) == 0 {
		return nil, command.ServerErrorf("%s is not synced to %s", table.Printable(mount+"/"+name), only)
	}
	return s.counted(), nil
}

var statusHeading = []string{"Destination", "Secret", "Key", "External Name", "Status", "Code", "Version", "Since", "Cause"}

// printStatus prints a status for people: a table, and below it how much of it is right.
func printStatus(c *command.Call, s *status) error {
	err := writeTable(c, c.Out, command.StyleOf(c.Out), s.Secrets, time.Now())
	for _, p := range s.hidden {
		c.Warnf("Left out: the token may not read %s.", table.Printable(p))
	}
	if err == nil {
		_, err = fmt.Fprintln(c.Out, s.line())
	}
	return err
}

// writeTable draws a table of entries, if there are any to be shown, and an empty line.
func writeTable(c *command.Call, w io.Writer, style table.Style, entries []entry, now time.Time) error {
	rows := columns.Heading(statusHeading)
	for i := range entries {
		e := &entries[i]
		if c.Bool("problems") && e.Drift == "" && (e.settled() || e.Status == statusSyncing && e.Cause == "") {
			continue
		}
		rows = append(rows, []string{
			table.Printable(e.Destination), table.Printable(strings.TrimSuffix(e.Mount, "/") + "/" + e.Secret), columns.Dashed(e.Key), columns.Dashed(e.ExternalName), table.Printable(e.Status), columns.Dashed(table.Printable(e.Code)), columns.Dashed(e.Version),
			table.Ago(e.UpdatedAt, now), table.Printable(e.cause(now)),
		})
	}
	if len(rows) == 2 {
		return nil
	}
	if err := style.Write(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// cause says why an entry is as it is, and what comes next.
func (e *entry) cause(now time.Time) string {
	cause := e.Cause
	if e.Adopting {
		cause = "is being adopted"
	}
	if e.Drift != "" {
		cause = strings.TrimPrefix(cause+"; drift: "+e.Drift, "; ")
	}
	if e.NextRetry != nil && !e.settled() {
		next := "is tried again now"
		if left := e.NextRetry.Sub(now); left > 0 {
			next = "is tried again in " + table.Short(left)
		}
		if e.Attempts > 0 {
			next += fmt.Sprintf(" (%d so far)", e.Attempts)
		}
		if e.Code != codeRateLimited { // its cause says until when
			cause = strings.TrimPrefix(cause+"; "+next, "; ")
		}
	}
	return cmp.Or(strings.ReplaceAll(cause, "\n", " "), "-")
}

// line is the status in one line.
func (s *status) line() string {
	if len(s.Secrets) == 0 {
		return "Nothing is associated."
	}
	return strings.TrimSuffix(fmt.Sprintf("%d of %d synced, %s", s.Totals[statusSynced], len(s.Secrets), s.others()), ", ")
}

// progress is how far all of it is.
func (s *status) progress() progress.State {
	return progress.State{What: "synced", Done: int64(s.Totals[statusSynced]), All: int64(len(s.Secrets)), Note: s.others()}
}

// others counts what is not synced, by status.
func (s *status) others() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(s.Totals)) {
		if status != statusSynced {
			parts = append(parts, fmt.Sprintf("%d %s", s.Totals[status], table.Printable(status)))
		}
	}
	drifted := 0
	for _, e := range s.Secrets {
		if e.Drift != "" {
			drifted++
		}
	}
	if drifted > 0 {
		parts = append(parts, fmt.Sprintf("%d drifted", drifted))
	}
	return strings.Join(parts, ", ")
}
