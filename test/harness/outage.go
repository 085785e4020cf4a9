package harness

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Outage measures how long no write is acknowledged. Every few milliseconds a new client begins a write at each node and
// waits for its response as long as it takes: a client that a node keeps waiting shows in Longest, and hides nothing
// from Gap, because the next one has begun.
type Outage struct {
	token, path, body string
	done              chan struct{} // closed by Stop
	wg                sync.WaitGroup

	mu      sync.Mutex
	acked   []time.Time
	longest time.Duration
}

const (
	outageInterval = 20 * time.Millisecond
	outageClients  = 100 // at once, at one node
	outageReaders  = 2   // at each node
	outagePause    = 2 * time.Millisecond
	outageTimeout  = 30 * time.Second
)

// NewOutage measures with writes of body to path. Call Stop.
func NewOutage(token, path, body string) *Outage {
	return &Outage{token: token, path: path, body: body, done: make(chan struct{})}
}

// Write begins to write through each of the nodes.
func (o *Outage) Write(nodes []*Node) {
	for _, n := range nodes {
		slots := make(chan struct{}, outageClients)
		o.wg.Go(func() {
			tick := time.NewTicker(outageInterval)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-o.done:
					return
				}
				select {
				case slots <- struct{}{}:
					o.wg.Go(func() { defer func() { <-slots }(); o.write(n) })
				default:
				}
			}
		})
	}
}

func (o *Outage) write(n *Node) {
	ctx, cancel := context.WithTimeout(context.Background(), outageTimeout)
	defer cancel()
	begun := time.Now()
	a, err := n.Do(ctx, "POST", o.path, o.token, []byte(o.body))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.longest = max(o.longest, time.Since(begun))
	if err == nil && a.Status < 300 {
		o.acked = append(o.acked, time.Now())
	}
}

// AwaitAck waits until a write is acknowledged at or after a time.
func (o *Outage) AwaitAck(t TB, after time.Time) {
	t.Helper()
	Await(t, "an acknowledged write", 90*time.Second, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.acked) == 0 || o.acked[len(o.acked)-1].Before(after) {
			return errors.New("there is none")
		}
		return nil
	})
}

// Read adds clients that read path through each of the nodes, linearizable, one read after the other.
func (o *Outage) Read(nodes []*Node) {
	for _, n := range nodes {
		for range outageReaders {
			o.wg.Go(func() {
				for {
					select {
					case <-o.done:
						return
					case <-time.After(outagePause):
					}
					ctx, cancel := context.WithTimeout(context.Background(), outageTimeout)
					_, _ = n.Do(ctx, "GET", o.path, o.token, nil, "X-Vault-Consistency", "linearizable")
					cancel()
				}
			})
		}
	}
}

// Stop ends the writes and waits for those under way.
func (o *Outage) Stop() {
	close(o.done)
	o.wg.Wait()
}

// Gap returns the longest time without an acknowledged write that begins in [from, to). Call it after a later write was
// acknowledged.
func (o *Outage) Gap(from, to time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	var longest time.Duration
	last := from
	for _, at := range o.acked {
		if at.Before(from) {
			continue
		}
		if longest = max(longest, at.Sub(last)); !at.Before(to) {
			break
		}
		last = at
	}
	return longest
}

// Longest returns how long the slowest request took.
func (o *Outage) Longest() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.longest
}

// Quantile returns a quantile of durations, 0 if there are none. It sorts them.
func Quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}
