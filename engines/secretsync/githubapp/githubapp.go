// Package githubapp has the GitHub Apps that destinations sign in as, and the addresses of GitHub installations. The key of an app is
// stored once, in a record of its own: destinations of the same namespace name the app, and connection.Pool opens them with its
// key. Start reading at App, then NormalizeURL.
package githubapp

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// App is a stored GitHub App.
type App struct {
	Format     int       `json:"format"`
	NS         string    `json:"ns"`
	Name       string    `json:"name"`
	ID         int64     `json:"app_id"`
	URL        string    `json:"enterprise_url,omitempty"` // as NormalizeURL returns it
	PrivateKey string    `json:"private_key"`              // PEM, plain text
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
}

// RecordFormat implements engines.Record.
func (a *App) RecordFormat() *int { return &a.Format }

// Key is where an app is stored.
func (a *App) Key() storage.Key { return Key(a.NS, a.Name) }

// Key is where the app of a namespace is stored.
func Key(ns, name string) storage.Key { return state.Area(ns, "g/"+name) }

// Credentials returns what a destination signs in with.
func (a *App) Credentials() (*destination.App, error) {
	key, err := ParseKey(a.PrivateKey)
	if err != nil {
		return nil, err
	}
	return &destination.App{ID: a.ID, URL: a.URL, Key: key}, nil
}

// minKeyBits is the size of the smallest RSA key that is accepted; GitHub creates keys of 2,048 bits.
const minKeyBits = 2048

// ParseKey returns the RSA key of a PEM text, in PKCS #1 as GitHub creates it, or in PKCS #8. The error holds no part of the text.
func ParseKey(text string) (*rsa.PrivateKey, error) {
	key, err := jwt.ParseRSAPrivateKeyFromPEM([]byte(text))
	if err != nil {
		return nil, errors.New("is not an RSA private key in PEM: give the content of the file that GitHub has created for the app")
	}
	if key.N.BitLen() < minKeyBits {
		return nil, errors.New("is an RSA key of less than 2048 bits: create another one in the settings of the app")
	}
	return key, nil
}

// Fingerprint returns the fingerprint of the public key as GitHub's settings of the app show it: "SHA256:" and Base64.
func Fingerprint(key *rsa.PrivateKey) string {
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return "" // not of an RSA key
	}
	sum := sha256.Sum256(der)
	return "SHA256:" + base64.StdEncoding.EncodeToString(sum[:])
}

// Hold makes a transaction that stores a destination fail if the app that it names is changed or deleted before the transaction is
// committed: both look for destinations that name the app, and a scan does not notice one that is stored meanwhile.
func Hold(ctx context.Context, tx *storage.Txn, ns, name string) error {
	var a App
	if found, err := engines.GetRecord(ctx, tx, Key(ns, name), &a); !found || err != nil {
		return err // opening the destination fails
	}
	return engines.PutRecord(tx, a.Key(), &a)
}
