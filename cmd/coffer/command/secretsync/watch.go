package secretsync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/secretsync/columns"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
)

// watchStatus shows a status until all of it is settled, or needs an operator. A server that cannot answer now
// is shown as such.
func watchStatus(ctx context.Context, c *command.Call, look func(context.Context) (*status, error)) error {
	every, limit, err := watch.Times(c)
	if err != nil {
		return err
	}
	var over <-chan time.Time // never, without -timeout
	if limit > 0 {
		over = time.After(limit)
	}
	screen := watch.New(c)
	defer screen.End()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last *status
	for {
		s, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNoDestination) && last != nil && last.leaving(): // that was what there was to wait for
			c.Sayf("The destination is gone.")
			return nil
		case err != nil && !command.Passing(err):
			return err
		}
		if err := showStatus(c, screen, s, err); err != nil {
			return err
		}
		if s != nil && s.settled() {
			return nil
		}
		if s != nil {
			last = s
		}
		if s != nil && s.stuck() {
			return command.ServerErrorf("what is left cannot go on by itself: coffer sync status -problems shows why")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return command.ServerErrorf("not all was synced in time")
		case <-tick.C:
		}
	}
}

// showStatus draws a status, or why there is none.
func showStatus(c *command.Call, w *watch.Screen, s *status, failure error) error {
	switch {
	case w.FD >= 0:
		text := "No answer: " + command.Shortly(failure) + "\n"
		if failure == nil {
			var err error
			if text, err = screenText(c, s, w.Now()); err != nil {
				return err
			}
		}
		if !command.Coloured(w.Out) {
			return w.Paint(text, nil)
		}
		return w.Paint(text, columns.Colours())
	case w.Format == command.FormatTable && failure != nil:
		return w.Line("no answer: " + command.Shortly(failure))
	case w.Format == command.FormatTable:
		return w.Line(s.line())
	case failure != nil:
		return nil
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return w.Changed(raw)
}

// screenText is a status for a terminal that it may not fit on: first how far all of it is, then what is not settled.
func screenText(c *command.Call, s *status, now time.Time) (string, error) {
	const width = 24
	var out bytes.Buffer
	if all := len(s.Secrets); all > 0 {
		done := 0
		for i := range s.Secrets {
			if s.Secrets[i].settled() {
				done++
			}
		}
		full := done * width / all
		fmt.Fprintf(&out, "[%s%s] %3d %%  ", strings.Repeat("#", full), strings.Repeat("-", width-full), done*100/all)
	}
	fmt.Fprintf(&out, "%s\n\n", s.line())
	entries := slices.Clone(s.Secrets)
	slices.SortStableFunc(entries, func(a, b entry) int {
		switch {
		case a.settled() == b.settled():
			return 0
		case a.settled():
			return 1
		}
		return -1
	})
	err := writeTable(c, &out, table.Style{}, entries, now)
	return strings.TrimSuffix(out.String(), "\n"), err
}
