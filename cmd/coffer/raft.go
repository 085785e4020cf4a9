package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/urfave/cli/v3"
)

func raftCommand() *cli.Command {
	return group("raft", "the cluster's Raft members, snapshots and autopilot", `Shows and changes who belongs to the Raft cluster.

Examples:

  $ coffer operator raft join https://10.0.0.7:8200
  $ coffer operator raft snapshot save backup.snap`,
		joinCommand(), listPeersCommand(), removePeerCommand(), certificatesCommand(), rotateCACommand(), snapshotCommand(), snapshotAutoCommand(), autopilotCommand())
}

func joinCommand() *cli.Command {
	return command(spec{
		name: "join", args: "LEADER-ADDRESS", min: 1, max: 1, usage: "make this new server a member of a cluster",
		help: `Makes the server asked, which must be new and uninitialised, a member of the cluster LEADER-ADDRESS belongs to. It has to be unsealed
with that cluster's keys afterwards. Values that begin with @ are read from a file.

Examples:

  $ coffer operator raft join https://10.0.0.7:8200
  $ coffer operator raft join -leader-ca-cert=@ca.pem -retry https://10.0.0.7:8200`,
		flags: []cli.Flag{
			&cli.StringFlag{Name: "leader-ca-cert", Usage: "`PEM` of the CA the leader's certificate is checked with"},
			&cli.StringFlag{Name: "leader-client-cert", Usage: "`PEM` of the certificate shown to the leader"},
			&cli.StringFlag{Name: "leader-client-key", Usage: "`PEM` of its private key, @file"},
			&cli.BoolFlag{Name: "retry", Usage: "keep trying until the leader answers"},
			&cli.BoolFlag{Name: "non-voter", Usage: "take no part in elections and majorities"},
		},
	}, join)
}

func join(ctx context.Context, c *call) error {
	body := map[string]any{"leader_api_addr": c.arg(0), "retry": c.Bool("retry"), "non_voter": c.Bool("non-voter")}
	for flag, field := range map[string]string{
		"leader-ca-cert": "leader_ca_cert", "leader-client-cert": "leader_client_cert", "leader-client-key": "leader_client_key",
	} {
		value, err := c.expand(ctx, c.String(flag))
		if err != nil {
			return usagef("-%s: %w", flag, err)
		}
		body[field] = value
	}
	a, err := c.send(ctx, request{method: http.MethodPost, path: "sys/storage/raft/join", body: body})
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printAnswer(a)
	}
	var result struct{ Joined bool }
	if len(a.raw) > 0 {
		if err := decodeRaw(a.raw, &result); err != nil {
			return serverErrorf("the answer is not that of a join: %v", err)
		}
	}
	return c.printTable([]row{{"Joined", result.Joined}})
}

func listPeersCommand() *cli.Command {
	return command(spec{
		name: "list-peers", usage: "list the members of the Raft cluster",
		help: `Lists the members of the Raft cluster, which of them leads and which vote.

Examples:

  $ coffer operator raft list-peers
  $ coffer operator raft list-peers -format=json`,
	}, listPeers)
}

func listPeers(ctx context.Context, c *call) error {
	a, err := c.get(ctx, "sys/storage/raft/configuration")
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printAnswer(a)
	}
	config, _ := a.data()["config"].(map[string]any)
	servers, _ := config["servers"].([]any)
	rows := make([][]string, 0, len(servers))
	for _, s := range servers {
		server, _ := s.(map[string]any)
		state := "follower"
		if server["leader"] == true {
			state = "leader"
		}
		rows = append(rows, []string{cell("", server["node_id"]), cell("", server["address"]), state, cell("", server["voter"])})
	}
	return c.printColumns([]string{"Node", "Address", "State", "Voter"}, rows)
}

func removePeerCommand() *cli.Command {
	return command(spec{
		name: "remove-peer", args: "NODE-ID", min: 1, max: 1, usage: "remove a member from the Raft cluster",
		help: `Removes a member from the Raft cluster. Its certificate ends at once: no member
talks to it any more, it seals itself, and its health is 530. The cluster's CA and the encryption key are replaced by ones that it has
not seen. It cannot rejoin with the data it has: move that away first.

Examples:

  $ coffer operator raft remove-peer node3
  $ coffer operator raft list-peers`,
	}, func(ctx context.Context, c *call) error {
		body := map[string]string{"server_id": c.arg(0)}
		if _, err := c.send(ctx, request{method: http.MethodPost, path: "sys/storage/raft/remove-peer", body: body}); err != nil {
			return err
		}
		c.sayf("Success! %s is no longer a member.", c.arg(0))
		return nil
	})
}

func certificatesCommand() *cli.Command {
	return command(spec{
		name: "certificates", usage: "show when the certificates of the cluster port end",
		help: `Shows when the CA of the cluster port ends, and the certificate of each member. All are renewed without being asked.

Examples:

  $ coffer operator raft certificates
  $ coffer operator raft certificates -format=json`,
	}, certificates)
}

func certificates(ctx context.Context, c *call) error {
	a, err := c.get(ctx, "sys/storage/raft/certificates")
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printAnswer(a)
	}
	d := a.data()
	if err := c.printTable([]row{{"CA Expiration", d["ca_expiration"]}, {"Generation", d["generation"]}}); err != nil {
		return err
	}
	nodes, _ := d["nodes"].(map[string]any)
	rows := make([][]string, 0, len(nodes))
	for id, n := range nodes {
		node, _ := n.(map[string]any)
		rows = append(rows, []string{printable(id), cell("", node["expiration"]), cell("", node["current_ca"])})
	}
	slices.SortFunc(rows, slices.Compare)
	fmt.Fprintln(c.out)
	return c.printColumns([]string{"Node", "Expiration", "Current CA"}, rows)
}

func rotateCACommand() *cli.Command {
	return command(spec{
		name: "rotate-ca", usage: "replace the CA of the cluster port",
		help: `Replaces the CA of the cluster port and the certificate of every member, without an interruption. The CA is also replaced each time a
member is removed, and before it ends.

Examples:

  $ coffer operator raft rotate-ca
  $ coffer operator raft certificates`,
	}, func(ctx context.Context, c *call) error {
		if _, err := c.send(ctx, request{method: http.MethodPost, path: "sys/storage/raft/rotate-ca"}); err != nil {
			return err
		}
		c.sayf("Success! The cluster has a new CA.")
		return nil
	})
}

const autopilotPath = "sys/storage/raft/autopilot/"

func autopilotCommand() *cli.Command {
	return group("autopilot", "the health of members, and what happens to dead ones", `Shows the health of the cluster's members and sets how dead ones are treated.

Examples:

  $ coffer operator raft autopilot state
  $ coffer operator raft autopilot set-config -cleanup-dead-servers -min-quorum=3`,
		command(spec{
			name: "state", usage: "show the health of each member",
			help: `Shows whether the cluster is healthy, how many members it can lose, and the state of each.

Examples:

  $ coffer operator raft autopilot state
  $ coffer operator raft autopilot state -format=json`,
		}, autopilotState),
		command(spec{
			name: "get-config", usage: "show the settings",
			help: `Shows the settings of autopilot.

Examples:

  $ coffer operator raft autopilot get-config
  $ coffer operator raft autopilot get-config -field=min_quorum`,
			flags: []cli.Flag{fieldFlag()},
		}, func(ctx context.Context, c *call) error {
			a, err := c.get(ctx, autopilotPath+"configuration")
			if err != nil {
				return err
			}
			return c.printAnswer(a)
		}),
		command(spec{
			name: "set-config", usage: "change settings",
			help: `Changes the settings given and leaves the others as they are.

Examples:

  $ coffer operator raft autopilot set-config -cleanup-dead-servers -min-quorum=3
  $ coffer operator raft autopilot set-config -server-stabilization-time=30s`,
			flags: []cli.Flag{
				&cli.BoolFlag{Name: "cleanup-dead-servers", Usage: "remove members which were dead for long"},
				&cli.StringFlag{Name: "dead-server-last-contact-threshold", Usage: "a member silent for `DURATION` is dead"},
				&cli.StringFlag{Name: "last-contact-threshold", Usage: "a member silent for `DURATION` is unhealthy"},
				&cli.IntFlag{Name: "max-trailing-logs", Usage: "a member `N` entries behind is unhealthy"},
				&cli.IntFlag{Name: "min-quorum", Usage: "never remove members below `N`"},
				&cli.StringFlag{Name: "server-stabilization-time", Usage: "a new member votes once healthy for `DURATION`"},
			},
		}, autopilotSet))
}

func autopilotSet(ctx context.Context, c *call) error {
	body := map[string]any{}
	for _, flag := range []string{"dead-server-last-contact-threshold", "last-contact-threshold", "server-stabilization-time"} {
		setIfGiven(c, body, flag, c.String(flag))
	}
	setIfGiven(c, body, "cleanup-dead-servers", c.Bool("cleanup-dead-servers"))
	setIfGiven(c, body, "max-trailing-logs", c.Int("max-trailing-logs"))
	setIfGiven(c, body, "min-quorum", c.Int("min-quorum"))
	if len(body) == 0 {
		return usagef("no setting was given; see %s -h", c.FullName())
	}
	if _, err := c.send(ctx, request{method: http.MethodPost, path: autopilotPath + "configuration", body: body}); err != nil {
		return err
	}
	c.sayf("Success! The settings of autopilot are changed.")
	return nil
}

func autopilotState(ctx context.Context, c *call) error {
	a, err := c.get(ctx, autopilotPath+"state")
	if err != nil {
		return err
	}
	if c.format() != formatTable {
		return c.printAnswer(a)
	}
	d := a.data()
	if err := c.printTable([]row{
		{"Healthy", d["healthy"]}, {"Failure Tolerance", d["failure_tolerance"]}, {"Leader", d["leader"]}, {"Voters", d["voters"]},
	}); err != nil {
		return err
	}
	servers, _ := d["servers"].(map[string]any)
	rows := make([][]string, 0, len(servers))
	for id, s := range servers {
		server, _ := s.(map[string]any)
		rows = append(rows, []string{
			printable(id), cell("", server["address"]), cell("", server["status"]), cell("", server["healthy"]),
			cell("", server["last_contact"]), cell("", server["last_term"]), cell("", server["last_index"]),
			printable(cmp.Or(text(server["behind"]), "unknown")), printable(cmp.Or(text(server["disk"]), "-")),
		})
	}
	slices.SortFunc(rows, slices.Compare)
	fmt.Fprintln(c.out)
	return c.printColumns([]string{"Node", "Address", "Status", "Healthy", "Last Contact", "Last Term", "Last Index", "State Age", "Disk"}, rows)
}
