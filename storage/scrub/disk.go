package scrub

import (
	"io"
	"os"
	"unsafe"
)

const (
	diskAlign  = 4096      // of addresses and offsets; enough for every common disk
	diskBuffer = 256 << 10 // read at a time
)

// Disk reads what the disk has of a file, past the system's cache: damage below a cached page is not seen otherwise. Not safe
// for concurrent use.
type Disk struct {
	f   *os.File
	buf []byte // aligned
}

// OpenDisk returns a reader of the disk below an open file, or an error if system or file system give none. Close it.
func OpenDisk(f *os.File) (*Disk, error) {
	direct, err := openDirect(f)
	if err != nil {
		return nil, err
	}
	b := make([]byte, diskBuffer+diskAlign)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) % diskAlign
	d := &Disk{f: direct, buf: b[skip:][:diskBuffer]}
	if _, err := d.ReadAt(make([]byte, 1), 0); err != nil && err != io.EOF {
		_ = d.Close()
		return nil, err // some file systems take the flag and reject the read
	}
	return d, nil
}

// Close implements io.Closer.
func (d *Disk) Close() error { return d.f.Close() }

// ReadAt implements io.ReaderAt.
func (d *Disk) ReadAt(b []byte, off int64) (n int, err error) {
	for n < len(b) {
		at := off + int64(n)
		skip := int(at % diskAlign)
		want := min(len(d.buf), (skip+len(b)-n+diskAlign-1)/diskAlign*diskAlign)
		got, err := pread(d.f, d.buf[:want], at-int64(skip)) // once: the end of a file need not be aligned
		if err != nil {
			return n, err
		}
		if got <= skip {
			return n, io.EOF
		}
		n += copy(b[n:], d.buf[skip:got])
	}
	return n, nil
}
