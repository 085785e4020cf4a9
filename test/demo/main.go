// Command demo starts two clusters of three nodes on this machine, makes one the secondary of the other, writes secrets
// all the time and says what can be tried, until it is interrupted. Everything is in a temporary directory and gone at the
// end. "make demo-replication" runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := inStage(func(t *stage) { play(ctx, t) }); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// object is the body of a request.
type object = map[string]any

// play is the demonstration. "us" and "eu" are two datacenters.
func play(ctx context.Context, t *stage) {
	dir := t.TempDir()
	say("Starting two clusters of three nodes …")
	us := harness.NewCluster(t, 3, harness.Options{Prefix: "us"})
	eu := harness.NewCluster(t, 3, harness.Options{Prefix: "eu"})
	leader := us.Leader()
	for _, mount := range []string{"secret", "payments"} {
		leader.MustDo("POST", "/v1/sys/mounts/"+mount, object{"type": "kv", "options": object{"version": "2"}})
	}
	for i := range 50 {
		leader.MustDo("POST", fmt.Sprintf("/v1/payments/data/card-%d", i), object{"data": object{"number": i}})
	}
	leader.MustDo("POST", "/v1/secret/data/app", object{"data": object{"user": "ada", "password": "correct horse"}})
	say("Making eu a secondary of us …")
	harness.Replicate(us, eu, "eu")
	settings(t, us, filepath.Join(dir, "us.env"))
	settings(t, eu, filepath.Join(dir, "eu.env"))
	guide(us, eu, dir)

	var actors sync.WaitGroup
	var written atomic.Int64
	actors.Go(func() { write(ctx, us, &written) })
	actors.Go(func() { revive(ctx, us, eu) })
	actors.Go(func() { tell(ctx, eu, &written) })
	actors.Wait()
	say("\nStopping everything …")
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// settings writes a file for a shell to source.
func settings(t *stage, c *harness.Cluster, name string) {
	text := fmt.Sprintf("export COFFER_ADDR=%s\nexport COFFER_CACERT=%s\nexport COFFER_TOKEN=%s\n", c.Leader().URL, c.CAFile, c.RootToken)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatalf("%v", err)
	}
}

// guide says what there is and what can be tried.
func guide(us, eu *harness.Cluster, dir string) {
	for _, c := range []*harness.Cluster{us, eu} {
		say("")
		for _, n := range c.Nodes {
			say("  %s  %s  process %d  log %s", n.ID, n.URL, n.PID(), n.LogFile)
		}
	}
	say(`
In another terminal, in this directory:

  PATH=$PWD/bin:$PATH; cd %[1]s
  . ./us.env                           # talk to us, the primary: address, CA and token
  . ./eu.env                           # talk to eu, its secondary

  # watch, from either side
  coffer replication status -watch

  # read on eu what was written in us, and write through eu
  . ./eu.env; coffer kv get secret/app
  coffer kv put secret/app user=grace; coffer kv get secret/app
  . ./us.env; coffer kv get secret/app

  # kill a node of either cluster: it is started again after five seconds
  kill -9 %[2]d

  # keep payments/ from eu, then let it have it again
  . ./us.env; coffer replication primary filter set -mode=deny eu payments/
  . ./eu.env; coffer kv get payments/card-1
  . ./us.env; coffer replication primary filter delete eu

  # switch over: eu becomes the primary, us its secondary
  . ./us.env; coffer replication primary demote
  . ./eu.env; coffer replication secondary promote
  coffer replication primary secondary-token -field=wrapping_token us >us.token
  . ./us.env; coffer replication secondary update-primary -primary-ca-file=%[3]s - <us.token

^C ends it and removes everything.
`, dir, us.Standbys()[0].PID(), eu.CAFile)
}

// write writes a secret again and again, to whichever node of us takes it.
func write(ctx context.Context, us *harness.Cluster, written *atomic.Int64) {
	for i := 0; wait(ctx, 50*time.Millisecond); i++ {
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		a, err := us.Nodes[i%3].Do(limit, "POST", fmt.Sprintf("/v1/secret/data/counter-%d", i%100), us.RootToken, object{"data": object{"value": i}})
		cancel()
		if err == nil && a.Status < 300 {
			written.Add(1)
		}
	}
}

// revive starts nodes again that somebody has killed.
func revive(ctx context.Context, clusters ...*harness.Cluster) {
	for wait(ctx, time.Second) {
		for _, c := range clusters {
			for _, n := range c.Nodes {
				if n.Running() || !wait(ctx, 5*time.Second) {
					continue
				}
				if err := n.TryStart(); err != nil {
					say("%s could not be started: %v; see %s", n.ID, err, n.LogFile)
					continue
				}
				say("%s  %s was dead and is process %d now", time.Now().Format(time.TimeOnly), n.ID, n.PID())
			}
		}
	}
}

// tell says how it goes.
func tell(ctx context.Context, eu *harness.Cluster, written *atomic.Int64) {
	for wait(ctx, 10*time.Second) {
		state := "does not answer"
		for _, n := range eu.Nodes {
			if r, err := n.Replication(); n.Running() && err == nil {
				state = fmt.Sprintf("is %s, %s, at %s", r.Mode, r.Phase, r.Position)
				break
			}
		}
		say("%s  %d secrets written; eu %s", time.Now().Format(time.TimeOnly), written.Load(), state)
	}
}

// wait reports whether it waited for so long before the end.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
