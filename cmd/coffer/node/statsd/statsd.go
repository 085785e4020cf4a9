// Package statsd sends a node's metrics to a statsd or DogStatsD server over UDP: gauges as they are, counters as what was added since
// the last time. What cannot be sent is lost, and never holds anything up.
package statsd

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/server/metrics"
)

// Options of a Sender.
type Options struct {
	Address string        // host:port, looked up each time
	Every   time.Duration // 0: 10 s
	Dog     bool          // send labels, and Tags, as DogStatsD's tags; else labels are in the names
	Tags    []string      // of everything, such as "env:prod"
	Values  func() ([]metrics.Value, error)
	Logger  *slog.Logger
}

// maxPacket is how many bytes of lines go into one packet: what no network on the way takes apart.
const maxPacket = 1432

// Run sends until ctx ends.
func Run(ctx context.Context, o Options) {
	if o.Every <= 0 {
		o.Every = 10 * time.Second
	}
	tick := time.NewTicker(max(o.Every, time.Second))
	defer tick.Stop()
	last, failing := map[string]float64{}, false
	for {
		err := o.send(ctx, last)
		if err != nil && !failing && ctx.Err() == nil {
			o.Logger.Warn("metrics cannot be sent to statsd", "address", o.Address, "err", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// send sends everything once. last has the counters of the time before.
func (o Options) send(ctx context.Context, last map[string]float64) error {
	values, err := o.Values()
	if err != nil {
		return err
	}
	dial, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(dial, "udp", o.Address)
	if err != nil {
		return err
	}
	defer conn.Close()
	var packet []byte
	for _, v := range values {
		line := o.line(v, last)
		if len(packet) > 0 && len(packet)+1+len(line) > maxPacket {
			if _, err := conn.Write(packet); err != nil {
				return err
			}
			packet = packet[:0]
		}
		if len(packet) > 0 && line != "" {
			packet = append(packet, '\n')
		}
		packet = append(packet, line...)
	}
	_, err = conn.Write(packet)
	return err
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// line is what is sent of one value, "" if that is nothing.
func (o Options) line(v metrics.Value, last map[string]float64) string {
	name, tags := "coffer."+strings.TrimPrefix(v.Name, "coffer_"), o.Tags
	for _, l := range v.Labels {
		if o.Dog {
			tags = append(tags[:len(tags):len(tags)], l[0]+":"+strings.NewReplacer(",", "_", "|", "_", "\n", "_").Replace(l[1]))
		} else {
			name += "." + unsafe.ReplaceAllString(l[1], "_")
		}
	}
	suffix := ""
	if len(tags) > 0 {
		suffix = "|#" + strings.Join(tags, ",")
	}
	number, kind := v.Number, "g"
	if v.Counter {
		key := name + suffix
		number, kind = v.Number-last[key], "c"
		if last[key] = v.Number; number == 0 {
			return ""
		}
	}
	if math.IsNaN(number) || math.IsInf(number, 0) {
		return ""
	}
	text := func(n float64) string {
		return fmt.Sprintf("%s:%s|%s%s", name, strconv.FormatFloat(n, 'f', -1, 64), kind, suffix)
	}
	if number < 0 { // a sign would make it a change
		return text(0) + "\n" + text(number)
	}
	return text(number)
}
