package servers

import (
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/bench/stages"
	"github.com/coffer-project/coffer/test/harness"
)

// dayKeys is how many secrets of 1 KiB Day reads and writes.
const dayKeys = 10_000

// dayAnswer is as long as what Coffer answers to a read of writeBody.
var dayAnswer = answerOf(writeBody)

// Day measures one node as a user meets it: 64 connections, 10,000 secrets of 1 KiB, the token of a login, whose default
// policy names its entity. The rows say the rate, and the processor time of the server for each request, both beside the bare
// server. The bare server answers reads with as many bytes.
func Day(b *run.Bench, s *run.Scope) {
	bare, barePID := b.StartBare(s, dayAnswer)
	n := harness.NewCluster(s, 1, harness.Options{Plain: true}).Nodes[0]
	prepare(s, n)
	n.MustDo("POST", "/v1/sys/auth/userpass", map[string]any{"type": "userpass"})
	n.MustDo("POST", "/v1/auth/userpass/users/ana", map[string]any{"password": password, "token_policies": "bench"})
	token := loggedIn(s, n)
	at := func(method, path, body string) run.Work {
		return run.Work{Addr: addr(n), Method: method, Path: path, Body: body, Conns: readConns, Numbers: dayKeys, Token: token}
	}
	read, write := at("GET", "/v1/bench/data/day/k%d", ""), at("POST", "/v1/bench/data/day/k%d", writeBody)
	fill := write
	fill.Count = dayKeys
	b.Load(s, fill)
	var names []string
	var costs []stages.Costs
	for _, rows := range []struct {
		yardstick string
		of        run.Work
		beside    []row
	}{
		{"GET of as many bytes", read, []row{
			{"sys/health", at("GET", "/v1/sys/health", ""), 0},
			{"token lookup-self", at("GET", "/v1/auth/token/lookup-self", ""), lookupTarget},
			{"KV read", read, readTarget},
		}},
		{"group commit", write, []row{
			{"KV write", write, writeTargets[readConns]},
			{"token create", at("POST", "/v1/auth/token/create", `{"ttl":"1h"}`), createTarget},
		}},
	} {
		yardstick := rows.of
		yardstick.Addr, yardstick.Token = bare, dummyToken
		all := []served{{work: yardstick, pid: barePID}}
		for _, r := range rows.beside {
			all = append(all, served{work: r.work, pid: n.PID()})
		}
		byTurns(b, s, all)
		rate, cpu := run.Middle(all[0].outcomes), all[0].each()
		b.AddLoad("a day: bare net/http, "+rows.yardstick, rate, run.Row{})
		b.Add(run.Row{Name: "a day: bare net/http, " + rows.yardstick + ": processor time of the server for each", Value: cpu, Unit: " µs"})
		for i, r := range rows.beside {
			own := &all[i+1]
			b.AddLoad("a day: "+r.name, run.Middle(own.outcomes), run.Row{Yardstick: rate.Rate(), Beside: "bare", Target: r.target})
			b.Add(run.Row{
				Name: "a day: " + r.name + ": processor time of the server for each", Value: own.each(), Unit: " µs",
				Yardstick: cpu, Beside: "bare",
			})
			w := r.work
			w.Time = b.Seconds
			names, costs = append(names, r.name), append(costs, stages.Of(b, s, n, w))
		}
	}
	b.Stages = stages.Table(names, costs)
}

// row is a name and what is measured for it.
type row struct {
	name   string
	work   run.Work
	target float64 // of the rate beside the bare server's; 0: none
}

// served is work of a server's process, and what came of it.
type served struct {
	work     run.Work
	pid      int
	outcomes []run.Outcome
	cpu      time.Duration
	requests int64
}

// each is the processor time of the server for each request, in microseconds.
func (v *served) each() float64 { return float64(v.cpu.Nanoseconds()) / 1000 / float64(v.requests) }

// byTurns runs the loads in turn, a few times, so that what else the machine does falls on all.
func byTurns(b *run.Bench, s *run.Scope, all []served) {
	rounds := 3
	if b.Smoke {
		rounds = 1
	}
	for range rounds {
		for i := range all {
			v := &all[i]
			w := v.work
			w.Time = b.Seconds / time.Duration(rounds)
			before := cpuTime(s, v.pid)
			o := b.Load(s, w)
			v.cpu += cpuTime(s, v.pid) - before
			v.requests += o.All
			v.outcomes = append(v.outcomes, o)
		}
	}
}
