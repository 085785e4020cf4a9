package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// sealInUse is the wrapper that opened the node, or the one that took its place since.
type sealInUse struct{ p atomic.Pointer[seal.Wrapper] }

func (s *sealInUse) use(w seal.Wrapper) { s.p.Store(&w) }
func (s *sealInUse) get() seal.Wrapper  { return *s.p.Load() }

// opening says how a sealed node opens the seal that its state (or the cluster it joins) has.
type opening struct {
	config  seal.Config
	wrapper seal.Wrapper // opens it without people; nil: they must
	migrate bool         // the node's configuration has another seal
}

// opening compares the cluster's seal with this node's configuration. The error is for the operator.
func (n *Node) opening(c seal.Config) (opening, error) {
	auto, old := n.opts.AutoSeal, n.opts.OldSeal
	switch {
	case !c.Auto():
		return opening{config: c, migrate: auto != nil}, nil
	case old != nil && old.Type() == c.Type && !fits(auto, c):
		return opening{config: c, wrapper: old, migrate: true}, nil
	case auto != nil && auto.Type() == c.Type:
		return opening{config: c, wrapper: auto}, nil
	}
	return opening{}, engines.Invalid("the cluster's seal is %q, this node is configured for %q: configure the cluster's seal, "+
		"with disabled = \"true\" beside the new one if the cluster is to change to that", c.Type, n.configuredSeal())
}

// fits reports whether the configured seal has the very key that the cluster's seal has.
func fits(w seal.Wrapper, c seal.Config) bool {
	return w != nil && w.Type() == c.Type && seal.KeyID(w) == c.KeyID
}

// configuredSeal is the type of seal that this node is configured for.
func (n *Node) configuredSeal() string {
	if n.opts.AutoSeal != nil {
		return n.opts.AutoSeal.Type()
	}
	return seal.TypeShamir
}

// wrapperOf returns the wrapper of the seal as it is stored now: another node may have changed it since this one
// was unsealed.
func (n *Node) wrapperOf(ctx context.Context, r *running) (seal.Wrapper, error) {
	config, wrapped, err := seal.Load(ctx, n.opts.Raw)
	if err != nil {
		return nil, err
	}
	w := r.seal.get()
	opens := func(w seal.Wrapper) bool {
		root, err := seal.UnwrapRoot(ctx, w, wrapped)
		clear(root)
		return err == nil
	}
	switch {
	case config.Auto() && w.Type() == config.Type && !seal.NeedsRewrap(w, wrapped):
		return w, nil // opening it would ask the service each time
	case config.Auto():
		o, err := n.opening(config)
		if err == nil {
			r.seal.use(o.wrapper)
		}
		return o.wrapper, err
	case w.Type() == seal.TypeShamir && opens(w):
		return w, nil
	}
	if w, err = seal.Follow(ctx, n.opts.Raw, n.opts.Barrier.OpenBytes); err == nil && !opens(w) {
		err = seal.ErrWrongKey
	}
	if err != nil {
		return nil, fmt.Errorf("the stored root key belongs to other unseal keys than this node has: seal and unseal it: %w", err)
	}
	r.seal.use(w)
	return w, nil
}

// sealState is the seal as it is stored: what a change of it replaces.
type sealState struct {
	config   seal.Config
	root     []byte // the wrapped root key
	recovery []byte // the verifier of the recovery key; nil: there is none
}

func loadSeal(ctx context.Context, raw seal.Getter) (s sealState, err error) {
	config, root, err := seal.Load(ctx, raw)
	if err != nil {
		return s, err
	}
	s.config, s.root = config, bytes.Clone(root)
	e, err := raw.Get(ctx, seal.RecoveryKey)
	if errors.Is(err, storage.ErrNotFound) {
		return s, nil
	}
	s.recovery = bytes.Clone(e.Value)
	return s, err
}

func (s sealState) equal(o sealState) bool {
	created := s.config.Created.Equal(o.config.Created)
	s.config.Created, o.config.Created = time.Time{}, time.Time{} // == also compares how a time is kept
	return created && s.config == o.config && bytes.Equal(s.root, o.root) && bytes.Equal(s.recovery, o.recovery)
}

// migration is a change to another seal that waits until this node is the active one. It is made when the people
// who may decide it are there.
type migration struct {
	from    sealState // what it replaces
	to      seal.Wrapper
	puts    []storage.Put
	held    func() (storage.Put, error) // what is kept of the people's key; sealed last, with the key ring of that time
	deletes []storage.Key
}

// openToMigrate unseals with the old seal, on the authority of a key that people hold, and prepares the change to the
// new one. Their key goes on as what the new seal has of them.
func (n *Node) openToMigrate(ctx context.Context, o opening, key []byte) (err error) {
	old := o.wrapper
	if old == nil {
		old = seal.NewKEKWrapper(key)
	}
	was, err := loadSeal(ctx, n.opts.Raw)
	if err != nil {
		return err
	}
	root, err := seal.UnwrapRoot(ctx, old, was.root)
	if err != nil {
		return fmt.Errorf("opening the old seal: %w", err)
	}
	defer clear(root)
	if err := n.opts.Barrier.Unseal(ctx, root); err != nil {
		return fmt.Errorf("unsealing the barrier: %w", err)
	}
	m, err := n.prepare(ctx, o, key, root)
	if err != nil {
		n.opts.Barrier.Seal()
		return err
	}
	m.from = was
	return n.start(ctx, old, m)
}

// prepare makes a migration. The barrier is open, but nothing has been decided yet.
func (n *Node) prepare(ctx context.Context, o opening, key, root []byte) (*migration, error) {
	if o.config.Auto() {
		check, err := seal.VerifyRecovery(ctx, n.opts.Raw, n.opts.Barrier.OpenBytes)
		if err != nil {
			return nil, err
		}
		if check(key) != nil {
			return nil, engines.Invalid("%v", seal.ErrWrongShares)
		}
	}
	shares, threshold := o.config.Held()
	m := &migration{to: n.opts.AutoSeal}
	var config seal.Config
	if m.to == nil {
		m.to, m.deletes = seal.NewKEKWrapper(key), []storage.Key{seal.RecoveryKey}
		config = seal.ShamirConfig(shares, threshold)
		kek := bytes.Clone(key)
		m.held = func() (storage.Put, error) { return seal.UnsealPut(kek, n.opts.Barrier.SealBytes) }
	} else {
		m.deletes = []storage.Key{seal.UnsealKey}
		config = seal.AutoConfig(m.to, shares, threshold)
		verifier := seal.Verifier(key)
		m.held = func() (storage.Put, error) { return seal.RecoveryPut(verifier, n.opts.Barrier.SealBytes) }
	}
	var err error
	if m.puts, err = seal.Puts(ctx, config, m.to, root); err != nil {
		return nil, fmt.Errorf("wrapping the root key with the new seal: %w", err)
	}
	return m, nil
}

// errOtherState means that the seal in the state is not the one that was to be replaced.
var errOtherState = errors.New("the seal has been changed by others meanwhile")

// replaceSeal writes a seal in place of the one that is given, with all that belongs to it: also a recovery key that was
// changed meanwhile must not come back.
func (n *Node) replaceSeal(ctx context.Context, from sealState, change func(txn *storage.Txn) error) error {
	_, err := storage.Update(ctx, n.opts.Router, func(txn *storage.Txn) error {
		now, err := loadSeal(ctx, txn)
		if err != nil {
			return err
		}
		if !now.equal(from) {
			return errOtherState
		}
		return change(txn)
	})
	return err
}

// putAll is a change that writes entries and deletes others.
func putAll(puts []storage.Put, deletes ...storage.Key) func(*storage.Txn) error {
	return func(txn *storage.Txn) error {
		for _, p := range puts {
			txn.Put(p.Key, p.Value)
		}
		for _, key := range deletes {
			txn.Delete(key)
		}
		return nil
	}
}

// migrate carries out the change of seal that was decided when this node was unsealed, now that it is active.
func (n *Node) migrate(ctx context.Context, r *running) error {
	m := r.migration
	if m == nil {
		return nil
	}
	held, err := m.held()
	if err != nil {
		return err
	}
	err = n.replaceSeal(ctx, m.from, putAll(append(slices.Clip(m.puts), held), m.deletes...))
	if errors.Is(err, errOtherState) {
		n.log.Warn("the seal or its keys have been changed since this node was unsealed: the change of seal that was decided then is void")
		return nil
	}
	if err != nil {
		return err
	}
	r.seal.use(m.to)
	n.log.Info("the root key is now wrapped by another seal: start every node with its configuration", "seal", m.to.Type(), "key_id", seal.KeyID(m.to))
	return nil
}

// rewrap wraps the root key under the seal's newest key, if it is not.
func (n *Node) rewrap(ctx context.Context, r *running) error {
	w := r.seal.get()
	was, err := loadSeal(ctx, n.opts.Raw)
	if err != nil || w.Type() != was.config.Type || !seal.NeedsRewrap(w, was.root) {
		return err
	}
	root, err := seal.UnwrapRoot(ctx, w, was.root)
	if errors.Is(err, seal.ErrWrongKey) {
		n.log.Warn("the root key is wrapped under a key that this node is not configured for: it could not unseal again", "seal", w.Type(), "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer clear(root)
	config := was.config
	config.KeyID = seal.KeyID(w)
	puts, err := seal.Puts(ctx, config, w, root)
	if err != nil {
		return err
	}
	if err := n.replaceSeal(ctx, was, putAll(puts)); err != nil {
		return err
	}
	n.log.Info("the root key is now wrapped under the seal's new key", "key_id", config.KeyID)
	return nil
}
