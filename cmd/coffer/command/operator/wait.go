package operator

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/watch"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func waitCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "wait", Usage: "wait until the server can serve requests",
		Help: `Waits until the server is initialised and unsealed and there is an active node, or, with -healthy, until autopilot calls the cluster
healthy, for which the token needs to read that. With -nodes=N so many of its members must be healthy: a cluster of one is healthy, too. The
exit status is 2 if that takes longer than -timeout.

Examples:

  $ coffer operator wait -timeout=2m && coffer kv get secret/app
  $ coffer operator wait -healthy -nodes=3`,
		Flags: watch.WaitFlags(&cli.BoolFlag{Name: "healthy", Usage: "until all members are healthy"},
			&cli.IntFlag{Name: "nodes", Usage: "with -healthy, until `N` members are healthy"}),
	}, func(ctx context.Context, c *command.Call) error {
		if c.IsSet("nodes") && (c.Int("nodes") < 1 || !c.Bool("healthy")) {
			return command.Usagef("-nodes takes a number from 1, and goes with -healthy")
		}
		return watch.Until(ctx, c, func(ctx context.Context) (bool, progress.State, error) {
			reached, state, err := serving(ctx, c)
			return reached, progress.State{What: state}, err
		})
	})
}

// serving reports whether the server is as it is to be, and how it is.
func serving(ctx context.Context, c *command.Call) (bool, string, error) {
	s, _, err := sealStatusOf(ctx, c, http.MethodGet, nil)
	switch {
	case err != nil:
		return false, "", err
	case !s.Initialized:
		return false, "not initialised", nil
	case s.Sealed:
		return false, "sealed", nil
	}
	var leader api.LeaderResponse
	a, err := c.Get(ctx, "sys/leader")
	if err != nil {
		return false, "", err
	}
	if err := command.DecodeRaw(a.Raw, &leader); err != nil {
		return false, "", command.ServerErrorf("the answer is not about a leader: %v", err)
	}
	if leader.HAEnabled && leader.LeaderAddress == "" {
		return false, "unsealed, no active node", nil
	}
	if !c.Bool("healthy") {
		return true, "unsealed, with an active node", nil
	}
	a, err = c.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/storage/raft/autopilot/state", Query: url.Values{}})
	if err != nil {
		return false, "", err
	}
	if a.Data()["healthy"] != true {
		return false, "unsealed, not healthy", nil
	}
	servers, _ := a.Data()["servers"].(map[string]any)
	healthy := 0
	for _, s := range servers {
		if m, ok := s.(map[string]any); ok && m["healthy"] == true {
			healthy++
		}
	}
	if want := c.Int("nodes"); healthy < want {
		return false, fmt.Sprintf("healthy, with %d of %d nodes", healthy, want), nil
	}
	return true, "healthy", nil
}
