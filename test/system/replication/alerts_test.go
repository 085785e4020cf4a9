package replication

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

// alert is a row of the table of alerts in docs/replication.md.
type alert struct {
	metric, than string // than: another metric, or ""
	is           string // "above", "below" or "equal"
	value        float64
}

var alertRow = regexp.MustCompile("^\\| `(coffer_replication_[a-z_]+)` \\| (?:(above|below) )?(?:([0-9]+)\\b|`(coffer_[a-z_]+)`)")

// documentedAlerts reads those with a metric and what it is compared with.
func documentedAlerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/replication.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		m := alertRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		a := alert{metric: m[1], is: m[2], than: m[4]}
		if a.is == "" {
			a.is = "equal"
		}
		a.value, _ = strconv.ParseFloat(m[3], 64)
		all = append(all, a)
	}
	if len(all) < 8 {
		t.Fatalf("docs/replication.md has only %d alerts that can be read: %+v", len(all), all)
	}
	return all
}

// firing returns the metrics of the alerts that fire on the active node of a cluster.
func firing(t *testing.T, c *harness.Cluster, alerts []alert) (names []string) {
	t.Helper()
	_, _, a := request(t, c, c.Nodes[0], "GET", "sys/metrics?format=prometheus", nil)
	values := map[string]float64{}
	for line := range strings.Lines(string(a.Body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				values[name] = v
			}
		}
	}
	if values["coffer_replication_primary"]+values["coffer_replication_secondary"] != 1 {
		t.Fatalf("the metrics of %s say nothing of replication: status %d", c.Nodes[0].ID, a.Status)
	}
	for _, a := range alerts {
		v, ok := values[a.metric]
		if !ok { // of the other role
			continue
		}
		limit := a.value
		if a.than != "" {
			limit = values[a.than]
		}
		if a.is == "above" && v > limit || a.is == "below" && v < limit || a.is == "equal" && v == limit {
			names = append(names, a.metric)
		}
	}
	return names
}

// TestAlertsFire kills and freezes each side, and evaluates the documented alerts on the metrics of the other one.
func TestAlertsFire(t *testing.T) {
	harness.LongOnly(t)
	alerts := documentedAlerts(t)
	const lag, known, connected = "coffer_replication_lag_seconds", "coffer_replication_secondaries_connected", "coffer_replication_connected"
	type fault struct {
		name       string
		away, here *harness.Cluster
		do, mend   func(*harness.Node)
		want       []string
	}
	var faults []fault
	for _, kill := range []bool{true, false} {
		do, mend, name := (*harness.Node).Pause, (*harness.Node).Resume, "frozen"
		if kill {
			do, mend, name = (*harness.Node).Kill9, (*harness.Node).Start, "killed"
		}
		primary, secondary := two(t)
		faults = append(faults, fault{"secondary " + name, secondary, primary, do, mend, []string{lag, known}})
		primary, secondary = two(t)
		faults = append(faults, fault{"primary " + name, primary, secondary, do, mend, []string{lag, connected}})
	}
	quiet := func() error {
		for _, f := range faults {
			for _, c := range []*harness.Cluster{f.away, f.here} {
				if names := firing(t, c, alerts); len(names) > 0 {
					return fmt.Errorf("%s: on %s these alerts fire: %v", f.name, c.Nodes[0].ID, names)
				}
			}
		}
		return nil
	}
	harness.Await(t, "silence", time.Minute, quiet)
	for _, f := range faults {
		f.do(f.away.Nodes[0])
	}
	harness.Await(t, "the alerts", 2*time.Minute, func() error {
		for _, f := range faults {
			names := firing(t, f.here, alerts)
			for _, name := range f.want {
				if !slices.Contains(names, name) {
					return fmt.Errorf("%s: %s does not fire, but %v", f.name, name, names)
				}
			}
		}
		return nil
	})
	for _, f := range faults {
		f.mend(f.away.Nodes[0])
		f.away.WaitServing()
	}
	harness.Await(t, "silence again", 2*time.Minute, quiet)
}
