package servers

import (
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// ReplicationCost measures what replication costs a primary and its clients: two clusters of one node run all the time,
// as processes, and the second has nothing to do until it follows. They share the machine's cores and disk, so that the
// rate falls by what the secondary needs, too; the processor time of the primary does not.
func ReplicationCost(b *run.Bench, s *run.Scope) {
	primary := harness.NewCluster(s, 1, harness.Options{Plain: true})
	secondary := harness.NewCluster(s, 1, harness.Options{Plain: true})
	n := primary.Nodes[0]
	token := prepare(s, n)
	const name = "KV write, 1 KiB, one node, 64 clients, beside another cluster"
	without := writeCost(b, s, n, token, "off", name+" without replication", cost{})
	primary.EnablePrimary()
	writeCost(b, s, n, token, "alone", name+", replication enabled", without)
	harness.Replicate(primary, secondary, "bench")
	writeCost(b, s, n, token, "followed", name+" that follows", without)
	secondary.AwaitHead(primary)
}

// cost of a write.
type cost struct {
	rate float64
	cpu  time.Duration // of the node's process
}

// writeCost measures writes and adds their rows, beside what they were without replication.
func writeCost(b *run.Bench, s *run.Scope, n *harness.Node, token, prefix, name string, without cost) cost {
	const rounds = 3
	warm := writes(addr(n), token, prefix+"-warm-up", 64)
	warm.Time = b.Seconds / rounds
	b.Load(s, warm)
	var all []run.Outcome
	var used time.Duration
	requests := int64(0)
	for i := range rounds {
		w := writes(addr(n), token, prefix, 64)
		w.Time, w.First = b.Seconds/rounds, int64(i)*100_000_000
		before := cpuTime(s, n.PID())
		o := b.Load(s, w)
		used += cpuTime(s, n.PID()) - before
		requests += o.All
		all = append(all, o)
	}
	o := run.Middle(all)
	out := cost{rate: o.Rate(), cpu: used / time.Duration(requests)}
	b.AddLoad(name, o, run.Row{Yardstick: without.rate, Beside: "without"})
	b.Add(run.Row{
		Name: name + ": processor time of the primary for each", Value: float64(out.cpu.Nanoseconds()) / 1000, Unit: " µs",
		Yardstick: float64(without.cpu.Nanoseconds()) / 1000, Beside: "without",
	})
	return out
}
