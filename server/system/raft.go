package system

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/lifecycle/members"
	"github.com/coffer-project/coffer/storage"
)

var autopilotKey = storage.NewKey(storage.Local, "sys", "raft/autopilot")

func (s *System) raftPaths() {
	r := s.router
	const operator = engines.Active | engines.RootNamespace
	engines.On(r, engines.Read, "storage/raft/configuration", "List the members of the Raft cluster.", operator, s.raftConfiguration).
		Returns("config: {index: integer, servers: [{address, leader: boolean, node_id, protocol_version, voter: boolean}]}")
	engines.On(r, engines.Update, "storage/raft/join", "Make this node join the cluster of another one.", open, s.raftJoin).
		Returns("json; joined: boolean")
	engines.On(r, engines.Update, "storage/raft/bootstrap/challenge", "First step of a join, called by the joining node.", engines.Unauthenticated|operator, s.raftChallenge).
		Returns(`challenge, seal_config: {created, key_id, recovery_shares: integer, recovery_threshold: integer, secret_shares: integer,
			secret_threshold: integer, type, version: integer}`)
	engines.On(r, engines.Update, "storage/raft/bootstrap/answer", "Second step of a join, called by the joining node.", engines.Unauthenticated|operator, s.raftAnswer).
		Returns("grant")
	engines.On(r, engines.Update, "storage/raft/remove-peer", "Remove a node from the cluster.", engines.Sudo|operator, s.raftRemovePeer)
	engines.On(r, engines.Update, "storage/raft/promote", "Give a node its vote.", engines.Sudo|operator, s.raftPromote)
	engines.On(r, engines.Update, "storage/raft/demote", "Take a node's vote; it keeps the data and serves reads.", engines.Sudo|operator, s.raftDemote)
	engines.On(r, engines.Read, "storage/raft/certificates", "Report when the certificates of the cluster port end.", operator, s.raftCertificates).
		Returns(`ca_expiration, generation: integer, nodes: {n1: {current_ca: boolean, expiration}, n2: {current_ca: boolean, expiration}, n3:
			{current_ca: boolean, expiration}, n4: {current_ca: boolean, expiration}}`)
	engines.On(r, engines.Update, "storage/raft/rotate-ca", "Replace the CA of the cluster port and every node's certificate.", engines.Sudo|operator, s.raftRotateCA)
	engines.On(r, engines.Read, "storage/raft/autopilot/configuration", "Read the configuration of the automatic care of membership.", operator, s.readAutopilot).
		Returns(`cleanup_dead_servers: boolean, dead_server_last_contact_threshold, disable_upgrade_migration: boolean,
			last_contact_threshold, max_trailing_logs: integer, min_quorum: integer, server_stabilization_time`)
	engines.On(r, engines.Update, "storage/raft/autopilot/configuration", "Change the configuration of the automatic care of membership.", engines.Sudo|operator, s.writeAutopilot)
	engines.On(r, engines.Read, "storage/raft/autopilot/state", "Report the health of every node.", operator, s.autopilotState).
		Returns(`failure_tolerance: integer, healthy: boolean, leader, non_voters: [string], optimistic_failure_tolerance: integer, servers:
			{*: {address, behind, disk, healthy: boolean, id, last_contact, last_index: integer, last_term: integer, name, node_status,
			node_type, stable_since, status, version}}, voters: [string]`)
	engines.On(r, engines.Read, "storage/raft/snapshot", "Stream a snapshot of all data, encrypted as stored.", engines.Sudo|operator, s.takeSnapshot).
		Returns("application/gzip;")
	engines.On(r, engines.Update, "storage/raft/snapshot", "Replace all data by a snapshot of this cluster.", engines.Sudo|operator|engines.RawBody, s.restoreSnapshot(false))
	engines.On(r, engines.Update, "storage/raft/snapshot-force", "Replace all data by a snapshot, also of another cluster.", engines.Sudo|operator|engines.RawBody, s.restoreSnapshot(true))
}

func (s *System) peers() ([]members.Peer, error) {
	c, err := s.cluster()
	if err != nil {
		return nil, err
	}
	return c.Peers()
}

func (s *System) raftConfiguration(context.Context, *engines.Request, *none) (*engines.Response, error) {
	peers, err := s.peers()
	if err != nil {
		return nil, err
	}
	servers := []map[string]any{}
	for _, p := range peers {
		servers = append(servers, map[string]any{
			"node_id": p.ID, "address": p.ClusterAddr, "leader": p.Leader, "voter": p.Voter, "protocol_version": "3",
		})
	}
	return &engines.Response{Data: map[string]any{"config": map[string]any{"index": 0, "servers": servers}}}, nil
}

type joinInput struct {
	LeaderAPIAddr    string            `json:"leader_api_addr" required:"true" max:"2048" help:"API address of a node of the cluster, such as https://10.0.0.1:8200."`
	LeaderCACert     string            `json:"leader_ca_cert" max:"16384" help:"PEM certificate that the node's certificate is checked against; default: the system's roots."`
	LeaderClientCert string            `json:"leader_client_cert" max:"16384" help:"PEM client certificate."`
	LeaderClientKey  engines.Sensitive `json:"leader_client_key" max:"16384" help:"PEM key of the client certificate."`
	LeaderServerName string            `json:"leader_tls_servername" max:"255" help:"Name expected in the node's certificate."`
	Retry            bool              `json:"retry" help:"Keep trying in the background if the first attempt fails."`
	NonVoter         bool              `json:"non_voter" help:"Never become a voter."`
	AutoJoin         string            `json:"auto_join" help:"Not supported."`
	AutoJoinScheme   string            `json:"auto_join_scheme" help:"Not supported."`
	AutoJoinPort     int               `json:"auto_join_port" help:"Not supported."`
}

func (s *System) raftJoin(ctx context.Context, _ *engines.Request, in *joinInput) (*engines.Response, error) {
	if in.AutoJoin != "" {
		return nil, engines.Invalid("field \"auto_join\" is not supported: give \"leader_api_addr\"")
	}
	if !strings.HasPrefix(in.LeaderAPIAddr, "http://") && !strings.HasPrefix(in.LeaderAPIAddr, "https://") {
		return nil, engines.Invalid("field \"leader_api_addr\" must be a URL such as https://10.0.0.1:8200")
	}
	target := join.Target{
		LeaderAPIAddr: in.LeaderAPIAddr, CACert: []byte(in.LeaderCACert), ClientCert: []byte(in.LeaderClientCert),
		ClientKey: []byte(in.LeaderClientKey.Reveal()), ServerName: in.LeaderServerName, NonVoter: in.NonVoter,
	}
	_, err := s.opts.Node.Join(context.WithoutCancel(ctx), target)
	if err != nil && in.Retry {
		s.opts.Node.JoinLater(target)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return plain(0, map[string]bool{"joined": true})
}

type challengeInput struct {
	ServerID string `json:"server_id" required:"true" max:"255" help:"Node id of the joining node."`
}

func (s *System) raftChallenge(ctx context.Context, _ *engines.Request, in *challengeInput) (*engines.Response, error) {
	challenge, err := s.opts.Node.Challenge(ctx, in.ServerID)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: challenge}, nil
}

type answerInput struct {
	ServerID    string            `json:"server_id" required:"true" max:"255" help:"Node id of the joining node."`
	ClusterAddr string            `json:"cluster_addr" required:"true" max:"255" help:"Address that the joining node takes cluster traffic on, host:port."`
	Answer      engines.Sensitive `json:"answer" required:"true" max:"4096" help:"The opened challenge, base64."`
	PublicKey   string            `json:"public_key" max:"1024" help:"Public key of the joining node, base64; nodes of earlier versions send none."`
	Formats     int64             `json:"formats" help:"Newest generation of stored formats that the joining node reads; nodes of earlier versions send none."`
	NonVoter    bool              `json:"non_voter" help:"Never become a voter."`
	Rejoin      bool              `json:"rejoin" help:"The node holds no data."`
}

func (s *System) raftAnswer(ctx context.Context, _ *engines.Request, in *answerInput) (*engines.Response, error) {
	answer, err := base64.StdEncoding.DecodeString(in.Answer.Reveal())
	if err != nil {
		return nil, engines.Invalid("field \"answer\" is not base64")
	}
	public, err := base64.StdEncoding.DecodeString(in.PublicKey)
	if err != nil {
		return nil, engines.Invalid("field \"public_key\" is not base64")
	}
	if in.Formats < 0 || in.Formats > math.MaxUint32 {
		return nil, engines.Invalid("field \"formats\" must be a generation of formats, a small number")
	}
	if _, _, err := net.SplitHostPort(in.ClusterAddr); err != nil {
		return nil, engines.Invalid("field \"cluster_addr\" must be host:port")
	}
	grant, err := s.opts.Node.Admit(ctx, join.Answer{
		ServerID: in.ServerID, ClusterAddr: in.ClusterAddr, Answer: answer, PublicKey: public, Formats: uint32(in.Formats), NonVoter: in.NonVoter, Rejoin: in.Rejoin,
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string][]byte{"grant": grant}}, nil
}

type removeInput struct {
	ServerID string `json:"server_id" required:"true" max:"255" help:"Node id of the node to remove."`
}

var errNoSuchNode = engines.Invalid("field \"server_id\" names no node of the cluster: list them with storage/raft/configuration")

func (s *System) raftRemovePeer(ctx context.Context, _ *engines.Request, in *removeInput) (*engines.Response, error) {
	c, err := s.cluster()
	if err != nil {
		return nil, err
	}
	peers, err := c.Peers()
	if err != nil {
		return nil, err
	}
	voters, found := 0, false
	for _, p := range peers {
		if p.Voter {
			voters++
		}
		found = found || p.ID == in.ServerID
		if p.ID == in.ServerID && p.Voter && voters == 1 && len(peers) == 1 {
			return nil, engines.Invalid("field \"server_id\" names the only node of the cluster")
		}
	}
	if !found {
		return nil, errNoSuchNode
	}
	if err := c.RemovePeer(ctx, in.ServerID); err != nil {
		return nil, err
	}
	if err := s.forgetVote(ctx, in.ServerID); err != nil {
		return nil, err
	}
	// The removed node has the key ring in its memory: what is written from now on is under a key that it has not.
	if _, err := s.opts.Barrier.Rotate(ctx); err != nil {
		return &engines.Response{Warnings: []string{"the node is removed, but the encryption key could not be rotated: run sys/rotate"}}, nil
	}
	return nil, nil
}

type voteInput struct {
	ServerID string `json:"server_id" required:"true" max:"255" help:"Node id of the node."`
}

func (s *System) raftPromote(ctx context.Context, _ *engines.Request, in *voteInput) (*engines.Response, error) {
	return nil, s.setVote(ctx, in.ServerID, true)
}

func (s *System) raftDemote(ctx context.Context, _ *engines.Request, in *voteInput) (*engines.Response, error) {
	return nil, s.setVote(ctx, in.ServerID, false)
}

// setVote gives or takes a vote. What is stored first keeps autopilot from undoing it, also after another node leads.
func (s *System) setVote(ctx context.Context, id string, votes bool) error {
	c, err := s.cluster()
	if err != nil {
		return err
	}
	peers, err := c.Peers()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(peers, func(p members.Peer) bool { return p.ID == id }) {
		return errNoSuchNode
	}
	if votes {
		err = s.forgetVote(ctx, id)
	} else {
		err = s.changeNonVoters(ctx, func(ids []string) []string {
			if slices.Contains(ids, id) {
				return ids
			}
			return append(ids, id)
		})
	}
	if err != nil {
		return err
	}
	err = c.SetVote(ctx, id, votes)
	if e, ok := errors.AsType[*engines.Error](err); ok && e.Kind == engines.KindInvalid && !votes {
		return cmp.Or(s.forgetVote(ctx, id), err) // it keeps its vote
	}
	return err
}

// forgetVote forgets that a node was to have no vote.
func (s *System) forgetVote(ctx context.Context, id string) error {
	return s.changeNonVoters(ctx, func(ids []string) []string { return slices.DeleteFunc(ids, func(n string) bool { return n == id }) })
}

func (s *System) changeNonVoters(ctx context.Context, change func([]string) []string) error {
	a, err := s.storedAutopilot(ctx)
	if err != nil {
		return err
	}
	before := len(a.nonVoters)
	a.nonVoters = change(slices.Clone(a.nonVoters))
	if len(a.nonVoters) == before {
		return nil
	}
	return s.storeAutopilot(ctx, a)
}

func (s *System) raftCertificates(context.Context, *engines.Request, *none) (*engines.Response, error) {
	c, err := s.cluster()
	if err != nil {
		return nil, err
	}
	all := c.Certificates()
	nodes := map[string]any{}
	for _, n := range all.Nodes {
		ends := ""
		if !n.Ends.IsZero() {
			ends = rfc3339(n.Ends)
		}
		nodes[n.Node] = map[string]any{"expiration": ends, "current_ca": n.Current}
	}
	return &engines.Response{Data: map[string]any{
		"ca_expiration": rfc3339(all.CAEnds), "generation": all.Generation, "nodes": nodes,
	}}, nil
}

func (s *System) raftRotateCA(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	c, err := s.cluster()
	if err != nil {
		return nil, err
	}
	return nil, c.RotateCA(ctx)
}

type autopilotInput struct {
	CleanupDeadServers             bool             `json:"cleanup_dead_servers" default:"false" help:"Remove nodes that have been silent for dead_server_last_contact_threshold."`
	LastContactThreshold           engines.Duration `json:"last_contact_threshold" default:"10s" help:"A node silent for longer counts as unhealthy."`
	DeadServerLastContactThreshold engines.Duration `json:"dead_server_last_contact_threshold" default:"24h" help:"A node silent for longer counts as dead; at least 1m with cleanup_dead_servers."`
	MaxTrailingLogs                int64            `json:"max_trailing_logs" default:"1000" help:"A node this many entries behind counts as unhealthy."`
	MinQuorum                      int64            `json:"min_quorum" default:"0" help:"Never remove dead nodes below this number of voters."`
	ServerStabilizationTime        engines.Duration `json:"server_stabilization_time" default:"10s" help:"A joiner becomes a voter once it has been healthy this long."`
	DisableUpgradeMigration        bool             `json:"disable_upgrade_migration" help:"Kept for clients; there are no automated upgrades to disable."`

	nonVoters []string // see members.Autopilot
}

// autopilotRecord is what is stored.
type autopilotRecord struct {
	members.Autopilot
	DisableUpgradeMigration bool `json:",omitempty"`
}

func (a autopilotInput) config() members.Autopilot {
	return members.Autopilot{
		CleanupDeadServers: a.CleanupDeadServers, LastContactThreshold: time.Duration(a.LastContactThreshold),
		DeadServerLastContactThreshold: time.Duration(a.DeadServerLastContactThreshold),
		ServerStabilizationTime:        time.Duration(a.ServerStabilizationTime),
		MaxTrailingLogs:                uint64(a.MaxTrailingLogs), MinQuorum: int(a.MinQuorum), NonVoters: a.nonVoters,
	}
}

func fromAutopilot(c members.Autopilot) autopilotInput {
	return autopilotInput{
		CleanupDeadServers: c.CleanupDeadServers, LastContactThreshold: engines.Duration(c.LastContactThreshold),
		DeadServerLastContactThreshold: engines.Duration(c.DeadServerLastContactThreshold),
		ServerStabilizationTime:        engines.Duration(c.ServerStabilizationTime),
		MaxTrailingLogs:                int64(c.MaxTrailingLogs), MinQuorum: int64(c.MinQuorum), nonVoters: c.NonVoters,
	}
}

func (a autopilotInput) validate() error {
	switch {
	case time.Duration(a.LastContactThreshold) < time.Second:
		return engines.Invalid("field \"last_contact_threshold\" must be at least 1s")
	case a.CleanupDeadServers && time.Duration(a.DeadServerLastContactThreshold) < time.Minute:
		return engines.Invalid("field \"dead_server_last_contact_threshold\" must be at least 1m when \"cleanup_dead_servers\" is true")
	case a.MaxTrailingLogs < 1:
		return engines.Invalid("field \"max_trailing_logs\" must be at least 1")
	case a.MinQuorum < 0 || a.MinQuorum > 99:
		return engines.Invalid("field \"min_quorum\" must be between 0 and 99")
	case a.CleanupDeadServers && a.MinQuorum < 3:
		return engines.Invalid("field \"min_quorum\" must be at least 3 when \"cleanup_dead_servers\" is true")
	}
	return nil
}

// LoadAutopilot hands the stored configuration to the running cluster; the active node calls it.
func (s *System) LoadAutopilot(ctx context.Context) error {
	c, err := s.cluster()
	if err != nil {
		return err
	}
	a, err := s.storedAutopilot(ctx)
	if err != nil {
		return err
	}
	c.SetAutopilot(a.config())
	return nil
}

func (s *System) storedAutopilot(ctx context.Context) (autopilotInput, error) {
	a := autopilotInput{
		LastContactThreshold:           engines.Duration(10 * time.Second),
		DeadServerLastContactThreshold: engines.Duration(24 * time.Hour),
		ServerStabilizationTime:        engines.Duration(10 * time.Second),
		MaxTrailingLogs:                1000,
	}
	e, err := s.opts.Barrier.Get(ctx, autopilotKey)
	if errors.Is(err, storage.ErrNotFound) {
		return a, nil
	}
	if err != nil {
		return a, err
	}
	var stored autopilotRecord
	if err := json.Unmarshal(e.Value, &stored); err != nil {
		return a, fmt.Errorf("decoding the autopilot configuration: %w", err)
	}
	a = fromAutopilot(stored.Autopilot)
	a.DisableUpgradeMigration = stored.DisableUpgradeMigration
	return a, nil
}

func (s *System) readAutopilot(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	a, err := s.storedAutopilot(ctx)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{
		"cleanup_dead_servers": a.CleanupDeadServers, "last_contact_threshold": time.Duration(a.LastContactThreshold).String(),
		"dead_server_last_contact_threshold": time.Duration(a.DeadServerLastContactThreshold).String(),
		"max_trailing_logs":                  a.MaxTrailingLogs, "min_quorum": a.MinQuorum,
		"server_stabilization_time": time.Duration(a.ServerStabilizationTime).String(), "disable_upgrade_migration": a.DisableUpgradeMigration,
	}}, nil
}

func (s *System) writeAutopilot(ctx context.Context, req *engines.Request, in *autopilotInput) (*engines.Response, error) {
	a, err := s.storedAutopilot(ctx)
	if err != nil {
		return nil, err
	}
	for name, set := range map[string]func(){
		"cleanup_dead_servers":               func() { a.CleanupDeadServers = in.CleanupDeadServers },
		"last_contact_threshold":             func() { a.LastContactThreshold = in.LastContactThreshold },
		"dead_server_last_contact_threshold": func() { a.DeadServerLastContactThreshold = in.DeadServerLastContactThreshold },
		"max_trailing_logs":                  func() { a.MaxTrailingLogs = in.MaxTrailingLogs },
		"min_quorum":                         func() { a.MinQuorum = in.MinQuorum },
		"server_stabilization_time":          func() { a.ServerStabilizationTime = in.ServerStabilizationTime },
		"disable_upgrade_migration":          func() { a.DisableUpgradeMigration = in.DisableUpgradeMigration },
	} {
		if req.Given(name) {
			set()
		}
	}
	if err := a.validate(); err != nil {
		return nil, err
	}
	return nil, s.storeAutopilot(ctx, a)
}

func (s *System) storeAutopilot(ctx context.Context, a autopilotInput) error {
	value, err := json.Marshal(autopilotRecord{a.config(), a.DisableUpgradeMigration})
	if err != nil {
		return err
	}
	if _, err := s.opts.Barrier.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: autopilotKey, Value: value}}}); err != nil {
		return err
	}
	return s.LoadAutopilot(ctx)
}

func (s *System) autopilotState(context.Context, *engines.Request, *none) (*engines.Response, error) {
	peers, err := s.peers()
	if err != nil {
		return nil, err
	}
	servers, voters, nonVoters := map[string]any{}, []string{}, []string{}
	leader, healthyVoters, healthy := "", 0, true
	for _, p := range peers {
		status := "non-voter"
		switch {
		case p.Leader:
			status, leader = "leader", p.ID
			voters = append(voters, p.ID)
		case p.Voter:
			status = "voter"
			voters = append(voters, p.ID)
		default:
			nonVoters = append(nonVoters, p.ID)
		}
		if p.Voter && p.Healthy {
			healthyVoters++
		}
		healthy = healthy && p.Healthy
		behind := "" // not known
		if p.Behind >= 0 {
			behind = p.Behind.String()
		}
		alive := "alive"
		if !p.Healthy {
			alive = "failed"
		}
		servers[p.ID] = map[string]any{
			"id": p.ID, "name": p.ID, "address": p.ClusterAddr, "node_status": alive, "status": status,
			"last_contact": p.LastContact.String(), "last_index": p.LastIndex, "last_term": p.LastTerm,
			"healthy": p.Healthy, "version": p.Version, "node_type": "voter", "stable_since": "",
			"behind": behind, "disk": p.Disk,
		}
	}
	tolerance := max(0, healthyVoters-(len(voters)/2+1))
	return &engines.Response{Data: map[string]any{
		"healthy": healthy, "failure_tolerance": tolerance, "optimistic_failure_tolerance": tolerance,
		"leader": leader, "servers": servers, "voters": voters, "non_voters": nonVoters,
	}}, nil
}
