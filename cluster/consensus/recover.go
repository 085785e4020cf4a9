package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"

	"github.com/coffer-project/coffer/cluster/raftlog"
	"github.com/coffer-project/coffer/storage/boltfile"
)

// PeersFile is the file, below a node's data directory, by which an operator gives a cluster that lost its quorum
// a new one: a JSON list of {"id", "address", "non_voter"}, the same on every surviving node. PeersDone is its
// name once it has been followed.
const (
	PeersFile = "raft/peers.json"
	PeersDone = "raft/peers.json.done"
)

// recoverPeers makes the members that the peers file lists the only ones, if there is such a file, and renames
// it. Every entry in the log becomes part of the state: what the lost majority acknowledged last, and this node
// never received, is lost. If it is interrupted, the next Open does it again.
func recoverPeers(o Options, config *raft.Config, l *raftlog.Log, s *raftlog.Stable) error {
	path := filepath.Join(o.Dir, PeersFile)
	peers, err := raft.ReadConfigJSON(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("recovering by %s: %w", path, err)
	}
	if !slices.ContainsFunc(peers.Servers, func(p raft.Server) bool { return p.ID == raft.ServerID(o.ID) }) {
		return fmt.Errorf("recovering by %s: it does not name this node, %q: list every survivor, or remove the file", path, o.ID)
	}
	o.Logger.Warn("recovering the cluster: the peers file replaces its members", "node", string(o.ID), "members", len(peers.Servers))
	if err := raft.RecoverCluster(config, o.Machine, l, s, o.Machine.SnapshotStore(), nil, peers); err != nil {
		return fmt.Errorf("recovering by %s: %w", path, err)
	}
	done := filepath.Join(o.Dir, PeersDone)
	if err := boltfile.Rename(path, done); err != nil {
		return fmt.Errorf("recovering: %w", err)
	}
	return nil
}
