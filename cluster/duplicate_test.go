package cluster

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/storage/fsm"
)

// syncBuffer is a bytes.Buffer that is safe for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// A copy of a directory on a second machine does not start beside the member, and does not go on when the member comes back.
func TestCopyOfAMember(t *testing.T) {
	t.Parallel()
	key, _, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var log syncBuffer
	m := single(t, func(o *Options) { o.Key, o.Logger = key, slog.New(slog.NewTextHandler(&log, nil)) })
	m.stop()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(m.opts.Dir)); err != nil {
		t.Fatal(err)
	}
	m.open()
	until(t, "leadership", m.IsLeader)

	c := &member{t: t, opts: m.opts}
	c.opts.Dir, c.opts.ListenAddr = dir, "127.0.0.1:0"
	t.Cleanup(c.stop)
	if c.opts.Machine, err = fsm.Open(dir, fsm.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(c.opts); err == nil || !strings.Contains(err.Error(), "another process runs as node") {
		t.Errorf("beside the member the copy starts with %v", err)
	}
	until(t, "the member's report", func() bool { return strings.Contains(log.String(), "another process runs as this node") })
	if err := c.opts.Machine.Close(); err != nil {
		t.Fatal(err)
	}

	m.stop()
	c.open()
	if err := c.Distrusted(); err != nil {
		t.Errorf("alone the copy does not run: %v", err)
	}
	m.open()
	until(t, "the copy to notice that the member is back", func() bool { return c.Distrusted() != nil })
	if err := m.Distrusted(); err != nil {
		t.Errorf("the member takes itself for a copy: %v", err)
	}
}
