package main

import (
	"bytes"
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
	"unicode/utf8"

	"github.com/urfave/cli/v3"
)

func syncStatusCommand() *cli.Command {
	return command(spec{
		name: "status", args: "[DESTINATION]", max: 1, usage: "show how far each secret is at each destination",
		help: `Shows for each associated secret, or each of its keys, whether it is at its destination, since when, and why not. Without DESTINATION
those of all destinations of the namespace; -secret shows one secret wherever it is synced to.

With -watch it shows that again and again until all is synced: redrawn on a terminal, otherwise a line for each change. The exit status
is then 0; it is 2 if what is left cannot go on by itself, such as a conflict, or if -timeout is over.

Examples:

  $ coffer sync status
  $ coffer sync status -secret=secret/app
  $ coffer sync status -watch -timeout=5m cloud1-sm/prod`,
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on showing it until all is synced"},
			&cli.StringFlag{Name: "interval", Usage: "look every `DURATION` with -watch", Value: "1s"},
			&cli.StringFlag{Name: "timeout", Usage: "give up after `DURATION` with -watch; without it never"},
			&cli.StringFlag{Name: "secret", Usage: "only the secret at `PATH`"},
			&cli.BoolFlag{Name: "problems", Usage: "leave out what is synced"},
			syncMountFlag(),
		},
	}, func(ctx context.Context, c *call) error {
		if c.Bool("output-curl-string") {
			return usagef("-output-curl-string is not for %s: it sends several requests", c.FullName())
		}
		if err := c.checkFormat(); err != nil {
			return err
		}
		look, err := c.syncLook(ctx)
		if err != nil {
			return err
		}
		if c.Bool("watch") {
			return c.watchSync(ctx, look)
		}
		s, err := look(ctx)
		if err != nil {
			return err
		}
		if c.format() != formatTable {
			return c.printValue(s)
		}
		return c.printSyncStatus(s)
	})
}

// Statuses that the command line tells apart.
const (
	statusSynced    = "SYNCED"
	statusUnsynced  = "UNSYNCED"
	statusPending   = "PENDING"
	statusConflict  = "CONFLICT"
	statusClient    = "CLIENT_SIDE_ERROR"
	statusExternal  = "EXTERNAL_SERVICE_ERROR"
	statusSyncing   = "SYNCING"
	statusUnsyncing = "UNSYNCING"
)

// syncStatus is what -format=json prints.
type syncStatus struct {
	Secrets []syncEntry    `json:"secrets"`
	Totals  map[string]int `json:"totals"`

	hidden []string // destinations that the token may not read
}

// syncEntry is a secret, or one of its keys, at a destination.
type syncEntry struct {
	Destination     string     `json:"destination"`
	Accessor        string     `json:"accessor"`
	Mount           string     `json:"mount"`
	Secret          string     `json:"secret_name"`
	Key             string     `json:"sub_key"`
	Prefix          string     `json:"secret_prefix,omitempty"`
	ExternalName    string     `json:"external_name,omitempty"`
	ExternalVersion string     `json:"external_version,omitempty"`
	Status          string     `json:"sync_status"`
	Code            string     `json:"code,omitempty"`
	Cause           string     `json:"cause,omitempty"`
	Drift           string     `json:"drift,omitempty"`
	Version         int        `json:"version"`
	Attempts        int        `json:"attempts"`
	UpdatedAt       *time.Time `json:"updated_at,omitempty"`
	LastSuccess     *time.Time `json:"last_success,omitempty"`
	LastAttempt     *time.Time `json:"last_attempt,omitempty"`
	NextRetry       *time.Time `json:"next_retry,omitempty"`
}

// readSyncStatus reads the associations that an answer shows.
func readSyncStatus(p place, a *answer) (*syncStatus, error) {
	var out struct {
		Data struct {
			Secrets map[string]syncEntry `json:"associated_secrets"`
		}
	}
	if err := json.Unmarshal(a.raw, &out); err != nil || out.Data.Secrets == nil {
		return nil, serverErrorf("the answer does not show associations")
	}
	s := &syncStatus{}
	for _, key := range slices.Sorted(maps.Keys(out.Data.Secrets)) {
		e := out.Data.Secrets[key]
		e.Destination = p.String()
		s.Secrets = append(s.Secrets, e)
	}
	return s.counted(), nil
}

// counted fills in the totals and orders the entries.
func (s *syncStatus) counted() *syncStatus {
	s.Totals = map[string]int{}
	for _, e := range s.Secrets {
		s.Totals[e.Status]++
	}
	slices.SortStableFunc(s.Secrets, func(a, b syncEntry) int {
		return cmp.Or(cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Mount, b.Mount), cmp.Compare(a.Secret, b.Secret), cmp.Compare(a.Key, b.Key))
	})
	if s.Secrets == nil {
		s.Secrets = []syncEntry{}
	}
	return s
}

// settled reports whether an entry is as it is to be. That nothing of a secret is left to be synced is so, too.
func (e *syncEntry) settled() bool { return e.Status == statusSynced || e.Status == statusUnsynced }

// waits reports whether an entry cannot go on until an operator acts.
func (e *syncEntry) waits() bool {
	return e.Status == statusConflict || e.Status == statusClient || e.Status == statusPending && e.Code != ""
}

func (s *syncStatus) settled() bool {
	return !slices.ContainsFunc(s.Secrets, func(e syncEntry) bool { return !e.settled() })
}

// leaving reports whether all is being removed.
func (s *syncStatus) leaving() bool {
	return !slices.ContainsFunc(s.Secrets, func(e syncEntry) bool { return e.Status != statusUnsyncing })
}

// stuck reports whether something is not as it is to be, and nothing is on its way any more.
func (s *syncStatus) stuck() bool {
	return !s.settled() && !slices.ContainsFunc(s.Secrets, func(e syncEntry) bool { return !e.settled() && !e.waits() })
}

// syncLook returns how to get the status that the arguments ask for.
func (c *call) syncLook(ctx context.Context) (func(context.Context) (*syncStatus, error), error) {
	var only *place
	if c.arg(0) != "" {
		p, err := c.place()
		if err != nil {
			return nil, err
		}
		only = &p
	}
	if c.String("secret") == "" {
		if c.String("mount") != "" {
			return nil, usagef("-mount goes with -secret")
		}
		return func(ctx context.Context) (*syncStatus, error) { return c.syncStatus(ctx, only) }, nil
	}
	mount, name := cleanPath(c.String("mount")), c.String("secret")
	if mount == "" {
		p, err := c.kvPathOf(ctx, name)
		if err != nil {
			return nil, err
		}
		mount, name = cleanPath(p.mount), p.name
	}
	return func(ctx context.Context) (*syncStatus, error) { return c.syncStatusOf(ctx, mount, name, only) }, nil
}

// syncStatus reads the status of one destination, or with nil of all.
func (c *call) syncStatus(ctx context.Context, only *place) (*syncStatus, error) {
	places := []place{}
	if only != nil {
		places = append(places, *only)
	} else {
		var err error
		if places, err = c.syncPlaces(ctx); err != nil {
			return nil, err
		}
	}
	all := &syncStatus{}
	var denied error
	for _, p := range places {
		a, err := c.get(ctx, p.api("/associations"))
		switch {
		case nothingThere(err) && only != nil:
			return nil, noDestination(p)
		case nothingThere(err): // deleted just now
			continue
		case statusOf(err) == http.StatusForbidden && only == nil:
			all.hidden, denied = append(all.hidden, p.String()), err
			continue
		case err != nil:
			return nil, err
		}
		s, err := readSyncStatus(p, a)
		if err != nil {
			return nil, err
		}
		all.Secrets = append(all.Secrets, s.Secrets...)
	}
	if denied != nil && len(all.hidden) == len(places) {
		return nil, denied
	}
	return all.counted(), nil
}

// syncStatusOf reads where a secret is synced to.
func (c *call) syncStatusOf(ctx context.Context, mount, name string, only *place) (*syncStatus, error) {
	a, err := c.send(ctx, request{
		method: http.MethodGet, path: syncPath + "associations/destinations", query: url.Values{"mount": {mount}, "secret_name": {name}},
	})
	if nothingThere(err) {
		return nil, serverErrorf("%s is not synced to any destination", printable(mount+"/"+name))
	}
	if err != nil {
		return nil, err
	}
	type found struct {
		syncEntry
		Type string `json:"type"`
		Name string `json:"name"`
	}
	var out struct {
		Data struct {
			Destinations map[string]found `json:"associated_destinations"`
		}
	}
	if err := json.Unmarshal(a.raw, &out); err != nil || out.Data.Destinations == nil {
		return nil, serverErrorf("the answer does not show destinations")
	}
	s := &syncStatus{}
	for _, f := range out.Data.Destinations {
		p := place{f.Type, f.Name}
		if only == nil || *only == p {
			f.Destination = p.String()
			s.Secrets = append(s.Secrets, f.syncEntry)
		}
	}
	if len(s.Secrets) == 0 {
		return nil, serverErrorf("%s is not synced to %s", printable(mount+"/"+name), only)
	}
	return s.counted(), nil
}

var syncHeading = []string{"Destination", "Secret", "Key", "External Name", "Status", "Version", "Since", "Cause"}

// printSyncStatus prints a status for people.
func (c *call) printSyncStatus(s *syncStatus) error {
	var out bytes.Buffer
	if err := c.writeSyncStatus(&out, s, time.Now()); err != nil {
		return err
	}
	for _, p := range s.hidden {
		c.warnf("Left out: the token may not read %s.", printable(p))
	}
	return c.printColoured(out.String())
}

// writeSyncStatus draws a status: a table, and below it how much of it is right.
func (c *call) writeSyncStatus(w io.Writer, s *syncStatus, now time.Time) error {
	if err := c.writeSyncTable(w, s.Secrets, now); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, s.line())
	return err
}

// writeSyncTable draws a table of entries, if there are any to be shown, and an empty line.
func (c *call) writeSyncTable(w io.Writer, entries []syncEntry, now time.Time) error {
	rows := heading(syncHeading)
	for i := range entries {
		e := &entries[i]
		if c.Bool("problems") && e.settled() && e.Drift == "" {
			continue
		}
		rows = append(rows, []string{
			printable(e.Destination), printable(strings.TrimSuffix(e.Mount, "/") + "/" + e.Secret), dashed(e.Key), dashed(e.ExternalName), printable(e.Status), dashed(e.Version),
			ago(e.UpdatedAt, now), printable(e.cause(now)),
		})
	}
	if len(rows) == 2 {
		return nil
	}
	if err := writeColumns(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

// cause says why an entry is as it is, and what comes next.
func (e *syncEntry) cause(now time.Time) string {
	cause := e.Cause
	if e.Drift != "" {
		cause = strings.TrimPrefix(cause+"; drift: "+e.Drift, "; ")
	}
	if e.NextRetry != nil && !e.settled() {
		next := "is tried again now"
		if left := e.NextRetry.Sub(now); left > 0 {
			next = "is tried again in " + shortDuration(left)
		}
		cause = strings.TrimPrefix(fmt.Sprintf("%s; %s (%d so far)", cause, next, e.Attempts), "; ")
	}
	return cmp.Or(strings.ReplaceAll(cause, "\n", " "), "-")
}

// line is the status in one line.
func (s *syncStatus) line() string {
	if len(s.Secrets) == 0 {
		return "Nothing is associated."
	}
	parts := []string{fmt.Sprintf("%d of %d synced", s.Totals[statusSynced], len(s.Secrets))}
	for _, status := range slices.Sorted(maps.Keys(s.Totals)) {
		if status != statusSynced {
			parts = append(parts, fmt.Sprintf("%d %s", s.Totals[status], printable(status)))
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

// ago is how long something has been so.
func ago(at *time.Time, now time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return shortDuration(now.Sub(*at))
}

// shortDuration is a duration in its largest unit.
func shortDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// heading are the first two rows of a table.
func heading(names []string) [][]string {
	rule := make([]string, len(names))
	for i, h := range names {
		rule[i] = strings.Repeat("-", len(h))
	}
	return [][]string{names, rule}
}

// printColouredColumns prints a table whose column Status is coloured.
func (c *call) printColouredColumns(names []string, rows [][]string) error {
	if err := c.checkFormat(); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := writeColumns(&out, append(heading(names), rows...)); err != nil {
		return err
	}
	return c.printColoured(out.String())
}

func (c *call) printColoured(text string) error {
	colour := statusColours()
	for line := range strings.Lines(text) {
		if coloured(c.out) {
			line = colour(line)
		}
		if _, err := io.WriteString(c.out, line); err != nil {
			return err
		}
	}
	return nil
}

const (
	green, yellow, red, magenta = "32", "33", "31", "35"
)

// wordColours are those of the words in columns Status and Action.
var wordColours = map[string]string{
	statusSynced: green, "ok": green, "create": green, "none": green,
	statusPending: yellow, statusSyncing: yellow, statusUnsyncing: yellow, statusUnsynced: yellow, "unknown": yellow, "update": yellow, "recover": yellow, "forget": yellow, "retain": yellow, "wait": yellow,
	statusConflict: magenta, "conflict": magenta, "adopt": magenta, "changed": magenta, "missing": magenta,
	statusClient: red, statusExternal: red, "INTERNAL_VAULT_ERROR": red, "failed": red, "delete": red, "refuse": red,
}

// statusColours returns a function that colours the words of a table line by line, once it has seen the heading: what is in
// the column Status, Action or Drift. Whatever else is on a line stays as it is.
func statusColours() func(line string) string {
	from := -1
	return func(line string) string {
		for _, name := range []string{"Status", "Action", "Drift"} {
			if i := strings.Index(line, name); from < 0 && i >= 0 {
				from = utf8.RuneCountInString(line[:i])
				return line
			}
		}
		r := []rune(line)
		if from < 0 || from >= len(r) {
			return line
		}
		word, _, _ := strings.Cut(string(r[from:]), " ")
		code := wordColours[strings.TrimSuffix(word, "\n")]
		if code == "" {
			return line
		}
		word = strings.TrimSuffix(word, "\n")
		return string(r[:from]) + "\x1b[" + code + "m" + word + "\x1b[0m" + string(r[from+utf8.RuneCountInString(word):])
	}
}
