package scrub_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"github.com/coffer-project/coffer/storage/scrub"
)

// resident returns how many pages of a file are in the system's cache.
func resident(t *testing.T, f *os.File, size int) int {
	t.Helper()
	m, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(m) //nolint:errcheck // it was only asked about
	pages := make([]byte, (size+4095)/4096)
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(size), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Skip("mincore:", errno)
	}
	return len(pages) - bytes.Count(pages, []byte{0})
}

// What a Disk reads is what the file has, at any offset, and does not come from the cache nor go there.
func TestDisk(t *testing.T) {
	content := make([]byte, 700<<10+123)
	rand.NewChaCha8([32]byte{1}).Read(content)
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	const dontNeed = 4
	syscall.Syscall6(syscall.SYS_FADVISE64, f.Fd(), 0, 0, dontNeed, 0, 0)
	before := resident(t, f, len(content))
	d, err := scrub.OpenDisk(f)
	if err != nil {
		t.Skip("this file system does not read past the cache:", err)
	}
	defer d.Close()
	for _, r := range [][2]int{{0, len(content)}, {1, 1}, {4095, 2}, {4096, 4096}, {5000, 300 << 10}, {len(content) - 5, 5}, {12345, 0}} {
		b := make([]byte, r[1])
		if n, err := d.ReadAt(b, int64(r[0])); n != len(b) || err != nil || !bytes.Equal(b, content[r[0]:r[0]+r[1]]) {
			t.Errorf("%d bytes at %d: %d were read, or others: %v", r[1], r[0], n, err)
		}
	}
	for _, r := range [][2]int{{len(content) - 5, 6}, {len(content), 1}, {len(content) + 9000, 10}} {
		want := max(0, len(content)-r[0])
		if n, err := d.ReadAt(make([]byte, r[1]), int64(r[0])); n != want || err != io.EOF {
			t.Errorf("past the end, %d bytes at %d: %d, %v", r[1], r[0], n, err)
		}
	}
	if before == 0 {
		if after := resident(t, f, len(content)); after != 0 {
			t.Errorf("reading the disk has put %d pages into the cache", after)
		}
	}
}
