package saml_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// TestSAMLMore is about what there is besides the documented method: signed requests, metadata, explanations, short links and
// logins that the identity provider begins.
func TestSAMLMore(t *testing.T) {
	t.Parallel()
	c := alone(t, "more", "")
	t.Run("metadata and signed requests", func(t *testing.T) { signedRequests(t, ready(t, c, "signed")) })
	t.Run("a new signing key", func(t *testing.T) {
		m := ready(t, c, "rotated")
		wantStatus(t, "without signed requests", m.admin("POST", "config/rotate-signing-key", nil), 400, "sign_authn_requests")
		m.configure(object{"sign_authn_requests": true})
		before := m.signingCertificate()
		block, _ := pem.Decode([]byte(dataOf(t, m.admin("POST", "config/rotate-signing-key", nil))["certificate"].(string)))
		after := m.signingCertificate()
		if before.Equal(after) || block == nil || base64.StdEncoding.EncodeToString(block.Bytes) != base64.StdEncoding.EncodeToString(after.Raw) {
			t.Error("the metadata does not have the new certificate")
		}
		if err := samltest.CheckRequest(m.start(m.node, nil).url, after); err != nil {
			t.Error(err)
		}
	})
	t.Run("explain", func(t *testing.T) { explained(t, ready(t, c, "explained")) })
	t.Run("short link", func(t *testing.T) {
		m := ready(t, c, "short")
		d := dataOf(t, m.send(m.node, "POST", "sso_service_url", "", m.startBody(object{"short_link": true})))
		short, ok := strings.CutPrefix(fmt.Sprint(d["short_url"]), strings.TrimSuffix(m.acs, "callback"))
		if !ok {
			t.Fatalf("short_url is %v", d["short_url"])
		}
		wantStatus(t, "the question", m.send(m.node, "GET", short, "", nil), 200, fmt.Sprint(d["verification_code"]))
		yes := object{"decision": "confirm"}
		wantStatus(t, "first", m.send(m.node, "POST", short, "", yes), 200, html.EscapeString(fmt.Sprint(d["sso_service_url"])))
		wantStatus(t, "second", m.send(m.node, "POST", short, "", yes), 404)
		wantStatus(t, "after it", m.send(m.node, "GET", short, "", nil), 404)
	})
	t.Run("idp-initiated logins are rejected", func(t *testing.T) {
		m := ready(t, c, "portal-off", object{"default_role": "dev"})
		wantStatus(t, "callback", m.post(m.node, m.unsolicited(alice)), 400)
		has(t, "log", m.node.Log(), "unknown or expired login", true)
	})
	t.Run("idp-initiated logins if they are allowed", func(t *testing.T) {
		m := enable(t, c, "portal")
		wantStatus(t, "without default_role", m.admin("POST", "config", m.settings(object{"allow_idp_initiated": true})), 400, "default_role")
		m.configure(object{"allow_idp_initiated": true, "default_role": "dev"})
		m.role("dev", nil)
		form := m.unsolicited(alice)
		a := m.post(m.node, form)
		wantStatus(t, "callback", a, 200)
		code := regexp.MustCompile(`>([A-Z2-9]{5}(?:-[A-Z2-9]{5}){3})<`).FindStringSubmatch(string(a.Body))
		if code == nil {
			t.Fatalf("no code on the page:\n%s", a.Body)
		}
		wantStatus(t, "the same answer again", m.post(m.node, form), 400)
		enter := func() int { return m.send(m.node, "POST", "token", "", object{"code": code[1]}).Status }
		if first, second := enter(), enter(); first != 200 || second != 400 {
			t.Errorf("the code answers %d, then %d", first, second)
		}
		visitor := samltest.User{Subject: "mallory@example.com", Attributes: map[string][]string{"groups": {"guests"}}}
		wantStatus(t, "whom the role excludes", m.post(m.node, m.unsolicited(visitor)), 403)
	})
	t.Run("config/verify", func(t *testing.T) {
		m := ready(t, c, "verified")
		d := dataOf(t, m.admin("POST", "config/verify", nil))
		wantData(t, d, object{"entity_id": m.idp.EntityID, "sso_url": m.idp.SSOURL})
		if list, _ := d["certificates"].([]any); len(list) != 1 || !strings.Contains(fmt.Sprint(list[0]), "sha256_fingerprint") {
			t.Errorf("certificates %v", d["certificates"])
		}
	})
}

// unsolicited is an answer to no request.
func (m *method) unsolicited(u samltest.User) url.Values {
	return url.Values{"SAMLResponse": {m.idp.Response(samltest.Response{User: u, ACSURL: m.acs, Audience: entityID})}}
}

// spMetadata is what an identity provider reads of our metadata.
type spMetadata struct {
	EntityID string `xml:"entityID,attr"`
	SP       struct {
		Signed bool     `xml:"AuthnRequestsSigned,attr"`
		Keys   []string `xml:"KeyDescriptor>KeyInfo>X509Data>X509Certificate"`
		ACS    []struct {
			Location string `xml:"Location,attr"`
		} `xml:"AssertionConsumerService"`
	} `xml:"SPSSODescriptor"`
}

func (m *method) metadata() spMetadata {
	m.t.Helper()
	a := m.send(m.node, "GET", "metadata", "", nil)
	var out spMetadata
	if err := xml.Unmarshal(a.Body, &out); err != nil || a.Status != 200 || a.Header.Get("Content-Type") != "application/samlmetadata+xml" {
		m.t.Fatalf("metadata: status %d, %q, %v", a.Status, a.Header.Get("Content-Type"), err)
	}
	return out
}

func (m *method) signingCertificate() *x509.Certificate {
	m.t.Helper()
	md := m.metadata()
	if len(md.SP.Keys) != 1 {
		m.t.Fatalf("the metadata has %d certificates", len(md.SP.Keys))
	}
	der, err := base64.StdEncoding.DecodeString(md.SP.Keys[0])
	if err != nil {
		m.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		m.t.Fatal(err)
	}
	return certificate
}

func signedRequests(t *testing.T, m *method) {
	md := m.metadata()
	if md.EntityID != entityID || md.SP.Signed || len(md.SP.Keys) != 0 || len(md.SP.ACS) != 1 || md.SP.ACS[0].Location != m.acs {
		t.Errorf("metadata %+v", md)
	}
	has(t, "request", m.start(m.node, nil).url, "Signature=", false)
	m.configure(object{"sign_authn_requests": true})
	if !m.metadata().SP.Signed {
		t.Error("the metadata does not say that requests are signed")
	}
	s := m.start(m.node, nil)
	if err := samltest.CheckRequest(s.url, m.signingCertificate()); err != nil {
		t.Error(err)
	}
	if samltest.CheckRequest(strings.Replace(s.url, "RelayState=", "RelayState=x", 1), m.signingCertificate()) == nil {
		t.Error("the signature does not cover the RelayState")
	}
	m.confirm(m.node, s, alice)
	tokenOf(t, m.redeem(m.node, s.poll))
}

// explained: what a role decides about a user, and about the last one that it rejected.
func explained(t *testing.T, m *method) {
	wantStatus(t, "before any rejection", m.admin("POST", "role/dev/explain", nil), 404)
	wantStatus(t, "of a role that is not there", m.admin("POST", "role/nobody/explain", nil), 404)
	d := dataOf(t, m.admin("POST", "role/dev/explain", object{"subject": "x", "attributes": object{"groups": []string{"staff"}}}))
	wantData(t, d, object{"admitted": true, "policies": []string{"default", "dev"}})
	visitor := samltest.User{Subject: "visitor@example.com", Attributes: map[string][]string{"groups": {"Staff"}}}
	if m.admits("dev", visitor) {
		t.Fatal("the visitor is admitted")
	}
	d = dataOf(t, m.admin("POST", "role/dev/explain", nil))
	wantData(t, d, object{"admitted": false, "subject": visitor.Subject})
	check := d["checks"].([]any)[0].(object)
	wantData(t, check, object{"bound": "attribute", "name": "groups", "expected": []string{"staff"}, "given": []string{"Staff"}, "passed": false})
	has(t, "hint", fmt.Sprint(check["hint"]), "case", true)
	wantData(t, d["refused"].(object), object{"reason": "role", "address": "127.0.0.1"})
}
