package replicated

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/registry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// What a primary knows of each secondary, connected or not, outlives the active node: how late one is that went away is
// known from the moment at which both were equal last.

// seen is the entry of a secondary at seenKey.
type seen struct {
	Format    int              `json:"format"` // 1
	ClusterID string           `json:"cluster_id"`
	Position  storage.Position `json:"position"`
	EqualAt   time.Time        `json:"equal_at"`
	HeardAt   time.Time        `json:"heard_at"`
}

func seenKey(id string) storage.Key { return seenKeys + storage.Key(hex.EncodeToString([]byte(id))) }

// seenInterval is how old the stored time may become while a secondary is connected.
const seenInterval = time.Minute

// storeSeen stores what this node knows of secondaries, if it is news enough.
func (s *Store) storeSeen(ctx context.Context, r *roles.Role) error {
	var puts []storage.Put
	for _, st := range s.link.SessionStatus() {
		old, err := s.readSeen(ctx, st.Peer)
		if err != nil {
			return err
		}
		news := st.EqualAt.Sub(old.EqualAt)
		if st.EqualAt.IsZero() || news <= 0 || st.EndedAt.IsZero() && news < seenInterval {
			continue
		}
		puts = append(puts, storage.Put{Key: seenKey(st.Peer.ID), Value: entry.Encode(seen{
			Format: 1, ClusterID: st.Peer.ClusterID, Position: st.Cursor, EqualAt: st.EqualAt.UTC(), HeardAt: st.LastHeartbeat.UTC(),
		})})
	}
	if len(puts) == 0 {
		return nil
	}
	_, err := s.store.Commit(ctx, storage.Batch{Reads: []storage.Read{{Key: roles.RoleKey, Version: r.Version}}, Puts: puts})
	return err
}

// readSeen returns what is stored of a secondary, as the cluster that it is now.
func (s *Store) readSeen(ctx context.Context, p roles.Peer) (seen, error) {
	v, err := entry.Fetch[seen](ctx, s.store, seenKey(p.ID))
	if errors.Is(err, storage.ErrNotFound) || err == nil && v.ClusterID != p.ClusterID {
		return seen{}, nil
	}
	return v, err
}

// Secondaries returns how all enrolled secondaries are doing, connected or not. LagSeconds of each is the time since both
// were known to be equal; of one that never was, since it has enrolled.
func (s *Store) Secondaries(ctx context.Context, known []registry.Registered, epoch uint32) ([]traffic.SessionStatus, error) {
	sessions := map[string]traffic.SessionStatus{}
	for _, st := range s.link.SessionStatus() {
		sessions[st.Peer.ID] = st
	}
	now := time.Now()
	var out []traffic.SessionStatus
	for _, p := range known {
		if p.State != registry.Active {
			continue
		}
		peer := roles.Peer{ID: p.ID, ClusterID: p.ClusterID}
		st, ok := sessions[p.ID]
		if !ok || st.Peer.ClusterID != p.ClusterID {
			st = traffic.SessionStatus{Peer: peer, EndedAt: p.EnrolledAt}
		}
		if st.EqualAt.IsZero() || !st.EndedAt.IsZero() {
			old, err := s.readSeen(ctx, peer)
			if err != nil {
				return nil, err
			}
			if old.EqualAt.After(st.EqualAt) {
				st.EqualAt, st.Cursor, st.LastHeartbeat = old.EqualAt, old.Position, Later(st.LastHeartbeat, old.HeardAt)
			}
			st.LagSeconds = max(0, now.Sub(Later(st.EqualAt, p.EnrolledAt)).Seconds())
			if head := s.link.Head(); st.Cursor.Epoch == epoch && st.Cursor.Index < head {
				st.LagEntries = uint64(head - st.Cursor.Index)
			}
		}
		out = append(out, st)
	}
	return out, nil
}

// Connected reports whether a secondary is connected and heard.
func (s *Store) Connected(st *traffic.SessionStatus) bool {
	return st.EndedAt.IsZero() && time.Since(st.LastHeartbeat) <= silentAfter
}
