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
that showed something older than the one before.
`

// TestFigures kills many leaders, then silences many, and writes what came of it into the file that COFFER_CHAOS_FIGURES names.
// COFFER_CHAOS_KILLS and COFFER_CHAOS_SILENT say how many.
func TestFigures(t *testing.T) {
	file := os.Getenv("COFFER_CHAOS_FIGURES")
	if file == "" {
		t.Skip("takes more than an hour: make chaos-figures")
	}
	t.Run("killed leaders", func(t *testing.T) {
		n := number(t, "COFFER_CHAOS_KILLS", 1000)
		write(t, file, "Killed leaders", figures(t, slices.Repeat(faults[:1], n)))
	})
	t.Run("silent leaders", func(t *testing.T) {
		silent := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !f.silent })
		n := number(t, "COFFER_CHAOS_SILENT", 300)
		write(t, file, "Silent leaders", figures(t, slices.Repeat(silent, (n+len(silent)-1)/len(silent))))
	})
}

// figures inflicts the faults and returns what came of it, as Markdown.
func figures(t *testing.T, order []fault) string {
	s := newStorm(t)
	begin := time.Now()
	all := s.inflict(t, order)
	took := time.Since(begin)
	s.load.stop()
	lost, wrong := s.acknowledged(t), s.linearizable(t)
	var out strings.Builder
	fmt.Fprintf(&out, "%d faults within %v, on %s; %d cores, %s/%s.\n\n", len(order), took.Round(time.Second), begin.UTC().Format(time.DateOnly),
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	out.WriteString("| acknowledged writes | lost | operations on registers | keys not linearizable | going back | responses no fault excuses |\n|---:|---:|---:|---:|---:|---:|\n")
	fmt.Fprintf(&out, "| %d | %d | %d | %d | %d | %d |\n\n", len(s.load.acked), lost, len(s.load.history), wrong, s.load.back, len(s.load.internal)-s.load.back)
	out.WriteString("| fault | times | median | p99 | max | longest request |\n|---|---:|---:|---:|---:|---:|\n")
	for _, f := range faults {
		if of := all[f.name]; of != nil {
			fmt.Fprintf(&out, "| %s | %d | %s | %s | %s | %s |\n", f.name, len(of.gaps), seconds(harness.Quantile(of.gaps, 0.5)), seconds(harness.Quantile(of.gaps, 0.99)),
				seconds(slices.Max(of.gaps)), seconds(of.longest))
		}
	}
	return out.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// write replaces a section of the file, or adds it.
func write(t *testing.T, file, title, text string) {
	t.Logf("%s:\n%s", title, text)
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	sections := strings.Split(string(old), "\n## ")
	sections[0] = figuresHead
	section := title + "\n\n" + text
	if i := slices.IndexFunc(sections, func(s string) bool { return strings.HasPrefix(s, title+"\n") }); i >= 0 {
		sections[i] = section
	} else {
		sections = append(sections, section)
	}
	if err := os.WriteFile(filepath.Clean(file), []byte(strings.Join(sections, "\n## ")), 0o644); err != nil {
		t.Fatal(err)
	}
}
