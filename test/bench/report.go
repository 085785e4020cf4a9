package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// row is one line of the table.
type row struct {
	name      string
	value     float64
	unit      string
	latency   string
	yardstick float64 // 0: none
	beside    string  // what the yardstick is
	target    float64 // of the ratio, or of the value if there is no yardstick or it has to be below; 0: none
	below     bool    // the value has to be at most the target
}

func (b *bench) add(r row) {
	b.rows = append(b.rows, r)
	fmt.Fprintf(os.Stderr, "  %s: %s %s\n", r.name, r.amount(), r.verdict())
}

// addLoad adds what the load generator measured; r has yardstick and target.
func (b *bench) addLoad(name string, o outcome, r row) {
	r.name, r.value, r.unit = name, o.rate(), "/s"
	r.latency = fmt.Sprintf("%s / %s", short(o.P50), short(o.P99))
	b.add(r)
}

// again repeats the last row beside another yardstick.
func (b *bench) again(r row) {
	last := b.rows[len(b.rows)-1]
	last.yardstick, last.beside, last.target = r.yardstick, r.beside, r.target
	b.add(last)
}

func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
}

func (r row) amount() string {
	if r.value >= 100 {
		return fmt.Sprintf("%.0f%s", r.value, r.unit)
	}
	return fmt.Sprintf("%.2f%s", r.value, r.unit)
}

func (r row) ratio() float64 { return r.value / r.yardstick }

func (r row) ratioText() string {
	if r.ratio() < 0.01 {
		return fmt.Sprintf("%.4f", r.ratio())
	}
	return fmt.Sprintf("%.2f", r.ratio())
}

func (r row) verdict() string {
	switch {
	case r.yardstick == 0 && r.target == 0:
		return ""
	case r.yardstick == 0:
		return fmt.Sprintf("(target: at most %g%s)", r.target, r.unit)
	case r.target == 0:
		return fmt.Sprintf("(%s × %s)", r.ratioText(), r.beside)
	case r.below:
		return fmt.Sprintf("(%s × %s, target: at most %g%s)", r.ratioText(), r.beside, r.target, r.unit)
	}
	return fmt.Sprintf("(%s × %s, target %g)", r.ratioText(), r.beside, r.target)
}

func (r row) met() string {
	ok := r.ratio() >= r.target
	if r.below {
		ok = r.value <= r.target
	}
	switch {
	case r.target == 0:
		return ""
	case ok:
		return "yes"
	}
	return "**no**"
}

// table is the document.
func (b *bench) table() string {
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
	p("sync is the measuring process, which answers at once. Targets are those of the design. What leaders that are")
	p("killed or fall silent cost, many times over, is in [faults.md](faults.md).")
	p("")
	p("Machine: %s, %d cores, %s/%s, %s. %s.", cpu(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), time.Now().UTC().Format("2006-01-02"))
	p("Load before the run: %s. Each rate over %v.", strings.TrimSpace(loadAverage), b.seconds)
	if b.smoke {
		p("")
		p("**A smoke run: too short to mean anything.**")
	}
	p("")
	p("| measurement | result | p50 / p99 | yardstick | ratio | target | met |")
	p("|---|---:|---:|---|---:|---:|---|")
	for _, r := range b.rows {
		beside, ratio, target := "", "", ""
		if r.yardstick > 0 {
			beside, ratio = fmt.Sprintf("%s %.0f%s", r.beside, r.yardstick, r.unit), r.ratioText()
		}
		if r.target > 0 {
			target = fmt.Sprintf("≥ %g ×", r.target)
			if r.below {
				target = fmt.Sprintf("≤ %g%s", r.target, r.unit)
			}
		}
		p("| %s | %s | %s | %s | %s | %s | %s |", r.name, r.amount(), r.latency, beside, ratio, target, r.met())
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
