package api

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// What the status paths answer. Fields that clients of the family read have their names and types, texts where one would
// expect numbers included; the others are ours. Anybody may read it: nothing in it is secret, and no path is.

// bothStatus is what a primary and a secondary tell.
type bothStatus struct {
	Mode                roles.Mode            `json:"mode"`
	State               string                `json:"state" help:"In the words of dashboards: running, stream-wals, merkle-sync, merkle-diff or idle."`
	Phase               string                `json:"phase" help:"The same, more exact: running, fenced, streaming, catching-up, backfill, repairing, paused and others."`
	ClusterID           string                `json:"cluster_id"`
	SetID               string                `json:"set_id" help:"The replication set, which all clusters of it share."`
	Epoch               uint32                `json:"epoch" help:"Grows with each promotion."`
	EpochCluster        string                `json:"epoch_cluster_id" help:"The primary of that epoch."`
	Position            string                `json:"position" help:"Epoch and index in the history of the set, as epoch:index."`
	Since               string                `json:"role_since"`
	MerkleRoot          string                `json:"merkle_root" help:"Digest of the shared data."`
	PrimaryClusterAddr  string                `json:"primary_cluster_addr"`
	LastReindexEpoch    string                `json:"last_reindex_epoch" help:"Unix time of the last repair, as text."`
	LastCheckEpoch      string                `json:"last_corruption_check_epoch" help:"Unix time of the last repair, as text."`
	CorruptedMerkleTree bool                  `json:"corrupted_merkle_tree" help:"Whether a mount or namespace could not be repaired."`
	TokenGeneration     uint64                `json:"ssct_generation_counter" help:"Always 0."`
	UnitsQuarantined    int                   `json:"units_quarantined" help:"Mounts and namespaces that could not be repaired."`
	LastRepair          *repairStatus         `json:"last_repair"`
	OtherPrimaries      []otherPrimary        `json:"other_primaries" help:"Primaries of epochs that are not of the history of this cluster."`
	FormerPrimaries     []formerPrimaryStatus `json:"former_primaries" help:"Primaries that have not confirmed yet that they are none any more."`
}

type otherPrimary struct {
	Epoch      uint32 `json:"epoch" help:"Grows with each promotion."`
	ClusterID  string `json:"cluster_id"`
	APIAddress string `json:"api_address"`
	MetAt      string `json:"met_at,omitempty"`
}

type formerPrimaryStatus struct {
	ClusterID        string   `json:"cluster_id"`
	ClusterAddresses []string `json:"cluster_addresses"`
	Since            string   `json:"since"`
	LastAttempt      string   `json:"last_attempt"`
	Reason           string   `json:"reason" help:"Why it does not go on, and what to do."`
}

type primaryStatus struct {
	bothStatus
	LastWAL            uint64           `json:"last_wal" help:"Index that this cluster has applied."`
	LastPerformanceWAL uint64           `json:"last_performance_wal" help:"Index of the last shared change."`
	WALOldestIndex     uint64           `json:"wal_oldest_index" help:"Oldest change that is kept for secondaries."`
	Fenced             uint32           `json:"fenced,omitempty" help:"Epoch of a later primary, because of which this one takes no writes."`
	FencedBy           *otherPrimary    `json:"fenced_by,omitempty"`
	Reason             string           `json:"reason" help:"Why it does not go on, and what to do."`
	KnownSecondaries   []string         `json:"known_secondaries" help:"Ids of secondaries with a token, connected or not."`
	Secondaries        []secondaryEntry `json:"secondaries"`
}

type secondaryStatus struct {
	bothStatus
	lag
	ConnectionState          string         `json:"connection_state"`
	Reason                   string         `json:"reason" help:"Why it does not go on, and what to do."`
	SecondaryID              string         `json:"secondary_id"`
	LastRemoteWAL            uint64         `json:"last_remote_wal" help:"Index of the primary that is applied here."`
	LastStart                string         `json:"last_start" help:"Since when it follows this primary."`
	KnownPrimaryClusterAddrs []string       `json:"known_primary_cluster_addrs"`
	Primaries                []clusterEntry `json:"primaries"`
	PrimaryPosition          string         `json:"primary_position"`
	PrimaryFinal             bool           `json:"primary_final" help:"Whether the primary was demoted, and all that it had is here."`
	Exact                    bool           `json:"exact" help:"Whether the data is that of the primary at one position."`
	BytesPerSecond           float64        `json:"bytes_per_second"`
	ETASeconds               float64        `json:"eta_seconds" help:"Seconds until it has caught up; negative: it does not catch up."`
	CannotKeepUp             bool           `json:"cannot_keep_up"`
	KeysDone                 int64          `json:"keys_done" help:"Of a backfill or repair."`
	KeysTotal                int64          `json:"keys_total" help:"Of a backfill or repair."`
}

// lag is how far a secondary is behind.
type lag struct {
	LagEntries       uint64  `json:"lag_entries"`
	LagBytes         int64   `json:"lag_bytes"`
	LagSeconds       float64 `json:"lag_seconds" help:"Seconds since both sides were known to be equal."`
	LastEqual        string  `json:"last_equal" help:"When both sides were known to be equal; empty: never yet."`
	EntriesPerSecond float64 `json:"entries_per_second"`
}

// clusterEntry is the other side of a connection.
type clusterEntry struct {
	APIAddress       string `json:"api_address"`
	ClusterAddress   string `json:"cluster_address"`
	ConnectionStatus string `json:"connection_status"`
	LastHeartbeat    string `json:"last_heartbeat,omitempty"`
	HeartbeatMS      string `json:"last_heartbeat_duration_ms,omitempty" help:"Milliseconds since the last heartbeat, as text."`
	ClockSkewMS      string `json:"clock_skew_ms,omitempty" help:"Milliseconds, as text."`
	CanaryAgeMS      string `json:"replication_primary_canary_age_ms,omitempty" help:"Milliseconds that the data is behind, as text."`
}

type secondaryEntry struct {
	NodeID    string `json:"node_id" help:"The id of the secondary."`
	ClusterID string `json:"cluster_id"`
	clusterEntry
	lag
	Position string `json:"position" help:"Epoch and index in the history of the set, as epoch:index."`
	Exact    bool   `json:"exact" help:"Whether the data is that of the primary at one position."`
}

type repairStatus struct {
	Cause     string  `json:"cause"`
	StartedAt string  `json:"started_at"`
	Seconds   float64 `json:"seconds"`
	Running   bool    `json:"running"`
	Units     int     `json:"units"`
	UnitsAll  int     `json:"units_all"`
	Buckets   int     `json:"buckets"`
	Keys      int     `json:"keys"`
	Bytes     int64   `json:"bytes"`
}

// Status returns what sys/replication/performance/status answers.
func (s *API) Status(ctx context.Context) (any, error) {
	r, err := s.Current(ctx)
	if err != nil {
		return nil, err
	}
	switch r.Mode {
	case roles.Primary:
		return s.primaryStatus(ctx, &r)
	case roles.Secondary:
		return s.secondaryStatus(ctx, &r)
	}
	return map[string]any{"mode": roles.Disabled}, nil
}

func (s *API) both(ctx context.Context, r *roles.Role) (bothStatus, error) {
	out := bothStatus{
		Mode: r.Mode, ClusterID: r.ClusterID, SetID: r.SetID, Epoch: r.Lineage.Epoch(), EpochCluster: r.Lineage.Last().ClusterID,
		Since: replicated.TimeText(r.Since), MerkleRoot: s.link.Root(), LastReindexEpoch: "0", LastCheckEpoch: "0",
		OtherPrimaries: []otherPrimary{}, FormerPrimaries: []formerPrimaryStatus{},
	}
	met, err := s.Others().Open(ctx, r)
	if err != nil {
		return out, err
	}
	for _, p := range met {
		out.OtherPrimaries = append(out.OtherPrimaries, otherPrimary{p.Number, p.ClusterID, p.APIAddr, replicated.TimeText(p.MetAt)})
	}
	formers, err := s.Others().Unconfirmed(ctx)
	if err != nil {
		return out, err
	}
	for _, f := range formers {
		at, failed := s.Others().LastAttempt(f.Upstream.PrimaryID)
		e := formerPrimaryStatus{
			ClusterID: f.Upstream.PrimaryID, ClusterAddresses: texts(f.Upstream.Addrs), Since: replicated.TimeText(f.Since), LastAttempt: replicated.TimeText(at),
		}
		if failed != nil {
			e.Reason = replicated.TextOf(failed)
		}
		out.FormerPrimaries = append(out.FormerPrimaries, e)
	}
	return out, nil
}

func (s *API) primaryStatus(ctx context.Context, r *roles.Role) (*primaryStatus, error) {
	applied := s.opts.Node.AppliedIndex()
	both, err := s.both(ctx, r)
	if err != nil {
		return nil, err
	}
	out := &primaryStatus{
		bothStatus: both, LastWAL: uint64(applied), LastPerformanceWAL: uint64(s.link.Head()), WALOldestIndex: uint64(s.link.Oldest()),
		Fenced: r.Fenced, KnownSecondaries: []string{}, Secondaries: []secondaryEntry{},
	}
	out.State, out.Phase, out.PrimaryClusterAddr = "running", "running", r.Addr
	if r.Fenced != 0 {
		out.Phase, out.Reason = "fenced", r.WhyFenced()
		out.FencedBy = &otherPrimary{Epoch: r.Fenced, ClusterID: r.FencedBy, APIAddress: r.FencedAPI}
	}
	out.Position = storage.Position{Epoch: r.Lineage.Epoch(), Index: applied}.String() // secondaries count what is not theirs, too
	known, err := s.registry.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range known {
		if p.State == registry.Active || p.State == registry.Issued {
			out.KnownSecondaries = append(out.KnownSecondaries, p.ID)
		}
	}
	secondaries, err := s.Secondaries(ctx, known, r.Lineage.Epoch())
	if err != nil {
		return nil, err
	}
	for i := range secondaries {
		out.Secondaries = append(out.Secondaries, s.entryOf(&secondaries[i]))
	}
	return out, nil
}

func (s *API) entryOf(st *traffic.SessionStatus) secondaryEntry {
	e := secondaryEntry{
		NodeID: st.Peer.ID, ClusterID: st.Peer.ClusterID, clusterEntry: s.other(st.LastHeartbeat, st.ClockSkew),
		lag:      lag{LagEntries: st.LagEntries, LagSeconds: st.LagSeconds, EntriesPerSecond: st.RateOut, LastEqual: replicated.TimeText(st.EqualAt)},
		Position: st.Cursor.String(), Exact: st.Exact,
	}
	e.APIAddress, e.ClusterAddress = st.APIAddr, cmp.Or(st.ClusterAddr, st.Addr)
	e.CanaryAgeMS = millis(time.Duration(st.LagSeconds * float64(time.Second)))
	if !s.Connected(st) {
		e.ConnectionStatus, e.EntriesPerSecond, e.Exact = "disconnected", 0, false
	}
	return e
}

// other describes the other side of a connection, or of the last one.
func (s *API) other(heard time.Time, skew time.Duration) clusterEntry {
	e := clusterEntry{ConnectionStatus: "connected", ClockSkewMS: millis(skew)}
	if !heard.IsZero() {
		e.LastHeartbeat, e.HeartbeatMS = replicated.TimeText(heard), millis(max(0, time.Since(heard)))
	}
	return e
}

func (s *API) secondaryStatus(ctx context.Context, r *roles.Role) (*secondaryStatus, error) {
	up, err := traffic.ReadUpstream(ctx, s.store)
	if err != nil {
		return nil, err
	}
	if up == nil {
		up = &traffic.Upstream{}
	}
	both, err := s.both(ctx, r)
	if err != nil {
		return nil, err
	}
	st := s.FollowStatus()
	if st.Cursor.IsZero() {
		st.Cursor, _ = s.link.Cursor(ctx) // zero if there is none
	}
	out := &secondaryStatus{
		bothStatus: both, ConnectionState: s.connectionState(r, up, &st), Reason: s.reason(r, up, &st),
		SecondaryID: up.SecondaryID, LastRemoteWAL: uint64(st.Cursor.Index), LastStart: replicated.TimeText(replicated.Later(up.Since, r.Since)),
		KnownPrimaryClusterAddrs: up.Addrs, Primaries: []clusterEntry{}, PrimaryPosition: st.Head.String(), PrimaryFinal: st.Final,
		Exact: st.Exact || r.Demoted, BytesPerSecond: st.BytesRate, ETASeconds: st.ETASeconds, KeysDone: st.KeysDone, KeysTotal: st.KeysTotal,
		lag: lag{LagEntries: st.LagEntries, LagBytes: st.LagBytes, LagSeconds: st.LagSeconds, LastEqual: replicated.TimeText(st.EqualAt), EntriesPerSecond: st.RateIn},
	}
	if out.KnownPrimaryClusterAddrs == nil {
		out.KnownPrimaryClusterAddrs = []string{}
	}
	out.Position, out.Phase, out.State = st.Cursor.String(), phase(r, &st), familyState(&st)
	out.UnitsQuarantined = replicated.CountQuarantined(&st)
	out.CorruptedMerkleTree = out.UnitsQuarantined > 0
	out.CannotKeepUp = st.Connected != "" && !st.CanKeepUp && st.LagEntries > 0
	if len(up.Addrs) > 0 {
		out.PrimaryClusterAddr = cmp.Or(st.Connected, up.Addrs[0])
		out.Primaries = append(out.Primaries, s.primaryEntry(ctx, up, &st))
	}
	if st.Repair != nil {
		out.LastRepair = repairOf(st.Repair)
		out.LastReindexEpoch = strconv.FormatInt(st.Repair.StartedAt.Unix(), 10)
		out.LastCheckEpoch = out.LastReindexEpoch
	}
	return out, nil
}

func (s *API) primaryEntry(ctx context.Context, up *traffic.Upstream, st *traffic.FollowStatus) clusterEntry {
	e := clusterEntry{ConnectionStatus: "disconnected"}
	if !st.LastHeard.IsZero() || st.Connected != "" {
		e = s.other(st.LastHeard, st.ClockSkew)
	}
	if st.Connected == "" || s.Silent(st) {
		e.ConnectionStatus = "disconnected"
	}
	e.APIAddress, e.ClusterAddress = up.APIAddr, cmp.Or(st.Connected, up.Addrs[0])
	if age, ok := s.CanaryAgeAt(ctx, st.ClockSkew); ok {
		e.CanaryAgeMS = millis(age)
	}
	return e
}

// phase says what a secondary is doing.
func phase(r *roles.Role, st *traffic.FollowStatus) string {
	switch {
	case r.Wiping:
		return "wiping"
	case r.Demoted:
		return "demoted"
	}
	if st.Paused != "" {
		return "paused"
	}
	return cmp.Or(st.Terminal, string(st.State), "disconnected")
}

// familyState is the same in the words that dashboards know.
func familyState(st *traffic.FollowStatus) string {
	switch st.State {
	case "streaming", "catching-up":
		return "stream-wals"
	case "backfill":
		return "merkle-sync"
	case "repairing":
		if st.Repair != nil && st.Repair.Keys == 0 {
			return "merkle-diff"
		}
		return "merkle-sync"
	}
	return "idle"
}

// connectionState is that of the channel to the primary, in words that dashboards know.
func (s *API) connectionState(r *roles.Role, up *traffic.Upstream, st *traffic.FollowStatus) string {
	switch {
	case r.Demoted || r.Wiping || len(up.Addrs) == 0:
		return "idle"
	case s.Silent(st):
		return "transient_failure"
	case st.Connected != "":
		return "ready"
	case st.Terminal != "":
		return "shutdown"
	case st.State == "connecting":
		return "connecting"
	}
	return "transient_failure"
}

// reason says why a secondary is not connected, or takes nothing.
func (s *API) reason(r *roles.Role, up *traffic.Upstream, st *traffic.FollowStatus) string {
	switch {
	case r.Wiping:
		return "what this cluster held before is being removed"
	case r.Demoted:
		return "this cluster was demoted: give it a primary with secondary/update-primary, or promote it"
	case len(up.Addrs) == 0:
		return "no primary is known: give one with secondary/update-primary"
	case s.Silent(st):
		return fmt.Sprintf("nothing was heard of the primary for %d s, although the connection to %s stands: it hangs, or the network does",
			int(time.Since(st.LastHeard).Seconds()), st.Connected)
	case st.Connected != "":
		return st.Paused
	}
	why := replicated.Plain(st.Reason)
	switch {
	case st.Terminal == "revoked":
		return why + ": to follow again, get a new activation token from the primary and give it to secondary/update-primary"
	case st.Terminal == "fenced":
		return why + ": follow the later primary, with a token of it and secondary/update-primary"
	case st.Terminal == "" && why != "" && !st.Final && st.State != "connecting":
		return why + "; trying again"
	}
	return why
}

func repairOf(r *traffic.RepairStatus) *repairStatus {
	return &repairStatus{
		Cause: r.Cause, StartedAt: replicated.TimeText(r.StartedAt), Seconds: r.Seconds, Running: r.Running, Units: r.Units, UnitsAll: r.UnitsAll,
		Buckets: r.Buckets, Keys: r.Keys, Bytes: r.Bytes,
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// serveStatus answers for performance replication, serveNone for the sort that there is not, serveCombined for all of them.
func (s *API) serveStatus(ctx context.Context, _ *engines.Request, _ *struct{}) (*engines.Response, error) {
	data, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: data}, nil
}

func (s *API) serveNone(context.Context, *engines.Request, *struct{}) (*engines.Response, error) {
	return &engines.Response{Data: map[string]any{"mode": roles.Disabled}}, nil
}

func (s *API) serveCombined(ctx context.Context, _ *engines.Request, _ *struct{}) (*engines.Response, error) {
	data, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"performance": data, "dr": map[string]any{"mode": roles.Disabled}}}, nil
}
