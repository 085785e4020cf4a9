// Package snapshottest builds archives that are, or nearly are, snapshots, for tests of what reads them.
package snapshottest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"testing"
)

// Part is a file in an archive.
type Part struct{ Name, Content string }

// Parts are those of a snapshot in order.
func Parts() []Part {
	parts := []Part{
		{"meta.json", `{"cluster_id":"c1","index":42,"version":"0.1.0"}`}, {"state-000001.bin", "aaaa"}, {"state-000002.bin", "bb"},
	}
	sums := ""
	for _, p := range parts {
		sums += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(p.Content)), p.Name)
	}
	return append(parts, Part{"SHA256SUMS", sums}, Part{"SHA256SUMS.sealed", "sealed"})
}

func Archive(t testing.TB, parts []Part) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	for _, p := range parts {
		if err := archive.WriteHeader(&tar.Header{Name: p.Name, Mode: 0o600, Size: int64(len(p.Content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(p.Content)); err != nil {
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
