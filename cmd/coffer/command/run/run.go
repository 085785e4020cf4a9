// Package run has "coffer run": a program that gets secrets as variables or files, which are kept current while it runs. Start with run; source
// reads one secret, and child is the program.
package run

import (
	"context"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/urfave/cli/v3"
)

// What is done when a secret has changed; anything else is the name of a signal.
const (
	onChangeNothing = "none"
	onChangeRestart = "restart"
)

func Command() *cli.Command {
	return command.New(command.Spec{
		Name: "run", Args: "[--] PROGRAM [ARGUMENT …]", Min: 1, Max: -1, Usage: "run a program with secrets as variables or files",
		Help: `Runs a program with secrets in its environment, or in files of mode 0600 that are removed when it ends. Nothing is stored elsewhere: the files
are in memory where the system has a directory for that.

-secret=PATH makes each key of a secret a variable of that name, -env=NAME=PATH#KEY one key a variable. A path is one of a key/value engine,
or any other that is read, such as credentials of the cloud engine; a later one replaces variables of an earlier one. With -files they are
files, named like the variables, in the directory that the variable COFFER_SECRETS_DIR names.

While the program runs, its token and leases are renewed, and secrets are read again every -interval. -on-change says what happens when one has
changed: "none", "restart" (SIGTERM, after 10 seconds SIGKILL, and a new start), or a signal such as HUP. Files are up to date before.
If a secret cannot be read again, the program keeps what it has. Leases are revoked at the end, for which the token needs the right to update
sys/leases/revoke.

The exit status is that of the program, 128+N if signal N ended it. Signals are passed on. The program does not get the server's token, unless
-pass-token is given.

Examples:

  $ coffer run -secret=secret/app -- ./server -port=8080
  $ coffer run -env=PGPASSWORD=secret/db#password -- psql -h db
  $ coffer run -files -secret=secret/tls -on-change=HUP -- nginx -g 'daemon off;'`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "secret", Usage: "all keys of the secret at `PATH`; repeatable"},
			&cli.StringSliceFlag{Name: "env", Usage: "one key as a variable: `NAME=PATH#KEY`; repeatable"},
			&cli.StringFlag{Name: "prefix", Usage: "put `TEXT` before the names of -secret"},
			&cli.BoolFlag{Name: "upper", Usage: "names of -secret in upper case, with _ for what variables cannot have"},
			&cli.BoolFlag{Name: "files", Usage: "write files, and no variables but COFFER_SECRETS_DIR"},
			&cli.StringFlag{Name: "on-change", Value: onChangeNothing, Usage: "`none|restart|SIGNAL` when a secret has changed"},
			&cli.StringFlag{Name: "interval", Value: "1m", Usage: "read secrets again every `DURATION`"},
			&cli.BoolFlag{Name: "pass-token", Usage: "leave COFFER_TOKEN, BAO_TOKEN and VAULT_TOKEN in the environment"},
		},
	}, run)
}

// want is what the flags ask for.
type want struct {
	sources  []*source
	interval time.Duration
	onChange string
}

func parse(c *command.Call) (want, error) {
	w := want{onChange: strings.ToLower(c.String("on-change"))}
	if c.Bool("output-curl-string") || c.Bool("output-policy") {
		return w, command.Usagef("%s sends several requests: it cannot print one", c.FullName())
	}
	var err error
	if w.interval, err = command.ParseDuration(c.String("interval")); err != nil || w.interval < time.Second {
		return w, command.Usagef("-interval takes a duration from 1s, such as 1m")
	}
	if w.onChange != onChangeNothing && w.onChange != onChangeRestart {
		if _, err := signalNamed(w.onChange); err != nil {
			return w, err
		}
	}
	for _, path := range c.StringSlice("secret") {
		w.sources = append(w.sources, &source{path: path, prefix: c.String("prefix"), upper: c.Bool("upper")})
	}
	for _, text := range c.StringSlice("env") {
		name, rest, _ := strings.Cut(text, "=")
		path, key, ok := strings.Cut(rest, "#")
		if !ok || name == "" || path == "" || key == "" {
			return w, command.Usagef("-env takes NAME=PATH#KEY, such as -env=PGPASSWORD=secret/db#password")
		}
		i := slices.IndexFunc(w.sources, func(s *source) bool { return s.path == path && s.keys != nil })
		if i < 0 {
			i = len(w.sources)
			w.sources = append(w.sources, &source{path: path, keys: map[string][]string{}})
		}
		w.sources[i].keys[key] = append(w.sources[i].keys[key], name)
	}
	if len(w.sources) == 0 {
		return w, command.Usagef("name the secrets, with -secret=PATH or -env=NAME=PATH#KEY, before the program")
	}
	return w, nil
}

func run(signals context.Context, c *command.Call) error {
	w, err := parse(c)
	if err != nil {
		return err
	}
	if _, err := c.Connect(); err != nil {
		return err
	}
	// A signal ends the program, not the requests: leases are still to be revoked.
	ctx, cancel := context.WithCancel(context.WithoutCancel(signals))
	defer cancel()
	values := map[string]string{}
	defer func() { revoke(ctx, c, w.sources) }()
	for _, s := range w.sources {
		if err := s.resolve(signals, c); err != nil {
			return err
		}
		if _, err := s.read(signals, c); err != nil {
			return err
		}
	}
	if err := merge(values, w.sources); err != nil {
		return err
	}
	caught := make(chan os.Signal, 16)
	signal.Notify(caught, forwarded...) // from here on they are the program's
	defer signal.Stop(caught)
	if err := signals.Err(); err != nil {
		return err
	}
	p := &child{call: c, args: c.Args().Slice(), passToken: c.Bool("pass-token")}
	if c.Bool("files") {
		if p.dir, err = newDir(c); err != nil {
			return err
		}
		defer p.dir.remove()
	}
	if err := p.set(values); err != nil {
		return err
	}
	changed := make(chan map[string]string)
	go keep(ctx, c, w, changed)
	return p.supervise(w.onChange, caught, changed)
}

// merge joins what the sources hold; a later one wins.
func merge(into map[string]string, sources []*source) error {
	for _, s := range sources {
		for name, value := range s.values {
			if strings.ContainsAny(name, "=\x00/") || name == "." || name == ".." {
				return command.Usagef("the key %q of %s is no name of a variable: use -env, or -upper", name, s.path)
			}
			into[name] = value
		}
	}
	return nil
}

// keep renews the token and the leases, reads secrets again, and sends all values each time that one has changed, until ctx ends.
func keep(ctx context.Context, c *command.Call, w want, changed chan<- map[string]string) {
	token := renewal{next: time.Now()}
	for {
		next := token.next
		for _, s := range w.sources {
			if s.next.Before(next) {
				next = s.next
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(next)):
		}
		if now := time.Now(); !now.Before(token.next) {
			token.renew(ctx, c, w.interval)
		}
		different := false
		for _, s := range w.sources {
			if time.Now().Before(s.next) {
				continue
			}
			differs, err := s.refresh(ctx, c, w.interval)
			if err != nil && ctx.Err() == nil && !s.failed {
				c.Warnf("coffer run: reading %s again: %s; the program keeps what it has", s.path, command.Shortly(err))
			}
			s.failed = err != nil
			different = different || differs
		}
		if !different {
			continue
		}
		values := map[string]string{}
		if err := merge(values, w.sources); err != nil {
			c.Warnf("coffer run: %v", err)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case changed <- values:
		}
	}
}

// renewal is when the token is looked at next.
type renewal struct {
	next   time.Time
	failed bool // the last attempt, which the user was told
}

// renew renews the token, at a third of what it has left. One that cannot be renewed is used as long as it lives.
func (r *renewal) renew(ctx context.Context, c *command.Call, interval time.Duration) {
	left, err := renewToken(ctx, c)
	r.next = time.Now().Add(min(max(left/3, time.Second), time.Hour))
	if err != nil {
		r.next = time.Now().Add(min(interval, time.Hour))
		if ctx.Err() == nil && !r.failed {
			c.Warnf("coffer run: renewing the token: %s", command.Shortly(err))
		}
	}
	r.failed = err != nil
}

// renewToken returns how long the token lives now; one that is not renewable for as long as it matters.
func renewToken(ctx context.Context, c *command.Call) (time.Duration, error) {
	a, err := c.Get(ctx, "auth/token/lookup-self")
	if command.StatusOf(err) == http.StatusForbidden || err == nil && a.Data()["renewable"] != true {
		return 3 * time.Hour, nil // a token whose policies do not let it look at itself is none that renews itself
	}
	if err != nil {
		return 0, err
	}
	a, err = c.Put(ctx, "auth/token/renew-self", map[string]any{})
	if err != nil {
		return 0, err
	}
	if a.Secret == nil || a.Secret.Auth == nil {
		return 0, command.ServerErrorf("the answer has no token")
	}
	return time.Duration(a.Secret.Auth.LeaseDuration) * time.Second, nil
}
