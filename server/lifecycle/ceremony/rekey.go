package ceremony

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/pgp"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Target says what a rekey replaces.
type Target string

// Targets of a rekey. Unseal replaces the root key and, with a Shamir seal, the unseal key that wraps it; Recovery the
// recovery key, which other seals have.
const (
	Unseal   Target = "unseal"
	Recovery Target = "recovery"
)

// RekeyOptions say what the new key shall be.
type RekeyOptions struct {
	Shares, Threshold int
	// Verify lets the new key take effect only after its shares were given back.
	Verify bool
	// Holders are the keys that the shares are encrypted to, one for each share; none: the shares are not encrypted.
	Holders []*pgp.Key
	// Backup keeps the encrypted shares, for Ceremonies.Backup.
	Backup bool
	// Authorised is said for a caller who may act without shares in a cluster that has no recovery keys: the rekey takes
	// place at once.
	Authorised bool

	auto bool // the seal it was begun with is automatic
}

// RekeyStatus is how far a rekey is.
type RekeyStatus struct {
	Started           bool
	Nonce             string
	Shares, Threshold int // of the new key
	Progress          int
	Required          int // shares of the present key; 0: there are none
	Verify            bool
	VerifyNonce       string // once the new key waits for its shares
	VerifyProgress    int
	Complete          bool
	Keys              [][]byte // shares of the new key, answered once; OpenPGP messages if there are Fingerprints
	Fingerprints      []string // of the keys that they are encrypted to, in hex
	Backup            bool     // the encrypted shares are kept
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
	kept        []byte // the backup of its shares; nil if there is none
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
		Fingerprints: pgp.Fingerprints(a.opts.Holders), Backup: a.opts.Backup,
	}
	if a.verify != nil {
		s.VerifyProgress = a.verify.Progress()
	}
	return s
}

// RekeyStatus reports on a rekey.
func (k *Ceremonies) RekeyStatus(ctx context.Context, t Target) (s RekeyStatus, err error) {
	err = k.step(func(c *Turn) error {
		config, err := k.rekeyable(ctx, t)
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
func (k *Ceremonies) rekeyable(ctx context.Context, t Target) (seal.Config, error) {
	config, _, err := seal.Load(ctx, k.opts.Raw)
	if err == nil {
		err = t.of(config)
	}
	return config, err
}

// of reports, as an error, that the seal has no such key.
func (t Target) of(config seal.Config) error {
	if t == Recovery && !config.Auto() {
		return engines.Invalid("a cluster with a shamir seal has no recovery keys: change the unseal keys")
	}
	return nil
}

// StartRekey begins to replace a key. The answer has Keys only if there are no holders of shares: see RekeyOptions.Authorised.
func (k *Ceremonies) StartRekey(ctx context.Context, t Target, o RekeyOptions) (s RekeyStatus, err error) {
	err = k.step(func(c *Turn) error {
		config, err := k.rekeyable(ctx, t)
		if err != nil {
			return err
		}
		if c.rekeys[t] != nil {
			return engines.Invalid("a rekey is in progress already: cancel it first")
		}
		if err := seal.ValidateShares(o.Shares, o.Threshold); err != nil {
			return engines.Invalid("%v", err)
		}
		o.auto = config.Auto()
		switch {
		case o.Backup && len(o.Holders) == 0:
			return engines.Invalid("field \"backup\" needs \"pgp_keys\": only encrypted shares are kept")
		case len(o.Holders) > 0 && t == Unseal && o.auto:
			return engines.Invalid("this cluster unseals by itself (seal %q): there are no shares to encrypt, so leave out \"pgp_keys\"", config.Type)
		}
		if t == Unseal && o.auto && (o.Shares != 1 || o.Threshold != 1 || o.Verify) {
			return engines.Invalid("this cluster unseals by itself (seal %q): its root key is replaced without new shares, "+
				"so fields \"secret_shares\" and \"secret_threshold\" must be 1, and \"require_verification\" false", config.Type)
		}
		shares, err := k.collector(ctx)
		if o.auto && config.RecoveryShares == 0 && o.Authorised {
			s, err = k.withoutShares(ctx, c, t, o)
			return err
		}
		if err != nil {
			return err
		}
		a := &rekeyAttempt{nonce: seal.NewNonce(), opts: o, shares: shares}
		c.rekeys[t], s = a, a.status()
		k.opts.Logger.Info("rekey begun", "target", t, "nonce", a.nonce, "shares", o.Shares, "threshold", o.Threshold)
		return nil
	})
	return s, err
}

// withoutShares replaces the root key, or makes the first recovery key, of a cluster that has no recovery keys.
func (k *Ceremonies) withoutShares(ctx context.Context, c *Turn, t Target, o RekeyOptions) (s RekeyStatus, err error) {
	if o.Verify {
		return s, engines.Invalid("field \"require_verification\" must be false: the first recovery keys take effect at once, and can be changed")
	}
	key, parts, kept, err := k.newShares(t, o, seal.NewNonce())
	if err != nil {
		return s, err
	}
	defer clear(key)
	if s.Unknown, err = k.install(ctx, c, t, o, key, kept); err != nil {
		return RekeyStatus{}, err
	}
	s.Keys, s.Fingerprints, s.Backup = parts, pgp.Fingerprints(o.Holders), o.Backup
	k.opts.Logger.Warn("rekeyed on the authority of a token: the cluster has no recovery keys", "target", t, "shares", len(s.Keys))
	s.Shares, s.Threshold, s.Complete = o.Shares, o.Threshold, true
	return s, nil
}

// CancelRekey ends a rekey, if there is one. A nonce that is given must be its own.
func (k *Ceremonies) CancelRekey(_ context.Context, t Target, nonce string) error {
	return k.step(func(c *Turn) error {
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
		k.opts.Logger.Info("rekey cancelled", "target", t)
		return nil
	})
}

// Rekey takes one share of the present key. The last one that is needed makes the new key, and unless it is to be
// verified first, puts it into effect.
func (k *Ceremonies) Rekey(ctx context.Context, t Target, share, nonce string) (s RekeyStatus, err error) {
	err = k.step(func(c *Turn) error {
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
		done, err := k.give(ctx, a.shares, share)
		if err != nil || !done {
			s = a.status()
			return err
		}
		key, parts, kept, err := k.newShares(t, a.opts, a.nonce)
		if err != nil {
			return err
		}
		if a.opts.Verify {
			a.fresh, a.kept, a.verify, a.verifyNonce = key, kept, seal.NewCollector(a.opts.Threshold, nil), seal.NewNonce()
			s = a.status()
		} else {
			defer clear(key)
			s = a.status()
			if s.Unknown, err = k.install(ctx, c, t, a.opts, key, kept); err != nil {
				return err
			}
			k.rekeyed(c, t)
		}
		s.Complete, s.Progress, s.Keys = true, s.Required, parts
		return nil
	})
	return s, err
}

// newShares makes the new key; nil if the seal opens without people. kept is the backup of its shares, if one is wanted.
func (k *Ceremonies) newShares(t Target, o RekeyOptions, nonce string) (key []byte, parts [][]byte, kept []byte, err error) {
	if t == Unseal && o.auto {
		return nil, nil, nil, nil
	}
	if key, parts, err = seal.NewShares(o.Shares, o.Threshold); err != nil {
		return nil, nil, nil, err
	}
	if parts, err = pgp.EncryptShares(o.Holders, parts); err == nil && o.Backup {
		kept, err = k.sealBackup(nonce, o.Holders, parts)
	}
	return key, parts, kept, err
}

// VerifyStatus reports on the verification of a new key.
func (k *Ceremonies) VerifyStatus(_ context.Context, t Target) (s RekeyStatus, err error) {
	err = k.step(func(c *Turn) error {
		a, err := c.verifying(t)
		if err == nil {
			s = a.status()
		}
		return err
	})
	return s, err
}

// verifying returns the rekey whose new key waits for its shares. c.mu is held.
func (c *Turn) verifying(t Target) (*rekeyAttempt, error) {
	if a := c.rekeys[t]; a != nil && a.fresh != nil {
		return a, nil
	}
	return nil, engines.Invalid("no new keys wait to be verified")
}

// RestartVerify forgets the shares of the new key given so far. The new shares stay good; the nonce is another. A nonce that
// is given must be that of the verification.
func (k *Ceremonies) RestartVerify(_ context.Context, t Target, nonce string) error {
	return k.step(func(c *Turn) error {
		a, err := c.verifying(t)
		if err == nil && nonce != "" {
			err = named("verification", a.verifyNonce, nonce)
		}
		if err != nil {
			return err
		}
		a.verify.Reset()
		a.verifyNonce = seal.NewNonce()
		return nil
	})
}

// VerifyRekey takes one share of the new key. With the last one that is needed the new key takes effect.
func (k *Ceremonies) VerifyRekey(ctx context.Context, t Target, share, nonce string) (s RekeyStatus, err error) {
	err = k.step(func(c *Turn) error {
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
		if s.Unknown, err = k.install(ctx, c, t, a.opts, key, a.kept); err != nil {
			return err
		}
		s.Complete = true
		k.rekeyed(c, t)
		return nil
	})
	return s, err
}

// rekeyed ends everything that the old key had a part in. c.mu is held.
func (k *Ceremonies) rekeyed(c *Turn, t Target) {
	if t == Unseal {
		k.opts.Logger.Warn("rekeyed: the root key and the keys that open it are new; the former ones open only data directories and snapshots from before", "target", t)
	} else {
		k.opts.Logger.Warn("rekeyed: the former recovery key shares are void", "target", t)
	}
	c.forget()
}

// install puts a new key into effect, and kept in the place of the backup of the former shares. unknown says that it may have, which is no error: the shares must go out.
func (k *Ceremonies) install(ctx context.Context, c *Turn, t Target, o RekeyOptions, key, kept []byte) (unknown bool, err error) {
	was, err := seal.LoadStored(ctx, k.opts.Raw)
	if err == nil {
		err = t.of(was.Config) // it may have been changed since the attempt began
	}
	if err == nil && was.Config.Auto() != o.auto {
		err = engines.Invalid("the cluster's seal has been changed since: start again")
	}
	if err != nil {
		return false, err
	}
	var change func(*storage.Txn) error
	if t == Recovery {
		config := was.Config
		config.RecoveryShares, config.RecoveryThreshold = o.Shares, o.Threshold
		var puts []storage.Put
		puts, err = k.recoveryPuts(config, key)
		change = seal.WriteAll(puts)
	} else {
		var root []byte
		if root, _, err = k.opts.Barrier.NewRing(); err != nil {
			return false, err
		}
		defer clear(root)
		config, w := seal.ShamirConfig(o.Shares, o.Threshold), seal.Wrapper(nil)
		if was.Config.Auto() {
			config = was.Config
			w, err = c.keys.Wrapper(ctx)
		} else {
			w = seal.NewKEKWrapper(key)
		}
		if err == nil {
			change, err = k.newRoot(ctx, c, root, config, w, key)
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return false, err
	}
	// From here on no timeout of the caller counts: a key that is in effect without anybody knowing its shares is lost.
	err = seal.Replace(context.WithoutCancel(ctx), k.opts.Raw, was, func(txn *storage.Txn) error {
		if kept != nil {
			txn.Put(t.backupKey(), kept)
		} else {
			txn.Delete(t.backupKey())
		}
		return change(txn)
	})
	if errors.Is(err, seal.ErrReplaced) {
		return false, engines.Invalid("%v: give the shares again", err)
	}
	if unknown = errors.Is(err, storage.ErrOutcomeUnknown); err != nil && !unknown {
		return false, err
	}
	if t == Unseal && key != nil && !unknown {
		c.keys.Use(seal.NewKEKWrapper(key))
	}
	return unknown, nil
}

// newRoot is the change to a new root key, wrapped by w, with a new term of the key ring. What a node wrote before opens
// with none of it. key is the unseal key, nil with an automatic seal.
func (k *Ceremonies) newRoot(ctx context.Context, c *Turn, root []byte, config seal.Config, w seal.Wrapper, key []byte) (func(*storage.Txn) error, error) {
	puts, err := seal.Puts(ctx, config, w, root)
	if err != nil {
		return nil, fmt.Errorf("wrapping the new root key: %w", err)
	}
	followers, err := k.followers(ctx, c)
	if err != nil {
		return nil, err
	}
	return func(txn *storage.Txn) error {
		sealed, err := k.opts.Barrier.Renew(ctx, txn, root, followers)
		if err != nil || key == nil {
			return errors.Join(err, seal.WriteAll(puts)(txn))
		}
		follow, err := seal.UnsealPut(key, sealed)
		return errors.Join(err, seal.WriteAll(append(slices.Clip(puts), follow))(txn))
	}, nil
}

// heardTimeout is how long a rekey waits for nodes that have not been heard of since this one became active.
const heardTimeout = 3 * time.Second

// followers are the other nodes that can be told a new root key. Those that cannot seal themselves, and need the new
// shares.
func (k *Ceremonies) followers(ctx context.Context, c *Turn) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, heardTimeout)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		keys, silent, err := c.keys.Heard()
		if err != nil || len(silent) == 0 {
			return keys, err
		}
		select {
		case <-ctx.Done():
			k.opts.Logger.Warn("some nodes are out of contact, and are not told the new root key: they will need the new key shares", "nodes", silent)
			return keys, nil
		case <-again.C:
		}
	}
}

// recoveryPuts are the entries of a new recovery key.
func (k *Ceremonies) recoveryPuts(c seal.Config, key []byte) ([]storage.Put, error) {
	value, err := c.Encode()
	if err != nil {
		return nil, err
	}
	verifier, err := seal.RecoveryPut(seal.Verifier(key), k.opts.Barrier.SealBytes)
	return []storage.Put{{Key: seal.ConfigKey, Value: value}, verifier}, err
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
