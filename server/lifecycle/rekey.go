package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Target is a key that people hold shares of.
type Target string

// Targets of a rekey. A cluster has one of them: an unseal key with a Shamir seal, a recovery key with others.
const (
	Unseal   Target = "unseal"
	Recovery Target = "recovery"
)

// RekeyOptions say what the new key shall be.
type RekeyOptions struct {
	Shares, Threshold int
	// Verify lets the new key take effect only after its shares were given back.
	Verify bool
	// Authorised is said for a caller who may act without shares: it makes the first recovery key of a cluster that
	// has none, at once.
	Authorised bool
}

// RekeyStatus is how far a rekey is.
type RekeyStatus struct {
	Started           bool
	Nonce             string
	Shares, Threshold int // of the new key
	Progress          int
	Required          int // shares of the present key; 0: nobody holds any
	Verify            bool
	VerifyNonce       string // once the new key waits for its shares
	VerifyProgress    int
	Complete          bool
	Keys              [][]byte // shares of the new key, answered once
	// Unknown says that the new key may have taken effect, or not: both kinds of shares must be kept until one works.
	Unknown bool
}

// rekeyAttempt is a rekey in progress: first of the present key's shares, then, if wanted, of the new key's.
type rekeyAttempt struct {
	nonce  string
	opts   RekeyOptions
	shares *seal.Unsealer

	fresh       []byte // the new key, while it waits to be verified
	verify      *seal.Unsealer
	verifyNonce string
}

func (a *rekeyAttempt) clear() {
	clear(a.fresh)
	a.shares.Reset()
	if a.verify != nil {
		a.verify.Reset()
	}
}

func (a *rekeyAttempt) status() RekeyStatus {
	s := RekeyStatus{
		Started: true, Nonce: a.nonce, Shares: a.opts.Shares, Threshold: a.opts.Threshold,
		Progress: a.shares.Progress(), Required: a.shares.Threshold(), Verify: a.opts.Verify, VerifyNonce: a.verifyNonce,
	}
	if a.verify != nil {
		s.VerifyProgress = a.verify.Progress()
	}
	return s
}

// RekeyStatus reports on a rekey.
func (n *Node) RekeyStatus(ctx context.Context, t Target) (s RekeyStatus, err error) {
	err = n.step(func(_ *running, c *ceremony) error {
		config, err := n.rekeyable(ctx, t)
		if err != nil {
			return err
		}
		if a := c.rekeys[t]; a != nil {
			s = a.status()
			return nil
		}
		_, s.Required = config.Held()
		return nil
	})
	return s, err
}

// rekeyable returns the seal, if it has such a key.
func (n *Node) rekeyable(ctx context.Context, t Target) (seal.Config, error) {
	config, _, err := seal.Load(ctx, n.opts.Raw)
	if err == nil {
		err = t.of(config)
	}
	return config, err
}

// of reports, as an error, that the seal has no such key.
func (t Target) of(config seal.Config) error {
	switch {
	case t == Unseal && config.Auto():
		return engines.Invalid("this cluster unseals by itself (seal %q), there are no unseal keys to change: "+
			"change the recovery keys, or the key at the service", config.Type)
	case t == Recovery && !config.Auto():
		return engines.Invalid("a cluster with a shamir seal has no recovery keys: change the unseal keys")
	}
	return nil
}

// StartRekey begins to replace a key. The answer has Keys only if there is nobody to ask: see RekeyOptions.Authorised.
func (n *Node) StartRekey(ctx context.Context, t Target, o RekeyOptions) (s RekeyStatus, err error) {
	err = n.step(func(r *running, c *ceremony) error {
		config, err := n.rekeyable(ctx, t)
		if err != nil {
			return err
		}
		if c.rekeys[t] != nil {
			return engines.Invalid("a rekey is in progress already: cancel it first")
		}
		if err := seal.ValidateShares(o.Shares, o.Threshold); err != nil {
			return engines.Invalid("%v", err)
		}
		shares, err := n.collector(ctx)
		none := t == Recovery && config.RecoveryShares == 0
		if none && o.Authorised {
			s, err = n.firstRecoveryKey(ctx, o)
			return err
		}
		if err != nil {
			return err
		}
		a := &rekeyAttempt{nonce: seal.NewNonce(), opts: o, shares: shares}
		c.rekeys[t], s = a, a.status()
		n.log.Info("rekey begun", "target", t, "nonce", a.nonce, "shares", o.Shares, "threshold", o.Threshold)
		return nil
	})
	return s, err
}

// firstRecoveryKey makes the recovery key of a cluster that has none.
func (n *Node) firstRecoveryKey(ctx context.Context, o RekeyOptions) (s RekeyStatus, err error) {
	if o.Verify {
		return s, engines.Invalid("field \"require_verification\" must be false: the first recovery keys take effect at once, and can be changed")
	}
	key, parts, err := seal.NewShares(o.Shares, o.Threshold)
	if err != nil {
		return s, err
	}
	defer clear(key)
	if s.Unknown, err = n.install(ctx, nil, Recovery, o, key); err != nil {
		return s, err
	}
	n.log.Info("recovery keys made", "shares", o.Shares, "threshold", o.Threshold)
	s.Shares, s.Threshold, s.Complete, s.Keys = o.Shares, o.Threshold, true, parts
	return s, nil
}

// CancelRekey ends a rekey, if there is one. A nonce that is given must be its own.
func (n *Node) CancelRekey(_ context.Context, t Target, nonce string) error {
	return n.step(func(_ *running, c *ceremony) error {
		a := c.rekeys[t]
		if a == nil {
			return nil
		}
		if nonce != "" {
			if err := named("rekey", a.nonce, nonce); err != nil {
				return err
			}
		}
		a.clear()
		delete(c.rekeys, t)
		n.log.Info("rekey cancelled", "target", t)
		return nil
	})
}

// Rekey takes one share of the present key. The last one that is needed makes the new key, and unless it is to be
// verified first, puts it into effect.
func (n *Node) Rekey(ctx context.Context, t Target, share, nonce string) (s RekeyStatus, err error) {
	err = n.step(func(r *running, c *ceremony) error {
		a := c.rekeys[t]
		switch {
		case a == nil:
			return engines.Invalid("no rekey is in progress: start one first")
		case a.fresh != nil:
			return engines.Invalid("the new keys have been made: verify them, with their own nonce")
		}
		if err := named("rekey", a.nonce, nonce); err != nil {
			return err
		}
		done, err := n.give(ctx, a.shares, share)
		if err != nil || !done {
			s = a.status()
			return err
		}
		key, parts, err := seal.NewShares(a.opts.Shares, a.opts.Threshold)
		if err != nil {
			return err
		}
		if a.opts.Verify {
			a.fresh, a.verify, a.verifyNonce = key, seal.NewCollector(a.opts.Threshold, nil), seal.NewNonce()
			s = a.status()
		} else {
			defer clear(key)
			s = a.status()
			if s.Unknown, err = n.install(ctx, r, t, a.opts, key); err != nil {
				return err
			}
			n.rekeyed(c, t)
		}
		s.Complete, s.Progress, s.Keys = true, s.Required, parts
		return nil
	})
	return s, err
}

// VerifyStatus reports on the verification of a new key.
func (n *Node) VerifyStatus(_ context.Context, t Target) (s RekeyStatus, err error) {
	err = n.step(func(_ *running, c *ceremony) error {
		a, err := c.verifying(t)
		if err == nil {
			s = a.status()
		}
		return err
	})
	return s, err
}

// verifying returns the rekey whose new key waits for its shares. c.mu is held.
func (c *ceremony) verifying(t Target) (*rekeyAttempt, error) {
	if a := c.rekeys[t]; a != nil && a.fresh != nil {
		return a, nil
	}
	return nil, engines.Invalid("no new keys wait to be verified")
}

// RestartVerify forgets the shares of the new key given so far. The new shares stay good; the nonce is another.
func (n *Node) RestartVerify(_ context.Context, t Target) error {
	return n.step(func(_ *running, c *ceremony) error {
		a, err := c.verifying(t)
		if err != nil {
			return err
		}
		a.verify.Reset()
		a.verifyNonce = seal.NewNonce()
		return nil
	})
}

// VerifyRekey takes one share of the new key. With the last one that is needed the new key takes effect.
func (n *Node) VerifyRekey(ctx context.Context, t Target, share, nonce string) (s RekeyStatus, err error) {
	err = n.step(func(r *running, c *ceremony) error {
		a, err := c.verifying(t)
		if err != nil {
			return err
		}
		if err := named("verification", a.verifyNonce, nonce); err != nil {
			return err
		}
		done, key, err := a.verify.Submit(share)
		if err != nil || !done {
			s = a.status()
			return forPeople(err)
		}
		defer clear(key)
		if string(key) != string(a.fresh) {
			return engines.Invalid("the given shares are not those of the new key: at least one is wrong, start the verification again")
		}
		s = a.status()
		if s.Unknown, err = n.install(ctx, r, t, a.opts, key); err != nil {
			return err
		}
		s.Complete = true
		n.rekeyed(c, t)
		return nil
	})
	return s, err
}

// rekeyed ends everything that the old key had a part in. c.mu is held.
func (n *Node) rekeyed(c *ceremony, t Target) {
	n.log.Warn("rekeyed: the former key shares are void", "target", t)
	c.forget()
}

// install puts a new key into effect. unknown says that it may have, which is no error: the shares must go out.
func (n *Node) install(ctx context.Context, r *running, t Target, o RekeyOptions, key []byte) (unknown bool, err error) {
	was, err := loadSeal(ctx, n.opts.Raw)
	if err == nil {
		err = t.of(was.config) // it may have been changed since the attempt began
	}
	if err != nil {
		return false, err
	}
	var puts []storage.Put
	if t == Recovery {
		config := was.config
		config.RecoveryShares, config.RecoveryThreshold = o.Shares, o.Threshold
		puts, err = n.recoveryPuts(config, key)
	} else {
		puts, err = n.unsealPuts(ctx, r, was.root, seal.ShamirConfig(o.Shares, o.Threshold), key)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return false, err
	}
	// From here on nobody's patience counts: a key that is in effect without anybody knowing its shares is lost.
	err = n.replaceSeal(context.WithoutCancel(ctx), was, puts, nil)
	if errors.Is(err, errOtherState) {
		return false, engines.Invalid("%v: give the shares again", err)
	}
	if unknown = errors.Is(err, storage.ErrOutcomeUnknown); err != nil && !unknown {
		return false, err
	}
	if t == Unseal && !unknown {
		r.seal.use(seal.NewKEKWrapper(key))
	}
	return unknown, nil
}

// recoveryPuts are the entries of a new recovery key.
func (n *Node) recoveryPuts(c seal.Config, key []byte) ([]storage.Put, error) {
	value, err := c.Encode()
	if err != nil {
		return nil, err
	}
	verifier, err := seal.RecoveryPut(seal.Verifier(key), n.opts.Barrier.SealBytes)
	return []storage.Put{{Key: seal.ConfigKey, Value: value}, verifier}, err
}

// unsealPuts are the entries of a new unseal key.
func (n *Node) unsealPuts(ctx context.Context, r *running, wrapped []byte, c seal.Config, key []byte) ([]storage.Put, error) {
	w, err := n.wrapperOf(ctx, r)
	if err != nil {
		return nil, err
	}
	root, err := seal.UnwrapRoot(ctx, w, wrapped)
	if err != nil {
		return nil, fmt.Errorf("unwrapping the root key: %w", err)
	}
	defer clear(root)
	puts, err := seal.Puts(ctx, c, seal.NewKEKWrapper(key), root)
	if err != nil {
		return nil, err
	}
	follow, err := seal.UnsealPut(key, n.opts.Barrier.SealBytes)
	return append(puts, follow), err
}

// forPeople makes an error of the seal one that the client sees.
func forPeople(err error) error {
	for _, known := range []error{seal.ErrWrongShares, seal.ErrMalformedShare, seal.ErrNoRecoveryKeys} {
		if errors.Is(err, known) {
			return engines.Invalid("%v", err)
		}
	}
	return err
}
