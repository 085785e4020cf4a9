package seal

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Wrapper encrypts small secrets under a seal's key. Both methods may have to ask a service and then block until
// ctx ends or the service has had its time. Safe for concurrent use.
type Wrapper interface {
	// Type is the seal's type, one of Types.
	Type() string
	// Wrap encrypts plain for one purpose; the same purpose must be given to Unwrap.
	Wrap(ctx context.Context, plain []byte, purpose string) ([]byte, error)
	// Unwrap returns the plain text, which the caller owns, or ErrWrongKey, or ErrMalformed, or whatever keeps the
	// service that has the key from answering.
	Unwrap(ctx context.Context, blob []byte, purpose string) ([]byte, error)
}

// KeyID names the key of an automatic seal, as its configuration does; "" for others.
func KeyID(w Wrapper) string {
	if k, ok := w.(interface{ KeyID() string }); ok {
		return k.KeyID()
	}
	return ""
}

// NeedsRewrap reports whether a blob was wrapped under a key other than the wrapper's current one: after a
// rotation, unwrap it and store it wrapped again.
func NeedsRewrap(w Wrapper, blob []byte) bool {
	r, ok := w.(interface{ needsRewrap([]byte) bool })
	return ok && r.needsRewrap(blob)
}

// A blob is: magic, version, length of the key id, key id, 32 bytes of salt, AES-256-GCM ciphertext and tag.
// Key and nonce come from HKDF over the key-encryption key and the salt, so that no number of blobs under
// one key wears it out. Everything before the ciphertext and the purpose are authenticated.
const (
	blobMagic   = "CfSl"
	blobVersion = 1
	saltBytes   = 32
	tagBytes    = 16
	maxKeyID    = 255
)

// kek is one named key-encryption key. The key is inside a function, where nothing that formats a struct
// reaches it.
type kek struct {
	id  string
	key func() []byte
}

// NewKEKWrapper returns the Wrapper of a key-encryption key as people's shares combine to it. It keeps a copy
// of key. A key that is not KeyBytes long wraps and unwraps nothing.
func NewKEKWrapper(key []byte) Wrapper { return shamirWrapper{newKEK("", key)} }

func newKEK(id string, key []byte) kek {
	key = bytes.Clone(key)
	return kek{id: id, key: func() []byte { return key }}
}

// shamirWrapper is the seal whose key is held by people.
type shamirWrapper struct{ kek kek }

func (w shamirWrapper) Type() string { return TypeShamir }

func (w shamirWrapper) Wrap(_ context.Context, plain []byte, purpose string) ([]byte, error) {
	return w.kek.wrap(plain, purpose)
}

func (w shamirWrapper) Unwrap(_ context.Context, blob []byte, purpose string) ([]byte, error) {
	return w.kek.unwrap(blob, purpose)
}

func (k kek) wrap(plain []byte, purpose string) ([]byte, error) {
	if len(k.id) > maxKeyID {
		return nil, fmt.Errorf("key id is %d bytes, the limit is %d", len(k.id), maxKeyID)
	}
	head := append([]byte(blobMagic), blobVersion, byte(len(k.id)))
	head = append(head, k.id...)
	salt := make([]byte, saltBytes)
	rand.Read(salt)
	head = append(head, salt...)
	aead, nonce, err := k.derive(salt)
	if err != nil {
		return nil, err
	}
	out := make([]byte, len(head), len(head)+len(plain)+tagBytes)
	copy(out, head)
	return aead.Seal(out, nonce, plain, associated(head, purpose)), nil
}

func (k kek) unwrap(blob []byte, purpose string) ([]byte, error) {
	id, head, err := parseBlob(blob)
	if err != nil {
		return nil, err
	}
	if id != k.id {
		return nil, fmt.Errorf("%w: it was sealed under another key", ErrWrongKey)
	}
	aead, nonce, err := k.derive(head[len(head)-saltBytes:])
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, nonce, blob[len(head):], associated(head, purpose))
	if err != nil {
		return nil, ErrWrongKey
	}
	return plain, nil
}

// derive returns the cipher and the nonce that belong to one salt.
func (k kek) derive(salt []byte) (cipher.AEAD, []byte, error) {
	if len(k.key()) != KeyBytes {
		return nil, nil, fmt.Errorf("%w: a key-encryption key has %d bytes", ErrWrongKey, KeyBytes)
	}
	okm, err := hkdf.Key(sha256.New, k.key(), salt, "coffer seal v1", KeyBytes+12)
	if err != nil {
		return nil, nil, err
	}
	aead, err := newGCM(okm[:KeyBytes])
	clear(okm[:KeyBytes])
	return aead, okm[KeyBytes:], err
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// associated is what a blob's tag covers besides the ciphertext. The head carries its own length.
func associated(head []byte, purpose string) []byte {
	return append(append([]byte(nil), head...), purpose...)
}

// parseBlob returns the key id and everything before the ciphertext.
func parseBlob(blob []byte) (id string, head []byte, err error) {
	const fixed = len(blobMagic) + 2
	if len(blob) < fixed || string(blob[:len(blobMagic)]) != blobMagic {
		if len(blob) >= len(kmsMagic) && string(blob[:len(kmsMagic)]) == kmsMagic {
			return "", nil, fmt.Errorf("%w: it was sealed by another type of seal", ErrWrongKey)
		}
		return "", nil, ErrMalformed
	}
	if v := blob[len(blobMagic)]; v != blobVersion {
		return "", nil, fmt.Errorf("%w: format version %d, this build reads %d", ErrMalformed, v, blobVersion)
	}
	n := fixed + int(blob[fixed-1])
	if len(blob) < n+saltBytes+tagBytes {
		return "", nil, fmt.Errorf("%w: too short", ErrMalformed)
	}
	return string(blob[fixed:n]), blob[:n+saltBytes], nil
}

// SealTo encrypts a payload of any size to the holders of the seal's key. A fresh data key encrypts the payload
// and the seal wraps the data key, so it suits seals that only wrap small secrets.
func SealTo(ctx context.Context, w Wrapper, purpose string, payload []byte) ([]byte, error) {
	dek := make([]byte, KeyBytes)
	rand.Read(dek)
	defer clear(dek)
	wrapped, err := w.Wrap(ctx, dek, "data key: "+purpose)
	if err != nil {
		return nil, err
	}
	if len(wrapped) > 1<<16-1 {
		return nil, errors.New("sealing a payload: the wrapped data key is too long")
	}
	aead, err := newGCM(dek)
	if err != nil {
		return nil, err
	}
	out := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(wrapped)+len(payload)+tagBytes), uint16(len(wrapped)))
	out = append(out, wrapped...)
	// The data key is used once, so a fixed nonce never repeats under it.
	return aead.Seal(out, make([]byte, aead.NonceSize()), payload, out), nil
}

// OpenFrom returns the payload that SealTo sealed for the same purpose, or ErrWrongKey, or ErrMalformed.
func OpenFrom(ctx context.Context, w Wrapper, purpose string, blob []byte) ([]byte, error) {
	if len(blob) < 2 {
		return nil, ErrMalformed
	}
	n := 2 + int(binary.BigEndian.Uint16(blob))
	if len(blob) < n+tagBytes {
		return nil, fmt.Errorf("%w: too short", ErrMalformed)
	}
	dek, err := w.Unwrap(ctx, blob[2:n], "data key: "+purpose)
	if err != nil {
		return nil, err
	}
	defer clear(dek)
	if len(dek) != KeyBytes {
		return nil, ErrMalformed
	}
	aead, err := newGCM(dek)
	if err != nil {
		return nil, err
	}
	payload, err := aead.Open(nil, make([]byte, aead.NonceSize()), blob[n:], blob[:n])
	if err != nil {
		return nil, ErrWrongKey
	}
	return payload, nil
}
