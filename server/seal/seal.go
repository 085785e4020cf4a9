// Package seal keeps the root key shut: it wraps it under a key-encryption key that either people hold, cut
// into Shamir shares, or the operator's configuration provides (static auto-unseal).
//
// Two raw entries, readable while the server is sealed, hold the state: ConfigKey says which seal and how
// many shares, RootKey holds the wrapped root key. Nothing here ever stores, logs or formats a key or a
// share. Start reading at Wrapper, then Init and Unsealer; challenge.go is how a new node proves that it
// can unseal before it may join.
package seal

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
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
	TypeShamir = "shamir"
	TypeStatic = "static"
)

// KeyBytes is the size of a key-encryption key.
const KeyBytes = 32

// configVersion is the newest format of the entry under ConfigKey that this build reads and writes.
const configVersion = 1

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
	// ErrChallenge means that a join challenge was not answered: unknown, expired, used or wrong.
	ErrChallenge = errors.New("join challenge unknown, expired, already used or answered wrongly")
)

// Config describes the seal of one cluster. It holds no secret.
type Config struct {
	Version   int       `json:"version"` // written as 1
	Type      string    `json:"type"`    // TypeShamir or TypeStatic
	Shares    int       `json:"secret_shares"`
	Threshold int       `json:"secret_threshold"`
	KeyID     string    `json:"key_id,omitempty"` // static: which key the cluster was initialised with
	Created   time.Time `json:"created"`
}

// Validate reports what is wrong with the configuration, or nil. A static seal has 0 shares.
func (c Config) Validate() error {
	switch {
	case c.Version < 1 || c.Version > configVersion:
		return fmt.Errorf("seal configuration has version %d, this build reads up to %d", c.Version, configVersion)
	case c.Type == TypeShamir:
		return ValidateShares(c.Shares, c.Threshold)
	case c.Type != TypeStatic:
		return fmt.Errorf("unknown seal type %q: supported are %q and %q", c.Type, TypeShamir, TypeStatic)
	case c.Shares != 0 || c.Threshold != 0:
		return errors.New("a static seal has no key shares")
	}
	return nil
}

// ValidateShares reports what is wrong with a number of shares and a threshold, as a text for the operator.
func ValidateShares(shares, threshold int) error {
	switch {
	case shares < 1 || shares > 255:
		return fmt.Errorf("secret_shares is %d, it must be between 1 and 255", shares)
	case threshold < 1:
		return fmt.Errorf("secret_threshold is %d, it must be at least 1", threshold)
	case threshold > shares:
		return fmt.Errorf("secret_threshold is %d, it must not exceed secret_shares (%d)", threshold, shares)
	case threshold == 1 && shares > 1:
		return errors.New("secret_threshold must be at least 2 when there is more than one share")
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

// Load reads the configuration and the wrapped root key from the raw store. storage.ErrNotFound means that
// the cluster is not initialised.
func Load(ctx context.Context, raw storage.Reader) (cfg Config, wrappedRoot []byte, err error) {
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
	Config  Config
	Wrapper Wrapper
	Shares  [][]byte // nil for a static seal
}

// String and GoString do not show the shares.
func (s *Setup) String() string   { return s.Config.Type + " seal" }
func (s *Setup) GoString() string { return s.String() }

// Init makes a new Shamir seal: a random key-encryption key and its shares. With one share, the share is
// the key itself. The error is a text for the operator.
func Init(shares, threshold int) (*Setup, error) {
	if err := ValidateShares(shares, threshold); err != nil {
		return nil, err
	}
	kek := make([]byte, KeyBytes)
	rand.Read(kek)
	defer clear(kek)
	parts, err := Split(kek, shares, threshold)
	if err != nil {
		return nil, err
	}
	return &Setup{
		Config:  Config{Version: configVersion, Type: TypeShamir, Shares: shares, Threshold: threshold, Created: now()},
		Wrapper: NewKEKWrapper(kek),
		Shares:  parts,
	}, nil
}

// InitStatic describes a new static seal. It has no shares and, for now, no recovery keys either: whoever
// initialises such a cluster gets empty lists of both, and the configured key is all there is to lose.
func InitStatic(w Wrapper) *Setup {
	cfg := Config{Version: configVersion, Type: TypeStatic, Created: now()}
	if k, ok := w.(interface{ KeyID() string }); ok {
		cfg.KeyID = k.KeyID()
	}
	return &Setup{Config: cfg, Wrapper: w}
}

// Puts wraps the root key and returns the two raw entries that make the cluster initialised; commit them
// together with the first key ring.
func (s *Setup) Puts(rootKey []byte) ([]storage.Put, error) {
	cfg, err := s.Config.Encode()
	if err != nil {
		return nil, err
	}
	blob, err := WrapRoot(s.Wrapper, rootKey)
	if err != nil {
		return nil, err
	}
	return []storage.Put{{Key: ConfigKey, Value: cfg}, {Key: RootKey, Value: blob}}, nil
}

// Clear zeroes the shares.
func (s *Setup) Clear() {
	for _, p := range s.Shares {
		clear(p)
	}
	s.Shares = nil
}

// WrapRoot returns the root key as it is stored under RootKey.
func WrapRoot(w Wrapper, rootKey []byte) ([]byte, error) {
	if len(rootKey) == 0 {
		return nil, errors.New("wrapping the root key: it is empty")
	}
	return w.Wrap(rootKey, rootPurpose)
}

// UnwrapRoot returns the root key from what WrapRoot returned, or ErrWrongKey, or ErrMalformed.
func UnwrapRoot(w Wrapper, blob []byte) ([]byte, error) { return w.Unwrap(blob, rootPurpose) }

// OpensRoot returns the check an Unsealer needs: does this key-encryption key unwrap this root key?
func OpensRoot(wrappedRoot []byte) func(kek []byte) error {
	return func(kek []byte) error {
		root, err := UnwrapRoot(NewKEKWrapper(kek), wrappedRoot)
		clear(root)
		return err
	}
}

// now is to the second, as it is stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Second) }
