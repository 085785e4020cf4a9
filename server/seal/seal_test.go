package seal_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

func TestValidateShares(t *testing.T) {
	tests := []struct {
		shares, threshold int
		want              string // part of the error, "" for none
	}{
		{1, 1, ""}, {2, 2, ""}, {5, 3, ""}, {255, 255, ""},
		{0, 0, "between 1 and 255"}, {-1, 1, "between 1 and 255"}, {256, 3, "between 1 and 255"},
		{5, 0, "at least 1"}, {5, -3, "at least 1"},
		{3, 4, "must not exceed"},
		{5, 1, "at least 2"},
	}
	for _, tt := range tests {
		err := seal.ValidateShares(tt.shares, tt.threshold)
		if got := fmt.Sprint(err); (err == nil) != (tt.want == "") || !strings.Contains(got, tt.want) && err != nil {
			t.Errorf("ValidateShares(%d, %d) = %v, want %q", tt.shares, tt.threshold, err, tt.want)
		}
		if _, initErr := seal.Init(tt.shares, tt.threshold); (initErr == nil) != (err == nil) {
			t.Errorf("Init(%d, %d) = %v, but ValidateShares says %v", tt.shares, tt.threshold, initErr, err)
		}
	}
}

// initialized stores a new Shamir seal over a known root key and returns what its operators hold.
func initialized(t *testing.T, shares, threshold int) (*seal.Setup, seal.Config, []byte) {
	t.Helper()
	setup, err := seal.Init(shares, threshold)
	if err != nil {
		t.Fatal(err)
	}
	puts, err := setup.Puts(t.Context(), rootKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	var store storage.Memory
	if _, err := store.Commit(t.Context(), storage.Batch{Puts: puts}); err != nil {
		t.Fatal(err)
	}
	cfg, wrapped, err := seal.Load(t.Context(), &store)
	if err != nil {
		t.Fatal(err)
	}
	return setup, cfg, wrapped
}

var rootKey = bytes.Repeat([]byte{0xA7}, 32)

func TestUnsealWithAnyEnoughShares(t *testing.T) {
	for _, n := range []struct{ shares, threshold int }{{1, 1}, {2, 2}, {3, 2}, {5, 3}, {255, 7}} {
		setup, cfg, wrapped := initialized(t, n.shares, n.threshold)
		if len(setup.Shares) != n.shares {
			t.Fatalf("%d of %d: %d shares", n.threshold, n.shares, len(setup.Shares))
		}
		for first := range n.shares {
			u := seal.NewUnsealer(cfg, seal.OpensRoot(wrapped))
			for i := range n.threshold {
				if got := u.Progress(); got != i {
					t.Fatalf("%d of %d: progress %d after %d shares", n.threshold, n.shares, got, i)
				}
				share := setup.Shares[(first+i)%n.shares]
				text := hex.EncodeToString(share)
				if i%2 == 1 {
					text = base64.StdEncoding.EncodeToString(share)
				}
				done, kek, err := u.Submit(text)
				if last := i == n.threshold-1; err != nil || done != last || (kek != nil) != last {
					t.Fatalf("%d of %d: share %d: done %v, key %v, %v", n.threshold, n.shares, i+1, done, kek != nil, err)
				}
				if !done {
					continue
				}
				if root, err := seal.UnwrapRoot(t.Context(), seal.NewKEKWrapper(kek), wrapped); err != nil || !bytes.Equal(root, rootKey) {
					t.Fatalf("%d of %d: the combined key does not give the root key: %v", n.threshold, n.shares, err)
				}
			}
			if u.Progress() != 0 || u.Nonce() != "" {
				t.Fatalf("the attempt is not over: progress %d", u.Progress())
			}
		}
	}
}

func TestSubmitRefusals(t *testing.T) {
	setup, cfg, wrapped := initialized(t, 5, 3)
	good := hex.EncodeToString(setup.Shares[0])
	sameNumber := bytes.Clone(setup.Shares[0])
	sameNumber[0] ^= 1
	numberZero := append(bytes.Clone(setup.Shares[1][:32]), 0)
	tests := []struct{ name, share string }{
		{"empty", ""},
		{"not an encoding", "not a share at all, just words and spaces, padded to sixty-six!!"},
		{"short", good[:64]},
		{"long", good + "00"},
		{"short base64", base64.StdEncoding.EncodeToString(setup.Shares[1][:32])},
		{"odd digits", good[1:]},
		{"number zero", hex.EncodeToString(numberZero)},
		{"other share of the same number", hex.EncodeToString(sameNumber)},
	}
	u := seal.NewUnsealer(cfg, seal.OpensRoot(wrapped))
	if _, _, err := u.Submit(" " + good + "\n"); err != nil {
		t.Fatal(err)
	}
	nonce := u.Nonce()
	for _, tt := range tests {
		done, kek, err := u.Submit(tt.share)
		if !errors.Is(err, seal.ErrMalformedShare) || done || kek != nil {
			t.Errorf("%s: done %v, err %v, want ErrMalformedShare", tt.name, done, err)
		}
		if tt.share != "" && strings.Contains(err.Error(), tt.share) {
			t.Errorf("%s: the error repeats the share", tt.name)
		}
	}
	if done, _, err := u.Submit(good); done || err != nil {
		t.Errorf("a share given twice: done %v, %v, want to be ignored", done, err)
	}
	if u.Progress() != 1 || u.Nonce() != nonce || nonce == "" {
		t.Errorf("progress %d, nonce changed %v, want 1 and the same", u.Progress(), u.Nonce() != nonce)
	}
	u.Reset()
	if u.Progress() != 0 || u.Nonce() != "" {
		t.Errorf("after Reset: progress %d, nonce %q", u.Progress(), u.Nonce())
	}
}

func TestWrongSharesStartAgain(t *testing.T) {
	setup, cfg, wrapped := initialized(t, 3, 2)
	strange, _, _ := initialized(t, 3, 2)
	u := seal.NewUnsealer(cfg, seal.OpensRoot(wrapped))
	wrong := bytes.Clone(strange.Shares[0])
	wrong[32] = setup.Shares[0][32] ^ 0x55 // another number than the first
	if wrong[32] == 0 {
		wrong[32] = setup.Shares[0][32] ^ 0x66
	}
	for i, share := range [][]byte{setup.Shares[0], wrong} {
		done, kek, err := u.Submit(hex.EncodeToString(share))
		if i == 1 && (!errors.Is(err, seal.ErrWrongShares) || done || kek != nil) {
			t.Fatalf("wrong combination: done %v, err %v, want ErrWrongShares", done, err)
		}
	}
	if u.Progress() != 0 || u.Nonce() != "" {
		t.Fatalf("progress %d after a wrong combination, want 0", u.Progress())
	}
	u.Submit(hex.EncodeToString(setup.Shares[0]))
	if done, _, err := u.Submit(hex.EncodeToString(setup.Shares[2])); !done || err != nil {
		t.Fatalf("the right shares after wrong ones: done %v, %v", done, err)
	}
}

func TestConcurrentSubmit(t *testing.T) {
	setup, cfg, wrapped := initialized(t, 8, 8)
	u := seal.NewUnsealer(cfg, seal.OpensRoot(wrapped))
	var wg sync.WaitGroup
	opened := make(chan bool, 8)
	for _, share := range setup.Shares {
		wg.Go(func() {
			done, _, err := u.Submit(hex.EncodeToString(share))
			if err != nil {
				t.Error(err)
			}
			opened <- done
		})
	}
	wg.Wait()
	close(opened)
	n := 0
	for done := range opened {
		if done {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d of 8 calls report the key, want 1", n)
	}
}

func TestConfig(t *testing.T) {
	tests := []struct{ name, raw, want string }{
		{"shamir", `{"version":1,"type":"shamir","secret_shares":3,"secret_threshold":2}`, ""},
		{"static", `{"version":1,"type":"static","key_id":"a"}`, ""},
		{"a later field", `{"version":1,"type":"static","something":1}`, ""},
		{"empty", ``, "not JSON"},
		{"no version", `{"type":"static"}`, "version 0"},
		{"recovery keys", `{"version":2,"type":"awskms","recovery_shares":5,"recovery_threshold":3,"key_id":"k"}`, ""},
		{"recovery threshold", `{"version":2,"type":"awskms","recovery_shares":5,"recovery_threshold":1}`, "recovery_threshold must be at least 2"},
		{"shamir with recovery keys", `{"version":2,"type":"shamir","secret_shares":1,"secret_threshold":1,"recovery_shares":1,"recovery_threshold":1}`, "no recovery keys"},
		{"newer", `{"version":3,"type":"static"}`, "version 3"},
		{"type", `{"version":1,"type":"hsm"}`, `unknown seal type "hsm"`},
		{"threshold", `{"version":1,"type":"shamir","secret_shares":3,"secret_threshold":1}`, "at least 2"},
		{"static with shares", `{"version":1,"type":"static","secret_shares":1,"secret_threshold":1}`, "no key shares"},
	}
	for _, tt := range tests {
		_, err := seal.DecodeConfig([]byte(tt.raw))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: DecodeConfig = %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, _, err := seal.Load(t.Context(), &storage.Memory{}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("Load of an empty store = %v, want ErrNotFound", err)
	}
}

func TestSetupShowsNoShares(t *testing.T) {
	setup, _, _ := initialized(t, 3, 2)
	assertHidden(t, setup.Shares[0], setup)
	setup.Clear()
	if setup.Shares != nil {
		t.Error("Clear leaves the shares")
	}
}

// assertHidden formats values and looks for the secret.
func assertHidden(t *testing.T, secret []byte, values ...any) {
	t.Helper()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		for _, v := range values {
			text := fmt.Sprintf(verb, v)
			for _, form := range []string{string(secret), hex.EncodeToString(secret), strings.Trim(fmt.Sprint(secret), "[]"), goBytes(secret)} {
				if strings.Contains(text, form) {
					t.Errorf("%s of %T shows the secret", verb, v)
				}
			}
		}
	}
}

// goBytes is the inside of a byte slice as %#v prints it.
func goBytes(b []byte) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", b), "[]byte{"), "}")
}

func FuzzDecodeConfig(f *testing.F) {
	f.Add([]byte(`{"version":1,"type":"shamir","secret_shares":5,"secret_threshold":3,"created":"2026-01-02T03:04:05Z"}`))
	f.Add([]byte(`{"version":1,"type":"static","key_id":"2026-a"}`))
	f.Add([]byte(`{"version":1e9}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := seal.DecodeConfig(raw)
		if err != nil {
			return
		}
		again, err := c.Encode()
		if err != nil {
			t.Fatalf("accepted, but does not encode: %v", err)
		}
		if c2, err := seal.DecodeConfig(again); err != nil || !c2.Created.Equal(c.Created) || c2.Shares != c.Shares || c2.KeyID != c.KeyID {
			t.Fatalf("decode(encode(x)) = %v, %v, want %v", c2, err, c)
		}
	})
}

func FuzzSubmit(f *testing.F) {
	f.Add("", 3)
	f.Add(strings.Repeat("ab", 33), 2)
	f.Add(strings.Repeat("A", 44), 1)
	f.Fuzz(func(t *testing.T, share string, threshold int) {
		shares := 255
		if threshold == 1 {
			shares = 1
		}
		if seal.ValidateShares(shares, threshold) != nil {
			return
		}
		u := seal.NewUnsealer(seal.Config{Type: seal.TypeShamir, Shares: shares, Threshold: threshold}, nil)
		done, kek, err := u.Submit(share)
		if err == nil && threshold > 1 && (done || u.Progress() != 1) {
			t.Fatalf("one share of %d: done %v, progress %d", threshold, done, u.Progress())
		}
		if done && len(kek) != seal.KeyBytes {
			t.Fatalf("a key of %d bytes", len(kek))
		}
	})
}
