package admission

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// The decoders of the header of a client's certificate.
const (
	DecodeURL    = "URL"    // percent-encoded
	DecodeBase64 = "BASE64" // standard base64
	DecodeDER    = "DER"    // PEM: what comes out is DER
)

// maxCertBytes bounds the header of a client's certificate.
const maxCertBytes = 32 << 10

// Certificates makes r.TLS tell who the client is. The certificate of a connection that is a proxy's is not the client's: it is what
// the header CertHeader of an authorized proxy holds, and of no other peer. Call it before Client's answer goes into r.RemoteAddr.
func (f *Forwarded) Certificates(r *http.Request) error {
	var values []string
	if f.CertHeader != "" {
		values = r.Header[f.CertHeader]
		delete(r.Header, f.CertHeader)
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !Contains(f.Authorized, peer.Addr()) {
		if len(values) > 0 && f.RejectNotAuthorized {
			return fmt.Errorf("the header %s is not accepted from this address: it is not in x_forwarded_for_authorized_addrs", f.CertHeader)
		}
		return nil
	}
	if f.CertHeader == "" && len(r.Header["X-Forwarded-For"]) == 0 {
		return nil // it speaks for itself
	}
	state := new(tls.ConnectionState)
	if r.TLS != nil {
		*state = *r.TLS
	}
	state.PeerCertificates, state.VerifiedChains = nil, nil
	r.TLS = state
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return nil
	}
	cert, err := f.decodeCert(values)
	if err != nil {
		return fmt.Errorf("the header %s does not hold a certificate as x_forwarded_for_client_cert_header_decoders says: %w", f.CertHeader, err)
	}
	state.PeerCertificates = []*x509.Certificate{cert}
	return nil
}

func (f *Forwarded) decodeCert(values []string) (*x509.Certificate, error) {
	switch {
	case len(values) != 1:
		return nil, errors.New("it is there more than once")
	case len(values[0]) > maxCertBytes:
		return nil, fmt.Errorf("it is longer than %d bytes", maxCertBytes)
	}
	value := values[0]
	for _, decoder := range f.CertDecoders {
		switch decoder {
		case DecodeURL:
			text, err := url.PathUnescape(value)
			if err != nil {
				return nil, errors.New("it is not URL encoded")
			}
			value = text
		case DecodeBase64:
			der, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
			if err != nil {
				return nil, errors.New("it is not base64")
			}
			value = string(der)
		case DecodeDER:
			block, _ := pem.Decode([]byte(value))
			if block == nil {
				return nil, errors.New("it is not PEM")
			}
			value = string(block.Bytes)
		}
	}
	cert, err := x509.ParseCertificate([]byte(value))
	if err != nil {
		return nil, errors.New("it is not a certificate")
	}
	return cert, nil
}
