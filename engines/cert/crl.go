package cert

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const crlPrefix storage.Key = "crl/"

// maxListBytes bounds a revocation list: some 19,000 certificates.
const maxListBytes = 700 << 10

// list is a revocation list as it is stored, as JSON.
type list struct {
	Format int    `json:"format"` // 1
	DER    []byte `json:"der"`
}

// RecordFormat implements engines.Record.
func (l *list) RecordFormat() *int { return &l.Format }

type crlIn struct {
	nameIn
	CRL string `json:"crl" max:"1400000" help:"The list: PEM, or DER in base64. In PEM, certificates may follow that lead from its issuer to a CA of a role."`
	URL string `json:"url" max:"2048" help:"Lists are not fetched: must be empty."`
}

func listCRLs(ctx context.Context, req *engines.Request, in *listIn) (*engines.Response, error) {
	return engines.Listed(req.Mount.Storage.List(ctx, crlPrefix, in.After, in.Limit))
}

// getCRL returns a list by name as a client wrote it, nil if there is none.
func getCRL(ctx context.Context, s engines.Getter, name string) (*x509.RevocationList, error) {
	name, err := normalName(name)
	if err != nil {
		return nil, err
	}
	l := new(list)
	found, err := engines.GetRecord(ctx, s, crlPrefix+storage.Key(name), l)
	if !found || err != nil {
		return nil, err
	}
	return x509.ParseRevocationList(l.DER)
}

func crlExists(ctx context.Context, req *engines.Request) (bool, error) {
	l, err := getCRL(ctx, req.Mount.Storage, req.Param("name"))
	return l != nil, err
}

func readCRL(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	l, err := getCRL(ctx, req.Mount.Storage, in.Name)
	if err == nil && l == nil {
		err = engines.NotFound("")
	}
	if err != nil {
		return nil, err
	}
	serials := map[string]any{}
	for _, e := range l.RevokedCertificateEntries {
		serials[e.SerialNumber.String()] = struct{}{}
	}
	data := map[string]any{"serials": serials, "issuer": l.Issuer.String(), "this_update": l.ThisUpdate.UTC().Format(time.RFC3339), "cdp": nil}
	if !l.NextUpdate.IsZero() {
		data["next_update"] = l.NextUpdate.UTC().Format(time.RFC3339)
	}
	return &engines.Response{Data: data}, nil
}

func deleteCRL(ctx context.Context, req *engines.Request, in *nameIn) (*engines.Response, error) {
	return remove(ctx, req, crlPrefix, in.Name)
}

func (e *engine) writeCRL(ctx context.Context, req *engines.Request, in *crlIn) (*engines.Response, error) {
	name, err := normalName(in.Name)
	if err != nil {
		return nil, err
	}
	if in.URL != "" {
		return nil, engines.Invalid("field \"url\": lists are not fetched: send the list itself in crl, and again when there is a newer one")
	}
	l, bundled, err := parseList(in.CRL)
	if err == nil {
		err = complete(l)
	}
	if err != nil {
		return nil, engines.Invalid("field \"crl\": %v", err)
	}
	v, err := e.current(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	if !v.vouches(l, bundled) {
		return nil, engines.Invalid("field \"crl\": no CA that a role of this mount trusts has signed the list: write the role first, " +
			"and if a CA below it has signed the list, add that one's certificate to the PEM")
	}
	_, err = storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		return engines.PutRecord(t, crlPrefix+storage.Key(name), &list{DER: l.Raw})
	})
	if err != nil {
		return nil, err
	}
	if !l.NextUpdate.IsZero() && l.NextUpdate.Before(time.Now()) {
		return &engines.Response{Warnings: []string{"the list has expired: it counts all the same, until it is replaced or deleted"}}, nil
	}
	return nil, nil
}

// parseList reads a list, and the certificates that come with it.
func parseList(text string) (l *x509.RevocationList, bundled []*x509.Certificate, err error) {
	rest := bytes.TrimSpace([]byte(text))
	if len(rest) == 0 {
		return nil, nil, errors.New("is required: the list in PEM, or its DER in base64")
	}
	if !bytes.HasPrefix(rest, []byte("-----BEGIN")) {
		der, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
		if err != nil {
			return nil, nil, errors.New("must be a revocation list in PEM, or its DER in base64")
		}
		l, err = readList(der)
		return l, nil, err
	}
	for len(rest) > 0 {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, nil, errors.New("must be PEM and nothing else")
		}
		rest = bytes.TrimSpace(rest)
		switch cert, err := x509.ParseCertificate(block.Bytes); {
		case block.Type == "X509 CRL" && l == nil:
			if l, err = readList(block.Bytes); err != nil {
				return nil, nil, err
			}
		case block.Type == "CERTIFICATE" && err == nil && len(bundled) < engines.MaxCertificates:
			bundled = append(bundled, cert)
		default:
			return nil, nil, errors.New("must be one revocation list, and no more than ten certificates")
		}
	}
	if l == nil {
		return nil, nil, errors.New("holds no revocation list")
	}
	return l, bundled, nil
}

func readList(der []byte) (*x509.RevocationList, error) {
	if len(der) > maxListBytes {
		return nil, errors.New("is longer than 700 KiB")
	}
	l, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, errors.New("must be a revocation list in PEM, or its DER in base64")
	}
	return l, nil
}

var (
	deltaIndicator    = asn1.ObjectIdentifier{2, 5, 29, 27}
	certificateIssuer = asn1.ObjectIdentifier{2, 5, 29, 29}
)

// complete refuses a list that does not stand for itself, or is about the certificates of other issuers (RFC 5280, 5.2.4 and 5.3.3).
func complete(l *x509.RevocationList) error {
	for _, e := range l.Extensions {
		if e.Id.Equal(deltaIndicator) {
			return errors.New("is a delta list: send the complete one")
		}
	}
	for _, entry := range l.RevokedCertificateEntries {
		for _, e := range entry.Extensions {
			if e.Id.Equal(certificateIssuer) {
				return errors.New("is an indirect list, about the certificates of other issuers: send the lists of the issuers")
			}
		}
	}
	return nil
}

// vouches reports whether a CA that a role trusts has signed the list, or one of the certificates that came with it which leads to such a
// CA.
func (v *view) vouches(l *x509.RevocationList, bundled []*x509.Certificate) bool {
	signed := func(c *x509.Certificate) bool {
		return bytes.Equal(c.RawSubject, l.RawIssuer) && l.CheckSignatureFrom(c) == nil
	}
	if slices.ContainsFunc(v.cas, signed) {
		return true
	}
	below := x509.NewCertPool()
	for _, c := range bundled {
		below.AddCert(c)
	}
	return slices.ContainsFunc(bundled, func(c *x509.Certificate) bool {
		if !signed(c) {
			return false
		}
		_, err := c.Verify(x509.VerifyOptions{Roots: v.roots, Intermediates: below, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	})
}
