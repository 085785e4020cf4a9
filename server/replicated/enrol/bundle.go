package enrol

import (
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
)

// Bundle is what a secondary needs for its first call: the address, the CA that the primary proves itself with, and the
// secret that is traded for a certificate, once. It prints without the secret.
type Bundle struct {
	Secret      string   `json:"secret"`
	CA          []byte   `json:"ca"` // PEM
	SetID       string   `json:"set_id"`
	SecondaryID string   `json:"secondary_id"`
	Addrs       []string `json:"cluster_addrs"` // at least one
	APIAddr     string   `json:"api_addr"`
	Exp         int64    `json:"exp"` // Unix seconds
}

// String implements fmt.Stringer.
func (Bundle) String() string { return "activation bundle" }

// GoString implements fmt.GoStringer.
func (b Bundle) GoString() string { return b.String() }

// LogValue implements slog.LogValuer.
func (b Bundle) LogValue() slog.Value { return slog.StringValue(b.String()) }

// What can be wrong with a bundle, a key or what was made of them.
var (
	ErrBundle    = errors.New("the activation bundle is malformed or incomplete")
	ErrPublicKey = errors.New("the public key is not one that generate-public-key has answered")
	ErrSealed    = errors.New("the activation token is not encrypted to this cluster's public key")
)

// ParseBundle decodes a bundle and looks that nothing is missing. Fields it does not know are of a later version.
func ParseBundle(text []byte) (Bundle, error) {
	var b Bundle
	if len(text) > MaxTokenBytes || json.Unmarshal(text, &b) != nil ||
		b.Secret == "" || b.SetID == "" || b.SecondaryID == "" || len(b.SecondaryID) > MaxIDBytes || len(b.Addrs) == 0 || b.Exp <= 0 {
		return Bundle{}, ErrBundle
	}
	if _, err := ParseCA(b.CA); err != nil {
		return Bundle{}, ErrBundle
	}
	return b, nil
}

// Bundles are encrypted with HPKE (RFC 9180) in base mode: X25519, HKDF-SHA256, AES-256-GCM, and this info. The first
// byte of the result says that.
const (
	sealFormat = 1
	sealInfo   = "coffer replication activation 1"
)

func kem() hpke.KEM { return hpke.DHKEM(ecdh.X25519()) }

// GenerateKey makes a key pair for one bundle. public is in base64, for SealBundle; private is for OpenBundle, and secret.
func GenerateKey() (public string, private []byte, err error) {
	key, err := kem().GenerateKey()
	if err != nil {
		return "", nil, err
	}
	if private, err = key.Bytes(); err != nil {
		return "", nil, err
	}
	return base64.StdEncoding.EncodeToString(key.PublicKey().Bytes()), private, nil
}

// CheckPublicKey returns ErrPublicKey if SealBundle would.
func CheckPublicKey(public string) error {
	_, err := sealTo(public, nil)
	return err
}

// SealBundle encrypts a bundle to a public key and returns it in base64. ErrPublicKey.
func SealBundle(public string, b Bundle) (string, error) {
	text, err := json.Marshal(b)
	if err != nil {
		return "", err
	}
	return sealTo(public, text)
}

func sealTo(public string, text []byte) (string, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(public)
	if err != nil {
		return "", ErrPublicKey
	}
	key, err := kem().NewPublicKey(raw)
	if err != nil {
		return "", ErrPublicKey
	}
	sealed, err := hpke.Seal(key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(sealInfo), text)
	if err != nil {
		return "", ErrPublicKey // of low order: there are no other errors
	}
	return base64.StdEncoding.EncodeToString(append([]byte{sealFormat}, sealed...)), nil
}

// OpenBundle decrypts what SealBundle has made. ErrToken: it is not base64, or of another format; ErrSealed; ErrBundle.
func OpenBundle(private []byte, token string) (Bundle, error) {
	if len(token) > MaxTokenBytes {
		return Bundle{}, ErrToken
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) == 0 || raw[0] != sealFormat {
		return Bundle{}, ErrToken
	}
	key, err := kem().NewPrivateKey(private)
	if err != nil {
		return Bundle{}, errors.New("the private key of this cluster is unusable")
	}
	text, err := hpke.Open(key, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(sealInfo), raw[1:])
	if err != nil {
		return Bundle{}, ErrSealed
	}
	return ParseBundle(text)
}
