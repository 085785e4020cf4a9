// Command bench measures Coffer beside its yardsticks, in one run on one machine, and writes the table of
// docs/benchmarks.md. The yardsticks do the unavoidable part of the same work: a bare net/http server that
// answers the same bytes, one that only commits bodies to a file, and the disk alone.
//
// Everything that is measured over HTTP runs in processes of its own: the servers, and the load generator (this
// program, as "bench load"), which is the same for Coffer and for the bare server ("bench bare"). They share the
// machine's cores.
//
// Here are the flags and the list of sections. Package parts measures what needs no server, packages servers and
// scale what real servers do, stages what a request costs in each stage; package run is what their sections share.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/coffer-project/coffer/test/bench/parts"
	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/bench/scale"
	"github.com/coffer-project/coffer/test/bench/servers"
	"github.com/coffer-project/coffer/test/harness"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "load":
			exit(run.LoadMain(os.Args[2:]))
		case "bare":
			exit(run.BareMain(os.Args[2:]))
		case "form":
			exit(servers.FormMain())
		case "provider":
			exit(servers.ProviderMain())
		case "sdk":
			exit(servers.SDKMain(os.Args[2:]))
		case "start":
			exit(parts.StartMain())
		}
	}
	exit(benchMain(os.Args[1:]))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func benchMain(args []string) (err error) {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	smoke := flags.Bool("smoke", false, "measure everything briefly, to see that it works")
	out := flags.String("out", "", "file to write the table to; default: standard output only")
	secrets := flags.Int("secrets", 100_000, "secrets in the restart measurement")
	leases := flags.Int("leases", 1_000_000, "leases, and tokens, in the measurement of leases")
	seconds := flags.Duration("time", 6*time.Second, "duration of each measurement")
	many := flags.Int("scale", 10_000, "how many mounts, namespaces, policies and so on, in the rows of scale")
	kills := flags.Int("kills", 7, "leaders to kill in the failover measurement")
	peer := flags.String("peer", "", "program of another server of the family (vault, bao) to measure beside")
	names := flags.String("only", "", "regular expression: measure only rows it matches")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o := run.Options{Smoke: *smoke, Seconds: *seconds, Secrets: *secrets, Leases: *leases, Scale: *many, Kills: *kills, Peer: *peer}
	if o.Smoke {
		o.Seconds, o.Secrets, o.Leases, o.Scale, o.Kills = time.Second, min(o.Secrets, 2000), min(o.Leases, 20_000), min(o.Scale, 200), 1
	}
	var only *regexp.Regexp // nil: all sections
	if *names != "" {
		if only, err = regexp.Compile(*names); err != nil {
			return err
		}
	}
	b := &run.Bench{Options: o}
	failed := measure(b, only)
	text := b.Table()
	fmt.Print(text)
	if *out == "" {
		return failed
	}
	root, err := harness.Root()
	if err != nil {
		return errors.Join(failed, err)
	}
	if !filepath.IsAbs(*out) {
		*out = filepath.Join(root, *out)
	}
	return errors.Join(failed, os.WriteFile(*out, []byte(text), 0o644))
}

// measure runs the sections whose names match, also after one that failed: the error names those.
func measure(b *run.Bench, only *regexp.Regexp) (failed error) {
	defer harness.RemoveBinary()
	for _, section := range []struct {
		name string
		do   func(*run.Bench, *run.Scope)
	}{
		{"core", parts.Commits}, {"leases", parts.Leases}, {"one node", servers.OneNode}, {"day", servers.Day}, {"peer", servers.Peer},
		{"pipeline", servers.Pipeline}, {"SAML logins", servers.SAMLLogins}, {"cloud credentials", servers.CloudCredentials},
		{"plugins", servers.Plugins}, {"secret sync", servers.SecretSync}, {"many synced", servers.ManySynced},
		{"three nodes", servers.ThreeNodes},
		{"replication", parts.Replication}, {"large values", parts.LargeValues}, {"secondaries", parts.Secondaries}, {"resync", parts.Resync}, {"cost of replication", servers.ReplicationCost},
		{"failover", servers.Failover}, {"dev server", servers.DevServer}, {"restart", servers.Restart}, {"scale", scale.Scale},
	} {
		if only != nil && !only.MatchString(section.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring: %s\n", section.name)
		if err := run.InScope(func(s *run.Scope) { section.do(b, s) }); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", section.name, err))
		}
	}
	return failed
}
