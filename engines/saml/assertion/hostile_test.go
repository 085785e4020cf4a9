package assertion_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// hostile is a response that has to be rejected, and a test of that name. Without a signing option its assertion is signed.
type hostile struct {
	name string
	want assertion.Reason
	make func(*samltest.Response)
}

func runHostile(t *testing.T, tests []hostile) {
	t.Helper()
	accepted := map[string]bool{} // what was found to be, without what makes it hostile
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, o := newIdP(t), good()
			o.ID, o.AssertionID = "_response", "_assertion"
			test.make(&o)
			basis := o
			basis.Edit, basis.Tamper = nil, nil
			if id := fmt.Sprintf("%+v", basis); (o.Edit != nil || o.Tamper != nil) && !accepted[id] {
				mustAccept(t, p.Response(basis), expect(p), alice) // or its rejection would prove nothing
				accepted[id] = true
			}
			t.Log(mustReject(t, p.Response(o), expect(p), test.want))
		})
	}
}

// sub replaces the first occurrence of something, which must be there.
func sub(old, replacement string) func(string) string {
	return func(s string) string {
		if !strings.Contains(s, old) {
			panic("the response has no " + old)
		}
		return strings.Replace(s, old, replacement, 1)
	}
}

// edit changes a response before it is signed, tamper afterwards.
func edit(old, replacement string) func(*samltest.Response) {
	return func(o *samltest.Response) { o.Edit = sub(old, replacement) }
}

func tamper(old, replacement string) func(*samltest.Response) {
	return func(o *samltest.Response) { o.Tamper = sub(old, replacement) }
}

// both is edit with response and assertion signed.
func both(f func(*samltest.Response)) func(*samltest.Response) {
	return func(o *samltest.Response) {
		o.SignResponse, o.SignAssertion = true, true
		f(o)
	}
}

// onlyResponse is edit with only the response signed.
func onlyResponse(f func(*samltest.Response)) func(*samltest.Response) {
	return func(o *samltest.Response) {
		o.SignResponse = true
		f(o)
	}
}

// wrapped builds a document from the parts of a signed one: the signed assertion, the same one without its signature,
// the signature, and an assertion of the attacker's.
func wrapped(build func(p parts) string) func(*samltest.Response) {
	return func(o *samltest.Response) { o.Tamper = func(s string) string { return build(cutUp(s)) } }
}

type parts struct {
	whole     string // the response
	head      string // of the response, to before the assertion
	assertion string
	bare      string // the assertion without its signature
	signature string
	evil      string // an assertion about another user, unsigned, with an ID of its own
	tail      string
}

func cutUp(s string) parts {
	p := parts{whole: s}
	start := strings.Index(s, "<saml:Assertion")
	end := strings.Index(s, "</saml:Assertion>") + len("</saml:Assertion>")
	p.head, p.assertion, p.tail = s[:start], s[start:end], s[end:]
	from, to := strings.Index(p.assertion, "<ds:Signature "), strings.Index(p.assertion, "</ds:Signature>")
	if from >= 0 {
		p.signature = p.assertion[from : to+len("</ds:Signature>")]
	}
	p.bare = strings.Replace(p.assertion, p.signature, "", 1)
	p.evil = strings.NewReplacer(`ID="_assertion"`, `ID="_evil"`, "alice@example.com", "admin@example.com").Replace(p.bare)
	return p
}

// in puts something where an element ends.
func in(s, element, what string) string {
	return strings.Replace(s, "</"+element+">", what+"</"+element+">", 1)
}

func TestWrapping(t *testing.T) {
	t.Parallel()
	responseSignature := func(s string) (string, string) {
		from, to := strings.Index(s, "<ds:Signature "), strings.Index(s, "</ds:Signature>")+len("</ds:Signature>")
		return s[from:to], s[:from] + s[to:]
	}
	evilResponse := func(s string) string {
		return strings.NewReplacer("_response", "_evilresponse", "_assertion", "_evil", "alice@", "admin@").Replace(s)
	}
	runHostile(t, []hostile{
		{"XSW1 original response in the signature of a forged one", assertion.Structure, onlyResponse(func(o *samltest.Response) {
			o.Tamper = func(s string) string {
				signature, bare := responseSignature(s)
				return strings.Replace(evilResponse(bare), "</saml:Issuer>", "</saml:Issuer>"+in(signature, "ds:Signature", bare), 1)
			}
		})},
		{"XSW2 original response beside the signature of a forged one", assertion.Structure, onlyResponse(func(o *samltest.Response) {
			o.Tamper = func(s string) string {
				signature, bare := responseSignature(s)
				return strings.Replace(evilResponse(bare), "</saml:Issuer>", "</saml:Issuer>"+bare+signature, 1)
			}
		})},
		{"XSW3 forged assertion before the signed one", assertion.Structure, wrapped(func(p parts) string { return p.head + p.evil + p.assertion + p.tail })},
		{"forged assertion after the signed one", assertion.Structure, wrapped(func(p parts) string { return p.head + p.assertion + p.evil + p.tail })},
		{"XSW4 signed assertion in a forged one", assertion.Structure, wrapped(func(p parts) string { return p.head + in(p.evil, "saml:Assertion", p.assertion) + p.tail })},
		{"XSW5 signature in a forged assertion, original at the end", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.evil, "</saml:Issuer>", "</saml:Issuer>"+p.signature, 1) + p.bare + p.tail
		})},
		{"XSW6 original in the signature of a forged assertion", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.evil, "</saml:Issuer>", "</saml:Issuer>"+in(p.signature, "ds:Signature", p.bare), 1) + p.tail
		})},
		{"XSW7 forged assertion in Extensions", assertion.Structure, wrapped(func(p parts) string {
			return p.head + "<samlp:Extensions>" + p.evil + "</samlp:Extensions>" + p.assertion + p.tail
		})},
		{"XSW8 original in an Object of the signature", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.evil, "</saml:Issuer>", "</saml:Issuer>"+in(p.signature, "ds:Signature", "<ds:Object>"+p.bare+"</ds:Object>"), 1) + p.tail
		})},
		{"original in Extensions, forged assertion in its place", assertion.Structure, wrapped(func(p parts) string {
			return p.head + p.evil + "<samlp:Extensions>" + p.assertion + "</samlp:Extensions>" + p.tail
		})},
		{"foreign element in the response", assertion.Structure, wrapped(func(p parts) string { return p.head + `<x xmlns="urn:x"/>` + p.assertion + p.tail })},
		{"foreign element in the assertion", assertion.Structure, wrapped(func(p parts) string {
			return p.head + in(p.assertion, "saml:Assertion", `<x xmlns="urn:x"/>`) + p.tail
		})},
		{"foreign element in an attribute", assertion.Structure, wrapped(func(p parts) string {
			return p.head + in(p.assertion, "saml:Attribute", `<x xmlns="urn:x"/>`) + p.tail
		})},
		{"original in a StatusDetail", assertion.Structure, wrapped(func(p parts) string {
			return in(p.head, "samlp:Status", "<samlp:StatusDetail>"+p.assertion+"</samlp:StatusDetail>") + p.evil + p.tail
		})},
		{"original deep in a StatusDetail", assertion.Structure, wrapped(func(p parts) string {
			return in(p.head, "samlp:Status", `<samlp:StatusDetail><x xmlns="urn:x">`+p.assertion+`</x></samlp:StatusDetail>`) + p.evil + p.tail
		})},
		{"original in Advice", assertion.Structure, wrapped(func(p parts) string {
			return p.head + in(p.evil, "saml:Assertion", "<saml:Advice>"+p.assertion+"</saml:Advice>") + p.tail
		})},
		{"original in an AttributeValue", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.evil, "<saml:AttributeValue>", "<saml:AttributeValue>"+p.assertion, 1) + p.tail
		})},
		{"original in KeyInfo", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.evil, "</saml:Issuer>", "</saml:Issuer>"+in(p.signature, "ds:KeyInfo", p.bare), 1) + p.tail
		})},
		{"signed assertion in an unsigned wrapper", assertion.Structure, wrapped(func(p parts) string { return p.head + `<x xmlns="urn:x">` + p.assertion + "</x>" + p.tail })},
		{"response in a response", assertion.Structure, wrapped(func(p parts) string { return in(p.head+p.evil+p.tail, "samlp:Response", p.whole) })},
		{"duplicate ID, forged first", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.evil, "_evil", "_assertion", 1) + p.assertion + p.tail
		})},
		{"forged response with the assertion's ID", assertion.Structure, wrapped(func(p parts) string {
			return strings.Replace(p.whole, `ID="_response"`, `ID="_assertion"`, 1)
		})},
		{"duplicate ID, in another case", assertion.Structure, wrapped(func(p parts) string {
			return in(p.head, "samlp:Status", `<samlp:StatusDetail><x xmlns="urn:x" id="_assertion"/></samlp:StatusDetail>`) + p.assertion + p.tail
		})},
		{"duplicate ID, as xml:id", assertion.Structure, wrapped(func(p parts) string {
			return in(p.head, "samlp:Status", `<samlp:StatusDetail><x xmlns="urn:x" xml:id="_assertion"/></samlp:StatusDetail>`) + p.assertion + p.tail
		})},
		{"two signed assertions", assertion.Structure, both(func(o *samltest.Response) {
			o.SignResponse = false
			o.Tamper = func(s string) string {
				p := cutUp(s)
				return p.head + p.assertion + strings.ReplaceAll(p.assertion, "_assertion", "_assertion2") + p.tail
			}
		})},
		{"second assertion in a signed response", assertion.Structure, onlyResponse(func(o *samltest.Response) {
			o.Edit = func(s string) string {
				p := cutUp(s)
				return p.head + p.assertion + strings.Replace(p.evil, samltest.AssertionMark, "", 1) + p.tail
			}
		})},
		{"forged assertion of the name of another namespace", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.ReplaceAll(p.evil, "urn:oasis:names:tc:SAML:2.0:assertion", "urn:oasis:names:tc:SAML:1.0:assertion") + p.assertion + p.tail
		})},
		{"signature moved to the response", assertion.Signature, wrapped(func(p parts) string {
			return strings.Replace(p.head, "</saml:Issuer>", "</saml:Issuer>"+p.signature, 1) + p.bare + p.tail
		})},
		{"signature moved below the subject", assertion.Structure, wrapped(func(p parts) string {
			return p.head + in(p.bare, "saml:Subject", p.signature) + p.tail
		})},
		{"signature in a StatusDetail", assertion.Structure, wrapped(func(p parts) string {
			return in(p.head, "samlp:Status", "<samlp:StatusDetail>"+p.signature+"</samlp:StatusDetail>") + p.evil + p.tail
		})},
		{"second signature in a StatusDetail", assertion.Structure, wrapped(func(p parts) string {
			return in(p.head, "samlp:Status", "<samlp:StatusDetail>"+p.signature+"</samlp:StatusDetail>") + p.assertion + p.tail
		})},
		{"second signature beside the first", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.assertion, p.signature, p.signature+p.signature, 1) + p.tail
		})},
		{"assertion signed, forged in a signed response of the same session", assertion.Signature, both(func(o *samltest.Response) {
			o.Tamper = func(s string) string { return strings.ReplaceAll(s, "alice@example.com", "admin@example.com") }
		})},
		{"assertion before its response's other children", assertion.Structure, wrapped(func(p parts) string { return p.assertion + p.whole })},
		{"second document behind", assertion.Structure, wrapped(func(p parts) string { return p.whole + evilResponse(p.head+p.evil+p.tail) })},
		{"text behind", assertion.Structure, wrapped(func(p parts) string { return p.whole + "x" })},
		{"text in front of the root", assertion.Structure, wrapped(func(p parts) string { return `<?xml version="1.0"?>x` + p.whole })},
		{"bare assertion", assertion.Structure, wrapped(func(p parts) string { return p.assertion })},
		{"logout response as root", assertion.Structure, tamperAll("samlp:Response", "samlp:LogoutResponse")},
		{"root of another namespace", assertion.Structure, tamper("urn:oasis:names:tc:SAML:2.0:protocol", "urn:oasis:names:tc:SAML:1.0:protocol")},
	})
}

func tamperAll(old, replacement string) func(*samltest.Response) {
	return func(o *samltest.Response) {
		o.Tamper = func(s string) string { return strings.ReplaceAll(s, old, replacement) }
	}
}

// TestCutUp makes sure that wrapping attacks put the parts of a response together as they were.
func TestCutUp(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.Tamper = func(s string) string {
		c := cutUp(s)
		if c.signature == "" || c.bare == c.assertion || !strings.Contains(c.evil, "admin@") {
			t.Errorf("cutUp() = %+v", c)
		}
		return c.head + c.assertion + c.tail
	}
	o.AssertionID = "_assertion"
	mustAccept(t, p.Response(o), expect(p), alice)
}

func TestSignatures(t *testing.T) {
	t.Parallel()
	attacker := samltest.NewKey(samltest.RSA2048, 1)
	ours := samltest.NewKey(samltest.RSA2048, 0)
	sign := func(s samltest.Signature) func(*samltest.Response) {
		return func(o *samltest.Response) { o.AssertionSignature = s }
	}
	change := func(old, replacement string) func(*samltest.Response) {
		return sign(samltest.Signature{Edit: sub(old, replacement)})
	}
	runHostile(t, []hostile{
		{"no signature", assertion.Signature, func(o *samltest.Response) { o.Unsigned = true }},
		{"signature stripped", assertion.Signature, wrapped(func(p parts) string { return p.head + p.bare + p.tail })},
		{"signature stripped and forged", assertion.Signature, wrapped(func(p parts) string { return p.head + p.evil + p.tail })},
		{"empty signature", assertion.Structure, wrapped(func(p parts) string {
			return p.head + strings.Replace(p.assertion, p.signature, `<ds:Signature xmlns:ds="http://www.w3.org/2000/09/xmldsig#"/>`, 1) + p.tail
		})},
		{"signature of another namespace", assertion.Structure, tamper(`xmlns:ds="http://www.w3.org/2000/09/xmldsig#"`, `xmlns:ds="http://www.w3.org/2000/09/xmldsig"`)},
		{"attacker's key and certificate", assertion.Signature, sign(samltest.Signature{Key: attacker})},
		{"attacker's key, our certificate", assertion.Signature, sign(samltest.Signature{Key: attacker, KeyInfo: samltest.KeyInfo(ours, "ds:")})},
		{"attacker's key, both certificates", assertion.Signature, sign(samltest.Signature{Key: attacker, KeyInfo: samltest.KeyInfo(ours, "ds:")[:len("<ds:KeyInfo>")] +
			strings.TrimPrefix(strings.TrimSuffix(samltest.KeyInfo(ours, "ds:"), "</ds:KeyInfo>"), "<ds:KeyInfo>") + strings.TrimPrefix(samltest.KeyInfo(attacker, "ds:"), "<ds:KeyInfo>")})},
		{"attacker's key without KeyInfo", assertion.Signature, sign(samltest.Signature{Key: attacker, KeyInfo: "-"})},
		{"attacker's EC key", assertion.Signature, sign(samltest.Signature{Key: samltest.NewKey(samltest.P256, 3)})},
		{"signature of another assertion", assertion.Signature, wrapped(func(p parts) string {
			return p.head + strings.Replace(strings.Replace(p.evil, "_evil", "_assertion", 1), "</saml:Issuer>", "</saml:Issuer>"+p.signature, 1) + p.tail
		})},
		{"signature of another element", assertion.Signature, func(o *samltest.Response) { o.AssertionSignature.URI = "#_response" }},
		{"empty reference", assertion.Signature, sign(samltest.Signature{Edit: sub(`URI="#_assertion"`, `URI=""`)})},
		{"reference without URI", assertion.Signature, sign(samltest.Signature{Edit: sub(` URI="#_assertion"`, ``)})},
		{"reference by XPointer", assertion.Signature, sign(samltest.Signature{Edit: sub(`URI="#_assertion"`, `URI="#xpointer(id('_assertion'))"`)})},
		{"reference to the net", assertion.Signature, sign(samltest.Signature{Edit: sub(`URI="#_assertion"`, `URI="https://evil.example.com/_assertion"`)})},
		{"two references", assertion.Structure, sign(samltest.Signature{Edit: func(s string) string {
			from, to := strings.Index(s, "<ds:Reference"), strings.Index(s, "</ds:Reference>")+len("</ds:Reference>")
			return s[:from] + strings.Replace(strings.Replace(s[from:to], "DIGEST", "AAAA", 1), "#_assertion", "#_other", 1) + s[from:]
		}})},
		{"two SignedInfo", assertion.Structure, sign(samltest.Signature{Edit: func(s string) string {
			from, to := strings.Index(s, "<ds:SignedInfo"), strings.Index(s, "</ds:SignedInfo>")+len("</ds:SignedInfo>")
			return s[:to] + strings.Replace(s[from:to], "DIGEST", "AAAA", 1) + s[to:]
		}})},
		{"no reference", assertion.Structure, func(o *samltest.Response) {
			o.Tamper = func(s string) string {
				from, to := strings.Index(s, "<ds:Reference"), strings.Index(s, "</ds:Reference>")+len("</ds:Reference>")
				return s[:from] + s[to:]
			}
		}},
		{"no canonicalisation method", assertion.Structure, tamper(`<ds:CanonicalizationMethod Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#"/>`, "")},
		{"no signature method", assertion.Structure, tamper(`<ds:SignatureMethod Algorithm="http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"/>`, "")},
		{"no digest method", assertion.Structure, tamper(`<ds:DigestMethod Algorithm="http://www.w3.org/2001/04/xmlenc#sha256"/>`, "")},
		{"two digests", assertion.Structure, tamper("<ds:DigestValue>", "<ds:DigestValue/><ds:DigestValue>")},
		{"comment in the digest", assertion.Structure, tamper("<ds:DigestValue>", "<ds:DigestValue>AAAA<!---->")},
		{"other digest", assertion.Signature, tamper("<ds:DigestValue>", "<ds:DigestValue>AAAA")},
		{"other signature value", assertion.Signature, tamper("<ds:SignatureValue>", "<ds:SignatureValue>AAAA")},
		{"signature value that is not base64", assertion.Signature, tamper("<ds:SignatureValue>", "<ds:SignatureValue>*")},
		{"no signature value", assertion.Structure, tamperBetween("<ds:SignatureValue>", "</ds:SignatureValue>")},
		{"two signature values", assertion.Structure, tamper("<ds:SignatureValue>", "<ds:SignatureValue/><ds:SignatureValue>")},
		{"subject changed", assertion.Signature, tamper("alice@example.com</saml:NameID>", "admin@example.com</saml:NameID>")},
		{"attribute added", assertion.Signature, tamper("</saml:AttributeStatement>", `<saml:Attribute Name="groups"><saml:AttributeValue>admins</saml:AttributeValue></saml:Attribute></saml:AttributeStatement>`)},
		{"attribute in a signed response changed", assertion.Signature, onlyResponse(tamper("<saml:AttributeValue>staff", "<saml:AttributeValue>admins"))},
		{"inner signature wrong, outer right", assertion.Signature, both(func(o *samltest.Response) { o.AssertionSignature.Key = attacker })},
		{"outer signature wrong, inner right", assertion.Signature, both(func(o *samltest.Response) { o.ResponseSignature.Key = attacker })},
		{"KeyInfo by retrieval", assertion.Structure, sign(samltest.Signature{KeyInfo: `<ds:KeyInfo><ds:RetrievalMethod URI="https://evil.example.com/"/></ds:KeyInfo>`})},
		{"object in the signature", assertion.Structure, tamper("</ds:Signature>", "<ds:Object>x</ds:Object></ds:Signature>")},
		{"manifest", assertion.Structure, tamper("</ds:Signature>", `<ds:Object><ds:Manifest><ds:Reference URI="#_assertion"/></ds:Manifest></ds:Object></ds:Signature>`)},

		{"RSA with SHA-1", assertion.Algorithm, change("http://www.w3.org/2001/04/xmldsig-more#rsa-sha256", "http://www.w3.org/2000/09/xmldsig#rsa-sha1")},
		{"ECDSA with SHA-1", assertion.Algorithm, change("#rsa-sha256", "#ecdsa-sha1")},
		{"digest by SHA-1", assertion.Algorithm, change("http://www.w3.org/2001/04/xmlenc#sha256", "http://www.w3.org/2000/09/xmldsig#sha1")},
		{"digest by MD5", assertion.Algorithm, change("http://www.w3.org/2001/04/xmlenc#sha256", "http://www.w3.org/2001/04/xmldsig-more#md5")},
		{"RSA with MD5", assertion.Algorithm, change("#rsa-sha256", "#rsa-md5")},
		{"RSA-PSS", assertion.Algorithm, change("http://www.w3.org/2001/04/xmldsig-more#rsa-sha256", "http://www.w3.org/2007/05/xmldsig-more#sha256-rsa-MGF1")},
		{"DSA", assertion.Algorithm, change("http://www.w3.org/2001/04/xmldsig-more#rsa-sha256", "http://www.w3.org/2000/09/xmldsig#dsa-sha1")},
		{"no algorithm", assertion.Algorithm, change("http://www.w3.org/2001/04/xmldsig-more#rsa-sha256", "")},
		{"algorithm none", assertion.Algorithm, change("http://www.w3.org/2001/04/xmldsig-more#rsa-sha256", "none")},
		{"HMAC with the certificate as key", assertion.Algorithm, sign(samltest.Signature{HMAC: ours.Certificate.Raw})},
		{"truncated HMAC", assertion.Structure, sign(samltest.Signature{HMAC: ours.Certificate.Raw, Edit: sub(`#hmac-sha256"/>`, `#hmac-sha256"><ds:HMACOutputLength>8</ds:HMACOutputLength></ds:SignatureMethod>`)})},
		{"key of the wrong kind for the algorithm", assertion.Signature, change("#rsa-sha256", "#ecdsa-sha256")},
		{"XPath transform", assertion.Structure, change(`<ds:Transform Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#">`, `<ds:Transform Algorithm="http://www.w3.org/TR/1999/REC-xpath-19991116"><ds:XPath>false()</ds:XPath>`)},
		{"XSLT transform", assertion.Algorithm, change(`<ds:Transform Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#">`, `<ds:Transform Algorithm="http://www.w3.org/TR/1999/REC-xslt-19991116">`)},
		{"base64 transform", assertion.Algorithm, change(`<ds:Transform Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#">`, `<ds:Transform Algorithm="http://www.w3.org/2000/09/xmldsig#base64">`)},
		{"transform of the attacker's", assertion.Algorithm, change(`<ds:Transform Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#">`, `<ds:Transform Algorithm="urn:evil">`)},
		{"transform twice", assertion.Algorithm, change(`<ds:Transform Algorithm="http://www.w3.org/2000/09/xmldsig#enveloped-signature"/>`, `<ds:Transform Algorithm="http://www.w3.org/2000/09/xmldsig#enveloped-signature"/><ds:Transform Algorithm="http://www.w3.org/2000/09/xmldsig#enveloped-signature"/>`)},
		{"no enveloped transform", assertion.Algorithm, change(`<ds:Transform Algorithm="http://www.w3.org/2000/09/xmldsig#enveloped-signature"/>`, "")},
		{"no transforms", assertion.Structure, func(o *samltest.Response) {
			o.AssertionSignature.Edit = func(s string) string {
				from, to := strings.Index(s, "<ds:Transforms>"), strings.Index(s, "</ds:Transforms>")+len("</ds:Transforms>")
				return s[:from] + s[to:]
			}
		}},
		{"canonicalisation of the attacker's", assertion.Algorithm, change(`<ds:CanonicalizationMethod Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#"/>`, `<ds:CanonicalizationMethod Algorithm="urn:evil"/>`)},
		{"algorithm as an attribute of another namespace", assertion.Structure, change(`<ds:SignatureMethod Algorithm=`, `<ds:SignatureMethod xmlns:x="urn:x" x:Algorithm="http://www.w3.org/2001/04/xmldsig-more#rsa-sha256" Algorithm=`)},
	})
}

// tamperBetween removes everything from a text up to the end of another.
func tamperBetween(from, to string) func(*samltest.Response) {
	return func(o *samltest.Response) {
		o.Tamper = func(s string) string {
			return s[:strings.Index(s, from)] + s[strings.Index(s, to)+len(to):]
		}
	}
}
