package idp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
)

const minRSABits = 2048

// ParseCertificates returns the certificates of a PEM text, in its order, each once: at least one, at most
// MaxCertificates. Text before a certificate is skipped, as tools like to write about it there. The error completes a
// sentence that begins with the name of the field, and says what to change.
func ParseCertificates(text string) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	rest := []byte(text)
	for {
		block, after := pem.Decode(rest)
		if block == nil {
			break
		}
		rest = after
		if block.Type != "CERTIFICATE" {
			return nil, wrongBlock(block.Type)
		}
		c, err := parseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d %w", len(all)+1, err)
		}
		if !slices.ContainsFunc(all, c.Equal) {
			all = append(all, c)
		}
	}
	switch {
	case len(all) > MaxCertificates:
		return nil, fmt.Errorf("has %d certificates, the limit is %d", len(all), MaxCertificates)
	case len(all) == 0 || strings.Contains(string(rest), "-----BEGIN"):
		return nil, notPEM(string(rest))
	}
	return all, nil
}

func wrongBlock(kind string) error {
	switch {
	case strings.HasSuffix(kind, "PRIVATE KEY"):
		return errors.New("contains a private key: give the certificate only, and replace that key, as others may have seen it now")
	case strings.HasSuffix(kind, "PUBLIC KEY"):
		return errors.New("contains a bare public key: give the certificate that holds it")
	case strings.HasSuffix(kind, "REQUEST"):
		return errors.New("contains a certificate request: give the certificate that was issued for it")
	}
	return fmt.Errorf("contains a PEM block of the type %q: only CERTIFICATE has a place here", cut(kind))
}

// notPEM says why nothing could be read of a text.
func notPEM(text string) error {
	switch bare := strings.Join(strings.Fields(text), ""); {
	case strings.Contains(text, `\n`):
		return errors.New(`contains a backslash and an "n" where line breaks should be`)
	case strings.Contains(text, "-----BEGIN"):
		return errors.New("contains a damaged PEM block: keep the line breaks, with the lines -----BEGIN CERTIFICATE----- and -----END CERTIFICATE----- on their own")
	case strings.HasPrefix(bare, "<"):
		return errors.New("is XML: give the certificate in PEM, or the metadata's address as idp_metadata_url")
	case strings.HasPrefix(bare, "http://") || strings.HasPrefix(bare, "https://"):
		return errors.New("is a URL: give the certificate itself, in PEM")
	default:
		if der, err := base64.StdEncoding.DecodeString(bare); err == nil && len(der) > 0 {
			return errors.New("is base64 without its frame: put the line -----BEGIN CERTIFICATE----- before it and the line -----END CERTIFICATE----- behind it")
		}
	}
	return errors.New("must be a certificate in PEM, from -----BEGIN CERTIFICATE----- to -----END CERTIFICATE-----")
}

// parseCertificate returns a certificate whose key is good for verifying signatures.
func parseCertificate(der []byte) (*x509.Certificate, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, errors.New("is damaged, or not a certificate")
	}
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSABits {
			return nil, fmt.Errorf("has an RSA key of %d bits: it takes %d at least", bits, minRSABits)
		}
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return nil, errors.New("has a key on the curve P-224: it takes P-256 at least")
		}
	default:
		return nil, fmt.Errorf("has a key of the type %s: only RSA and ECDSA are of use", c.PublicKeyAlgorithm)
	}
	return c, nil
}
