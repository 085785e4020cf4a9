package assertion_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// inAssertion is edit of the first occurrence within the assertion.
func inAssertion(old, replacement string) func(*samltest.Response) {
	return func(o *samltest.Response) {
		o.Edit = func(s string) string {
			at := strings.Index(s, "<saml:Assertion")
			return s[:at] + sub(old, replacement)(s[at:])
		}
	}
}

// TestContent is about what an identity provider signed, but not for this login.
func TestContent(t *testing.T) {
	t.Parallel()
	stamp := func(d time.Duration) string { return now.Add(d).UTC().Format("2006-01-02T15:04:05.000Z") }
	const (
		confirmation = `<saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer">`
		restriction  = `<saml:AudienceRestriction><saml:Audience>` + entity + `</saml:Audience></saml:AudienceRestriction>`
		answers      = ` InResponseTo="` + request + `"`
		destination  = ` Destination="` + acs + `"`
		evilURL      = "https://evil.example.com/"
	)
	issuer := func(s string) string { return `<saml:Issuer>` + s + `</saml:Issuer>` }
	const idp = "https://idp.example.com/metadata"
	runHostile(t, []hostile{
		{"audience of another provider", assertion.Audience, func(o *samltest.Response) { o.Audience = evilURL }},
		{"audience with a slash behind", assertion.Audience, func(o *samltest.Response) { o.Audience = entity + "/" }},
		{"audience in another case", assertion.Audience, func(o *samltest.Response) { o.Audience = strings.ToUpper(entity) }},
		{"no audience restriction", assertion.Audience, edit(restriction, "")},
		{"empty audience restriction", assertion.Audience, edit(restriction, "<saml:AudienceRestriction/>")},
		{"blank audience", assertion.Audience, func(o *samltest.Response) { o.Edit = sub(entity+"</saml:Audience>", "</saml:Audience>") }},
		{"two restrictions, the first one wrong", assertion.Audience, edit(restriction, "<saml:AudienceRestriction><saml:Audience>x</saml:Audience></saml:AudienceRestriction>"+restriction)},
		{"two restrictions, the second one wrong", assertion.Audience, edit(restriction, restriction+"<saml:AudienceRestriction><saml:Audience>x</saml:Audience></saml:AudienceRestriction>")},
		{"audience among proxies only", assertion.Audience, edit(restriction, "<saml:ProxyRestriction><saml:Audience>"+entity+"</saml:Audience></saml:ProxyRestriction>")},

		{"recipient is another", assertion.Recipient, edit(`Recipient="`+acs, `Recipient="`+evilURL)},
		{"recipient in another case", assertion.Recipient, edit(`Recipient="`+acs, `Recipient="`+strings.ToUpper(acs))},
		{"recipient with a query", assertion.Recipient, edit(`Recipient="`+acs, `Recipient="`+acs+"?x")},
		{"no recipient", assertion.Recipient, edit(` Recipient="`+acs+`"`, "")},
		{"destination is another", assertion.Destination, edit(destination, ` Destination="`+evilURL+`"`)},
		{"destination is another, signed", assertion.Destination, onlyResponse(edit(destination, ` Destination="`+evilURL+`"`))},
		{"empty destination", assertion.Destination, edit(destination, ` Destination=""`)},
		{"no destination on a signed response", assertion.Destination, onlyResponse(edit(destination, ""))},

		{"issuer of both is another", assertion.Issuer, func(o *samltest.Response) { o.Issuer = evilURL }},
		{"issuer of the response is another", assertion.Issuer, edit(idp, evilURL)},
		{"issuer of the assertion is another", assertion.Issuer, inAssertion(idp, evilURL)},
		{"no issuer of the response", assertion.Issuer, tamperBetween("<saml:Issuer", "</saml:Issuer>")},
		{"no issuer of the assertion", assertion.Issuer, inAssertion(issuer(idp), "")},
		{"blank issuer", assertion.Issuer, inAssertion(issuer(idp), issuer(" "))},
		{"issuer with a blank", assertion.Issuer, inAssertion(issuer(idp), issuer(idp+" "))},
		{"format of the issuer", assertion.Issuer, inAssertion("<saml:Issuer>", `<saml:Issuer Format="urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress">`)},
		{"format of the response's issuer", assertion.Issuer, edit("<saml:Issuer ", `<saml:Issuer Format="urn:x" `)},
		{"two issuers", assertion.Structure, inAssertion(issuer(idp), issuer(idp)+issuer(idp))},

		{"answers another request", assertion.InResponseTo, func(o *samltest.Response) { o.RequestID = "_other" }},
		{"response answers another request", assertion.InResponseTo, edit(answers, ` InResponseTo="_other"`)},
		{"response answers an empty request", assertion.InResponseTo, edit(answers, ` InResponseTo=""`)},
		{"signed response answers another request", assertion.InResponseTo, onlyResponse(edit(answers, ` InResponseTo="_other"`))},
		{"assertion answers another request", assertion.InResponseTo, inAssertion(answers, ` InResponseTo="_other"`)},
		{"assertion answers no request", assertion.InResponseTo, inAssertion(answers, "")},
		{"assertion answers an empty request", assertion.InResponseTo, inAssertion(answers, ` InResponseTo=""`)},
		{"unsolicited", assertion.InResponseTo, func(o *samltest.Response) { o.RequestID = "" }},

		{"expired", assertion.Time, func(o *samltest.Response) { o.Age = 7 * time.Minute }},
		{"from the future", assertion.Time, func(o *samltest.Response) { o.Age = -2 * time.Minute }},
		{"conditions over", assertion.Time, edit(`<saml:Conditions NotBefore="`+stamp(0)+`" NotOnOrAfter="`+stamp(5*time.Minute), `<saml:Conditions NotBefore="`+stamp(-time.Hour)+`" NotOnOrAfter="`+stamp(-time.Minute))},
		{"conditions not begun", assertion.Time, edit(`<saml:Conditions NotBefore="`+stamp(0), `<saml:Conditions NotBefore="`+stamp(61*time.Second))},
		{"conditions end before they begin", assertion.Time, edit(`<saml:Conditions NotBefore="`+stamp(0)+`" NotOnOrAfter="`+stamp(5*time.Minute), `<saml:Conditions NotBefore="`+stamp(30*time.Second)+`" NotOnOrAfter="`+stamp(-30*time.Second))},
		{"conditions with an unreadable time", assertion.Time, edit(`<saml:Conditions NotBefore="`+stamp(0), `<saml:Conditions NotBefore="yesterday`)},
		{"conditions with a time of no zone", assertion.Time, edit(`<saml:Conditions NotBefore="`+stamp(0), `<saml:Conditions NotBefore="2026-01-01T00:00:00`)},
		{"no conditions", assertion.Time, func(o *samltest.Response) {
			o.Edit = func(s string) string {
				from, to := strings.Index(s, "<saml:Conditions"), strings.Index(s, "</saml:Conditions>")+len("</saml:Conditions>")
				return s[:from] + s[to:]
			}
		}},
		{"confirmation over", assertion.Time, edit(`SubjectConfirmationData NotOnOrAfter="`+stamp(5*time.Minute), `SubjectConfirmationData NotOnOrAfter="`+stamp(-time.Minute))},
		{"confirmation not begun", assertion.Time, edit(`<saml:SubjectConfirmationData `, `<saml:SubjectConfirmationData NotBefore="`+stamp(61*time.Second)+`" `)},
		{"confirmation without NotOnOrAfter", assertion.Time, edit(`SubjectConfirmationData NotOnOrAfter="`+stamp(5*time.Minute)+`"`, `SubjectConfirmationData`)},
		{"issued in the future", assertion.Time, inAssertion(`IssueInstant="`+stamp(0), `IssueInstant="`+stamp(61*time.Second))},
		{"not issued", assertion.Time, inAssertion(` IssueInstant="`+stamp(0)+`"`, "")},
		{"session over", assertion.Time, func(o *samltest.Response) { o.Session = -time.Minute }},
		{"second session over", assertion.Time, inAssertion("<saml:AuthnStatement", `<saml:AuthnStatement AuthnInstant="`+stamp(0)+`" SessionNotOnOrAfter="`+stamp(-time.Hour)+`"/><saml:AuthnStatement`)},

		{"unreadable end of the session", assertion.Time, inAssertion("<saml:AuthnStatement ", `<saml:AuthnStatement SessionNotOnOrAfter="tomorrow" `)},
		{"long texts of many bytes per character", assertion.Issuer, inAssertion(issuer(idp), issuer("a"+strings.Repeat("é", 5000)))},

		{"version of the response", assertion.Structure, edit(`Version="2.0"`, `Version="1.1"`)},
		{"version of the assertion", assertion.Structure, inAssertion(`Version="2.0"`, `Version="2.1"`)},
		{"no version", assertion.Structure, inAssertion(` Version="2.0"`, "")},
		{"no ID of the assertion", assertion.Structure, onlyResponse(inAssertion(` ID="_assertion"`, ""))},
		{"no ID of the response", assertion.Structure, edit(` ID="_response"`, "")},
		{"ID with other characters", assertion.Structure, edit(`ID="_response"`, `ID="a/../b"`)},
		{"unreadable IssueInstant of the response", assertion.Structure, edit(`IssueInstant="`+stamp(0), `IssueInstant="x`)},

		{"blank NameID", assertion.Subject, func(o *samltest.Response) { o.User.Subject = " " }},
		{"empty NameID", assertion.Subject, func(o *samltest.Response) { o.User.Subject = "" }},
		{"NameID with a line break", assertion.Subject, func(o *samltest.Response) { o.User.Subject = "alice\nadmin" }},
		{"long NameID", assertion.Subject, func(o *samltest.Response) { o.User.Subject = strings.Repeat("a", 1025) }},
		{"no NameID", assertion.Subject, func(o *samltest.Response) { o.Edit = sub("<saml:NameID>"+alice.Subject+"</saml:NameID>", "") }},
		{"two NameIDs", assertion.Structure, edit("<saml:NameID>", "<saml:NameID>admin</saml:NameID><saml:NameID>")},
		{"BaseID", assertion.Structure, edit("<saml:NameID>", "<saml:BaseID/><saml:NameID>")},
		{"two subjects", assertion.Structure, edit("<saml:Subject>", "<saml:Subject/><saml:Subject>")},
		{"no subject", assertion.Subject, func(o *samltest.Response) {
			o.Edit = func(s string) string {
				from, to := strings.Index(s, "<saml:Subject>"), strings.Index(s, "</saml:Subject>")+len("</saml:Subject>")
				return s[:from] + s[to:]
			}
		}},
		{"two confirmation data", assertion.Structure, edit("<saml:SubjectConfirmationData ", `<saml:SubjectConfirmationData/><saml:SubjectConfirmationData `)},
		{"holder of key", assertion.Subject, edit("cm:bearer", "cm:holder-of-key")},
		{"sender vouches", assertion.Subject, edit("cm:bearer", "cm:sender-vouches")},
		{"no confirmation method", assertion.Subject, edit(` Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"`, "")},
		{"no confirmation data", assertion.Subject, func(o *samltest.Response) {
			o.Edit = func(s string) string {
				from := strings.Index(s, "<saml:SubjectConfirmationData")
				return s[:from] + s[from+strings.Index(s[from:], "/>")+2:]
			}
		}},
		{"key in the confirmation data", assertion.Structure, edit(`" Recipient="`+acs+`"`+answers+"/>", `" Recipient="`+acs+`"`+answers+`><ds:KeyInfo xmlns:ds="http://www.w3.org/2000/09/xmldsig#"/></saml:SubjectConfirmationData>`)},
		{"no AuthnStatement", assertion.Statement, func(o *samltest.Response) {
			o.Edit = func(s string) string {
				from, to := strings.Index(s, "<saml:AuthnStatement"), strings.Index(s, "</saml:AuthnStatement>")+len("</saml:AuthnStatement>")
				return s[:from] + s[to:]
			}
		}},
		{"two Conditions", assertion.Structure, edit("<saml:Conditions ", "<saml:Conditions/><saml:Conditions ")},

		{"no assertion", assertion.Structure, func(o *samltest.Response) {
			o.SignResponse = true
			o.Edit = func(s string) string { p := cutUp(s); return p.head + p.tail }
		}},
		{"no status", assertion.Structure, func(o *samltest.Response) {
			o.Edit = func(s string) string {
				from, to := strings.Index(s, "<samlp:Status>"), strings.Index(s, "</samlp:Status>")+len("</samlp:Status>")
				return s[:from] + s[to:]
			}
		}},
		{"failed, with an assertion", assertion.Status, edit("status:Success", "status:Responder")},
		{"status of another family", assertion.Status, edit("urn:oasis:names:tc:SAML:2.0:status:Success", "samlp:Success")},
		{"two statuses", assertion.Structure, edit("<samlp:StatusCode ", `<samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Responder"/><samlp:StatusCode `)},
	})
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	signer := samltest.NewKey(samltest.RSA2048, 0).Signer
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		key  *samltest.Key
		want assertion.Reason
	}{
		"expired":       {samltest.Certify(signer, now.Add(-time.Hour), now.Add(-time.Second)), assertion.Certificate},
		"not yet valid": {samltest.Certify(signer, now.Add(time.Second), now.Add(time.Hour)), assertion.Certificate},
		"P-224":         {samltest.Certify(p224, now.Add(-time.Hour), now.Add(time.Hour)), assertion.Algorithm},
		"RSA 1024":      {samltest.NewKey(samltest.RSA1024, 0), assertion.Algorithm},
	} {
		t.Run(name, func(t *testing.T) {
			p := newIdP(t, samltest.WithKey(test.key))
			mustReject(t, p.Response(good()), expect(p), test.want)
		})
	}
	t.Run("expired and for another audience", func(t *testing.T) {
		p := newIdP(t, samltest.WithKey(samltest.NewKey(samltest.RSA2048, 1)))
		e := expect(p)
		e.Certificates = []*x509.Certificate{samltest.Certify(signer, now.Add(-time.Hour), now.Add(-time.Second)).Certificate}
		mustReject(t, p.Response(good()), e, assertion.Signature)
	})
	t.Run("the detail names the unknown certificate", func(t *testing.T) {
		p := newIdP(t, samltest.WithKey(samltest.NewKey(samltest.RSA2048, 1)))
		e := expect(p)
		e.Certificates = []*x509.Certificate{samltest.NewKey(samltest.P256, 0).Certificate}
		if r := mustReject(t, p.Response(good()), e, assertion.Signature); !strings.Contains(r.Detail, "fingerprint") {
			t.Errorf("Verify() = %v, want the fingerprint of the certificate", r)
		}
	})
}

// TestSignedRefusals: only what the identity provider signed as its answer to this request may end the login.
func TestSignedRefusals(t *testing.T) {
	t.Parallel()
	failed := samltest.Response{RequestID: request, ACSURL: acs, Audience: entity, Status: "Responder", SubStatus: "AuthnFailed"}
	for _, test := range []struct {
		name string
		make func(*samltest.Response)
		want assertion.Reason
		sign bool
	}{
		{"failed", func(o *samltest.Response) { o.SignResponse = true }, assertion.Status, true},
		{"failed, unsigned", func(*samltest.Response) {}, assertion.Status, false},
		{"failed, for another request", func(o *samltest.Response) { o.SignResponse, o.RequestID = true, "_other" }, assertion.Status, false},
		{"failed, for no request", func(o *samltest.Response) { o.SignResponse, o.RequestID = true, "" }, assertion.Status, false},
		{"failed, for somewhere else", func(o *samltest.Response) { o.SignResponse, o.ACSURL = true, "https://evil.example.com/" }, assertion.Status, false},
		{"failed, of another issuer", func(o *samltest.Response) { o.SignResponse, o.Issuer = true, "https://evil.example.com/" }, assertion.Status, false},
		{"failed, without destination", func(o *samltest.Response) {
			o.SignResponse, o.Edit = true, sub(` Destination="`+acs+`"`, "")
		}, assertion.Status, false},
		{"failed, signed with another key", func(o *samltest.Response) {
			o.SignResponse, o.ResponseSignature.Key = true, samltest.NewKey(samltest.RSA2048, 1)
		}, assertion.Signature, false},
		{"failed, changed", func(o *samltest.Response) { o.SignResponse, o.Tamper = true, sub("Responder", "Requester") }, assertion.Signature, false},
		{"wrong audience", func(o *samltest.Response) { *o = good(); o.Audience = "x" }, assertion.Audience, true},
		{"wrong audience, for another request", func(o *samltest.Response) { *o = good(); o.Audience, o.RequestID = "x", "_other" }, assertion.InResponseTo, false},
		{"wrong audience, unsigned", func(o *samltest.Response) { *o = good(); o.Audience, o.Unsigned = "x", true }, assertion.Signature, false},
		{"wrapper with another status", func(o *samltest.Response) { *o = good(); o.Tamper = sub("status:Success", "status:Responder") }, assertion.Status, false},
		{"wrapper with another destination", func(o *samltest.Response) { *o = good(); o.Tamper = sub(`Destination="`, `Destination="x`) }, assertion.Destination, false},
		{"wrapper with an unreadable time", func(o *samltest.Response) { *o = good(); o.Tamper = sub(`IssueInstant="`, `IssueInstant="x`) }, assertion.Structure, false},
		{"rubbish", func(o *samltest.Response) { *o = good(); o.Tamper = func(string) string { return "<x/>" } }, assertion.Structure, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, o := newIdP(t), failed
			test.make(&o)
			if r := mustReject(t, p.Response(o), expect(p), test.want); r.Signed != test.sign {
				t.Errorf("Signed = %t, want %t: %v", r.Signed, test.sign, r)
			}
		})
	}
	t.Run("says what failed", func(t *testing.T) {
		p, o := newIdP(t), failed
		o.Edit = sub("</samlp:Status>", "<samlp:StatusMessage>no&#13;\nway</samlp:StatusMessage></samlp:Status>")
		says(t, mustReject(t, p.Response(o), expect(p), assertion.Status), "Responder", "AuthnFailed", `no\r\nway`)
		o.Edit = sub("</samlp:Status>", `<samlp:StatusMessage Value="no way"/></samlp:Status>`)
		says(t, mustReject(t, p.Response(o), expect(p), assertion.Status), "Responder", "AuthnFailed", "no way")
	})
}

func says(t *testing.T, r *assertion.Rejection, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(r.Detail, word) {
			t.Errorf("the detail %q lacks %s", r.Detail, word)
		}
	}
}

// TestEveryByteCounts changes each byte of a signed assertion, one at a time.
func TestEveryByteCounts(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t, samltest.WithECDSA(), samltest.WithEntityID("i")), good()
	o.AssertionID = "_a"
	o.User = samltest.User{Subject: "a", Attributes: map[string][]string{"g": {"b"}}}
	o.Protocol, o.Prefix, o.AssertionSignature.Prefix = "p", "a", "d" // short, as it takes long
	o.AssertionSignature.KeyInfo = "-"                                // says by which key, and is not read
	text := p.XML(o)
	mustAccept(t, encode([]byte(text)), expect(p), o.User)
	from, to := strings.Index(text, "<a:Assertion"), strings.Index(text, "</a:Assertion>")+len("</a:Assertion>")
	for i := from; i < to; i++ {
		changed := []byte(text)
		changed[i] ^= 1
		if a, err := assertion.Verify(encode(changed), expect(p)); err == nil {
			t.Errorf("Verify() accepts %q for %q: %+v", changed[i-5:i+5], text[i-5:i+5], a)
		}
	}
}

// TestTextCountsWhereItIs: text on the other side of an element is another document, even if all text of the parent is the same.
func TestTextCountsWhereItIs(t *testing.T) {
	t.Parallel()
	p := newIdP(t)
	const mixed, moved = "one<x:y>in</x:y>two &amp; &#13;<x:z/>three", "onetwo &amp; &#13;<x:y>in</x:y><x:z/>three"
	for _, c14n := range []string{samltest.Exclusive, samltest.Inclusive10, samltest.Inclusive11} {
		for _, which := range []string{"response", "assertion", "both"} {
			o := good()
			o.SignResponse, o.SignAssertion = which != "assertion", which != "response"
			o.AssertionSignature.C14N, o.ResponseSignature.C14N = c14n, c14n
			o.Edit = sub("</saml:AttributeStatement>",
				`<saml:Attribute Name="m"><saml:AttributeValue xmlns:x="urn:x">`+mixed+"</saml:AttributeValue></saml:Attribute></saml:AttributeStatement>")
			mustAccept(t, p.Response(o), expect(p), alice)
			o.Tamper = sub(mixed, moved)
			mustReject(t, p.Response(o), expect(p), assertion.Signature)
		}
	}
}
