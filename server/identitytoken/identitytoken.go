// Package identitytoken issues tokens by which mounts and destinations prove to a cloud provider who they are, so that no key of the
// provider has to be stored. A token is a JSON Web Token (RFC 7519, RS256) that lasts for minutes; the provider checks it with the public
// keys that this server publishes, as OpenID Connect Discovery describes, and gives its own temporary credentials for it.
//
// The keys are one entry of shared data, so all clusters of a replication set have the same ones. A new key is published for a day before
// it signs, and an old one until the last token that it has signed has expired. What a token says of its subject is decided by the caller,
// which is the server and no client. Start reading at Issuer.Token, then Run; the paths are in routes.go.
package identitytoken

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Limits of a token's lifetime.
const (
	DefaultTTL = time.Hour
	MinTTL     = time.Minute
	MaxTTL     = 24 * time.Hour
)

const (
	entry storage.Key = "s/sys/set/identity-tokens"

	keyBits = 2048
	// A key is replaced after keyAge. Providers keep the published keys for a while, so a new one signs only after publishTime.
	keyAge      = 30 * 24 * time.Hour
	publishTime = 24 * time.Hour
	// maxSkew is how far clocks may be apart.
	maxSkew          = time.Hour
	rotationInterval = time.Hour // between two looks for keys that are due
	maxAudience      = 1024
	maxSubject       = 1024
)

// Options of an Issuer. All but Logger are required.
type Options struct {
	Store      storage.Store // plaintext
	Namespaces Namespaces
	Cluster    Cluster
	APIAddr    string // of this node: the issuer's URL, unless one is configured
	Logger     *slog.Logger
}

// Namespaces have the paths of namespaces: namespace.Store.
type Namespaces interface{ Path(id string) string }

// Cluster is this cluster in replication. A secondary does not write what is shared.
type Cluster interface{ Secondary() bool }

// Issuer issues tokens. Safe for concurrent use.
type Issuer struct{ opts Options }

// New returns an Issuer. Its keys are made when they are first needed.
func New(o Options) *Issuer {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Issuer{o}
}

// state is what is stored, as JSON.
type state struct {
	Format int `json:"format"` // 1
	// Issuer is the configured URL, without a path. Default is the address of the node that issued first: the issuer must not change with
	// the active node.
	Issuer  string `json:"issuer,omitempty"`
	Default string `json:"default_issuer,omitempty"`
	Keys    []key  `json:"keys,omitempty"` // oldest first
}

type key struct {
	ID        string    `json:"id"`
	Private   []byte    `json:"private_key"` // PKCS #8
	CreatedAt time.Time `json:"created_at"`
}

func (s *state) RecordFormat() *int { return &s.Format }

// signer is the newest key that has been published for long enough, else the oldest.
func (s *state) signer(now time.Time) key {
	for i := len(s.Keys) - 1; i > 0; i-- {
		if now.Sub(s.Keys[i].CreatedAt) >= publishTime {
			return s.Keys[i]
		}
	}
	return s.Keys[0]
}

// rotate adds a key if the newest is too old, and drops those that have signed nothing that is still valid. It reports whether it has
// changed anything.
func (s *state) rotate(now time.Time) (bool, error) {
	changed := false
	for len(s.Keys) > 1 && now.Sub(s.Keys[1].CreatedAt) > publishTime+MaxTTL+maxSkew {
		s.Keys, changed = s.Keys[1:], true
	}
	if n := len(s.Keys); n > 0 && now.Sub(s.Keys[n-1].CreatedAt) < keyAge {
		return changed, nil
	}
	made, err := newKey(now)
	if err != nil {
		return false, err
	}
	s.Keys = append(s.Keys, made)
	return true, nil
}

func newKey(now time.Time) (key, error) {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return key{}, fmt.Errorf("making a key for identity tokens: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	return key{ID: rand.Text(), Private: der, CreatedAt: now.UTC()}, err
}

func (k *key) private() (*rsa.PrivateKey, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(k.Private)
	private, ok := parsed.(*rsa.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("a key for identity tokens cannot be read")
	}
	return private, nil
}

// issuer returns the URL of the issuer of a namespace.
func (i *Issuer) issuer(s *state, namespaceID string) string {
	base := s.Issuer
	if base == "" {
		base = s.Default
	}
	if base == "" {
		base = strings.TrimRight(i.opts.APIAddr, "/")
	}
	return base + "/v1/" + i.opts.Namespaces.Path(namespaceID) + "identity/oidc/plugins"
}

// Token issues a token for an audience. The subject stands behind "plugin-identity:<namespace id>:". The lifetime is DefaultTTL if ttl is 0.
// An error of KindInvalid is about the arguments.
func (i *Issuer) Token(ctx context.Context, namespaceID, subject, audience string, ttl time.Duration) (engines.Sensitive, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	switch {
	case audience == "" || len(audience) > maxAudience || len(subject) > maxSubject:
		return "", engines.Invalid("identity_token_audience: must have 1 to %d characters", maxAudience)
	case ttl < MinTTL || ttl > MaxTTL:
		return "", engines.Invalid("identity_token_ttl: must be between %s and %s", engines.Duration(MinTTL), engines.Duration(MaxTTL))
	}
	now := time.Now()
	s, err := i.ready(ctx, now)
	if err != nil {
		return "", err
	}
	by := s.signer(now)
	private, err := by.private()
	if err != nil {
		return "", err
	}
	// An audience is a list, as in the tokens of Kubernetes, which the providers know.
	t := jwt.NewWithClaims(jwt.SigningMethodRS256, jwt.MapClaims{
		"iss": i.issuer(s, namespaceID), "sub": "plugin-identity:" + namespaceID + ":" + subject, "aud": []string{audience},
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(ttl).Unix(),
	})
	t.Header["kid"] = by.ID
	text, err := t.SignedString(private)
	return engines.Sensitive(text), err
}

// ready returns the stored state, with a key and the issuer.
func (i *Issuer) ready(ctx context.Context, now time.Time) (*state, error) {
	s := new(state)
	if _, err := engines.GetRecord(ctx, i.opts.Store, entry, s); err != nil || len(s.Keys) > 0 {
		return s, err
	}
	if i.opts.Cluster.Secondary() {
		return nil, &engines.Error{Kind: engines.KindUnavailable, Detail: "there is no key for identity tokens yet: configure identity_token_audience anywhere on the primary, which makes it, and try again"}
	}
	first, err := newKey(now)
	if err != nil {
		return nil, err
	}
	_, err = storage.Update(ctx, i.opts.Store, func(tx *storage.Txn) error {
		*s = state{}
		if _, err := engines.GetRecord(ctx, tx, entry, s); err != nil || len(s.Keys) > 0 {
			return err
		}
		s.Keys, s.Default = []key{first}, strings.TrimRight(i.opts.APIAddr, "/")
		return engines.PutRecord(tx, entry, s)
	})
	return s, err
}

// Run rotates the keys until ctx ends. The active node calls it.
func (i *Issuer) Run(ctx context.Context) {
	tick := time.NewTicker(rotationInterval)
	defer tick.Stop()
	for {
		if err := i.rotate(ctx, time.Now()); err != nil && ctx.Err() == nil {
			i.opts.Logger.Warn("rotating the keys of identity tokens", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// rotate does what is due, if there are keys.
func (i *Issuer) rotate(ctx context.Context, now time.Time) error {
	if i.opts.Cluster.Secondary() {
		return nil
	}
	_, err := storage.Update(ctx, i.opts.Store, func(tx *storage.Txn) error {
		s := new(state)
		found, err := engines.GetRecord(ctx, tx, entry, s)
		if err != nil || !found || len(s.Keys) == 0 {
			return err
		}
		changed, err := s.rotate(now)
		if err != nil || !changed {
			return err
		}
		return engines.PutRecord(tx, entry, s)
	})
	return err
}
