// Package ledger remembers what an import has done, in a file that only its user can read: a line of JSON for each thing, without values of
// secrets. A run that was interrupted goes on where the file ends. Start reading at Open.
package ledger

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
)

// Header is the first line: between which servers the import is.
type Header struct {
	Format      int    `json:"ledger"` // 1
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

// Entry is one thing that is done.
type Entry struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Source is the fingerprint of what was read, Destination that of what was there after the write. Of secrets they are about
	// metadata only.
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	Version     uint32 `json:"version,omitempty"` // the newest one of a secret
}

type key struct{ kind, namespace, name string }

// Ledger is the file. Safe for concurrent use.
type Ledger struct {
	mu   sync.Mutex
	done map[key]Entry
	file *os.File // nil: nothing is kept
}

// Open reads the file at path, or creates it, mode 0600. A file of an import between other servers is rejected, and so is one that another
// process has open for an import. A last line that was cut off by a crash is dropped.
func Open(path string, h Header) (*Ledger, error) {
	l := &Ledger{done: map[key]Entry{}}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger: %w", err)
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger %s: another import has it open", path), f.Close())
	}
	end, err := l.read(f, h)
	if err == nil {
		err = l.position(f, end, h)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger %s: %w", path, err), f.Close())
	}
	l.file = f
	return l, nil
}

// Read reads the file at path, if there is one, and keeps nothing.
func Read(path string, h Header) (*Ledger, error) {
	l := &Ledger{done: map[key]Entry{}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("opening the ledger: %w", err)
	}
	defer f.Close()
	if _, err := l.read(f, h); err != nil {
		return nil, fmt.Errorf("ledger %s: %w", path, err)
	}
	return l, nil
}

var errNoLedger = errors.New("it is not a ledger of this version: choose another file")

// read returns where the last whole line ends.
func (l *Ledger) read(f *os.File, want Header) (end int64, err error) {
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return 0, errors.Join(err, errors.New("must be a regular file"))
	} else if info.Mode().Perm()&0o077 != 0 {
		return 0, errors.New("other users can read or write it: chmod 600, or choose another file")
	}
	want.Format = 1
	whole, err := json.Marshal(want)
	if err != nil {
		return 0, err
	}
	header := string(whole)
	r := bufio.NewReader(f)
	for n := 0; ; n++ {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			if n == 0 && !strings.HasPrefix(header, string(line)) {
				return 0, errNoLedger // a file of something else, which must stay
			}
			break
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			var h Header
			if json.Unmarshal(line, &h) != nil || h.Format != 1 {
				return 0, errNoLedger
			}
			if h != want {
				return 0, fmt.Errorf("it is of an import from %s to %s: choose another file", h.Source, h.Destination)
			}
		} else {
			var e Entry
			if err := json.Unmarshal(line, &e); err != nil {
				return 0, fmt.Errorf("line %d is damaged: remove it, what it is about is compared again", n+1)
			}
			l.done[key{e.Kind, e.Namespace, e.Name}] = e
		}
		end += int64(len(line))
	}
	return end, nil
}

// position makes the file ready for more lines.
func (l *Ledger) position(f *os.File, end int64, h Header) error {
	if err := f.Truncate(end); err != nil {
		return err
	}
	if _, err := f.Seek(end, io.SeekStart); err != nil {
		return err
	}
	if end > 0 {
		return nil
	}
	h.Format = 1
	return writeLine(f, h)
}

func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return err
}

// Get returns what is known of a thing.
func (l *Ledger) Get(kind, namespace, name string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.done[key{kind, namespace, name}]
	return e, ok
}

// Names returns the names of a kind in a namespace that begin with prefix.
func (l *Ledger) Names(kind, namespace, prefix string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for k := range l.done {
		if k.kind == kind && k.namespace == namespace && strings.HasPrefix(k.name, prefix) {
			out = append(out, k.name)
		}
	}
	slices.Sort(out)
	return out
}

// Put remembers things.
func (l *Ledger) Put(entries ...Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []byte
	for _, e := range entries {
		k := key{e.Kind, e.Namespace, e.Name}
		if l.done[k] == e {
			continue
		}
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		lines = append(append(lines, line...), '\n')
		l.done[k] = e
	}
	if l.file == nil || len(lines) == 0 {
		return nil
	}
	if _, err := l.file.Write(lines); err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	return nil
}

// Close syncs and closes the file.
func (l *Ledger) Close() error {
	if l.file == nil {
		return nil
	}
	return errors.Join(l.file.Sync(), l.file.Close())
}

// Fingerprint returns a short one of a value, by its JSON.
func Fingerprint(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
