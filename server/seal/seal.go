// Package seal keeps the root key shut: it wraps it under a key-encryption key that either people hold, cut
// into Shamir shares, or the operator's configuration provides (static auto-unseal), or a key management
// service keeps (KMS; the packages below this one are the services).
//
// Raw entries, readable while the server is sealed, hold the state: ConfigKey says which seal and how
// many shares, RootKey holds the wrapped root key; recovery.go has two more, which only an open barrier reads.
// Nothing here ever stores, logs or formats a key or a share. Start reading at Wrapper, then Init and Unsealer;
// challenge.go is how a new node proves that it can unseal before it may join.
package seal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/storage"
)

// Where the seal's state is stored: raw, outside the barrier.
const (
	ConfigKey storage.Key = "l/seal/config"
	RootKey   storage.Key = "l/seal/root"
)

// Types of seal, as Config.Type and Wrapper.Type say them.
const (
	TypeShamir        = "shamir"
	TypeStatic        = "static"
	TypeTransit       = "transit"
	TypeAWSKMS        = "awskms"
	TypeGCPCKMS       = "gcpckms"
	TypeAzureKeyVault = "azurekeyvault"
)

// Types are the seals there are, those that need people first.
var Types = []string{TypeShamir, TypeStatic, TypeTransit, TypeAWSKMS, TypeGCPCKMS, TypeAzureKeyVault}

// KeyBytes is the size of a key-encryption key.
const KeyBytes = 32

// configVersion is the newest format of the entry under ConfigKey that this build reads and the one it writes.
// Version 1 had no recovery keys and knew two types.
const configVersion = 2

// rootPurpose is the associated data of the wrapped root key.
const rootPurpose = "root key"

// Sentinels. Use errors.Is.
var (
	// ErrWrongKey means that a blob does not open: other key, other purpose, or altered.
	ErrWrongKey = errors.New("the seal's key does not open this")
	// ErrMalformed means that a blob is not what this package writes.
	ErrMalformed = errors.New("malformed sealed data")
	// ErrMalformedShare means that a share cannot be one of this seal's, whatever its content.
	ErrMalformedShare = errors.New("malformed key share")
	// ErrWrongShares means that enough shares were given and do not combine to the key; progress is reset.
	ErrWrongShares = errors.New("the given key shares do not open the seal: at least one is wrong, start again")
	// ErrNoRecoveryKeys means that this cluster has no recovery keys.
	ErrNoRecoveryKeys = errors.New("this cluster has no recovery keys: an operator with a root token makes the first ones with sys/rotate/recovery/init")
	// ErrChallenge means that a join challenge was not answered: unknown, expired, used or wrong.
	ErrChallenge = errors.New("join challenge unknown, expired, already used or answered wrongly")
)

// Config describes the seal of one cluster. It holds no secret.
type Config struct {
	Version   int    `json:"version"`
	Type      string `json:"type"` // one of Types
	Shares    int    `json:"secret_shares"`
	Threshold int    `json:"secret_threshold"`
	// Recovery keys go with automatic seals; both 0: there are none.
	RecoveryShares    int       `json:"recovery_shares,omitempty"`
	RecoveryThreshold int       `json:"recovery_threshold,omitempty"`
	KeyID             string    `json:"key_id,omitempty"` // automatic: the key that wraps the root key
	Created           time.Time `json:"created"`
}

// Auto reports whether the seal opens without people.
func (c Config) Auto() bool { return c.Type != TypeShamir }

// Held returns how many shares people hold and how many of them are enough: of the unseal key, or with an automatic
// seal of the recovery key, 0 if it has none.
func (c Config) Held() (shares, threshold int) {
	if c.Auto() {
		return c.RecoveryShares, c.RecoveryThreshold
	}
	return c.Shares, c.Threshold
}

// Validate reports what is wrong with the configuration, or nil. An automatic seal has 0 shares.
func (c Config) Validate() error {
	switch {
	case c.Version < 1 || c.Version > configVersion:
		return fmt.Errorf("seal configuration has version %d, this build reads up to %d", c.Version, configVersion)
	case !slices.Contains(Types, c.Type):
		return fmt.Errorf("unknown seal type %q: supported are %s", c.Type, strings.Join(Types, ", "))
	case c.Auto() && (c.Shares != 0 || c.Threshold != 0):
		return errors.New("an automatic seal has no key shares")
	case c.Auto():
		return ValidateRecoveryShares(c.RecoveryShares, c.RecoveryThreshold)
	case c.RecoveryShares != 0 || c.RecoveryThreshold != 0:
		return errors.New("a shamir seal has no recovery keys: its unseal keys serve for what they would")
	}
	return ValidateShares(c.Shares, c.Threshold)
}

// ValidateShares reports what is wrong with a number of shares and a threshold, as a text for the operator.
func ValidateShares(shares, threshold int) error { return validateShares("secret", shares, threshold) }

// ValidateRecoveryShares is ValidateShares for recovery keys, of which there may also be none.
func ValidateRecoveryShares(shares, threshold int) error {
	if shares == 0 && threshold == 0 {
		return nil
	}
	return validateShares("recovery", shares, threshold)
}

func validateShares(which string, shares, threshold int) error {
	switch {
	case shares < 1 || shares > 255:
		return fmt.Errorf("%s_shares is %d, it must be between 1 and 255", which, shares)
	case threshold < 1:
		return fmt.Errorf("%s_threshold is %d, it must be at least 1", which, threshold)
	case threshold > shares:
		return fmt.Errorf("%s_threshold is %d, it must not exceed %s_shares (%d)", which, threshold, which, shares)
	case threshold == 1 && shares > 1:
		return fmt.Errorf("%s_threshold must be at least 2 when there is more than one share", which)
	}
	return nil
}

// Encode returns the entry to store under ConfigKey.
func (c Config) Encode() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

// DecodeConfig reads what Encode wrote.
func DecodeConfig(raw []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, fmt.Errorf("reading the seal configuration: %w: not JSON", ErrMalformed)
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("reading the seal configuration: %w", err)
	}
	return c, nil
}

// Getter is what of a storage.Reader, or a transaction, Load needs.
type Getter interface {
	Get(ctx context.Context, key storage.Key) (storage.Entry, error)
}

// Load reads the configuration and the wrapped root key from the raw store. storage.ErrNotFound means that
// the cluster is not initialised.
func Load(ctx context.Context, raw Getter) (cfg Config, wrappedRoot []byte, err error) {
	e, err := raw.Get(ctx, ConfigKey)
	if err != nil {
		return Config{}, nil, err
	}
	if cfg, err = DecodeConfig(e.Value); err != nil {
		return Config{}, nil, err
	}
	root, err := raw.Get(ctx, RootKey)
	if errors.Is(err, storage.ErrNotFound) {
		return Config{}, nil, errors.New("the seal has a configuration but no wrapped root key")
	}
	return cfg, root.Value, err
}

// Setup is a freshly made seal. Its shares exist nowhere else: hand them out, then Clear.
type Setup struct {
	Config         Config
	Wrapper        Wrapper
	Shares         [][]byte // nil for an automatic seal
	RecoveryShares [][]byte // nil for a Shamir seal
	verifier       []byte   // of the recovery key; nil if there is none
}

// String and GoString do not show the shares.
func (s *Setup) String() string   { return s.Config.Type + " seal" }
func (s *Setup) GoString() string { return s.String() }

// Init makes a new Shamir seal: a random key-encryption key and its shares. With one share, the share is
// the key itself. The error is a text for the operator.
func Init(shares, threshold int) (*Setup, error) {
	key, parts, err := NewShares(shares, threshold)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	return &Setup{
		Config:  ShamirConfig(shares, threshold),
		Wrapper: NewKEKWrapper(key),
		Shares:  parts,
	}, nil
}

// InitAuto describes a new automatic seal and makes a recovery key for it, cut into shares; with 0 shares it has
// none. The error is a text for the operator.
func InitAuto(w Wrapper, shares, threshold int) (*Setup, error) {
	if shares == 0 {
		threshold = 0
	}
	if err := ValidateRecoveryShares(shares, threshold); err != nil {
		return nil, err
	}
	s := &Setup{Config: AutoConfig(w, shares, threshold), Wrapper: w}
	if shares == 0 {
		return s, nil
	}
	key, parts, err := NewShares(shares, threshold)
	if err != nil {
		return nil, err
	}
	defer clear(key)
	s.RecoveryShares, s.verifier = parts, Verifier(key)
	return s, nil
}

// ShamirConfig describes a Shamir seal.
func ShamirConfig(shares, threshold int) Config {
	return Config{Version: configVersion, Type: TypeShamir, Shares: shares, Threshold: threshold, Created: now()}
}

// AutoConfig describes the seal of w with a recovery key of so many shares.
func AutoConfig(w Wrapper, shares, threshold int) Config {
	return Config{
		Version: configVersion, Type: w.Type(), KeyID: KeyID(w), RecoveryShares: shares, RecoveryThreshold: threshold, Created: now(),
	}
}

// Puts wraps the root key and returns the raw entries that make the cluster initialised; commit them after the
// first key ring, which must be open: sealed is its Barrier.SealBytes.
func (s *Setup) Puts(ctx context.Context, rootKey []byte, sealed SealBytes) ([]storage.Put, error) {
	puts, err := Puts(ctx, s.Config, s.Wrapper, rootKey)
	if err != nil || s.verifier == nil {
		return puts, err
	}
	p, err := RecoveryPut(s.verifier, sealed)
	return append(puts, p), err
}

// Puts returns the configuration and the wrapped root key as entries.
func Puts(ctx context.Context, c Config, w Wrapper, rootKey []byte) ([]storage.Put, error) {
	config, err := c.Encode()
	if err != nil {
		return nil, err
	}
	blob, err := WrapRoot(ctx, w, rootKey)
	if err != nil {
		return nil, err
	}
	return []storage.Put{{Key: ConfigKey, Value: config}, {Key: RootKey, Value: blob}}, nil
}

// Clear zeroes the shares.
func (s *Setup) Clear() {
	for _, p := range slices.Concat(s.Shares, s.RecoveryShares) {
		clear(p)
	}
	s.Shares, s.RecoveryShares = nil, nil
}

// WrapRoot returns the root key as it is stored under RootKey.
func WrapRoot(ctx context.Context, w Wrapper, rootKey []byte) ([]byte, error) {
	if len(rootKey) == 0 {
		return nil, errors.New("wrapping the root key: it is empty")
	}
	return w.Wrap(ctx, rootKey, rootPurpose)
}

// UnwrapRoot returns the root key from what WrapRoot returned, or ErrWrongKey, or ErrMalformed.
func UnwrapRoot(ctx context.Context, w Wrapper, blob []byte) ([]byte, error) {
	return w.Unwrap(ctx, blob, rootPurpose)
}

// OpensRoot returns the check an Unsealer needs: does this key-encryption key unwrap this root key?
func OpensRoot(wrappedRoot []byte) func(kek []byte) error {
	return func(kek []byte) error {
		root, err := UnwrapRoot(context.Background(), NewKEKWrapper(kek), wrappedRoot) // which does not block
		clear(root)
		return err
	}
}

// now is to the second, as it is stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }
