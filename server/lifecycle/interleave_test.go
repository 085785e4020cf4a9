package lifecycle_test

import (
	"context"
	"slices"
	"testing"

	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// changeKey replaces a key that people hold and returns the new shares.
func (n *node) changeKey(t ceremony.Target, o ceremony.RekeyOptions, keys []string) []string {
	n.t.Helper()
	ctx := context.Background()
	s, err := n.StartRekey(ctx, t, o)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, k := range keys {
		if s, err = n.Rekey(ctx, t, k, s.Nonce); err != nil {
			n.t.Fatal(err)
		}
	}
	if !s.Complete {
		n.t.Fatalf("after %d shares: %+v", len(keys), s)
	}
	return encode(s.Keys)
}

// opensRoot reports whether these shares still count.
func (n *node) opensRoot(keys []string) bool {
	n.t.Helper()
	ctx := context.Background()
	s, err := n.StartRoot(ctx, "", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	defer n.CancelRoot(ctx, "")
	for _, k := range keys {
		if s, err = n.GenerateRoot(ctx, k, s.Nonce); err != nil {
			return false
		}
	}
	return s.Complete
}

// Shares that were void before the change of seal, for which they were given, must not come back by it.
func TestMigrationDoesNotBringFormerSharesBack(t *testing.T) {
	ctx := t.Context()
	_, a := newService(t, seal.TypeAWSKMS, "alpha")
	for name, to := range map[string]seal.Wrapper{"to shamir": nil, "to a service": static(t, 3)} {
		t.Run(name, func(t *testing.T) {
			first, keys := activeNode(t, 3, 2, seals(a, nil))
			second := newNode(t, "n2", first.state, seals(to, a))
			second.follower.Store(true)
			for _, k := range keys[:2] {
				if _, err := second.Migrate(ctx, k, false); err != nil {
					t.Fatal(err)
				}
			}
			fresh := first.changeKey(ceremony.Recovery, ceremony.RekeyOptions{Shares: 3, Threshold: 2}, keys[:2])
			first.follower.Store(true)
			if err := first.Close(ctx); err != nil {
				t.Fatal(err)
			}
			second.follower.Store(false)
			second.state.Changes <- struct{}{}
			second.until(second.Active, "not active")
			// The seal is looked at after the change of seal: then that has been, or was given up.
			second.until(func() bool { return second.Numbers()["seal_reachable"] == 1 || !second.Status(ctx).Migration }, "nothing was tended")
			if second.opensRoot(keys[:2]) {
				t.Error("the former shares are good again")
			}
			if !second.opensRoot(fresh[:2]) {
				t.Error("the new shares are void")
			}
		})
	}
}

// A recovery key that is changed while the root key is being wrapped again keeps its number of shares.
func TestRewrapKeepsAChangedRecoveryKey(t *testing.T) {
	_, before := newService(t, seal.TypeAWSKMS, "alpha")
	was, keys := activeNode(t, 3, 2, seals(before, nil))
	if err := was.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &slowService{service: &service{Wrapper: newKEK('a')}, reached: make(chan string), proceed: make(chan struct{})}
	after, err := seal.NewKMSWrapper(seal.TypeAWSKMS, "alpha 2", s)
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "n1", was.state, seals(after, nil))
	n.run()
	<-s.reached // wrapping the root key
	n.until(n.Active, "not active")
	fresh := n.changeKey(ceremony.Recovery, ceremony.RekeyOptions{Shares: 5, Threshold: 4}, keys[:2])
	s.proceed <- struct{}{}
	<-s.reached // the check of the seal, which comes after it
	s.proceed <- struct{}{}
	if !n.opensRoot(fresh[:4]) {
		t.Error("the new recovery key is lost")
	}
}

func newKEK(fill byte) seal.Wrapper {
	return seal.NewKEKWrapper(slices.Repeat([]byte{fill}, seal.KeyBytes))
}

// slowService waits before it encrypts.
type slowService struct {
	*service
	reached chan string
	proceed chan struct{}
}

func (s *slowService) Encrypt(ctx context.Context, plain []byte, purpose string) ([]byte, error) {
	select {
	case s.reached <- purpose:
		<-s.proceed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.service.Encrypt(ctx, plain, purpose)
}

// An attempt that began before a change of seal must not undo that.
func TestRekeyDoesNotUndoAMigration(t *testing.T) {
	ctx := t.Context()
	_, a := newService(t, seal.TypeAWSKMS, "alpha")
	was, keys := activeNode(t, 1, 1, nil)
	if err := was.Close(ctx); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "n1", was.state, seals(a, nil))
	began := make(chan struct{})
	n.onCommit = func(b storage.Batch) error {
		if slices.ContainsFunc(b.Puts, func(p storage.Put) bool { return p.Key == seal.RecoveryKey }) {
			<-began
		}
		return nil
	}
	if _, err := n.Migrate(ctx, keys[0], false); err != nil {
		t.Fatal(err)
	}
	n.until(n.Active, "not active")
	s, err := n.StartRekey(ctx, ceremony.Unseal, ceremony.RekeyOptions{Shares: 1, Threshold: 1})
	if err != nil {
		t.Fatal(err)
	}
	close(began)
	n.until(func() bool { return !n.Status(ctx).Migration }, "not migrated")
	_, err = n.Rekey(ctx, ceremony.Unseal, keys[0], s.Nonce)
	wantError(t, err, "seal has been changed")
	if s := n.Status(ctx); s.Type != seal.TypeAWSKMS || s.Migration {
		t.Errorf("afterwards: %+v", s)
	}
}

// A snapshot that is restored between the decision to change the seal and the change, and is older than the last
// rotation, costs no caller its key.
func TestMigrationAfterARestore(t *testing.T) {
	ctx := t.Context()
	first, keys := activeNode(t, 3, 2, nil)
	const ringKey storage.Key = "l/barrier/keyring"
	before := value(t, first.state, ringKey)
	if _, err := first.barrier.Rotate(ctx); err != nil {
		t.Fatal(err)
	}
	second := newNode(t, "n2", first.state, seals(static(t, 3), nil))
	second.follower.Store(true)
	for _, k := range keys[:2] {
		if _, err := second.Migrate(ctx, k, false); err != nil {
			t.Fatal(err)
		}
	}
	first.follower.Store(true)
	if err := first.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := first.state.Commit(ctx, storage.Batch{Puts: []storage.Put{{Key: ringKey, Value: before}}}); err != nil {
		t.Fatal(err)
	}
	second.follower.Store(false)
	second.state.Changes <- struct{}{}
	second.until(func() bool { return second.Active() && !second.Status(ctx).Migration }, "not migrated")
	if !second.opensRoot(keys[1:]) {
		t.Error("the recovery key is lost")
	}
}
