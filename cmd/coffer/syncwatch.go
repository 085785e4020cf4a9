package main

import (
	"bytes"
	"context"
	"encoding/json"
	"time"
)

// watchSync shows a status until all of it is settled, or can only be settled by somebody. A server that cannot answer now
// is shown as such.
func (c *call) watchSync(ctx context.Context, look func(context.Context) (*syncStatus, error)) error {
	every, err := parseDuration(c.String("interval"))
	if err != nil || every <= 0 {
		return usagef("-interval takes a duration such as 1s")
	}
	var over <-chan time.Time // never, without -timeout
	if given := c.String("timeout"); given != "" {
		limit, err := parseDuration(given)
		if err != nil || limit <= 0 {
			return usagef("-timeout takes a duration such as 5m")
		}
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	}
	screen := newWatch(c)
	defer screen.end()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !passing(err):
			return err
		}
		if err := c.showSync(screen, s, err); err != nil {
			return err
		}
		if s != nil && s.settled() {
			return nil
		}
		if s != nil && s.stuck() {
			return serverErrorf("what is left cannot go on by itself: coffer sync status -problems shows why")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return serverErrorf("not all was synced in time")
		case <-tick.C:
		}
	}
}

// showSync draws a status, or why there is none.
func (c *call) showSync(w *watch, s *syncStatus, failure error) error {
	switch {
	case w.fd >= 0:
		text := "No answer: " + shortly(failure) + "\n"
		if failure == nil {
			var out bytes.Buffer
			if err := c.writeSyncStatus(&out, s, w.now()); err != nil {
				return err
			}
			text = out.String()
		}
		if !coloured(w.w) {
			return w.paint(text, nil)
		}
		return w.paint(text, statusColours())
	case w.format == formatTable && failure != nil:
		return w.line("no answer: " + shortly(failure))
	case w.format == formatTable:
		return w.line(s.line())
	case failure != nil:
		return nil
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return w.changed(raw)
}
