package enrol

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"strings"
	"time"
)

// Claims is the content of an activation token: a JSON Web Token that tells a secondary where its bundle is, and holds
// the wrapping token that it takes the bundle out with. It prints without that.
type Claims struct {
	Exp          int64    `json:"exp"` // Unix seconds
	Iat          int64    `json:"iat"`
	JTI          string   `json:"jti"`  // the wrapping token, sealed by CA.SealID; secret
	Type         string   `json:"type"` // ClaimsType
	Addr         string   `json:"addr"` // of the primary's API; "": the operator of the secondary must know it
	ID           string   `json:"id"`   // opaque, of the secondary
	SetID        string   `json:"set_id"`
	ClusterAddrs []string `json:"cluster_addrs"`
	CA           string   `json:"ca"` // Fingerprint of the CA that signed
}

// ClaimsType is the type of an activation token that stands for a wrapped bundle.
const ClaimsType = "wrapping"

// MaxTokenBytes is the longest activation token.
const MaxTokenBytes = 64 << 10

// String implements fmt.Stringer.
func (Claims) String() string { return "activation token" }

// GoString implements fmt.GoStringer.
func (c Claims) GoString() string { return c.String() }

// LogValue implements slog.LogValuer.
func (c Claims) LogValue() slog.Value { return slog.StringValue(c.String()) }

// What a token can be refused for.
var (
	ErrToken     = errors.New("the activation token is malformed")
	ErrSignature = errors.New("the activation token is not signed by this replication CA")
	ErrExpired   = errors.New("the activation token has expired")
)

// header is the only one that tokens have: another algorithm is not spoken, and extensions are not understood.
type header struct {
	Alg string `json:"alg"`
	Typ string `json:"typ"`
}

const (
	algorithm = "ES256"
	keyBytes  = 32 // of each half of a signature with P-256
)

// Sign returns the token of claims, whose Type and CA it sets.
func (c CA) Sign(claims Claims) (string, error) {
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return "", errors.New("the replication CA is unusable")
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return "", errors.New("the replication CA is unusable")
	}
	claims.Type, claims.CA = ClaimsType, Fingerprint(pair.Leaf)
	head, err := json.Marshal(header{Alg: algorithm, Typ: "JWT"})
	if err != nil {
		return "", err
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	signed := base64.RawURLEncoding.EncodeToString(head) + "." + base64.RawURLEncoding.EncodeToString(payload)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return "", err
	}
	signature := make([]byte, 2*keyBytes)
	r.FillBytes(signature[:keyBytes])
	s.FillBytes(signature[keyBytes:])
	token := signed + "." + base64.RawURLEncoding.EncodeToString(signature)
	if len(token) > MaxTokenBytes {
		return "", errors.New("the activation token is too long")
	}
	return token, nil
}

// sealedID begins a wrapping token that only the primary can read. Without it, it is the wrapping token itself: of a
// primary of an earlier version.
const sealedID = "s1:"

// IsSealedID reports whether a JTI is sealed: then the primary wants the whole activation token.
func IsSealedID(jti string) bool { return strings.HasPrefix(jti, sealedID) }

// IsToken reports whether a text has the form of an activation token, which no token of the API has.
func IsToken(text string) bool {
	return strings.HasPrefix(text, "eyJ") && strings.Count(text, ".") == 2
}

// SealID encrypts a wrapping token for Claims.JTI: who has only a part of an activation token, or a changed copy of one,
// cannot use it up.
func (c CA) SealID(id string) (string, error) {
	aead, err := c.aead()
	if err != nil {
		return "", err
	}
	return sealedID + base64.RawURLEncoding.EncodeToString(aead.Seal(nil, nil, []byte(id), nil)), nil
}

// OpenID decrypts what SealID has made. ErrToken.
func (c CA) OpenID(jti string) (string, error) {
	aead, err := c.aead()
	if err != nil {
		return "", err
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(jti, sealedID))
	if err != nil || !IsSealedID(jti) {
		return "", ErrToken
	}
	id, err := aead.Open(nil, nil, sealed, nil)
	if err != nil {
		return "", ErrToken
	}
	return string(id), nil
}

// aead has a key that follows from the CA's.
func (c CA) aead() (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, c.Key, nil, "coffer replication activation token 1", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// parsed is a token taken apart.
type parsed struct {
	claims    Claims
	signed    string
	signature []byte
}

func parse(token string) (parsed, error) {
	parts := strings.Split(token, ".")
	if len(token) > MaxTokenBytes || len(parts) != 3 {
		return parsed{}, ErrToken
	}
	decoded := make([][]byte, 3)
	for i, part := range parts {
		var err error
		if decoded[i], err = base64.RawURLEncoding.Strict().DecodeString(part); err != nil || strings.ContainsAny(part, "\r\n") {
			return parsed{}, ErrToken
		}
	}
	var h header
	p := parsed{signed: parts[0] + "." + parts[1], signature: decoded[2]}
	if strict(decoded[0], &h) != nil || h != (header{Alg: algorithm, Typ: "JWT"}) || json.Unmarshal(decoded[1], &p.claims) != nil {
		return parsed{}, ErrToken
	}
	c := &p.claims
	if c.Type != ClaimsType || c.JTI == "" || c.ID == "" || c.SetID == "" || c.Exp <= 0 || len(p.signature) != 2*keyBytes {
		return parsed{}, ErrToken
	}
	return p, nil
}

// strict decodes one JSON object without fields that v does not have, and with nothing behind it.
func strict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return ErrToken
	}
	return nil
}

// Parse returns what a token claims. Nothing of it is verified, not even that it has not expired. ErrToken.
func Parse(token string) (Claims, error) {
	p, err := parse(token)
	return p.claims, err
}

// Verify returns what a token claims if the CA has signed it and it has not expired. ErrToken, ErrSignature, ErrExpired.
func Verify(ca *x509.Certificate, token string, now time.Time) (Claims, error) {
	p, err := parse(token)
	if err != nil {
		return Claims{}, err
	}
	key, ok := ca.PublicKey.(*ecdsa.PublicKey)
	digest := sha256.Sum256([]byte(p.signed))
	r, s := new(big.Int).SetBytes(p.signature[:keyBytes]), new(big.Int).SetBytes(p.signature[keyBytes:])
	if !ok || p.claims.CA != Fingerprint(ca) || !ecdsa.Verify(key, digest[:], r, s) {
		return Claims{}, ErrSignature
	}
	if !now.Before(time.Unix(p.claims.Exp, 0)) {
		return Claims{}, ErrExpired
	}
	return p.claims, nil
}
