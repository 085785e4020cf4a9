package boltfile

import "os"

// aheadStep is how much of a file one call asks the system for.
const aheadStep = 128 << 10

// ReadAhead has the system read a file into its cache, from front to back, which takes a disk a fraction of the time
// that the same pages take in the order of a tree. Of a file that would push out what it brought in, it reads only a
// part; and where the system cannot be asked, nothing. It returns early once stop is closed. It is only ever about
// time: what cannot be read is found by its reader.
func ReadAhead(path string, stop <-chan struct{}) {
	limit := cacheBytes()
	if limit == 0 {
		return // and where a lock is the process's, as bbolt's on some systems, opening and closing would release it
	}
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return
	}
	for off, end := int64(0), min(info.Size(), limit); off < end; off += aheadStep {
		select {
		case <-stop:
			return
		default:
		}
		if !ask(f, off, aheadStep) {
			return
		}
	}
}
