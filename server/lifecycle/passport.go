package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/coffer-project/coffer/storage"
)

// Passport is what a node shows to the others of its cluster, and what it goes by until it can read the state.
type Passport struct {
	Key      []byte  // private, secret
	CA       CA      // of a new cluster, or of one whose active node runs an earlier version; else zero
	Trust    []byte  // what the active node answered to a join; else nil
	Records  Records // what the state holds
	Entering bool    // the node founds or joins a cluster
}

// keyPurpose separates a node's key from everything else that is encrypted with the key ring.
const keyPurpose = "coffer node key v1"

// keyFile is the content of Options.KeyFile.
type keyFile struct {
	Format int    `json:"format"` // 1
	Node   string `json:"node"`
	Key    []byte `json:"key,omitempty"` // encrypted with the key ring
	// Removed is set when the cluster has removed the node, whose key is good for nothing then.
	Removed bool `json:"removed,omitempty"`
}

// ownPassport returns the passport of a node that can open the barrier. A node without a key that it can read gets a new
// one: at the first start of this version, or when the state of another cluster was restored.
func (n *Node) ownPassport() (Passport, error) {
	p := Passport{Records: Records{n.opts.Barrier}}
	key, err := n.readKey()
	if err != nil {
		return p, err
	}
	if p.Key = key; key == nil {
		p.Key, _, err = n.opts.NewKey()
	}
	return p, err
}

// readKeyFile returns nothing if there is no such file, or it cannot be used.
func (n *Node) readKeyFile() (f keyFile, err error) {
	if n.opts.KeyFile == "" {
		return f, nil
	}
	text, err := os.ReadFile(n.opts.KeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("reading the node's key: %w", err)
	}
	if err := json.Unmarshal(text, &f); err != nil || f.Format != 1 || f.Node != n.opts.NodeID {
		n.log.Warn("the file of the node's key is damaged or another node's: making a new key", "file", n.opts.KeyFile)
		return keyFile{}, nil
	}
	return f, nil
}

// readKey returns nil if there is no key, or one that is encrypted with the key ring of another cluster.
func (n *Node) readKey() ([]byte, error) {
	f, err := n.readKeyFile()
	if err != nil || len(f.Key) == 0 {
		return nil, err
	}
	key, err := n.opts.Barrier.OpenBytes(keyPurpose, f.Key)
	if err != nil {
		n.log.Warn("the node's key does not open: making a new one", "file", n.opts.KeyFile, "err", err)
		return nil, nil
	}
	return key, nil
}

// keepKey writes the node's key, once the barrier is open, unless it is there.
func (n *Node) keepKey(key []byte) error {
	if n.opts.KeyFile == "" {
		return nil
	}
	if kept, err := n.readKey(); err == nil && string(kept) == string(key) {
		return nil
	}
	sealed, err := n.opts.Barrier.SealBytes(keyPurpose, key)
	if err != nil {
		return err
	}
	return n.writeKeyFile(keyFile{Key: sealed})
}

func (n *Node) writeKeyFile(f keyFile) error {
	if n.opts.KeyFile == "" {
		return nil
	}
	f.Format, f.Node = 1, n.opts.NodeID
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := writeDurably(n.opts.KeyFile, text); err != nil {
		return fmt.Errorf("keeping the node's key: %w", err)
	}
	return nil
}

// expelled seals a node that was removed from its cluster: its data grows old, and its keys are not its own any more.
func (n *Node) expelled(r *running) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running.Load() != r {
		return
	}
	n.log.Error("this node was removed from its cluster: sealing. Move its data directory away to let it join again")
	n.warn(n.life, "noting that this node was removed", n.writeKeyFile(keyFile{Removed: true}))
	defer n.ending(false)()
	n.warn(n.life, "leaving the cluster", n.down(n.life))
	n.removed.Store(true) // a node that says so serves nothing any more
	n.statusLocked(n.life)
}

// awaitDistrust restarts a sealed node whose files are damaged: what it says of itself is in them. watch does it for one
// that is unsealed.
func (n *Node) awaitDistrust(ctx context.Context) {
	for n.opts.Raw.Distrusted() == nil {
		if n.opts.Raw.WaitApplied(ctx, math.MaxUint64) == nil || ctx.Err() != nil {
			return
		}
		if n.opts.Raw.Distrusted() == nil { // it has stopped for another reason
			return
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running.Load() == nil && !n.closed {
		n.log.Error("the data of this node is damaged: starting again", "err", n.opts.Raw.Distrusted())
		n.ending(false)()
	}
}

// distrusted seals a node whose data is damaged, or differs from its cluster's. The next start moves the data aside.
func (n *Node) distrusted(r *running) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running.Load() != r {
		return
	}
	n.log.Error("the data of this node is damaged or not its cluster's: sealing, to start again", "err", r.cluster.Distrusted())
	n.drop(n.life, r, nil)
}

// writeDurably replaces a file as a whole.
func writeDurably(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // if it was not renamed
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Records are the cluster's register of members and its CA, behind the barrier.
type Records struct{ store storage.Store }

// Trust returns the register of members; storage.ErrNotFound: there is none yet.
func (r Records) Trust(ctx context.Context) ([]byte, error) {
	e, err := r.store.Get(ctx, trustKey)
	return e.Value, err
}

// CA returns the CA with its key.
func (r Records) CA(ctx context.Context) (ca CA, err error) {
	e, err := r.store.Get(ctx, caKey)
	if err != nil {
		return ca, err
	}
	if err := json.Unmarshal(e.Value, &ca); err != nil {
		return ca, fmt.Errorf("decoding %s: %w", caKey, err)
	}
	return ca, nil
}

// Store replaces the register and, unless it is nil, the CA, at once.
func (r Records) Store(ctx context.Context, trust []byte, ca *CA) error {
	b := storage.Batch{Puts: []storage.Put{{Key: trustKey, Value: trust}}}
	if ca != nil {
		b.Puts = append(b.Puts, put(caKey, ca))
	}
	_, err := r.store.Commit(ctx, b)
	return err
}
