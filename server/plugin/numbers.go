package plugin

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/openbao/openbao/sdk/v2/plugin/pb"

	"github.com/coffer-project/coffer/engines"
)

// maxCounted is how many plugins have metrics of their own. Those of all further ones are those of one that is called "other".
const maxCounted = 100

// counts are what metrics tell of a plugin.
type counts struct {
	processes                  int
	starts, failures, requests int
	seconds                    float64 // that requests took
}

// numbers counts by plugin. Safe for concurrent use.
type numbers struct {
	mu      sync.Mutex
	plugins map[string]*counts
}

// add changes the counts of a plugin.
func (n *numbers) add(ref Ref, change func(*counts)) {
	name := ref.kind() + "/" + ref.Name
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.plugins[name] == nil && len(n.plugins) >= maxCounted {
		name = "other"
	}
	if n.plugins[name] == nil {
		n.plugins[name] = new(counts)
	}
	change(n.plugins[name])
}

// Numbers returns metrics, by name.
func (h *Host) Numbers() map[string]float64 {
	h.numbers.mu.Lock()
	defer h.numbers.mu.Unlock()
	out := map[string]float64{}
	for name, c := range h.numbers.plugins {
		label := "{plugin=" + strconv.Quote(name) + "}"
		out["plugin_processes"+label] = float64(c.processes)
		out["plugin_starts_total"+label] = float64(c.starts)
		out["plugin_failures_total"+label] = float64(c.failures)
		out["plugin_requests_total"+label] = float64(c.requests)
		out["plugin_request_seconds_total"+label] = c.seconds
	}
	return out
}

// send has the plugin handle a request, and counts it.
func (e *engine) send(ctx context.Context, b *opened, req *pb.Request) (*pb.Response, error) {
	began := time.Now()
	resp, err := b.Handle(ctx, req)
	failed, ok := errors.AsType[*engines.Error](err)
	e.host.numbers.add(e.ref, func(c *counts) {
		c.requests++
		c.seconds += time.Since(began).Seconds()
		if ok && failed.Kind == engines.KindUnavailable {
			c.failures++
		}
	})
	return resp, err
}
