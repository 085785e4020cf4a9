package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// replicationCost measures what replication costs a primary and its clients: two clusters of one node run all the time,
// as processes, and the second has nothing to do until it follows. They share the machine's cores and disk, so that the
// rate falls by what the secondary needs, too; the processor time of the primary does not.
func (b *bench) replicationCost(s *scope) {
	primary := harness.NewCluster(s, 1, harness.Options{Plain: true})
	secondary := harness.NewCluster(s, 1, harness.Options{Plain: true})
	n := primary.Nodes[0]
	token := prepare(s, n)
	const name = "KV write, 1 KiB, one node, 64 clients, beside another cluster"
	without := b.writeCost(s, n, token, "off", name+" without replication", cost{})
	primary.EnablePrimary()
	b.writeCost(s, n, token, "alone", name+", replication enabled", without)
	harness.Replicate(primary, secondary, "bench")
	b.writeCost(s, n, token, "followed", name+" that follows", without)
	secondary.AwaitHead(primary)
}

// cost of a write.
type cost struct {
	rate float64
	cpu  time.Duration // of the node's process
}

// writeCost measures writes and adds their rows, beside what they were without replication.
func (b *bench) writeCost(s *scope, n *harness.Node, token, prefix, name string, without cost) cost {
	const rounds = 3
	warm := writes(addr(n), token, prefix+"-warm-up", 64)
	warm.Time = b.seconds / rounds
	b.load(s, warm)
	var all []outcome
	var used time.Duration
	requests := 0.0
	for i := range rounds {
		w := writes(addr(n), token, prefix, 64)
		w.Time, w.First = b.seconds/rounds, int64(i)*100_000_000
		before, begin := cpuTime(s, n.PID()), time.Now()
		o := b.load(s, w)
		used += cpuTime(s, n.PID()) - before
		requests += o.rate() * min(time.Since(begin), w.Time*6/5).Seconds() // with those of the warm-up
		all = append(all, o)
	}
	o := middle(all)
	out := cost{rate: o.rate(), cpu: time.Duration(float64(used) / requests)}
	b.addLoad(name, o, row{yardstick: without.rate, beside: "without"})
	b.add(row{
		name: name + ": processor time of the primary for each", value: float64(out.cpu.Nanoseconds()) / 1000, unit: " µs",
		yardstick: float64(without.cpu.Nanoseconds()) / 1000, beside: "without",
	})
	return out
}

// cpuTime returns the processor time that a process has used.
func cpuTime(s *scope, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	s.check(err)
	_, rest, _ := strings.Cut(string(text), ") ") // the name may contain anything
	var ticks int64
	for _, field := range strings.Fields(rest)[11:13] { // utime, stime
		n, err := strconv.ParseInt(field, 10, 64)
		s.check(err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
