package saml_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/saml"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// BenchmarkLogin is a whole login, without the server around the engine and without what the identity provider does.
func BenchmarkLogin(b *testing.B) {
	p := samltest.New(b)
	m := enginetest.New(b, saml.New(saml.Options{}), enginetest.Options{Type: "saml", Path: "auth/saml/"})
	m.Must(engines.Update, "config", fields{
		"idp_sso_url": p.SSOURL, "idp_entity_id": p.EntityID, "idp_cert": p.CertificatePEM(), "entity_id": entityID, "acs_urls": []string{acsURL},
	})
	m.Must(engines.Update, "role/dev", fields{"bound_attributes": fields{"groups": "staff"}, "groups_attribute": "groups", "confirm": "never"})
	do := func(path string, body any) map[string]any {
		text, err := json.Marshal(body)
		if err != nil {
			b.Fatal(err)
		}
		req := m.Request(engines.Update, path, text)
		req.RemoteIP, req.Caller = netip.MustParseAddr("203.0.113.7"), engines.Caller{}
		resp, err := m.Handle(b.Context(), req)
		if err != nil {
			b.Fatal(err)
		}
		data, _ := resp.Data.(map[string]any)
		return data
	}
	body := startBody(nil)
	for b.Loop() {
		data := do("sso_service_url", body)
		b.StopTimer()
		form := p.AnswerWith(data["sso_service_url"].(string), samltest.Response{User: alice, SignResponse: true, SignAssertion: true})
		b.StartTimer()
		do("callback", fields{"RelayState": form.Get("RelayState"), "SAMLResponse": form.Get("SAMLResponse")})
		do("token", fields{"client_verifier": verifier, "token_poll_id": data["token_poll_id"]})
	}
}
