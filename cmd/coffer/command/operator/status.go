package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func StatusCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "status", Usage: "show whether the server is sealed, and its place in the cluster",
		Help: `Shows whether the server is initialised, sealed or active, and what it knows about its cluster. Needs no token.

The exit status is 0 if the server is unsealed, 2 if it is sealed and 1 if it could not be asked.

Examples:

  $ coffer status
  $ coffer status -address=https://10.0.0.7:8200 -format=json`,
		Flags: []cli.Flag{command.FieldFlag()},
	}, status)
}

func status(ctx context.Context, c *command.Call) error {
	seal, err := c.Get(ctx, "sys/seal-status")
	if err != nil {
		return statusFailed(err)
	}
	var s sealStatus
	if err := command.DecodeRaw(seal.Raw, &s); err != nil {
		return command.Usagef("the answer is not a seal status: %v", err)
	}
	var leader, health command.Response
	if !s.Sealed {
		a, err := c.Get(ctx, "sys/leader")
		if err != nil {
			return statusFailed(err)
		}
		leader = *a
		// Whether the node is current, and its disk. Servers of earlier versions and of others do not say.
		query := url.Values{"standbyok": {"true"}, "perfstandbyok": {"true"}, "haunhealthycode": {"200"}}
		if a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: "sys/health", Query: query}); err == nil {
			health = *a
		}
	}
	if err := printStatus(c, s, seal.Raw, leader.Raw, health.Raw); err != nil {
		return err
	}
	if s.Sealed {
		return &command.ExitError{Code: command.ExitServer}
	}
	return nil
}

// statusFailed turns the failure to learn the status into exit status 1: 2 means sealed here.
func statusFailed(err error) error {
	if e, ok := err.(*command.RequestError); ok {
		return command.Usagef("%s", e.Explain())
	}
	return err
}

// sealStatus is the response of sys/seal-status and sys/unseal.
type sealStatus struct {
	api.SealStatusResponse
	CofferVersion string `json:"coffer_version"`
}

// healthStatus is the part of sys/health that the status has.
type healthStatus struct {
	Disk    string `json:"disk,omitempty"`
	Current *bool  `json:"ha_connection_healthy,omitempty"` // of a standby
	Behind  *int64 `json:"standby_behind_ms,omitempty"`     // nil: not known
	Error   string `json:"standby_error,omitempty"`
}

func (h healthStatus) rows() (rows []response.Row) {
	if h.Current != nil {
		rows = append(rows, response.Row{Key: "Current", Value: *h.Current})
		age := "unknown"
		if h.Behind != nil {
			age = (time.Duration(*h.Behind) * time.Millisecond).String()
		}
		rows = append(rows, response.Row{Key: "State Age", Value: age})
	}
	if h.Error != "" {
		rows = append(rows, response.Row{Key: "Not Current", Value: h.Error})
	}
	if h.Disk != "" {
		rows = append(rows, response.Row{Key: "Disk", Value: h.Disk})
	}
	return rows
}

// printStatus prints the seal status and, unless empty, the leader and the health, the first two as the server sent them.
func printStatus(c *command.Call, s sealStatus, sealRaw, leaderRaw, healthRaw []byte) error {
	var health healthStatus
	if len(healthRaw) > 0 {
		if err := json.Unmarshal(healthRaw, &health); err != nil {
			return command.ServerErrorf("the answer is not a health status: %v", err)
		}
		var err error
		if healthRaw, err = json.Marshal(health); err != nil {
			return err
		}
	}
	if c.Format() != command.FormatTable && c.String("field") == "" {
		merged := map[string]any{}
		for _, raw := range [][]byte{sealRaw, leaderRaw, healthRaw} {
			var m map[string]any
			if len(raw) == 0 {
				continue
			}
			if err := command.DecodeRaw(raw, &m); err != nil {
				return err
			}
			maps.Copy(merged, m)
		}
		return c.PrintValue(merged)
	}
	rows := sealRows(s)
	if len(leaderRaw) > 0 {
		var l api.LeaderResponse
		if err := json.Unmarshal(leaderRaw, &l); err != nil {
			return err
		}
		rows = append(rows, leaderRows(l)...)
	}
	rows = append(rows, health.rows()...)
	if c.String("field") != "" {
		var m map[string]any
		if err := command.DecodeRaw(sealRaw, &m); err != nil {
			return err
		}
		return c.PrintField(response.Data(m))
	}
	return c.PrintTable(rows)
}

func sealRows(s sealStatus) []response.Row {
	rows := []response.Row{{Key: "Seal Type", Value: s.Type}}
	if s.RecoverySeal {
		rows = append(rows, response.Row{Key: "Recovery Seal Type", Value: s.RecoverySealType})
	}
	rows = append(rows, response.Row{Key: "Initialized", Value: s.Initialized}, response.Row{Key: "Sealed", Value: s.Sealed})
	prefix := "Total "
	if s.RecoverySeal {
		prefix = "Total Recovery "
	}
	rows = append(rows, response.Row{Key: prefix + "Shares", Value: s.N}, response.Row{Key: "Threshold", Value: s.T})
	if s.Sealed && s.Initialized {
		rows = append(rows, response.Row{Key: "Unseal Progress", Value: fmt.Sprintf("%d/%d", s.Progress, s.T)}, response.Row{Key: "Unseal Nonce", Value: s.Nonce})
	}
	rows = append(rows, response.Row{Key: "Version", Value: s.Version})
	for _, r := range []response.Row{
		{Key: "Coffer Version", Value: s.CofferVersion}, {Key: "Storage Type", Value: s.StorageType},
		{Key: "Cluster Name", Value: s.ClusterName}, {Key: "Cluster ID", Value: s.ClusterID},
	} {
		if r.Value != "" {
			rows = append(rows, r)
		}
	}
	return rows
}

func leaderRows(l api.LeaderResponse) []response.Row {
	rows := []response.Row{{Key: "HA Enabled", Value: l.HAEnabled}}
	if !l.HAEnabled {
		return rows
	}
	mode := "standby"
	if l.IsSelf {
		mode = "active"
	}
	address := l.LeaderAddress
	if address == "" {
		address = "<none>"
	}
	rows = append(rows, response.Row{Key: "HA Cluster", Value: l.LeaderClusterAddress}, response.Row{Key: "HA Mode", Value: mode})
	if l.IsSelf && !l.ActiveTime.IsZero() {
		rows = append(rows, response.Row{Key: "Active Since", Value: l.ActiveTime})
	}
	if !l.IsSelf {
		rows = append(rows, response.Row{Key: "Active Node Address", Value: address})
	}
	if l.RaftCommittedIndex > 0 || l.RaftAppliedIndex > 0 {
		rows = append(rows, response.Row{Key: "Raft Committed Index", Value: l.RaftCommittedIndex}, response.Row{Key: "Raft Applied Index", Value: l.RaftAppliedIndex})
	}
	return rows
}

// sealStatusOf asks for the seal status.
func sealStatusOf(ctx context.Context, c *command.Call, method string, body any) (sealStatus, []byte, error) {
	path := "sys/seal-status"
	if method == http.MethodPut {
		path = "sys/unseal"
	}
	var s sealStatus
	a, err := c.Send(ctx, command.Request{Method: method, Path: path, Body: body})
	if err != nil {
		return s, nil, err
	}
	if err := command.DecodeRaw(a.Raw, &s); err != nil {
		return s, nil, command.ServerErrorf("the answer is not a seal status: %v", err)
	}
	return s, a.Raw, nil
}
