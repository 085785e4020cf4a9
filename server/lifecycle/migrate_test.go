package lifecycle_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/lifecycle/ceremony"
	"github.com/coffer-project/coffer/server/lifecycle/lifecycletest"
	"github.com/coffer-project/coffer/server/lifecycle/rotation"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// service is a key management service that can be away.
type service struct {
	seal.Wrapper // a local key does the work
	down         atomic.Bool
	calls        atomic.Int32
}

var errAway = errors.New("the service is away")

func (s *service) Encrypt(ctx context.Context, plain []byte, purpose string) ([]byte, error) {
	s.calls.Add(1)
	if s.down.Load() {
		return nil, errAway
	}
	return s.Wrap(ctx, plain, purpose)
}

func (s *service) Decrypt(ctx context.Context, blob []byte, purpose string) ([]byte, error) {
	s.calls.Add(1)
	if s.down.Load() {
		return nil, errAway
	}
	return s.Unwrap(ctx, blob, purpose)
}

func newService(t *testing.T, kind, keyID string) (*service, seal.Wrapper) {
	t.Helper()
	s := &service{Wrapper: seal.NewKEKWrapper(bytes.Repeat([]byte(keyID[:1]), seal.KeyBytes))}
	w, err := seal.NewKMSWrapper(kind, keyID, s)
	if err != nil {
		t.Fatal(err)
	}
	return s, w
}

// seals are the two ends of a migration, as a node is configured for them; nil is Shamir.
func seals(auto, old seal.Wrapper) func(*lifecycle.Options) {
	return func(o *lifecycle.Options) { o.AutoSeal, o.OldSeal = auto, old }
}

func TestMigration(t *testing.T) {
	_, a := newService(t, seal.TypeAWSKMS, "alpha")
	_, b := newService(t, seal.TypeAWSKMS, "beta")
	_, c := newService(t, seal.TypeTransit, "gamma")
	for name, ends := range map[string][2]seal.Wrapper{
		"shamir to a service":            {nil, a},
		"a service to shamir":            {a, nil},
		"one service to another":         {a, c},
		"one key of a service to a next": {a, b},
		"static to shamir":               {static(t, 1), nil},
	} {
		t.Run(name, func(t *testing.T) { migrates(t, ends[0], ends[1]) })
	}
}

func migrates(t *testing.T, from, to seal.Wrapper) {
	ctx := t.Context()
	was, keys := activeNode(t, 3, 2, seals(from, nil))
	if err := was.Close(ctx); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "n1", was.state, seals(to, from))
	n.run()
	if s := n.Status(ctx); !s.Migration || !s.Sealed || s.Threshold != 2 {
		t.Errorf("before: %+v", s)
	}
	_, err := n.Unseal(ctx, keys[0], false)
	wantError(t, err, "unseal with migrate")
	share, err := base64.StdEncoding.DecodeString(keys[0])
	if err != nil {
		t.Fatal(err)
	}
	other := share[len(share)-1]%255 + 1 // another place than that of the first share, which the same place would replace
	for i, k := range []string{keys[0], base64.StdEncoding.EncodeToString(append(bytes.Repeat([]byte{9}, 32), other))} {
		_, err = n.Migrate(ctx, k, false)
		if i == 0 && err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, err, "at least one is wrong")
	if !n.barrier.Sealed() {
		t.Error("wrong shares left the barrier open")
	}
	for _, k := range keys[1:] {
		if _, err := n.Migrate(ctx, k, false); err != nil {
			t.Fatal(err)
		}
	}
	n.until(func() bool { s := n.Status(ctx); return n.Active() && !s.Migration }, "not migrated")
	if s := n.Status(ctx); s.Shares != 3 || s.Threshold != 2 || (s.Type != "shamir") != (to != nil) {
		t.Errorf("afterwards: %+v", s)
	}
	// The shares go on as what the new seal has of them.
	s, err := n.StartRoot(ctx, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys[:2] {
		if s, err = n.GenerateRoot(ctx, k, s.Nonce); err != nil {
			t.Fatal(err)
		}
	}
	if !s.Complete {
		t.Error("the shares do not count any more")
	}
	if err := n.Close(ctx); err != nil {
		t.Fatal(err)
	}
	// Without the old seal.
	after := newNode(t, "n1", n.state, seals(to, nil))
	if to != nil {
		after.run()
		after.until(after.Active, "it does not unseal by itself")
	} else {
		after.unseal(keys[2], keys[0])
	}
	_, err = newNode(t, "n1", n.state, seals(to, nil)).Migrate(ctx, keys[0], false)
	wantError(t, err, "nothing to migrate")
}

// A node that is configured for another seal than its cluster, without a way from one to the other, says so.
func TestMigrationHalfConfigured(t *testing.T) {
	_, a := newService(t, seal.TypeAWSKMS, "alpha")
	_, c := newService(t, seal.TypeTransit, "gamma")
	was, keys := activeNode(t, 1, 1, seals(a, nil))
	if err := was.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*lifecycle.Options){
		"shamir":                  seals(nil, nil),
		"another service":         seals(c, nil),
		"the wrong one disabled":  seals(nil, c),
		"the new one is disabled": seals(nil, static(t, 1)),
	} {
		n := newNode(t, "n1", was.state, change)
		if _, err := n.Migrate(t.Context(), keys[0], false); err == nil || !n.Sealed() || n.Status(t.Context()).Migration {
			t.Errorf("%s: Migrate = %v", name, err)
		} else {
			wantError(t, err, `disabled = "true"`)
		}
	}
	fresh := newNode(t, "n2", lifecycletest.NewState(), seals(a, c))
	_, err := fresh.Init(t.Context(), 1, 1)
	wantError(t, err, "disabled seal")
}

// If the new seal does not work, nothing happens.
func TestMigrationToAServiceThatIsAway(t *testing.T) {
	s, a := newService(t, seal.TypeAWSKMS, "alpha")
	was, keys := activeNode(t, 1, 1, nil)
	if err := was.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.down.Store(true)
	n := newNode(t, "n1", was.state, seals(a, nil))
	if _, err := n.Migrate(t.Context(), keys[0], false); !errors.Is(err, errAway) || !n.Sealed() || !n.barrier.Sealed() {
		t.Errorf("Migrate = %v", err)
	}
	back := newNode(t, "n1", was.state, nil)
	back.unseal(keys...)
}

// A standby that was unsealed to migrate waits for its turn.
func TestMigrationWaitsForTheTurn(t *testing.T) {
	_, a := newService(t, seal.TypeAWSKMS, "alpha")
	was, keys := activeNode(t, 1, 1, nil)
	if err := was.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, "n1", was.state, seals(a, nil))
	n.follower.Store(true)
	if s, err := n.Migrate(t.Context(), keys[0], false); err != nil || !s.Migration || s.Sealed {
		t.Fatalf("Migrate = %+v, %v", s, err)
	}
	n.follower.Store(false)
	n.state.Changes <- struct{}{}
	n.until(func() bool { return !n.Status(t.Context()).Migration }, "not migrated")
}

// A node whose service is away at the start tries again, ever more slowly, and in the end unseals.
func TestServiceAwayAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newService(t, seal.TypeGCPCKMS, "alpha")
		was, _ := activeNode(t, 0, 0, seals(a, nil))
		if err := was.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.down.Store(true)
		n := newNode(t, "n1", was.state, seals(a, nil))
		n.run()
		before := s.calls.Load()
		time.Sleep(10 * time.Minute)
		if calls := s.calls.Load() - before; calls < 10 || calls > 60 || !n.Sealed() {
			t.Errorf("%d tries in ten minutes, sealed %v", calls, n.Sealed())
		}
		s.down.Store(false)
		time.Sleep(time.Minute)
		if !n.Active() {
			t.Error("the service is back, the node is not")
		}
	})
}

// A service that goes away later stops nothing, but is reported.
func TestServiceAwayLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a := newService(t, seal.TypeGCPCKMS, "alpha")
		n, _ := activeNode(t, 1, 1, seals(a, nil))
		n.run()
		reachable := func(want float64) {
			t.Helper()
			time.Sleep(11 * time.Minute)
			if got, ok := n.Numbers()["seal_reachable"]; !ok || got != want {
				t.Errorf("seal_reachable = %v, %v, want %v", got, ok, want)
			}
		}
		reachable(1)
		s.down.Store(true)
		reachable(0)
		n.state.Replaced()
		synctest.Wait()
		if !n.Active() {
			t.Error("the node is not active any more")
		}
		s.down.Store(false)
		reachable(1)
	})
}

// After the key of a static seal was rotated, the active node wraps the root key under the new one.
func TestStaticKeyRotates(t *testing.T) {
	key := func(fill byte) string {
		return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, seal.KeyBytes))
	}
	build := func(settings map[string]string) func(*lifecycle.Options) {
		w, err := seal.NewStatic(settings)
		if err != nil {
			t.Fatal(err)
		}
		return seals(w, nil)
	}
	was, _ := activeNode(t, 0, 0, build(map[string]string{"current_key_id": "a", "current_key": key(1)}))
	if err := was.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	both := newNode(t, "n1", was.state, build(map[string]string{
		"current_key_id": "b", "current_key": key(2), "previous_key_id": "a", "previous_key": key(1),
	}))
	both.run()
	both.until(func() bool {
		config, _, err := seal.Load(t.Context(), both.state)
		return err == nil && config.KeyID == "b"
	}, "not wrapped again")
	if err := both.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	alone := newNode(t, "n1", both.state, build(map[string]string{"current_key_id": "b", "current_key": key(2)}))
	alone.run()
	alone.until(alone.Active, "the new key alone does not unseal")
}

// A node that is configured for the former key still serves, leaves the new wrapping alone, and says what it is up to.
func TestFormerKeyServesOn(t *testing.T) {
	s, a := newService(t, seal.TypeAWSKMS, "alpha")
	_, b := newService(t, seal.TypeAWSKMS, "beta")
	n, _ := activeNode(t, 1, 1, seals(a, nil))
	root, err := seal.UnwrapRoot(t.Context(), a, value(t, n.state, seal.RootKey))
	if err != nil {
		t.Fatal(err)
	}
	puts, err := seal.Puts(t.Context(), seal.AutoConfig(b, 0, 0), b, root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.state.Commit(t.Context(), storage.Batch{Puts: puts}); err != nil {
		t.Fatal(err)
	}
	n.follower.Store(true)
	n.state.Changes <- struct{}{}
	n.until(func() bool { return n.turns.Load() == 0 }, "still active")
	before := s.calls.Load()
	n.follower.Store(false)
	n.state.Changes <- struct{}{}
	n.until(n.Active, "not active")
	n.until(func() bool { return s.calls.Load() >= before+3 }, "the seal was not looked at") // unwrapping, then the check
	if now := value(t, n.state, seal.RootKey); !bytes.Equal(now, puts[1].Value) {
		t.Error("the node has wrapped the root key under its own key again")
	}
}

// What the first version stored opens, and can be changed.
func TestStateOfTheFirstVersion(t *testing.T) {
	for name, tt := range map[string]struct {
		auto   seal.Wrapper
		config string
	}{
		"shamir": {nil, `{"version":1,"type":"shamir","secret_shares":1,"secret_threshold":1,"created":"2026-01-02T03:04:05Z"}`},
		"static": {static(t, 1), `{"version":1,"type":"static","secret_shares":0,"secret_threshold":0,"key_id":"k","created":"2026-01-02T03:04:05Z"}`},
	} {
		t.Run(name, func(t *testing.T) {
			was, keys := activeNode(t, 1, 1, seals(tt.auto, nil))
			_, err := was.state.Commit(t.Context(), storage.Batch{
				Puts: []storage.Put{{Key: seal.ConfigKey, Value: []byte(tt.config)}}, Deletes: []storage.Key{seal.RecoveryKey},
			})
			if err := errors.Join(err, was.Close(t.Context())); err != nil {
				t.Fatal(err)
			}
			n := newNode(t, "n1", was.state, seals(tt.auto, nil))
			n.run()
			if tt.auto == nil {
				n.unseal(keys...)
			}
			n.until(n.Active, "not active")
			target, o := ceremony.Unseal, ceremony.RekeyOptions{Shares: 2, Threshold: 2}
			if tt.auto != nil {
				target, keys, o.Authorised = ceremony.Recovery, nil, true
			}
			s, err := n.StartRekey(t.Context(), target, o)
			if err == nil && !s.Complete {
				s, err = n.Rekey(t.Context(), target, keys[0], s.Nonce)
			}
			if err != nil || !s.Complete || len(s.Keys) != 2 {
				t.Errorf("a rekey: complete %v, %v", s.Complete, err)
			}
		})
	}
}

func value(t *testing.T, s storage.Reader, key storage.Key) []byte {
	t.Helper()
	e, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return e.Value
}

func TestRotationByRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, _ := activeNode(t, 1, 1, nil)
		ctx := t.Context()
		rule, err := n.Rotation(ctx)
		if err != nil || !rule.Enabled || rule.MaxOperations != rotation.MaxOperations || rule.Interval != 0 {
			t.Errorf("by default: %+v, %v", rule, err)
		}
		for text, bad := range map[string]func(*rotation.Rule){
			"max_operations": func(c *rotation.Rule) { c.MaxOperations = 999_999 },
			"interval":       func(c *rotation.Rule) { c.Interval = time.Hour },
		} {
			wantError(t, n.SetRotation(ctx, bad), text)
		}
		if err := n.SetRotation(ctx, func(c *rotation.Rule) { c.Interval = 48 * time.Hour }); err != nil {
			t.Fatal(err)
		}
		for day, want := range []uint32{1, 1, 2, 2, 3} {
			if term := n.barrier.KeyInfo().Term; term != want {
				t.Errorf("day %d: term %d, want %d", day, term, want)
			}
			time.Sleep(24*time.Hour + time.Minute)
		}
		if err := n.SetRotation(ctx, func(c *rotation.Rule) { c.Enabled = false }); err != nil {
			t.Fatal(err)
		}
		term := n.barrier.KeyInfo().Term
		time.Sleep(49 * time.Hour)
		if now := n.barrier.KeyInfo().Term; now != term {
			t.Errorf("disabled, and yet term %d", now)
		}
	})
}

// The count of encryptions outlives the nodes and leads to a rotation.
func TestRotationByCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, keys := activeNode(t, 1, 1, nil)
		for range 20 {
			if _, err := n.barrier.Commit(t.Context(), storage.Batch{Puts: []storage.Put{{Key: dataKey, Value: []byte("2")}}}); err != nil {
				t.Fatal(err)
			}
		}
		before := n.barrier.KeyInfo().Encryptions
		if err := n.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		again := newNode(t, "n1", n.state, nil)
		again.unseal(keys...)
		if now := again.barrier.KeyInfo().Encryptions; now < before {
			t.Errorf("%d encryptions after a restart, %d before", now, before)
		}
		if err := again.SetRotation(t.Context(), func(c *rotation.Rule) { c.MaxOperations = rotation.MinOperations }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if term := again.barrier.KeyInfo().Term; term != 1 {
			t.Errorf("term %d before the limit", term)
		}
		for range rotation.MinOperations {
			if _, err := again.barrier.SealBytes("x", nil); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if info := again.barrier.KeyInfo(); info.Term != 2 || info.Encryptions > 100 {
			t.Errorf("%+v past the limit", info)
		}
	})
}
