package index

import "sync/atomic"

// Counts are counters for metrics.
type Counts struct {
	Written, Deleted, Failed, Conflicts, Drifted, Overwritten, Redeploys, RedeploysFailed atomic.Int64
}
