package provider

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

// currentKey returns the key of signed requests, which must fit its certificate.
func currentKey(t *testing.T, m *enginetest.Mount) *x509.Certificate {
	t.Helper()
	signer, certificate, err := SigningKey(t.Context(), m.Mount.Storage)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte("request"))
	signature, err := signer.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	if err := certificate.CheckSignature(x509.SHA256WithRSA, []byte("request"), signature); err != nil {
		t.Errorf("the certificate is not the key's: %v", err)
	}
	return certificate
}

func TestSigningKeyIsMadeWhenItIsNeeded(t *testing.T) {
	m := configMount(t)
	m.Must(engines.Update, "config", byMetadata)
	if _, _, err := SigningKey(t.Context(), m.Mount.Storage); err == nil {
		t.Error("there is a key before requests are signed")
	}
	if resp := m.Must(engines.Update, "config", settings{"sign_authn_requests": true}); resp != nil {
		t.Errorf("%+v, want 204", resp)
	}
	first := currentKey(t, m)
	public, ok := first.PublicKey.(*rsa.PublicKey)
	if !ok || public.N.BitLen() < 2048 || first.SignatureAlgorithm != x509.SHA256WithRSA {
		t.Errorf("the key is %T, its certificate signed by %v", first.PublicKey, first.SignatureAlgorithm)
	}
	if first.Subject.CommonName != testEntity || first.IsCA {
		t.Errorf("the certificate is of %v", first.Subject)
	}
	if now := time.Now(); !first.NotBefore.Before(now) || first.NotAfter.Before(now.AddDate(9, 11, 0)) {
		t.Errorf("the certificate is valid from %v to %v", first.NotBefore, first.NotAfter)
	}
	// Nothing but a rotation changes it.
	m.Must(engines.Update, "config", settings{"sign_authn_requests": false})
	m.Must(engines.Update, "config", settings{"sign_authn_requests": true, "entity_id": "urn:other"})
	if !currentKey(t, m).Equal(first) {
		t.Error("a write of the configuration made another key")
	}
	for field := range readConfigData(t, m) {
		if strings.Contains(field, "key") {
			t.Errorf("the configuration shows %s", field)
		}
	}
}

func TestRotateSigningKey(t *testing.T) {
	m := configMount(t)
	m.Must(engines.Update, "config", byMetadata)
	if text := m.Fails(engines.KindInvalid, engines.Update, "config/rotate-signing-key", nil); !strings.Contains(text, "sign_authn_requests") {
		t.Errorf("%q does not say what to turn on", text)
	}
	long := "https://" + strings.Repeat("ä", 400)
	m.Must(engines.Update, "config", settings{"sign_authn_requests": true, "entity_id": long})
	first := currentKey(t, m)
	resp := m.Must(engines.Update, "config/rotate-signing-key", nil)
	block, rest := pem.Decode([]byte(m.Data(resp)["certificate"].(string)))
	if block == nil || block.Type != "CERTIFICATE" || len(rest) != 0 || len(m.Data(resp)) != 1 {
		t.Fatalf("the answer is %v", resp.Data)
	}
	second := currentKey(t, m)
	if !bytes.Equal(block.Bytes, second.Raw) || second.Equal(first) || second.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Error("the answer is not the certificate of a new key")
	}
	if name := second.Subject.CommonName; len([]rune(name)) != 64 || !strings.HasPrefix(long, name) {
		t.Errorf("common name %q", name)
	}
	wantWarnings(t, resp, "give this certificate")
	if body := metadataBody(t, m); !strings.Contains(body, base64Of(second.Raw)) || strings.Contains(body, base64Of(first.Raw)) {
		t.Error("the metadata does not have the new certificate only")
	}
}

// TestSigningKeyMadeTwice: of two that turn signing on at once, one makes the key.
func TestSigningKeyMadeTwice(t *testing.T) {
	m := configMount(t)
	m.Must(engines.Update, "config", byMetadata)
	peer := m.Peer()
	peer.Mount.Storage = &meddled{Store: m.Mount.Storage, meddle: func() {
		m.Must(engines.Update, "config", settings{"sign_authn_requests": true})
	}}
	peer.Must(engines.Update, "config", settings{"sign_authn_requests": true, "default_role": ""})
	first := currentKey(t, m)
	peer.Mount.Storage = m.Mount.Storage
	peer.Must(engines.Update, "config", settings{"entity_id": "urn:other"})
	if !currentKey(t, m).Equal(first) {
		t.Error("the key changed")
	}
}

// meddled is a store where something happens between the first transaction's reads and its commit.
type meddled struct {
	storage.Store
	meddle func()
}

func (s *meddled) Commit(ctx context.Context, b storage.Batch) (storage.Index, error) {
	if s.meddle != nil {
		s.meddle()
		s.meddle = nil
		return s.Store.Commit(ctx, b)
	}
	for _, p := range b.Puts {
		if p.Key == signingKeyKey {
			return 0, errors.New("the key was made again")
		}
	}
	return s.Store.Commit(ctx, b)
}

func TestDamagedSigningKeys(t *testing.T) {
	m := configMount(t)
	good, err := newSigningKey("urn:a", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []signingKey{
		{PrivateKey: []byte("x"), Certificate: good.Certificate},
		{PrivateKey: good.PrivateKey, Certificate: []byte("x")},
	} {
		_, err := storage.Update(t.Context(), m.Mount.Storage, func(txn *storage.Txn) error { return engines.PutRecord(txn, signingKeyKey, &k) })
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := SigningKey(t.Context(), m.Mount.Storage); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("a damaged key: %v", err)
		}
	}
}
