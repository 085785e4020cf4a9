package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/seal"
)

// Nodes may all have the same retry_join, which names all of them. The first one that is initialized founds the cluster,
// and the others join it. Before a node founds a cluster it says that it is about to, and then asks the others: so of two
// that are initialized at the same moment and reach each other, at least one sees the other, and gives way.

// foundingTimeout is how long a node that is to be initialized waits for the others' answers.
const foundingTimeout = 3 * time.Second

// announceFounding says that this node is about to found a cluster, and asks the nodes that it would join whether they have one, or
// are about to. Call done when the cluster is founded, or not.
func (n *Node) announceFounding(ctx context.Context) (done func(), err error) {
	nonce := seal.NewNonce()
	n.founding.Store(&nonce)
	done = func() { n.founding.Store(nil) }
	ctx, cancel := context.WithTimeout(ctx, foundingTimeout)
	defer cancel()
	targets := join.Each(ctx, n.opts.RetryJoin)
	failures := make([]error, len(targets))
	var asking sync.WaitGroup
	for i, target := range targets {
		asking.Go(func() { failures[i] = n.askFounded(ctx, target, nonce) })
	}
	asking.Wait()
	for _, err := range failures {
		if err != nil {
			done()
			return nil, err
		}
	}
	return done, nil
}

// askFounded returns an error if the node at target has a cluster, or is about to found one. One that cannot be asked
// has not said so.
func (n *Node) askFounded(ctx context.Context, target join.Target, own string) error {
	status, err := target.Status(ctx)
	switch {
	case err != nil:
		n.log.Warn("founding a cluster without an answer of this node: it must not be in one", "node", target.LeaderAPIAddr, "err", err)
	case status.Initializing == own: // this node
	case status.Initializing != "":
		return &engines.Error{Kind: engines.KindUnavailable, Detail: fmt.Sprintf(
			"the node at %s is being initialized, too: initialize one node only, the others join it", target.LeaderAPIAddr)}
	case status.Initialized:
		return engines.Invalid("the node at %s is in a cluster, which this node joins: unseal the nodes; to found another cluster, remove retry_join", target.LeaderAPIAddr)
	}
	return nil
}
