package replication

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func statusCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "status", Usage: "show this cluster's place in replication and how far secondaries are",
		Help: `Shows whether the cluster is a primary, a secondary or neither, whom it is connected to and how far behind each is. Needs no token.

With -watch it shows that again and again until it is interrupted: redrawn on a terminal, otherwise a line for each change.

Examples:

  $ coffer replication status
  $ coffer replication status -watch
  $ coffer replication status -field=state`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "go on showing it"},
			&cli.StringFlag{Name: "interval", Usage: "look every `DURATION` with -watch", Value: "1s"},
			command.FieldFlag(), command.ExitCodeFlag("it is not up to date, as \"replication wait\" waits for, without -watch"),
		},
	}, func(ctx context.Context, c *command.Call) error {
		if c.Bool("watch") {
			return watchStatus(ctx, c)
		}
		s, a, err := fetchStatus(ctx, c)
		if err != nil {
			return err
		}
		if c.Format() != command.FormatTable || c.String("field") != "" {
			err = c.PrintResponse(a)
		} else {
			err = s.write(c.Out, command.StyleOf(c.Out))
		}
		return c.ExitUnless(s.reached(defaultPhase, "", defaultMaxLag), err)
	})
}

// status is what the commands need of sys/replication/performance/status.
type status struct {
	Mode        string          `json:"mode"`
	ClusterID   string          `json:"cluster_id"`
	SetID       string          `json:"set_id"`
	Epoch       uint64          `json:"epoch"`
	EpochOf     string          `json:"epoch_cluster_id"`
	State       string          `json:"state"`
	Phase       string          `json:"phase"`
	Connection  string          `json:"connection_state"`
	Reason      string          `json:"reason"`
	Position    string          `json:"position"`
	Fenced      uint64          `json:"fenced"`
	FencedBy    otherPrimary    `json:"fenced_by"`
	Final       bool            `json:"primary_final"`
	Others      []otherPrimary  `json:"other_primaries"`
	Formers     []formerPrimary `json:"former_primaries"`
	Quarantined int             `json:"units_quarantined"`
	SecondaryID string          `json:"secondary_id"`
	Exact       bool            `json:"exact"`
	KeysDone    int64           `json:"keys_done"`
	KeysTotal   int64           `json:"keys_total"`
	ETASeconds  float64         `json:"eta_seconds"`
	Repair      *lastRepair     `json:"last_repair"`
	Secondaries []peer          `json:"secondaries"`
	Primaries   []peer          `json:"primaries"`
	lag
}

// otherPrimary is a primary that is not of the cluster's history.
type otherPrimary struct {
	Epoch      uint64 `json:"epoch"`
	ClusterID  string `json:"cluster_id"`
	APIAddress string `json:"api_address"`
}

func (o otherPrimary) text() string {
	text := fmt.Sprintf("cluster %s in epoch %d", cmp.Or(o.ClusterID, "(unknown)"), o.Epoch)
	if o.APIAddress != "" {
		text += " at " + o.APIAddress
	}
	return text
}

// formerPrimary is one that has not confirmed that it is none any more.
type formerPrimary struct {
	ClusterID string   `json:"cluster_id"`
	Addresses []string `json:"cluster_addresses"`
	Since     string   `json:"since"`
	Reason    string   `json:"reason"`
}

// lag is how far a secondary is behind.
type lag struct {
	LagEntries       uint64  `json:"lag_entries"`
	LagBytes         int64   `json:"lag_bytes"`
	LagSeconds       float64 `json:"lag_seconds"`
	LastEqual        string  `json:"last_equal"`
	EntriesPerSecond float64 `json:"entries_per_second"`
}

// peer is a secondary, or a node of the primary.
type peer struct {
	NodeID         string `json:"node_id"`
	APIAddress     string `json:"api_address"`
	ClusterAddress string `json:"cluster_address"`
	Connection     string `json:"connection_status"`
	HeardMS        string `json:"last_heartbeat_duration_ms"`
	lag
}

// lastRepair is a comparison of a secondary with its primary.
type lastRepair struct {
	Cause    string  `json:"cause"`
	Running  bool    `json:"running"`
	Seconds  float64 `json:"seconds"`
	Units    int     `json:"units"`
	UnitsAll int     `json:"units_all"`
	Keys     int     `json:"keys"`
	Bytes    int64   `json:"bytes"`
}

func fetchStatus(ctx context.Context, c *command.Call) (*status, *command.Response, error) {
	a, err := c.Get(ctx, apiPath+"status")
	if err != nil {
		return nil, nil, err
	}
	var out struct{ Data status }
	if err := json.Unmarshal(a.Raw, &out); err != nil || out.Data.Mode == "" {
		return nil, nil, command.ServerErrorf("the answer is not a status of replication")
	}
	return &out.Data, a, nil
}

// phase is what a secondary is doing, in our words if the server has them.
func (s *status) phase() string { return cmp.Or(s.Phase, s.State) }

// write draws the cluster and below it those it is connected to.
func (s *status) write(w io.Writer, style table.Style) error {
	rows := [][]string{{"Key", "Value"}, {"---", "-----"}, {"Mode", table.Printable(s.Mode)}}
	add := func(key, value string) {
		if value != "" && value != "0" {
			rows = append(rows, []string{key, table.Printable(value)})
		}
	}
	add("Cluster ID", s.ClusterID)
	add("Set ID", s.SetID)
	epoch := strconv.FormatUint(s.Epoch, 10)
	if s.EpochOf != "" {
		epoch += ", of cluster " + s.EpochOf
	}
	add("Epoch", epoch)
	add("State", s.phase())
	add("Position", s.Position)
	add("Secondary ID", s.SecondaryID)
	if s.Fenced > 0 {
		s.FencedBy.Epoch = s.Fenced
		add("Fenced", "the primary is "+s.FencedBy.text()+": this cluster takes no shared writes; demote it and make it follow that one")
	}
	if s.Final {
		add("Primary's Final Word", "it was demoted, and everything that it had is here: this cluster can be promoted")
	}
	for _, o := range s.Others {
		if s.Fenced == 0 || o.ClusterID != s.FencedBy.ClusterID {
			add("Other Primary", o.text()+", which is not of this cluster's history")
		}
	}
	for _, f := range s.Formers {
		add("Former Primary", fmt.Sprintf("cluster %s at %s may still take writes, has not confirmed since %s: %s", f.ClusterID, strings.Join(f.Addresses, ", "),
			cmp.Or(f.Since, "-"), cmp.Or(f.Reason, "not asked yet")))
	}
	if s.Quarantined > 0 {
		add("Quarantined", fmt.Sprintf("%d mounts or namespaces differ after repairs", s.Quarantined))
	}
	if s.Reason != "" && s.Mode == "secondary" {
		if s.Connection == "ready" {
			add("Paused", s.Reason)
		} else {
			add("Not Connected", s.Reason)
		}
	}
	if r := s.Repair; r != nil && r.Cause != "" && !r.Running {
		add("Last Repair", fmt.Sprintf("%s; %d keys, %s in %.1f s", r.Cause, r.Keys, table.Size(r.Bytes), r.Seconds))
	}
	add("Progress", s.progress())
	if err := style.Write(w, rows); err != nil || s.Mode == "disabled" {
		return err
	}
	fmt.Fprintln(w)
	return style.Write(w, s.peers())
}

// peers is a table of the secondaries, or of the primary's nodes.
func (s *status) peers() [][]string {
	rows := [][]string{{"Secondary", "Address", "State", "Entries Behind", "Bytes", "Seconds", "Rate", "Last Equal", "Last Heard"}}
	peers := s.Secondaries
	if s.Mode == "secondary" {
		rows[0][0], peers = "Primary", s.Primaries
	}
	rule := make([]string, len(rows[0]))
	for i, h := range rows[0] {
		rule[i] = strings.Repeat("-", len(h))
	}
	rows = append(rows, rule)
	for i, p := range peers {
		id, lag, state := cmp.Or(p.NodeID, "-"), p.lag.cells(), p.Connection
		if s.Mode == "secondary" {
			id = strconv.Itoa(i + 1)
			if p.Connection != "connected" && i > 0 {
				lag = []string{"-", "-", "-", "-", "-"}
			} else {
				lag = s.cells() // also while there is no connection: then it grows
			}
		}
		heard := "-"
		if ms, err := strconv.ParseInt(p.HeardMS, 10, 64); err == nil {
			heard = fmt.Sprintf("%.1f s ago", float64(ms)/1000)
		}
		row := append([]string{table.Printable(id), table.Printable(cmp.Or(p.ClusterAddress, p.APIAddress, "-")), table.Printable(state)}, lag...)
		rows = append(rows, append(row, heard))
	}
	if len(peers) == 0 {
		rows = append(rows, []string{"none"})
	}
	return rows
}

// cells are the lag as a table shows it.
func (l lag) cells() []string {
	return []string{
		strconv.FormatUint(l.LagEntries, 10), table.Size(l.LagBytes), strconv.FormatFloat(l.LagSeconds, 'f', 1, 64),
		fmt.Sprintf("%.0f/s", l.EntriesPerSecond), table.Printable(cmp.Or(l.LastEqual, "never")),
	}
}

// copied is how far a copy or a comparison is that is going on; all is 0 if there is none.
func (s *status) copied() (done, all int64, what string) {
	done, all, what = s.KeysDone, s.KeysTotal, "keys"
	if r := s.Repair; r != nil && r.Running && (all == 0 || s.phase() == "repairing") {
		done, all, what = int64(r.Units), int64(r.UnitsAll), "mounts and namespaces"
	}
	if p := s.phase(); p != "backfill" && p != "repairing" || all <= 0 {
		return 0, 0, ""
	}
	return min(done, all), all, what
}

// waiting is the status for one who waits for another.
func (s *status) waiting() progress.State {
	done, all, what := s.copied()
	if all == 0 {
		return progress.State{What: s.line()}
	}
	state := progress.State{What: s.phase() + ", " + what, Done: done, All: all}
	if s.ETASeconds < 0 {
		state.Note = "the primary is written to faster than this"
	}
	return state
}

// progress is a bar for a copy or a comparison that is going on, else "".
func (s *status) progress() string {
	done, all, what := s.copied()
	if all == 0 {
		return ""
	}
	const width = 24
	full := int(done * width / all)
	text := fmt.Sprintf("[%s%s] %3d %%  %d of %d %s", strings.Repeat("#", full), strings.Repeat("-", width-full), done*100/all, done, all, what)
	switch {
	case s.ETASeconds > 0:
		text += ", about " + (time.Duration(s.ETASeconds) * time.Second).String() + " left"
	case s.ETASeconds < 0:
		text += ", the primary is written to faster than this"
	}
	return text
}

// line is the status in one line, for a watch that is not looked at.
func (s *status) line() string {
	parts := []string{s.Mode, s.phase()}
	if s.Position != "" {
		parts = append(parts, "at "+s.Position)
	}
	if s.Mode == "secondary" {
		parts = append(parts, s.Connection, s.brief())
		if bar := s.progress(); bar != "" {
			parts = append(parts, bar)
		}
		if s.Connection != "ready" {
			parts = append(parts, s.Reason)
		}
	}
	for _, p := range s.Secondaries {
		parts = append(parts, p.NodeID+" "+p.Connection+" "+p.brief())
	}
	kept := parts[:0]
	for _, p := range parts {
		if p != "" {
			kept = append(kept, table.Printable(p))
		}
	}
	return strings.Join(kept, ", ")
}

func (l lag) brief() string {
	return fmt.Sprintf("%d entries (%.1f s) behind", l.LagEntries, l.LagSeconds)
}
