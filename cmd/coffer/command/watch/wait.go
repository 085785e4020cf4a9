package watch

import (
	"cmp"
	"context"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/urfave/cli/v3"
)

// WaitFlags are those of commands that wait for a state.
func WaitFlags(more ...cli.Flag) []cli.Flag {
	return append(more, &cli.StringFlag{Name: "timeout", Value: "5m", Usage: "give up after `DURATION`, with exit status 2"},
		&cli.StringFlag{Name: "interval", Value: "1s", Usage: "look every `DURATION`"})
}

// Until calls check until it reports that the state is reached, and says on stderr how it is: at first, as it goes on, and at the end. A server
// that cannot be reached now is tried again. The error after the time of -timeout has the last state.
func Until(ctx context.Context, c *command.Call, check func(context.Context) (reached bool, state progress.State, err error)) error {
	if _, err := c.SendingClient(); err != nil {
		return err
	}
	every, limit, err := Times(c)
	if err != nil {
		return err
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	bar := c.Progress()
	defer bar.End()
	said := false
	for {
		reached, state, err := check(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !command.Passing(err):
			return err
		case err != nil:
			reached, state = false, progress.State{What: command.Shortly(err)}
		}
		line := progress.Line(state, 0, 0)
		if !said && !reached && !command.IsTerminal(c.Err) {
			c.Warnf("%s %s", time.Now().Format(time.TimeOnly), line)
		}
		said = true
		bar.Set(state)
		if reached {
			bar.End()
			c.Warnf("%s %s", time.Now().Format(time.TimeOnly), line)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return command.ServerErrorf("not reached within %s: %s", limit, line)
		case <-tick.C:
		}
	}
}

// Times reads -interval and -timeout, which is 0 if it is not given.
func Times(c *command.Call) (every, limit time.Duration, err error) {
	if every, err = command.ParseDuration(cmp.Or(c.String("interval"), "1s")); err != nil || every <= 0 {
		return 0, 0, command.Usagef("-interval takes a duration such as 1s")
	}
	if given := c.String("timeout"); given != "" {
		if limit, err = command.ParseDuration(given); err != nil || limit <= 0 {
			return 0, 0, command.Usagef("-timeout takes a duration such as 5m")
		}
	}
	return every, limit, nil
}
