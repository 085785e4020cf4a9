package assertion_test

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// The parts of a good response that these tests bend.
const (
	confirmationStart = `<saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer">`
	otherMethod       = `<saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:sender-vouches"/>`
)

func when(d time.Duration) string { return now.Add(d).UTC().Format("2006-01-02T15:04:05.000Z") }

// otherBearer is a confirmation for another service.
func otherBearer(d time.Duration) string {
	return confirmationStart + `<saml:SubjectConfirmationData NotOnOrAfter="` + when(d) + `" Recipient="https://other.example.com/acs" InResponseTo="` + request + `"/></saml:SubjectConfirmation>`
}

// TestWhatTheStandardAllows: responses of identity providers that differ from most and say the same.
func TestWhatTheStandardAllows(t *testing.T) {
	t.Parallel()
	const nameID = `alice@example.com</saml:NameID>`
	conditions := `<saml:Conditions NotBefore="` + when(0) + `" NotOnOrAfter="` + when(5*time.Minute) + `"`
	for name, bend := range map[string]func(*samltest.Response){
		"Conditions without NotBefore":          edit(conditions, `<saml:Conditions NotOnOrAfter="`+when(5*time.Minute)+`"`),
		"Conditions without NotOnOrAfter":       edit(conditions, `<saml:Conditions NotBefore="`+when(0)+`"`),
		"Conditions without times":              edit(conditions, `<saml:Conditions`),
		"NameID on a line of its own":           edit(nameID, "\n      alice@example.com\n    </saml:NameID>"),
		"Audience on a line of its own":         edit(entity+"</saml:Audience>", "\n  "+entity+"\n</saml:Audience>"),
		"blanks around the Audience":            edit(entity+"</saml:Audience>", "  "+entity+" </saml:Audience>"),
		"Issuer on a line of its own":           inAssertion("https://idp.example.com/metadata</saml:Issuer>", "\n https://idp.example.com/metadata\n</saml:Issuer>"),
		"another confirmation first":            edit(confirmationStart, otherMethod+confirmationStart),
		"another confirmation last":             edit("</saml:Subject>", otherMethod+"</saml:Subject>"),
		"a confirmation for another service":    edit(confirmationStart, otherBearer(5*time.Minute)+confirmationStart),
		"an Advice with references":             edit("<saml:AuthnStatement", "<saml:Advice><saml:AssertionIDRef>_other</saml:AssertionIDRef><saml:AssertionURIRef>https://idp.example.com/a</saml:AssertionURIRef></saml:Advice><saml:AuthnStatement"),
		"an Advice with something of another's": edit("<saml:AuthnStatement", `<saml:Advice><x:y xmlns:x="urn:x" a="b">z</x:y></saml:Advice><saml:AuthnStatement`),
	} {
		t.Run(name, func(t *testing.T) {
			for _, mode := range []samltest.Response{{SignAssertion: true}, {SignResponse: true}, {SignResponse: true, SignAssertion: true}} {
				p, o := newIdP(t), good()
				o.SignAssertion, o.SignResponse = mode.SignAssertion, mode.SignResponse
				bend(&o)
				mustAccept(t, p.Response(o), expect(p), alice)
			}
		})
	}
}

// edited bends a response, which must have what is replaced.
func edited(t *testing.T, o samltest.Response, bend func(*samltest.Response)) samltest.Response {
	t.Helper()
	bend(&o)
	return o
}

// TestWhatTheStandardDoesNotAllow: what looks like it.
func TestWhatTheStandardDoesNotAllow(t *testing.T) {
	t.Parallel()
	mine := `NotOnOrAfter="` + when(5*time.Minute) + `" Recipient="` + acs + `"`
	for name, test := range map[string]struct {
		reason assertion.Reason
		bend   func(*samltest.Response)
	}{
		"two confirmations, none of them ours":   {assertion.Recipient, edit(mine, `NotOnOrAfter="`+when(5*time.Minute)+`" Recipient="https://other.example.com/acs"`)},
		"ours is over, another's is not":         {assertion.Time, edit(mine, `NotOnOrAfter="`+when(-5*time.Minute)+`" Recipient="`+acs+`"`)},
		"NotBefore in the future, without end":   {assertion.Time, edit(`<saml:Conditions NotBefore="`+when(0)+`" NotOnOrAfter="`+when(5*time.Minute)+`"`, `<saml:Conditions NotBefore="`+when(time.Hour)+`"`)},
		"an Advice with an assertion":            {assertion.Structure, edit("<saml:AuthnStatement", `<saml:Advice><saml:Assertion ID="_x" Version="2.0" IssueInstant="`+when(0)+`"/></saml:Advice><saml:AuthnStatement`)},
		"an Advice with a hidden assertion":      {assertion.Structure, edit("<saml:AuthnStatement", `<saml:Advice><x:y xmlns:x="urn:x"><saml:Subject/></x:y></saml:Advice><saml:AuthnStatement`)},
		"an Advice with a signature":             {assertion.Structure, edit("<saml:AuthnStatement", `<saml:Advice><ds:Signature xmlns:ds="http://www.w3.org/2000/09/xmldsig#"/></saml:Advice><saml:AuthnStatement`)},
		"a NameID that is written the other way": {assertion.Subject, edit("alice@example.com</saml:NameID>", "\u202emoc.elpmaxe@ecila</saml:NameID>")},
		"a NameID with a line break":             {assertion.Subject, edit("alice@example.com</saml:NameID>", "alice\n@example.com</saml:NameID>")},
	} {
		t.Run(name, func(t *testing.T) {
			p := newIdP(t)
			both := edited(t, good(), test.bend)
			second := both.Edit
			both.Edit = func(s string) string {
				return sub(confirmationStart, otherBearer(5*time.Minute)+confirmationStart)(second(s))
			}
			mustReject(t, p.Response(both), expect(p), test.reason)
		})
	}
}

// TestNameIDsKeepTheirBlanks: a name with a blank is another user's.
func TestNameIDsKeepTheirBlanks(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.User.Subject = " alice@example.com"
	mustAccept(t, p.Response(o), expect(p), o.User)
}

// TestReplaysOfOtherConfirmations: an assertion is remembered for as long as any of its confirmations is good.
func TestReplaysOfOtherConfirmations(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	edit(confirmationStart, otherBearer(time.Hour)+confirmationStart)(&o)
	inner := o.Edit
	o.Edit = func(s string) string {
		return sub(`<saml:Conditions NotBefore="`+when(0)+`" NotOnOrAfter="`+when(5*time.Minute)+`"`, `<saml:Conditions`)(inner(s))
	}
	if a := mustAccept(t, p.Response(o), expect(p), alice); !a.NotOnOrAfter.Equal(now.Add(time.Hour + assertion.Skew)) {
		t.Errorf("remembered until %s", a.NotOnOrAfter)
	}
}

// TestNameIDFormat: the format is the expected one or the name is not taken for anybody's.
func TestNameIDFormat(t *testing.T) {
	t.Parallel()
	const email, unspecified = "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress", "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified"
	for _, test := range []struct {
		want, given string
		taken       bool
	}{
		{"", "", true}, {"", email, true}, {email, email, true}, {email, "", false}, {email, unspecified, false},
		{email, "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent", false}, {unspecified, "", true}, {unspecified, unspecified, true}, {unspecified, email, false},
	} {
		p, o := newIdP(t), good()
		o.Format = test.given
		e := expect(p)
		e.NameIDFormat = test.want
		if test.taken {
			mustAccept(t, p.Response(o), e, alice)
		} else if r := mustReject(t, p.Response(o), e, assertion.Subject); !r.Signed {
			t.Errorf("%q instead of %q: the login stays open", test.given, test.want)
		}
	}
}
