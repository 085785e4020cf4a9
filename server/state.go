package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"sync/atomic"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// A state token names the state a response was made from, so that a client can ask any node for a state at
// least as new. Layout, before base64: version (1 byte), cluster (8 bytes of a hash of its id), index (8
// bytes, big endian), HMAC-SHA-256 (16 bytes) under a key that every unsealed node has.
const (
	stateVersion = 1
	stateBody    = 1 + 8 + 8
	stateBytes   = stateBody + 16
)

// stateTokens makes and reads them. Making one again for the same index costs nothing.
type stateTokens struct {
	key  atomic.Pointer[[]byte]
	last atomic.Pointer[stateToken]
}

type stateToken struct {
	index storage.Index
	text  string
}

func (t *stateTokens) setKey(key []byte) {
	t.last.Store(nil)
	if key == nil {
		t.key.Store(nil)
		return
	}
	t.key.Store(&key)
}

func (t *stateTokens) body(cluster string, index storage.Index) []byte {
	id := sha256.Sum256([]byte(cluster))
	b := append([]byte{stateVersion}, id[:8]...)
	return binary.BigEndian.AppendUint64(b, uint64(index))
}

func mac(key, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(body)
	return h.Sum(nil)[:stateBytes-stateBody]
}

func (t *stateTokens) make(cluster string, index storage.Index) string {
	if last := t.last.Load(); last != nil && last.index == index {
		return last.text
	}
	key := t.key.Load()
	if key == nil {
		return ""
	}
	body := t.body(cluster, index)
	text := base64.StdEncoding.EncodeToString(append(body, mac(*key, body)...))
	t.last.Store(&stateToken{index, text})
	return text
}

// read returns the index of a token that this cluster made.
func (t *stateTokens) read(cluster, text string) (storage.Index, error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	key := t.key.Load()
	switch {
	case err != nil || len(raw) != stateBytes || raw[0] != stateVersion:
		return 0, engines.Invalid("header X-Vault-Index is not a value this server gave out")
	case key == nil:
		return 0, storage.ErrSealed
	case !hmac.Equal(raw[stateBody:], mac(*key, raw[:stateBody])):
		return 0, engines.Invalid("header X-Vault-Index is not a value this cluster gave out")
	}
	index := storage.Index(binary.BigEndian.Uint64(raw[9:stateBody]))
	if string(t.body(cluster, index)) != string(raw[:stateBody]) {
		return 0, engines.Invalid("header X-Vault-Index belongs to another cluster")
	}
	return index, nil
}

// State returns the token of the state on this node, or "" while sealed.
func (s *Server) State() string {
	if s.node.Sealed() {
		return ""
	}
	return s.states.make(s.node.Identity().ID, s.raw.AppliedIndex())
}

// AwaitState waits until this node has the state a token stands for.
func (s *Server) AwaitState(ctx context.Context, text string) error {
	index, err := s.states.read(s.node.Identity().ID, text)
	if err != nil || index <= s.raw.AppliedIndex() {
		return err
	}
	return s.raw.WaitApplied(ctx, index)
}
