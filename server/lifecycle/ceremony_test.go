package lifecycle_test

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

func encode(shares [][]byte) (keys []string) {
	for _, k := range shares {
		keys = append(keys, base64.StdEncoding.EncodeToString(k))
	}
	return keys
}

// activeNode is a node that serves, and the key shares that people hold of it.
func activeNode(t *testing.T, shares, threshold int, change func(*lifecycle.Options)) (*node, []string) {
	t.Helper()
	n := newNode(t, "n1", lifecycletest.NewState(), change)
	result, err := n.Init(t.Context(), shares, threshold)
	if err != nil {
		t.Fatal(err)
	}
	keys := append(encode(result.KeyShares), encode(result.RecoveryShares)...)
	if n.Sealed() {
		n.unseal(keys[:threshold]...)
	}
	n.until(n.Active, "not active")
	return n, keys
}

func automatic(t *testing.T, fill byte) func(*lifecycle.Options) {
	return func(o *lifecycle.Options) { o.AutoSeal = static(t, fill) }
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one with %q", err, want)
	}
}

func TestGenerateRoot(t *testing.T) {
	for name, change := range map[string]func(*lifecycle.Options){"unseal keys": nil, "recovery keys": automatic(t, 1)} {
		t.Run(name, func(t *testing.T) {
			n, keys := activeNode(t, 3, 2, change)
			ctx := t.Context()
			if s, err := n.RootStatus(ctx); err != nil || s.Started || s.Required != 2 {
				t.Errorf("before: %+v, %v", s, err)
			}
			_, err := n.GenerateRoot(ctx, keys[0], "x")
			wantError(t, err, "start an attempt")
			_, err = n.StartRoot(ctx, "short", nil)
			wantError(t, err, "100 characters")
			s, err := n.StartRoot(ctx, "", nil)
			if err != nil || len(s.OTP.Reveal()) != ceremony.OTPLength || !s.Started || s.Required != 2 {
				t.Fatalf("StartRoot = %+v, %v", s, err)
			}
			_, err = n.StartRoot(ctx, "", nil)
			wantError(t, err, "cancel that attempt")
			_, err = n.GenerateRoot(ctx, keys[0], "")
			wantError(t, err, `"nonce" is required`)
			_, err = n.GenerateRoot(ctx, keys[0], "another")
			wantError(t, err, "not that of")
			_, err = n.GenerateRoot(ctx, "nonsense", s.Nonce)
			wantError(t, err, "share")
			strange := newNode(t, "other", lifecycletest.NewState(), nil).init(3, 2)
			for i, share := range []string{keys[0], anotherNumber(strange, keys[0])} {
				if _, err = n.GenerateRoot(ctx, share, s.Nonce); i == 0 && err != nil {
					t.Fatal(err)
				}
			}
			wantError(t, err, "at least one is wrong")
			if now, err := n.RootStatus(ctx); err != nil || now.Progress != 0 || now.Nonce != s.Nonce || now.OTP != "" {
				t.Errorf("after a wrong share: %+v, %v", now, err)
			}
			if now, err := n.GenerateRoot(ctx, keys[2], s.Nonce); err != nil || now.Complete || now.Progress != 1 || now.Encoded != "" {
				t.Errorf("after one share: %+v, %v", now, err)
			}
			done, err := n.GenerateRoot(ctx, keys[1], s.Nonce)
			if err != nil || !done.Complete {
				t.Fatalf("after all shares: %+v, %v", done, err)
			}
			hidden, err := base64.RawStdEncoding.DecodeString(done.Encoded.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			token := make([]byte, len(hidden))
			subtle.XORBytes(token, hidden, []byte(s.OTP.Reveal()))
			if string(token) != "the root token" {
				t.Errorf("the token is %q", token)
			}
			if now, err := n.RootStatus(ctx); err != nil || now.Started {
				t.Errorf("afterwards: %+v, %v", now, err)
			}
		})
	}
}

// An attempt can be given up, and ends with the turn of the node that has it.
func TestAttemptsEnd(t *testing.T) {
	n, keys := activeNode(t, 1, 1, nil)
	ctx := t.Context()
	begin := func() {
		t.Helper()
		if _, err := n.StartRoot(ctx, strings.Repeat("x", ceremony.OTPLength), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := n.StartRekey(ctx, ceremony.Unseal, ceremony.RekeyOptions{Shares: 1, Threshold: 1}); err != nil {
			t.Fatal(err)
		}
	}
	none := func() {
		t.Helper()
		root, err := n.RootStatus(ctx)
		rekey, err2 := n.RekeyStatus(ctx, ceremony.Unseal)
		if err != nil || err2 != nil || root.Started || rekey.Started {
			t.Errorf("%+v, %v; %+v, %v", root, err, rekey, err2)
		}
	}
	begin()
	wantError(t, n.CancelRoot(ctx, "x"), "nonce")
	wantError(t, n.CancelRekey(ctx, ceremony.Unseal, "x"), "nonce")
	if err := errors.Join(n.CancelRoot(ctx, ""), n.CancelRekey(ctx, ceremony.Unseal, ""), n.CancelRoot(ctx, "")); err != nil {
		t.Fatal(err)
	}
	none()
	begin()
	n.follower.Store(true)
	n.state.Changes <- struct{}{}
	n.until(func() bool { return n.turns.Load() == 0 }, "still active")
	if _, err := n.RootStatus(ctx); !errors.Is(err, storage.ErrReadOnly) {
		t.Errorf("on a standby: %v", err)
	}
	n.follower.Store(false)
	n.state.Changes <- struct{}{}
	n.until(n.Active, "not active")
	none()
	if err := n.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartRoot(ctx, "", nil); !errors.Is(err, storage.ErrSealed) {
		t.Errorf("on a sealed node: %v", err)
	}
	n.unseal(keys...)
}

// rekey runs one through and returns the new shares.
func rekey(t *testing.T, n *node, target ceremony.Target, o ceremony.RekeyOptions, keys []string) []string {
	t.Helper()
	s, err := n.StartRekey(t.Context(), target, o)
	if err != nil {
		t.Fatal(err)
	}
	nonce := s.Nonce
	for _, k := range keys {
		if s, err = n.Rekey(t.Context(), target, k, nonce); err != nil {
			t.Fatal(err)
		}
	}
	if !s.Complete || len(s.Keys) != o.Shares {
		t.Fatalf("after all shares: complete %v, %d keys", s.Complete, len(s.Keys))
	}
	return encode(s.Keys)
}

func TestRekey(t *testing.T) {
	n, old := activeNode(t, 3, 2, nil)
	ctx := t.Context()
	_, err := n.StartRekey(ctx, ceremony.Recovery, ceremony.RekeyOptions{Shares: 1, Threshold: 1})
	wantError(t, err, "no recovery keys")
	_, err = n.StartRekey(ctx, ceremony.Unseal, ceremony.RekeyOptions{Shares: 1, Threshold: 2})
	wantError(t, err, "secret_threshold")
	standby := newNode(t, "n2", n.state, nil)
	standby.follower.Store(true)
	standby.unseal(old[:2]...)
	n.peers = []*node{standby}

	fresh := rekey(t, n, ceremony.Unseal, ceremony.RekeyOptions{Shares: 5, Threshold: 3}, old[1:])
	if st := n.Status(ctx); st.Shares != 5 || st.Threshold != 3 {
		t.Errorf("status = %+v", st)
	}
	admits := func(leader *node) {
		t.Helper()
		challenge, err := leader.Challenge(ctx, "n3")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := seal.AnswerChallenge(ctx, seal.NewKEKWrapper(combine(t, fresh[:3])), "n3", challenge.Challenge); err != nil {
			t.Errorf("the new key does not answer the challenge of %s: %v", leader.id, err)
		}
	}
	admits(n)
	if err := n.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	// The other node was unsealed with the old keys, and yet admits those who hold the new ones.
	standby.follower.Store(false)
	n.state.Changes <- struct{}{}
	standby.until(standby.Active, "not active")
	admits(standby)
	for i, k := range old {
		if _, err := n.Unseal(ctx, k, false); (err != nil) != (i == 2) { // three are wanted now
			t.Errorf("old share %d: %v", i, err)
		}
	}
	n.unseal(fresh[4], fresh[0], fresh[2])
	if e, err := n.barrier.Get(ctx, dataKey); err != nil || string(e.Value) != "1" {
		t.Errorf("reading with the new keys: %v", err)
	}
}

func combine(t *testing.T, keys []string) []byte {
	t.Helper()
	var parts [][]byte
	for _, k := range keys {
		part, err := base64.StdEncoding.DecodeString(k)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
	}
	key, err := seal.Combine(parts)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// With verification nothing changes before the new shares were given back.
func TestRekeyVerified(t *testing.T) {
	n, old := activeNode(t, 1, 1, nil)
	ctx := t.Context()
	_, err := n.VerifyStatus(ctx, ceremony.Unseal)
	wantError(t, err, "no new keys")
	before, _ := n.state.Get(ctx, seal.RootKey)
	fresh := rekey(t, n, ceremony.Unseal, ceremony.RekeyOptions{Shares: 3, Threshold: 2, Verify: true}, old)
	if now, _ := n.state.Get(ctx, seal.RootKey); now.Version != before.Version {
		t.Error("the seal has changed before the new shares were verified")
	}
	s, err := n.VerifyStatus(ctx, ceremony.Unseal)
	if err != nil || s.VerifyNonce == "" || s.VerifyNonce == s.Nonce || s.Threshold != 2 {
		t.Fatalf("VerifyStatus = %+v, %v", s, err)
	}
	_, err = n.Rekey(ctx, ceremony.Unseal, old[0], s.Nonce)
	wantError(t, err, "verify them")
	_, err = n.VerifyRekey(ctx, ceremony.Unseal, fresh[0], s.Nonce)
	wantError(t, err, "nonce")
	if s, err = n.VerifyRekey(ctx, ceremony.Unseal, fresh[0], s.VerifyNonce); err != nil || s.VerifyProgress != 1 || s.Complete {
		t.Fatalf("VerifyRekey = %+v, %v", s, err)
	}
	if err := n.RestartVerify(ctx, ceremony.Unseal, s.VerifyNonce); err != nil {
		t.Fatal(err)
	}
	again, err := n.VerifyStatus(ctx, ceremony.Unseal)
	if err != nil || again.VerifyProgress != 0 || again.VerifyNonce == s.VerifyNonce {
		t.Fatalf("after the restart: %+v, %v", again, err)
	}
	strange := newNode(t, "other", lifecycletest.NewState(), nil).init(3, 2)
	for i, k := range []string{fresh[0], anotherNumber(strange, fresh[0])} {
		_, err = n.VerifyRekey(ctx, ceremony.Unseal, k, again.VerifyNonce)
		if i == 0 && err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, err, "not those of the new key")
	for _, k := range fresh[1:] {
		if s, err = n.VerifyRekey(ctx, ceremony.Unseal, k, again.VerifyNonce); err != nil {
			t.Fatal(err)
		}
	}
	if !s.Complete {
		t.Errorf("after all new shares: %+v", s)
	}
	if err := n.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	n.unseal(fresh[2], fresh[0])
}

// A caller that made a new key learns its shares even if the outcome of the commit is not known.
func TestRekeyOutcomeUnknown(t *testing.T) {
	n, old := activeNode(t, 1, 1, nil)
	n.onCommit = func(storage.Batch) error { return storage.ErrOutcomeUnknown }
	s, err := n.StartRekey(t.Context(), ceremony.Unseal, ceremony.RekeyOptions{Shares: 1, Threshold: 1})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = n.Rekey(t.Context(), ceremony.Unseal, old[0], s.Nonce); err != nil || !s.Unknown || len(s.Keys) != 1 {
		t.Errorf("Rekey = unknown %v, %d keys, %v", s.Unknown, len(s.Keys), err)
	}
	n.onCommit = nil
	if err := n.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.unseal(old...)
}

func TestRecoveryKeys(t *testing.T) {
	n, old := activeNode(t, 3, 2, automatic(t, 1))
	ctx := t.Context()
	if s := n.Status(ctx); !s.Recovery || s.Shares != 3 || s.Threshold != 2 || s.Type != "static" {
		t.Errorf("status = %+v", s)
	}
	_, err := n.StartRekey(ctx, ceremony.Unseal, ceremony.RekeyOptions{Shares: 2, Threshold: 2})
	wantError(t, err, "must be 1")
	fresh := rekey(t, n, ceremony.Recovery, ceremony.RekeyOptions{Shares: 2, Threshold: 2}, old[:2])
	s, err := n.StartRoot(ctx, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range old[:2] {
		_, err = n.GenerateRoot(ctx, k, s.Nonce)
	}
	wantError(t, err, "wrong")
	for _, k := range fresh {
		s, err = n.GenerateRoot(ctx, k, s.Nonce)
	}
	if err != nil || !s.Complete {
		t.Errorf("with the new recovery keys: %+v, %v", s, err)
	}
}

// Recovery keys can be left out, and made later by a caller who needs no shares.
func TestNoRecoveryKeys(t *testing.T) {
	n, keys := activeNode(t, 0, 0, automatic(t, 1))
	ctx := t.Context()
	if len(keys) != 0 {
		t.Errorf("%d keys", len(keys))
	}
	_, err := n.StartRoot(ctx, "", nil)
	wantError(t, err, "no recovery keys")
	o := ceremony.RekeyOptions{Shares: 2, Threshold: 2}
	_, err = n.StartRekey(ctx, ceremony.Recovery, o)
	wantError(t, err, "no recovery keys")
	o.Authorised = true
	s, err := n.StartRekey(ctx, ceremony.Recovery, o)
	if err != nil || !s.Complete || len(s.Keys) != 2 {
		t.Fatalf("StartRekey = complete %v, %d keys, %v", s.Complete, len(s.Keys), err)
	}
	if s, err := n.StartRekey(ctx, ceremony.Recovery, o); err != nil || s.Complete || s.Required != 2 {
		t.Errorf("once there are keys: %+v, %v", s, err)
	}
	if err := n.CancelRekey(ctx, ceremony.Recovery, ""); err != nil {
		t.Fatal(err)
	}
	rekey(t, n, ceremony.Recovery, o, encode(s.Keys))
}

func TestInitRecoveryShares(t *testing.T) {
	for _, bad := range [][2]int{{1, 2}, {5, 1}, {256, 3}, {-1, 1}} {
		n := newNode(t, "n1", lifecycletest.NewState(), automatic(t, 1))
		if _, err := n.Init(context.Background(), bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), "recovery_") {
			t.Errorf("Init(%v) = %v", bad, err)
		}
	}
}

// A cluster that unseals by itself gets a new root key by its recovery keys, or without them by a token; the running nodes
// follow, also one that was not told, because the seal opens it.
func TestNewRootKeyOfAnAutomaticSeal(t *testing.T) {
	for name, shares := range map[string]int{"recovery keys": 1, "no recovery keys": 0} {
		t.Run(name, func(t *testing.T) {
			n, keys := activeNode(t, shares, shares, automatic(t, 1))
			standby := newNode(t, "n2", n.state, automatic(t, 1))
			standby.follower.Store(true)
			standby.run()
			standby.until(func() bool { return !standby.Sealed() }, "sealed")
			before, _ := n.state.Get(t.Context(), seal.RootKey)
			o := ceremony.RekeyOptions{Shares: 1, Threshold: 1, Authorised: true}
			s, err := n.StartRekey(t.Context(), ceremony.Unseal, o)
			if err == nil && shares > 0 {
				s, err = n.Rekey(t.Context(), ceremony.Unseal, keys[0], s.Nonce)
			}
			if err != nil || !s.Complete || len(s.Keys) != 0 {
				t.Fatalf("complete %v, %d keys, %v", s.Complete, len(s.Keys), err)
			}
			if now, _ := n.state.Get(t.Context(), seal.RootKey); now.Version == before.Version {
				t.Error("the wrapped root key is the one of before")
			}
			if info := n.barrier.KeyInfo(); info.Term != 2 {
				t.Errorf("the active term is %d, want 2", info.Term)
			}
			standby.until(func() bool {
				_, err := standby.barrier.Get(t.Context(), dataKey)
				return err == nil && !standby.Sealed()
			}, "not following")
			again := newNode(t, "n3", n.state, automatic(t, 1))
			again.run()
			again.until(func() bool { return !again.Sealed() }, "sealed")
		})
	}
}

// A node that was not told the new root key seals, and says with which keys it opens again.
func TestRekeyWithoutContact(t *testing.T) {
	n, old := activeNode(t, 1, 1, nil)
	away := newNode(t, "n2", n.state, nil)
	away.follower.Store(true)
	away.run()
	away.unseal(old...)
	fresh := rekey(t, n, ceremony.Unseal, ceremony.RekeyOptions{Shares: 1, Threshold: 1}, old)
	away.until(away.Sealed, "still unsealed")
	if _, err := away.Unseal(t.Context(), old[0], false); err == nil {
		t.Error("the former share still opens it")
	}
	away.unseal(fresh...)
}

// A rekey that ends in the middle has changed all or nothing: whatever was committed opens with the shares of then.
func TestRekeyIsOneCommit(t *testing.T) {
	n, old := activeNode(t, 1, 1, nil)
	var batches []storage.Batch
	n.onCommit = func(b storage.Batch) error { batches = append(batches, b); return nil }
	rekey(t, n, ceremony.Unseal, ceremony.RekeyOptions{Shares: 1, Threshold: 1}, old)
	if len(batches) != 1 {
		t.Fatalf("%d commits, want 1", len(batches))
	}
	var keys []storage.Key
	for _, p := range batches[0].Puts {
		keys = append(keys, p.Key)
	}
	want := []storage.Key{"l/barrier/keyring", "l/barrier/next", seal.ConfigKey, seal.UnsealKey, seal.RootKey}
	if !slices.Equal(keys, want) {
		t.Errorf("it writes %q, want %q", keys, want)
	}
}
