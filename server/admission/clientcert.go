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

	"github.com/coffer-project/coffer/engines"
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
	switch {
	case len(values) != 1:
		err = errors.New("it is there more than once")
	case len(values[0]) > maxCertBytes:
		err = fmt.Errorf("it is longer than %d bytes", maxCertBytes)
	default:
		state.PeerCertificates, err = f.decodeCerts(values[0])
	}
	if err != nil {
		return fmt.Errorf("the header %s does not hold a certificate as x_forwarded_for_client_cert_header_decoders says: %w", f.CertHeader, err)
	}
	return nil
}

// decodeCerts reads the certificate of the client, and those that it has sent with it, if the proxy passes them on: with commas.
func (f *Forwarded) decodeCerts(header string) (chain []*x509.Certificate, err error) {
	for value := range strings.SplitSeq(header, ",") {
		for _, decoder := range f.CertDecoders {
			if value, err = decode(decoder, value); err != nil {
				return nil, err
			}
		}
		cert, err := x509.ParseCertificate([]byte(value))
		if err != nil {
			return nil, errors.New("it is not a certificate")
		}
		if chain = append(chain, cert); len(chain) > engines.MaxCertificates {
			return nil, fmt.Errorf("it has more than %d certificates", engines.MaxCertificates)
		}
	}
	return chain, nil
}

func decode(decoder, value string) (string, error) {
	switch decoder {
	case DecodeURL:
		text, err := url.PathUnescape(value)
		if err != nil {
			return "", errors.New("it is not URL encoded")
		}
		return text, nil
	case DecodeBase64:
		der, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
		if err != nil {
			return "", errors.New("it is not base64")
		}
		return string(der), nil
	}
	block, _ := pem.Decode([]byte(value)) // DecodeDER
	if block == nil {
		return "", errors.New("it is not PEM")
	}
	return string(block.Bytes), nil
}
