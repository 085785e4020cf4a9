package system

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/pgp"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// open paths need no token and answer in every state, on the node that is asked.
const open = engines.Unauthenticated | engines.WorksSealed | engines.AnyNode | engines.RootNamespace

func (s *System) nodePaths() {
	r := s.router
	engines.On(r, engines.Read, "init", "Report whether the node belongs to an initialized cluster.", open, s.readInit).
		Returns("json; initialized: boolean")
	engines.On(r, engines.Update, "init", "Initialize a new cluster. The unseal keys and the root token are answered once and never again.", open, s.writeInit).
		Returns("json; keys: [string], keys_base64: [string], recovery_keys: [string], recovery_keys_base64: [string], root_token")
	engines.On(r, engines.Read, "seal-status", "Report the state of this node's seal.", open, s.readSealStatus).
		Returns(`json; build_date, cluster_id, cluster_name, coffer_version, initialized: boolean, joining: {join_error, leader_addresses:
			[string]}, migration: boolean, n: integer, nonce, progress: integer, recovery_seal: boolean, recovery_seal_type, sealed:
			boolean, storage_type, t: integer, type, version`)
	engines.On(r, engines.Update, "unseal", "Give one unseal key, or reset the attempt.", open, s.unseal).
		Returns(`json; build_date, cluster_id, cluster_name, coffer_version, initialized: boolean, migration: boolean, n: integer, nonce,
			progress: integer, recovery_seal: boolean, recovery_seal_type, sealed: boolean, storage_type, t: integer, type, version`)
	engines.On(r, engines.Update, "seal", "Seal this node: it forgets its keys and leaves the cluster until it is unsealed.", engines.Sudo|engines.AnyNode|engines.RootNamespace, s.seal)
	engines.On(r, engines.Read, "health", "Report this node's health by status code. Every code can be overridden.", open, s.health).
		Returns(`json; clock_skew_ms: integer, cluster_id, cluster_name, coffer_version, disk, echo_duration_ms: integer, enterprise: boolean,
			ha_connection_healthy: boolean, initialized: boolean, last_wal: integer, performance_standby: boolean, removed_from_cluster:
			boolean, replication_dr_mode, replication_performance_mode, replication_primary_canary_age_ms: integer, sealed: boolean,
			server_time_utc: integer, standby: boolean, standby_behind_ms: integer?, standby_error, version`)
	engines.On(r, engines.Read, "leader", "Report who is the active node.", open, s.leader).
		Returns(`json; active_time, ha_enabled: boolean, is_self: boolean, leader_address, leader_cluster_address, performance_standby:
			boolean, performance_standby_last_remote_wal: integer, raft_applied_index: integer, raft_committed_index: integer`)
	engines.On(r, engines.Read, "ha-status", "List the cluster's nodes.", engines.Active|engines.RootNamespace, s.haStatus).
		Returns(`top; nodes: [{active_node: boolean, api_address, cluster_address, disk, healthy: boolean, hostname, last_echo: string?,
			node_id, version, voter: boolean}]`)
	engines.On(r, engines.Update, "step-down", "Make the active node hand over to another node.", engines.Sudo|engines.Active|engines.RootNamespace, s.stepDown)
}

func (s *System) readInit(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	return plain(0, map[string]bool{"initialized": s.opts.Node.Initialized(ctx)})
}

type initInput struct {
	SecretShares      int                `json:"secret_shares" default:"5" help:"Number of key shares."`
	SecretThreshold   int                `json:"secret_threshold" default:"3" help:"Number of key shares needed to unseal."`
	StoredShares      int                `json:"stored_shares" help:"Accepted for compatibility."`
	PGPKeys           engines.StringList `json:"pgp_keys" max:"16384" help:"Public OpenPGP keys in base64 or armored, one for each share: each share is encrypted to the key at its place."`
	RootTokenPGPKey   string             `json:"root_token_pgp_key" max:"16384" help:"Public OpenPGP key that the root token is encrypted to."`
	RecoveryShares    int                `json:"recovery_shares" default:"5" help:"With an automatic seal: number of shares of the recovery key; 0 for none."`
	RecoveryThreshold int                `json:"recovery_threshold" default:"3" help:"With an automatic seal: number of recovery key shares that are enough."`
	RecoveryPGPKeys   engines.StringList `json:"recovery_pgp_keys" max:"16384" help:"With an automatic seal: public OpenPGP keys, one for each share of the recovery key."`
}

func (s *System) writeInit(ctx context.Context, _ *engines.Request, in *initInput) (*engines.Response, error) {
	shares, threshold, field, keys, other := in.SecretShares, in.SecretThreshold, "pgp_keys", in.PGPKeys, in.RecoveryPGPKeys
	if s.opts.Node.Status(ctx).Recovery {
		shares, threshold, field, keys, other = in.RecoveryShares, in.RecoveryThreshold, "recovery_pgp_keys", in.RecoveryPGPKeys, in.PGPKeys
	}
	if len(other) > 0 {
		return nil, engines.Invalid("with the seal of this node only field %q has shares to encrypt: leave the other out", field)
	}
	holders, err := pgp.Parse(field, keys, shares)
	if err != nil {
		return nil, err
	}
	reader, err := pgp.ParseOne("root_token_pgp_key", in.RootTokenPGPKey)
	if err != nil {
		return nil, err
	}
	result, err := s.opts.Node.Init(ctx, shares, threshold)
	if errors.Is(err, lifecycle.ErrInitialized) {
		return nil, engines.Invalid("Vault is already initialized")
	}
	if err != nil {
		return nil, err
	}
	out := map[string]any{"keys": []string{}, "keys_base64": []string{}, "root_token": result.RootToken}
	if reader != nil {
		token, err := reader.EncryptText(result.RootToken)
		if err != nil {
			return nil, err
		}
		out["root_token"] = token.Reveal()
	}
	handed, err := pgp.EncryptShares(holders, append(result.KeyShares, result.RecoveryShares...))
	if err != nil {
		return nil, err
	}
	if len(result.RecoveryShares) > 0 {
		out["recovery_keys"], out["recovery_keys_base64"] = texts(handed)
	} else {
		out["keys"], out["keys_base64"] = texts(handed)
	}
	return plain(0, out)
}

func (s *System) readSealStatus(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	return plain(0, s.sealStatus(s.opts.Node.StatusFor(ctx, sourceOf(req))))
}

// sourceOf says whose attempt to unseal the node a request belongs to: the address or, of IPv6, the network it comes from.
func sourceOf(req *engines.Request) string {
	addr := req.RemoteIP.Unmap()
	if addr.Is6() {
		if network, err := addr.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return addr.String()
}

func (s *System) sealStatus(st lifecycle.SealStatus) map[string]any {
	out := map[string]any{
		"type": st.Type, "initialized": st.Initialized, "sealed": st.Sealed,
		"t": st.Threshold, "n": st.Shares, "progress": st.Progress, "nonce": st.Nonce,
		"version": s.opts.Version.API, "coffer_version": s.opts.Version.Product, "build_date": s.opts.Version.Built,
		"migration": st.Migration, "recovery_seal": st.Recovery, "storage_type": "raft",
	}
	if s.opts.Node.Removed() {
		out["removed_from_cluster"] = true
	}
	if st.Founding != "" {
		out["initializing"] = st.Founding
	}
	if len(st.JoinTargets) > 0 {
		out["joining"] = map[string]any{"leader_addresses": st.JoinTargets, "join_error": st.JoinError}
	}
	if st.Recovery {
		out["recovery_seal_type"] = "shamir"
	}
	if id := s.opts.Node.Identity(); id.ID != "" {
		out["cluster_name"], out["cluster_id"] = id.Name, id.ID
	}
	return out
}

type unsealInput struct {
	Key     engines.Sensitive `json:"key" max:"1024" help:"One unseal key, in hex or base64."`
	Nonce   string            `json:"nonce" max:"64" help:"Attempt that the key belongs to, as the response to its first key names it. Without it, keys of one address are one attempt; a key is tried with those of all attempts."`
	Reset   bool              `json:"reset" help:"Forget the keys that this address, or the attempt of nonce, has given so far."`
	Migrate bool              `json:"migrate" help:"Change to the seal that this node is configured for; the keys are those of the former seal."`
}

func (s *System) unseal(ctx context.Context, req *engines.Request, in *unsealInput) (*engines.Response, error) {
	if in.Key == "" && !in.Reset {
		return nil, engines.Invalid("field \"key\" is required, unless \"reset\" is true")
	}
	// The client may go away; an unseal that has all its keys must still finish.
	status, err := s.opts.Node.Submit(context.WithoutCancel(ctx), lifecycle.Share{
		Source: sourceOf(req), Nonce: in.Nonce, Key: in.Key.Reveal(), Reset: in.Reset, Migrate: in.Migrate,
	})
	if errors.Is(err, lifecycle.ErrNotInitialized) {
		return nil, engines.Invalid("the node is not initialized: initialize it, or let it join a cluster")
	}
	if err != nil {
		return nil, err
	}
	return plain(0, s.sealStatus(status))
}

func (s *System) seal(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	// Sealing waits for nothing that waits for this request; the answer goes out from a sealed node.
	return nil, s.opts.Node.Seal(context.WithoutCancel(ctx))
}

// healthCodes are the query parameters that override a status.
var healthCodes = map[string]int{
	"activecode": http.StatusOK, "standbycode": http.StatusTooManyRequests,
	"sealedcode": http.StatusServiceUnavailable, "uninitcode": http.StatusNotImplemented,
	"performancestandbycode": 473, "drsecondarycode": 472, "removedcode": 530, "haunhealthycode": http.StatusServiceUnavailable,
}

func healthCode(q url.Values, name string) (int, error) {
	v := q.Get(name)
	if v == "" {
		return healthCodes[name], nil
	}
	code, err := strconv.Atoi(v)
	if err != nil || code < 200 || code > 599 { // those below are no answer
		return 0, engines.Invalid("query parameter %q must be a status code between 200 and 599", name)
	}
	return code, nil
}

func (s *System) health(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	for name := range healthCodes {
		if _, err := healthCode(req.Query, name); err != nil {
			return nil, err
		}
	}
	node := s.opts.Node
	initialized, sealed, active := node.Initialized(ctx), node.Sealed(), node.Active()
	standby := initialized && !sealed && !active
	behind := standby && !node.Current()
	name := "activecode"
	switch {
	case !initialized:
		name = "uninitcode"
	case node.Removed():
		name = "removedcode"
	case sealed:
		name = "sealedcode"
	case behind:
		name = "haunhealthycode"
	case !active:
		name = "standbycode"
		if ok := req.Query.Get("standbyok"); ok == "true" || ok == "1" || req.Query.Has("standbyok") && ok == "" {
			name = "activecode"
		}
	}
	code, err := healthCode(req.Query, name)
	if err != nil {
		return nil, err
	}
	role, canary := s.role(), time.Duration(0)
	if role.Mode == roles.Secondary {
		canary, _ = s.opts.Replication.CanaryAge(ctx)
	}
	body := map[string]any{
		"initialized": initialized, "sealed": sealed, "standby": !active, "performance_standby": false,
		"replication_performance_mode": string(role.Mode), "replication_dr_mode": "disabled",
		"server_time_utc": time.Now().Unix(), "version": s.opts.Version.API, "coffer_version": s.opts.Version.Product,
		"enterprise": false, "echo_duration_ms": 0, "clock_skew_ms": 0, "replication_primary_canary_age_ms": canary.Milliseconds(),
	}
	if node.Removed() {
		body["removed_from_cluster"] = true
	}
	if s.opts.Disk != nil {
		body["disk"] = s.opts.Disk.Health()
	}
	if standby {
		body["ha_connection_healthy"], body["standby_behind_ms"] = !behind, any(nil)
		if age := node.Behind(); age >= 0 {
			body["standby_behind_ms"] = age.Milliseconds()
		}
	}
	if behind {
		body["standby_error"] = "this standby has not applied what the active node had ten seconds ago: it answers no reads; its log says why"
	}
	if id := node.Identity(); id.ID != "" {
		body["cluster_name"], body["cluster_id"] = id.Name, cmp.Or(role.ClusterID, id.ID)
		body["last_wal"] = uint64(s.opts.Raw.AppliedIndex())
	}
	return plain(code, body)
}

func (s *System) leader(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	node := s.opts.Node
	c := node.Cluster()
	if c == nil {
		return nil, storage.ErrSealed
	}
	out := map[string]any{
		"ha_enabled": true, "is_self": node.Active(), "leader_address": "", "leader_cluster_address": "",
		"performance_standby": false, "performance_standby_last_remote_wal": 0,
		"raft_applied_index": uint64(s.opts.Raw.AppliedIndex()),
	}
	if p, ok := c.Leader(); ok {
		out["leader_address"], out["leader_cluster_address"] = p.APIAddr, p.ClusterAddr
	}
	if since := node.ActiveSince(); !since.IsZero() {
		out["active_time"] = rfc3339(since)
	}
	if commit := c.Numbers()["raft_commit_index"]; commit > 0 {
		out["raft_committed_index"] = uint64(commit)
	}
	return plain(0, out)
}

func (s *System) haStatus(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	c, err := s.cluster()
	if err != nil {
		return nil, err
	}
	peers, err := c.Peers()
	if err != nil {
		return nil, err
	}
	hostname, _ := os.Hostname()
	nodes := []map[string]any{}
	for _, p := range peers {
		n := map[string]any{
			"hostname": p.ID, "api_address": p.APIAddr, "cluster_address": p.ClusterAddr, "active_node": p.Leader,
			"version": p.Version, "node_id": p.ID, "voter": p.Voter, "healthy": p.Healthy, "last_echo": nil, "disk": p.Disk,
		}
		if p.Leader {
			n["hostname"] = hostname
		} else if p.LastContact > 0 {
			n["last_echo"] = rfc3339(time.Now().Add(-p.LastContact))
		}
		nodes = append(nodes, n)
	}
	return both(map[string]any{"nodes": nodes}), nil
}

func (s *System) stepDown(ctx context.Context, _ *engines.Request, _ *none) (*engines.Response, error) {
	c, err := s.cluster()
	if err != nil {
		return nil, err
	}
	return nil, c.StepDown(ctx)
}
