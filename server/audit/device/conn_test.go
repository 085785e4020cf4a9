package device_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/storage/storagetest/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// collector takes lines on a stream socket.
type collector struct {
	listener net.Listener
	lines    chan string // buffered so that no test has to read them; never closed
	conns    chan net.Conn
	done     chan struct{} // closed when the collector has stopped
}

func collect(t *testing.T, network, address string) *collector {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{listener: l, lines: make(chan string, 1000), conns: make(chan net.Conn, 100), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		var readers sync.WaitGroup
		defer readers.Wait()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.conns <- conn
			readers.Go(func() {
				defer conn.Close()
				for s := bufio.NewScanner(conn); s.Scan(); {
					c.lines <- s.Text()
				}
			})
		}
	}()
	t.Cleanup(c.stop)
	return c
}

// stop ends the collector and all its connections.
func (c *collector) stop() {
	c.listener.Close()
	for {
		select {
		case conn := <-c.conns:
			conn.Close()
		case <-c.done:
			return
		}
	}
}

func socketConfig(network, address string, options ...string) device.Config {
	c := device.Config{
		Path: "s", Type: "socket", Salt: device.NewSalt(),
		Options: map[string]string{"address": address, "socket_type": network, "write_timeout": "20s"},
	}
	for i := 0; i < len(options); i += 2 {
		c.Options[options[i]] = options[i+1]
	}
	return c
}

func openSocket(t *testing.T, network, address string, options ...string) device.Device {
	t.Helper()
	d, err := socketConfig(network, address, options...).Open(device.Files{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func assertLine(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	if got := <-lines; got != want {
		t.Errorf("the collector got %q, want %q", got, want)
	}
}

func TestSocketStreams(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			c := collect(t, network, address)
			d := openSocket(t, network, c.listener.Addr().String())
			write(t, d, "one\n")
			write(t, d, "two\n")
			assertLine(t, c.lines, "one")
			assertLine(t, c.lines, "two")
			if err := d.Reload(); err != nil {
				t.Fatal(err)
			}
			write(t, d, "three\n")
			assertLine(t, c.lines, "three")
			if n := len(c.conns); n != 2 {
				t.Errorf("%d connections, want one before and one after Reload", n)
			}
			if err := errors.Join(d.Close(), d.Close()); err != nil {
				t.Errorf("closing twice: %v", err)
			}
			if err := d.Write(t.Context(), []byte("x\n")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("writing to a closed device = %v, want ErrClosed", err)
			}
		})
	}
}

// A collector that was restarted costs no record and no error.
func TestSocketReconnects(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	first := collect(t, "unix", address)
	d := openSocket(t, "unix", address)
	write(t, d, "one\n")
	assertLine(t, first.lines, "one")
	first.stop()
	if err := d.Write(t.Context(), []byte("lost\n")); err == nil {
		t.Error("a line was written although no listener is there")
	}
	second := collect(t, "unix", address)
	write(t, d, "two\n")
	assertLine(t, second.lines, "two")
	second.stop()
	third := collect(t, "unix", address)
	write(t, d, "three\n") // the old connection is dead, which only the write finds out
	assertLine(t, third.lines, "three")
}

// A peer that hung up is noticed before a line is sent into nowhere: over TCP the first write would succeed.
func TestSocketNoticesHangUp(t *testing.T) {
	first := collect(t, "tcp", "127.0.0.1:0")
	address := first.listener.Addr().String()
	d := openSocket(t, "tcp", address)
	write(t, d, "one\n")
	assertLine(t, first.lines, "one")
	first.stop()
	device.AwaitHangUp(d)
	second := collect(t, "tcp", address)
	write(t, d, "two\n")
	assertLine(t, second.lines, "two")
}

// A daemon on a datagram socket that was restarted costs no record: only the write finds out.
func TestSocketDatagramReconnects(t *testing.T) {
	address := filepath.Join(t.TempDir(), "s")
	d := openSocket(t, "unixgram", address)
	buf := make([]byte, 100)
	for _, want := range []string{"one\n", "two\n", "three\n"} {
		l, err := net.ListenPacket("unixgram", address)
		if err != nil {
			t.Fatal(err)
		}
		write(t, d, want)
		if n, _, err := l.ReadFrom(buf); err != nil || string(buf[:n]) != want {
			t.Errorf("datagram %q, %v, want %q", buf[:n], err, want)
		}
		if err := errors.Join(l.Close(), os.RemoveAll(address)); err != nil {
			t.Fatal(err)
		}
	}
}

// No request waits longer than the time-out, however many wait before it.
func TestSocketTimeoutIsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var peers []net.Conn
		d := device.NewConnAt(2*time.Second, func(context.Context) (net.Conn, error) {
			near, far := net.Pipe() // far reads nothing
			peers = append(peers, far)
			return near, nil
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Millisecond)
				start := time.Now()
				err := d.Write(t.Context(), []byte("x\n"))
				if took := time.Since(start); err == nil || took != 2*time.Second {
					t.Errorf("writer %d: %v after %v, want a failure after 2s", i, err, took)
				}
			})
		}
		wg.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		for _, p := range peers {
			p.Close()
		}
	})
}

// Not even a name server that hangs holds up those who wait for the connection.
func TestSocketDialHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device.NewConnAt(2*time.Second, func(context.Context) (net.Conn, error) {
			time.Sleep(time.Minute)
			return nil, os.ErrDeadlineExceeded
		})
		var wg sync.WaitGroup
		wg.Go(func() { d.Write(t.Context(), []byte("x\n")) })
		synctest.Wait()
		start := time.Now()
		if err := d.Write(t.Context(), []byte("y\n")); err == nil || time.Since(start) != 2*time.Second {
			t.Errorf("the second line: %v after %v, want a failure after 2s", err, time.Since(start))
		}
		wg.Wait()
	})
}

func TestSocketDatagrams(t *testing.T) {
	for _, network := range []string{"udp", "unixgram"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unixgram" {
				address = filepath.Join(t.TempDir(), "s")
			}
			l, err := net.ListenPacket(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			d := openSocket(t, network, l.LocalAddr().String())
			write(t, d, "one\n")
			if err := d.Write(t.Context(), bytes.Repeat([]byte("x"), 8<<20)); err == nil || !strings.Contains(err.Error(), "too long") {
				t.Errorf("a line of 8 MiB in a datagram = %v, want that it is too long", err)
			}
			write(t, d, "two\n")
			buf := make([]byte, 100)
			for _, want := range []string{"one\n", "two\n"} {
				if n, _, err := l.ReadFrom(buf); err != nil || string(buf[:n]) != want {
					t.Errorf("datagram %q, %v, want %q", buf[:n], err, want)
				}
			}
		})
	}
}

// deaf listens, but reads nothing of what it is sent.
func deaf(t *testing.T) (address string) {
	t.Helper()
	address = filepath.Join(t.TempDir(), "deaf")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return address
}

// A collector that reads nothing fails the record instead of holding it for ever, also for those who wait
// behind it.
func TestSocketTimeout(t *testing.T) {
	d := openSocket(t, "unix", deaf(t), "write_timeout", "50ms")
	line := bytes.Repeat([]byte("x"), 16<<20) // more than any buffer holds
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := d.Write(t.Context(), line); err == nil || !strings.Contains(err.Error(), "time") {
				t.Errorf("Write = %v, want a time-out", err)
			}
		})
	}
	wg.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestSyslog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := device.NewSyslogAt("LOCAL7", "vault-audit", time.Minute, filepath.Join(t.TempDir(), "missing"), path)
	defer d.Close()
	write(t, d, `{"a":1}`+"\n")
	buf := make([]byte, 1000)
	n, _, err := l.ReadFrom(buf)
	want := fmt.Sprintf(`^<190>[A-Z][a-z]{2} [ 1-3][0-9] [0-9:]{8} vault-audit\[%d\]: \{"a":1\}\n$`, os.Getpid())
	if err != nil || !regexp.MustCompile(want).Match(buf[:n]) {
		t.Errorf("message %q, %v, want %s", buf[:n], err, want)
	}
}

func TestSyslogStream(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	c := collect(t, "unix", path)
	d := device.NewSyslogAt("AUTH", "coffer", time.Minute, path)
	defer d.Close()
	write(t, d, "one\n")
	if got := <-c.lines; !strings.HasPrefix(got, "<38>") || !strings.HasSuffix(got, "]: one") {
		t.Errorf("message %q", got)
	}
	none := device.NewSyslogAt("AUTH", "coffer", time.Minute, path+".not")
	if err := none.Write(t.Context(), []byte("x\n")); err == nil || !strings.Contains(err.Error(), "no syslog daemon") {
		t.Errorf("without a daemon: %v", err)
	}
}

func TestConnectionOptions(t *testing.T) {
	tests := []struct{ name, kind, key, value, want string }{
		{"no port", "socket", "address", "host", "port"},
		{"empty port", "socket", "address", "host:", "port"},
		{"relative path", "socket", "socket_type", "unix", "absolute path"},
		{"unknown network", "socket", "socket_type", "tcp7", `"tcp"`},
		{"never", "socket", "write_timeout", "0", "duration"},
		{"for ever", "socket", "write_timeout", "1h", "duration"},
		{"negative", "socket", "write_timeout", "-1s", "duration"},
		{"of a file", "socket", "file_path", "/x", `unknown option "file_path"`},
		{"of a socket", "file", "address", "a:1", `unknown option "address"`},
		{"facility", "syslog", "facility", "LOCAL8", "facility"},
		{"no tag", "syslog", "tag", "", "tag"},
		{"tag with a line", "syslog", "tag", "a\nb", "tag"},
		{"tag with a colon", "syslog", "tag", "a:", "tag"},
		{"long tag", "syslog", "tag", strings.Repeat("x", 33), "tag"},
		{"elide", "syslog", "elide_list_responses", "some", "true or false"},
	}
	base := map[string]map[string]string{"socket": {"address": "host:1"}, "file": {"file_path": "discard"}, "syslog": {}}
	for _, tt := range tests {
		c := device.Config{Path: "a", Type: tt.kind, Options: map[string]string{tt.key: tt.value}}
		for k, v := range base[tt.kind] {
			if _, ok := c.Options[k]; !ok {
				c.Options[k] = v
			}
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Validate = %v, want %q", tt.name, err, tt.want)
		}
	}
	for _, c := range []device.Config{
		socketConfig("udp", "[::1]:514", "prefix", "x", "format", "json"), socketConfig("unixgram", "/run/x"),
		{Path: "a", Type: "syslog"}, {Path: "a", Type: "syslog", Options: map[string]string{"facility": "daemon", "tag": "vault"}},
	} {
		if err := c.Validate(); err != nil {
			t.Errorf("%v %v: %v", c, c.Options, err)
		}
	}
}
