// Package ceremony is what the people who hold keys of a cluster do together, share by share: they replace the root key and the keys
// that open it, or have a root token made. What has been begun lives on the active node, in memory, and ends with its turn.
// What is decided takes effect in one transaction, on the condition that the seal is still the one that the shares were checked against.
// Start reading at Ceremonies.Rekey.
package ceremony

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Barrier is what a ceremony needs of the encryption layer: see lifecycle.Barrier.
type Barrier interface {
	NewRing() (rootKey []byte, ring storage.Put, err error)
	Renew(ctx context.Context, txn *storage.Txn, next []byte, followers [][]byte) (seal func(aad string, plain []byte) ([]byte, error), err error)
	SealBytes(aad string, plain []byte) ([]byte, error)
	OpenBytes(aad string, sealed []byte) ([]byte, error)
}

// Options of Ceremonies. All are required.
type Options struct {
	Raw     storage.Store // below the barrier
	Barrier Barrier
	Node    Node
	Tokens  Tokens
	Logger  *slog.Logger
}

// Node is the node that the ceremonies are of: lifecycle.Node.
type Node interface {
	// Turn returns the node's present turn as the active one; storage.ErrSealed, or storage.ErrReadOnly if there is none.
	Turn() (*Turn, error)
}

// Tokens creates root tokens.
type Tokens interface {
	// GenerateRoot creates one of at most OTPLength bytes.
	GenerateRoot(ctx context.Context) (string, error)
}

// Ceremonies are those of a node. Safe for concurrent use.
type Ceremonies struct{ opts Options }

// New returns the ceremonies of a node.
func New(o Options) *Ceremonies { return &Ceremonies{o} }

// Keys are what the active node has of keys.
type Keys struct {
	// Wrapper returns the wrapper of the seal as it is stored now, Use puts another in its place.
	Wrapper func(ctx context.Context) (seal.Wrapper, error)
	Use     func(seal.Wrapper)
	// Heard returns the keys of the other nodes that a new root key is encrypted to, and the names of those that have not told theirs.
	Heard func() (keys [][]byte, silent []string, err error)
}

// Turn is what people have begun together in one turn of the active node.
type Turn struct {
	keys  Keys
	ended atomic.Bool

	mu     sync.Mutex // held for a whole step: people take them one by one
	root   *rootAttempt
	rekeys map[Target]*rekeyAttempt
}

// NewTurn returns a turn in which nothing has been begun.
func NewTurn(k Keys) *Turn { return &Turn{keys: k} }

// End forgets all attempts. It takes a nil Turn, too. It does not wait for a step under way, which may itself wait
// for a commit that fails only once this turn is over: that step forgets them.
func (c *Turn) End() {
	if c == nil {
		return
	}
	c.ended.Store(true)
	if c.mu.TryLock() {
		c.forget()
		c.mu.Unlock()
	}
}

// forget drops all attempts. c.mu is held.
func (c *Turn) forget() {
	if c.root != nil {
		c.root.shares.Reset()
	}
	for _, a := range c.rekeys {
		a.clear()
	}
	c.root, c.rekeys = nil, map[Target]*rekeyAttempt{}
}

// step runs fn with the turn of the active node.
func (k *Ceremonies) step(fn func(c *Turn) error) error {
	c, err := k.opts.Node.Turn()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Load() {
		return storage.ErrReadOnly
	}
	defer func() {
		if c.ended.Load() {
			c.forget()
		}
	}()
	if c.rekeys == nil {
		c.rekeys = map[Target]*rekeyAttempt{}
	}
	return fn(c)
}

// holders returns the seal and the check of the key that people hold of it.
func (k *Ceremonies) holders(ctx context.Context) (c seal.Config, check func(key []byte) error, err error) {
	c, wrapped, err := seal.Load(ctx, k.opts.Raw)
	if err != nil {
		return c, nil, err
	}
	if c.Auto() {
		check, err = seal.VerifyRecovery(ctx, k.opts.Raw, k.opts.Barrier.OpenBytes)
		return c, check, err
	}
	return c, seal.OpensRoot(wrapped), nil
}

// collector collects the shares of the key that people hold. Whether it is the right one is asked when it is
// complete.
func (k *Ceremonies) collector(ctx context.Context) (*seal.Unsealer, error) {
	c, _, err := k.holders(ctx)
	if err != nil {
		return nil, forPeople(err)
	}
	return seal.NewUnsealer(c, nil), nil
}

// give adds a share to an attempt. done means that it completed the right key.
func (k *Ceremonies) give(ctx context.Context, shares *seal.Unsealer, share string) (done bool, err error) {
	done, key, err := shares.Submit(share)
	if err != nil || !done {
		return false, forPeople(err)
	}
	defer clear(key)
	_, check, err := k.holders(ctx)
	if err != nil {
		return false, forPeople(err)
	}
	if check(key) != nil {
		return false, forPeople(seal.ErrWrongShares)
	}
	return true, nil
}

// named reports, as an error, that a nonce is not that of the attempt.
func named(what, nonce, given string) error {
	if given == "" {
		return engines.Invalid("field \"nonce\" is required: it names the attempt, and the answer to its start has it")
	}
	if subtle.ConstantTimeCompare([]byte(nonce), []byte(given)) != 1 {
		return engines.Invalid("field \"nonce\" is not that of the %s in progress: it was started again since", what)
	}
	return nil
}
