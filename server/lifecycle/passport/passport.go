// Package passport is what a node shows to the others of its cluster, and where that is kept: the node's own key in a file that only a
// node with the cluster's key ring can read, and the cluster's CA and register of members behind the barrier.
package passport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/coffer-project/coffer/storage"
)

// Entries behind the barrier.
var (
	CAEntry    = storage.NewKey(storage.Local, "cluster", "ca")
	TrustEntry = storage.NewKey(storage.Local, "cluster", "trust")
)

// CA is the cluster's certificate authority, PEM.
type CA struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

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

// content is that of a File.
type content struct {
	Format int    `json:"format"` // 1
	Node   string `json:"node"`
	Key    []byte `json:"key,omitempty"` // encrypted with the key ring
	// Joining is the key of a node that is registered, but does not have the key ring yet; sealed under the seal's key.
	Joining []byte `json:"joining,omitempty"`
	// Removed is set when the cluster has removed the node, whose key is good for nothing then.
	Removed bool `json:"removed,omitempty"`
}

// File is where a node's key is kept, encrypted.
type File struct {
	Path    string // "": nowhere
	Node    string // id
	Barrier interface {
		SealBytes(aad string, plain []byte) ([]byte, error)
		OpenBytes(aad string, sealed []byte) ([]byte, error)
	}
	Logger *slog.Logger
}

// read returns nothing if there is no such file, or it cannot be used.
func (f File) read() (c content, err error) {
	if f.Path == "" {
		return c, nil
	}
	text, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("reading the node's key: %w", err)
	}
	if err := json.Unmarshal(text, &c); err != nil || c.Format != 1 || c.Node != f.Node {
		f.Logger.Warn("the file of the node's key is damaged or another node's: making a new key", "file", f.Path)
		return content{}, nil
	}
	return c, nil
}

// Key returns nil if there is no key, or one that is encrypted with the key ring of another cluster.
func (f File) Key() ([]byte, error) {
	c, err := f.read()
	if err != nil || len(c.Key) == 0 {
		return nil, err
	}
	key, err := f.Barrier.OpenBytes(keyPurpose, c.Key)
	if err != nil {
		f.Logger.Warn("the node's key does not open: making a new one", "file", f.Path, "err", err)
		return nil, nil
	}
	return key, nil
}

// Joining returns the sealed key of KeepJoining; nil: there is none.
func (f File) Joining() ([]byte, error) {
	c, err := f.read()
	return c.Joining, err
}

// KeepJoining writes the key of a node that the cluster has admitted, sealed under the seal's key: if the node ends after the
// state has arrived and before Keep, it would have a state, and no key that the others know. Keep replaces it.
func (f File) KeepJoining(sealed []byte) error { return f.write(content{Joining: sealed}) }

// Keep writes the node's key, once the barrier is open, unless it is there.
func (f File) Keep(key []byte) error {
	if f.Path == "" {
		return nil
	}
	if kept, err := f.Key(); err == nil && string(kept) == string(key) {
		return nil
	}
	sealed, err := f.Barrier.SealBytes(keyPurpose, key)
	if err != nil {
		return err
	}
	return f.write(content{Key: sealed})
}

func (f File) write(c content) error {
	if f.Path == "" {
		return nil
	}
	c.Format, c.Node = 1, f.Node
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if err := writeDurably(f.Path, text); err != nil {
		return fmt.Errorf("keeping the node's key: %w", err)
	}
	return nil
}

// Removed reports whether the cluster has removed the node.
func (f File) Removed() bool {
	c, err := f.read()
	return err == nil && c.Removed
}

// Remove notes that it has.
func (f File) Remove() error { return f.write(content{Removed: true}) }

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

// NewRecords returns those of a cluster.
func NewRecords(barrier storage.Store) Records { return Records{barrier} }

// Trust returns the register of members; storage.ErrNotFound: there is none yet.
func (r Records) Trust(ctx context.Context) ([]byte, error) {
	e, err := r.store.Get(ctx, TrustEntry)
	return e.Value, err
}

// CA returns the CA with its key.
func (r Records) CA(ctx context.Context) (ca CA, err error) {
	e, err := r.store.Get(ctx, CAEntry)
	if err != nil {
		return ca, err
	}
	if err := json.Unmarshal(e.Value, &ca); err != nil {
		return ca, fmt.Errorf("decoding %s: %w", CAEntry, err)
	}
	return ca, nil
}

// Store replaces the register and, unless it is nil, the CA, at once.
func (r Records) Store(ctx context.Context, trust []byte, ca *CA) error {
	b := storage.Batch{Puts: []storage.Put{{Key: TrustEntry, Value: trust}}}
	if ca != nil {
		value, err := json.Marshal(ca)
		if err != nil {
			return err
		}
		b.Puts = append(b.Puts, storage.Put{Key: CAEntry, Value: value})
	}
	_, err := r.store.Commit(ctx, b)
	return err
}
