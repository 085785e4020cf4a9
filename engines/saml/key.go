package saml

import (
	"context"
	"crypto"
	"crypto/x509"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const signingKeyKey storage.Key = "key"

// signingKey is the stored form of the key that requests are signed with, as JSON.
type signingKey struct {
	Format      int    `json:"format"`      // 1
	PrivateKey  []byte `json:"private_key"` // PKCS #8
	Certificate []byte `json:"certificate"` // DER, self-signed
}

func (k *signingKey) format() *int { return &k.Format }

// getSigningKey returns the key and its certificate. There is one as soon as the configuration has sign_authn_requests.
func getSigningKey(ctx context.Context, s getter) (crypto.Signer, *x509.Certificate, error) {
	panic("todo")
}

func rotateKey(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }
