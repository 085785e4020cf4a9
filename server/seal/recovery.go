package seal

import (
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/coffer-project/coffer/storage"
)

// Raw entries that change together with the seal and are of use only to an unsealed node: their values are sealed by
// the barrier.
const (
	// RecoveryKey holds the verifier of the recovery key: what tells a right key from a wrong one, without being it.
	RecoveryKey storage.Key = "l/seal/recovery"
	// UnsealKey holds the key-encryption key of a Shamir seal that was changed while the cluster ran: nodes that were
	// unsealed before have only the old one.
	UnsealKey storage.Key = "l/seal/kek"
	// BackupPrefix holds shares of the keys in effect, encrypted to the keys of their holders: see the package ceremony.
	BackupPrefix storage.Key = "l/seal/backup/"
)

// SealBytes and OpenBytes are the barrier's.
type (
	SealBytes func(aad string, plain []byte) ([]byte, error)
	OpenBytes func(aad string, sealed []byte) ([]byte, error)
)

const (
	verifierPurpose = "coffer recovery key verifier 1"
	unsealPurpose   = "coffer unseal key 1"
)

// NewShares makes a random key and cuts it into shares. The error is a text for the operator.
func NewShares(shares, threshold int) (key []byte, parts [][]byte, err error) {
	if err := ValidateShares(shares, threshold); err != nil {
		return nil, nil, err
	}
	key = make([]byte, KeyBytes)
	rand.Read(key)
	parts, err = Split(key, shares, threshold)
	return key, parts, err
}

// Verifier returns what is kept of a recovery key. The key is random, so the verifier tells nothing of it.
func Verifier(key []byte) []byte {
	out, err := hkdf.Key(sha256.New, key, nil, verifierPurpose, sha256.Size)
	if err != nil {
		panic(err) // the length asked for is constant and allowed
	}
	return out
}

// RecoveryPut returns the entry that keeps a verifier.
func RecoveryPut(verifier []byte, seal SealBytes) (storage.Put, error) {
	value, err := seal(verifierPurpose, verifier)
	return storage.Put{Key: RecoveryKey, Value: value}, err
}

// VerifyRecovery returns the check an Unsealer needs: is this the recovery key? ErrNoRecoveryKeys means that there is none.
func VerifyRecovery(ctx context.Context, raw storage.Reader, open OpenBytes) (func(key []byte) error, error) {
	e, err := raw.Get(ctx, RecoveryKey)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, ErrNoRecoveryKeys
	}
	if err != nil {
		return nil, err
	}
	verifier, err := open(verifierPurpose, e.Value)
	if err != nil {
		return nil, fmt.Errorf("opening the verifier of the recovery key: %w", err)
	}
	return func(key []byte) error {
		if subtle.ConstantTimeCompare(Verifier(key), verifier) != 1 {
			return ErrWrongKey
		}
		return nil
	}, nil
}

// UnsealPut returns the entry that lets the other nodes follow a change of the unseal key.
func UnsealPut(kek []byte, seal SealBytes) (storage.Put, error) {
	value, err := seal(unsealPurpose, kek)
	return storage.Put{Key: UnsealKey, Value: value}, err
}

// Follow returns the wrapper of the unseal key that another node has changed to.
func Follow(ctx context.Context, raw storage.Reader, open OpenBytes) (Wrapper, error) {
	e, err := raw.Get(ctx, UnsealKey)
	if err != nil {
		return nil, fmt.Errorf("reading the changed unseal key: %w", err)
	}
	kek, err := open(unsealPurpose, e.Value)
	if err != nil {
		return nil, fmt.Errorf("opening the changed unseal key: %w", err)
	}
	defer clear(kek)
	return NewKEKWrapper(kek), nil
}
