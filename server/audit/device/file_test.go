package device_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/audit/device"
)

// testFiles lets devices write where tests do.
var testFiles = device.Files{Roots: []string{os.TempDir(), "/dev"}}

func fileConfig(path string, options ...string) device.Config {
	c := device.Config{Path: "f", Type: "file", Options: map[string]string{"file_path": path}, Salt: device.NewSalt()}
	for i := 0; i < len(options); i += 2 {
		c.Options[options[i]] = options[i+1]
	}
	return c
}

func openFile(t *testing.T, path string, options ...string) device.Device {
	t.Helper()
	d, err := fileConfig(path, options...).Open(testFiles)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func write(t *testing.T, d device.Device, line string) {
	t.Helper()
	if err := d.Write(t.Context(), []byte(line)); err != nil {
		t.Fatal(err)
	}
}

func assertFile(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v, want %q", filepath.Base(path), got, err, want)
	}
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	d := openFile(t, path)
	write(t, d, "one\n")
	write(t, d, "two\n")
	assertFile(t, path, "one\ntwo\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, d, "three\n")
	if err := d.Reload(); err != nil {
		t.Fatal(err)
	}
	write(t, d, "four\n")
	assertFile(t, path+".1", "one\ntwo\nthree\n")
	assertFile(t, path, "four\n")
	again := openFile(t, path)
	write(t, again, "five\n")
	assertFile(t, path, "four\nfive\n")
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if err := d.Write(t.Context(), []byte("x\n")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("writing to a closed device = %v, want ErrClosed", err)
	}
}

func TestReloadFailureKeepsWriting(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := openFile(t, filepath.Join(dir, "a.log"))
	write(t, d, "one\n")
	moved := dir + ".moved"
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	if err := d.Reload(); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("Reload = %v, want an error about the directory", err)
	}
	write(t, d, "two\n")
	assertFile(t, filepath.Join(moved, "a.log"), "one\ntwo\n")
}

func TestFileMode(t *testing.T) {
	tests := []struct {
		name     string
		existing fs.FileMode // 0: there is no file yet
		options  []string
		want     fs.FileMode
	}{
		{"new", 0, nil, 0o600},
		{"new, given", 0, []string{"mode", "0640"}, 0o640},
		{"new, left alone", 0, []string{"mode", "0000"}, 0o600},
		{"existing", 0o644, nil, 0o600},
		{"existing, left alone", 0o644, []string{"mode", "0"}, 0o644},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "audit.log")
		if tt.existing != 0 {
			if err := os.WriteFile(path, nil, tt.existing); err != nil {
				t.Fatal(err)
			}
		}
		write(t, openFile(t, path, tt.options...), "x\n")
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != tt.want {
			t.Errorf("%s: mode %v, %v, want %v", tt.name, info.Mode(), err, tt.want)
		}
	}
}

func TestFileProblems(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing", "a.log"): "the directory " + filepath.Join(dir, "missing") + " does not exist",
		filepath.Join(file, "a.log"):           "not a directory",
		dir:                                    "not a regular file",
		pipe:                                   "not a regular file",
		"/dev/full":                            "no space left",
	} {
		err := openFile(t, path).Write(t.Context(), []byte("x\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("writing to %s = %v, want %q", path, err, want)
		}
	}
}

// After a crash in the middle of a line the next line starts on its own.
func TestUnfinishedLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("one\nhal"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := openFile(t, path)
	write(t, d, "two\n")
	write(t, d, "three\n")
	assertFile(t, path, "one\nhal\ntwo\nthree\n")
}

// limited writes to a buffer until limit is used up.
type limited struct {
	bytes.Buffer
	limit int
	quiet bool // report the short count without an error
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) <= l.limit {
		l.limit -= len(p)
		return l.Buffer.Write(p)
	}
	n, _ := l.Buffer.Write(p[:l.limit])
	l.limit = 0
	if l.quiet {
		return n, nil
	}
	return n, syscall.ENOSPC
}

func (l *limited) Close() error { return nil }

func TestPartialWrite(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		w := &limited{limit: 6, quiet: quiet}
		d := device.NewTornDevice(w)
		write(t, d, "one\n")
		wantErr := error(syscall.ENOSPC)
		if quiet {
			wantErr = io.ErrShortWrite
		}
		for range 2 { // the second try writes nothing at all
			if err := d.Write(t.Context(), []byte("twotwo\n")); !errors.Is(err, wantErr) {
				t.Fatalf("a partial write = %v, want %v", err, wantErr)
			}
		}
		w.limit = 100
		write(t, d, "three\n")
		write(t, d, "four\n")
		if got, want := w.String(), "one\ntw\nthree\nfour\n"; got != want {
			t.Errorf("after partial writes: %q, want %q", got, want)
		}
	}
}

// Lines of several writers, and of two devices on one file, never mix.
func TestLinesStayWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	devices := []device.Device{openFile(t, path), openFile(t, path)}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			line := []byte(strings.Repeat(fmt.Sprint(i), 3000+i*1000) + "\n")
			for range 50 {
				if err := devices[i%2].Write(t.Context(), line); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(raw) {
		if len(line) == 1 {
			continue // a device that is opened while another writes takes the half of a line it sees for torn
		}
		n++
		i := int(line[0] - '0')
		if want := strings.Repeat(fmt.Sprint(i), 3000+i*1000) + "\n"; string(line) != want {
			t.Fatalf("line %d is mixed", n)
		}
	}
	if n != 400 {
		t.Errorf("%d lines, want 400", n)
	}
}

func TestOptions(t *testing.T) {
	tests := []struct{ name, key, value, want string }{
		{"no path", "file_path", "", "missing"},
		{"executable", "mode", "0755", "execute"},
		{"set-uid", "mode", "4600", "octal"},
		{"not octal", "mode", "0689", "octal"},
		{"log_raw", "log_raw", "perhaps", "true or false"},
		{"hmac_accessor", "hmac_accessor", "", "true or false"},
		{"format", "format", "jsonx", `"json"`},
		{"newline in the prefix", "prefix", "a\nb", "control"},
		{"script", "prefix", "#!/bin/sh", "#!"},
		{"unknown", "filepath", "/x", `unknown option "filepath"`},
	}
	for _, tt := range tests {
		if err := fileConfig("/tmp/x", tt.key, tt.value).Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Validate = %v, want %q", tt.name, err, tt.want)
		}
	}
	if err := fileConfig("stdout", "format", "json", "log_raw", "1", "hmac_accessor", "F", "mode", "0640", "prefix", "x: ").Validate(); err != nil {
		t.Errorf("good options: %v", err)
	}
	c := fileConfig("stdout")
	if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, fmt.Sprint(c.Salt[:4])[1:8]) {
		t.Errorf("the configuration prints its salt: %s", text)
	}
}

// A standard stream that is not read any more fails records, and holds up neither those behind them nor its end.
func TestStreamThatNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := device.NewStreamAt(w, 200*time.Millisecond)
	line := []byte(strings.Repeat("x", 1023) + "\n")
	written := 0
	for err == nil {
		if err = d.Write(t.Context(), line); err == nil {
			written++
		}
	}
	if !strings.Contains(err.Error(), "the reader does not read") || written == 0 {
		t.Fatalf("after %d lines: %v", written, err)
	}
	if err := d.Write(t.Context(), line); err == nil {
		t.Error("a line behind one that is not read is written")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	// Once the pipe is read again, the line that waited comes whole, and the next ones too.
	lines := bufio.NewReader(r)
	read := func() string {
		text, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for range written + 1 {
		if text := read(); text != string(line) {
			t.Fatalf("read a line of %d bytes", len(text))
		}
	}
	if err := d.Write(t.Context(), []byte("next\n")); err != nil {
		t.Error(err)
	}
	if text := read(); text != "next\n" {
		t.Errorf("then %q", text)
	}
	r.Close()
}
