package seal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// KMS is a key that a service keeps and never gives away. Both methods must bind the purpose to the ciphertext where
// the service can (encryption context, additional data). Safe for concurrent use.
type KMS interface {
	// Encrypt encrypts at most 64 bytes. The result may be whatever Decrypt needs, at most 16 KiB.
	Encrypt(ctx context.Context, plain []byte, purpose string) ([]byte, error)
	// Decrypt is the inverse. ErrWrongKey means that the service has answered and does not open this; any other
	// error that the service could not be asked, or did not do it.
	Decrypt(ctx context.Context, ciphertext []byte, purpose string) ([]byte, error)
}

// KMSTimeout is how long one call of a service may take.
const KMSTimeout = 15 * time.Second

// A blob of a KMS seal is: magic, version, length of the key id, key id, length of the wrapped data key (uint16),
// the data key as the service wrapped it, ciphertext and tag of AES-256-GCM under the data key. Everything before
// the ciphertext, and the purpose, are authenticated, so a service that knows no context does not weaken the seal.
const (
	kmsMagic   = "CfSk"
	kmsVersion = 1
	maxWrapped = 16 << 10
)

// NewKMSWrapper returns the Wrapper of a key that a service keeps. kind is one of Types and keyID names the key as
// the configuration does, in at most 255 bytes.
func NewKMSWrapper(kind, keyID string, k KMS) (Wrapper, error) {
	if keyID == "" || len(keyID) > maxKeyID {
		return nil, fmt.Errorf("seal %q: the name of the key has %d bytes, 1 to %d are possible", kind, len(keyID), maxKeyID)
	}
	return kmsWrapper{kind: kind, keyID: keyID, kms: k}, nil
}

type kmsWrapper struct {
	kind, keyID string
	kms         KMS
}

func (w kmsWrapper) Type() string  { return w.kind }
func (w kmsWrapper) KeyID() string { return w.keyID }

// String keeps what the service is called with out of logs.
func (w kmsWrapper) String() string   { return w.kind + " seal" }
func (w kmsWrapper) GoString() string { return w.String() }

// Run does what a seal needs to have done all the time, such as keeping its token alive, until ctx ends. Most need
// nothing, and it returns at once.
func Run(ctx context.Context, w Wrapper) {
	if k, ok := w.(kmsWrapper); ok {
		if r, ok := k.kms.(interface{ Run(context.Context) }); ok {
			r.Run(ctx)
		}
	}
}

func (w kmsWrapper) needsRewrap(blob []byte) bool {
	b, err := parseKMSBlob(blob)
	return err == nil && b.keyID != w.keyID
}

func (w kmsWrapper) Wrap(ctx context.Context, plain []byte, purpose string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, KMSTimeout)
	defer cancel()
	dek := make([]byte, KeyBytes)
	rand.Read(dek)
	defer clear(dek)
	wrapped, err := w.kms.Encrypt(ctx, dek, purpose)
	if err != nil {
		return nil, fmt.Errorf("seal %q: encrypting with key %q: %w", w.kind, w.keyID, err)
	}
	if len(wrapped) == 0 || len(wrapped) > maxWrapped {
		return nil, fmt.Errorf("seal %q: the service wrapped a key in %d bytes", w.kind, len(wrapped))
	}
	head := append([]byte(kmsMagic), kmsVersion, byte(len(w.keyID)))
	head = append(head, w.keyID...)
	head = binary.BigEndian.AppendUint16(head, uint16(len(wrapped)))
	head = append(head, wrapped...)
	aead, err := newGCM(dek)
	if err != nil {
		return nil, err
	}
	// The data key is used once, so a fixed nonce never repeats under it.
	return append(head, aead.Seal(nil, make([]byte, aead.NonceSize()), plain, associated(head, purpose))...), nil
}

func (w kmsWrapper) Unwrap(ctx context.Context, blob []byte, purpose string) ([]byte, error) {
	b, err := parseKMSBlob(blob)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, KMSTimeout)
	defer cancel()
	dek, err := w.kms.Decrypt(ctx, b.wrapped, purpose)
	switch {
	case errors.Is(err, ErrWrongKey):
		return nil, fmt.Errorf("%w: seal %q with key %q, and it was sealed under key %q: %w", ErrWrongKey, w.kind, w.keyID, b.keyID, err)
	case err != nil:
		return nil, fmt.Errorf("seal %q: decrypting with key %q: %w", w.kind, w.keyID, err)
	case len(dek) != KeyBytes:
		clear(dek)
		return nil, fmt.Errorf("%w: the data key has %d bytes", ErrMalformed, len(dek))
	}
	defer clear(dek)
	aead, err := newGCM(dek)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, make([]byte, aead.NonceSize()), b.sealed, associated(b.head, purpose))
	if err != nil {
		return nil, ErrWrongKey
	}
	return plain, nil
}

// kmsBlob is a blob taken apart.
type kmsBlob struct {
	keyID                 string
	wrapped, head, sealed []byte
}

func parseKMSBlob(blob []byte) (b kmsBlob, err error) {
	const fixed = len(kmsMagic) + 2
	if len(blob) < fixed || string(blob[:len(kmsMagic)]) != kmsMagic {
		if len(blob) >= len(blobMagic) && string(blob[:len(blobMagic)]) == blobMagic {
			return b, fmt.Errorf("%w: it was sealed by another type of seal", ErrWrongKey)
		}
		return b, ErrMalformed
	}
	if v := blob[len(kmsMagic)]; v != kmsVersion {
		return b, fmt.Errorf("%w: format version %d, this build reads %d", ErrMalformed, v, kmsVersion)
	}
	at := fixed + int(blob[fixed-1])
	if len(blob) < at+2 {
		return b, fmt.Errorf("%w: too short", ErrMalformed)
	}
	b.keyID = string(blob[fixed:at])
	end := at + 2 + int(binary.BigEndian.Uint16(blob[at:]))
	if len(blob) < end+tagBytes {
		return b, fmt.Errorf("%w: too short", ErrMalformed)
	}
	b.wrapped, b.head, b.sealed = blob[at+2:end], blob[:end], blob[end:]
	return b, nil
}
