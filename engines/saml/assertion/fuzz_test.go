package assertion_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

func encode(raw []byte) string { return base64.StdEncoding.EncodeToString(raw) }

// fuzzIdP is the same in each of the processes of a fuzz test: its key is made of a word.
func fuzzIdP(t testing.TB) *samltest.IdP {
	t.Helper()
	d := sha256.Sum256([]byte("a key for fuzzing that protects nothing"))
	signer, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), d[:])
	if err != nil {
		t.Fatal(err)
	}
	return newIdP(t, samltest.WithKey(samltest.Certify(signer, now.Add(-time.Hour), now.Add(time.Hour))))
}

// FuzzVerify: whatever is posted, what is accepted is what the identity provider signed.
func FuzzVerify(f *testing.F) {
	p := fuzzIdP(f)
	users := []samltest.User{alice, {Subject: "bob", Attributes: map[string][]string{"a": {"1", "2"}, "b": {" x\n"}}}}
	for _, u := range users {
		for _, o := range []samltest.Response{{}, {SignResponse: true}, {SignResponse: true, SignAssertion: true, Typed: true}, {Prefix: "-", RootNamespaces: true, Protocol: "p"}} {
			o.RequestID, o.ACSURL, o.Audience, o.User = request, acs, entity, u
			o.AssertionSignature.C14N = []string{samltest.Exclusive, samltest.Inclusive10, samltest.Inclusive11}[len(u.Subject)%3]
			f.Add([]byte(p.XML(o)))
		}
	}
	for _, s := range []string{
		"", "<", "<a", "<a/>", "<a></b>", `<?xml version="1.0"?><a/>`, "<a><![CDATA[x]]></a>", "<!DOCTYPE a><a/>", `<a xmlns:b="c" b:d="e"/>`,
		`<p:Response xmlns:p="urn:oasis:names:tc:SAML:2.0:protocol"/>`,
	} {
		f.Add([]byte(s))
	}
	f.Add([]byte(p.XML(samltest.Response{RequestID: request, ACSURL: acs, Audience: entity, Status: "Requester", SubStatus: "RequestDenied", SignResponse: true})))
	for _, build := range []func(parts) string{
		func(p parts) string { return p.head + p.evil + p.assertion + p.tail },
		func(p parts) string { return p.head + in(p.evil, "saml:Assertion", p.assertion) + p.tail },
	} {
		o := good()
		o.AssertionID = "_assertion"
		wrapped(build)(&o)
		f.Add([]byte(p.XML(o)))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := assertion.Verify(encode(raw), expect(p))
		if err == nil {
			if !slices.ContainsFunc(users, func(u samltest.User) bool {
				return u.Subject == a.Subject && maps.EqualFunc(u.Attributes, a.Attributes, slices.Equal)
			}) {
				t.Errorf("Verify() accepts %+v, which is not signed", a)
			}
			return
		}
		var r *assertion.Rejection
		if !errors.As(err, &r) || a != nil || r.Reason == "" || r.Detail == "" {
			t.Errorf("Verify() = %v, %v, want a rejection", a, err)
		} else if len(r.Detail) > 1000 || strings.ContainsAny(r.Detail, "\r\n") {
			t.Errorf("the detail is not fit for a log: %q", r.Detail)
		}
		_, _ = assertion.ReadUnverified(raw)
	})
}

// FuzzDecode: what is decoded encodes to the same, blanks aside.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "PA==", "PA=", "PGEvPg==", "PGEv\r\nPg==", " P G E v P g = = ", "PGEvPh==", "PGEv-_==", "%3D"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, encoded string) {
		raw, err := assertion.Decode(encoded)
		if err != nil {
			return
		}
		if got := strings.NewReplacer("\r", "", "\n", "", " ", "", "\t", "").Replace(encoded); encode(raw) != got {
			t.Errorf("Decode(%q) = %q, which encodes to %q", encoded, raw, encode(raw))
		}
	})
}
