// Package assertion verifies SAML responses.
//
// Verify takes what a browser posted and what was expected, and returns who the identity provider says the user is, or a
// Rejection. Nothing of the response counts before a signature of one of the expected certificates covers it, and what is
// returned is read from the signed bytes only. The order of the checks: size and encoding; one pass over the tokens
// (document.go); structure, by a grammar that allows what a response needs and nothing else (grammar.go); signatures, by
// goxmldsig, one certificate at a time (signature.go); what they say and do not say (conditions.go); and gosaml2's own
// opinion of it. Both libraries get what the first pass has read, so there are no two readings of one text.
package assertion

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Expect is what a response has to fit.
type Expect struct {
	ACSURL   string // of this login: the Destination and the Recipient must be it, byte by byte
	EntityID string // ours: every AudienceRestriction must name it, and there must be one
	Issuer   string // the identity provider's entity id
	// RequestID is the id of the request that this must be the response to. "" expects a response to no request: then there
	// must be no InResponseTo.
	RequestID    string
	Certificates []*x509.Certificate // at least one; tried one by one
	// SignedResponse and SignedAssertion demand that signature; otherwise one of the two suffices.
	SignedResponse  bool
	SignedAssertion bool
	// NameIDFormat is the format that the NameID must have; "" takes any.
	NameIDFormat string
	Now          time.Time
}

// Assertion is what a verified response says about the user.
type Assertion struct {
	ID           string
	Issuer       string
	Subject      string // the NameID, never blank
	Format       string // of the NameID, "" if it has none
	InResponseTo string
	// Attributes are the values by attribute Name, in their order; attributes that come more than once are joined. Never
	// nil. Blank values are left out, and those that have elements in them, but for a NameID, whose text counts.
	Attributes map[string][]string
	// Contexts are the AuthnContextClassRefs: how the user has signed in. One of each statement that has one.
	Contexts []string
	// NotOnOrAfter is when the assertion stops being acceptable, with the allowance for clocks: until then its ID must not
	// be accepted again.
	NotOnOrAfter time.Time
	// SessionNotOnOrAfter is when the user's session at the identity provider ends; zero if it did not say.
	SessionNotOnOrAfter time.Time
}

// Skew is how far clocks may differ, in either direction.
const Skew = 60 * time.Second

// Reason is a word for why a response was rejected.
type Reason string

// Reasons.
const (
	Encoding     Reason = "encoding"       // not base64, too large, compressed, not UTF-8
	Structure    Reason = "structure"      // not what a response may look like
	Algorithm    Reason = "algorithm"      // a signature, digest, transform or canonicalisation that is not allowed
	Encrypted    Reason = "encrypted"      // nothing here can decrypt
	Signature    Reason = "signature"      // missing, wrong, by another key, over another part
	Certificate  Reason = "certificate"    // the configured certificates are not valid now
	Status       Reason = "status"         // the identity provider says that the login failed
	Issuer       Reason = "issuer"         // it is by another issuer
	Destination  Reason = "destination"    // of the response
	Recipient    Reason = "recipient"      // of the subject confirmation
	Audience     Reason = "audience"       // it is for another service
	InResponseTo Reason = "in_response_to" // it is for another request
	Time         Reason = "time"           // too early, too late
	Subject      Reason = "subject"        // blank, too long, not confirmed as bearer
	Statement    Reason = "statement"      // no AuthnStatement, too many attributes
)

// Rejection is the error of a response that is not accepted. Its texts are for logs and administrators: they hold parts of
// the response, cut to a bounded length, and never a signature's or certificate's bytes.
type Rejection struct {
	Reason Reason
	Detail string // a sentence without a full stop
	// Signed reports that the identity provider itself said so in response to the expected request: a signature covers it.
	// Only then may the Rejection end the login.
	Signed bool
}

func (r *Rejection) Error() string { return string(r.Reason) + ": " + r.Detail }

// reject returns a Rejection. Parts of the response in it have to be cut or quoted.
func reject(r Reason, format string, args ...any) error {
	return &Rejection{Reason: r, Detail: fmt.Sprintf(format, args...)}
}

// maxPart is how many bytes of a part of the response a rejection shows.
const maxPart = 150

// cut bounds a text.
func cut(s string) string {
	if len(s) <= maxPart {
		return s
	}
	n := maxPart
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// quote shows a part of the response, on one line.
func quote(s string) string { return strconv.Quote(cut(s)) }

// maxBytes is the size that a decoded response may have.
const maxBytes = 1 << 20

var withoutBlanks = strings.NewReplacer("\r", "", "\n", "", " ", "", "\t", "")

// Decode decodes the form field SAMLResponse: base64, in which line breaks, blanks and tabs do not count. Compressed and
// larger ones than 1 MiB are rejected. The error is a *Rejection.
func Decode(encoded string) ([]byte, error) {
	if len(encoded) > 2*maxBytes {
		return nil, reject(Encoding, "it is larger than %d bytes", maxBytes)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(withoutBlanks.Replace(encoded))
	switch {
	case err != nil:
		return nil, reject(Encoding, "it is not base64: %s", cut(err.Error()))
	case len(raw) > maxBytes:
		return nil, reject(Encoding, "it is larger than %d bytes", maxBytes)
	case !bytes.HasPrefix(raw, []byte("<")):
		return nil, reject(Encoding, "it is empty, compressed or in another encoding than UTF-8")
	}
	return raw, nil
}

// Verify decides about a form field SAMLResponse. The error is a *Rejection. Whether the assertion has been used before is
// not known here.
func Verify(encoded string, expect Expect) (*Assertion, error) {
	if err := expect.complete(); err != nil {
		return nil, err
	}
	raw, err := Decode(encoded)
	if err != nil {
		return nil, err
	}
	root, err := parse(raw)
	if err != nil {
		return nil, err
	}
	if err := allow(root, "samlp:Response"); err != nil {
		return nil, err
	}
	for _, e := range append(root.all("saml:Assertion"), root) {
		if err := allowSignature(e); err != nil {
			return nil, err
		}
	}
	s, err := verify(root, expect)
	if err != nil {
		return nil, err
	}
	return validate(root, s, expect)
}

// complete makes sure that nothing is compared with something empty.
func (e Expect) complete() error {
	switch {
	case len(e.Certificates) == 0:
		return reject(Certificate, "there is no certificate to check it with")
	case e.Issuer == "":
		return reject(Issuer, "the identity provider's entity id is not known")
	case e.EntityID == "":
		return reject(Audience, "our own entity id is not known")
	case e.ACSURL == "" || e.Now.IsZero():
		return reject(Destination, "it is not known which login it is for")
	}
	return nil
}

// ReadUnverified reads subject and attributes of a Response or Assertion that an administrator has as a sample, in XML.
// Nothing of it is checked, so it must not decide anything. The error is a *Rejection.
func ReadUnverified(sample []byte) (*Assertion, error) {
	if len(sample) > maxBytes {
		return nil, reject(Encoding, "it is larger than %d bytes", maxBytes)
	}
	root, err := parse(bytes.TrimSpace(bytes.TrimPrefix(sample, []byte("\uFEFF"))))
	if err != nil {
		return nil, err
	}
	a := root
	if root.name == "samlp:Response" {
		a = root.child("saml:Assertion")
		if a == nil && root.child("saml:EncryptedAssertion") != nil {
			return nil, reject(Encrypted, "the assertion is encrypted")
		}
	}
	if a == nil || a.name != "saml:Assertion" {
		return nil, reject(Structure, "it is neither an Assertion nor a Response with one")
	}
	out := &Assertion{ID: a.value("ID"), Issuer: a.child("saml:Issuer").content(), Attributes: attributes(a), Contexts: contexts(a)}
	if id := a.child("saml:Subject").child("saml:NameID"); id != nil {
		out.Subject, out.Format = id.content(), id.value("Format")
	}
	return out, nil
}
