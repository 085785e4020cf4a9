package assertion_test

import (
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

const (
	acs     = "https://coffer.example.com/v1/auth/saml/callback"
	entity  = "https://coffer.example.com/saml"
	request = "_5f1c2c1e-a3d0-4f6e-8a76-2f6a4ae33a4c"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

var alice = samltest.User{Subject: "alice@example.com", Attributes: map[string][]string{
	"groups": {"staff", "ops & <dev>"}, "urn:oid:0.9.2342.19200300.100.1.3": {"alice@example.com"},
}}

func newIdP(t testing.TB, opts ...samltest.Option) *samltest.IdP {
	return samltest.New(t, append(opts, samltest.WithClock(func() time.Time { return now }))...)
}

func expect(p *samltest.IdP) assertion.Expect {
	return assertion.Expect{ACSURL: acs, EntityID: entity, Issuer: p.EntityID, RequestID: request, Certificates: p.Certificates(), Now: now}
}

// good is a response that is accepted.
func good() samltest.Response {
	return samltest.Response{RequestID: request, ACSURL: acs, Audience: entity, User: alice}
}

// mustAccept verifies a response which has to be accepted, about user.
func mustAccept(t testing.TB, encoded string, e assertion.Expect, user samltest.User) *assertion.Assertion {
	t.Helper()
	a, err := assertion.Verify(encoded, e)
	if err != nil {
		t.Fatalf("Verify() = %v, want it accepted", err)
	}
	if a.Subject != user.Subject || !maps.EqualFunc(a.Attributes, user.Attributes, slices.Equal) {
		t.Errorf("Verify() = %q %q, want %q %q", a.Subject, a.Attributes, user.Subject, user.Attributes)
	}
	return a
}

// mustReject verifies a response which has to be rejected for a reason.
func mustReject(t testing.TB, encoded string, e assertion.Expect, want assertion.Reason) *assertion.Rejection {
	t.Helper()
	a, err := assertion.Verify(encoded, e)
	var r *assertion.Rejection
	if !errors.As(err, &r) || a != nil {
		t.Fatalf("Verify() = %v, %v, want a rejection", a, err)
	}
	if r.Reason != want {
		t.Errorf("Verify() = %v, want the reason %q", r, want)
	}
	if len(r.Detail) > 1000 || strings.ContainsAny(r.Detail, "\r\n\x00") {
		t.Errorf("the detail is not fit for a log: %q", r.Detail)
	}
	return r
}

func TestValid(t *testing.T) {
	t.Parallel()
	keys := []*samltest.Key{samltest.NewKey(samltest.RSA2048, 0), samltest.NewKey(samltest.P256, 0), samltest.NewKey(samltest.P384, 0), samltest.NewKey(samltest.P521, 0)}
	c14ns := []string{
		samltest.Exclusive, samltest.Exclusive + "WithComments", samltest.Inclusive10, samltest.Inclusive10 + "#WithComments",
		samltest.Inclusive11, samltest.Inclusive11 + "#WithComments",
	}
	hashes := []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512}
	for i, key := range keys {
		p := newIdP(t, samltest.WithKey(key))
		for j, c14n := range c14ns {
			for l, which := range []string{"response", "assertion", "both"} {
				hash := hashes[(j+l)%3] // so that each key and each canonicalisation meets each
				t.Run(fmt.Sprint(key.Certificate.PublicKeyAlgorithm, i, " ", c14n, " ", hash, " ", which), func(t *testing.T) {
					o := good()
					o.SignResponse, o.SignAssertion = which != "assertion", which != "response"
					// The other dimensions go round, so that each value of one meets each of the main ones.
					n := i + j + l
					s := samltest.Signature{Hash: hash, Digest: hashes[n%3], C14N: c14n, DER: n%4 == 3, Wrap: n%2 == 0}
					if n%3 == 0 {
						s.KeyInfo = "-"
					}
					if n%2 == 1 && strings.HasPrefix(c14n, samltest.Exclusive) {
						s.Prefixes = "xs samlp"
					}
					s.Prefix = []string{"", "-", "dsig"}[n%3]
					o.Prefix = []string{"", "saml2", "-"}[(j+l)%3]
					o.Protocol = []string{"", "saml2p"}[(i+l)%2]
					o.RootNamespaces = n%2 == 0
					o.Typed = l != 1
					o.ResponseSignature, o.AssertionSignature = s, s
					mustAccept(t, p.Response(o), expect(p), alice)
				})
			}
		}
	}
}

func TestBase64MayHaveLines(t *testing.T) {
	t.Parallel()
	p := newIdP(t)
	encoded := p.Response(good())
	mustAccept(t, " "+encoded[:76]+"\r\n\t"+encoded[76:152]+"\n"+encoded[152:]+"\r\n", expect(p), alice)
}

func TestCertificatesRollOver(t *testing.T) {
	t.Parallel()
	old, next := samltest.NewKey(samltest.RSA2048, 0), samltest.NewKey(samltest.P256, 0)
	expired := samltest.Certify(samltest.NewKey(samltest.RSA2048, 1).Signer, now.Add(-time.Hour), now.Add(-time.Minute))
	fresh := samltest.Certify(next.Signer, now.Add(-time.Second), now.Add(time.Hour))
	for name, certs := range map[string][]*samltest.Key{
		"old first": {old, next}, "next first": {next, old}, "one is expired": {expired, old, next}, "issued a second ago": {old, fresh},
	} {
		t.Run(name, func(t *testing.T) {
			for _, key := range []*samltest.Key{old, next} {
				for _, info := range []string{"", "-", `<ds:KeyInfo><ds:KeyName>current</ds:KeyName></ds:KeyInfo>`} {
					p := newIdP(t, samltest.WithKey(key))
					e := expect(p)
					e.Certificates = nil
					for _, c := range certs {
						e.Certificates = append(e.Certificates, c.Certificate)
					}
					o := good()
					o.SignAssertion, o.SignResponse = true, true
					o.AssertionSignature.KeyInfo, o.ResponseSignature.KeyInfo = info, info
					mustAccept(t, p.Response(o), e, alice)
				}
			}
		})
	}
}

// TestPrefixListOfAssertionOnly: the response's canonical form loses a prefix that the assertion's signature covers.
func TestPrefixListOfAssertionOnly(t *testing.T) {
	t.Parallel()
	p := newIdP(t)
	o := good()
	o.SignAssertion, o.SignResponse, o.Typed = true, true, true
	o.AssertionSignature.Prefixes = "xs"
	mustAccept(t, p.Response(o), expect(p), alice)
}

func TestDemandedSignatures(t *testing.T) {
	t.Parallel()
	p := newIdP(t)
	for _, test := range []struct {
		signResponse, signAssertion, wantResponse, wantAssertion, accepted bool
	}{
		{true, false, false, false, true}, {true, false, true, false, true}, {true, false, false, true, false}, {true, false, true, true, false},
		{false, true, false, false, true}, {false, true, true, false, false}, {false, true, false, true, true}, {false, true, true, true, false},
		{true, true, false, false, true}, {true, true, true, false, true}, {true, true, false, true, true}, {true, true, true, true, true},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			o, e := good(), expect(p)
			o.SignResponse, o.SignAssertion = test.signResponse, test.signAssertion
			e.SignedResponse, e.SignedAssertion = test.wantResponse, test.wantAssertion
			if test.accepted {
				mustAccept(t, p.Response(o), e, alice)
			} else {
				mustReject(t, p.Response(o), e, assertion.Signature)
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	statement := func(inner string) func(string) string {
		return func(text string) string {
			return strings.Replace(text, "</saml:Assertion>", "<saml:AttributeStatement>"+inner+"</saml:AttributeStatement></saml:Assertion>", 1)
		}
	}
	tests := []struct {
		name string
		edit func(string) string
		want map[string][]string
	}{
		{"none", nil, map[string][]string{}},
		{"repeated", statement(`<saml:Attribute Name="g"><saml:AttributeValue>a</saml:AttributeValue><saml:AttributeValue>b</saml:AttributeValue></saml:Attribute>` +
			`<saml:Attribute Name="h"><saml:AttributeValue>c</saml:AttributeValue></saml:Attribute><saml:Attribute Name="g"><saml:AttributeValue>d</saml:AttributeValue></saml:Attribute>`),
			map[string][]string{"g": {"a", "b", "d"}, "h": {"c"}}},
		{"by Name, not by FriendlyName", statement(`<saml:Attribute Name="urn:oid:1.2" FriendlyName="groups"><saml:AttributeValue>a</saml:AttributeValue></saml:Attribute>`),
			map[string][]string{"urn:oid:1.2": {"a"}}},
		{"two statements", statement(`<saml:Attribute Name="g"><saml:AttributeValue>a</saml:AttributeValue></saml:Attribute></saml:AttributeStatement><saml:AttributeStatement><saml:Attribute Name="g"><saml:AttributeValue>b</saml:AttributeValue></saml:Attribute>`),
			map[string][]string{"g": {"a", "b"}}},
		{"typed and foreign attributes", statement(`<saml:Attribute xmlns:x="urn:x" x:encoding="LDAP" Name="g"><saml:AttributeValue xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:y="urn:y" xsi:type="y:string" y:z="1">a</saml:AttributeValue></saml:Attribute>`),
			map[string][]string{"g": {"a"}}},
		{"a NameID in a value", statement(`<saml:Attribute Name="t"><saml:AttributeValue> <saml:NameID Format="urn:oasis:names:tc:SAML:2.0:nameid-format:persistent">xyz</saml:NameID> </saml:AttributeValue></saml:Attribute>`),
			map[string][]string{"t": {"xyz"}}},
		{"structured values are left out", statement(`<saml:Attribute Name="s"><saml:AttributeValue>ad<x:a xmlns:x="urn:x">x</x:a>min</saml:AttributeValue><saml:AttributeValue>ad<saml:NameID>x</saml:NameID>min</saml:AttributeValue><saml:AttributeValue>v</saml:AttributeValue></saml:Attribute>`),
			map[string][]string{"s": {"v"}}},
		{"blank values are left out", statement(`<saml:Attribute Name="g"><saml:AttributeValue/><saml:AttributeValue>  </saml:AttributeValue></saml:Attribute><saml:Attribute Name="h"/>`),
			map[string][]string{}},
		{"without a name they are ignored", statement(`<saml:Attribute><saml:AttributeValue>a</saml:AttributeValue></saml:Attribute><saml:Attribute Name=" "><saml:AttributeValue>b</saml:AttributeValue></saml:Attribute>`),
			map[string][]string{}},
		{"a lone foreign element is no value", statement(`<saml:Attribute Name="g"><saml:AttributeValue><x:a xmlns:x="urn:x">admins</x:a></saml:AttributeValue></saml:Attribute>`),
			map[string][]string{}},
		{"blanks and character references are kept", statement(`<saml:Attribute Name="g"><saml:AttributeValue> a&#13;&#10;b&amp;amp; ü𝄞</saml:AttributeValue></saml:Attribute>`),
			map[string][]string{"g": {" a\r\nb&amp; ü𝄞"}}},
	}
	for _, c14n := range []string{samltest.Exclusive, samltest.Inclusive10, samltest.Inclusive11} {
		for _, which := range []string{"response", "assertion", "both"} {
			if c14n != samltest.Exclusive && which != "both" {
				continue // both are each
			}
			for _, test := range tests {
				t.Run(test.name+" "+which+" "+c14n, func(t *testing.T) {
					p, o := newIdP(t), good()
					o.User = samltest.User{Subject: "bob"}
					o.Edit = test.edit
					o.SignResponse, o.SignAssertion = which != "assertion", which != "response"
					o.AssertionSignature.C14N, o.ResponseSignature.C14N = c14n, c14n
					mustAccept(t, p.Response(o), expect(p), samltest.User{Subject: "bob", Attributes: test.want})
				})
			}
		}
	}
}

func TestManyAttributes(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.User = samltest.User{Subject: "bob", Attributes: map[string][]string{"groups": nil}}
	for i := range 1500 {
		o.User.Attributes["groups"] = append(o.User.Attributes["groups"], fmt.Sprint("group ", i))
	}
	for _, o.SignResponse = range []bool{false, true} {
		o.SignAssertion = !o.SignResponse
		mustAccept(t, p.Response(o), expect(p), o.User)
	}
	o.User.Attributes["groups"] = slices.Repeat([]string{"g"}, 10_000)
	if r := mustReject(t, p.Response(o), expect(p), assertion.Statement); !strings.Contains(r.Detail, "filter") {
		t.Errorf("the rejection does not say what to do: %v", r)
	}
	// The library looks for the signature through 1,000 elements at most.
	o.User.Attributes["groups"] = slices.Repeat([]string{"g"}, 1500)
	o.Edit = func(s string) string {
		s = strings.Replace(s, samltest.ResponseMark, "", 1)
		return strings.Replace(s, "</samlp:Response>", samltest.ResponseMark+"</samlp:Response>", 1)
	}
	if r := mustReject(t, p.Response(o), expect(p), assertion.Statement); !strings.Contains(r.Detail, "filter") {
		t.Errorf("the rejection does not say what to do: %v", r)
	}
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.AssertionID, o.Format = "_a1", "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress"
	o.Session = 8 * time.Hour
	a := mustAccept(t, p.Response(o), expect(p), alice)
	want := &assertion.Assertion{
		ID: "_a1", Issuer: p.EntityID, Subject: alice.Subject, Format: o.Format, InResponseTo: request, Attributes: alice.Attributes,
		Contexts:     []string{"urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport"},
		NotOnOrAfter: now.Add(5*time.Minute + assertion.Skew), SessionNotOnOrAfter: now.Add(8 * time.Hour),
	}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("Verify() = %+v, want %+v", a, want)
	}
}

func TestUnsolicited(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.RequestID = ""
	e := expect(p)
	e.RequestID = ""
	mustAccept(t, p.Response(o), e, alice)
	if r := mustReject(t, p.Response(good()), e, assertion.InResponseTo); r.Signed {
		t.Error("there is no login that the rejection could end")
	}
}

// TestVariants are odd, but allowed.
func TestVariants(t *testing.T) {
	t.Parallel()
	replace := func(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }
	pretty := func(text string) string {
		return `<?xml version="1.0" encoding="utf-8"?>` + "\n" + strings.ReplaceAll(text, "><saml:", ">\r\n  <saml:") + "\n"
	}
	tests := []struct {
		name string
		o    func(*samltest.Response)
	}{
		{"pretty printed", func(o *samltest.Response) { o.Edit = pretty }},
		{"unsigned response without Destination", func(o *samltest.Response) { o.Edit = replace(` Destination="`+acs+`"`, "") }},
		{"unsigned response without InResponseTo", func(o *samltest.Response) {
			o.Edit = func(s string) string { return strings.Replace(s, ` InResponseTo="`+request+`"`, "", 1) }
		}},
		{"signed response without InResponseTo", func(o *samltest.Response) {
			o.SignResponse = true
			o.Edit = func(s string) string { return strings.Replace(s, ` InResponseTo="`+request+`"`, "", 1) }
		}},
		{"two audience restrictions, both ours", func(o *samltest.Response) {
			o.Edit = replace("</saml:Conditions>", "<saml:AudienceRestriction><saml:Audience>x</saml:Audience><saml:Audience>"+entity+"</saml:Audience></saml:AudienceRestriction></saml:Conditions>")
		}},
		{"one time use and proxies", func(o *samltest.Response) {
			o.Edit = replace("</saml:Conditions>", `<saml:OneTimeUse/><saml:ProxyRestriction Count="1"><saml:Audience>x</saml:Audience></saml:ProxyRestriction></saml:Conditions>`)
		}},
		{"Format of the Issuer", func(o *samltest.Response) {
			o.Edit = replace("<saml:Issuer", `<saml:Issuer Format="urn:oasis:names:tc:SAML:2.0:nameid-format:entity"`)
		}},
		{"status message", func(o *samltest.Response) {
			o.Edit = replace("</samlp:Status>", `<samlp:StatusMessage>fine</samlp:StatusMessage><samlp:StatusDetail><x xmlns="urn:x">1</x></samlp:StatusDetail></samlp:Status>`)
		}},
		{"only the enveloped transform", func(o *samltest.Response) {
			o.AssertionSignature.C14N = samltest.Inclusive11
			o.AssertionSignature.Edit = replace(`<ds:Transform Algorithm="`+samltest.Inclusive11+`"></ds:Transform>`, "")
		}},
		{"signature at the end", func(o *samltest.Response) {
			o.SignResponse = true
			o.Edit = func(s string) string {
				s = strings.Replace(s, samltest.ResponseMark, "", 1)
				return strings.Replace(s, "</samlp:Response>", samltest.ResponseMark+"</samlp:Response>", 1)
			}
		}},
		{"subject locality, session index, authority", func(o *samltest.Response) {
			o.Edit = replace("<saml:AuthnContext>", `<saml:SubjectLocality Address="192.0.2.1"/><saml:AuthnContext>`, "</saml:AuthnContext>", "<saml:AuthenticatingAuthority>x</saml:AuthenticatingAuthority></saml:AuthnContext>")
		}},
		{"extensions", func(o *samltest.Response) {
			o.SignResponse = true
			o.Edit = replace("<samlp:Status>", `<samlp:Extensions><x:y xmlns:x="urn:x" z="1">1</x:y></samlp:Extensions><samlp:Status>`)
		}},
		{"who confirms, and foreign attributes of it", func(o *samltest.Response) {
			o.Edit = replace("<saml:SubjectConfirmationData ", `<saml:NameID>somebody</saml:NameID><saml:SubjectConfirmationData xmlns:x="urn:x" x:y="1" `)
		}},
		{"key value in KeyInfo", func(o *samltest.Response) {
			o.AssertionSignature.KeyInfo = `<ds:KeyInfo><ds:KeyValue><ds:RSAKeyValue><ds:Modulus>AQAB</ds:Modulus><ds:Exponent>AQAB</ds:Exponent></ds:RSAKeyValue></ds:KeyValue><ds:X509Data><ds:X509SubjectName>CN=x</ds:X509SubjectName></ds:X509Data></ds:KeyInfo>`
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, o := newIdP(t), good()
			o.SignAssertion = true
			test.o(&o)
			mustAccept(t, p.Response(o), expect(p), alice)
		})
	}
}

func TestSkew(t *testing.T) {
	t.Parallel()
	p := newIdP(t)
	encoded := p.Response(good()) // from now to now + 5 minutes
	for _, test := range []struct {
		after    time.Duration
		accepted bool
	}{
		{-assertion.Skew - 1, false}, {-assertion.Skew, true}, {0, true}, {5*time.Minute + assertion.Skew - 1, true}, {5*time.Minute + assertion.Skew, false},
	} {
		e := expect(p)
		e.Now = now.Add(test.after)
		if test.accepted {
			mustAccept(t, encoded, e, alice)
		} else {
			mustReject(t, encoded, e, assertion.Time)
		}
	}
}

func TestIncompleteExpectations(t *testing.T) {
	t.Parallel()
	p := newIdP(t)
	encoded := p.Response(good())
	for want, change := range map[assertion.Reason]func(*assertion.Expect){
		assertion.Certificate: func(e *assertion.Expect) { e.Certificates = []*x509.Certificate{} },
		assertion.Issuer:      func(e *assertion.Expect) { e.Issuer = "" },
		assertion.Audience:    func(e *assertion.Expect) { e.EntityID = "" },
		assertion.Destination: func(e *assertion.Expect) { e.ACSURL = "" },
	} {
		e := expect(p)
		change(&e)
		mustReject(t, encoded, e, want)
	}
}

func TestReadUnverified(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.Unsigned = true
	text := p.XML(o)
	start := strings.Index(text, "<saml:Assertion")
	for name, sample := range map[string]string{
		"response": "\uFEFF" + text + "\n", "assertion": text[start : strings.Index(text, "</saml:Assertion>")+len("</saml:Assertion>")],
	} {
		a, err := assertion.ReadUnverified([]byte(sample))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if a.Subject != alice.Subject || !maps.EqualFunc(a.Attributes, alice.Attributes, slices.Equal) || a.Issuer != p.EntityID {
			t.Errorf("%s: ReadUnverified() = %+v, want %+v", name, a, alice)
		}
	}
	for sample, want := range map[string]assertion.Reason{
		"<" + strings.Repeat(" ", 1<<20): assertion.Encoding,
		"":                               assertion.Structure, "<a/>": assertion.Structure, "\xff": assertion.Encoding,
		`<p:Response xmlns:p="urn:oasis:names:tc:SAML:2.0:protocol"/>`:                                                                                assertion.Structure,
		`<p:Response xmlns:p="urn:oasis:names:tc:SAML:2.0:protocol"><EncryptedAssertion xmlns="urn:oasis:names:tc:SAML:2.0:assertion"/></p:Response>`: assertion.Encrypted,
	} {
		var r *assertion.Rejection
		if _, err := assertion.ReadUnverified([]byte(sample)); !errors.As(err, &r) || r.Reason != want {
			t.Errorf("ReadUnverified(%.100q) = %v, want %s", sample, err, want)
		}
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	raw, err := assertion.Decode(base64.StdEncoding.EncodeToString([]byte("<x/>")))
	if err != nil || string(raw) != "<x/>" {
		t.Errorf("Decode() = %q, %v, want <x/>", raw, err)
	}
}

func BenchmarkVerify(b *testing.B) {
	p, o := newIdP(b), good()
	o.SignAssertion, o.SignResponse = true, true
	encoded, e := p.Response(o), expect(p)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := assertion.Verify(encoded, e); err != nil {
			b.Fatal(err)
		}
	}
}
