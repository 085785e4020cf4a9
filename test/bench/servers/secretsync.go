package servers

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/bench/shelf"
	"github.com/coffer-project/coffer/test/harness"
)

const (
	syncPolicy = `path "sys/sync/*" { capabilities = ["create", "read", "update"] }`
	syncDests  = "/v1/sys/sync/destinations/cloud1-sm/"
	syncAtOnce = 8 // calls, as a destination has it
	syncKeyID  = "AKIAEXAMPLEEXAMPLE00"
	syncKey    = "nobody/looks/at/it/but/it/has/a/length/+"
)

// SecretSync measures secret sync with many associations, each of a secret of its own, to one destination that answers at once
// and whose budget the operator has lifted. The destination is this process; the yardstick looks for names and creates them with
// the provider's SDK, which no sync can do without.
func SecretSync(b *run.Bench, s *run.Scope) {
	secrets := 10_000
	if b.Smoke {
		secrets = 500
	}
	y, options := startSyncing(b, s, secrets, cloudRegion)
	other := harness.NewCluster(s, 1, options).Nodes[0]
	of := y.describe()
	y.firstSync(of)
	y.drift(of, 5)
	y.latency(of)
	y.writes(of, other, y.prepare(other))
	y.takeOver(of)
}

// ManySynced measures what an estate of many associations costs: 100,000 over five destinations.
func ManySynced(b *run.Bench, s *run.Scope) {
	if b.Smoke {
		return // it has nothing that SecretSync has not
	}
	y, _ := startSyncing(b, s, 20_000, cloudRegion, "eu-west-2", "eu-central-1", "us-east-1", "ap-southeast-2")
	of := y.describe()
	y.firstSync(of)
	b.Add(run.Row{Name: of + ": resident memory of the node's own", Value: ownMiB(s, y.n), Unit: " MiB"})
	y.drift(of, 1)
	used := cpuTime(s, y.n.PID())
	<-time.After(time.Minute)
	b.Add(run.Row{Name: of + ": a minute without a change, processor time of the node", Value: float64((cpuTime(s, y.n.PID()) - used).Milliseconds()), Unit: " ms"})
	y.takeOver(of)
}

// startSyncing starts a node and a place, whose destinations are one in each of the regions and get all of the secrets.
func startSyncing(b *run.Bench, s *run.Scope, secrets int, regions ...string) (*syncing, harness.Options) {
	y := &syncing{b: b, s: s, regions: regions, secrets: secrets, count: secrets * len(regions), at: shelf.Start(s)}
	options := harness.Options{Plain: true, Config: fmt.Sprintf(`sync {
  allow_private_addresses = true
  endpoint "cloud1-sm" {
    url               = %q
    writes_per_second = 100000
    reads_per_second  = 100000
  }
}`, y.at.URL)}
	y.n = harness.NewCluster(s, 1, options).Nodes[0]
	y.token = y.prepare(y.n)
	return y, options
}

// firstSync writes the secrets, associates them, and syncs them for the first time.
func (y *syncing) firstSync(of string) {
	y.b.Load(y.s, run.Work{Addr: addr(y.n), Method: "POST", Path: "/v1/bench/data/s%d", Body: secretBody, Conns: 32, Count: int64(y.secrets), Token: y.token})
	heap := heapMiB(y.s, y.n)
	y.associate(of)
	y.syncAll(of)
	y.b.Add(run.Row{Name: of + ": memory in use added for each", Value: max(heapMiB(y.s, y.n)-heap, 0) * (1 << 20) / float64(y.count), Unit: " bytes"})
}

// syncing is a node that syncs, and the place.
type syncing struct {
	b       *run.Bench
	s       *run.Scope
	regions []string // of the destinations, which have the same names
	secrets int
	count   int // of associations: each secret with each destination
	at      *shelf.Shelf
	n       *harness.Node
	token   string
}

func (y *syncing) describe() string {
	of := fmt.Sprintf("secret sync, %d associations", y.count)
	if len(y.regions) > 1 {
		of += fmt.Sprintf(" over %d destinations", len(y.regions))
	}
	return of
}

// prepare mounts bench/ and returns a token that may write there, and associate what is there.
func (y *syncing) prepare(n *harness.Node) string {
	prepare(y.s, n)
	n.MustDo("POST", "/v1/sys/policies/acl/sync", map[string]any{"policy": syncPolicy})
	for _, region := range y.regions {
		n.MustDo("POST", syncDests+region, map[string]any{
			"access_key_id": syncKeyID, "secret_access_key": syncKey, "region": region, "secret_name_template": "{{ .SecretPath }}",
		})
	}
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"bench", "sync"}, "ttl": "24h"}).Decode(y.s, &out)
	return out.Auth.Token
}

// associate makes the associations while nothing is synced.
func (y *syncing) associate(of string) {
	y.enable(false)
	bodies := make([]string, y.secrets)
	for i := range bodies {
		bodies[i] = fmt.Sprintf(`{"mount":"bench","secret_name":"s%d"}`, i)
	}
	var all []run.Outcome
	for _, region := range y.regions {
		all = append(all, y.b.Load(y.s, run.Work{Addr: addr(y.n), Method: "POST", Path: syncDests + region + "/associations/set", Bodies: bodies, Conns: 16, Token: y.token}))
	}
	y.b.AddLoad(of+": making them, 16 clients", run.Middle(all), run.Row{})
}

func (y *syncing) enable(on bool) {
	y.n.MustDo("POST", "/v1/sys/sync/config", map[string]any{"disabled": !on})
}

// arrivals returns a channel that gets the time when so many names, of all destinations, have got new values.
func (y *syncing) arrivals(count int) <-chan time.Time {
	done := make(chan time.Time, 1) // nobody may be waiting any more
	seen := map[*shelf.Secret]bool{}
	y.at.Watch(func(k *shelf.Secret, at time.Time) {
		if seen[k] = true; len(seen) == count {
			select {
			case done <- at:
			default:
			}
		}
	})
	return done
}

// await waits for what arrivals promised.
func (y *syncing) await(done <-chan time.Time) time.Time {
	select {
	case at := <-done:
		return at
	case <-time.After(10 * time.Minute):
		y.s.Fatalf("secrets do not arrive")
		return time.Time{}
	}
}

// syncAll syncs all of them for the first time.
func (y *syncing) syncAll(of string) {
	atOnce := syncAtOnce * len(y.regions)
	before := y.bare(min(y.count, 20_000), atOnce)
	done := y.arrivals(y.count)
	used, began := cpuTime(y.s, y.n.PID()), time.Now()
	y.at.Called()
	y.enable(true)
	took := y.await(done).Sub(began)
	y.idle()
	used = cpuTime(y.s, y.n.PID()) - used
	yard := (before + y.bare(min(y.count, 20_000), atOnce)) / 2
	y.b.Add(run.Row{Name: fmt.Sprintf("bare SDK, one name looked for and created, %d at once", atOnce), Value: yard, Unit: "/s"})
	y.b.Add(run.Row{Name: of + ": first sync of all", Value: float64(y.count) / took.Seconds(), Unit: "/s", Yardstick: yard, Beside: "bare SDK", Target: 0.5})
	y.b.Add(run.Row{Name: of + ": first sync, asked of the destination for each", Value: float64(y.at.Called()) / float64(y.count), Unit: " calls"})
	y.b.Add(run.Row{Name: of + ": first sync, processor time of the node for each", Value: float64(used.Microseconds()) / float64(y.count), Unit: " µs"})
}

var syncWaiting = regexp.MustCompile(`(?m)^coffer_sync_(?:pending|running) (\S+)$`)

// idle waits until nothing is due.
func (y *syncing) idle() {
	harness.Await(y.s, "secret sync to be idle", 10*time.Minute, func() error {
		for _, m := range syncWaiting.FindAllSubmatch(y.n.MustDo("GET", "/v1/sys/metrics?format=prometheus", nil).Body, -1) {
			if n, err := strconv.ParseFloat(string(m[1]), 64); err != nil || n > 0 {
				return fmt.Errorf("%s, %v", m[0], err)
			}
		}
		return nil
	})
}

// drift compares all names of all destinations with what is known of them, when nothing differs.
func (y *syncing) drift(of string, rounds int) {
	var all []time.Duration
	used := cpuTime(y.s, y.n.PID())
	for range rounds {
		began := time.Now()
		for _, region := range y.regions {
			var out struct {
				Data struct {
					Drifted []any
					Names   int
				}
			}
			y.n.MustDo("POST", syncDests+region+"/drift", nil).Decode(y.s, &out)
			if out.Data.Names != y.secrets || len(out.Data.Drifted) > 0 {
				y.s.Fatalf("%d names, %d of them drifted", out.Data.Names, len(out.Data.Drifted))
			}
		}
		all = append(all, time.Since(began))
	}
	used = cpuTime(y.s, y.n.PID()) - used
	slices.Sort(all)
	y.b.Add(run.Row{Name: of + ": idle drift scan", Value: all[rounds/2].Seconds(), Unit: " s"})
	y.b.Add(run.Row{Name: of + ": idle drift scan, processor time of the node", Value: used.Seconds() / float64(rounds), Unit: " s"})
}

// latency writes secrets one by one and waits for each at the destination.
func (y *syncing) latency(of string) {
	samples := 200
	if y.b.Smoke {
		samples = 10
	}
	var all []time.Duration
	for i := range samples {
		name := fmt.Sprintf("s%d", i*y.count/samples)
		arrived := make(chan time.Time, 1)
		y.at.Watch(func(k *shelf.Secret, at time.Time) {
			if k.Name == name {
				select {
				case arrived <- at:
				default:
				}
			}
		})
		began := time.Now()
		y.write(name, fmt.Sprintf("latency %d", i))
		all = append(all, y.await(arrived).Sub(began))
	}
	y.at.Watch(nil)
	slices.Sort(all)
	p50, p99 := all[samples/2], all[samples*99/100]
	y.b.Add(run.Row{
		Name: of + ": one KV write until it is at the destination", Value: float64(p50.Microseconds()) / 1000, Unit: " ms",
		Latency: run.Short(p50) + " / " + run.Short(p99),
	})
}

// write writes a new version of a secret.
func (y *syncing) write(name, value string) {
	y.n.MustDo("POST", "/v1/bench/data/"+name, map[string]any{"data": map[string]string{"value": value}})
}

// writes measures KV writes on a node without associations, of secrets that have none beside many that do, and of those.
func (y *syncing) writes(of string, other *harness.Node, token string) {
	rounds := 3
	if y.b.Smoke {
		rounds = 1
	}
	var without, beside, associated []run.Outcome
	for i := range rounds {
		on := func(n *harness.Node, token string) run.Work {
			w := writes(addr(n), token, "w", 64)
			w.Time, w.First = y.b.Seconds/time.Duration(rounds), int64(i)*100_000_000
			return w
		}
		without = append(without, y.b.Load(y.s, on(other, token)))
		beside = append(beside, y.b.Load(y.s, on(y.n, y.token)))
		w := on(y.n, y.token)
		w.Path, w.Numbers = "/v1/bench/data/s%d", int64(y.count)
		associated = append(associated, y.b.Load(y.s, w))
		y.idle()
	}
	yard := run.Middle(without)
	y.b.AddLoad("KV write, 1 KiB, one node, 64 clients, nothing is associated", yard, run.Row{})
	y.b.AddLoad(of+": KV write, 1 KiB, 64 clients, of other secrets of the mount", run.Middle(beside), run.Row{Yardstick: yard.Rate(), Beside: "without"})
	y.b.AddLoad(of+": KV write, 1 KiB, 64 clients, of these, which are synced meanwhile", run.Middle(associated), run.Row{Yardstick: yard.Rate(), Beside: "without"})
}

// takeOver kills the node right after some secrets were written, and takes the time that the next active one needs until it has
// found and synced them.
func (y *syncing) takeOver(of string) {
	const changed, rounds = 20, 3
	var all []time.Duration
	for i := range rounds {
		done := y.arrivals(changed * len(y.regions))
		for k := range changed {
			y.write(fmt.Sprintf("s%d", (k*y.secrets/changed+i)%y.secrets), fmt.Sprintf("take-over %d", i))
		}
		y.n.Kill9()
		y.n.Start()
		y.n.WaitHealth(200)
		last := y.await(done)
		all = append(all, last.Sub(y.active()))
	}
	y.at.Watch(nil)
	slices.Sort(all)
	y.b.Add(run.Row{Name: fmt.Sprintf("%s: a new active node, until it has found and synced %d that are due", of, changed*len(y.regions)), Value: all[rounds/2].Seconds(), Unit: " s"})
}

var activeLine = regexp.MustCompile(`(?m)^time=(\S+) .*msg="now active"`)

// active returns when the node became the active one, as its log has it.
func (y *syncing) active() time.Time {
	text, err := os.ReadFile(y.n.LogFile)
	y.s.Check(err)
	all := activeLine.FindAllSubmatch(text, -1)
	if len(all) == 0 {
		y.s.Fatalf("the log does not say when the node became active")
	}
	at, err := time.Parse(time.RFC3339Nano, string(all[len(all)-1][1]))
	y.s.Check(err)
	return at
}
