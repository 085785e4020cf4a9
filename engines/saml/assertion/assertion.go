// Package assertion decides whether to believe a SAML response.
//
// Verify takes what a browser posted and what was expected, and returns who the identity provider says the user is, or a
// Refusal. Nothing of the response counts before a signature of one of the expected certificates covers it, and what is
// returned is read from the signed bytes only. The order of the checks: size and encoding; structure, by one pass over the
// tokens that allows what a response needs and nothing else (structure.go); signatures, by gosaml2 and goxmldsig, one
// certificate at a time (signature.go); then what the library does not check (conditions.go).
package assertion

import (
	"crypto/x509"
	"time"
)

// Expect is what a response has to fit.
type Expect struct {
	ACSURL   string // of this login: the Destination and the Recipient must be it, byte by byte
	EntityID string // ours: every AudienceRestriction must name it, and there must be one
	Issuer   string // the identity provider's entity id
	// RequestID is the id of the request that this must be the answer to. "" expects an answer to no request: then there
	// must be no InResponseTo.
	RequestID    string
	Certificates []*x509.Certificate // at least one; tried one by one
	// SignedResponse and SignedAssertion demand that signature; otherwise one of the two suffices.
	SignedResponse  bool
	SignedAssertion bool
	Now             time.Time
}

// Assertion is what a verified response says about the user.
type Assertion struct {
	ID           string
	Issuer       string
	Subject      string // the NameID, never blank
	Format       string // of the NameID, "" if it has none
	InResponseTo string
	// Attributes are the values by attribute Name, in their order; attributes that come more than once are joined. Never
	// nil. Blank values are left out.
	Attributes map[string][]string
	// NotOnOrAfter is when the assertion stops being acceptable, with the allowance for clocks: until then its ID must not
	// be accepted again.
	NotOnOrAfter time.Time
	// SessionNotOnOrAfter is when the user's session at the identity provider ends; zero if it did not say.
	SessionNotOnOrAfter time.Time
}

// Skew is how far clocks may differ, in either direction.
const Skew = 60 * time.Second

// Reason is a word for why a response was refused.
type Reason string

// Reasons.
const (
	Encoding     Reason = "encoding"       // not base64, too large, compressed, not UTF-8
	Structure    Reason = "structure"      // not what a response may look like
	Algorithm    Reason = "algorithm"      // a signature, digest, transform or canonicalisation that is not allowed
	Encrypted    Reason = "encrypted"      // nothing here can decrypt
	Signature    Reason = "signature"      // missing, wrong, by somebody else, over something else
	Certificate  Reason = "certificate"    // the configured certificates are not valid now
	Status       Reason = "status"         // the identity provider says that the login failed
	Issuer       Reason = "issuer"         // it is by somebody else
	Destination  Reason = "destination"    // of the response
	Recipient    Reason = "recipient"      // of the subject confirmation
	Audience     Reason = "audience"       // it is for somebody else
	InResponseTo Reason = "in_response_to" // it answers another request
	Time         Reason = "time"           // too early, too late
	Subject      Reason = "subject"        // blank, too long, not confirmed as bearer
	Statement    Reason = "statement"      // no AuthnStatement, too many attributes
)

// Refusal is the error of a response that is not believed. Its texts are for logs and administrators: they hold parts of
// the response, cut to a bounded length, and never a signature's or certificate's bytes.
type Refusal struct {
	Reason Reason
	Detail string // a sentence without a full stop
	// Signed reports that the identity provider itself said so in answer to the expected request: a signature covers it.
	// Only then may the refusal end the login.
	Signed bool
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Detail }
