package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

func statusCommand() *cli.Command {
	return command(spec{
		name: "status", usage: "show whether the server is sealed, and its place in the cluster",
		help: `Shows whether the server is initialised, sealed or active, and what it knows about its cluster. Needs no token.

The exit status is 0 if the server is unsealed, 2 if it is sealed and 1 if it could not be asked.

Examples:

  $ coffer status
  $ coffer status -address=https://10.0.0.7:8200 -format=json`,
		flags: []cli.Flag{fieldFlag()},
	}, status)
}

func status(ctx context.Context, c *call) error {
	seal, err := c.get(ctx, "sys/seal-status")
	if err != nil {
		return statusFailed(err)
	}
	var s sealStatus
	if err := decodeRaw(seal.raw, &s); err != nil {
		return usagef("the answer is not a seal status: %v", err)
	}
	var leader, health answer
	if !s.Sealed {
		a, err := c.get(ctx, "sys/leader")
		if err != nil {
			return statusFailed(err)
		}
		leader = *a
		// Whether the node is current, and its disk. Servers of earlier versions and of others do not say.
		query := url.Values{"standbyok": {"true"}, "perfstandbyok": {"true"}, "haunhealthycode": {"200"}}
		if a, err := c.send(ctx, request{method: http.MethodGet, path: "sys/health", query: query}); err == nil {
			health = *a
		}
	}
	if err := c.printStatus(s, seal.raw, leader.raw, health.raw); err != nil {
		return err
	}
	if s.Sealed {
		return &exitError{code: exitServer}
	}
	return nil
}

// statusFailed turns the failure to learn the status into exit status 1: 2 means sealed here.
func statusFailed(err error) error {
	if e, ok := err.(*requestError); ok {
		return usagef("%s", e.explain())
	}
	return err
}

// sealStatus is the answer of sys/seal-status and sys/unseal.
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

func (h healthStatus) rows() (rows []row) {
	if h.Current != nil {
		rows = append(rows, row{"Current", *h.Current})
		age := "unknown"
		if h.Behind != nil {
			age = (time.Duration(*h.Behind) * time.Millisecond).String()
		}
		rows = append(rows, row{"State Age", age})
	}
	if h.Error != "" {
		rows = append(rows, row{"Not Current", h.Error})
	}
	if h.Disk != "" {
		rows = append(rows, row{"Disk", h.Disk})
	}
	return rows
}

// printStatus prints the seal status and, unless empty, the leader and the health, the first two as the server sent them.
func (c *call) printStatus(s sealStatus, sealRaw, leaderRaw, healthRaw []byte) error {
	var health healthStatus
	if len(healthRaw) > 0 {
		if err := json.Unmarshal(healthRaw, &health); err != nil {
			return serverErrorf("the answer is not a health status: %v", err)
		}
		var err error
		if healthRaw, err = json.Marshal(health); err != nil {
			return err
		}
	}
	if c.format() != formatTable && c.String("field") == "" {
		merged := map[string]any{}
		for _, raw := range [][]byte{sealRaw, leaderRaw, healthRaw} {
			var m map[string]any
			if len(raw) == 0 {
				continue
			}
			if err := decodeRaw(raw, &m); err != nil {
				return err
			}
			maps.Copy(merged, m)
		}
		return c.printValue(merged)
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
		if err := decodeRaw(sealRaw, &m); err != nil {
			return err
		}
		return c.printField(dataRows(m))
	}
	return c.printTable(rows)
}

func sealRows(s sealStatus) []row {
	rows := []row{{"Seal Type", s.Type}}
	if s.RecoverySeal {
		rows = append(rows, row{"Recovery Seal Type", s.RecoverySealType})
	}
	rows = append(rows, row{"Initialized", s.Initialized}, row{"Sealed", s.Sealed})
	prefix := "Total "
	if s.RecoverySeal {
		prefix = "Total Recovery "
	}
	rows = append(rows, row{prefix + "Shares", s.N}, row{"Threshold", s.T})
	if s.Sealed && s.Initialized {
		rows = append(rows, row{"Unseal Progress", fmt.Sprintf("%d/%d", s.Progress, s.T)}, row{"Unseal Nonce", s.Nonce})
	}
	rows = append(rows, row{"Version", s.Version})
	for _, r := range []row{{"Coffer Version", s.CofferVersion}, {"Storage Type", s.StorageType}, {"Cluster Name", s.ClusterName}, {"Cluster ID", s.ClusterID}} {
		if r.value != "" {
			rows = append(rows, r)
		}
	}
	return rows
}

func leaderRows(l api.LeaderResponse) []row {
	rows := []row{{"HA Enabled", l.HAEnabled}}
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
	rows = append(rows, row{"HA Cluster", l.LeaderClusterAddress}, row{"HA Mode", mode})
	if l.IsSelf && !l.ActiveTime.IsZero() {
		rows = append(rows, row{"Active Since", l.ActiveTime})
	}
	if !l.IsSelf {
		rows = append(rows, row{"Active Node Address", address})
	}
	if l.RaftCommittedIndex > 0 || l.RaftAppliedIndex > 0 {
		rows = append(rows, row{"Raft Committed Index", l.RaftCommittedIndex}, row{"Raft Applied Index", l.RaftAppliedIndex})
	}
	return rows
}

// sealStatusOf asks for the seal status.
func (c *call) sealStatusOf(ctx context.Context, method string, body any) (sealStatus, []byte, error) {
	path := "sys/seal-status"
	if method == http.MethodPut {
		path = "sys/unseal"
	}
	var s sealStatus
	a, err := c.send(ctx, request{method: method, path: path, body: body})
	if err != nil {
		return s, nil, err
	}
	if err := decodeRaw(a.raw, &s); err != nil {
		return s, nil, serverErrorf("the answer is not a seal status: %v", err)
	}
	return s, a.raw, nil
}
