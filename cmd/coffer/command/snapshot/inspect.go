package snapshot

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
)

// Files inside a snapshot, a gzipped tar archive, and the largest that are kept in memory.
const (
	metaFile   = "meta.json"
	sumsFile   = "SHA256SUMS"
	sealedFile = "SHA256SUMS.sealed"

	maxSnapshotMetaBytes = 1 << 20
	maxSnapshotSumsBytes = 64 << 20
)

// snapshotInfo is what a snapshot says about itself.
type snapshotInfo struct {
	Meta  map[string]any `json:"meta"`
	Parts int            `json:"parts"` // of the state
	Bytes int64          `json:"bytes"` // of the state, uncompressed
}

// inspectSnapshot reads a whole snapshot and compares every part with its checksum. Any part that is damaged, missing or
// not listed is an error, as is a snapshot that ends early. Whether the sums were sealed by a cluster only that cluster knows.
func inspectSnapshot(r io.Reader) (snapshotInfo, error) {
	var info snapshotInfo
	unzipped, err := gzip.NewReader(r)
	if err != nil {
		return info, fmt.Errorf("this is not a snapshot: %w", err)
	}
	found := map[string]string{} // name to hex sum
	var sums []byte
	sealed := false
	archive := tar.NewReader(unzipped)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return info, fmt.Errorf("reading the snapshot: %w", err)
		}
		if sealed {
			return info, fmt.Errorf("there is something after the end, %q", h.Name)
		}
		switch h.Name {
		case sumsFile:
			sums, err = command.ReadBounded(archive, maxSnapshotSumsBytes)
		case sealedFile:
			sealed = h.Size > 0
			_, err = io.Copy(io.Discard, archive)
		default:
			err = info.add(found, h.Name, archive)
		}
		if err != nil {
			return info, fmt.Errorf("reading %q in the snapshot: %w", h.Name, err)
		}
	}
	// What follows the archive holds the checksum of the compression.
	if _, err := io.Copy(io.Discard, unzipped); err != nil {
		return info, fmt.Errorf("reading the snapshot: %w", err)
	}
	if !sealed {
		return info, fmt.Errorf("the snapshot is incomplete: %s is missing at its end", sealedFile)
	}
	return info, compareSums(found, sums)
}

// add notes one part, and its checksum in found.
func (info *snapshotInfo) add(found map[string]string, name string, r io.Reader) error {
	if _, twice := found[name]; twice {
		return errors.New("it is there twice")
	}
	hash := sha256.New()
	if name == metaFile {
		raw, err := command.ReadBounded(r, maxSnapshotMetaBytes)
		if err != nil {
			return err
		}
		if err := command.DecodeRaw(raw, &info.Meta); err != nil {
			return err
		}
		r = bytes.NewReader(raw)
	}
	n, err := io.Copy(hash, r)
	if err != nil {
		return err
	}
	if name != metaFile {
		info.Parts++
		info.Bytes += n
	}
	found[name] = hex.EncodeToString(hash.Sum(nil))
	return nil
}

// compareSums checks that found is exactly what the lines of sums list, each "<hex>  <name>".
func compareSums(found map[string]string, sums []byte) error {
	if len(found) == 0 {
		return errors.New("the snapshot is empty")
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(sums)) {
		sum, name, ok := strings.Cut(strings.TrimRight(line, "\n"), "  ")
		if !ok || listed[name] {
			return fmt.Errorf("%s has a line that is no checksum", sumsFile)
		}
		listed[name] = true
		switch got := found[name]; {
		case got == "":
			return fmt.Errorf("%q is missing", name)
		case got != sum:
			return fmt.Errorf("%q is damaged: its checksum differs", name)
		}
	}
	for name := range found {
		if !listed[name] {
			return fmt.Errorf("%q has no checksum", name)
		}
	}
	return nil
}

func inspectFile(_ context.Context, c *command.Call) error {
	f, err := os.Open(c.Arg(0))
	if err != nil {
		return command.Usagef("%w", err)
	}
	defer f.Close()
	info, err := inspectSnapshot(f)
	if err != nil {
		return command.Usagef("%s: %w", c.Arg(0), err)
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(info)
	}
	rows := response.Data(info.Meta)
	rows = append(rows, response.Row{Key: "parts", Value: json.Number(fmt.Sprint(info.Parts))},
		response.Row{Key: "bytes", Value: json.Number(fmt.Sprint(info.Bytes))}, response.Row{Key: "checksums", Value: "right"})
	return c.PrintTable(rows)
}
