package traffic

import (
	"context"
	"fmt"

	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/storage"
)

// UpstreamKey is where a secondary keeps what it has for its connection. Local to the cluster.
const UpstreamKey storage.Key = "l/replication/upstream"

// ReadUpstream returns what a secondary has for its connection; nil if there is nothing.
func ReadUpstream(ctx context.Context, from entry.Getter) (*Upstream, error) {
	var up Upstream
	switch found, err := entry.Read(ctx, from, UpstreamKey, &up); {
	case err != nil:
		return nil, err
	case found.Key == "":
		return nil, nil
	case up.Format != 1:
		return nil, fmt.Errorf("the upstream of replication has format %d, this version knows 1", up.Format)
	}
	return &up, nil
}
