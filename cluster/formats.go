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
// more. So members of two builds run together, and nothing that the older one does not read is written before it is gone.
const (
	formatsCheckpoints = 1 // entries of the log by which members compare their states

	// Formats is the newest generation that this build reads.
	Formats = formatsCheckpoints
)

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
	g, err := strconv.ParseUint(string(e.Value), 10, 32)
	return uint32(g), e.Version, err
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

// raiseFormats has the cluster write what all of its members read, as leader.
func (n *Node) raiseFormats() {
	if !n.registry.joining.TryLock() {
		return // a node is joining
	}
	defer n.registry.joining.Unlock()
	reads := n.formats()
	for _, info := range n.Nodes() {
		if info.ID != n.opts.ID {
			reads = min(reads, info.Formats) // 0: one of an earlier build, or one that was not heard of
		}
	}
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
