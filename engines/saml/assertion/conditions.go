package assertion

import (
	"cmp"
	"encoding/xml"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	saml2 "github.com/russellhaering/gosaml2"
	"github.com/russellhaering/gosaml2/types"
	dsig "github.com/russellhaering/goxmldsig"
)

const (
	success      = "urn:oasis:names:tc:SAML:2.0:status:Success"
	bearer       = "urn:oasis:names:tc:SAML:2.0:cm:bearer"
	entityFormat = "urn:oasis:names:tc:SAML:2.0:nameid-format:entity"
)

// maxSubject is the length of the longest NameID, in bytes. SAML's own limit for persistent ones is 256 characters.
const maxSubject = 1024

// content returns the text of an element, "" of nil, without the blanks that a provider has put around it which writes each
// element on a line of its own. Other blanks are kept: " alice" may be another user than "alice".
func (e *element) content() string {
	if e == nil {
		return ""
	}
	const blank = " \t\r\n"
	before := e.text[:len(e.text)-len(strings.TrimLeft(e.text, blank))]
	after := e.text[len(strings.TrimRight(e.text, blank)):]
	if strings.ContainsAny(before, "\r\n") || strings.ContainsAny(after, "\r\n") {
		return strings.Trim(e.text, blank)
	}
	return e.text
}

// validate decides about a response whose signatures, as far as it has any, are right. First that it is for this login:
// what is wrong after that, and signed, is the identity provider's response, and the rejection says so.
func validate(root *element, s signed, expect Expect) (*Assertion, error) {
	response := root
	if s.response != nil {
		response = s.response
	}
	if response.child("samlp:Status").child("samlp:StatusCode") == nil {
		return nil, reject(Structure, "it has no StatusCode")
	}
	if code := response.child("samlp:Status").child("samlp:StatusCode"); code.value("Value") != success {
		return nil, failed(response, code, s, expect)
	}
	a, err := assertionOf(response, s, expect)
	if err != nil {
		return nil, err
	}
	if err := addressed(response, s.response != nil, expect); err != nil {
		return nil, err
	}
	data, err := confirmed(a, expect)
	if err != nil {
		return nil, err
	}
	out, err := accept(a, data, expect)
	if err != nil {
		return nil, bound(err, expect)
	}
	if err := secondOpinion(response, a, data, expect); err != nil {
		return nil, err
	}
	return out, nil
}

// bound marks a rejection as the identity provider's own response to the expected request.
func bound(err error, expect Expect) error {
	if r, ok := err.(*Rejection); ok && expect.RequestID != "" {
		r.Signed = true
	}
	return err
}

// failed returns the rejection of a response that says that the login failed.
func failed(response, code *element, s signed, expect Expect) error {
	text := shortStatus(code.value("Value"))
	if sub := code.child("samlp:StatusCode"); sub != nil {
		text += " / " + shortStatus(sub.value("Value"))
	}
	if message := response.child("samlp:Status").child("samlp:StatusMessage"); message != nil {
		if m := strings.TrimSpace(cmp.Or(message.text, message.value("Value"))); m != "" {
			text += ": " + quote(m)
		}
	}
	err := reject(Status, "the identity provider answered %s", text)
	if s.response == nil || addressed(response, true, expect) != nil || response.value("InResponseTo") != expect.RequestID {
		return err
	}
	return bound(err, expect)
}

func shortStatus(code string) string {
	return quote(strings.TrimPrefix(code, "urn:oasis:names:tc:SAML:2.0:status:"))
}

// assertionOf returns the assertion that signatures cover.
func assertionOf(response *element, s signed, expect Expect) (*element, error) {
	a := s.assertion
	switch {
	case response.child("saml:Assertion") == nil:
		return nil, reject(Structure, "it has no Assertion")
	case a == nil && s.response == nil:
		return nil, reject(Signature, "neither the response nor the assertion is signed")
	case s.response == nil && expect.SignedResponse:
		return nil, reject(Signature, "the response is not signed, and validate_response_signature demands it")
	case a == nil && expect.SignedAssertion:
		return nil, reject(Signature, "the assertion is not signed, and validate_assertion_signature demands it")
	case a == nil:
		return s.response.child("saml:Assertion"), nil
	}
	return a, nil
}

// addressed checks that a response is by the identity provider and for this login.
func addressed(response *element, isSigned bool, expect Expect) error {
	if err := identified(response); err != nil {
		return err
	}
	if err := issued(response, expect); err != nil {
		return err
	}
	destination, given := response.get("Destination")
	if given && destination != expect.ACSURL {
		return reject(Destination, "the Destination is %s instead of the login's ACS URL", quote(destination))
	}
	if !given && isSigned {
		return reject(Destination, "the response is signed and has no Destination")
	}
	answered, given := response.get("InResponseTo")
	if given && (answered != expect.RequestID || expect.RequestID == "") {
		return reject(InResponseTo, "the response is to the request %s, not this login's", quote(answered))
	}
	return nil
}

// identified checks version and ID of a response or assertion.
func identified(e *element) error {
	if v := e.value("Version"); v != "2.0" {
		return reject(Structure, "%s has the version %s instead of 2.0", e.name, quote(v))
	}
	id := e.value("ID")
	if id == "" || len(id) > maxSubject || strings.ContainsFunc(id, func(r rune) bool {
		return r <= ' ' || r > unicode.MaxASCII || strings.ContainsRune(`"'&<>#:/`, r)
	}) {
		return reject(Structure, "%s has no ID, or one that is not a name", e.name)
	}
	return nil
}

// issued checks the Issuer of a response or assertion.
func issued(e *element, expect Expect) error {
	issuer := e.child("saml:Issuer")
	if issuer == nil {
		return reject(Issuer, "%s has no Issuer", e.name)
	}
	if format, given := issuer.get("Format"); given && format != entityFormat {
		return reject(Issuer, "the Issuer of %s has the format %s", e.name, quote(format))
	}
	if issuer.content() != expect.Issuer {
		return reject(Issuer, "the Issuer of %s is %s instead of %s", e.name, quote(issuer.text), quote(expect.Issuer))
	}
	return nil
}

// confirmed checks that an assertion is by the identity provider and for this login. It returns the data of the
// confirmation that says so: there may be several, of which one must fit (SAML profiles 4.1.4.3).
func confirmed(a *element, expect Expect) (*element, error) {
	if err := identified(a); err != nil {
		return nil, err
	}
	if err := issued(a, expect); err != nil {
		return nil, err
	}
	var fits *element // but for its time
	err := reject(Subject, "the subject is not confirmed by SubjectConfirmationData")
	for _, confirmation := range a.child("saml:Subject").all("saml:SubjectConfirmation") {
		data := confirmation.child("saml:SubjectConfirmationData")
		if data == nil {
			continue
		}
		if err = confirms(confirmation.value("Method"), data, expect); err != nil {
			continue
		}
		if _, late := window(data, expect); late == nil {
			return data, nil
		}
		fits = cmp.Or(fits, data)
	}
	if fits != nil {
		return fits, nil
	}
	return nil, err
}

// confirms checks that the data of a confirmation are for this login.
func confirms(method string, data *element, expect Expect) error {
	if method != bearer {
		return reject(Subject, "the subject is confirmed by the method %s instead of bearer", quote(method))
	}
	if recipient := data.value("Recipient"); recipient != expect.ACSURL {
		return reject(Recipient, "the Recipient is %s instead of the login's ACS URL", quote(recipient))
	}
	if answered, given := data.get("InResponseTo"); answered != expect.RequestID || given != (expect.RequestID != "") {
		return reject(InResponseTo, "the assertion is for the request %s, not this login's", quote(answered))
	}
	return nil
}

// accept reads an assertion that data confirm, and checks everything else.
func accept(a, data *element, expect Expect) (*Assertion, error) {
	out := &Assertion{
		ID: a.value("ID"), Issuer: a.child("saml:Issuer").content(), InResponseTo: data.value("InResponseTo"), Attributes: attributes(a),
		Contexts: contexts(a),
	}
	conditions := a.child("saml:Conditions")
	if conditions == nil {
		return nil, reject(Time, "the assertion has no Conditions")
	}
	if err := checkAudience(conditions, expect); err != nil {
		return nil, err
	}
	var err error
	if out.NotOnOrAfter, err = window(data, expect); err != nil {
		return nil, err
	}
	if err := out.conditions(a, conditions, expect); err != nil {
		return nil, err
	}
	out.NotOnOrAfter = out.NotOnOrAfter.Add(Skew)
	if at, err := moment(a, "IssueInstant"); err != nil {
		return nil, err
	} else if expect.Now.Before(at.Add(-Skew)) {
		return nil, reject(Time, "the assertion was issued in the future, at %s", at.Format(time.RFC3339))
	}
	if out.SessionNotOnOrAfter, err = session(a, expect); err != nil {
		return nil, err
	}
	out.Subject, out.Format, err = subject(a, expect.NameIDFormat)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// conditions checks the times of the Conditions, of which each may be missing, and bounds NotOnOrAfter by them. Without an
// end of theirs the assertion is good until the last of its confirmations ends, which another login may go by.
func (out *Assertion) conditions(a, conditions *element, expect Expect) error {
	if _, given := conditions.get("NotOnOrAfter"); given {
		until, err := window(conditions, expect)
		if err == nil && until.Before(out.NotOnOrAfter) {
			out.NotOnOrAfter = until
		}
		return err
	}
	if err := begun(conditions, expect); err != nil {
		return err
	}
	for _, confirmation := range a.child("saml:Subject").all("saml:SubjectConfirmation") {
		if data := confirmation.child("saml:SubjectConfirmationData"); data != nil {
			if until, err := moment(data, "NotOnOrAfter"); err == nil && until.After(out.NotOnOrAfter) {
				out.NotOnOrAfter = until
			}
		}
	}
	return nil
}

// contexts returns how the user has signed in, by the references of all statements about that.
func contexts(a *element) []string {
	var all []string
	for _, statement := range a.all("saml:AuthnStatement") {
		if class := statement.child("saml:AuthnContext").child("saml:AuthnContextClassRef"); class != nil {
			all = append(all, strings.TrimSpace(class.text))
		}
	}
	return all
}

// checkAudience checks that each AudienceRestriction names expect.EntityID.
func checkAudience(conditions *element, expect Expect) error {
	restrictions := conditions.all("saml:AudienceRestriction")
	if len(restrictions) == 0 {
		return reject(Audience, "the assertion is restricted to no audience")
	}
	for _, r := range restrictions {
		var names []string
		found := false
		for _, audience := range r.all("saml:Audience") {
			found = found || strings.TrimSpace(audience.text) == expect.EntityID // an anyURI
			names = append(names, audience.text)
		}
		if !found {
			return reject(Audience, "the audience is %s instead of entity_id, %s", quote(strings.Join(names, ", ")), quote(expect.EntityID))
		}
	}
	return nil
}

// moment returns the time that an attribute gives. It has to be there.
func moment(e *element, name string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, e.value(name))
	if err != nil {
		return time.Time{}, reject(Time, "%s of %s is %s, which is not a time in UTC", name, e.name, quote(e.value(name)))
	}
	return at.UTC(), nil
}

// window checks NotBefore, if it is there, and NotOnOrAfter of an element, and returns the latter.
func window(e *element, expect Expect) (time.Time, error) {
	until, err := moment(e, "NotOnOrAfter")
	if err != nil {
		return time.Time{}, err
	}
	if !expect.Now.Before(until.Add(Skew)) {
		return time.Time{}, reject(Time, "it is over since %s, by %s", until.Format(time.RFC3339), e.name)
	}
	if err := begun(e, expect); err != nil {
		return time.Time{}, err
	}
	if from, err := moment(e, "NotBefore"); err == nil && !from.Before(until) {
		return time.Time{}, reject(Time, "%s ends before it begins", e.name)
	}
	return until, nil
}

// begun checks NotBefore of an element, if it is there.
func begun(e *element, expect Expect) error {
	if _, given := e.get("NotBefore"); !given {
		return nil
	}
	from, err := moment(e, "NotBefore")
	if err == nil && expect.Now.Before(from.Add(-Skew)) {
		err = reject(Time, "it begins at %s only, by %s: are the clocks right?", from.Format(time.RFC3339), e.name)
	}
	return err
}

// session returns when the first session ends that an assertion tells of, and checks that it has not.
func session(a *element, expect Expect) (time.Time, error) {
	var first time.Time
	statements := a.all("saml:AuthnStatement")
	if len(statements) == 0 {
		return first, reject(Statement, "the assertion has no AuthnStatement: it does not say that the user has logged in")
	}
	for _, s := range statements {
		if _, given := s.get("SessionNotOnOrAfter"); !given {
			continue
		}
		until, err := moment(s, "SessionNotOnOrAfter")
		if err != nil {
			return first, err
		}
		if !expect.Now.Before(until.Add(Skew)) {
			return first, reject(Time, "the session at the identity provider is over since %s", until.Format(time.RFC3339))
		}
		if first.IsZero() || until.Before(first) {
			first = until
		}
	}
	return first, nil
}

// unspecified is the format of a NameID that has none (SAML core 2.2.2).
const unspecified = "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified"

// subject returns the NameID and its format, which must be the expected one, if one is.
func subject(a *element, format string) (string, string, error) {
	id := a.child("saml:Subject").child("saml:NameID")
	text := id.content()
	switch {
	case id == nil || strings.TrimSpace(text) == "":
		return "", "", reject(Subject, "the NameID is blank")
	case len(text) > maxSubject:
		return "", "", reject(Subject, "the NameID is longer than %d bytes", maxSubject)
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", "", reject(Subject, "the NameID %s has control characters", quote(text))
	case strings.ContainsFunc(text, func(r rune) bool { return unicode.Is(unicode.Bidi_Control, r) }):
		return "", "", reject(Subject, "the NameID %s has characters that change the direction of writing", strconv.QuoteToASCII(cut(text)))
	case format != "" && cmp.Or(id.value("Format"), unspecified) != format:
		return "", "", reject(Subject, "the NameID has the format %s instead of name_id_format, %s", quote(cmp.Or(id.value("Format"), unspecified)), quote(format))
	}
	return text, id.value("Format"), nil
}

// attributes returns the values of all attribute statements.
func attributes(a *element) map[string][]string {
	out := map[string][]string{}
	for _, statement := range a.all("saml:AttributeStatement") {
		for _, attr := range statement.all("saml:Attribute") {
			name := attr.value("Name")
			if strings.TrimSpace(name) == "" {
				continue
			}
			for _, v := range attr.all("saml:AttributeValue") {
				text := v.text
				if len(v.children) == 1 && strings.TrimSpace(text) == "" {
					text = v.child("saml:NameID").content()
				} else if len(v.children) > 0 {
					continue
				}
				if strings.TrimSpace(text) != "" {
					out[name] = append(out[name], text)
				}
			}
		}
	}
	return out
}

// plain brings what the library has read of a response into the one form that it knows: a single confirmation, the one that
// was chosen, times at both ends, and no blanks around names.
func plain(r *types.Response, data *element, expect Expect) {
	a := &r.Assertions[0]
	for _, issuer := range []*types.Issuer{r.Issuer, a.Issuer} {
		if issuer != nil {
			issuer.Value = strings.TrimSpace(issuer.Value)
		}
	}
	if a.Subject != nil {
		a.Subject.SubjectConfirmation = &types.SubjectConfirmation{Method: bearer, SubjectConfirmationData: &types.SubjectConfirmationData{
			NotOnOrAfter: data.value("NotOnOrAfter"), Recipient: data.value("Recipient"), InResponseTo: data.value("InResponseTo"),
		}}
	}
	if c := a.Conditions; c != nil {
		c.NotBefore = cmp.Or(c.NotBefore, expect.Now.Add(-time.Hour).Format(time.RFC3339))
		c.NotOnOrAfter = cmp.Or(c.NotOnOrAfter, data.value("NotOnOrAfter"))
		for _, restriction := range c.AudienceRestrictions {
			for i := range restriction.Audiences {
				restriction.Audiences[i].Value = strings.TrimSpace(restriction.Audiences[i].Value)
			}
		}
	}
}

// tokenReader gives encoding/xml the tokens of a list.
type tokenReader struct{ left []xml.Token }

func (r *tokenReader) Token() (xml.Token, error) {
	if len(r.left) == 0 {
		return nil, io.EOF
	}
	first := r.left[0]
	r.left = r.left[1:]
	return first, nil
}

// secondOpinion asks gosaml2, about what was signed. It has nothing to say that has not been checked, unless we erred.
func secondOpinion(response, a, data *element, expect Expect) (err error) {
	defer func() {
		if recover() != nil {
			err = reject(Structure, "the SAML library panicked")
		}
	}()
	clock := dsig.NewFakeClockAt(expect.Now.Add(-Skew))
	sp := &saml2.SAMLServiceProvider{
		IdentityProviderIssuer: expect.Issuer, AssertionConsumerServiceURL: expect.ACSURL, AudienceURI: expect.EntityID, Clock: clock,
	}
	whole := *response
	whole.children = slices.Clone(response.children)
	for i, c := range whole.children {
		if c.name == "saml:Assertion" {
			own := *a // as its own signature covers it, if it has one
			own.at, whole.children[i] = c.at, &own
		}
	}
	var r types.Response
	if err := xml.NewTokenDecoder(&tokenReader{whole.tokens(nil)}).Decode(&r); err != nil {
		return reject(Structure, "reading the response: %s", cut(err.Error()))
	}
	if len(r.Assertions) != 1 {
		return reject(Structure, "the SAML library finds %d assertions", len(r.Assertions))
	}
	plain(&r, data, expect)
	if err := sp.Validate(&r); err != nil {
		return reject(Structure, "the SAML library rejects it: %s", quote(err.Error()))
	}
	warnings, err := sp.VerifyAssertionConditions(&r.Assertions[0])
	if err != nil {
		return reject(Structure, "the SAML library rejects it: %s", quote(err.Error()))
	}
	if warnings.NotInAudience {
		return reject(Audience, "the SAML library finds it is for another audience")
	}
	return nil
}
