package replication

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
	"github.com/urfave/cli/v3"
)

// defaultPhase is that of a secondary that has everything.
const defaultPhase = "streaming"

// defaultMaxLag is how far behind a secondary may be, to be up to date.
const defaultMaxLag = 5 * time.Second

func waitCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "wait", Usage: "wait until replication is up to date",
		Help: `Waits, on a secondary, until it is in the phase -phase: "streaming" is an exact copy that follows. On a primary, until each secondary, or the
one that -secondary names, is connected and no more than -max-lag behind. The exit status is 2 if that takes longer than -timeout.

Examples:

  $ coffer replication wait
  $ coffer replication wait -secondary=west -max-lag=1s -timeout=10m`,
		Flags: watch.WaitFlags(
			&cli.StringFlag{Name: "phase", Value: defaultPhase, Usage: "`PHASE` of a secondary, as status shows it"},
			&cli.StringFlag{Name: "secondary", Usage: "`ID` of the only secondary to wait for"},
			&cli.StringFlag{Name: "max-lag", Value: defaultMaxLag.String(), Usage: "a secondary may be `DURATION` behind"}),
	}, func(ctx context.Context, c *command.Call) error {
		limit, err := command.ParseDuration(c.String("max-lag"))
		if err != nil || limit < 0 {
			return command.Usagef("-max-lag takes a duration such as 5s")
		}
		return watch.Until(ctx, c, func(ctx context.Context) (bool, progress.State, error) {
			s, _, err := fetchStatus(ctx, c)
			if err != nil {
				return false, progress.State{}, err
			}
			if s.Mode != "secondary" && s.Mode != "primary" {
				return false, progress.State{}, command.ServerErrorf("the cluster is neither a primary nor a secondary")
			}
			return s.reached(c.String("phase"), c.String("secondary"), limit), s.waiting(), nil
		})
	})
}

// reached reports whether a secondary is in a phase, or the secondaries of a primary, or one of them, are no further behind than limit.
func (s *status) reached(phase, only string, limit time.Duration) bool {
	if s.Mode == "secondary" {
		return s.phase() == phase
	}
	found := false
	for _, p := range s.Secondaries {
		if only != "" && p.NodeID != only {
			continue
		}
		found = true
		if p.Connection != "connected" || time.Duration(p.LagSeconds*float64(time.Second)) > limit {
			return false
		}
	}
	return found
}
