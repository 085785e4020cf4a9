package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

const figuresHead = `# Faults

Written by ` + "`make chaos-figures`" + `; do not edit. A cluster of three nodes on one machine loses its leader again and again while
clients write and read through all nodes. The times are those without an acknowledged write, as clients see them that begin a
new write at both other nodes every 20 ms. "Lost" are acknowledged writes that a node lacks at the end. "Not linearizable" are
keys of which a client saw something stale, doubled or in another order than it happened. "Going back" are reads from one node
that showed something older than the one before. Each run adds its rows.
`

// TestFigures kills many leaders, then silences many, and adds what came of it to the file that COFFER_CHAOS_FIGURES names.
// COFFER_CHAOS_KILLS and COFFER_CHAOS_SILENT say how many.
func TestFigures(t *testing.T) {
	file := os.Getenv("COFFER_CHAOS_FIGURES")
	if file == "" {
		t.Skip("takes more than an hour: make chaos-figures")
	}
	t.Run("killed leaders", func(t *testing.T) {
		n := number(t, "COFFER_CHAOS_KILLS", 1000)
		runs, times := figures(t, slices.Repeat(faults[:1], n))
		write(t, file, "Killed leaders", runs, times)
	})
	t.Run("silent leaders", func(t *testing.T) {
		silent := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !f.silent })
		n := number(t, "COFFER_CHAOS_SILENT", 300)
		runs, times := figures(t, slices.Repeat(silent, (n+len(silent)-1)/len(silent)))
		write(t, file, "Silent leaders", runs, times)
	})
}

// figures inflicts the faults and returns what came of it as rows of both tables of a section.
func figures(t *testing.T, order []fault) (runs, times []string) {
	s := newStorm(t)
	begin := time.Now()
	all := s.inflict(t, order)
	took := time.Since(begin)
	s.load.stop()
	lost, wrong := s.acknowledged(t), s.linearizable(t)
	date := begin.UTC().Format(time.DateTime)
	runs = append(runs, fmt.Sprintf("| %s | %d | %v | %d, %s/%s | %d | %d | %d | %d | %d | %d |", date, len(order), took.Round(time.Second),
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, len(s.load.acked), lost, len(s.load.history), wrong, s.load.back, len(s.load.internal)-s.load.back))
	for _, f := range faults {
		if of := all[f.name]; of != nil {
			times = append(times, fmt.Sprintf("| %s | %s | %d | %s | %s | %s | %s |", date, f.name, len(of.gaps), seconds(harness.Quantile(of.gaps, 0.5)),
				seconds(harness.Quantile(of.gaps, 0.99)), seconds(slices.Max(of.gaps)), seconds(of.longest)))
		}
	}
	return runs, times
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// The heads of both tables of a section. Each run adds its rows.
const (
	runsHead = "| run | faults | within | cores | acknowledged writes | lost | operations on registers | keys not linearizable | going back | responses no fault excuses |\n" +
		"|---|---:|---:|---|---:|---:|---:|---:|---:|---:|"
	timesHead = "| run | fault | times | median | p99 | max | longest request |\n|---|---|---:|---:|---:|---:|---:|"
)

// write adds the rows of a run to a section of the file.
func write(t *testing.T, file, title string, runs, times []string) {
	t.Logf("%s:\n%s\n%s", title, strings.Join(runs, "\n"), strings.Join(times, "\n"))
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	sections := strings.Split(string(old), "\n## ")
	sections[0] = figuresHead
	at := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, title+"\n") })
	if at < 0 {
		at, sections = len(sections), append(sections, "")
	}
	first, second, _ := strings.Cut(sections[at], "| run | fault |")
	rows := func(table string, more []string) string {
		kept := slices.DeleteFunc(strings.Split(table, "\n"), func(line string) bool { return !strings.HasPrefix(line, "| 2") })
		return strings.Join(append(kept, more...), "\n")
	}
	sections[at] = title + "\n\n" + runsHead + "\n" + rows(first, runs) + "\n\n" + timesHead + "\n" + rows(second, times) + "\n"
	if err := os.WriteFile(filepath.Clean(file), []byte(strings.Join(sections, "\n## ")), 0o644); err != nil {
		t.Fatal(err)
	}
}
