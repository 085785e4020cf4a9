package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated"
	"github.com/coffer-project/coffer/storage"
)

// A state token names the state a response was made from, so that a client can ask any node for a state at
// least as new. Layout, before base64: version (1 byte), cluster (8 bytes of a hash of its id), index (8
// bytes, big endian), with version 2 the position in the replication set (epoch, 4 bytes, and index, 8), and an
// HMAC-SHA-256 (16 bytes): of version 1 under a key that every node of the cluster has, of version 2 under one that
// every cluster of the set has.
const (
	stateAlone = 1
	stateInSet = 2

	stateAloneBytes = 1 + 8 + 8
	stateInSetBytes = stateAloneBytes + 4 + 8
	stateMACBytes   = 16
)

// stateTokens makes and reads them. Making one again for the same state costs nothing.
type stateTokens struct {
	own  atomic.Pointer[[]byte]
	set  atomic.Pointer[[]byte] // nil until it was needed, and after it changed
	last atomic.Pointer[stateToken]
}

// state is what a token says.
type state struct {
	cluster [8]byte
	index   storage.Index
	at      storage.Position // in the set; zero: in none
}

type stateToken struct {
	cluster string // id
	index   storage.Index
	at      storage.Position
	text    string
}

func (t *stateTokens) setKey(key []byte) {
	t.forgetSet()
	if key == nil {
		t.own.Store(nil)
		return
	}
	t.own.Store(&key)
}

// forgetSet forgets the set's key, which may be another one now.
func (t *stateTokens) forgetSet() {
	t.last.Store(nil)
	t.set.Store(nil)
}

func clusterTag(id string) [8]byte {
	sum := sha256.Sum256([]byte(id))
	return [8]byte(sum[:8])
}

func (s *state) body() []byte {
	version := byte(stateAlone)
	if !s.at.IsZero() {
		version = stateInSet
	}
	b := append([]byte{version}, s.cluster[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(s.index))
	if version == stateInSet {
		b = binary.BigEndian.AppendUint32(b, s.at.Epoch)
		b = binary.BigEndian.AppendUint64(b, uint64(s.at.Index))
	}
	return b
}

func mac(key, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(body)
	return h.Sum(nil)[:stateMACBytes]
}

// make returns the token of a state, "" without a key.
func (t *stateTokens) make(cluster string, index storage.Index, at storage.Position, key func() []byte) string {
	if last := t.last.Load(); last != nil && last.index == index && last.at == at && last.cluster == cluster {
		return last.text
	}
	k := key()
	if k == nil {
		return ""
	}
	s := state{cluster: clusterTag(cluster), index: index, at: at}
	body := s.body()
	text := base64.StdEncoding.EncodeToString(append(body, mac(k, body)...))
	t.last.Store(&stateToken{cluster, index, at, text})
	return text
}

// readState takes a token apart. key returns the key for a version; it may return nil.
func readState(text string, key func(inSet bool) []byte) (s state, err error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	foreign := engines.Invalid("header X-Vault-Index is not a value this server gave out")
	if err != nil || len(raw) < stateMACBytes {
		return s, foreign
	}
	body, sum := raw[:len(raw)-stateMACBytes], raw[len(raw)-stateMACBytes:]
	inSet := len(body) == stateInSetBytes && body[0] == stateInSet
	if !inSet && (len(body) != stateAloneBytes || body[0] != stateAlone) {
		return s, foreign
	}
	k := key(inSet)
	switch {
	case k == nil:
		return s, storage.ErrSealed
	case !hmac.Equal(sum, mac(k, body)):
		return s, engines.Invalid("header X-Vault-Index is not a value this cluster gave out")
	}
	s.cluster = [8]byte(body[1:9])
	s.index = storage.Index(binary.BigEndian.Uint64(body[9:17]))
	if inSet {
		s.at = storage.Position{Epoch: binary.BigEndian.Uint32(body[17:21]), Index: storage.Index(binary.BigEndian.Uint64(body[21:29]))}
	}
	return s, nil
}

// ownKey returns the key of this cluster, setKey that of its replication set; nil while there is none.
func (t *stateTokens) ownKey() []byte {
	if k := t.own.Load(); k != nil {
		return *k
	}
	return nil
}

func (s *Server) setStateKey() []byte {
	if k := s.states.set.Load(); k != nil {
		return *k
	}
	keys, err := s.loadSetKeys(context.Background())
	if err != nil {
		return nil
	}
	s.states.set.Store(&keys.State)
	return keys.State
}

// position returns where this node is in the history of its replication set; zero if it is in none.
func (s *Server) position(ctx context.Context) storage.Position {
	switch role := s.replicated.Role(); role.Mode {
	case replicated.Primary:
		return storage.Position{Epoch: role.Lineage.Epoch(), Index: max(1, s.link.Head())}
	case replicated.Secondary:
		if at, err := s.link.Cursor(ctx); err == nil {
			return at
		}
	}
	return storage.Position{}
}

// State returns the token of the state on this node, or "" while sealed.
func (s *Server) State() string {
	if s.node.Sealed() {
		return ""
	}
	index, at := s.raw.AppliedIndex(), s.position(context.Background())
	key := s.states.ownKey
	if !at.IsZero() {
		key = s.setStateKey
	}
	return s.states.make(s.node.Identity().ID, index, at, key)
}

// AwaitState waits until this node has the state a token stands for. One of another cluster of the set names a position in
// the set's history: what is no longer part of that, after a promotion, cannot be waited for, and is not.
func (s *Server) AwaitState(ctx context.Context, text string) error {
	want, err := readState(text, func(inSet bool) []byte {
		if inSet {
			return s.setStateKey()
		}
		return s.states.ownKey()
	})
	if err != nil {
		return err
	}
	if want.cluster == clusterTag(s.node.Identity().ID) {
		if want.index <= s.raw.AppliedIndex() {
			return nil
		}
		return s.raw.WaitApplied(ctx, want.index)
	}
	role := s.replicated.Role()
	switch {
	case want.at.IsZero() || role.Mode == replicated.Disabled:
		return engines.Invalid("header X-Vault-Index belongs to another cluster")
	case !role.Lineage.Contains(want.at):
		return nil
	case role.Mode == replicated.Secondary:
		return s.link.AwaitCursor(ctx, want.at)
	case want.at.Epoch == role.Lineage.Epoch():
		return s.raw.WaitApplied(ctx, want.at.Index)
	}
	return nil
}
