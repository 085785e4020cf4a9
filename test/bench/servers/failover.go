package servers

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// Failover kills the leader while a writer is busy and takes the time to the first accepted write.
func Failover(b *run.Bench, s *run.Scope) {
	c := harness.NewCluster(s, 3, harness.Options{Plain: true})
	token := prepare(s, c.Leader())
	var took []time.Duration
	for i := range b.Kills {
		leader := c.Leader()
		var survivors []*harness.Node
		for _, n := range c.Nodes {
			if n != leader {
				survivors = append(survivors, n)
			}
		}
		begin := time.Now()
		leader.Kill9()
		accepted := make(chan time.Time, len(survivors))
		for _, n := range survivors {
			go func() { accepted <- firstWrite(n, token, fmt.Sprintf("failover-%d-%s", i, n.ID)) }()
		}
		took = append(took, (<-accepted).Sub(begin))
		<-accepted
		leader.Start()
		c.WaitServing()
		c.WaitVoters(3)
	}
	slices.Sort(took)
	b.Add(run.Row{Name: fmt.Sprintf("failover: first write after kill -9 of the leader, median of %d", len(took)), Value: took[len(took)/2].Seconds(), Unit: " s", Target: 2, Below: true})
	b.Add(run.Row{Name: "failover, worst", Value: took[len(took)-1].Seconds(), Unit: " s", Target: 4, Below: true})
	silentLeaders(b, s)
}

// silentLeaders takes the longest time without an acknowledged write when the leader falls silent or steps down, while
// linearizable reads are under way at all nodes.
func silentLeaders(b *run.Bench, s *run.Scope) {
	c := harness.NewCluster(s, 3, harness.Options{Plain: true, Network: true})
	token := prepare(s, c.Leader())
	for _, fault := range []struct {
		name        string
		times       int
		inflict     func(leader *harness.Node) (repair func())
		median, p99 float64 // targets
	}{
		{"SIGSTOP of the leader", b.Kills, func(l *harness.Node) func() { l.Pause(); return l.Resume }, 2, 3},
		{"the leader is cut off", b.Kills, func(l *harness.Node) func() {
			c.Network.Isolate(l.ID, "n1", "n2", "n3")
			return c.Network.Heal
		}, 2, 3},
		{"step-down", 5 * b.Kills, func(l *harness.Node) func() {
			l.MustDo("PUT", "/v1/sys/step-down", nil)
			return func() {}
		}, 0.3, 0.3},
	} {
		var took []time.Duration
		for range fault.times {
			leader := c.Leader()
			outage := harness.NewOutage(token, "/v1/bench/data/outage", secretBody)
			outage.Write(slices.DeleteFunc(slices.Clone(c.Nodes), func(n *harness.Node) bool { return n == leader }))
			outage.Read(c.Nodes)
			outage.AwaitAck(s, time.Now())
			begin := time.Now()
			repair := fault.inflict(leader)
			outage.AwaitAck(s, time.Now().Add(time.Second))
			repair()
			c.WaitServing()
			c.WaitVoters(3)
			took = append(took, outage.Gap(begin, begin.Add(time.Second)))
			outage.Stop()
		}
		name := "no acknowledged write under linearizable reads, " + fault.name
		b.Add(run.Row{Name: fmt.Sprintf("%s, median of %d", name, len(took)), Value: harness.Quantile(took, 0.5).Seconds(), Unit: " s", Target: fault.median, Below: true})
		b.Add(run.Row{Name: name + ", p99", Value: harness.Quantile(took, 0.99).Seconds(), Unit: " s", Target: fault.p99, Below: true})
	}
}

func firstWrite(n *harness.Node, token, key string) time.Time {
	client := &http.Client{Timeout: 5 * time.Second}
	for {
		req, err := http.NewRequest(http.MethodPost, n.URL+"/v1/bench/data/"+key, strings.NewReader(secretBody))
		if err != nil {
			return time.Time{}
		}
		req.Header.Set("X-Vault-Token", token)
		res, err := client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return time.Now()
			}
		}
		<-time.After(5 * time.Millisecond)
	}
}
