package operator

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/snapshot"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func raftCommand() *cli.Command {
	return command.Group("raft", "the cluster's Raft members, snapshots and autopilot", `Shows and changes who belongs to the Raft cluster.

Examples:

  $ coffer operator raft join https://10.0.0.7:8200
  $ coffer operator raft snapshot save backup.snap`,
		joinCommand(), listPeersCommand(), removePeerCommand(), voteCommand(true), voteCommand(false), certificatesCommand(), rotateCACommand(), snapshot.Command(), snapshot.AutoCommand(), autopilotCommand())
}

func joinCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "join", Args: "LEADER-ADDRESS", Min: 1, Max: 1, Usage: "make this new server a member of a cluster",
		Help: `Makes the server asked, which must be new and uninitialised, a member of the cluster LEADER-ADDRESS belongs to. It has to be unsealed
with that cluster's keys afterwards. Values that begin with @ are read from a file.

Examples:

  $ coffer operator raft join https://10.0.0.7:8200
  $ coffer operator raft join -leader-ca-cert=@ca.pem -retry https://10.0.0.7:8200`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "leader-ca-cert", Usage: "`PEM` of the CA the leader's certificate is checked with"},
			&cli.StringFlag{Name: "leader-client-cert", Usage: "`PEM` of the certificate shown to the leader"},
			&cli.StringFlag{Name: "leader-client-key", Usage: "`PEM` of its private key, @file"},
			&cli.BoolFlag{Name: "retry", Usage: "keep trying until the leader answers"},
			&cli.BoolFlag{Name: "non-voter", Usage: "take no part in elections and majorities"},
		},
	}, join)
}

func join(ctx context.Context, c *command.Call) error {
	body := map[string]any{"leader_api_addr": c.Arg(0), "retry": c.Bool("retry"), "non_voter": c.Bool("non-voter")}
	for flag, field := range map[string]string{
		"leader-ca-cert": "leader_ca_cert", "leader-client-cert": "leader_client_cert", "leader-client-key": "leader_client_key",
	} {
		value, err := c.Expand(ctx, c.String(flag))
		if err != nil {
			return command.Usagef("-%s: %w", flag, err)
		}
		body[field] = value
	}
	a, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: "sys/storage/raft/join", Body: body})
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintResponse(a)
	}
	var result struct{ Joined bool }
	if len(a.Raw) > 0 {
		if err := command.DecodeRaw(a.Raw, &result); err != nil {
			return command.ServerErrorf("the answer is not that of a join: %v", err)
		}
	}
	return c.PrintTable([]response.Row{{Key: "Joined", Value: result.Joined}})
}

func listPeersCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "list-peers", Usage: "list the members of the Raft cluster",
		Help: `Lists the members of the Raft cluster, which of them leads and which vote.

Examples:

  $ coffer operator raft list-peers
  $ coffer operator raft list-peers -format=json`,
	}, listPeers)
}

func listPeers(ctx context.Context, c *command.Call) error {
	a, err := c.Get(ctx, "sys/storage/raft/configuration")
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintResponse(a)
	}
	config, _ := a.Data()["config"].(map[string]any)
	servers, _ := config["servers"].([]any)
	rows := make([][]string, 0, len(servers))
	for _, s := range servers {
		server, _ := s.(map[string]any)
		state := "follower"
		if server["leader"] == true {
			state = "leader"
		}
		rows = append(rows, []string{table.Cell("", server["node_id"]), table.Cell("", server["address"]), state, table.Cell("", server["voter"])})
	}
	return c.PrintColumns([]string{"Node", "Address", "State", "Voter"}, rows)
}

func removePeerCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "remove-peer", Args: "NODE-ID", Min: 1, Max: 1, Usage: "remove a member from the Raft cluster",
		Help: `Removes a member from the Raft cluster. Its certificate ends at once: no member
talks to it any more, it seals itself, and its health is 530. The cluster's CA and the encryption key are replaced by ones that it has
not seen. It cannot rejoin with the data it has: move that away first.

Examples:

  $ coffer operator raft remove-peer node3
  $ coffer operator raft list-peers`,
	}, func(ctx context.Context, c *command.Call) error {
		body := map[string]string{"server_id": c.Arg(0)}
		if _, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: "sys/storage/raft/remove-peer", Body: body}); err != nil {
			return err
		}
		c.Sayf("Success! %s is no longer a member.", c.Arg(0))
		return nil
	})
}

func voteCommand(votes bool) *cli.Command {
	spec := command.Spec{
		Name: "promote", Args: "NODE-ID", Min: 1, Max: 1, Usage: "give a member its vote",
		Help: `Gives a member the vote that it was denied, or that demote has taken. It must be healthy.

Examples:

  $ coffer operator raft promote node3`,
	}
	path, text := "sys/storage/raft/promote", "Success! %s votes."
	if !votes {
		spec.Name, spec.Usage = "demote", "take a member's vote"
		spec.Help = `Takes a member's vote, until promote gives it back. The member keeps all data and serves reads, and cannot become the active node. The
active node hands over first: repeat the command then.

Examples:

  $ coffer operator raft demote node3
  $ coffer operator raft list-peers`
		path, text = "sys/storage/raft/demote", "Success! %s votes no more."
	}
	return command.New(spec, func(ctx context.Context, c *command.Call) error {
		body := map[string]string{"server_id": c.Arg(0)}
		if _, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: path, Body: body}); err != nil {
			return err
		}
		c.Sayf(text, c.Arg(0))
		return nil
	})
}

func certificatesCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "certificates", Usage: "show when the certificates of the cluster port end",
		Help: `Shows when the CA of the cluster port ends, and the certificate of each member. All are renewed without being asked.

Examples:

  $ coffer operator raft certificates
  $ coffer operator raft certificates -format=json`,
	}, certificates)
}

func certificates(ctx context.Context, c *command.Call) error {
	a, err := c.Get(ctx, "sys/storage/raft/certificates")
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintResponse(a)
	}
	d := a.Data()
	if err := c.PrintTable([]response.Row{{Key: "CA Expiration", Value: d["ca_expiration"]}, {Key: "Generation", Value: d["generation"]}}); err != nil {
		return err
	}
	nodes, _ := d["nodes"].(map[string]any)
	rows := make([][]string, 0, len(nodes))
	for id, n := range nodes {
		node, _ := n.(map[string]any)
		rows = append(rows, []string{table.Printable(id), table.Cell("", node["expiration"]), table.Cell("", node["current_ca"])})
	}
	slices.SortFunc(rows, slices.Compare)
	fmt.Fprintln(c.Out)
	return c.PrintColumns([]string{"Node", "Expiration", "Current CA"}, rows)
}

func rotateCACommand() *cli.Command {
	return command.New(command.Spec{
		Name: "rotate-ca", Usage: "replace the CA of the cluster port",
		Help: `Replaces the CA of the cluster port and the certificate of every member, without an interruption. The CA is also replaced each time a
member is removed, and before it ends.

Examples:

  $ coffer operator raft rotate-ca
  $ coffer operator raft certificates`,
	}, func(ctx context.Context, c *command.Call) error {
		if _, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: "sys/storage/raft/rotate-ca"}); err != nil {
			return err
		}
		c.Sayf("Success! The cluster has a new CA.")
		return nil
	})
}

const autopilotPath = "sys/storage/raft/autopilot/"

func autopilotCommand() *cli.Command {
	return command.Group("autopilot", "the health of members, and what happens to dead ones", `Shows the health of the cluster's members and sets how dead ones are treated.

Examples:

  $ coffer operator raft autopilot state
  $ coffer operator raft autopilot set-config -cleanup-dead-servers -min-quorum=3`,
		command.New(command.Spec{
			Name: "state", Usage: "show the health of each member",
			Help: `Shows whether the cluster is healthy, how many members it can lose, and the state of each.

Examples:

  $ coffer operator raft autopilot state
  $ coffer operator raft autopilot state -format=json`,
		}, autopilotState),
		command.New(command.Spec{
			Name: "get-config", Usage: "show the settings",
			Help: `Shows the settings of autopilot.

Examples:

  $ coffer operator raft autopilot get-config
  $ coffer operator raft autopilot get-config -field=min_quorum`,
			Flags: []cli.Flag{command.FieldFlag()},
		}, func(ctx context.Context, c *command.Call) error {
			a, err := c.Get(ctx, autopilotPath+"configuration")
			if err != nil {
				return err
			}
			return c.PrintResponse(a)
		}),
		command.New(command.Spec{
			Name: "set-config", Usage: "change settings",
			Help: `Changes the settings given and leaves the others as they are.

Examples:

  $ coffer operator raft autopilot set-config -cleanup-dead-servers -min-quorum=3
  $ coffer operator raft autopilot set-config -server-stabilization-time=30s`,
			Flags: []cli.Flag{
				&cli.BoolFlag{Name: "cleanup-dead-servers", Usage: "remove members which were dead for long"},
				&cli.StringFlag{Name: "dead-server-last-contact-threshold", Usage: "a member silent for `DURATION` is dead"},
				&cli.StringFlag{Name: "last-contact-threshold", Usage: "a member silent for `DURATION` is unhealthy"},
				&cli.IntFlag{Name: "max-trailing-logs", Usage: "a member `N` entries behind is unhealthy"},
				&cli.IntFlag{Name: "min-quorum", Usage: "never remove members below `N`"},
				&cli.StringFlag{Name: "server-stabilization-time", Usage: "a new member votes once healthy for `DURATION`"},
			},
		}, autopilotSet))
}

func autopilotSet(ctx context.Context, c *command.Call) error {
	body := map[string]any{}
	for _, flag := range []string{"dead-server-last-contact-threshold", "last-contact-threshold", "server-stabilization-time"} {
		command.SetIfGiven(c, body, flag, c.String(flag))
	}
	command.SetIfGiven(c, body, "cleanup-dead-servers", c.Bool("cleanup-dead-servers"))
	command.SetIfGiven(c, body, "max-trailing-logs", c.Int("max-trailing-logs"))
	command.SetIfGiven(c, body, "min-quorum", c.Int("min-quorum"))
	if len(body) == 0 {
		return command.Usagef("no setting was given; see %s -h", c.FullName())
	}
	if _, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: autopilotPath + "configuration", Body: body}); err != nil {
		return err
	}
	c.Sayf("Success! The settings of autopilot are changed.")
	return nil
}

func autopilotState(ctx context.Context, c *command.Call) error {
	a, err := c.Get(ctx, autopilotPath+"state")
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		return c.PrintResponse(a)
	}
	d := a.Data()
	if err := c.PrintTable([]response.Row{
		{Key: "Healthy", Value: d["healthy"]}, {Key: "Failure Tolerance", Value: d["failure_tolerance"]},
		{Key: "Leader", Value: d["leader"]}, {Key: "Voters", Value: d["voters"]},
	}); err != nil {
		return err
	}
	servers, _ := d["servers"].(map[string]any)
	rows := make([][]string, 0, len(servers))
	for id, s := range servers {
		server, _ := s.(map[string]any)
		rows = append(rows, []string{
			table.Printable(id), table.Cell("", server["address"]), table.Cell("", server["status"]), table.Cell("", server["healthy"]),
			rounded(server["last_contact"]), table.Cell("", server["last_term"]), table.Cell("", server["last_index"]),
			cmp.Or(rounded(server["behind"]), "unknown"), table.Printable(cmp.Or(table.Text(server["disk"]), "-")),
		})
	}
	slices.SortFunc(rows, slices.Compare)
	fmt.Fprintln(c.Out)
	return c.PrintColumns([]string{"Node", "Address", "Status", "Healthy", "Last Contact", "Last Term", "Last Index", "State Age", "Disk"}, rows)
}

// rounded is a duration of the server in milliseconds, as far as it is one.
func rounded(v any) string {
	text := table.Text(v)
	if d, err := time.ParseDuration(text); err == nil {
		return d.Round(time.Millisecond).String()
	}
	return text
}
