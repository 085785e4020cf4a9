// Package run is what the sections of the benchmarks share: Bench, which collects the rows of the table; the load
// generator and the bare server, which run in processes of their own; ways to measure calls and the disk; and Scope,
// which ends a section at its first error and cleans up after it. The sections are in packages parts and servers.
package run

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Options of a run.
type Options struct {
	Smoke   bool          // everything briefly
	Seconds time.Duration // of each measurement
	Secrets int           // in the restart measurement
	Leases  int           // in the measurement of leases, and as many tokens
	Scale   int           // how many of a kind, in the rows of scale
	Kills   int           // of leaders, in the failover measurement
	Peer    string        // program of another server of the family, or ""
}

// Bench collects rows. It is for one goroutine at a time.
type Bench struct {
	Options
	rows      []Row
	Stages    string  // a table of its own: what a request costs in each stage
	FsyncRate float64 // the last raw rate of the disk
}

// Load runs the load generator in a process of its own.
func (b *Bench) Load(s *Scope, w Work) Outcome {
	if w.Time == 0 {
		w.Time = b.Seconds
	}
	self, err := os.Executable()
	s.Check(err)
	in, err := json.Marshal(w)
	s.Check(err)
	cmd := exec.Command(self, "load")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), os.Stderr
	text, err := cmd.Output()
	s.Check(err)
	var out Outcome
	s.Check(json.Unmarshal(text, &out))
	if out.Errors > 0 {
		s.Fatalf("%s %s: %d of %d requests failed, first with %s", w.Method, w.Path, out.Errors, out.Requests, out.Sample)
	}
	return out
}

// StartBare starts the yardstick server and returns its address and process id.
func (b *Bench) StartBare(s *Scope, answer string) (addr string, pid int) {
	return b.StartServer(s, answer, "bare", "-dir="+s.TempDir())
}

// StartServer starts a server that is this program, and returns its address and process id.
func (b *Bench) StartServer(s *Scope, input string, args ...string) (addr string, pid int) {
	self, err := os.Executable()
	s.Check(err)
	cmd := exec.Command(self, args...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	s.Check(err)
	s.Check(cmd.Start())
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	s.Check(err)
	return strings.TrimSpace(line), cmd.Process.Pid
}

// Versus runs two loads in turn, a few times, so that what else the machine does falls on both. It returns the
// median of each.
func (b *Bench) Versus(s *Scope, bare, own Work) (yardstick, result Outcome) {
	rounds := 3
	if b.Smoke {
		rounds = 1
	}
	var yardsticks, results []Outcome
	for i := range rounds {
		bare.Time, own.Time = b.Seconds/time.Duration(rounds), b.Seconds/time.Duration(rounds)
		own.First = int64(i) * 100_000_000 // other keys than the round before
		yardsticks = append(yardsticks, b.Load(s, bare))
		results = append(results, b.Load(s, own))
	}
	return Middle(yardsticks), Middle(results)
}

// Middle returns the outcome with the median rate. It sorts them.
func Middle(all []Outcome) Outcome {
	slices.SortFunc(all, func(a, b Outcome) int { return cmp.Compare(a.Rate(), b.Rate()) })
	return all[len(all)/2]
}

// MeasureDisk measures the disk alone, and adds its row.
func (b *Bench) MeasureDisk(s *Scope) {
	var all []float64
	for range 3 {
		rate, err := syncRate(s.TempDir(), b.Seconds/6)
		s.Check(err)
		all = append(all, rate)
	}
	slices.Sort(all)
	b.FsyncRate = all[1]
	b.Add(Row{Name: "raw fdatasync of one 4 KiB block", Value: b.FsyncRate, Unit: "/s"})
}
