package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// part is a file in an archive.
type part struct{ name, content string }

// goodParts are those of a snapshot in order.
func goodParts() []part {
	parts := []part{
		{snapshotMeta, `{"cluster_id":"c1","index":42,"version":"0.1.0"}`}, {"state-000001.bin", "aaaa"}, {"state-000002.bin", "bb"},
	}
	sums := ""
	for _, p := range parts {
		sums += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(p.content)), p.name)
	}
	return append(parts, part{snapshotSums, sums}, part{snapshotSealed, "sealed"})
}

func archiveOf(t testing.TB, parts []part) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, p := range parts {
		if err := archive.WriteHeader(&tar.Header{Name: p.name, Mode: 0o600, Size: int64(len(p.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(p.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestInspectSnapshot(t *testing.T) {
	tests := []struct {
		name   string
		change func([]part) []part
		want   string // in the error; "" is none
	}{
		{"good", func(p []part) []part { return p }, ""},
		{"damaged", func(p []part) []part { p[1].content = "aaab"; return p }, `"state-000001.bin" is damaged`},
		{"missing", func(p []part) []part { return slices.Delete(p, 2, 3) }, `"state-000002.bin" is missing`},
		{"extra", func(p []part) []part { return slices.Insert(p, 1, part{"x", "y"}) }, `"x" has no checksum`},
		{"twice", func(p []part) []part { return slices.Insert(p, 1, p[1]) }, "there twice"},
		{"no sums", func(p []part) []part { return slices.Delete(p, 3, 4) }, "has no checksum"},
		{"no end", func(p []part) []part { return p[:4] }, "incomplete"},
		{"empty end", func(p []part) []part { p[4].content = ""; return p }, "incomplete"},
		{"after the end", func(p []part) []part { return append(p, part{"x", "y"}) }, "after the end"},
		{"no checksum line", func(p []part) []part { p[3].content += "nonsense\n"; return p }, "no checksum"},
		{"meta is no object", func(p []part) []part { p[0].content = "[]"; return p }, snapshotMeta},
		{"nothing", func(p []part) []part { return p[4:] }, "is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			info, err := inspectSnapshot(bytes.NewReader(archiveOf(t, tt.change(goodParts()))))
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
	good := archiveOf(t, goodParts())
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
	f.Add(archiveOf(f, goodParts()))
	f.Add(archiveOf(f, goodParts()[:2]))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if info, err := inspectSnapshot(bytes.NewReader(b)); err == nil && info.Bytes < 0 {
			t.Errorf("negative size: %+v", info)
		}
	})
}

func TestSnapshotSave(t *testing.T) {
	good := string(archiveOf(t, goodParts()))
	for name, tt := range map[string]struct {
		body   string
		status int
		stderr string
	}{
		"whole": {body: good},
		"cut":   {body: good[:len(good)/2], status: 2, stderr: "nothing was saved"},
	} {
		t.Run(name, func(t *testing.T) {
			record(t, map[string]string{"GET sys/storage/raft/snapshot": "200 " + tt.body})
			file := filepath.Join(t.TempDir(), "backup.snap")
			_, stderr, status := coffer(t, "", "operator", "raft", "snapshot", "save", file)
			if status != tt.status || !strings.Contains(stderr, tt.stderr) {
				t.Fatalf("status %d, stderr %q", status, stderr)
			}
			got, err := os.ReadFile(file)
			if saved := err == nil; saved != (tt.status == 0) || saved && string(got) != tt.body {
				t.Errorf("the file: %v, %d bytes", err, len(got))
			}
		})
	}
}

// TestSnapshotRestoreFollows restores through a standby, which names the active node: the whole file has to reach that.
func TestSnapshotRestoreFollows(t *testing.T) {
	good := archiveOf(t, goodParts())
	file := filepath.Join(t.TempDir(), "backup.snap")
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	active := record(t, map[string]string{"POST sys/storage/raft/snapshot-force": "204"})
	record(t, map[string]string{"POST sys/storage/raft/snapshot-force": "307 " + active.URL})
	stdout, stderr, status := coffer(t, "", "operator", "snapshot", "restore", "-force", file)
	if status != 0 || !strings.Contains(stdout, "Success!") {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	if len(active.seen) != 1 || active.seen[0].body != string(good) {
		t.Errorf("the active node got %d requests, want one with the whole file", len(active.seen))
	}
}

func TestSnapshotRestoreRefusesDamage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "backup.snap")
	if err := os.WriteFile(file, archiveOf(t, goodParts()[:4]), 0o600); err != nil {
		t.Fatal(err)
	}
	r := record(t, nil)
	_, stderr, status := coffer(t, "", "operator", "raft", "snapshot", "restore", file)
	if status != 1 || !strings.Contains(stderr, "nothing was sent") || len(r.seen) != 0 {
		t.Errorf("status %d, %d requests, stderr %q", status, len(r.seen), stderr)
	}
}

func TestFormatPolicy(t *testing.T) {
	got, err := formatPolicy("path \"a\" {capabilities=[\"read\"]} # why\n")
	if err != nil || !strings.Contains(string(got), "capabilities = [\"read\"]") || !strings.Contains(string(got), "# why") {
		t.Errorf("formatPolicy = %q, %v", got, err)
	}
	for name, text := range map[string]string{
		"deep": strings.Repeat("a {", 100000), "large": strings.Repeat("#", maxPolicyBytes+1), "broken": `path "a" {`,
	} {
		if _, err := formatPolicy(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
