package dev

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime of both certificates.
const lifetime = 365 * 24 * time.Hour

// files are the paths of PEM files.
type files struct{ CA, Cert, Key string }

// prepare returns the files in dir, which it makes if there are none: ca.pem, cert.pem and key.pem. Files that are there are used again,
// so that clients which trust the CA still do. hosts are names and IP addresses. Errors: files that are there but not valid for a
// host, and those of the file system.
func prepare(dir string, hosts []string) (files, error) {
	f := files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	_, err := os.Stat(f.CA)
	switch {
	case err == nil:
		if err := f.check(hosts); err != nil {
			return files{}, fmt.Errorf("the certificate in %s cannot be used: %w; remove ca.pem, cert.pem and key.pem there, or choose another directory", dir, err)
		}
		return f, nil
	case !errors.Is(err, fs.ErrNotExist):
		return files{}, err
	}
	return f, f.write(hosts)
}

// check reports why the certificate would not do for a host now.
func (f files) check(hosts []string) error {
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(f.Cert)
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return errors.New("cert.pem is not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return errors.New("ca.pem holds no certificate")
	}
	for _, host := range hosts {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			return err
		}
	}
	return nil
}

// write makes the files; none of them is replaced.
func (f files) write(hosts []string) error {
	now := time.Now()
	caKey, ca, err := newCertificate(&x509.Certificate{
		Subject: pkix.Name{CommonName: "Coffer development CA"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Coffer development server"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(lifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, cert, err := newCertificate(template, ca, caKey)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.CA), 0o700); err != nil {
		return err
	}
	for _, file := range []struct {
		path, block string
		der         []byte
	}{{f.Key, "PRIVATE KEY", pkcs8}, {f.Cert, "CERTIFICATE", cert.Raw}, {f.CA, "CERTIFICATE", ca.Raw}} { // the CA last: with it all are there
		if err := create(file.path, pem.EncodeToMemory(&pem.Block{Type: file.block, Bytes: file.der})); err != nil {
			return err
		}
	}
	return nil
}

// newCertificate makes a key and its certificate, signed by parent, or by itself if that is nil.
func newCertificate(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, err
	}
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return key, cert, err
}

// create writes a file that must not be there yet, for its owner only.
func create(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}
