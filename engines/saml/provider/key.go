package provider

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const (
	signingKeyKey storage.Key = "key"

	// RSA of 2048 bits, with SHA-256, is what every identity provider takes. EC keys are not, and a longer key makes
	// every login's URL longer for nothing: a signed request proves little, as any client may start a login.
	signingKeyBits = 2048
	// The certificate only carries the key to the identity provider: its end would break logins for no gain.
	signingKeyYears = 10
)

// signingKey is the stored form of the key that requests are signed with, as JSON.
type signingKey struct {
	Format      int    `json:"format"`      // 1
	PrivateKey  []byte `json:"private_key"` // PKCS #8
	Certificate []byte `json:"certificate"` // DER, self-signed
}

func (k *signingKey) RecordFormat() *int { return &k.Format }

// SigningKey returns the key and its certificate. There is one as soon as the configuration has sign_authn_requests.
func SigningKey(ctx context.Context, s engines.Getter) (crypto.Signer, *x509.Certificate, error) {
	k := new(signingKey)
	found, err := engines.GetRecord(ctx, s, signingKeyKey, k)
	if err == nil && !found {
		err = errors.New("the key of signed requests is missing")
	}
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.ParsePKCS8PrivateKey(k.PrivateKey)
	signer, ok := private.(crypto.Signer)
	if err != nil || !ok {
		return nil, nil, errors.New("the key of signed requests is damaged") // without err: nothing of a key in logs
	}
	certificate, err := x509.ParseCertificate(k.Certificate)
	if err != nil {
		return nil, nil, errors.New("the certificate of signed requests is damaged")
	}
	return signer, certificate, nil
}

// ensureSigningKey puts a key into the transaction if there is none. What it makes stays in made for the next attempt.
func ensureSigningKey(ctx context.Context, t *storage.Txn, made **signingKey, entityID string) error {
	if found, err := engines.GetRecord(ctx, t, signingKeyKey, new(signingKey)); found || err != nil {
		return err
	}
	if *made == nil {
		k, err := newSigningKey(entityID, time.Now())
		if err != nil {
			return err
		}
		*made = k
	}
	return engines.PutRecord(t, signingKeyKey, *made)
}

func newSigningKey(entityID string, now time.Time) (*signingKey, error) {
	private, err := rsa.GenerateKey(rand.Reader, signingKeyBits)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), // 0 is not a serial number
		Subject:      pkix.Name{CommonName: commonName(entityID)},
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.AddDate(signingKeyYears, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	k := new(signingKey)
	if k.Certificate, err = x509.CreateCertificate(rand.Reader, template, template, private.Public(), private); err != nil {
		return nil, err
	}
	k.PrivateKey, err = x509.MarshalPKCS8PrivateKey(private)
	return k, err
}

// commonName shortens an entity id to what X.509 allows, 64 characters.
func commonName(entityID string) string {
	if runes := []rune(entityID); len(runes) > 64 {
		return strings.TrimSpace(string(runes[:64]))
	}
	return entityID
}

// rotateKey replaces the key. There is no overlap: a request is signed with one key only.
func rotateKey(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	var k *signingKey
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		c, err := GetConfig(ctx, t)
		if err != nil {
			return err
		}
		if !c.SignAuthnRequests {
			return engines.Invalid("requests are not signed: turn on sign_authn_requests in the config first")
		}
		if k == nil {
			if k, err = newSigningKey(c.EntityID, time.Now()); err != nil {
				return err
			}
		}
		return engines.PutRecord(t, signingKeyKey, k)
	})
	if err != nil {
		return nil, err
	}
	return &engines.Response{
		Data:     map[string]any{"certificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.Certificate}))},
		Warnings: []string{"requests are signed with the new key from now on: give this certificate, or the metadata of this mount, to the identity provider"},
	}, nil
}
