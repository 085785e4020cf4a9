package seal_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// service is a key management service in memory that knows no purposes.
type service struct {
	key  seal.Wrapper
	fail error
	hang bool
	slow bool // it takes a second

	encrypted int
}

func (s *service) Encrypt(ctx context.Context, plain []byte, _ string) ([]byte, error) {
	s.encrypted++
	if s.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if s.slow {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.fail != nil {
		return nil, s.fail
	}
	return s.key.Wrap(ctx, plain, "")
}

func (s *service) Decrypt(ctx context.Context, blob []byte, _ string) ([]byte, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	return s.key.Unwrap(ctx, blob, "")
}

func newService(t testing.TB, keyID string, key []byte) (*service, seal.Wrapper) {
	t.Helper()
	s := &service{key: seal.NewKEKWrapper(key)}
	w, err := seal.NewKMSWrapper(seal.TypeAWSKMS, keyID, s)
	if err != nil {
		t.Fatal(err)
	}
	return s, w
}

func TestKMSWrapper(t *testing.T) {
	s, w := newService(t, "region/key", keyA)
	if w.Type() != seal.TypeAWSKMS || seal.KeyID(w) != "region/key" {
		t.Errorf("type %q, key %q", w.Type(), seal.KeyID(w))
	}
	for _, plain := range [][]byte{nil, {1}, rootKey, make([]byte, 10_000)} {
		blob, err := w.Wrap(t.Context(), plain, "p")
		if err != nil {
			t.Fatal(err)
		}
		if len(plain) >= 32 && bytes.Contains(blob, plain) {
			t.Error("the plain text is readable")
		}
		if got, err := w.Unwrap(t.Context(), blob, "p"); err != nil || !bytes.Equal(got, plain) {
			t.Errorf("Unwrap(Wrap(%d bytes)) = %d bytes, %v", len(plain), len(got), err)
		}
		// Although this service binds no purpose.
		if _, err := w.Unwrap(t.Context(), blob, "q"); !errors.Is(err, seal.ErrWrongKey) {
			t.Errorf("for another purpose: %v, want ErrWrongKey", err)
		}
		_, other := newService(t, "region/other", keyB)
		if _, err := other.Unwrap(t.Context(), blob, "p"); !errors.Is(err, seal.ErrWrongKey) || !strings.Contains(err.Error(), `"region/key"`) {
			t.Errorf("with another key: %v, want ErrWrongKey naming the key", err)
		}
		if seal.NeedsRewrap(w, blob) || !seal.NeedsRewrap(other, blob) {
			t.Error("NeedsRewrap does not follow the key's name")
		}
		for _, local := range []seal.Wrapper{seal.NewKEKWrapper(keyA), static(t, "a", keyA)} {
			if _, err := local.Unwrap(t.Context(), blob, "p"); !errors.Is(err, seal.ErrWrongKey) {
				t.Errorf("%s opens a blob of a service: %v", local.Type(), err)
			}
			mine, err := local.Wrap(t.Context(), plain, "p")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Unwrap(t.Context(), mine, "p"); !errors.Is(err, seal.ErrWrongKey) {
				t.Errorf("the service opens a blob of %s: %v", local.Type(), err)
			}
		}
	}
	blob, err := w.Wrap(t.Context(), rootKey, "p")
	if err != nil {
		t.Fatal(err)
	}
	s.fail = errors.New("away")
	_, err = w.Wrap(t.Context(), rootKey, "p")
	_, err2 := w.Unwrap(t.Context(), blob, "p")
	for _, err := range []error{err, err2} {
		if !errors.Is(err, s.fail) || errors.Is(err, seal.ErrWrongKey) || !strings.Contains(err.Error(), `key "region/key"`) {
			t.Errorf("a service that fails: %v", err)
		}
	}
	for _, bad := range []string{"", strings.Repeat("k", 256)} {
		if _, err := seal.NewKMSWrapper(seal.TypeAWSKMS, bad, s); err == nil {
			t.Errorf("a key's name of %d bytes is accepted", len(bad))
		}
	}
	assertHidden(t, keyA, w)
}

func TestKMSTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newService(t, "k", keyA)
		s.hang = true
		start := time.Now()
		if _, err := w.Wrap(t.Context(), rootKey, "p"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != seal.KMSTimeout {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestDamagedKMSBlobs(t *testing.T) {
	_, w := newService(t, "id", keyA)
	blob, err := w.Wrap(t.Context(), rootKey, "p")
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, at int, b []byte) {
		t.Helper()
		if _, err := w.Unwrap(t.Context(), b, "p"); !errors.Is(err, seal.ErrWrongKey) && !errors.Is(err, seal.ErrMalformed) {
			t.Errorf("%s at %d: %v, want to be refused", what, at, err)
		}
	}
	for i := range len(blob) * 8 {
		b := bytes.Clone(blob)
		b[i/8] ^= 1 << (i % 8)
		refused("bit flipped", i, b)
	}
	for n := range blob {
		refused("cut", n, blob[:n])
	}
	refused("extended", 0, append(bytes.Clone(blob), 0))
}

// goldenKMS is the root key as version 1 wrapped it with the service of keyA under the name "region/key".
const goldenKMS = "4366536b010a726567696f6e2f6b657900564366536c0100ab1620b94c505179cd50228213337a949213b74d809cacd978a890e6291d5f567cae16e4574d305a347ebe1b24794b5a84ca25cf1280f7840663c108bca96fd98ff7f30b8f3380afa844de1302d58741d4a49e36b08ceb12ffd302d11340908cf91bc30ccea56e5875fda167f67f9fa0df303645e29f500dfa8a5c5759c79c20"

func FuzzKMSUnwrap(f *testing.F) {
	_, w := newService(f, "region/key", keyA)
	genuine, err := hex.DecodeString(goldenKMS)
	if err != nil {
		f.Fatal(err)
	}
	if got, err := seal.UnwrapRoot(f.Context(), w, genuine); err != nil || !bytes.Equal(got, rootKey) {
		f.Fatalf("a blob of version 1 does not open: %v", err)
	}
	f.Add(genuine)
	f.Add([]byte("CfSk"))
	f.Add([]byte("CfSk\x01\xff"))
	f.Add([]byte("CfSk\x01\x00\xff\xff"))
	f.Fuzz(func(t *testing.T, blob []byte) {
		if _, err := seal.UnwrapRoot(t.Context(), w, blob); err == nil && !bytes.Equal(blob, genuine) {
			t.Fatal("a forged blob opens")
		}
	})
}

// barrier seals bytes for the tests.
func sealBytes(aad string, plain []byte) ([]byte, error) {
	return append([]byte(aad+"\n"), plain...), nil
}
func openBytes(aad string, sealed []byte) ([]byte, error) {
	plain, ok := bytes.CutPrefix(sealed, []byte(aad+"\n"))
	if !ok {
		return nil, errors.New("another aad")
	}
	return plain, nil
}

func TestRecoveryKey(t *testing.T) {
	setup, err := seal.InitAuto(static(t, "a", keyA), 3, 2)
	if err != nil {
		t.Fatal(err)
	}
	puts, err := setup.Puts(t.Context(), rootKey, sealBytes)
	if err != nil {
		t.Fatal(err)
	}
	var store storage.Memory
	if _, err := store.Commit(t.Context(), storage.Batch{Puts: puts}); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := seal.Load(t.Context(), &store)
	if err != nil || cfg.RecoveryShares != 3 || cfg.RecoveryThreshold != 2 || !cfg.Auto() {
		t.Fatalf("Load = %+v, %v", cfg, err)
	}
	check, err := seal.VerifyRecovery(t.Context(), &store, openBytes)
	if err != nil {
		t.Fatal(err)
	}
	u := seal.NewUnsealer(cfg, check)
	u.Submit(hex.EncodeToString(setup.RecoveryShares[2]))
	if done, key, err := u.Submit(hex.EncodeToString(setup.RecoveryShares[0])); !done || err != nil || check(key) != nil {
		t.Errorf("two of three shares: done %v, %v", done, err)
	}
	if err := check(keyB); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("another key: %v", err)
	}
	for _, p := range puts {
		key, _ := seal.Combine(setup.RecoveryShares[:2])
		if bytes.Contains(p.Value, key) {
			t.Errorf("%s has the recovery key", p.Key)
		}
	}
	if _, err := seal.VerifyRecovery(t.Context(), &storage.Memory{}, openBytes); !errors.Is(err, seal.ErrNoRecoveryKeys) {
		t.Errorf("without recovery keys: %v", err)
	}
	setup.Clear()
	if setup.RecoveryShares != nil {
		t.Error("Clear leaves the recovery shares")
	}
}

func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(" from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COFFER_TEST_A", "from the environment")
	t.Setenv("COFFER_TEST_B", "true")
	s := seal.NewSettings("test", map[string]string{
		"given": "here", "file": "file://" + file, "env": "env://COFFER_TEST_A", "no": "false", "perhaps": "do-not-show", "gone": "env://COFFER_TEST_GONE",
		"extra": "do-not-show",
	})
	for got, want := range map[string]string{
		s.Text("given", "COFFER_TEST_A"):                     "here",
		s.Text("absent", "COFFER_TEST_NONE"):                 "",
		s.Required("absent2", "COFFER_NO", "COFFER_TEST_A"):  "from the environment",
		s.Secret("file") + "+" + s.Secret("env", "COFFER_X"): "from a file+from the environment",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if s.Bool("no", "COFFER_TEST_B") || !s.Bool("absent3", "COFFER_TEST_B") {
		t.Error("Bool does not prefer the setting to the environment")
	}
	s.Bool("perhaps")
	s.Secret("gone")
	s.Required("needed", "COFFER_ONE", "COFFER_TWO")
	text := s.Err().Error()
	for _, want := range []string{
		`seal "test": perhaps must be true or false`, "gone: the environment variable COFFER_TEST_GONE is not set",
		"needed must be set, or the environment variable COFFER_ONE or COFFER_TWO", `unknown setting "extra"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	if strings.Contains(text, "do-not-show") || strings.Count(text, "\n") != 3 {
		t.Errorf("problems: %s", text)
	}
}

// Challenges by a service: any number costs one call an hour, each is for one server, and nothing else is opened.
func TestChallengesOfAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := newService(t, "k", keyA)
		var c seal.Challenges
		for i := range 100 {
			id := string(rune('a' + i%26))
			blob, err := c.Issue(t.Context(), w, id)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := seal.AnswerChallenge(t.Context(), w, id+"x", blob); !errors.Is(err, seal.ErrWrongKey) {
				t.Fatalf("another server's challenge: %v", err)
			}
			answer, err := seal.AnswerChallenge(t.Context(), w, id, blob)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Verify(id, answer); err != nil {
				t.Fatal(err)
			}
		}
		if s.encrypted != 1 {
			t.Errorf("%d calls of the service", s.encrypted)
		}
		time.Sleep(2 * time.Hour)
		s.slow = true
		for range 10 { // who hangs up before there is an answer
			impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			c.Issue(impatient, w, "a")
			cancel()
		}
		if s.encrypted != 2 {
			t.Errorf("%d calls of the service for clients that hung up", s.encrypted-1)
		}
		s.slow = false
		time.Sleep(2 * time.Hour)
		s.fail = errors.New("away")
		for range 10 {
			if _, err := c.Issue(t.Context(), w, "a"); !errors.Is(err, s.fail) {
				t.Errorf("while it is away: %v", err)
			}
		}
		if s.encrypted != 3 {
			t.Errorf("%d calls of a service that is away", s.encrypted-2)
		}
		s.fail = nil
		time.Sleep(10 * time.Second)
		_, other := newService(t, "other", keyB)
		for _, w := range []seal.Wrapper{w, other, seal.NewKEKWrapper(keyA), w} { // the seal may change
			blob, err := c.Issue(t.Context(), w, "a")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := seal.AnswerChallenge(t.Context(), w, "a", blob); err != nil {
				t.Errorf("%s: %v", seal.KeyID(w), err)
			}
		}
		root, err := seal.WrapRoot(t.Context(), w, rootKey)
		if err != nil {
			t.Fatal(err)
		}
		for _, forged := range [][]byte{nil, {0}, {0xff, 0xff}, append([]byte{byte(len(root) >> 8), byte(len(root))}, root...), root} {
			if answer, err := seal.AnswerChallenge(t.Context(), w, "a", forged); err == nil {
				t.Errorf("a forged challenge gives %d bytes", len(answer))
			}
		}
	})
}
