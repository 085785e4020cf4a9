package run

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Row is one line of the table.
type Row struct {
	Name      string
	Value     float64
	Unit      string
	Latency   string
	Yardstick float64 // 0: none
	Beside    string  // what the yardstick is
	Target    float64 // of the ratio, or of the value if there is no yardstick or Below; 0: none
	Below     bool    // the value has to be at most the target
}

// Add adds a row, and shows it on standard error.
func (b *Bench) Add(r Row) {
	b.rows = append(b.rows, r)
	fmt.Fprintf(os.Stderr, "  %s: %s %s\n", r.Name, r.amount(), r.verdict())
}

// AddLoad adds what the load generator measured; r has yardstick and target.
func (b *Bench) AddLoad(name string, o Outcome, r Row) {
	r.Name, r.Value, r.Unit = name, o.Rate(), "/s"
	r.Latency = fmt.Sprintf("%s / %s", Short(o.P50), Short(o.P99))
	b.Add(r)
}

// Again repeats the last row beside another yardstick.
func (b *Bench) Again(r Row) {
	last := b.rows[len(b.rows)-1]
	last.Yardstick, last.Beside, last.Target = r.Yardstick, r.Beside, r.Target
	b.Add(last)
}

// Short is a duration as the table has it.
func Short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
}

func (r Row) amount() string {
	if r.Value >= 100 {
		return fmt.Sprintf("%.0f%s", r.Value, r.Unit)
	}
	return fmt.Sprintf("%.2f%s", r.Value, r.Unit)
}

func (r Row) ratio() float64 { return r.Value / r.Yardstick }

func (r Row) ratioText() string {
	if r.ratio() < 0.01 {
		return fmt.Sprintf("%.4f", r.ratio())
	}
	return fmt.Sprintf("%.2f", r.ratio())
}

func (r Row) verdict() string {
	switch {
	case r.Yardstick == 0 && r.Target == 0:
		return ""
	case r.Yardstick == 0:
		return fmt.Sprintf("(target: %s)", r.target())
	case r.Target == 0:
		return fmt.Sprintf("(%s × %s)", r.ratioText(), r.Beside)
	}
	return fmt.Sprintf("(%s × %s, target: %s)", r.ratioText(), r.Beside, r.target())
}

// target is that as the table has it.
func (r Row) target() string {
	switch {
	case r.Target == 0:
		return ""
	case r.Below:
		return fmt.Sprintf("≤ %g%s", r.Target, r.Unit)
	case r.Yardstick == 0:
		return fmt.Sprintf("≥ %g%s", r.Target, r.Unit)
	}
	return fmt.Sprintf("≥ %g ×", r.Target)
}

func (r Row) met() string {
	ok := r.ratio() >= r.Target
	switch {
	case r.Target == 0:
		return ""
	case r.Below:
		ok = r.Value <= r.Target
	case r.Yardstick == 0:
		ok = r.Value >= r.Target
	}
	if ok {
		return "yes"
	}
	return "**no**"
}

// Table is the document.
func (b *Bench) Table() string {
	var out strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	p("# Benchmarks")
	p("")
	p("Written by `make bench`; do not edit. Everything was measured in one run: servers, load generator and")
	p("yardsticks share the machine, so ratios say more than rates; yardstick and Coffer were measured in turn, and")
	p("the median of three counts. API without TLS; KV is version 2; three nodes run on one machine and one disk;")
	p("every acknowledged write is synced. Clusters that replicate run on this machine, too: without HTTP and in one")
	p("process, except where the cost of replication for a primary's clients is measured; \"full copy\" is the keys and")
	p("values of all secrets. Responses of the SAML identity provider are made beforehand. The destination of secret")
	p("sync is the measuring process, which answers at once; \"bare SDK\" is a process that makes the same two calls for")
	p("each name with the provider's SDK, as many at once, and does nothing else. Targets are those of the design. What")
	p("leaders that are killed or fall silent cost, many times over, is in [faults.md](faults.md).")
	p("")
	p("Machine: %s, %d cores, %s/%s, %s. %s.", cpu(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), time.Now().UTC().Format("2006-01-02"))
	p("Load before the run: %s. Each rate over %v.", strings.TrimSpace(loadAverage), b.Seconds)
	if b.Smoke {
		p("")
		p("**A smoke run: too short to mean anything.**")
	}
	p("")
	p("| measurement | result | p50 / p99 | yardstick | ratio | target | met |")
	p("|---|---:|---:|---|---:|---:|---|")
	for _, r := range b.rows {
		beside, ratio := "", ""
		if r.Yardstick > 0 {
			beside, ratio = fmt.Sprintf("%s %.0f%s", r.Beside, r.Yardstick, r.Unit), r.ratioText()
		}
		p("| %s | %s | %s | %s | %s | %s | %s |", r.Name, r.amount(), r.Latency, beside, ratio, r.target(), r.met())
	}
	if b.Stages != "" {
		p("")
		p("## A request, stage by stage")
		p("")
		p("Processor time and allocations of the node for each request of \"a day\", by profiles that it took of itself meanwhile. The")
		p("innermost function that belongs to a stage decides. Allocations are sampled.")
		p("")
		out.WriteString(b.Stages)
	}
	return out.String()
}

// loadAverage is what the machine was doing before.
var loadAverage = func() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}()

func cpu() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.TrimSpace(strings.TrimLeft(name, "\t :"))
		}
	}
	return "unknown processor"
}
