package snapshot

import (
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/command/snapshot/snapshottest"
)

func TestInspectSnapshot(t *testing.T) {
	tests := []struct {
		name   string
		change func([]snapshottest.Part) []snapshottest.Part
		want   string // in the error; "" is none
	}{
		{"good", func(p []snapshottest.Part) []snapshottest.Part { return p }, ""},
		{"damaged", func(p []snapshottest.Part) []snapshottest.Part { p[1].Content = "aaab"; return p }, `"state-000001.bin" is damaged`},
		{"missing", func(p []snapshottest.Part) []snapshottest.Part { return slices.Delete(p, 2, 3) }, `"state-000002.bin" is missing`},
		{"extra", func(p []snapshottest.Part) []snapshottest.Part {
			return slices.Insert(p, 1, snapshottest.Part{Name: "x", Content: "y"})
		}, `"x" has no checksum`},
		{"twice", func(p []snapshottest.Part) []snapshottest.Part { return slices.Insert(p, 1, p[1]) }, "there twice"},
		{"no sums", func(p []snapshottest.Part) []snapshottest.Part { return slices.Delete(p, 3, 4) }, "has no checksum"},
		{"no end", func(p []snapshottest.Part) []snapshottest.Part { return p[:4] }, "incomplete"},
		{"empty end", func(p []snapshottest.Part) []snapshottest.Part { p[4].Content = ""; return p }, "incomplete"},
		{"after the end", func(p []snapshottest.Part) []snapshottest.Part {
			return append(p, snapshottest.Part{Name: "x", Content: "y"})
		}, "after the end"},
		{"no checksum line", func(p []snapshottest.Part) []snapshottest.Part { p[3].Content += "nonsense\n"; return p }, "no checksum"},
		{"meta is no object", func(p []snapshottest.Part) []snapshottest.Part { p[0].Content = "[]"; return p }, metaFile},
		{"nothing", func(p []snapshottest.Part) []snapshottest.Part { return p[4:] }, "is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			info, err := inspectSnapshot(bytes.NewReader(snapshottest.Archive(t, tt.change(snapshottest.Parts()))))
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want %q in it", err, tt.want)
				}
				return
			}
			if err != nil || info.Parts != 2 || info.Bytes != 6 || info.Meta["cluster_id"] != "c1" {
				t.Errorf("inspectSnapshot = %+v, %v", info, err)
			}
		})
	}
}

// TestInspectDamage flips a bit of each byte and cuts at each length: none may pass as whole, unless it is one of the few
// bits of the compression that mean nothing.
func TestInspectDamage(t *testing.T) {
	good := snapshottest.Archive(t, snapshottest.Parts())
	for n := range good {
		if _, err := inspectSnapshot(bytes.NewReader(good[:n])); err == nil {
			t.Errorf("cut at %d of %d bytes it passes", n, len(good))
		}
		bad := slices.Clone(good)
		bad[n] ^= 0x40
		if bytes.Equal(unzip(bad), unzip(good)) {
			continue
		}
		if _, err := inspectSnapshot(bytes.NewReader(bad)); err == nil {
			t.Errorf("with byte %d of %d changed it passes", n, len(good))
		}
	}
}

// unzip returns what is compressed in b, nil if it is damaged.
func unzip(b []byte) []byte {
	zip, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil
	}
	out, err := io.ReadAll(zip)
	if err != nil {
		return nil
	}
	return out
}

func FuzzInspectSnapshot(f *testing.F) {
	f.Add(snapshottest.Archive(f, snapshottest.Parts()))
	f.Add(snapshottest.Archive(f, snapshottest.Parts()[:2]))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if info, err := inspectSnapshot(bytes.NewReader(b)); err == nil && info.Bytes < 0 {
			t.Errorf("negative size: %+v", info)
		}
	})
}
