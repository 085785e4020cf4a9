// Package stages divides the processor time and the allocations of a node's requests among the stages of a request, by profiles that
// the node takes of itself meanwhile: sys/pprof/profile and sys/pprof/allocs.
package stages

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

const rest = "rest of the process: scheduler, timers"

// prefixes are of functions, without "github.com/coffer-project/coffer/". Of the functions on a stack the innermost that is here decides, of its
// prefixes the longest. "" passes the decision on to the caller.
var prefixes = []struct{ prefix, stage string }{
	{"net/http.", "net/http: request read, response written, connection"},
	{"cmd/coffer/node.(*listener)", "listener and HTTP edge"},
	{"server/httpapi.", "listener and HTTP edge"},
	{"server/admission.", "listener and HTTP edge"},
	{"server/admission.(*conn)", ""}, // of net/http
	{"server/statetoken.", "listener and HTTP edge"},
	{"github.com/gorilla/mux.", "listener and HTTP edge"},
	{"server/metrics.", "metrics"},
	{"github.com/prometheus/", "metrics"},
	{"server/pipeline.", "pipeline"},
	{"server/namespace.", "namespace, mount, route"},
	{"server/mount.", "namespace, mount, route"},
	{"server/mount.(*gated)", ""}, // of the storage below an engine
	{"engines.(*Router)", "namespace, mount, route"},
	{"engines.(*Route)", "namespace, mount, route"},
	{"server/quota.", "namespace, mount, route"},
	{"server/token.", "token, rights, policies"},
	{"server/token/", "token, rights, policies"},
	{"server/rights.", "token, rights, policies"},
	{"server/policy.", "token, rights, policies"},
	{"server/identity.", "token, rights, policies"},
	{"server/audit.", "audit"},
	{"server/audit/", "audit"},
	{"engines/", "engine"},
	{"server/system.", "engine"},
	{"engines/input", "input and output encoded"},
	{"encoding/json.", "input and output encoded"},
	{"storage.", "transactions, views, encryption"},
	{"storage/barrier.", "transactions, views, encryption"},
	{"server/fence.", "transactions, views, encryption"},
	{"cluster", "consensus"},
	{"github.com/hashicorp/raft.", "consensus"},
	{"cluster/raftlog", "Raft log"},
	{"storage/fsm.", "state machine"},
	{"storage/bolt", "state file: records found, folds"},
	{"go.etcd.io/bbolt.", "state file: records found, folds"},
	{"github.com/hashicorp/raft-boltdb", "Raft log"},
	{"runtime.gcBgMarkWorker", "garbage collector"},
	{"runtime.gcAssistAlloc", "garbage collector"},
	{"runtime.bgsweep", "garbage collector"},
	{"runtime.bgscavenge", "garbage collector"},
}

// Cost is what one request costs in one stage.
type Cost struct {
	CPU         time.Duration
	Allocations float64
}

// Costs are those of a kind of request, by stage.
type Costs map[string]Cost

// Of profiles a node while the load runs for the time that it says, and divides by its requests.
func Of(b *run.Bench, s *run.Scope, n *harness.Node, w run.Work) Costs {
	seconds := max(1, int(w.Time.Seconds()))
	w.Time = time.Duration(seconds) * time.Second
	before := fetch(s, n, "allocs")
	type fetched struct {
		answer harness.Answer
		err    error
	}
	taken := make(chan fetched, 1)
	go func() {
		a, err := n.DoAsRoot("GET", fmt.Sprintf("/v1/sys/pprof/profile?seconds=%d", seconds), nil)
		taken <- fetched{a, err}
	}()
	o := b.Load(s, w)
	f := <-taken
	s.Check(f.err)
	cpu, err := profile.Parse(bytes.NewReader(f.answer.Body))
	s.Check(err)
	after := fetch(s, n, "allocs")
	before.Scale(-1)
	allocs, err := profile.Merge([]*profile.Profile{before, after})
	s.Check(err)

	costs := Costs{}
	requests := o.Rate() * float64(cpu.DurationNanos) / 1e9 // that the profile of the processor covers, which begins with the warm-up
	add(costs, cpu, index(s, cpu, "cpu"), func(c *Cost, v int64) { c.CPU += time.Duration(float64(v) / requests) })
	add(costs, allocs, index(s, allocs, "alloc_objects"), func(c *Cost, v int64) { c.Allocations += float64(v) / float64(o.All) })
	return costs
}

func fetch(s *run.Scope, n *harness.Node, name string) *profile.Profile {
	p, err := profile.Parse(bytes.NewReader(n.MustDo("GET", "/v1/sys/pprof/"+name, nil).Body))
	s.Check(err)
	return p
}

func index(s *run.Scope, p *profile.Profile, kind string) int {
	i := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == kind })
	if i < 0 {
		s.Fatalf("the profile has no %s", kind)
	}
	return i
}

func add(costs Costs, p *profile.Profile, index int, to func(*Cost, int64)) {
	for _, sample := range p.Sample {
		stage := stageOf(sample)
		c := costs[stage]
		to(&c, sample.Value[index])
		costs[stage] = c
	}
}

func stageOf(sample *profile.Sample) string {
	for _, l := range sample.Location { // from the innermost
		for _, line := range l.Line {
			if stage := stageOfFunction(line.Function.Name); stage != "" {
				return stage
			}
		}
	}
	return rest
}

func stageOfFunction(name string) string {
	name = strings.TrimPrefix(name, "github.com/coffer-project/coffer/")
	stage, longest := "", 0
	for _, p := range prefixes {
		if len(p.prefix) > longest && strings.HasPrefix(name, p.prefix) {
			stage, longest = p.stage, len(p.prefix)
		}
	}
	return stage
}

// Table is the costs of several kinds of requests, side by side, in the order of the first use of a stage above.
func Table(names []string, all []Costs) string {
	var out strings.Builder
	out.WriteString("| stage |")
	for _, n := range names {
		fmt.Fprintf(&out, " %s | allocations |", n)
	}
	out.WriteString("\n|---|" + strings.Repeat("---:|---:|", len(names)) + "\n")
	seen := map[string]bool{"": true}
	sums := make([]Cost, len(all))
	var order []string
	for _, p := range prefixes {
		if !seen[p.stage] {
			seen[p.stage] = true
			order = append(order, p.stage)
		}
	}
	for _, stage := range append(order, rest) {
		fmt.Fprintf(&out, "| %s |", stage)
		for i, costs := range all {
			c := costs[stage]
			sums[i].CPU += c.CPU
			sums[i].Allocations += c.Allocations
			out.WriteString(cells(c))
		}
		out.WriteString("\n")
	}
	out.WriteString("| all |")
	for _, c := range sums {
		out.WriteString(cells(c))
	}
	out.WriteString("\n")
	return out.String()
}

func cells(c Cost) string {
	return fmt.Sprintf(" %.1f µs | %.1f |", float64(c.CPU.Nanoseconds())/1000, max(0, c.Allocations))
}
