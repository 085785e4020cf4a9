package statsd

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/metrics"
)

// Gauges are sent as they are, counters as what was added, in packets that networks do not take apart.
func TestSend(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	label := [][2]string{{"operation", "re|ad"}}
	values := []metrics.Value{
		{Name: "coffer_unsealed", Number: 1}, {Name: "coffer_below", Number: -2},
		{Name: "coffer_requests_total", Number: 3, Counter: true, Labels: label}, {Name: "coffer_never_total", Counter: true},
		{Name: "coffer_" + strings.Repeat("long", 350), Number: 5},
	}
	get := func() ([]metrics.Value, error) { return values, nil }
	for _, dog := range []bool{false, true} {
		o := Options{Address: server.LocalAddr().String(), Dog: dog, Values: get, Logger: slog.New(slog.DiscardHandler)}
		requests := "coffer.requests_total.re_ad:%|c"
		if dog {
			o.Tags = []string{"env:prod"}
			requests = "coffer.requests_total:%|c|#env:prod,operation:re_ad"
		}
		last := map[string]float64{}
		for _, want := range []string{"3", "4"} {
			if err := o.send(context.Background(), last); err != nil {
				t.Fatal(err)
			}
			var lines []string
			for range 2 { // the long name has a packet of its own
				server.SetReadDeadline(time.Now().Add(10 * time.Second))
				packet := make([]byte, 64<<10)
				n, _, err := server.ReadFrom(packet)
				if err != nil || n > maxPacket+100 {
					t.Fatal(n, err)
				}
				lines = append(lines, strings.Split(string(packet[:n]), "\n")...)
			}
			if line := strings.Replace(requests, "%", want, 1); !slices.Contains(lines, line) || strings.Contains(strings.Join(lines, " "), "never") {
				t.Errorf("lines %q, want %q", lines, line)
			}
			if !dog && !slices.Equal(lines[:3], []string{"coffer.unsealed:1|g", "coffer.below:0|g", "coffer.below:-2|g"}) {
				t.Errorf("lines %q", lines)
			}
			values[2].Number += 4
		}
		values[2].Number = 3
	}
}
