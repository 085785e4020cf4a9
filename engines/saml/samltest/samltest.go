// Package samltest is a SAML identity provider for tests. It writes its responses as text and signs them with its own
// canonicaliser (canonical.go), so what is checked with it is not checked by the library that made it, and so a test can
// bend a response before it is signed or afterwards.
//
//	p := samltest.New(t)
//	form := p.Answer(ssoURL, samltest.User{Subject: "alice"}) // to be posted to the callback
//
// Nothing is served and no clock but time.Now is read unless asked for. Keys are made once in a process.
package samltest

import (
	"bytes"
	"compress/flate"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"encoding/xml"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// IdP is an identity provider. Its fields may be changed between uses; it is not safe for changes during one.
type IdP struct {
	EntityID string
	SSOURL   string // where requests are sent to; set it to a server's URL + "/sso" if Handler is served
	Key      *Key
	// Next are further keys whose certificates are in the metadata, as while keys are changed.
	Next []*Key
	Now  func() time.Time // time.Now by default
	User User             // who logs in at /sso

	// WantsSignedRequests is said in the metadata. It is not enforced: see CheckRequest.
	WantsSignedRequests bool

	t testing.TB
}

// User is who logs in.
type User struct {
	Subject    string
	Attributes map[string][]string
}

// Option changes a new IdP.
type Option func(*IdP)

// WithECDSA lets the provider sign with a P-256 key, instead of RSA with 2048 bits.
func WithECDSA() Option { return WithKey(NewKey(P256, 0)) }

// WithKey lets the provider sign with a key.
func WithKey(k *Key) Option { return func(p *IdP) { p.Key = k } }

// WithNext puts further certificates into the metadata.
func WithNext(keys ...*Key) Option { return func(p *IdP) { p.Next = keys } }

// WithEntityID names the provider.
func WithEntityID(id string) Option { return func(p *IdP) { p.EntityID = id } }

// WithSSOURL sets the SSO URL, which may have a query.
func WithSSOURL(u string) Option { return func(p *IdP) { p.SSOURL = u } }

// WithClock lets the provider tell time by a test's clock.
func WithClock(now func() time.Time) Option { return func(p *IdP) { p.Now = now } }

// New returns a provider with the entity id https://idp.example.com/metadata.
func New(t testing.TB, opts ...Option) *IdP {
	p := &IdP{
		EntityID: "https://idp.example.com/metadata",
		SSOURL:   "https://idp.example.com/sso",
		Now:      time.Now,
		User:     User{Subject: "alice@example.com", Attributes: map[string][]string{"groups": {"staff"}}},
		t:        t,
	}
	for _, o := range opts {
		o(p)
	}
	if p.Key == nil {
		p.Key = NewKey(RSA2048, 0)
	}
	return p
}

// Certificates returns the certificates: the one it signs with, then those of Next.
func (p *IdP) Certificates() []*x509.Certificate {
	certs := []*x509.Certificate{p.Key.Certificate}
	for _, k := range p.Next {
		certs = append(certs, k.Certificate)
	}
	return certs
}

// CertificatePEM returns the Certificates.
func (p *IdP) CertificatePEM() string {
	var b strings.Builder
	for _, c := range p.Certificates() {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return b.String()
}

// MetadataXML returns the metadata document.
func (p *IdP) MetadataXML() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<?xml version="1.0"?>
<md:EntityDescriptor xmlns:md="urn:oasis:names:tc:SAML:2.0:metadata" entityID="%s">
 <md:IDPSSODescriptor protocolSupportEnumeration="urn:oasis:names:tc:SAML:2.0:protocol" WantAuthnRequestsSigned="%t">
`, escape(p.EntityID), p.WantsSignedRequests)
	for _, c := range p.Certificates() {
		fmt.Fprintf(&b, `  <md:KeyDescriptor use="signing"><ds:KeyInfo xmlns:ds="%s"><ds:X509Data><ds:X509Certificate>%s</ds:X509Certificate></ds:X509Data></ds:KeyInfo></md:KeyDescriptor>
`, dsigNS, base64.StdEncoding.EncodeToString(c.Raw))
	}
	fmt.Fprintf(&b, `  <md:SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST" Location="%[1]s"/>
  <md:SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect" Location="%[1]s"/>
 </md:IDPSSODescriptor>
</md:EntityDescriptor>
`, escape(p.SSOURL))
	return b.Bytes()
}

// Request is what a service provider asked for.
type Request struct {
	ID, ACSURL, Issuer, Destination string
	RelayState                      string
}

// RequestXML returns the document of the request that an SSO URL carries.
func RequestXML(ssoURL string) ([]byte, error) {
	u, err := url.Parse(ssoURL)
	if err != nil {
		return nil, err
	}
	raw, err := base64.StdEncoding.DecodeString(u.Query().Get("SAMLRequest"))
	if err != nil {
		return nil, fmt.Errorf("decoding SAMLRequest: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), 1<<20))
	if err != nil {
		return nil, fmt.Errorf("inflating SAMLRequest: %w", err)
	}
	return text, nil
}

// ParseRequest reads the request that an SSO URL carries.
func ParseRequest(ssoURL string) (Request, error) {
	text, err := RequestXML(ssoURL)
	if err != nil {
		return Request{}, err
	}
	u, err := url.Parse(ssoURL)
	if err != nil {
		return Request{}, err
	}
	var r struct {
		XMLName     xml.Name `xml:"urn:oasis:names:tc:SAML:2.0:protocol AuthnRequest"`
		ID          string   `xml:"ID,attr"`
		ACSURL      string   `xml:"AssertionConsumerServiceURL,attr"`
		Destination string   `xml:"Destination,attr"`
		Issuer      string   `xml:"urn:oasis:names:tc:SAML:2.0:assertion Issuer"`
	}
	if err := xml.Unmarshal(text, &r); err != nil {
		return Request{}, fmt.Errorf("parsing SAMLRequest: %w", err)
	}
	if r.ID == "" || r.ACSURL == "" || r.Issuer == "" {
		return Request{}, errors.New("the request lacks ID, AssertionConsumerServiceURL or Issuer")
	}
	return Request{ID: r.ID, ACSURL: r.ACSURL, Issuer: r.Issuer, Destination: r.Destination, RelayState: u.Query().Get("RelayState")}, nil
}

// CheckRequest checks the signature in the query of an SSO URL (HTTP-Redirect binding) against the service provider's
// certificate. The bytes signed are the query's own, in the order that the binding prescribes.
func CheckRequest(ssoURL string, cert *x509.Certificate) error {
	_, query, _ := strings.Cut(ssoURL, "?")
	raw := map[string]string{}
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		raw[name] = value
	}
	signed := "SAMLRequest=" + raw["SAMLRequest"]
	if v, ok := raw["RelayState"]; ok {
		signed += "&RelayState=" + v
	}
	signed += "&SigAlg=" + raw["SigAlg"]
	algorithm, _ := url.QueryUnescape(raw["SigAlg"])
	text, _ := url.QueryUnescape(raw["Signature"])
	signature, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(signature) == 0 {
		return errors.New("the request is not signed")
	}
	sum := sha256.Sum256([]byte(signed))
	switch key := cert.PublicKey.(type) {
	case *rsa.PublicKey:
		if algorithm != moreNS+"rsa-sha256" {
			return fmt.Errorf("unexpected SigAlg %q", algorithm)
		}
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature)
	case *ecdsa.PublicKey:
		if algorithm != moreNS+"ecdsa-sha256" || !ecdsa.VerifyASN1(key, sum[:], toDER(signature)) {
			return errors.New("the request's signature is wrong")
		}
		return nil
	}
	return errors.New("unknown kind of key")
}

// Answer returns the form to post to the callback for a login that was started with ssoURL.
func (p *IdP) Answer(ssoURL string, u User) url.Values {
	p.t.Helper()
	return p.AnswerWith(ssoURL, Response{User: u})
}

// AnswerWith is Answer with a response that differs from the usual in what o says.
func (p *IdP) AnswerWith(ssoURL string, o Response) url.Values {
	p.t.Helper()
	form, _, err := p.answer(ssoURL, o)
	if err != nil {
		p.t.Fatalf("answering a login: %v", err)
	}
	return form
}

func (p *IdP) answer(ssoURL string, o Response) (url.Values, Request, error) {
	r, err := ParseRequest(ssoURL)
	if err != nil {
		return nil, r, err
	}
	for field, value := range map[*string]string{&o.RequestID: r.ID, &o.ACSURL: r.ACSURL, &o.Audience: r.Issuer} {
		if *field == "" {
			*field = value
		}
	}
	return url.Values{"RelayState": {r.RelayState}, "SAMLResponse": {p.Response(o)}}, r, nil
}

var confirmationField = regexp.MustCompile(`name="confirmation" value="([^"]+)"`)

// Confirmation returns what a page of the callback holds that asks the user to confirm a login, "" if it does not ask.
func Confirmation(page []byte) string {
	if m := confirmationField.FindSubmatch(page); m != nil {
		return string(m[1])
	}
	return ""
}

var postPage = template.Must(template.New("post").Parse(`<!DOCTYPE html><html><body onload="document.forms[0].submit()">
<form method="post" action="{{.URL}}">{{range $name, $values := .Form}}<input type="hidden" name="{{$name}}" value="{{index $values 0}}">{{end}}
<button>Continue</button></form></body></html>
`))

// Handler serves /metadata, and at /sso a form for the request's callback which submits itself and logs p.User in, or the
// one that the query's "user" names.
func (p *IdP) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metadata", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/samlmetadata+xml")
		_, _ = w.Write(p.MetadataXML())
	})
	mux.HandleFunc("GET /sso", func(w http.ResponseWriter, r *http.Request) {
		user := p.User
		if name := r.URL.Query().Get("user"); name != "" {
			user.Subject = name
		}
		form, request, err := p.answer(r.URL.String(), Response{User: user})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = postPage.Execute(w, map[string]any{"URL": request.ACSURL, "Form": form})
	})
	return mux
}
