package assertion_test

import (
	"encoding/xml"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// span is where an element is in a text.
type span struct{ from, inner, to int } // inner: where its end tag starts

func spans(text string) []span {
	d := xml.NewDecoder(strings.NewReader(text))
	var all []span
	var open []int
	for {
		at := int(d.InputOffset())
		token, err := d.RawToken()
		if err != nil {
			return all
		}
		switch token.(type) {
		case xml.StartElement:
			open = append(open, len(all))
			all = append(all, span{from: at})
		case xml.EndElement:
			if len(open) == 0 {
				return all
			}
			s := &all[open[len(open)-1]]
			s.inner, s.to = at, int(d.InputOffset())
			open = open[:len(open)-1]
		}
	}
}

// splice changes a document as the steps say, four bytes each: elements are removed, repeated, swapped for those of other
// documents, put before, after and into others, and given other IDs.
func splice(steps []byte, documents []string) string {
	text := documents[0]
	for step := range slices.Chunk(steps, 4) {
		if len(step) < 4 {
			break
		}
		donor := documents[int(step[1])%len(documents)]
		here, there := spans(text), spans(donor)
		if len(here) == 0 || len(text) > 100_000 {
			break
		}
		at, from := here[int(step[2])%len(here)], there[int(step[3])%len(there)]
		if at.to == 0 || from.to == 0 {
			break
		}
		what := donor[from.from:from.to]
		switch step[0] % 6 {
		case 0:
			text = text[:at.from] + text[at.to:]
		case 1:
			text = text[:at.from] + what + text[at.from:]
		case 2:
			text = text[:at.to] + what + text[at.to:]
		case 3:
			text = text[:at.inner] + what + text[at.inner:]
		case 4:
			text = text[:at.from] + what + text[at.to:]
		case 5:
			id := []string{"_assertion", "_response", "_evil", "_other"}
			text = text[:at.from] + strings.Replace(text[at.from:at.to], id[int(step[1])%4], id[int(step[3])%4], 1) + text[at.to:]
		}
	}
	return text
}

// splicer checks that however the parts of documents are put together, some of them signed, no user gets another's identity.
type splicer struct {
	p        *samltest.IdP
	sets     [][]string // a document of alice, one of bob, and an unsigned one
	accepted int
}

func newSplicer(t testing.TB) *splicer {
	t.Helper()
	s := &splicer{p: fuzzIdP(t)}
	for _, o := range []samltest.Response{{SignAssertion: true}, {SignResponse: true}, {SignResponse: true, SignAssertion: true}} {
		var set []string
		for _, o.User = range []samltest.User{alice, bob, evil} {
			o.RequestID, o.ACSURL, o.Audience, o.ID, o.AssertionID = request, acs, entity, "_response", "_assertion"
			o.Unsigned = o.User.Subject == evil.Subject
			set = append(set, s.p.XML(o))
		}
		mustAccept(t, encode([]byte(set[1])), expect(s.p), bob)
		s.sets = append(s.sets, set)
	}
	return s
}

var (
	bob  = samltest.User{Subject: "bob", Attributes: map[string][]string{"groups": {"guests"}}}
	evil = samltest.User{Subject: "admin", Attributes: map[string][]string{"groups": {"admins"}}}
)

func (s *splicer) check(t testing.TB, which uint8, steps []byte) {
	t.Helper()
	text := splice(steps, s.sets[int(which)%len(s.sets)])
	a, err := assertion.Verify(encode([]byte(text)), expect(s.p))
	var r *assertion.Rejection
	switch {
	case err == nil:
		s.accepted++
		if !slices.ContainsFunc([]samltest.User{alice, bob}, func(u samltest.User) bool {
			return u.Subject == a.Subject && maps.EqualFunc(u.Attributes, a.Attributes, slices.Equal)
		}) {
			t.Errorf("Verify() accepts %+v, which is not signed:\n%s", a, text)
		}
	case !errors.As(err, &r) || a != nil:
		t.Errorf("Verify() = %v, %v, want a rejection", a, err)
	case r.Signed:
		t.Errorf("Verify() = %v as the identity provider's own answer, for\n%s", r, text)
	}
}

func TestSplice(t *testing.T) {
	t.Parallel()
	s := newSplicer(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 150 {
		steps := make([]byte, 4*(1+i%5))
		for j := range steps {
			steps[j] = byte(random.Uint32())
		}
		s.check(t, uint8(i), steps)
	}
	if s.accepted == 0 {
		t.Error("nothing was accepted, so there was nothing to confuse")
	}
	t.Log(s.accepted, "accepted")
}

// FuzzSplice is TestSplice with steps that find their way.
func FuzzSplice(f *testing.F) {
	s := newSplicer(f)
	for which := range uint8(3) {
		f.Add(which, []byte{4, 1, 8, 8, 1, 2, 8, 8})
		f.Add(which, []byte{5, 0, 0, 2, 3, 1, 4, 4, 0, 0, 9, 0})
	}
	f.Fuzz(func(t *testing.T, which uint8, steps []byte) { s.check(t, which, steps) })
}
