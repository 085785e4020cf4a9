// Package debug writes an archive of what a node says of itself, to be looked at by others: states, metrics, profiles and the log.
// It asks only for what the API gives without secrets. Start at Command.
package debug

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/urfave/cli/v3"
)

// Command is coffer debug.
func Command() *cli.Command {
	return command.New(command.Spec{
		Name: "debug", Usage: "collect what a server says of itself in an archive",
		Help: `Asks the server again and again for its state, metrics, profiles and log, and writes all of it to one compressed archive, for those who
help you. The archive has no secrets, tokens or keys. It does have names of nodes, mounts, paths and destinations, and addresses of
clients: look into it before you give it away.

What the token may not read is left out, and index.json in the archive says so. A root token reads all; a policy needs read on
sys/host-info, sys/config/state/sanitized, sys/metrics, sys/in-flight-req, sys/ha-status, sys/storage/raft/autopilot/state and sys/sync/*, and read and
sudo on sys/monitor and sys/pprof/*. An interrupt (^C) ends the time early, and the archive has what was collected so far.

Targets: server-status, config, host, metrics, requests, replication-status, sync-status, pprof, log.

Examples:

  $ coffer debug
  $ coffer debug -duration=10m -interval=1m -output=n1.tar.gz
  $ coffer debug -duration=0s -target=server-status,metrics`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "duration", Value: "2m", Usage: "go on for `DURATION`; 0s: ask once, without the log"},
			&cli.StringFlag{Name: "interval", Value: "30s", Usage: "ask every `DURATION`"},
			&cli.StringFlag{Name: "output", Usage: "write to `FILE` (default: coffer-debug-TIME.tar.gz)"},
			&cli.StringFlag{Name: "target", Usage: "only these `TARGET,…`"},
			&cli.StringFlag{Name: "log-level", Value: "info", Usage: "lowest `LEVEL` of the log: trace, debug, info, warn or error"},
			command.ForceFlag(),
		},
	}, collect)
}

// source is one thing to ask for.
type source struct {
	target, path string
	params       map[string]string
	once         bool   // at the start only
	ext          string // of its files; "": json
}

// stamp is how times stand in names of files.
const stamp = "20060102T150405Z"

const profileTime = 5 * time.Second

var sources = []source{
	{target: "config", path: "sys/config/state/sanitized", once: true},
	{target: "config", path: "sys/loggers", once: true},
	{target: "host", path: "sys/host-info"},
	{target: "server-status", path: "sys/health", params: map[string]string{
		"standbyok": "true", "perfstandbyok": "true", "haunhealthycode": "200", "sealedcode": "200", "uninitcode": "200", "drsecondarycode": "200", "removedcode": "200"}},
	{target: "server-status", path: "sys/seal-status"},
	{target: "server-status", path: "sys/leader"},
	{target: "server-status", path: "sys/ha-status"},
	{target: "server-status", path: "sys/storage/raft/autopilot/state"},
	{target: "server-status", path: "sys/version-history", params: map[string]string{"list": "true"}, once: true},
	{target: "metrics", path: "sys/metrics", params: map[string]string{"format": "prometheus"}, ext: "txt"},
	{target: "requests", path: "sys/in-flight-req"},
	{target: "replication-status", path: "sys/replication/status"},
	{target: "sync-status", path: "sys/sync/destinations", params: map[string]string{"list": "true"}},
	{target: "pprof", path: "sys/pprof/goroutine", params: map[string]string{"debug": "1"}, ext: "txt"},
	{target: "pprof", path: "sys/pprof/heap", ext: "pprof"},
	{target: "pprof", path: "sys/pprof/profile", params: map[string]string{"seconds": strconv.Itoa(int(profileTime.Seconds()))}, once: true, ext: "pprof"},
}

// index is what the archive has: index.json in it.
type index struct {
	Address string    `json:"address"`
	Begun   time.Time `json:"begun"`
	Ended   time.Time `json:"ended"`
	Targets []string  `json:"targets"`
	Files   int       `json:"files"`
	Missing []missing `json:"missing"`
}

type missing struct {
	File string `json:"file"`
	Why  string `json:"why"`
}

type collector struct {
	*command.Call
	archive *archive
	index   index
	targets []string
	// refused are paths that the server does not give: they are asked for once.
	refused map[string]bool
}

func collect(ctx context.Context, c *command.Call) error {
	client, err := c.SendingClient()
	if err != nil {
		return err
	}
	duration, err := command.ParseDuration(c.String("duration"))
	if err != nil || duration < 0 {
		return command.Usagef("-duration takes a duration such as 2m")
	}
	interval, err := command.ParseDuration(c.String("interval"))
	if err != nil || interval < time.Second {
		return command.Usagef("-interval takes a duration from 1s")
	}
	targets, err := targetsOf(c.String("target"))
	if err != nil {
		return err
	}
	if _, err := c.Get(ctx, "sys/seal-status"); err != nil { // rather no file than an empty one
		return err
	}
	begun := time.Now().UTC()
	out := cmp.Or(c.String("output"), "coffer-debug-"+begun.Format(stamp)+".tar.gz")
	k := &collector{Call: c, targets: targets, refused: map[string]bool{}, index: index{Address: client.Address(), Begun: begun, Targets: targets, Missing: []missing{}}}
	err = local.WriteNew(out, c.Bool("force"), func(f *os.File) error {
		k.archive = newArchive(f)
		if err := k.run(ctx, duration, interval); err != nil {
			return err
		}
		return k.finish()
	})
	if err != nil {
		return command.Usagef("%v", err)
	}
	c.Sayf("Success! Wrote %d files to %s. %d could not be had: see index.json in it.", k.index.Files, out, len(k.index.Missing))
	return nil
}

// targetsOf reads -target.
func targetsOf(given string) ([]string, error) {
	var known []string
	for _, s := range sources {
		known = append(known, s.target)
	}
	known = slices.Compact(append(known, "log"))
	if given == "" {
		return known, nil
	}
	targets := strings.Split(given, ",")
	for _, t := range targets {
		if !slices.Contains(known, t) {
			return nil, command.Usagef("-target has %q, want some of %s", t, strings.Join(known, ", "))
		}
	}
	return targets, nil
}

// run asks until the time is over or ctx ends, which is no error.
func (k *collector) run(ctx context.Context, duration, interval time.Duration) error {
	over, cancel := context.WithTimeout(ctx, duration)
	defer cancel()
	if duration > 0 && slices.Contains(k.targets, "log") {
		log := k.follow(over)
		defer func() {
			cancel()
			text, err := log()
			k.put("log/server.log", text, err)
		}()
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for round := 0; ; round++ {
		if err := k.sample(ctx, round); err != nil {
			return err
		}
		select {
		case <-over.Done():
			return nil
		case <-tick.C:
		}
	}
}

// sample asks for everything once.
func (k *collector) sample(ctx context.Context, round int) error {
	at := time.Now().UTC().Format(stamp)
	for _, s := range sources {
		if s.once && round > 0 || !slices.Contains(k.targets, s.target) || k.refused[s.path] || ctx.Err() != nil {
			continue
		}
		name := s.target + "/" + strings.ReplaceAll(strings.TrimPrefix(s.path, "sys/"), "/", "-")
		if !s.once {
			name += "-" + at
		}
		text, err := k.ask(ctx, s)
		if err != nil && ctx.Err() == nil {
			k.refused[s.path] = true
		}
		if err := k.put(name+"."+cmp.Or(s.ext, "json"), text, err); err != nil {
			return err
		}
	}
	return nil
}

// askTime bounds one request.
const askTime = time.Minute

// maxAnswer bounds one response.
const maxAnswer = 64 << 20

func (k *collector) ask(ctx context.Context, s source) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	req := k.API.NewRequest(http.MethodGet, "/v1/"+s.path)
	for name, value := range s.params {
		req.Params.Set(name, value)
	}
	resp, err := k.API.RawRequestWithContext(ctx, req)
	if err != nil {
		err = k.Failed(http.MethodGet, s.path, err)
		if s.params["list"] != "" && command.StatusOf(err) == http.StatusNotFound {
			return []byte("{}\n"), nil // a list of nothing
		}
		return nil, err
	}
	defer resp.Body.Close()
	return command.ReadBounded(resp.Body, maxAnswer)
}

// put adds a file, or says in the index why it is not there. The error is of the archive.
func (k *collector) put(name string, text []byte, why error) error {
	if why != nil {
		k.index.Missing = append(k.index.Missing, missing{name, command.Shortly(why)})
		return nil
	}
	k.index.Files++
	return k.archive.add(name, text)
}

func (k *collector) finish() error {
	k.index.Ended = time.Now().UTC()
	text, err := json.MarshalIndent(k.index, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the index: %w", err)
	}
	if err := k.archive.add("index.json", append(text, '\n')); err != nil {
		return err
	}
	return k.archive.close()
}
