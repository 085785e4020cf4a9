package archive

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Write writes a snapshot file to w. state is called once to write the state, which must not be empty;
// sealSums returns SHA256SUMS sealed. If anything fails, what was written so far is a file that every reader
// refuses as incomplete.
func Write(ctx context.Context, w io.Writer, meta Meta, state func(io.Writer) error, sealSums func([]byte) ([]byte, error)) error {
	meta.Magic, meta.FormatVersion = magic, formatVersion
	rawMeta, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return err
	}
	// The state is ciphertext: a stronger compression would only cost time.
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	a := &writer{ctx: ctx, tar: tar.NewWriter(gz), modTime: meta.Created}
	if err := a.summed(metaName, rawMeta); err != nil {
		return err
	}
	p := &pieces{to: a}
	if err := state(p); err != nil {
		return fmt.Errorf("writing the state: %w", err)
	}
	if err := p.finish(); err != nil {
		return err
	}
	sealed, err := sealSums(a.sums)
	if err != nil {
		return fmt.Errorf("sealing the sums: %w", err)
	}
	if len(sealed) == 0 || len(sealed) > maxSealedBytes {
		return fmt.Errorf("the sealed sums are %d bytes, they must be 1 to %d", len(sealed), maxSealedBytes)
	}
	if err := a.entry(sumsName, a.sums); err != nil {
		return err
	}
	if err := a.entry(sealedName, sealed); err != nil {
		return err
	}
	if err := a.tar.Close(); err != nil {
		return err
	}
	return gz.Close()
}

// writer adds entries to the tar and remembers their sums.
type writer struct {
	ctx     context.Context // of the one call to Write
	tar     *tar.Writer
	modTime time.Time
	sums    []byte
}

func (a *writer) summed(name string, data []byte) error {
	sum := sha256.Sum256(data)
	a.sums = appendSum(a.sums, sum[:], name)
	return a.entry(name, data)
}

func (a *writer) entry(name string, data []byte) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	err := a.tar.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o600,
		ModTime: a.modTime.Truncate(time.Second), Format: tar.FormatUSTAR,
	})
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if _, err := a.tar.Write(data); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// pieces cuts a stream into entries.
type pieces struct {
	to  *writer
	buf []byte
	n   int // entries written
}

func (p *pieces) Write(data []byte) (int, error) {
	if p.buf == nil {
		p.buf = make([]byte, 0, pieceBytes)
	}
	total := len(data)
	for len(data) > 0 {
		k := min(len(data), pieceBytes-len(p.buf))
		p.buf = append(p.buf, data[:k]...)
		data = data[k:]
		if len(p.buf) == pieceBytes {
			if err := p.flush(); err != nil {
				return total - len(data), err
			}
		}
	}
	return total, nil
}

func (p *pieces) flush() error {
	if p.n == maxPieces {
		return fmt.Errorf("the state is larger than %d GiB", maxPieces*pieceBytes>>30)
	}
	p.n++
	err := p.to.summed(pieceName(p.n), p.buf)
	p.buf = p.buf[:0]
	return err
}

func (p *pieces) finish() error {
	if len(p.buf) > 0 {
		return p.flush()
	}
	if p.n == 0 {
		return errors.New("the state is empty")
	}
	return nil
}
