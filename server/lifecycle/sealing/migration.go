package sealing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Barrier is what a change of seal needs of the encryption layer.
type Barrier interface {
	SealBytes(aad string, plain []byte) ([]byte, error)
	OpenBytes(aad string, sealed []byte) ([]byte, error)
}

// Migration is a change to another seal that waits until this node is the active one. It is made when the people
// who may decide it are there.
type Migration struct {
	from    seal.Stored // what it replaces
	To      seal.Wrapper
	puts    []storage.Put
	held    func() (storage.Put, error) // what is kept of the people's key; sealed last, with the key ring of that time
	deletes []storage.Key
}

// Migration prepares a change of seal, on the authority of the key that people hold. The barrier is open, but nothing has been decided yet.
func (s Seals) Migration(ctx context.Context, raw storage.Reader, b Barrier, o Opening, from seal.Stored, key, root []byte) (*Migration, error) {
	if o.Config.Auto() {
		check, err := seal.VerifyRecovery(ctx, raw, b.OpenBytes)
		if err != nil {
			return nil, err
		}
		if check(key) != nil {
			return nil, engines.Invalid("%v", seal.ErrWrongShares)
		}
	}
	shares, threshold := o.Config.Held()
	m := &Migration{from: from, To: s.Auto}
	var config seal.Config
	if m.To == nil {
		m.To, m.deletes = seal.NewKEKWrapper(key), []storage.Key{seal.RecoveryKey}
		config = seal.ShamirConfig(shares, threshold)
		kek := bytes.Clone(key)
		m.held = func() (storage.Put, error) { return seal.UnsealPut(kek, b.SealBytes) }
	} else {
		m.deletes = []storage.Key{seal.UnsealKey}
		config = seal.AutoConfig(m.To, shares, threshold)
		verifier := seal.Verifier(key)
		m.held = func() (storage.Put, error) { return seal.RecoveryPut(verifier, b.SealBytes) }
	}
	var err error
	if m.puts, err = seal.Puts(ctx, config, m.To, root); err != nil {
		return nil, fmt.Errorf("wrapping the root key with the new seal: %w", err)
	}
	return m, nil
}

// Apply carries it out; seal.ErrReplaced: the seal or its keys are others than those it was prepared for.
func (m *Migration) Apply(ctx context.Context, raw storage.Store) error {
	held, err := m.held()
	if err != nil {
		return err
	}
	return seal.Replace(ctx, raw, m.from, seal.WriteAll(append(slices.Clip(m.puts), held), m.deletes...))
}

// Rewrap wraps the root key under the seal's newest key, if it is not.
func Rewrap(ctx context.Context, raw storage.Store, w seal.Wrapper, log *slog.Logger) error {
	was, err := seal.LoadStored(ctx, raw)
	if err != nil || w.Type() != was.Config.Type || !seal.NeedsRewrap(w, was.Root) {
		return err
	}
	root, err := seal.UnwrapRoot(ctx, w, was.Root)
	if errors.Is(err, seal.ErrWrongKey) {
		log.Warn("the root key is wrapped under a key that this node is not configured for: it could not unseal again", "seal", w.Type(), "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer clear(root)
	config := was.Config
	config.KeyID = seal.KeyID(w)
	puts, err := seal.Puts(ctx, config, w, root)
	if err != nil {
		return err
	}
	if err := seal.Replace(ctx, raw, was, seal.WriteAll(puts)); err != nil {
		return err
	}
	log.Info("the root key is now wrapped under the seal's new key", "key_id", config.KeyID)
	return nil
}
