package wal

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Scrub reads all of the log, finds a flipped bit in each segment, and forgets no more than a reader would.
func TestScrub(t *testing.T) {
	dir, records := small(t)
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	must(t, err)
	slices.Sort(names)
	size := int64(0)
	for _, name := range names {
		info, err := os.Stat(name)
		must(t, err)
		size += info.Size()
	}
	l := mustOpen(t, dir, Options{MemoryBytes: 1, open: openUnsynced})
	read := 0
	count := func(bytes int) error { read += bytes; return nil }
	if err := l.Scrub(count); err != nil || int64(read) < size-int64(len(names)*headerBytes) || l.ScrubBytes() < int64(read) {
		t.Errorf("Scrub of a whole log of %d bytes read %d: %v", size, read, err)
	}
	must(t, l.Append(sample(100, 1)))
	if err := l.Scrub(count); err != nil {
		t.Errorf("Scrub after an append: %v", err)
	}
	must(t, l.Close())
	if err := l.Scrub(func(int) error { return os.ErrClosed }); err != os.ErrClosed {
		t.Errorf("Scrub = %v when it is stopped", err)
	}
	for i, name := range names {
		dir, _ := small(t)
		l := mustOpen(t, dir, Options{MemoryBytes: 1, open: openUnsynced})
		path := filepath.Join(dir, filepath.Base(name))
		b, err := os.ReadFile(path)
		must(t, err)
		b[len(b)-3] ^= 8
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.WriteAt(b, 0)
		must(t, err)
		must(t, f.Close())
		if err := l.Scrub(count); !isDamage(err) {
			t.Errorf("segment %d: Scrub = %v, want damage", i, err)
		}
		if err := l.Scrub(count); err != nil {
			t.Errorf("segment %d: Scrub after the damage was dropped: %v", i, err)
		}
		checkReads(t, l, records)
		must(t, l.Close())
	}
}

// A log that ends while it is scrubbed, and another that begins in its place, are no damage.
func TestScrubOfALogThatEnds(t *testing.T) {
	dir, _ := small(t)
	l := mustOpen(t, dir, Options{MemoryBytes: 1, open: openUnsynced})
	begun := false
	err := l.Scrub(func(int) error {
		if !begun {
			begun = true
			must(t, l.End())
			must(t, l.Begin(500))
		}
		return nil
	})
	if err != nil || !begun {
		t.Errorf("Scrub = %v, paused: %v", err, begun)
	}
	must(t, l.Append(sample(501, 1)))
	if err := l.Scrub(func(int) error { return nil }); err != nil {
		t.Errorf("Scrub of the new log: %v", err)
	}
	must(t, l.Close())
}

// A log may end at any moment of a scrub.
func TestScrubBesideEnd(t *testing.T) {
	dir, _ := small(t)
	l := mustOpen(t, dir, Options{MemoryBytes: 1, open: openUnsynced})
	done := make(chan error)
	go func() { done <- l.Scrub(func(int) error { return nil }) }()
	must(t, l.End())
	if err := <-done; err != nil {
		t.Errorf("Scrub = %v", err)
	}
	must(t, l.Close())
}
