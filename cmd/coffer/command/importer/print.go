package importer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
)

// finish prints what was done, or would be, or was found.
func (m *migration) finish(report *move.Report, written int) error {
	c := m.call
	if err := m.print(report, written); err != nil {
		return err
	}
	gone := report.Of(move.Gone)
	switch conflicts, failed := report.Of(move.Conflict), report.Of(move.Failed); {
	case m.mode == move.Plan:
		return nil
	case m.mode == move.Verify:
		if n := report.Of(move.Different, move.Missing); n+gone+failed > 0 {
			return command.ServerErrorf("%d things are not the same at both servers, %d are gone from the source and still here, %d could not be compared", n, gone, failed)
		}
		c.Sayf("Everything that was imported is the same at both servers.")
	case conflicts+failed > 0:
		return command.ServerErrorf("%d things are in conflict with what is at the destination, %d failed: see the list. -overwrite replaces what differs; a run with the same ledger goes on with the rest", conflicts, failed)
	default:
		if gone > 0 {
			c.Warnf("%d things that came once are not at the source any more, and stay here: see the list", gone)
		}
		c.Sayf("Success! Run it again with -ledger=%s to bring what changes, and with -verify to compare both servers.", c.String("ledger"))
	}
	return nil
}

func (m *migration) print(report *move.Report, written int) error {
	c := m.call
	actions := report.Actions()
	if c.Format() != command.FormatTable {
		if actions == nil {
			actions = []move.Action{}
		}
		return c.PrintValue(map[string]any{"actions": actions, "totals": report.Totals(), "written": written, "source_requests": m.source.Requests()})
	}
	var rows [][]string
	for _, a := range actions {
		plain := a.Action == move.Unchanged || m.mode == move.Apply && a.Reason == ""
		if plain {
			continue
		}
		rows = append(rows, []string{a.Action, a.Kind, table.Printable(dash(a.Namespace)), table.Printable(a.Name), table.Printable(dash(a.Reason))})
	}
	if len(rows) > 0 {
		if err := c.PrintColumns([]string{"Action", "Kind", "Namespace", "Name", "Reason"}, rows); err != nil {
			return err
		}
		fmt.Fprintln(c.Out)
	}
	rows = nil
	totals := report.Totals()
	for _, kind := range slices.Sorted(maps.Keys(totals)) {
		var parts []string
		for _, action := range slices.Sorted(maps.Keys(totals[kind])) {
			parts = append(parts, fmt.Sprintf("%d %s", totals[kind][action], action))
		}
		rows = append(rows, []string{kind, strings.Join(parts, ", ")})
	}
	if len(rows) == 0 {
		return nil
	}
	return c.PrintColumns([]string{"Kind", "Total"}, rows)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
