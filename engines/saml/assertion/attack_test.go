package assertion_test

import (
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// replaced does with a signed document what an attacker with an account of his own can do: its SignedInfo stays right,
// what it is about does not. value goes into the first attribute value, root into the root's start tag.
func replaced(value, root string) func(string) string {
	return func(s string) string {
		s = sub("<saml:AttributeValue>", "<saml:AttributeValue>"+value)(s)
		return sub("<samlp:Response ", "<samlp:Response "+root+" ")(s)
	}
}

// series joins what f makes of 0 to n-1.
func series(n int, f func(int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(f(i))
	}
	return b.String()
}

// TestCostly has documents that would cost the reader far more than the writer: time, or bytes that a canonical form
// repeats. They must be rejected before that.
func TestCostly(t *testing.T) {
	t.Parallel()
	attributes := series(30, func(i int) string { return fmt.Sprintf(" a%d=''", i) })
	runHostile(t, []hostile{
		{"a namespace with a long name, used often", assertion.Structure, func(o *samltest.Response) {
			o.Tamper = replaced(strings.Repeat("<p:x/>", 9000), `xmlns:p="`+strings.Repeat("u", 900_000)+`"`)
		}},
		{"in an attribute", assertion.Structure, func(o *samltest.Response) {
			o.Tamper = replaced(strings.Repeat(`<x p:a=""/>`, 9000), `xmlns:p="`+strings.Repeat("u", 300)+`"`)
		}},
		{"as a default", assertion.Structure, func(o *samltest.Response) {
			o.Tamper = replaced(`<x xmlns="`+strings.Repeat("u", 300)+`"/>`, "")
		}},
		{"many attributes", assertion.Statement, func(o *samltest.Response) {
			o.Tamper = replaced(strings.Repeat("<x"+attributes+"/>", 2000), "")
		}},
		{"many elements in many others", assertion.Statement, func(o *samltest.Response) {
			o.Tamper = replaced(strings.Repeat("<x>", 33)+strings.Repeat("<x/>", 9000)+strings.Repeat("</x>", 33), "")
		}},
		{"many elements with many namespaces around them", assertion.Statement, func(o *samltest.Response) {
			o.Tamper = replaced(strings.Repeat("<x/>", 9000), series(30, func(i int) string { return fmt.Sprintf(" xmlns:a%d='u'", i) }))
		}},
		{"outside of what is signed", assertion.Statement, tamper("</samlp:Status>", "<samlp:StatusDetail><x xmlns='u'>"+strings.Repeat("<x"+attributes+"/>", 2000)+"</x></samlp:StatusDetail></samlp:Status>")},
		{"a long signature", assertion.Signature, tamper("<ds:SignatureValue>", "<ds:SignatureValue>"+strings.Repeat("A", 100_000))},
		{"a signature with many blanks", assertion.Signature, tamper("<ds:SignatureValue>", "<ds:SignatureValue>"+strings.Repeat("\n", 100_000))},
		{"many transforms", assertion.Algorithm, tamper("</ds:Transforms>", strings.Repeat(`<ds:Transform Algorithm="`+samltest.Inclusive10+`"/>`, 5000)+"</ds:Transforms>")},
		{"many statuses in each other", assertion.Structure, tamper("<samlp:StatusCode ", strings.Repeat(`<samlp:StatusCode Value="x">`, 10_000)+"<samlp:StatusCode ")},
	})
}

// TestRenewedCertificate: the same key may have several certificates, of which one is valid.
func TestRenewedCertificate(t *testing.T) {
	t.Parallel()
	signer := samltest.NewKey(samltest.RSA2048, 0).Signer
	old, fresh := samltest.Certify(signer, now.Add(-time.Hour), now.Add(-time.Minute)), samltest.Certify(signer, now.Add(-time.Hour), now.Add(time.Hour))
	for _, keys := range [][]*samltest.Key{{old, fresh}, {fresh, old}} {
		p := newIdP(t, samltest.WithKey(keys[0]), samltest.WithNext(keys[1]))
		mustAccept(t, p.Response(good()), expect(p), alice)
	}
	p := newIdP(t, samltest.WithKey(old), samltest.WithNext(samltest.NewKey(samltest.P256, 0)))
	mustReject(t, p.Response(good()), expect(p), assertion.Certificate)
}

// TestConfusedNames has names that one parser or another may take for something else.
func TestConfusedNames(t *testing.T) {
	t.Parallel()
	forResponse := func(f func(string) string) func(*samltest.Response) {
		return onlyResponse(func(o *samltest.Response) { o.Tamper = f })
	}
	forAssertion := func(f func(string) string) func(*samltest.Response) {
		return func(o *samltest.Response) { o.Tamper = f }
	}
	runHostile(t, []hostile{
		// The library takes xmlns:ID for an ID, and so looks for a signature about that.
		{"a prefix ID before the ID", assertion.Signature, forResponse(sub("<samlp:Response ", `<samlp:Response xmlns:ID="_assertion" `))},
		{"a prefix ID before the assertion's ID", assertion.Signature, forAssertion(sub("<saml:Assertion ", `<saml:Assertion xmlns:ID="_response" `))},
		{"the ID of another namespace", assertion.Structure, forAssertion(sub("<saml:Assertion ", `<saml:Assertion xmlns:x="urn:x" x:ID="_x" `))},
		{"the ID of the same namespace", assertion.Structure, forAssertion(sub("<saml:Assertion ", `<saml:Assertion saml:ID="_x" `))},
		{"an xml:id", assertion.Structure, forAssertion(sub("<saml:Assertion ", `<saml:Assertion xml:id="_x" `))},
		{"an Id", assertion.Structure, forAssertion(sub("<saml:Assertion ", `<saml:Assertion Id="_x" `))},
		{"the ID on the signature", assertion.Structure, forAssertion(sub("<ds:Signature ", `<ds:Signature Id="_assertion" `))},
		{"a prefix Value of the status", assertion.Signature, func(o *samltest.Response) {
			o.SignResponse = true
			o.Tamper = sub("<samlp:StatusCode ", `<samlp:StatusCode xmlns:Value="urn:oasis:names:tc:SAML:2.0:status:Success" `)
			o.ResponseSignature.C14N = samltest.Inclusive11
		}},
		{"an Algorithm of another namespace", assertion.Structure, forAssertion(sub("<ds:DigestMethod ", `<ds:DigestMethod xmlns:x="urn:x" x:Algorithm="x" `))},
		{"another namespace for the assertion's prefix", assertion.Structure, forAssertion(sub("<saml:Subject>", `<saml:Subject xmlns:saml="urn:x">`))},
		{"another namespace for the signature's prefix", assertion.Structure, forAssertion(sub("<ds:SignedInfo>", `<ds:SignedInfo xmlns:ds="urn:x">`))},
		{"the same namespace by another prefix", assertion.Signature, forAssertion(func(s string) string {
			return strings.NewReplacer("<saml:NameID>", `<s2:NameID xmlns:s2="urn:oasis:names:tc:SAML:2.0:assertion">`, "</saml:NameID>", "</s2:NameID>").Replace(s)
		})},
		{"a namespace with a reference", assertion.Signature, forAssertion(sub(`<saml:NameID>`, `<saml:NameID xmlns:x="urn:&#x78;">`+"x"))},
		{"a namespace with a blank", assertion.Structure, forAssertion(sub(`<saml:Subject>`, `<saml:Subject xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion ">`))},
		{"a namespace in other case", assertion.Structure, forAssertion(sub(`<saml:Subject>`, `<saml:Subject xmlns:saml="urn:oasis:names:tc:saml:2.0:assertion">`))},
		{"a name of other letters", assertion.Structure, forAssertion(func(s string) string {
			return strings.NewReplacer("<saml:NameID>", "<saml:NаmeID>", "</saml:NameID>", "</saml:NаmeID>").Replace(s) // Cyrillic
		})},
		{"a line break in an attribute of the signature", assertion.Algorithm, forAssertion(sub(`xml-exc-c14n#"`, "xml-exc-c14n#\n\""))},
		{"a line break in the URI", assertion.Signature, forAssertion(sub(`URI="#_assertion"`, "URI=\"#_assertion\n\""))},
		{"a reference in the URI of another element", assertion.Signature, forAssertion(sub(`URI="#_assertion"`, `URI="#&#x5F;response"`))},
		{"an XPointer", assertion.Signature, forAssertion(sub(`URI="#_assertion"`, `URI="#xpointer(id('_assertion'))"`))},
		{"half a surrogate", assertion.Signature, forAssertion(sub("alice@", "alice&#xD83D;@"))},
		{"a noncharacter", assertion.Structure, forAssertion(sub("alice@", "alice\uFFFE@"))},
		{"a null", assertion.Structure, forAssertion(sub("alice@", "alice&#0;@"))},
		{"an overlong form", assertion.Encoding, forAssertion(sub("alice@", "alice\xc1\x80"))},
		{"a C1 control", assertion.Signature, forAssertion(sub("alice@", "alice\u0085@"))},
		{"a zero width space", assertion.Signature, forAssertion(sub("alice@", "alice\u200B@"))},
		{"a composed letter", assertion.Signature, func(o *samltest.Response) {
			o.Edit = sub("staff", "caf\u00E9")
			o.Tamper = sub("caf\u00E9", "cafe\u0301")
		}},
	})
}

// TestTextLikeMarkup: what is text for the signer is text for us.
func TestTextLikeMarkup(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"</saml:NameID><saml:NameID>admin", "<!-- -->admin", "]]>", "&amp;lt;", "&#65;", "<![CDATA[admin]]>", "%61dmin", "a\u2028b", " admin ", "admin\u00A0",
		strings.Repeat("&<>", 300), "]]&gt;", `"'`, "ａｄｍｉｎ", "\U0010FFFD",
	} {
		for _, c14n := range []string{samltest.Exclusive, samltest.Inclusive10} {
			p, o := newIdP(t), good()
			o.User = samltest.User{Subject: text, Attributes: map[string][]string{text: {text, "x" + text}}}
			o.AssertionSignature.C14N, o.ResponseSignature.C14N = c14n, c14n
			o.SignResponse = true
			mustAccept(t, p.Response(o), expect(p), o.User)
		}
	}
}

// TestOtherSpelling: what is the same document to every parser is accepted, with the same content.
func TestOtherSpelling(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(string) string{
		"references":                sub("alice@example.com", "&#x61;li&#99;e@example.com"),
		"references in the issuer":  sub("https://idp.example.com/metadata", "https&#58;//idp.example.com/metadata"),
		"quotes":                    sub(`Version="2.0"`, `Version='2.0'`),
		"blanks in tags":            sub("<saml:Subject>", "<saml:Subject\n\t >"),
		"an element that is closed": sub("</saml:Assertion>", "</saml:Assertion\n>"),
		"an unused namespace":       sub("<saml:Subject>", `<saml:Subject xmlns:ID="urn:x">`),
		// encoding/xml takes it for the attribute Algorithm; it is not in the canonical form.
		"a prefix Algorithm":        sub("<ds:SignatureMethod ", `<ds:SignatureMethod xmlns:Algorithm="http://www.w3.org/2000/09/xmldsig#rsa-sha1" `),
		"attributes in other order": sub(` Version="2.0" IssueInstant="2026-03-04T05:06:07.000Z"`, ` IssueInstant="2026-03-04T05:06:07.000Z" Version="2.0"`),
		"a line break of two bytes": func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
	} {
		p, o := newIdP(t), good()
		o.Edit = sub("<saml:Conditions ", "\n<saml:Conditions ")
		o.Tamper = f
		t.Run(name, func(t *testing.T) { mustAccept(t, p.Response(o), expect(p), alice) })
	}
}

// mutate is splice for what is inside of tags: attributes and declarations are repeated, moved, renamed, given other
// values and namespaces, and texts are broken up.
func mutate(r *rand.Rand, text, donor string) string {
	all, there := spans(text), spans(donor)
	if len(all) == 0 || len(there) == 0 {
		return text
	}
	at := all[r.IntN(len(all))]
	if at.to == 0 {
		return text
	}
	gt := strings.IndexAny(text[at.from:], "/>") + at.from // URLs in attributes do no harm: it is cut there, and rejected
	name := at.from + 1 + strings.IndexAny(text[at.from+1:], " />\n")
	insert := func(i int, what string) string { return text[:i] + what + text[i:] }
	values := []string{
		"_assertion", "_response", "#_assertion", "urn:oasis:names:tc:SAML:2.0:assertion", "urn:oasis:names:tc:SAML:2.0:protocol", "http://www.w3.org/2000/09/xmldsig#",
		"urn:x", "", "http://www.w3.org/XML/1998/namespace", "http://www.w3.org/2000/xmlns/", request, acs, "x y",
	}
	names := []string{
		"ID", "Id", "id", "xml:id", "xmlns", "xmlns:saml", "xmlns:samlp", "xmlns:ds", "xmlns:ID", "xmlns:x", "xmlns:Algorithm", "xmlns:xml", "xmlns:xmlns", "saml:ID", "URI",
		"Algorithm", "xsi:type", "xml:lang", "xml:base", "Recipient", "InResponseTo", "NotOnOrAfter", "Value", "Name", "x:Name", "a:b:c", ":x", "x:",
	}
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	switch r.IntN(9) {
	case 0, 1:
		return insert(name, " "+pick(names)+`="`+pick(values)+`"`)
	case 2: // an attribute of another element
		from := there[r.IntN(len(there))]
		tag := donor[from.from : from.from+strings.IndexByte(donor[from.from:], '>')]
		if parts := strings.SplitAfter(tag, `" `); len(parts) > 1 {
			return insert(name, " "+strings.TrimRight(parts[r.IntN(len(parts)-1)+1], `/`)+" ")
		}
		return text
	case 3:
		if gt < at.from || gt > at.to {
			return text
		}
		return insert(gt, pick([]string{" ", "\n", "\t", "\u00A0", "\r\n"}))
	case 4:
		return insert(at.inner, pick([]string{" ", "\n", "&#13;", "&#x20;", "<!---->", "<?x?>", "<![CDATA[]]>", "\u0085", "&amp;", "]]>", "&lt;", "admin", "\uFEFF", "&x;"}))
	case 5:
		old, with := pick([]string{"saml:", "samlp:", "ds:", "xmlns:"}), pick([]string{"saml:", "samlp:", "ds:", "x:", "", "xml:", "xmlns:"})
		return text[:at.from] + strings.ReplaceAll(text[at.from:at.to], old, with) + text[at.to:]
	case 6:
		return text[:at.from] + `<x:w xmlns:x="` + pick(values) + `">` + text[at.from:at.to] + "</x:w>" + text[at.to:]
	case 7: // the same element with other content
		from := there[r.IntN(len(there))]
		if from.to == 0 {
			return text
		}
		return text[:at.from] + donor[from.from:from.to] + text[at.to:]
	default: // one value for another, of the same or another document
		i, j := r.IntN(len(text)), r.IntN(len(donor))
		a, b := strings.IndexByte(text[i:], '"'), strings.IndexByte(donor[j:], '"')
		if a < 0 || b < 0 {
			return text
		}
		i, j = i+a+1, j+b+1
		c, d := strings.IndexByte(text[i:], '"'), strings.IndexByte(donor[j:], '"')
		if c < 0 || d < 0 {
			return text
		}
		return text[:i] + donor[j:j+d] + text[i+c:]
	}
}

// mallory has an account at the identity provider, as many signed answers about himself as he likes, and others' answers to
// other requests.
type mallory struct {
	p        *samltest.IdP
	own      []string // answers to this request
	all      []string
	accepted int
}

var malloryUser = samltest.User{Subject: "mallory", Attributes: map[string][]string{"groups": {"guests", "more guests"}, "mail": {"m@example.com"}}}

func newMallory(t testing.TB) *mallory {
	t.Helper()
	m := &mallory{p: fuzzIdP(t)}
	for _, c14n := range []string{samltest.Exclusive, samltest.Inclusive10} {
		for _, which := range []int{1, 2, 3} {
			if c14n != samltest.Exclusive && which != 3 {
				continue
			}
			o := samltest.Response{
				RequestID: request, ACSURL: acs, Audience: entity, User: malloryUser, ID: "_response", AssertionID: "_assertion",
				SignResponse: which&1 != 0, SignAssertion: which&2 != 0, RootNamespaces: which == 2,
			}
			o.AssertionSignature.C14N, o.ResponseSignature.C14N = c14n, c14n
			m.own = append(m.own, m.p.XML(o))
			mustAccept(t, encode([]byte(m.own[len(m.own)-1])), expect(m.p), malloryUser)
			for _, change := range []func(*samltest.Response){
				func(o *samltest.Response) { o.User = alice; o.RequestID = "_other" },
				func(o *samltest.Response) {
					o.User = bob
					o.Audience, o.RequestID = "https://other.example.com", "_other"
				},
				func(o *samltest.Response) { o.User = bob; o.ACSURL = "https://other.example.com/acs" },
				func(o *samltest.Response) { o.User = bob; o.Age, o.RequestID = time.Hour, "_other" },
				func(o *samltest.Response) { o.User = evil; o.Unsigned = true },
				func(o *samltest.Response) {
					o.User = evil
					o.AssertionSignature.Key = samltest.NewKey(samltest.P256, 1)
					o.ResponseSignature.Key = o.AssertionSignature.Key
				},
			} {
				other := o
				change(&other)
				m.all = append(m.all, m.p.XML(other))
			}
		}
	}
	m.all = append(m.all, m.own...)
	return m
}

func (m *mallory) check(t testing.TB, seed uint64, steps uint8) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, uint64(steps)))
	text := m.own[r.IntN(len(m.own))]
	for range 1 + steps%6 {
		donor := m.all[r.IntN(len(m.all))]
		if r.IntN(4) == 0 {
			text = splice([]byte{byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}, []string{text, donor})
		} else {
			text = mutate(r, text, donor)
		}
		if len(text) > 50_000 {
			return
		}
	}
	a, err := assertion.Verify(encode([]byte(text)), expect(m.p))
	var rejection *assertion.Rejection
	switch {
	case err == nil:
		m.accepted++
		if a.Subject != malloryUser.Subject || !maps.EqualFunc(a.Attributes, malloryUser.Attributes, slices.Equal) ||
			a.ID != "_assertion" || a.InResponseTo != request || !a.NotOnOrAfter.Equal(now.Add(5*time.Minute+assertion.Skew)) {
			t.Errorf("Verify() accepts %+v, which is not signed:\n%s", a, text)
		}
	case !errors.As(err, &rejection) || a != nil:
		t.Errorf("Verify() = %v, %v, want a rejection", a, err)
	case rejection.Signed:
		t.Errorf("Verify() = %v as the identity provider's own answer, for\n%s", rejection, text)
	}
	if a, err := assertion.ReadUnverified([]byte(text)); err == nil && a.Attributes == nil {
		t.Error("ReadUnverified() has no attributes")
	}
	// What the library's own parser reads must be well-formed to ours, too, or there was something we did not see.
	if err == nil && xml.Unmarshal([]byte(text), new(struct{})) != nil {
		t.Errorf("Verify() accepts what is no XML:\n%s", text)
	}
}

// TestMallory: whatever he makes of what he has, he stays himself, for this very login.
func TestMallory(t *testing.T) {
	t.Parallel()
	m := newMallory(t)
	for i := range uint64(150) {
		m.check(t, i, uint8(i))
	}
	if m.accepted == 0 {
		t.Error("nothing was accepted, so there was nothing to confuse")
	}
	t.Log(m.accepted, "accepted")
}

// FuzzMallory is TestMallory without an end.
func FuzzMallory(f *testing.F) {
	m := newMallory(f)
	for i := range uint64(4) {
		f.Add(i, uint8(i))
	}
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) { m.check(t, seed, steps) })
}

// TestDemandedSignatureIsTheResponses: with validate_response_signature, an assertion's signature must not pass for the
// response's, in whatever way the response claims to be what it is about.
func TestDemandedSignatureIsTheResponses(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.ID, o.AssertionID = "_response", "_assertion"
	o.SignAssertion = true
	e := expect(p)
	e.SignedResponse = true
	for name, f := range map[string]func(string) string{
		"as it is":    func(s string) string { return s },
		"a prefix ID": sub("<samlp:Response ", `<samlp:Response xmlns:ID="_assertion" `),
		"both have a signature": func(s string) string {
			c := cutUp(s)
			return strings.Replace(c.head, "</saml:Issuer>", "</saml:Issuer>"+strings.Replace(c.signature, "#_assertion", "#_response", 1), 1) + c.assertion + c.tail
		},
		"both, and a prefix ID": func(s string) string {
			c := cutUp(s)
			head := strings.Replace(c.head, "</saml:Issuer>", "</saml:Issuer>"+strings.Replace(c.signature, "#_assertion", "#_response", 1), 1)
			return strings.Replace(head, "<samlp:Response ", `<samlp:Response xmlns:ID="_assertion" `, 1) + c.assertion + c.tail
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.Tamper = f
			mustReject(t, p.Response(o), e, assertion.Signature)
		})
	}
	var none []*x509.Certificate
	e.Certificates = none
	mustReject(t, p.Response(o), e, assertion.Certificate)
}
