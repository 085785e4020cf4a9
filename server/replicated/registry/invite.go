package registry

import (
	"context"
	"errors"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// invite is the private key that a token may be encrypted to. There is one at a time; the commit that uses it, or that
// enables replication otherwise, deletes it.
type invite struct {
	Format    int       `json:"format"` // 1
	Key       []byte    `json:"key"`    // secret
	CreatedAt time.Time `json:"created_at"`
}

// GeneratePublicKey answers secondary/generate-public-key.
func (r *Registry) GeneratePublicKey(ctx context.Context, _ *engines.Request, _ *struct{}) (*engines.Response, error) {
	public, private, err := enrol.GenerateKey()
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, r.opts.Store, func(txn *storage.Txn) error {
		role, err := roles.Read(ctx, txn)
		if err != nil {
			return err
		}
		if role.Mode == roles.Primary {
			return engines.Invalid("this cluster is a primary: the key is generated on the cluster that is to become its secondary")
		}
		txn.Put(InviteKey, entry.Encode(invite{Format: 1, Key: private, CreatedAt: r.now().UTC()}))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"secondary_public_key": public}}, nil
}

// inviteKey returns the private key of generate-public-key.
func (r *Registry) inviteKey(ctx context.Context) ([]byte, error) {
	inv, err := entry.Fetch[invite](ctx, r.opts.Store, InviteKey)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.Invalid(`field "token": is encrypted to a public key, but this cluster has none at present: call secondary/generate-public-key, and have the primary make a token with it`)
	}
	return inv.Key, err
}
