package wal

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// disk stands between a log and its files. It knows what is durable, and can fail.
type disk struct {
	dir string

	mu      sync.Mutex
	durable map[string][]byte // what is in the files that have durable names or may get one
	names   map[string]bool   // durable names

	crashIn int    // effects until onCrash is called; 0: never
	onCrash func() // with mu held

	writeErr, syncErr, dirErr, markErr, createErr error
}

func newDisk(dir string) *disk {
	return &disk{dir: dir, durable: map[string][]byte{}, names: map[string]bool{}}
}

// effect is called before each thing that reaches the disk.
func (d *disk) effect() {
	if d.crashIn > 0 {
		if d.crashIn--; d.crashIn == 0 {
			d.onCrash()
		}
	}
}

func (d *disk) open(name string, flag int) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if flag&os.O_CREATE != 0 {
		d.effect()
		if d.createErr != nil {
			return nil, d.createErr
		}
		if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
			delete(d.durable, filepath.Base(name)) // it is another file than what had that name
		}
	}
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	if name == filepath.Dir(d.dir) {
		return f, nil // the directory's own name is taken as durable
	}
	return &diskFile{d, f, filepath.Base(name), name == d.dir}, nil
}

type diskFile struct {
	d     *disk
	f     *os.File
	name  string
	isDir bool
}

func (f *diskFile) fail(err error) error {
	if f.name == markName && f.d.markErr != nil {
		return f.d.markErr
	}
	return err
}

func (f *diskFile) WriteAt(b []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.effect()
	if err := f.fail(f.d.writeErr); err != nil {
		n, _ := f.f.WriteAt(b[:len(b)/2], off)
		return n, err
	}
	return f.f.WriteAt(b, off)
}

func (f *diskFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.effect()
	if f.isDir {
		if f.d.dirErr != nil {
			return f.d.dirErr
		}
		f.d.names = maps.Clone(f.d.present())
		return nil
	}
	if err := f.fail(f.d.syncErr); err != nil {
		return err
	}
	b, err := os.ReadFile(f.f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f.d.durable[f.name] = b
	return err
}

func (f *diskFile) Truncate(n int64) error { return f.f.Truncate(n) }
func (f *diskFile) Close() error           { return f.f.Close() }

func (d *disk) present() map[string]bool {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		panic(err)
	}
	names := map[string]bool{}
	for _, e := range entries {
		names[e.Name()] = true
	}
	return names
}

// image writes to another directory what a crash might leave now.
func (d *disk) image(dir string, r *rand.Rand) {
	now := d.present()
	all := maps.Clone(now)
	maps.Copy(all, d.names)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if now[name] != d.names[name] && r.IntN(2) == 0 {
			continue
		}
		b := slices.Clone(d.durable[name])
		if now[name] {
			current, err := os.ReadFile(filepath.Join(d.dir, name))
			if err != nil {
				panic(err)
			}
			b = mix(b, current, r)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			panic(err)
		}
	}
}

// mix returns some of the sectors of a file that is durable as old and was written as current.
func mix(old, current []byte, r *rand.Rand) []byte {
	const sector = 64 // smaller than a real one, so that more is torn
	grown := 0
	if len(current) > len(old) {
		grown = r.IntN(len(current) - len(old) + 1)
	}
	b := make([]byte, min(len(old), len(current))+grown)
	copy(b, old)
	for at := 0; at < len(b); at += sector {
		end := min(at+sector, len(b))
		switch r.IntN(4) {
		case 0: // not written, or zeros where there was nothing
		case 1:
			if at >= len(old) {
				for i := at; i < end; i++ {
					b[i] = byte(r.Uint32())
				}
			}
		default:
			copy(b[at:end], current[at:end])
		}
	}
	return b
}

// copyDir copies the files of a directory into a new one.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}
