package replication

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
)

// watchStatus shows the status until ctx ends, which is how it is meant to end. A server that cannot answer now is
// shown as such: a watch has to outlive what is watched for.
func watchStatus(ctx context.Context, c *command.Call) error {
	every, err := command.ParseDuration(c.String("interval"))
	if err != nil || every <= 0 {
		return command.Usagef("-interval takes a duration such as 1s")
	}
	if c.String("field") != "" {
		return command.Usagef("-watch and -field exclude each other")
	}
	if err := c.CheckFormat(); err != nil {
		return err
	}
	screen := watch.New(c)
	defer screen.End()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		s, a, err := fetchStatus(ctx, c)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !command.Passing(err) {
			return err
		}
		if err := showStatus(screen, s, a, err); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// showStatus draws a status, or why there is none.
func showStatus(w *watch.Screen, s *status, a *command.Response, failure error) error {
	switch {
	case w.FD >= 0:
		return redrawStatus(w, s, failure)
	case w.Format != command.FormatTable:
		return w.Document(a)
	}
	line := "no answer: " + command.Shortly(failure)
	if failure == nil {
		line = s.line()
	}
	return w.Line(line)
}

// redrawStatus puts the status where the one before stands.
func redrawStatus(w *watch.Screen, s *status, failure error) error {
	var text bytes.Buffer
	if failure != nil {
		fmt.Fprintln(&text, "No answer: "+command.Shortly(failure))
	} else if err := s.write(&text, table.Style{}); err != nil {
		return err
	}
	return w.Paint(text.String(), nil)
}
