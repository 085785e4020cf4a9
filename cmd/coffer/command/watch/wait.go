package watch

import (
	"context"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

// WaitFlags are those of commands that wait for a state.
func WaitFlags(more ...cli.Flag) []cli.Flag {
	return append(more, &cli.StringFlag{Name: "timeout", Value: "5m", Usage: "give up after `DURATION`, with exit status 2"},
		&cli.StringFlag{Name: "interval", Value: "1s", Usage: "look every `DURATION`"})
}

// Until calls check until it reports that the state is reached, and says on stderr how it changes. A server that cannot be reached now is
// tried again. The error after the time of -timeout has the last state.
func Until(ctx context.Context, c *command.Call, check func(context.Context) (reached bool, state string, err error)) error {
	if _, err := c.SendingClient(); err != nil {
		return err
	}
	every, err := command.ParseDuration(c.String("interval"))
	if err != nil || every <= 0 {
		return command.Usagef("-interval takes a duration such as 1s")
	}
	limit, err := command.ParseDuration(c.String("timeout"))
	if err != nil || limit <= 0 {
		return command.Usagef("-timeout takes a duration such as 5m")
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := ""
	for {
		reached, state, err := check(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !command.Passing(err):
			return err
		case err != nil:
			reached, state = false, command.Shortly(err)
		}
		if state != last {
			last = state
			fmt.Fprintf(c.Err, "%s %s\n", time.Now().Format(time.TimeOnly), state)
		}
		if reached {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return command.ServerErrorf("not reached within %s: %s", limit, last)
		case <-tick.C:
		}
	}
}
