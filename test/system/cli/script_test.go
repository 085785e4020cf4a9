package cli_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coffer-project/coffer/test/harness"
)

func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"browser": playBrowser, "caller": playCaller})
}

// tests removes the binary after the tests.
type tests struct{ *testing.M }

func (t tests) Run() int {
	defer harness.RemoveBinary()
	return t.M.Run()
}

// TestScripts runs the scripts which need no server.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", Setup: setup(t)})
}

// TestLive runs the scripts which talk to a server of their own.
func TestLive(t *testing.T) {
	providers, clouds, places := &samlProviders{t: t}, &cloudProviders{t: t}, &syncPlaces{t: t}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/live", Setup: setup(t),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"dev-server": devServer, "server": startServer, "stop-server": stopServer,
			"capture": capture, "eventually": eventually, "totp": totpCode, "page": writePage, "client-cert": clientCert(t),
			"awstest": clouds.start,
			"places":  places.start, "place-put": places.put, "place-get": places.get,
			"idp": providers.start, "idp-user": providers.setUser, "idp-begin": providers.begin,
		},
	})
}

// setup gives scripts a home of their own and the command coffer.
func setup(t *testing.T) func(*testscript.Env) error {
	program := harness.Binary(t)
	return func(env *testscript.Env) error {
		env.Setenv("HOME", env.WorkDir)
		env.Setenv("GOGC", os.Getenv("GOGC"))
		env.Setenv("COFFER_KEYRING", "off") // which would be that of the user who runs the tests
		// Under -race each process would wait a second before it exits, for races which are still going on.
		env.Setenv("GORACE", "atexit_sleep_ms=0")
		env.Setenv("SERVER", program)
		dir := filepath.Join(env.WorkDir, ".tmp", "bin") // .tmp is the script's TMPDIR
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		env.Setenv("PATH", dir+string(filepath.ListSeparator)+env.Getenv("PATH"))
		return os.Symlink(program, filepath.Join(dir, "coffer"))
	}
}

// stopTime is how long a server may take to end when asked to, before it is killed.
const stopTime = 10 * time.Second

// devServer is the command dev-server [ARG …]: it starts a development server on a free port.
func devServer(ts *testscript.TestScript, neg bool, args []string) {
	startServer(ts, neg, append([]string{"-dev", "-dev-listen-address=127.0.0.1:0", "-dev-root-token-id=root", "-dev-no-store-token"}, args...))
	ts.Setenv("COFFER_TOKEN", "root")
}

// eventually is the command eventually PROGRAM ARG …: it runs the program again and again until it succeeds.
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: eventually PROGRAM ARG …")
	}
	deadline := time.After(30 * time.Second)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("%v failed to the end: %v", args, err)
		case <-again.C:
		}
	}
}

// startServer is the command server ARG …: it starts a server, waits until it says that it is ready, and makes it the one
// commands talk to. It ends with the script.
func startServer(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("a server cannot be negated")
	}
	cmd := exec.Command(ts.Getenv("SERVER"), append([]string{"server"}, args...)...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = []string{"HOME=" + ts.Getenv("HOME"), "PATH=" + ts.Getenv("PATH"), "GORACE=" + ts.Getenv("GORACE"), "TMPDIR=" + ts.MkAbs(".")}
	stderr, err := cmd.StderrPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ended := make(chan struct{}) // closed when the process is gone
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(stopTime, func() { _ = cmd.Process.Kill() })
		<-ended
		kill.Stop()
	}
	ts.Defer(stop)
	running.Store(ts, stop)
	ready := make(chan string, 1) // the address, or "" if the server ended without one
	go func() {
		defer close(ended)
		said := awaitReady(stderr, ready)
		if err := cmd.Wait(); said == "" {
			ts.Logf("the server ended: %v", err)
		}
	}()
	address := <-ready
	if address == "" {
		ts.Fatalf("the server did not become ready")
	}
	ts.Setenv("COFFER_ADDR", address)
}

// running has, for each script, the function that stops the server it started last.
var running sync.Map

// stopServer is the command stop-server: it stops the server and waits until it is gone.
func stopServer(ts *testscript.TestScript, neg bool, args []string) {
	stop, ok := running.Load(ts)
	if neg || len(args) > 0 || !ok {
		ts.Fatalf("usage: stop-server, after server")
	}
	stop.(func())()
}

// awaitReady sends the address the server names on stderr, then reads on until the server ends.
func awaitReady(stderr io.Reader, ready chan<- string) string {
	address := ""
	lines := bufio.NewScanner(stderr)
	for address == "" && lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "coffer: ready at "); ok {
			address, _, _ = strings.Cut(rest, " ")
		}
	}
	ready <- address
	_, _ = io.Copy(io.Discard, stderr)
	return address
}

// capture is the command capture NAME: it sets the variable NAME to the stdout of the command before.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: capture NAME")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}
