package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openbao/openbao/api/v2"

	"github.com/coffer-project/coffer/server/archive"
)

const piece = 4 << 20

var meta = archive.Meta{
	ClusterID: "c1", ClusterName: "one", Index: 42, Term: 7,
	Created: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), ProductVersion: "0.1.0",
}

// sealSums stands for the cluster's seal.
func sealSums(sums []byte) ([]byte, error) { return append([]byte("sealed:"), sums...), nil }

func openSums(sealed []byte) ([]byte, error) {
	sums, ok := bytes.CutPrefix(sealed, []byte("sealed:"))
	if !ok {
		return nil, errors.New("another seal")
	}
	return sums, nil
}

// random returns bytes that do not compress, always the same ones.
func random(size int) []byte {
	b := make([]byte, size)
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		panic(err)
	}
	cipher.NewCTR(block, make([]byte, aes.BlockSize)).XORKeyStream(b, b)
	return b
}

func stateOf(data []byte, chunk int) func(io.Writer) error {
	return func(w io.Writer) error {
		for c := range slices.Chunk(data, chunk) {
			if _, err := w.Write(c); err != nil {
				return err
			}
		}
		return nil
	}
}

func written(t testing.TB, state []byte) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := archive.Write(context.Background(), &file, meta, stateOf(state, 100_000), sealSums); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// content is everything a caller sees of an extracted archive.
func content(t testing.TB, a *archive.Archive) string {
	t.Helper()
	r, err := a.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, r)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%+v %d %d %x %q %q", a.Meta, a.StateBytes, n, sum.Sum(nil), a.Sums, a.SealedSums)
}

func assertEmpty(t testing.TB, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, size := range []int{1, piece, 2*piece + 1} {
		state := random(size)
		file := written(t, state)
		dir := t.TempDir()
		a, err := archive.Extract(bytes.NewReader(file), dir)
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		for range 2 { // it can be read again
			r, err := a.Open()
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			if r.Close(); err != nil || !bytes.Equal(got, state) {
				t.Fatalf("%d bytes: the state came back as %d bytes, %v", size, len(got), err)
			}
		}
		want := meta
		want.Magic, want.FormatVersion = "coffer-snapshot", 1
		if a.Meta != want || a.StateBytes != int64(size) {
			t.Errorf("meta = %+v, %d bytes", a.Meta, a.StateBytes)
		}
		if err := a.Genuine(openSums); err != nil {
			t.Errorf("Genuine = %v", err)
		}
		if n := bytes.Count(a.Sums, []byte("\n")); n != 1+(size+piece-1)/piece {
			t.Errorf("%d bytes: %d sums", size, n)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the temporary file has mode %v, %v", info.Mode(), err)
		}
		if err := errors.Join(a.Close(), a.Close()); err != nil {
			t.Errorf("closing twice: %v", err)
		}
		assertEmpty(t, dir)
	}
}

func TestGenuine(t *testing.T) {
	a, err := archive.Extract(bytes.NewReader(written(t, []byte("state"))), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	other := errors.New("another cluster's seal")
	if err := a.Genuine(func([]byte) ([]byte, error) { return nil, other }); !errors.Is(err, other) || errors.Is(err, archive.ErrInvalid) {
		t.Errorf("Genuine = %v, want the seal's error", err)
	}
	if err := a.Genuine(func([]byte) ([]byte, error) { return []byte("other sums"), nil }); !errors.Is(err, archive.ErrInvalid) {
		t.Errorf("Genuine = %v, want ErrInvalid", err)
	}
}

// The family's client keeps a snapshot only if the sealed sums came, as the last entry.
func TestClientAccepts(t *testing.T) {
	var seal func([]byte) ([]byte, error)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := archive.Write(r.Context(), w, meta, stateOf(random(piece+9), 1<<16), seal); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	defer srv.Close()
	cfg := api.DefaultConfig()
	cfg.Address = srv.URL
	client, err := api.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	seal = sealSums
	var file bytes.Buffer
	if err := client.Sys().RaftSnapshot(&file); err != nil {
		t.Fatalf("the client refuses the snapshot: %v", err)
	}
	a, err := archive.Extract(&file, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	seal = func([]byte) ([]byte, error) { return nil, errors.New("the seal failed") }
	if err := client.Sys().RaftSnapshot(io.Discard); err == nil {
		t.Error("the client accepts a snapshot whose sums could not be sealed")
	}
}

func TestWriteFailures(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	boom := errors.New("boom")
	good := stateOf([]byte("state"), 5)
	tests := []struct {
		name  string
		ctx   context.Context
		state func(io.Writer) error
		seal  func([]byte) ([]byte, error)
		want  string
	}{
		{"cancelled", cancelled, good, sealSums, "canceled"},
		{"state fails", t.Context(), func(w io.Writer) error { w.Write([]byte("half")); return boom }, sealSums, "boom"},
		{"state is empty", t.Context(), func(io.Writer) error { return nil }, sealSums, "empty"},
		{"seal fails", t.Context(), good, func([]byte) ([]byte, error) { return nil, boom }, "boom"},
		{"seal gives nothing", t.Context(), good, func([]byte) ([]byte, error) { return nil, nil }, "0 bytes"},
	}
	for _, tt := range tests {
		var file bytes.Buffer
		err := archive.Write(tt.ctx, &file, meta, tt.state, tt.seal)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Write = %v, want %q", tt.name, err, tt.want)
		}
		dir := t.TempDir()
		if _, err := archive.Extract(&file, dir); !errors.Is(err, archive.ErrInvalid) {
			t.Errorf("%s: what was written extracts: %v", tt.name, err)
		}
		assertEmpty(t, dir)
	}
}

// A flipped bit is either refused or, where the format has bits without a meaning, changes nothing.
func TestFlippedBits(t *testing.T) {
	file := written(t, random(300))
	dir := t.TempDir()
	good, err := archive.Extract(bytes.NewReader(file), dir)
	if err != nil {
		t.Fatal(err)
	}
	want := content(t, good)
	good.Close()
	harmless := 0
	for bit := 0; bit < len(file)*8; bit += 3 { // every byte, and in time every bit of a byte
		b := bytes.Clone(file)
		b[bit/8] ^= 1 << (bit % 8)
		a, err := archive.Extract(bytes.NewReader(b), dir)
		if err == nil {
			harmless++
			if got := content(t, a); got != want {
				t.Fatalf("bit %d flipped: extracted %s, want %s", bit, got, want)
			}
			a.Close()
		} else if !errors.Is(err, archive.ErrInvalid) {
			t.Fatalf("bit %d flipped: %v, want ErrInvalid", bit, err)
		}
	}
	if harmless > 60 { // time, system and hints in the gzip header, padding within deflate's blocks
		t.Errorf("%d of %d flipped bits are not noticed", harmless, len(file)*8)
	}
	assertEmpty(t, dir)
}

func TestEveryTruncation(t *testing.T) {
	file := written(t, random(300))
	dir := t.TempDir()
	for n := range file {
		if _, err := archive.Extract(bytes.NewReader(file[:n]), dir); !errors.Is(err, archive.ErrInvalid) {
			t.Fatalf("cut after %d of %d bytes: %v, want ErrInvalid", n, len(file), err)
		}
	}
	for _, extra := range [][]byte{{0}, file} {
		if _, err := archive.Extract(io.MultiReader(bytes.NewReader(file), bytes.NewReader(extra)), dir); !errors.Is(err, archive.ErrInvalid) {
			t.Fatalf("%d bytes appended: %v, want ErrInvalid", len(extra), err)
		}
	}
	assertEmpty(t, dir)
}

// entry is one entry of a file made by hand.
type entry struct {
	name, data string
	kind       byte
	pax        map[string]string
}

func pack(t testing.TB, entries []entry, tail []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	tw := tar.NewWriter(gz)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.data)), Mode: 0o600, PAXRecords: e.pax}
		if e.kind != 0 {
			h.Typeflag, h.Size = e.kind, 0
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(tw, e.data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	gz.Write(tail)
	gz.Close()
	return buf.Bytes()
}

func sums(entries ...entry) entry {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256([]byte(e.data)), e.name)
	}
	return entry{name: "SHA256SUMS", data: b.String()}
}

func TestWrongEntries(t *testing.T) {
	m := entry{name: "meta.json", data: `{"magic":"coffer-snapshot","format_version":1}`}
	s1, s2 := entry{name: "state-000001.bin", data: "one"}, entry{name: "state-000002.bin", data: "two"}
	sealed := entry{name: "SHA256SUMS.sealed", data: "x"}
	good := []entry{m, s1, s2, sums(m, s1, s2), sealed}
	if a, err := archive.Extract(bytes.NewReader(pack(t, good, nil)), t.TempDir()); err != nil {
		t.Fatalf("a good file made by hand: %v", err)
	} else {
		a.Close()
	}
	foreign := entry{name: "meta.json", data: `{"Version":1,"ID":"bolt-snapshot","Index":4}`}
	newer := entry{name: "meta.json", data: `{"magic":"coffer-snapshot","format_version":2}`}
	broken := entry{name: "meta.json", data: `{`}
	huge := entry{name: "state-000001.bin", data: strings.Repeat("x", piece+1)}
	dir := entry{name: "state-000001.bin", kind: tar.TypeDir}
	link := entry{name: "state-000001.bin", kind: tar.TypeSymlink}
	pax := entry{name: "state-000001.bin", data: "one", pax: map[string]string{"COFFER.x": "y"}}
	tests := []struct {
		name    string
		entries []entry
		want    string
	}{
		{"nothing", nil, "incomplete"},
		{"no meta", good[1:], `"state-000001.bin" where "meta.json"`},
		{"another product", []entry{foreign, {name: "state.bin", data: "x"}, sums(foreign), sealed}, "of this product"},
		{"newer format", []entry{newer, s1, sums(newer, s1), sealed}, "format version 2"},
		{"broken meta", []entry{broken, s1, sums(broken, s1), sealed}, "of this product"},
		{"large meta", []entry{{name: "meta.json", data: strings.Repeat(" ", 64<<10+1)}}, "the limit is"},
		{"no state", []entry{m, sums(m), sealed}, `"SHA256SUMS" where "state-000001.bin"`},
		{"a piece is missing", []entry{m, s2, sums(m, s2), sealed}, `where "state-000001.bin"`},
		{"pieces in another order", []entry{m, s2, s1, sums(m, s2, s1), sealed}, `where "state-000001.bin"`},
		{"a piece twice", []entry{m, s1, s1, sums(m, s1, s1), sealed}, `where "state-000002.bin"`},
		{"a large piece", []entry{m, huge, sums(m, huge), sealed}, "the limit is"},
		{"a folder", []entry{m, dir, sums(m, dir), sealed}, "not a plain file"},
		{"a link", []entry{m, link, sums(m, link), sealed}, "not a plain file"},
		{"records of another kind", []entry{m, pax, sums(m, pax), sealed}, "not a plain file"},
		{"a path", []entry{m, {name: "../state-000001.bin", data: "x"}}, "where"},
		{"no sums", []entry{m, s1, sealed}, `"SHA256SUMS.sealed" where`},
		{"sums lack one", []entry{m, s1, s2, sums(m, s1), sealed}, "does not match"},
		{"sums of other data", []entry{m, s1, sums(m, entry{name: s1.name, data: "other"}), sealed}, "does not match"},
		{"sums have one more", []entry{m, s1, sums(m, s1, s2), sealed}, "does not match"},
		{"no sealed sums", good[:4], "incomplete"},
		{"empty sealed sums", []entry{m, s1, sums(m, s1), {name: "SHA256SUMS.sealed"}}, "is empty"},
		{"an entry after the last", append(good[:5:5], s1), `"state-000001.bin" after the last`},
	}
	for _, tt := range tests {
		dir := t.TempDir()
		_, err := archive.Extract(bytes.NewReader(pack(t, tt.entries, nil)), dir)
		if !errors.Is(err, archive.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Extract = %v, want %q", tt.name, err, tt.want)
		}
		assertEmpty(t, dir)
	}
	if _, err := archive.Extract(bytes.NewReader(pack(t, good, []byte("more"))), t.TempDir()); !errors.Is(err, archive.ErrInvalid) {
		t.Errorf("data after the tar: %v, want ErrInvalid", err)
	}
}

func TestExtractElsewhereFails(t *testing.T) {
	_, err := archive.Extract(bytes.NewReader(written(t, []byte("x"))), filepath.Join(t.TempDir(), "missing"))
	if !errors.Is(err, os.ErrNotExist) || errors.Is(err, archive.ErrInvalid) {
		t.Errorf("Extract to a missing directory = %v: it is not the file's fault", err)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add(written(f, []byte("state")))
	f.Add(pack(f, []entry{{name: "meta.json", data: `{"magic":"coffer-snapshot","format_version":1}`}}, nil))
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file []byte) {
		a, err := archive.Extract(bytes.NewReader(file), dir)
		if err != nil {
			if !errors.Is(err, archive.ErrInvalid) {
				t.Fatalf("Extract = %v, want ErrInvalid", err)
			}
			return
		}
		if len(a.SealedSums) == 0 || a.Meta.Magic == "" || a.StateBytes < 0 {
			t.Fatalf("accepted: %+v", a)
		}
		a.Close()
	})
}
