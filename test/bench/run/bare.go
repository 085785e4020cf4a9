package run

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// BareMain is the yardstick server. GET answers a fixed body; POST commits the body to a file, many bodies with
// one sync, and answers a short text. It looks at nothing.
func BareMain(args []string) error {
	flags := flag.NewFlagSet("bare", flag.ExitOnError)
	dir := flags.String("dir", ".", "directory of the file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	answer, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(*dir, "bare.log"))
	if err != nil {
		return err
	}
	defer file.Close()
	log := &groupCommit{file: file, wake: make(chan struct{}, 1)}
	go log.run()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["Content-Type"] = []string{"application/json"}
		h["Cache-Control"] = []string{"no-store"}
		if r.Method == http.MethodGet {
			_, _ = w.Write(answer)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = log.commit(body)
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(answer)
	})}
	return server.Serve(l)
}

// groupCommit appends records to a file: whoever comes while a sync runs shares the next one.
type groupCommit struct {
	file *os.File
	wake chan struct{} // capacity 1: there is something to write

	mu      sync.Mutex
	pending [][]byte
	waiters []chan error
}

func (g *groupCommit) commit(record []byte) error {
	done := make(chan error, 1)
	g.mu.Lock()
	g.pending = append(g.pending, record)
	g.waiters = append(g.waiters, done)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return <-done
}

func (g *groupCommit) run() {
	var buffer []byte
	for range g.wake {
		g.mu.Lock()
		pending, waiters := g.pending, g.waiters
		g.pending, g.waiters = nil, nil
		g.mu.Unlock()
		buffer = buffer[:0]
		for _, record := range pending {
			buffer = append(buffer, record...)
		}
		_, err := g.file.Write(buffer)
		if err == nil {
			err = syscall.Fdatasync(int(g.file.Fd()))
		}
		for _, done := range waiters {
			done <- err
		}
	}
}

// syncRate returns how many times a second one 4 KiB block can be overwritten and synced.
func syncRate(dir string, d time.Duration) (float64, error) {
	f, err := os.Create(filepath.Join(dir, "sync.probe"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	n := 0
	begin := time.Now()
	for time.Since(begin) < d {
		block[0]++
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n) / time.Since(begin).Seconds(), nil
}
