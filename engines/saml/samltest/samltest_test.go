package samltest_test

import (
	"bytes"
	"compress/flate"
	"crypto"
	"encoding/base64"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/beevik/etree"
	saml2 "github.com/russellhaering/gosaml2"
	dsig "github.com/russellhaering/goxmldsig"

	"github.com/coffer-project/coffer/engines/saml/samltest"
)

const (
	acs    = "https://coffer.example.com/v1/auth/saml/callback"
	entity = "https://coffer.example.com"
)

// ssoURL starts a login as a service provider does.
func ssoURL(t *testing.T, p *samltest.IdP) string {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write([]byte(`<samlp:AuthnRequest xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" ID="_r1" AssertionConsumerServiceURL="` +
		acs + `"><saml:Issuer>` + entity + `</saml:Issuer></samlp:AuthnRequest>`))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return p.SSOURL + "?" + url.Values{"SAMLRequest": {base64.StdEncoding.EncodeToString(b.Bytes())}, "RelayState": {"relay"}}.Encode()
}

// TestLibraryAccepts has the library check what the provider signs, as an independent opinion.
func TestLibraryAccepts(t *testing.T) {
	for _, c14n := range []string{samltest.Exclusive, samltest.Inclusive10, samltest.Inclusive11} {
		for name, o := range map[string]samltest.Response{
			"assertion": {}, "response": {SignResponse: true}, "both": {SignResponse: true, SignAssertion: true},
			"root namespaces": {RootNamespaces: true, SignResponse: true, SignAssertion: true}, "no prefix": {Prefix: "-"},
		} {
			t.Run(c14n+" "+name, func(t *testing.T) {
				p := samltest.New(t)
				o.Typed = true
				o.ResponseSignature = samltest.Signature{C14N: c14n, Prefixes: "xs", Digest: crypto.SHA512}
				o.AssertionSignature = samltest.Signature{C14N: c14n, Prefixes: "xs", Hash: crypto.SHA384}
				form := p.AnswerWith(ssoURL(t, p), with(o, samltest.User{Subject: "a & <b>", Attributes: map[string][]string{"g": {"x\r\ny", `"q"`}}}))
				if form.Get("RelayState") != "relay" {
					t.Errorf("RelayState = %q, want relay", form.Get("RelayState"))
				}
				sp := &saml2.SAMLServiceProvider{
					IdentityProviderIssuer: p.EntityID, AssertionConsumerServiceURL: acs, AudienceURI: entity,
					IDPCertificateStore: &dsig.MemoryX509CertificateStore{Roots: p.Certificates()},
				}
				r, err := sp.ValidateEncodedResponse(form.Get("SAMLResponse"))
				if err != nil {
					t.Fatal(err)
				}
				if got := r.Assertions[0].Subject.NameID.Value; got != "a & <b>" {
					t.Errorf("NameID = %q, want %q", got, "a & <b>")
				}
			})
		}
	}
}

func with(o samltest.Response, u samltest.User) samltest.Response {
	o.User = u
	return o
}

func TestHandler(t *testing.T) {
	now := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	p := samltest.New(t, samltest.WithECDSA(), samltest.WithClock(func() time.Time { return now }))
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest("GET", ssoURL(t, p)[len("https://idp.example.com"):], nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `action="`+acs+`"`) || !strings.Contains(w.Body.String(), `value="relay"`) {
		t.Errorf("GET /sso = %d %s", w.Code, w.Body)
	}
	w = httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metadata", nil))
	doc := etree.NewDocument()
	if err := doc.ReadFromBytes(w.Body.Bytes()); err != nil || doc.Root().SelectAttrValue("entityID", "") != p.EntityID {
		t.Errorf("GET /metadata = %s", w.Body)
	}
}
