package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/coffer-project/coffer/storage"
)

// Generations of what the cluster stores. A build reads all up to Formats. The cluster writes what it has agreed on: the
// leader raises that, by an entry that builds of any generation can apply, once every member has reported that it reads
// more. So members of two builds run together, and nothing that the older one does not read is written before it is gone. What a
// build adds to an existing state, such as default mounts, has a generation too.
//
// Formats is the newest generation that this build reads. 1, digest.Generation, has checkpoints: entries of the log by which members compare their
// states. 2 has tokens and accessors that begin with their time, which earlier builds do not find.
const Formats = 2

// formatsKey is where the generation is that the cluster writes, in decimal. Every build stores what is below l/seal/ as it
// is, so that a sealed node reads it too.
const formatsKey storage.Key = "l/seal/formats"

func (n *Node) formats() uint32 {
	if n.opts.unnumbered {
		return 0
	}
	return Formats
}

// ClusterFormats returns the generation of formats that the cluster writes, as far as this node has applied.
func (n *Node) ClusterFormats() uint32 {
	generation, _, err := n.clusterFormats(n.ctx)
	if err != nil {
		return 0
	}
	return generation
}

func (n *Node) clusterFormats(ctx context.Context) (generation uint32, version storage.Index, err error) {
	return formatsOf(ctx, n.opts.Machine)
}

func formatsOf(ctx context.Context, state storage.Reader) (generation uint32, version storage.Index, err error) {
	e, err := state.Get(ctx, formatsKey)
	if errors.Is(err, storage.ErrNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	generation, err = parseFormats(e.Value)
	return generation, e.Version, err
}

// parseFormats reads the value of formatsKey; nil: there is none yet.
func parseFormats(text []byte) (uint32, error) {
	if text == nil {
		return 0, nil
	}
	g, err := strconv.ParseUint(string(text), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("reading the generation of stored formats: %w", err)
	}
	return uint32(g), nil
}

// CheckFormats returns why this build cannot go on with a state, nil if it can: the cluster writes formats that it does not
// read.
func CheckFormats(ctx context.Context, state storage.Reader) error {
	generation, _, err := formatsOf(ctx, state)
	if err == nil && generation > Formats {
		err = fmt.Errorf("the cluster writes stored formats of generation %d, and this version reads those up to %d: "+
			"run the version that ran here before, or a later one; an earlier one can only restore a snapshot from before the upgrade", generation, Formats)
	}
	return err
}

// canRead rejects a joiner of a build that does not read what the cluster writes.
func (n *Node) canRead(ctx context.Context, j Joiner) error {
	generation, _, err := n.clusterFormats(ctx)
	if err == nil && j.Formats < generation {
		err = RejectedError(fmt.Sprintf("node %q runs a version that reads stored formats up to generation %d, and the cluster writes %d: "+
			"install the version of the other members, or a later one", j.ID, j.Formats, generation))
	}
	return err
}

// allRead returns the newest generation that every member reads, as far as this node, the leader, knows.
func (n *Node) allRead() uint32 {
	reads := n.formats()
	for _, info := range n.Nodes() {
		if info.ID != n.opts.ID {
			reads = min(reads, info.Formats) // 0: one of an earlier build, or one that was not heard of
		}
	}
	return reads
}

// canRestore rejects a snapshot with formats that a member does not read. What the cluster writes all members read, also those
// that are away.
func (n *Node) canRestore(generation uint32) error {
	if reads := max(n.allRead(), n.ClusterFormats()); generation > reads {
		return RejectedError(fmt.Sprintf("the snapshot has stored formats of generation %d, and not every member of this cluster is known to read those later than %d: "+
			"install the version that made the snapshot, or a later one, on every node and start them, then restore it", generation, reads))
	}
	return nil
}

// FormatsAgreed reports whether the cluster writes everything that this build writes: no member is of an earlier one.
func (n *Node) FormatsAgreed() bool { return n.ClusterFormats() >= n.formats() }

// RaiseFormats has the cluster write what all of its members read, as leader.
func (n *Node) RaiseFormats() {
	if !n.registry.Joining.TryLock() {
		return // a node is joining
	}
	defer n.registry.Joining.Unlock()
	reads := n.allRead()
	generation, version, err := n.clusterFormats(n.ctx)
	if err == nil && generation < reads {
		_, err = n.Commit(n.ctx, storage.Batch{
			Reads: []storage.Read{{Key: formatsKey, Version: version}},
			Puts:  []storage.Put{{Key: formatsKey, Value: strconv.AppendUint(nil, uint64(reads), 10)}},
		})
		if err == nil {
			n.log.Info("every member reads newer formats: the cluster writes them from now on", "formats", reads)
		}
	}
	if err != nil && n.ctx.Err() == nil {
		n.log.Warn("raising the formats that the cluster writes", "err", err)
	}
}
