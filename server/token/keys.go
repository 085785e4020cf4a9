package token

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// What is stored:
//
//	l/token/key                        the key of all hashes below
//	l/token/id/<token>                 the Entry
//	l/token/accessor/<accessor>        accessorRef
//	l/token/child/<parent>/<token>     index of children
//	l/token/expiry/<nanoseconds>/<token>  index of what expires, the time in 20 digits
//	s/sys/<namespace>/token-roles/<name>  a token role
//
// where tokens and accessors are keyed hashes. All keys of one token change in one batch.
const (
	hashKeyKey     storage.Key = "l/token/key"
	idPrefix       storage.Key = "l/token/id/"
	accessorPrefix storage.Key = "l/token/accessor/"
	childPrefix    storage.Key = "l/token/child/"
	expiryPrefix   storage.Key = "l/token/expiry/"
)

// present is the value of index entries.
var present = []byte("1")

func idKey(key string) storage.Key            { return idPrefix + storage.Key(key) }
func accessorKey(hash string) storage.Key     { return accessorPrefix + storage.Key(hash) }
func childrenKey(parent string) storage.Key   { return childPrefix + storage.Key(parent) + "/" }
func childKey(parent, key string) storage.Key { return childrenKey(parent) + storage.Key(key) }

func expiryKey(at time.Time, key string) storage.Key {
	return expiryPrefix + storage.Key(fmt.Sprintf("%020d/%s", at.UnixNano(), key))
}

// splitExpiryKey is the inverse of expiryKey.
func splitExpiryKey(k storage.Key) (at time.Time, key string, ok bool) {
	nanos, key, ok := strings.Cut(strings.TrimPrefix(string(k), string(expiryPrefix)), "/")
	n, err := strconv.ParseInt(nanos, 10, 64)
	return time.Unix(0, n), key, ok && err == nil && key != ""
}

// accessorRef is what an accessor leads to.
type accessorRef struct {
	Format   int    `json:"format"` // 1
	Accessor string `json:"accessor"`
	Token    string `json:"token"` // Key
	// Namespace is that of the token. Entries of the first release have none: they are of the root namespace.
	Namespace string `json:"namespace,omitempty"`
}

func (e *Entry) accessorRef() accessorRef {
	return accessorRef{Accessor: e.Accessor, Token: e.Key, Namespace: e.Namespace}
}

func (r accessorRef) encode() []byte {
	r.Format = 1
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // texts and a number
	}
	return value
}

func decodeAccessor(value []byte) (accessorRef, error) {
	var r accessorRef
	if err := json.Unmarshal(value, &r); err != nil || r.Format != 1 {
		return r, errors.New("a stored accessor has an unknown format")
	}
	if r.Namespace == "" {
		r.Namespace = rootNamespace
	}
	return r, nil
}

// Tokens and accessors are hashed apart, so that one can never stand for the other.
const (
	tokenHash    = "t"
	accessorHash = "a"
	batchHash    = "b"
)

// hasher makes keyed hashes. It keeps the machines it made, as setting one up costs more than a hash.
type hasher struct{ machines sync.Pool }

// machine is one keyed hash with room for what goes in and comes out.
type machine struct {
	mac  hash.Hash
	in   []byte
	sum  [sha256.Size]byte
	text [43]byte // sum in base64
}

func newHasher(key []byte) *hasher {
	return &hasher{sync.Pool{New: func() any { return &machine{mac: hmac.New(sha256.New, key)} }}}
}

func (h *hasher) hash(domain, text string) string {
	m := h.machines.Get().(*machine)
	defer h.machines.Put(m)
	m.in = append(append(m.in[:0], domain...), text...)
	m.mac.Reset()
	m.mac.Write(m.in) // a hash takes everything
	clear(m.in)       // it was a token
	base64.RawURLEncoding.Encode(m.text[:], m.mac.Sum(m.sum[:0]))
	return string(m.text[:])
}

// hash returns the name that a token or accessor is stored under.
func (s *Store) hash(ctx context.Context, domain, text string) (string, error) {
	h, err := s.hasher.Get(ctx, hashKeyKey, func(ctx context.Context) (*hasher, error) {
		e, err := s.store.Get(ctx, hashKeyKey)
		return newHasher(e.Value), err
	})
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return "", errors.New("the key of the token hashes is missing")
	case err != nil:
		return "", fmt.Errorf("reading the key of the token hashes: %w", err)
	}
	return h.hash(domain, text), nil
}

// InitPuts returns what a new cluster begins with: a random key for the hashes.
func InitPuts() []storage.Put {
	key := make([]byte, 32)
	rand.Read(key) // never fails
	return []storage.Put{{Key: hashKeyKey, Value: key}}
}

const (
	tokenPrefix   = "hvs."
	maxTokenBytes = 512
)

// newToken returns a fresh service token: "hvs." and 96 characters of base64url.
func newToken() string {
	var b [72]byte
	rand.Read(b[:])
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

const accessorAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// newAccessor returns 24 random letters and digits, about 142 bits.
func newAccessor() string {
	out := make([]byte, 0, 24)
	var b [32]byte
	for {
		rand.Read(b[:])
		for _, c := range b {
			if c >= 248 { // 4 × 62: beyond, some characters would be likelier than others
				continue
			}
			if out = append(out, accessorAlphabet[c%62]); len(out) == cap(out) {
				return string(out)
			}
		}
	}
}

// scan yields the entries below prefix in key order, read in pages.
func (s *Store) scan(ctx context.Context, prefix storage.Key) iter.Seq2[storage.Entry, error] {
	const page = 512
	return func(yield func(storage.Entry, error) bool) {
		var after storage.Key
		for {
			entries, err := s.store.Scan(ctx, prefix, after, page)
			if err != nil {
				yield(storage.Entry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if len(entries) < page {
				return
			}
			after = entries[len(entries)-1].Key
		}
	}
}
