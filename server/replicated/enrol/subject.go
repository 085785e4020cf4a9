package enrol

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net/url"
	"slices"
	"strings"
)

// Subject is whom a client certificate was issued to.
type Subject struct {
	ID        string // opaque, of the secondary
	ClusterID string
	// Enrolment is a random text that each enrolment has of its own: after a secondary was revoked and enrolled again,
	// certificates of the enrolment before are not good any more.
	Enrolment string
}

// Limits of a Subject's parts, in bytes.
const (
	MaxIDBytes        = 256
	maxClusterIDBytes = 128
	maxEnrolmentBytes = 64
)

// The name in a client certificate is "coffer://secondary/<id>/<cluster id>/<enrolment>". Ids may hold any byte, so they
// are in hexadecimal, and they may be longer than a DNS name may be, so it is a URI.
const (
	uriScheme = "coffer"
	uriHost   = "secondary"
)

func (s Subject) check() error {
	for _, part := range []struct {
		text string
		max  int
	}{{s.ID, MaxIDBytes}, {s.ClusterID, maxClusterIDBytes}, {s.Enrolment, maxEnrolmentBytes}} {
		if part.text == "" || len(part.text) > part.max {
			return errors.New("a part of the certificate's name is empty or too long")
		}
	}
	return nil
}

func (s Subject) uri() ([]*url.URL, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	u := &url.URL{Scheme: uriScheme, Host: uriHost}
	for _, part := range []string{s.ID, s.ClusterID, s.Enrolment} {
		u.Path += "/" + hex.EncodeToString([]byte(part))
	}
	return []*url.URL{u}, nil
}

// errSubject is the one answer to all certificates that name no secondary.
var errSubject = errors.New("the certificate names no secondary")

// Identify returns whom a client certificate was issued to. The caller has verified it against the CA.
func Identify(cert *x509.Certificate) (Subject, error) {
	if len(cert.URIs) != 1 || len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.EmailAddresses) > 0 || cert.IsCA ||
		!slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		return Subject{}, errSubject
	}
	return parseSubject(cert.URIs[0].String())
}

func parseSubject(uri string) (Subject, error) {
	path, ok := strings.CutPrefix(uri, uriScheme+"://"+uriHost+"/")
	parts := strings.Split(path, "/")
	if !ok || len(parts) != 3 {
		return Subject{}, errSubject
	}
	for i, part := range parts {
		decoded, err := hex.DecodeString(part)
		if err != nil || hex.EncodeToString(decoded) != part { // one spelling only
			return Subject{}, errSubject
		}
		parts[i] = string(decoded)
	}
	s := Subject{ID: parts[0], ClusterID: parts[1], Enrolment: parts[2]}
	if s.check() != nil {
		return Subject{}, errSubject
	}
	return s, nil
}
