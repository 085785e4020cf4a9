package quota

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// meter knows how many bytes are stored in a quota's scope: what was measured last, and what was added since. What was
// overwritten or removed since then is not taken off before the next measurement, so that it never says too little.
type meter struct {
	mu    sync.Mutex
	bytes int64
	at    time.Time // of the last measurement; zero: none yet
	marks int64     // bytes that small writes have added beyond the limit
}

const (
	// measureInterval is how long a full scope is not measured again.
	measureInterval = time.Second

	// markBytes is how much a write may add although the limit is reached: enough to mark a version of a secret as deleted.
	// All such writes together may add a sixteenth of the limit, at least minMarks.
	markBytes = 64
	minMarks  = 4 << 10
)

// mark reports whether a write beyond the limit may happen because it is small, and counts it. m.mu is held.
func (m *meter) mark(growth, limit int64) bool {
	if growth > markBytes || m.marks+growth > max(limit/16, minMarks) {
		return false
	}
	m.marks += growth
	return true
}

// Storage says whether a write that makes what is stored grow by so many bytes may happen: nil, an engines.Error of
// KindLimited, or an error of reading the quotas, of grown or of measure. describe is only called if there are storage quotas, and
// the others if one concerns the request: grown tells the bytes, measure how many are stored in a scope.
func (q *Quotas) Storage(ctx context.Context, describe func() Request, grown func(context.Context) (int64, error), measure func(context.Context, Scope) (int64, error)) error {
	t, err := q.current(ctx)
	if err != nil || len(t.storage.all) == 0 {
		return err
	}
	r := describe()
	found := t.storage.find(r, r.NamespacePath+r.Path)
	if found == nil {
		return nil
	}
	growth, err := grown(ctx)
	if err != nil || growth <= 0 {
		return err
	}
	m := found.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.at.IsZero() || m.bytes+growth > found.MaxBytes && now.Sub(m.at) >= measureInterval {
		n, err := measure(ctx, found.scope(r))
		if err != nil {
			return fmt.Errorf("measuring what is stored: %w", err)
		}
		m.bytes, m.at = n, now
		if n+growth <= found.MaxBytes {
			m.marks = 0
		}
	}
	if m.bytes+growth <= found.MaxBytes || m.mark(growth, found.MaxBytes) {
		m.bytes += growth
		return nil
	}
	found.violations.Add(1)
	q.storageViolations.Add(1)
	limit := limited(r.Path, "storage")
	limit.Detail += fmt.Sprintf(": about %d of %d bytes are used; delete something, or have the quota raised", m.bytes, found.MaxBytes)
	limit.Header = http.Header{"Retry-After": {wholeSeconds(measureInterval)}}
	return limit
}
