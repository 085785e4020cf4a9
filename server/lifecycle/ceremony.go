package lifecycle

import (
	"context"
	"crypto/subtle"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// ceremony is what people who hold keys have begun together: it lives on the active node, and ends with its turn.
type ceremony struct {
	ended atomic.Bool

	mu     sync.Mutex // held for a whole step: people take them one by one
	root   *rootAttempt
	rekeys map[Target]*rekeyAttempt
}

// end forgets all attempts. It takes a nil ceremony, too. It does not wait for a step under way, which may itself wait
// for a commit that fails only once this turn is over: that step forgets them.
func (c *ceremony) end() {
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
func (c *ceremony) forget() {
	if c.root != nil {
		c.root.shares.Reset()
	}
	for _, a := range c.rekeys {
		a.clear()
	}
	c.root, c.rekeys = nil, map[Target]*rekeyAttempt{}
}

// step runs fn with the ceremony of the active node.
func (n *Node) step(fn func(r *running, c *ceremony) error) error {
	r := n.running.Load()
	if r == nil {
		return storage.ErrSealed
	}
	c := r.ceremony.Load()
	if c == nil || !n.Active() {
		return storage.ErrReadOnly
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
	return fn(r, c)
}

// holders returns the seal and the check of the key that people hold of it.
func (n *Node) holders(ctx context.Context) (c seal.Config, check func(key []byte) error, err error) {
	c, wrapped, err := seal.Load(ctx, n.opts.Raw)
	if err != nil {
		return c, nil, err
	}
	if c.Auto() {
		check, err = seal.VerifyRecovery(ctx, n.opts.Raw, n.opts.Barrier.OpenBytes)
		return c, check, err
	}
	return c, seal.OpensRoot(wrapped), nil
}

// collector collects the shares of the key that people hold. Whether it is the right one is asked when it is
// complete.
func (n *Node) collector(ctx context.Context) (*seal.Unsealer, error) {
	c, _, err := n.holders(ctx)
	if err != nil {
		return nil, forPeople(err)
	}
	return seal.NewUnsealer(c, nil), nil
}

// give adds a share to an attempt. done means that it completed the right key.
func (n *Node) give(ctx context.Context, shares *seal.Unsealer, share string) (done bool, err error) {
	done, key, err := shares.Submit(share)
	if err != nil || !done {
		return false, forPeople(err)
	}
	defer clear(key)
	_, check, err := n.holders(ctx)
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
