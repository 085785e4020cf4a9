// Package statetoken makes and reads state tokens: the value of X-Vault-Index, which names the state that an answer was made from. A
// client that sends it back is answered from a state at least as new, by any node of the cluster and, in a replication set, by any cluster
// of the set. Tokens are authenticated, so that no client can have a node wait for what never comes.
package statetoken

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"sync"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/lifecycle"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/server/replicated/traffic"
	"github.com/coffer-project/coffer/storage"
)

// A state token names the state a response was made from, so that a client can ask any node for a state at
// least as new. Layout, before base64: version (1 byte), cluster (8 bytes of a hash of its id), index (8
// bytes, big endian), with version 2 the position in the replication set (epoch, 4 bytes, and index, 8), and an
// HMAC-SHA-256 (16 bytes): of version 1 under a key that every node of the cluster has, of version 2 under one that
// every cluster of the set has.
const (
	versionAlone = 1
	versionInSet = 2

	aloneBytes = 1 + 8 + 8
	inSetBytes = aloneBytes + 4 + 8
	macBytes   = 16
)

// Options of Tokens. All are required.
type Options struct {
	Raw     lifecycle.Raw
	Cluster Cluster
	Link    traffic.Link
	Keys    Keys
}

// Cluster is this cluster in replication: replicated.Store.
type Cluster interface{ Role() roles.Role }

// Keys has the key that every cluster of the set has: setkeys.Store.
type Keys interface{ State() ([]byte, error) }

// Tokens makes and reads them. Making one again for the same state costs nothing.
type Tokens struct {
	opts Options
	own  atomic.Pointer[own]    // nil while sealed
	set  atomic.Pointer[signer] // nil until it was needed, and after it changed
	last atomic.Pointer[made]
}

// state is what a token says.
type state struct {
	cluster [8]byte
	index   storage.Index
	at      storage.Position // in the set; zero: in none
}

// own is what is known of this cluster.
type own struct {
	cluster [8]byte
	signer  *signer
}

// signer makes the authentication of tokens with one key. It keeps the machines it made, as setting one up costs more than using it.
type signer struct{ machines sync.Pool }

// newSigner returns a signer; nil if the key is empty, which would authenticate nothing.
func newSigner(key []byte) *signer {
	if len(key) == 0 {
		return nil
	}
	return &signer{sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}
}

func (s *signer) mac(body []byte) []byte {
	h := s.machines.Get().(hash.Hash)
	defer s.machines.Put(h)
	h.Reset()
	h.Write(body) // a hash takes everything
	return h.Sum(nil)[:macBytes]
}

// made is the last one.
type made struct {
	state
	header []string
}

// New returns Tokens without a key: there are none until SetKey.
func New(o Options) *Tokens { return &Tokens{opts: o} }

// SetKey sets the id and the key of this cluster, once it is unsealed.
func (t *Tokens) SetKey(clusterID string, key []byte) {
	t.ForgetSet()
	t.own.Store(&own{clusterTag(clusterID), newSigner(key)})
}

// Clear forgets the keys, when the server seals.
func (t *Tokens) Clear() {
	t.ForgetSet()
	t.own.Store(nil)
}

// ForgetSet forgets the set's key, which may be another one now.
func (t *Tokens) ForgetSet() {
	t.last.Store(nil)
	t.set.Store(nil)
}

func clusterTag(id string) [8]byte {
	sum := sha256.Sum256([]byte(id))
	return [8]byte(sum[:8])
}

func (s *state) body() []byte {
	version := byte(versionAlone)
	if !s.at.IsZero() {
		version = versionInSet
	}
	b := append(make([]byte, 0, inSetBytes+macBytes), version)
	b = append(b, s.cluster[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(s.index))
	if version == versionInSet {
		b = binary.BigEndian.AppendUint32(b, s.at.Epoch)
		b = binary.BigEndian.AppendUint64(b, uint64(s.at.Index))
	}
	return b
}

// read takes a token apart. with returns the signer for a version; it may return nil.
func read(text string, with func(inSet bool) *signer) (s state, err error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	foreign := engines.Invalid("header X-Vault-Index is not a value this server gave out")
	if err != nil || len(raw) < macBytes {
		return s, foreign
	}
	body, sum := raw[:len(raw)-macBytes], raw[len(raw)-macBytes:]
	inSet := len(body) == inSetBytes && body[0] == versionInSet
	if !inSet && (len(body) != aloneBytes || body[0] != versionAlone) {
		return s, foreign
	}
	k := with(inSet)
	switch {
	case k == nil:
		return s, storage.ErrSealed
	case !hmac.Equal(sum, k.mac(body)):
		return s, engines.Invalid("header X-Vault-Index is not a value this cluster gave out")
	}
	s.cluster = [8]byte(body[1:9])
	s.index = storage.Index(binary.BigEndian.Uint64(body[9:17]))
	if inSet {
		s.at = storage.Position{Epoch: binary.BigEndian.Uint32(body[17:21]), Index: storage.Index(binary.BigEndian.Uint64(body[21:29]))}
	}
	return s, nil
}

// ofSet returns the signer of the replication set; nil while there is none.
func (t *Tokens) ofSet() *signer {
	if signer := t.set.Load(); signer != nil {
		return signer
	}
	key, err := t.opts.Keys.State()
	if err != nil {
		return nil
	}
	signer := newSigner(key)
	t.set.Store(signer)
	return signer
}

// position returns where this node is in the history of its replication set; zero if it is in none.
func (t *Tokens) position(ctx context.Context) storage.Position {
	switch role := t.opts.Cluster.Role(); role.Mode {
	case roles.Primary:
		return storage.Position{Epoch: role.Lineage.Epoch(), Index: max(1, t.opts.Link.Head())}
	case roles.Secondary:
		if at, err := t.opts.Link.Cursor(ctx); err == nil {
			return at
		}
	}
	return storage.Position{}
}

// State returns the token of the state on this node as the one value of a header, nil while sealed. Callers must not change it.
func (t *Tokens) State() []string {
	own := t.own.Load()
	if own == nil {
		return nil
	}
	s := state{cluster: own.cluster, index: t.opts.Raw.AppliedIndex(), at: t.position(context.Background())}
	if last := t.last.Load(); last != nil && last.state == s {
		return last.header
	}
	body, signer := s.body(), own.signer
	if body[0] == versionInSet {
		signer = t.ofSet()
	}
	if signer == nil {
		return nil
	}
	header := []string{base64.StdEncoding.EncodeToString(append(body, signer.mac(body)...))}
	t.last.Store(&made{s, header})
	return header
}

// Await waits until this node has the state a token stands for. One of another cluster of the set names a position in
// the set's history: what is no longer part of that, after a promotion, cannot be waited for, and is not.
func (t *Tokens) Await(ctx context.Context, text string) error {
	own := t.own.Load()
	if own == nil {
		return storage.ErrSealed
	}
	want, err := read(text, func(inSet bool) *signer {
		if inSet {
			return t.ofSet()
		}
		return own.signer
	})
	if err != nil {
		return err
	}
	if want.cluster == own.cluster {
		if want.index <= t.opts.Raw.AppliedIndex() {
			return nil
		}
		return t.opts.Raw.WaitApplied(ctx, want.index)
	}
	role := t.opts.Cluster.Role()
	switch {
	case want.at.IsZero() || role.Mode == roles.Disabled:
		return engines.Invalid("header X-Vault-Index belongs to another cluster")
	case !role.Lineage.Contains(want.at):
		return nil
	case role.Mode == roles.Secondary:
		return t.opts.Link.AwaitCursor(ctx, want.at)
	case want.at.Epoch == role.Lineage.Epoch():
		return t.opts.Raw.WaitApplied(ctx, want.at.Index)
	}
	return nil
}
