package samltest

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Response says how a response differs from a good one. What it leaves empty is as it should be, except that RequestID,
// ACSURL and Audience have to be given (Answer takes them from the request).
type Response struct {
	RequestID string // "" leaves InResponseTo out: a response to no request
	ACSURL    string
	Audience  string
	User      User

	Issuer      string // of both
	ID          string // of the response
	AssertionID string
	Format      string        // of the NameID
	Status      string        // the last part of a status code, such as "Responder": then there is no assertion
	SubStatus   string        // such as "AuthnFailed"
	Age         time.Duration // how long ago it was issued
	Lifetime    time.Duration // 0: five minutes; from when it was issued
	Session     time.Duration // until SessionNotOnOrAfter; 0: it is not there

	// Which elements are signed, and how. With none of the two the assertion is.
	SignResponse, SignAssertion bool
	Unsigned                    bool
	ResponseSignature           Signature
	AssertionSignature          Signature

	// Prefix of the assertion's elements: "" for saml, "-" for none. Protocol is that of the response's: "" for samlp.
	Prefix, Protocol string
	// RootNamespaces declares the assertion's namespace on the response only.
	RootNamespaces bool
	// Typed gives attribute values an xsi:type.
	Typed bool

	// Edit changes the text before it is signed, Tamper afterwards. Signatures will be where ResponseMark and
	// AssertionMark are.
	Edit, Tamper func(string) string
}

// Where signatures will be, in the text that Response.Edit gets.
const (
	ResponseMark  = "@@response@@"
	AssertionMark = "@@assertion@@"
)

const statusNS = "urn:oasis:names:tc:SAML:2.0:status:"

func escape(s string) string { return strings.ReplaceAll(attributeEscapes.Replace(s), ">", "&gt;") }

func newID() string { return "_" + rand.Text() }

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// prefixes returns a prefix with its colon and the attribute that declares it.
func prefixes(p, usual, uri string) (string, string) {
	switch p {
	case "":
		p = usual
	case "-":
		return "", ` xmlns="` + uri + `"`
	}
	return p + ":", ` xmlns:` + p + `="` + uri + `"`
}

// Response returns a response in base64. It fails the test if the response that is asked for cannot be signed.
func (p *IdP) Response(o Response) string {
	p.t.Helper()
	return base64.StdEncoding.EncodeToString([]byte(p.XML(o)))
}

// XML returns a response as text.
func (p *IdP) XML(o Response) string {
	p.t.Helper()
	text, err := p.build(o)
	if err != nil {
		p.t.Fatalf("making a response: %v", err)
	}
	return text
}

func (p *IdP) build(o Response) (string, error) {
	if !o.SignResponse && !o.SignAssertion && o.Status == "" {
		o.SignAssertion = true
	}
	if o.Unsigned {
		o.SignResponse, o.SignAssertion = false, false
	}
	for field, value := range map[*string]string{&o.Issuer: p.EntityID, &o.ID: newID(), &o.AssertionID: newID()} {
		if *field == "" {
			*field = value
		}
	}
	text := p.text(o)
	if o.Edit != nil {
		text = o.Edit(text)
	}
	var err error
	if o.SignAssertion {
		if text, err = o.AssertionSignature.Sign(text, AssertionMark, o.AssertionID, p.Key); err != nil {
			return "", fmt.Errorf("signing the assertion: %w", err)
		}
	}
	text = strings.Replace(text, AssertionMark, "", 1)
	if o.SignResponse {
		if text, err = o.ResponseSignature.Sign(text, ResponseMark, o.ID, p.Key); err != nil {
			return "", fmt.Errorf("signing the response: %w", err)
		}
	}
	text = strings.Replace(text, ResponseMark, "", 1)
	if o.Tamper != nil {
		text = o.Tamper(text)
	}
	return text, nil
}

func (p *IdP) text(o Response) string {
	sp, spNS := prefixes(o.Protocol, "samlp", "urn:oasis:names:tc:SAML:2.0:protocol")
	sa, saNS := prefixes(o.Prefix, "saml", "urn:oasis:names:tc:SAML:2.0:assertion")
	issued := p.Now().Add(-o.Age)
	root, inner := spNS, saNS
	if o.RootNamespaces {
		root, inner = spNS+saNS, ""
	}
	status := `<` + sp + `StatusCode Value="` + statusNS + `Success"/>`
	if o.Status != "" {
		sub := ""
		if o.SubStatus != "" {
			sub = `<` + sp + `StatusCode Value="` + statusNS + o.SubStatus + `"/>`
		}
		status = `<` + sp + `StatusCode Value="` + statusNS + o.Status + `">` + sub + `</` + sp + `StatusCode>`
	}
	assertion := ""
	if o.Status == "" {
		assertion = assertionText(o, sa, inner, issued)
	}
	return `<` + sp + `Response` + root + ` ID="` + o.ID + `" Version="2.0" IssueInstant="` + stamp(issued) + `" Destination="` + escape(o.ACSURL) + `"` +
		inResponseTo(o) + `><` + sa + `Issuer` + inner + `>` + escape(o.Issuer) + `</` + sa + `Issuer>` + ResponseMark +
		`<` + sp + `Status>` + status + `</` + sp + `Status>` + assertion + `</` + sp + `Response>`
}

func inResponseTo(o Response) string {
	if o.RequestID == "" {
		return ""
	}
	return ` InResponseTo="` + escape(o.RequestID) + `"`
}

func assertionText(o Response, sa, ns string, issued time.Time) string {
	lifetime := o.Lifetime
	if lifetime == 0 {
		lifetime = 5 * time.Minute
	}
	until, format, session := stamp(issued.Add(lifetime)), "", ""
	if o.Format != "" {
		format = ` Format="` + escape(o.Format) + `"`
	}
	if o.Session != 0 {
		session = ` SessionNotOnOrAfter="` + stamp(issued.Add(o.Session)) + `"`
	}
	return `<` + sa + `Assertion` + ns + ` ID="` + o.AssertionID + `" Version="2.0" IssueInstant="` + stamp(issued) + `">` +
		`<` + sa + `Issuer>` + escape(o.Issuer) + `</` + sa + `Issuer>` + AssertionMark +
		`<` + sa + `Subject><` + sa + `NameID` + format + `>` + escape(o.User.Subject) + `</` + sa + `NameID>` +
		`<` + sa + `SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><` + sa + `SubjectConfirmationData NotOnOrAfter="` + until +
		`" Recipient="` + escape(o.ACSURL) + `"` + inResponseTo(o) + `/></` + sa + `SubjectConfirmation></` + sa + `Subject>` +
		`<` + sa + `Conditions NotBefore="` + stamp(issued) + `" NotOnOrAfter="` + until + `"><` + sa + `AudienceRestriction><` + sa + `Audience>` +
		escape(o.Audience) + `</` + sa + `Audience></` + sa + `AudienceRestriction></` + sa + `Conditions>` +
		`<` + sa + `AuthnStatement AuthnInstant="` + stamp(issued) + `"` + session + ` SessionIndex="` + o.AssertionID + `"><` + sa + `AuthnContext><` + sa +
		`AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport</` + sa + `AuthnContextClassRef></` + sa + `AuthnContext></` + sa + `AuthnStatement>` +
		attributesText(o, sa) + `</` + sa + `Assertion>`
}

func attributesText(o Response, sa string) string {
	if len(o.User.Attributes) == 0 {
		return ""
	}
	typed := ""
	if o.Typed {
		typed = ` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xs="http://www.w3.org/2001/XMLSchema" xsi:type="xs:string"`
	}
	var b strings.Builder
	b.WriteString(`<` + sa + `AttributeStatement>`)
	for _, name := range slices.Sorted(maps.Keys(o.User.Attributes)) {
		b.WriteString(`<` + sa + `Attribute Name="` + escape(name) + `" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:basic">`)
		for _, v := range o.User.Attributes[name] {
			b.WriteString(`<` + sa + `AttributeValue` + typed + `>` + escape(v) + `</` + sa + `AttributeValue>`)
		}
		b.WriteString(`</` + sa + `Attribute>`)
	}
	b.WriteString(`</` + sa + `AttributeStatement>`)
	return b.String()
}
