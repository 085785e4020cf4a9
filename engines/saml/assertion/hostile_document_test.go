package assertion_test

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// prefix puts something before the document.
func prefix(s string) func(*samltest.Response) {
	return func(o *samltest.Response) { o.Tamper = func(text string) string { return s + text } }
}

func utf16Of(s string) string {
	b := []byte{0xFF, 0xFE}
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return string(b)
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`<x xmlns="urn:x">`, 60) + strings.Repeat("</x>", 60)
	var many, namespaces strings.Builder
	for i := range 50 {
		fmt.Fprintf(&many, ` a%d="1"`, i)
	}
	for range 3 {
		namespaces.WriteString(`<x`)
		for i := range 30 {
			fmt.Fprintf(&namespaces, ` xmlns:n%d="urn:%d"`, i, i)
		}
		namespaces.WriteString(">")
	}
	value := func(s string) func(*samltest.Response) {
		return edit("<saml:AttributeValue>", "<saml:AttributeValue>"+s)
	}
	runHostile(t, []hostile{
		{"comment in the NameID, signed", assertion.Structure, edit("alice@example.com<", "alice@example.com<!-- -->.evil.example.com<")},
		{"comment put into the NameID", assertion.Structure, tamper("alice@example.com</saml:NameID>", "<!-- x -->alice@example.com</saml:NameID>")},
		{"comment between elements", assertion.Structure, tamper("<saml:Subject>", "<!-- --><saml:Subject>")},
		{"comment before the root", assertion.Structure, prefix("<!-- -->")},
		{"comments that the signature covers", assertion.Structure, func(o *samltest.Response) {
			o.AssertionSignature.C14N = samltest.Exclusive + "WithComments"
			o.Edit = sub("alice@", "<!-- -->alice@")
		}},
		{"processing instruction in the NameID", assertion.Structure, edit("alice@example.com<", "alice@example.com<?x ?>.evil.example.com<")},
		{"processing instruction at the top", assertion.Structure, prefix(`<?xml-stylesheet href="https://evil.example.com/"?>`)},
		{"second XML declaration", assertion.Structure, prefix(`<?xml version="1.0"?><?xml version="1.0"?>`)},
		{"CDATA in the NameID", assertion.Structure, edit("alice@example.com<", "<![CDATA[alice@example.com]]>.evil<")},
		{"CDATA put into a signed value", assertion.Structure, tamper("alice@example.com</saml:NameID>", "<![CDATA[alice@example.com]]></saml:NameID>")},

		{"DOCTYPE", assertion.Structure, prefix(`<!DOCTYPE samlp:Response>`)},
		{"internal entity", assertion.Structure, func(o *samltest.Response) {
			o.Tamper = func(s string) string {
				return `<!DOCTYPE x [<!ENTITY e "admin">]>` + strings.Replace(s, "alice@", "&e;@", 1)
			}
		}},
		{"entity without document type", assertion.Structure, tamper("alice@", "&e;")},
		{"external entity", assertion.Structure, prefix(`<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>`)},
		{"parameter entity", assertion.Structure, prefix(`<!DOCTYPE x [<!ENTITY % e SYSTEM "https://evil.example.com/e.dtd"> %e;]>`)},
		{"billion laughs", assertion.Structure, prefix(`<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>`)},
		{"attribute defaults from a document type", assertion.Structure, prefix(`<!DOCTYPE x [<!ATTLIST samlp:Response ID ID #IMPLIED>]>`)},
		{"directive within", assertion.Structure, tamper("<saml:Subject>", "<!ELEMENT x ANY><saml:Subject>")},

		{"encoding UTF-16 declared", assertion.Encoding, prefix(`<?xml version="1.0" encoding="UTF-16"?>`)},
		{"encoding UTF-7 declared", assertion.Encoding, prefix(`<?xml version="1.0" encoding="UTF-7"?>`)},
		{"encoding Latin-1 declared", assertion.Encoding, prefix(`<?xml version="1.0" encoding="ISO-8859-1"?>`)},
		{"in UTF-16", assertion.Encoding, func(o *samltest.Response) { o.Tamper = utf16Of }},
		{"byte order mark", assertion.Encoding, prefix("\uFEFF")},
		{"blank in front", assertion.Encoding, prefix(" ")},
		{"not UTF-8", assertion.Encoding, tamper("alice@", "alice\xff@")},
		{"overlong UTF-8", assertion.Encoding, tamper("alice@", "alice\xc0\xae@")},
		{"NUL", assertion.Structure, tamper("alice@example.com</", "alice@example.com\x00</")},
		{"NUL as a reference", assertion.Structure, tamper("alice@example.com</", "alice@example.com&#0;</")},
		{"XML 1.1", assertion.Structure, prefix(`<?xml version="1.1"?>`)},

		{"default namespace undeclared", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns="">`)},
		{"prefix undeclared", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:x="">`)},
		{"prefix redefined", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:saml="urn:evil">`)},
		{"prefix redefined as another of ours", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:saml="urn:oasis:names:tc:SAML:2.0:protocol">`)},
		{"prefix not declared", assertion.Structure, tamper("<saml:Subject>", `<x:y/><saml:Subject>`)},
		{"prefix of an attribute not declared", assertion.Structure, tamper("<saml:Attribute Name", `<saml:Attribute x:y="1" Name`)},
		{"prefix xml redefined", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:xml="urn:evil">`)},
		{"prefix xmlns redefined", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:xmlns="urn:evil">`)},
		{"another prefix for the xml namespace", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:x="http://www.w3.org/XML/1998/namespace">`)},
		{"default namespace declared twice", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns="urn:x" xmlns="urn:y">`)},
		{"prefix declared twice", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:x="urn:x" xmlns:x="urn:y">`)},
		{"too many namespaces", assertion.Structure, value(namespaces.String() + "</x></x></x>")},
		{"element without namespace", assertion.Structure, tamper("<saml:Subject>", "<Subject/><saml:Subject>")},
		{"attribute twice", assertion.Structure, tamper(` Recipient=`, ` Recipient="https://evil.example.com/" Recipient=`)},
		{"attribute twice by two prefixes", assertion.Structure, edit("<saml:Attribute ", `<saml:Attribute xmlns:a="urn:x" xmlns:b="urn:x" a:y="1" b:y="2" `)},
		{"ID twice in one element", assertion.Structure, tamper(`ID="_assertion"`, `ID="_assertion" ID="_other"`)},
		{"ID of another namespace", assertion.Structure, tamper(`ID="_assertion"`, `xmlns:x="urn:x" x:ID="_assertion" ID="_other"`)},
		{"colon at the end of a name", assertion.Structure, tamper("<saml:Subject>", "<saml:/><saml:Subject>")},
		{"colon at the start of a name", assertion.Structure, tamper("<saml:Subject>", "<:saml/><saml:Subject>")},
		{"two colons in a name", assertion.Structure, tamper("<saml:Subject>", "<saml:x:y/><saml:Subject>")},
		{"colon attribute", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject :x="1">`)},
		{"xmlns attribute with a colon", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject xmlns:="urn:x">`)},
		{"namespace declared through a colon name", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject x:xmlns="urn:x">`)},

		{"unknown element", assertion.Structure, tamper("<saml:Subject>", `<saml:Evil/><saml:Subject>`)},
		{"unknown attribute", assertion.Structure, tamper("<saml:Subject>", `<saml:Subject evil="1">`)},
		{"text among elements", assertion.Structure, edit("<saml:Subject>", `<saml:Subject>admin`)},
		{"element in the NameID", assertion.Structure, edit("alice@example.com<", `alice@<x xmlns="urn:x">x</x>example.com<`)},
		{"unknown condition", assertion.Structure, edit("</saml:Conditions>", `<saml:Condition/></saml:Conditions>`)},
		{"authorization statement", assertion.Structure, edit("</saml:Assertion>", `<saml:AuthzDecisionStatement/></saml:Assertion>`)},
		{"too deep", assertion.Structure, value(deep)},
		{"too many attributes", assertion.Structure, edit("<saml:AttributeValue>", "<saml:AttributeValue"+many.String()+">")},
		{"too many elements", assertion.Statement, value(strings.Repeat(`<x xmlns="urn:x"/>`, 11_000))},
		{"not closed", assertion.Structure, tamper("</samlp:Response>", "")},
		{"closed twice", assertion.Structure, tamper("</samlp:Response>", "</samlp:Response></samlp:Response>")},
		{"closed in the wrong order", assertion.Structure, tamper("</saml:Subject>", "</saml:Conditions>")},
		{"unquoted attribute", assertion.Structure, tamper(`Version="2.0"`, "Version=2.0")},

		{"encrypted assertion", assertion.Encrypted, wrapped(func(p parts) string {
			return p.head + `<saml:EncryptedAssertion xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion"><xenc:EncryptedData xmlns:xenc="http://www.w3.org/2001/04/xmlenc#"/></saml:EncryptedAssertion>` + p.tail
		})},
		{"encrypted assertion beside a signed one", assertion.Encrypted, wrapped(func(p parts) string {
			return p.head + p.assertion + `<saml:EncryptedAssertion xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion"/>` + p.tail
		})},
		{"encrypted subject", assertion.Encrypted, edit("<saml:SubjectConfirmation ", "<saml:EncryptedID/><saml:SubjectConfirmation ")},
		{"encrypted attribute", assertion.Encrypted, edit("</saml:AttributeStatement>", "<saml:EncryptedAttribute/></saml:AttributeStatement>")},
		{"encrypted value", assertion.Encrypted, value(`<xenc:EncryptedData xmlns:xenc="http://www.w3.org/2001/04/xmlenc#"/>`)},
		{"encrypted value, deeper", assertion.Encrypted, value(`<x xmlns="urn:x"><xenc:EncryptedData xmlns:xenc="http://www.w3.org/2001/04/xmlenc#"/></x>`)},
		{"encrypted key", assertion.Encrypted, tamper("</ds:KeyInfo>", `<xenc:EncryptedKey xmlns:xenc="http://www.w3.org/2001/04/xmlenc#"/></ds:KeyInfo>`)},
	})
}

func TestEncodings(t *testing.T) {
	t.Parallel()
	p := newIdP(t)
	text := p.XML(good())
	encoded := base64.StdEncoding.EncodeToString([]byte(text))
	var deflated bytes.Buffer
	w, err := flate.NewWriter(&deflated, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	var bomb bytes.Buffer
	w.Reset(&bomb)
	for range 100 {
		_, _ = w.Write(make([]byte, 100_000))
	}
	_ = w.Close()
	for name, encoded := range map[string]string{
		"empty":                   "",
		"blank":                   " \r\n",
		"not base64":              "<samlp:Response/>",
		"garbage behind":          encoded + "!",
		"second base64 behind":    encoded + "====" + encoded,
		"base64url":               strings.NewReplacer("+", "-", "/", "_").Replace(base64.StdEncoding.EncodeToString([]byte("<\xff\xfe\xfb\xef\xbe>"))),
		"without padding":         strings.TrimRight(base64.StdEncoding.EncodeToString([]byte("<a/>")), "="),
		"loose last bits":         "PGEvPh==",
		"deflated":                base64.StdEncoding.EncodeToString(deflated.Bytes()),
		"deflate bomb":            base64.StdEncoding.EncodeToString(bomb.Bytes()),
		"twice base64":            base64.StdEncoding.EncodeToString([]byte(encoded)),
		"more than 1 MiB":         base64.StdEncoding.EncodeToString([]byte("<" + strings.Repeat(" ", 1<<20))),
		"2 MiB":                   base64.StdEncoding.EncodeToString([]byte("<" + strings.Repeat("a", 2<<20))),
		"2 MiB of blanks":         strings.Repeat(" ", 2<<20+1) + encoded,
		"JSON":                    base64.StdEncoding.EncodeToString([]byte(`{"SAMLResponse":1}`)),
		"a BOM and the response":  base64.StdEncoding.EncodeToString([]byte("\uFEFF" + text)),
		"a byte before":           base64.StdEncoding.EncodeToString([]byte("\x00" + text)),
		"percent encoded":         strings.ReplaceAll(encoded, "=", "%3D") + "%0A",
		"response, not in base64": text,
	} {
		t.Run(name, func(t *testing.T) { mustReject(t, encoded, expect(p), assertion.Encoding) })
	}
	t.Run("only a bracket", func(t *testing.T) { mustReject(t, "PA==", expect(p), assertion.Structure) })
}
