package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
)

// Archive is a verified snapshot file, its state in a temporary file.
type Archive struct {
	Meta       Meta
	Sums       []byte // SHA256SUMS
	SealedSums []byte // SHA256SUMS.sealed, not empty
	StateBytes int64

	path string
}

// Open returns a reader of the state from its beginning. It may be called several times.
func (a *Archive) Open() (io.ReadCloser, error) { return os.Open(a.path) }

// Close removes the temporary file. Calling it twice is fine.
func (a *Archive) Close() error {
	err := os.Remove(a.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Genuine reports whether the sealed sums, opened with the cluster's seal, are the file's sums; if not, the
// error is ErrInvalid. An error of open, as another cluster's seal gives, is returned as it is.
func (a *Archive) Genuine(open func(sealed []byte) ([]byte, error)) error {
	sums, err := open(a.SealedSums)
	if err != nil {
		return fmt.Errorf("opening %s: %w", sealedName, err)
	}
	if !bytes.Equal(sums, a.Sums) {
		return invalid("%s does not belong to this file", sealedName)
	}
	return nil
}

// Extract reads a whole snapshot file, verifies it and keeps its state in a temporary file in dir; close the
// Archive to remove it. Every entry must be there, in order, with its sum, and nothing else: otherwise the
// error is ErrInvalid, and no file is left behind.
func Extract(r io.Reader, dir string) (*Archive, error) {
	file, err := os.CreateTemp(dir, "snapshot-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("extracting a snapshot: %w", err)
	}
	a := &Archive{path: file.Name()}
	err = a.read(r, file)
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("extracting a snapshot: %w", closeErr)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Archive) read(r io.Reader, state io.Writer) error {
	in := bufio.NewReaderSize(r, 64<<10) // a ByteReader, so that gzip does not read past its end
	gz, err := gzip.NewReader(in)
	if err != nil {
		return invalid("it is not a gzip file: %w", err)
	}
	gz.Multistream(false)
	e := &entries{tar: tar.NewReader(gz)}
	if err := a.readEntries(e, state); err != nil {
		return err
	}
	// Reading gzip to its end verifies its checksum and length.
	if n, err := io.Copy(io.Discard, io.LimitReader(gz, 1)); err != nil {
		return invalid("its end is damaged: %w", err)
	} else if n > 0 {
		return invalid("there is data after the last entry")
	}
	switch _, err := in.ReadByte(); {
	case err == nil:
		return invalid("there is data after its end")
	case err != io.EOF:
		return fmt.Errorf("reading a snapshot: %w", err)
	}
	return nil
}

func (a *Archive) readEntries(e *entries, state io.Writer) error {
	if err := e.next(); err != nil {
		return err
	}
	rawMeta, err := e.bytes(metaName, maxMetaBytes)
	if err != nil {
		return err
	}
	if a.Meta, err = decodeMeta(rawMeta); err != nil {
		return err
	}
	for n := 1; ; n++ {
		if err := e.next(); err != nil {
			return err
		}
		if n > 1 && e.head.Name == sumsName {
			break
		}
		if n > maxPieces {
			return invalid("it has more than %d pieces of state", maxPieces)
		}
		k, err := e.copy(pieceName(n), state)
		if err != nil {
			return err
		}
		a.StateBytes += k
	}
	want := e.sums
	if a.Sums, err = e.bytes(sumsName, maxSumsBytes); err != nil {
		return err
	}
	if !bytes.Equal(a.Sums, want) {
		return invalid("%s does not match its content: the file is damaged", sumsName)
	}
	if err := e.next(); err != nil {
		return err
	}
	if a.SealedSums, err = e.bytes(sealedName, maxSealedBytes); err != nil {
		return err
	}
	if len(a.SealedSums) == 0 {
		return invalid("%s is empty", sealedName)
	}
	return e.end()
}

// entries reads a tar entry by entry and computes the sums as it goes.
type entries struct {
	tar  *tar.Reader
	head *tar.Header
	sums []byte
}

func (e *entries) next() error {
	head, err := e.tar.Next()
	if err == io.EOF {
		return invalid("it is incomplete: its last entry is not %s", sealedName)
	}
	if err != nil {
		return invalid("it is damaged: %w", err)
	}
	e.head = head
	return nil
}

func (e *entries) end() error {
	head, err := e.tar.Next()
	if err == nil {
		return invalid("it has an entry %.100q after the last one", head.Name)
	}
	if err != io.EOF {
		return invalid("its end is damaged: %w", err)
	}
	return nil
}

// check refuses the current entry if it is not the one expected.
func (e *entries) check(name string, limit int64) error {
	switch {
	case e.head.Name != name:
		return invalid("it has an entry %.100q where %q belongs", e.head.Name, name)
	case e.head.Typeflag != tar.TypeReg || len(e.head.PAXRecords) > 0:
		return invalid("its entry %s is not a plain file", name)
	case e.head.Size > limit:
		return invalid("its entry %s is %d bytes, the limit is %d", name, e.head.Size, limit)
	}
	return nil
}

func (e *entries) bytes(name string, limit int64) ([]byte, error) {
	if err := e.check(name, limit); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(e.tar)
	if err != nil {
		return nil, invalid("it ends or is damaged within %s: %w", name, err)
	}
	sum := sha256.Sum256(data)
	e.sums = appendSum(e.sums, sum[:], name)
	return data, nil
}

// copy writes the current entry, a piece of the state, to w. It is verified only with the sums at the end.
func (e *entries) copy(name string, w io.Writer) (int64, error) {
	if err := e.check(name, pieceBytes); err != nil {
		return 0, err
	}
	sum := sha256.New()
	out := &failing{w: w}
	n, err := io.Copy(io.MultiWriter(sum, out), e.tar)
	switch {
	case out.err != nil:
		return n, fmt.Errorf("extracting a snapshot: %w", out.err)
	case err != nil:
		return n, invalid("it ends or is damaged within %s: %w", name, err)
	}
	e.sums = appendSum(e.sums, sum.Sum(nil), name)
	return n, nil
}

// failing remembers that it was writing that failed, not reading.
type failing struct {
	w   io.Writer
	err error
}

func (f *failing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	f.err = err
	return n, err
}
