package servers

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

// DevServer takes the time that a dev server needs until it is ready, and its memory.
func DevServer(b *run.Bench, s *run.Scope) {
	binary := harness.Binary(s)
	var took []time.Duration
	var resident float64
	for range 3 {
		cmd := exec.Command(binary, "server", "-dev", "-dev-listen-address=127.0.0.1:0", "-dev-no-store-token")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StderrPipe()
		s.Check(err)
		begin := time.Now()
		s.Check(cmd.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "coffer: ready at") {
		}
		took = append(took, time.Since(begin))
		resident = max(resident, residentMiB(s, cmd.Process.Pid))
		_ = cmd.Process.Signal(syscall.SIGTERM)
		go func() { _, _ = io.Copy(io.Discard, out) }()
		_ = cmd.Wait()
	}
	slices.Sort(took)
	b.Add(run.Row{Name: "dev server, start to ready, median of 3", Value: took[1].Seconds(), Unit: " s", Target: 2, Below: true})
	b.Add(run.Row{Name: "dev server, resident memory", Value: resident, Unit: " MiB", Target: 80, Below: true})
}

// Restart takes the time that a node with many secrets needs to start, and its memory afterwards.
func Restart(b *run.Bench, s *run.Scope) {
	c := harness.NewCluster(s, 1, harness.Options{Plain: true, ReadyIn: 5 * time.Minute})
	n := c.Nodes[0]
	token := prepare(s, n)
	b.Load(s, run.Work{Addr: addr(n), Method: "POST", Path: "/v1/bench/data/r/%d", Body: secretBody, Conns: 64, Count: int64(b.Secrets), Token: token})
	n.Stop()
	begin := time.Now()
	n.Start()
	n.WaitHealth(200)
	took := time.Since(begin)
	b.Add(run.Row{Name: fmt.Sprintf("restart to active and unsealed with %d secrets", b.Secrets), Value: took.Seconds(), Unit: " s", Target: 3, Below: true})
	b.Add(run.Row{Name: "resident memory afterwards", Value: residentMiB(s, n.PID()), Unit: " MiB", Target: 500, Below: true})
}
