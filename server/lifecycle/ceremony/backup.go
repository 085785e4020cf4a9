package ceremony

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/pgp"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/storage"
)

// Backup is what is kept of a rekey for holders who have lost the answer with their shares.
type Backup struct {
	Nonce string              `json:"nonce"` // of the rekey
	Keys  map[string][][]byte `json:"keys"`  // fingerprint of a holder's key, in hex, to the shares encrypted to it
}

// backupPurpose is what a backup is sealed for. It is sealed although its shares are encrypted, so that a stolen data directory
// does not tell who holds them.
const backupPurpose = "coffer backup of key shares 1"

func (t Target) backupKey() storage.Key { return seal.BackupPrefix + storage.Key(t) }

func (k *Ceremonies) sealBackup(nonce string, holders []*pgp.Key, shares [][]byte) ([]byte, error) {
	b := Backup{Nonce: nonce, Keys: map[string][][]byte{}}
	for i, print := range pgp.Fingerprints(holders) {
		b.Keys[print] = append(b.Keys[print], shares[i])
	}
	text, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encoding the backup of key shares: %w", err)
	}
	return k.opts.Barrier.SealBytes(backupPurpose, text)
}

// Backup returns the encrypted shares that were kept: of the new key that waits to be verified, else of the one in effect.
func (k *Ceremonies) Backup(ctx context.Context, t Target) (b Backup, err error) {
	err = k.step(func(c *Turn) error {
		var kept []byte
		if a := c.rekeys[t]; a != nil && a.kept != nil {
			kept = a.kept
		} else {
			e, err := k.opts.Raw.Get(ctx, t.backupKey())
			if errors.Is(err, storage.ErrNotFound) {
				return engines.Invalid("no backed-up keys found")
			}
			if err != nil {
				return err
			}
			kept = e.Value
		}
		text, err := k.opts.Barrier.OpenBytes(backupPurpose, kept)
		if err != nil {
			return fmt.Errorf("opening the backup of key shares: %w", err)
		}
		return json.Unmarshal(text, &b)
	})
	return b, err
}

// DeleteBackup deletes what Backup returns, if there is anything.
func (k *Ceremonies) DeleteBackup(ctx context.Context, t Target) error {
	return k.step(func(c *Turn) error {
		if a := c.rekeys[t]; a != nil {
			a.kept = nil
		}
		_, err := k.opts.Raw.Commit(ctx, storage.Batch{Deletes: []storage.Key{t.backupKey()}})
		return err
	})
}
