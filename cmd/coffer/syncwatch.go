package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// watchSync shows a status until all of it is settled, or needs an operator. A server that cannot answer now
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
	var last *syncStatus
	for {
		s, err := look(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errNoDestination) && last != nil && last.leaving(): // that was what there was to wait for
			c.sayf("The destination is gone.")
			return nil
		case err != nil && !passing(err):
			return err
		}
		if err := c.showSync(screen, s, err); err != nil {
			return err
		}
		if s != nil && s.settled() {
			return nil
		}
		if s != nil {
			last = s
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
			var err error
			if text, err = c.syncScreen(s, w.now()); err != nil {
				return err
			}
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

// syncScreen is a status for a terminal that it may not fit on: first how far all of it is, then what is not settled.
func (c *call) syncScreen(s *syncStatus, now time.Time) (string, error) {
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
	slices.SortStableFunc(entries, func(a, b syncEntry) int {
		switch {
		case a.settled() == b.settled():
			return 0
		case a.settled():
			return 1
		}
		return -1
	})
	err := c.writeSyncTable(&out, entries, now)
	return strings.TrimSuffix(out.String(), "\n"), err
}
