package assertion_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// TestStrangersCostLittle: a document signed with an unknown key is rejected before it is canonicalised, in each of the ways
// that a document can be signed: it takes no more than reading it, a fraction of what a genuine one takes.
func TestStrangersCostLittle(t *testing.T) {
	idp, stranger := samltest.New(t), samltest.New(t, samltest.WithKey(samltest.NewKey(samltest.RSA2048, 1)))
	attributes := map[string][]string{}
	for i := range 1500 {
		attributes["groups"] = append(attributes["groups"], fmt.Sprint("g", i))
	}
	for _, how := range []samltest.Response{{SignAssertion: true}, {SignResponse: true}, {SignResponse: true, SignAssertion: true}} {
		cost := func(p *samltest.IdP) float64 {
			how.User = samltest.User{Subject: "alice", Attributes: attributes}
			how.RequestID, how.ACSURL, how.Audience = "_request", "https://sp.example.com/acs", "https://sp.example.com"
			form := p.Response(how)
			expect := assertion.Expect{
				ACSURL: how.ACSURL, EntityID: how.Audience, Issuer: idp.EntityID, RequestID: how.RequestID, Certificates: idp.Certificates(), Now: idp.Now(),
			}
			return testing.AllocsPerRun(1, func() {
				_, err := assertion.Verify(form, expect)
				var r *assertion.Rejection
				if genuine := p == idp; genuine != (err == nil) || !genuine && (!errors.As(err, &r) || r.Reason != assertion.Signature) {
					t.Fatalf("by a stranger: %t; got %v", !genuine, err)
				}
			})
		}
		if genuine, strange := cost(idp), cost(stranger); strange > genuine/3 {
			t.Errorf("a stranger's document costs %.0f allocations, a genuine one %.0f", strange, genuine)
		} else {
			t.Logf("a stranger's document costs %.0f allocations, a genuine one %.0f", strange, genuine)
		}
	}
}
