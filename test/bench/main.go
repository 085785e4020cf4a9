// Command bench measures Coffer beside its yardsticks, in one run on one machine, and writes the table of
// docs/benchmarks.md. The yardsticks do the unavoidable part of the same work: a bare net/http server that
// answers the same bytes, one that only commits bodies to a file, and the disk alone.
//
// Everything that is measured runs in processes of its own: the servers, and the load generator (this program,
// as "bench load"), which is the same for Coffer and for the bare server ("bench bare"). They share the
// machine's cores.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/coffer-project/coffer/test/harness"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "load":
			exit(loadMain(os.Args[2:]))
		case "bare":
			exit(bareMain(os.Args[2:]))
		case "form":
			exit(formMain())
		case "provider":
			exit(providerMain())
		case "start":
			exit(startMain())
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

// options of a run.
type options struct {
	smoke   bool
	out     string
	seconds time.Duration // of each measurement
	secrets int           // in the restart measurement
	leases  int           // in the measurement of leases, and as many tokens
	kills   int
	only    *regexp.Regexp
}

func benchMain(args []string) (err error) {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	smoke := flags.Bool("smoke", false, "measure everything briefly, to see that it works")
	out := flags.String("out", "", "file to write the table to; default: standard output only")
	secrets := flags.Int("secrets", 100_000, "secrets in the restart measurement")
	leases := flags.Int("leases", 1_000_000, "leases, and tokens, in the measurement of leases")
	seconds := flags.Duration("time", 6*time.Second, "duration of each measurement")
	kills := flags.Int("kills", 7, "leaders to kill in the failover measurement")
	only := flags.String("only", "", "regular expression: measure only rows it matches")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o := options{smoke: *smoke, out: *out, seconds: *seconds, secrets: *secrets, leases: *leases, kills: *kills}
	if o.smoke {
		o.seconds, o.secrets, o.leases, o.kills = time.Second, min(o.secrets, 2000), min(o.leases, 20_000), 1
	}
	if *only != "" {
		if o.only, err = regexp.Compile(*only); err != nil {
			return err
		}
	}
	b := &bench{options: o}
	if err := b.run(); err != nil {
		return err
	}
	text := b.table()
	fmt.Print(text)
	if o.out == "" {
		return nil
	}
	root, err := harness.Root()
	if err != nil {
		return err
	}
	if !filepath.IsAbs(o.out) {
		o.out = filepath.Join(root, o.out)
	}
	return os.WriteFile(o.out, []byte(text), 0o644)
}
