package seal_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/seal"
)

var (
	keyA = bytes.Repeat([]byte{0xA1, 0x5F}, 16)
	keyB = bytes.Repeat([]byte{0xB2, 0x6E}, 16)
)

func mustStatic(t testing.TB, cfg map[string]string) seal.Wrapper {
	t.Helper()
	w, err := seal.NewStatic(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func static(t testing.TB, id string, key []byte) seal.Wrapper {
	t.Helper()
	return mustStatic(t, map[string]string{"current_key_id": id, "current_key": hex.EncodeToString(key)})
}

func TestWrap(t *testing.T) {
	for _, w := range []seal.Wrapper{seal.NewKEKWrapper(keyA), static(t, "a", keyA)} {
		for _, plain := range [][]byte{nil, {1}, rootKey, make([]byte, 10_000)} {
			blob, err := w.Wrap(t.Context(), plain, "p")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := w.Unwrap(t.Context(), blob, "p"); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%s: Unwrap(Wrap(%d bytes)) = %d bytes, %v", w.Type(), len(plain), len(got), err)
			}
			if again, _ := w.Wrap(t.Context(), plain, "p"); bytes.Equal(blob, again) {
				t.Errorf("%s: two blobs of the same text are equal", w.Type())
			}
			if _, err := w.Unwrap(t.Context(), blob, "q"); !errors.Is(err, seal.ErrWrongKey) {
				t.Errorf("%s: Unwrap for another purpose = %v, want ErrWrongKey", w.Type(), err)
			}
			if _, err := seal.NewKEKWrapper(keyB).Unwrap(t.Context(), blob, "p"); !errors.Is(err, seal.ErrWrongKey) {
				t.Errorf("%s: Unwrap with another key = %v, want ErrWrongKey", w.Type(), err)
			}
		}
	}
	for _, n := range []int{0, 16, 31, 33} {
		if _, err := seal.NewKEKWrapper(make([]byte, n)).Wrap(t.Context(), rootKey, "p"); err == nil {
			t.Errorf("a key of %d bytes wraps", n)
		}
	}
}

// The stored format must stay readable: these blobs were written by version 1.
func TestOldBlobs(t *testing.T) {
	tests := []struct {
		w    seal.Wrapper
		blob string
	}{
		{seal.NewKEKWrapper(keyA), goldenShamir},
		{static(t, "2026-a", keyA), goldenStatic},
	}
	for _, tt := range tests {
		blob, err := hex.DecodeString(tt.blob)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := seal.UnwrapRoot(t.Context(), tt.w, blob); err != nil || !bytes.Equal(got, rootKey) {
			t.Errorf("%s: a blob of version 1 does not open: %v", tt.w.Type(), err)
		}
	}
	sealed, err := hex.DecodeString(goldenSealed)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := seal.OpenFrom(t.Context(), seal.NewKEKWrapper(keyA), "p", sealed); err != nil || string(got) != "payload" {
		t.Errorf("a payload sealed by version 1 does not open: %v", err)
	}
}

func TestDamagedBlobs(t *testing.T) {
	w := static(t, "id", keyA)
	wrapped, err := w.Wrap(t.Context(), rootKey, "p")
	if err != nil {
		t.Fatal(err)
	}
	sent, err := seal.SealTo(t.Context(), w, "p", []byte("payload"))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		blob []byte
		open func([]byte) ([]byte, error)
	}{
		{"wrapped", wrapped, func(b []byte) ([]byte, error) { return w.Unwrap(t.Context(), b, "p") }},
		{"sealed payload", sent, func(b []byte) ([]byte, error) { return seal.OpenFrom(t.Context(), w, "p", b) }},
	}
	for _, tt := range tests {
		refused := func(what string, at int, blob []byte) {
			if _, err := tt.open(blob); !errors.Is(err, seal.ErrWrongKey) && !errors.Is(err, seal.ErrMalformed) {
				t.Errorf("%s, %s at %d: %v, want to be refused", tt.name, what, at, err)
			}
		}
		for i := range len(tt.blob) * 8 {
			b := bytes.Clone(tt.blob)
			b[i/8] ^= 1 << (i % 8)
			refused("bit flipped", i, b)
		}
		for n := range tt.blob {
			refused("cut", n, tt.blob[:n])
		}
		refused("extended", 0, append(bytes.Clone(tt.blob), 0))
	}
}

func TestSealTo(t *testing.T) {
	w := seal.NewKEKWrapper(keyA)
	payload := bytes.Repeat([]byte("secret"), 50_000)
	blob, err := seal.SealTo(t.Context(), w, "join", payload)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(blob, []byte("secret")) {
		t.Error("the payload is readable")
	}
	if got, err := seal.OpenFrom(t.Context(), w, "join", blob); err != nil || !bytes.Equal(got, payload) {
		t.Errorf("OpenFrom = %d bytes, %v", len(got), err)
	}
	if _, err := seal.OpenFrom(t.Context(), w, "other", blob); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("for another purpose: %v, want ErrWrongKey", err)
	}
	if _, err := seal.OpenFrom(t.Context(), seal.NewKEKWrapper(keyB), "join", blob); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("with another key: %v, want ErrWrongKey", err)
	}
}

func TestStaticSources(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return "file://" + path
	}
	t.Setenv("COFFER_TEST_KEY", hex.EncodeToString(keyA))
	blob, err := static(t, "a", keyA).Wrap(t.Context(), rootKey, "p")
	if err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{
		"hex":         hex.EncodeToString(keyA),
		"base64":      base64.StdEncoding.EncodeToString(keyA),
		"bare base64": base64.RawStdEncoding.EncodeToString(keyA),
		"environment": "env://COFFER_TEST_KEY",
		"binary file": file("binary", keyA),
		"hex file":    file("hex", []byte(hex.EncodeToString(keyA)+"\n")),
		"base64 file": file("base64", []byte(base64.StdEncoding.EncodeToString(keyA)+"\n")),
	} {
		w := mustStatic(t, map[string]string{"current_key_id": "a", "current_key": source})
		if got, err := w.Unwrap(t.Context(), blob, "p"); err != nil || !bytes.Equal(got, rootKey) {
			t.Errorf("%s: the key does not open what it sealed: %v", name, err)
		}
	}
}

func TestStaticProblems(t *testing.T) {
	good := hex.EncodeToString(keyA)
	tests := []struct {
		name string
		cfg  map[string]string
		want []string
	}{
		{"nothing", nil, []string{"current_key_id", "current_key: must be set"}},
		{"short key", map[string]string{"current_key_id": "a", "current_key": good[2:]}, []string{"current_key: must be 32 bytes"}},
		{"unknown setting", map[string]string{"current_key_id": "a", "current_key": good, "key": "x"}, []string{`unknown setting "key"`}},
		{"no such file", map[string]string{"current_key_id": "a", "current_key": "file:///nonexistent/key"}, []string{"/nonexistent/key"}},
		{"no such variable", map[string]string{"current_key_id": "a", "current_key": "env://COFFER_TEST_UNSET"}, []string{"COFFER_TEST_UNSET is not set"}},
		{"previous without id", map[string]string{"current_key_id": "a", "current_key": good, "previous_key": good}, []string{"previous_key_id"}},
		{"same ids", map[string]string{"current_key_id": "a", "current_key": good, "previous_key_id": "a", "previous_key": good}, []string{"must differ"}},
		{"long id", map[string]string{"current_key_id": strings.Repeat("a", 256), "current_key": good}, []string{"current_key_id"}},
	}
	for _, tt := range tests {
		_, err := seal.NewStatic(tt.cfg)
		if err == nil {
			t.Errorf("%s: accepted", tt.name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not mention %q", tt.name, err, want)
			}
		}
		if strings.Contains(err.Error(), good[2:]) {
			t.Errorf("%s: the error repeats the key", tt.name)
		}
	}
}

func TestStaticRotation(t *testing.T) {
	blob, err := static(t, "old", keyA).Wrap(t.Context(), rootKey, "p")
	if err != nil {
		t.Fatal(err)
	}
	both := mustStatic(t, map[string]string{
		"current_key_id": "new", "current_key": hex.EncodeToString(keyB),
		"previous_key_id": "old", "previous_key": hex.EncodeToString(keyA),
	})
	if got, err := both.Unwrap(t.Context(), blob, "p"); err != nil || !bytes.Equal(got, rootKey) {
		t.Fatalf("the previous key does not unwrap: %v", err)
	}
	if !seal.NeedsRewrap(both, blob) {
		t.Error("a blob of the previous key does not need to be wrapped again")
	}
	fresh, err := both.Wrap(t.Context(), rootKey, "p")
	if err != nil {
		t.Fatal(err)
	}
	if seal.NeedsRewrap(both, fresh) {
		t.Error("a blob of the current key needs to be wrapped again")
	}
	alone := static(t, "new", keyB)
	if _, err := alone.Unwrap(t.Context(), fresh, "p"); err != nil {
		t.Errorf("the new key alone: %v", err)
	}
	if _, err := alone.Unwrap(t.Context(), blob, "p"); !errors.Is(err, seal.ErrWrongKey) || !strings.Contains(err.Error(), `"old"`) {
		t.Errorf("without the previous key: %v, want ErrWrongKey naming the key's id", err)
	}
	if setup, err := seal.InitAuto(both, 0, 3); err != nil || setup.Config.KeyID != "new" || setup.Shares != nil || setup.RecoveryShares != nil {
		t.Errorf("InitAuto = %v, %v", setup, err)
	}
}

func TestWrappersShowNoKeys(t *testing.T) {
	for _, w := range []seal.Wrapper{seal.NewKEKWrapper(keyA), static(t, "a", keyA)} {
		// In an unexported field, out of reach of any String method.
		holder := struct{ inner any }{w}
		assertHidden(t, keyA, w, holder, &holder)
	}
}

func FuzzUnwrap(f *testing.F) {
	w := static(f, "2026-a", keyA)
	genuine, err := hex.DecodeString(goldenStatic) // the same one in every process of the fuzzer
	if err != nil {
		f.Fatal(err)
	}
	f.Add(genuine)
	f.Add([]byte("CfSl"))
	f.Add([]byte("CfSl\x01\xff"))
	f.Fuzz(func(t *testing.T, blob []byte) {
		if _, err := seal.UnwrapRoot(t.Context(), w, blob); err == nil && !bytes.Equal(blob, genuine) {
			t.Fatal("a forged blob opens")
		}
	})
}

func FuzzOpenFrom(f *testing.F) {
	w := seal.NewKEKWrapper(keyA)
	genuine, err := hex.DecodeString(goldenSealed)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(genuine)
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, blob []byte) {
		if _, err := seal.OpenFrom(t.Context(), w, "p", blob); err == nil && !bytes.Equal(blob, genuine) {
			t.Fatal("a forged blob opens")
		}
	})
}
