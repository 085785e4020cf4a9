package replicated

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/server/replicated/roles"
)

// Numbers returns gauges and counters, by metric name without the product's prefix.
func (s *Store) Numbers() map[string]float64 {
	r := s.Role()
	out := map[string]float64{
		"replication_primary": one(r.Mode == roles.Primary), "replication_secondary": one(r.Mode == roles.Secondary), "replication_epoch": float64(r.Lineage.Epoch()),
	}
	if r.Mode != roles.Disabled {
		others, formers := s.otherNumbers(&r)
		out["replication_other_primaries"], out["replication_former_primaries"] = others, formers
	}
	switch r.Mode {
	case roles.Primary:
		s.primaryNumbers(&r, out)
	case roles.Secondary:
		s.secondaryNumbers(&r, out)
	}
	return out
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (s *Store) primaryNumbers(r *roles.Role, out map[string]float64) {
	var entries uint64
	var seconds, silence, rate float64
	var connected int
	ctx := context.Background()
	known, err := s.registry.List(ctx)
	if err != nil {
		return
	}
	all, err := s.Secondaries(ctx, known, r.Lineage.Epoch())
	if err != nil {
		return
	}
	for i := range all {
		st := &all[i]
		entries, seconds = max(entries, st.LagEntries), max(seconds, st.LagSeconds)
		if s.Connected(st) {
			connected, rate = connected+1, rate+st.RateOut
		}
		if !st.LastHeartbeat.IsZero() {
			silence = max(silence, time.Since(st.LastHeartbeat).Seconds())
		}
	}
	out["replication_fenced"] = one(r.Fenced != 0)
	out["replication_secondaries_known"] = float64(len(all))
	out["replication_secondaries_connected"] = float64(connected)
	out["replication_lag_entries"], out["replication_lag_seconds"] = float64(entries), seconds
	out["replication_last_heartbeat_seconds"] = silence
	out["replication_sent_entries_per_second"] = rate
	out["replication_head_index"], out["replication_oldest_index"] = float64(s.link.Head()), float64(s.link.Oldest())
}

func (s *Store) secondaryNumbers(r *roles.Role, out map[string]float64) {
	st := s.FollowStatus()
	out["replication_demoted"], out["replication_wiping"] = one(r.Demoted), one(r.Wiping)
	out["replication_connected"], out["replication_exact"] = one(st.Connected != "" && !s.Silent(&st)), one(st.Exact)
	out["replication_terminal"], out["replication_paused"] = one(st.Terminal != ""), one(st.Paused != "")
	out["replication_lag_entries"], out["replication_lag_bytes"] = float64(st.LagEntries), float64(st.LagBytes)
	out["replication_lag_seconds"] = st.LagSeconds
	out["replication_received_entries_total"], out["replication_received_bytes_total"] = float64(st.EntriesIn), float64(st.BytesIn)
	out["replication_cursor_index"] = float64(st.Cursor.Index)
	out["replication_units_quarantined"] = float64(CountQuarantined(&st))
	out["replication_clock_skew_seconds"] = st.ClockSkew.Seconds()
	out["replication_repair_running"] = 0
	if !st.LastHeard.IsZero() {
		out["replication_last_heartbeat_seconds"] = max(0, time.Since(st.LastHeard)).Seconds()
	}
	if st.Repair != nil {
		out["replication_repair_running"] = one(st.Repair.Running)
		out["replication_repair_keys"], out["replication_repair_bytes"] = float64(st.Repair.Keys), float64(st.Repair.Bytes)
	}
	if age, ok := s.CanaryAgeAt(context.Background(), st.ClockSkew); ok {
		out["replication_canary_age_seconds"] = age.Seconds()
	}
}

// otherNumbers counts the primaries that are not of this cluster's history, and those that do not know of the latest one yet.
func (s *Store) otherNumbers(r *roles.Role) (others, formers float64) {
	ctx := context.Background()
	if open, err := s.others.Open(ctx, r); err == nil {
		others = float64(len(open))
	}
	if list, err := s.others.Unconfirmed(ctx); err == nil {
		formers = float64(len(list))
	}
	return others, formers
}
