package provider

import (
	"encoding/base64"
	"encoding/xml"
	"strings"
	"testing"

	"github.com/russellhaering/gosaml2/types"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
)

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func metadataBody(t *testing.T, m *enginetest.Mount) string {
	t.Helper()
	resp := m.Must(engines.Read, "metadata", nil)
	if resp.Raw == nil || resp.Raw.ContentType != "application/samlmetadata+xml" || resp.Data != nil {
		t.Fatalf("the answer is %+v", resp)
	}
	return string(resp.Raw.Body)
}

// decodeMetadata reads the document as another library does.
func decodeMetadata(t *testing.T, m *enginetest.Mount) *types.EntityDescriptor {
	t.Helper()
	d := new(types.EntityDescriptor)
	if err := xml.Unmarshal([]byte(metadataBody(t, m)), d); err != nil {
		t.Fatal(err)
	}
	if d.SPSSODescriptor == nil || d.IDPSSODescriptor != nil {
		t.Fatalf("the document is %+v", d)
	}
	return d
}

func TestServiceProviderMetadata(t *testing.T) {
	m := configMount(t)
	if text := m.Fails(engines.KindNotFound, engines.Read, "metadata", nil); text == "" {
		t.Error("no word about the configuration that is missing")
	}
	const second = `https://b.example.com/v1/auth/saml/callback?a=1&b="<2>'`
	m.Must(engines.Update, "config", byMetadata.with(settings{"entity_id": `urn:a&b<"c">`, "acs_urls": []string{testACS, second}}))

	d := decodeMetadata(t, m)
	sp := d.SPSSODescriptor
	if d.EntityID != `urn:a&b<"c">` || sp.ProtocolSupportEnumeration != "urn:oasis:names:tc:SAML:2.0:protocol" {
		t.Errorf("entity %q, protocols %q", d.EntityID, sp.ProtocolSupportEnumeration)
	}
	if sp.AuthnRequestsSigned || !sp.WantAssertionsSigned || len(sp.KeyDescriptors) != 0 {
		t.Errorf("without signed requests: %+v", sp)
	}
	if len(sp.AssertionConsumerServices) != 2 {
		t.Fatalf("%d consumers, want 2", len(sp.AssertionConsumerServices))
	}
	for i, want := range []string{testACS, second} {
		if acs := sp.AssertionConsumerServices[i]; acs.Location != want || acs.Index != i || acs.Binding != "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST" {
			t.Errorf("consumer %d is %+v", i, acs)
		}
	}
	body := metadataBody(t, m)
	if !strings.HasPrefix(body, xml.Header+`<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata"`) {
		t.Errorf("the document begins with %.120s", body)
	}
	if n := strings.Count(body, "isDefault"); n != 1 || !strings.Contains(body, `index="0" isDefault="true"`) {
		t.Errorf("%d defaults in %s", n, body)
	}
	if strings.Contains(body, "NameIDFormat") || strings.Contains(body, "encryption") {
		t.Errorf("it asks for more than there is: %s", body)
	}
}

func TestServiceProviderMetadataWithASigningKey(t *testing.T) {
	m := configMount(t)
	m.Must(engines.Update, "config", byMetadata.with(settings{"sign_authn_requests": true}))
	sp := decodeMetadata(t, m).SPSSODescriptor
	if !sp.AuthnRequestsSigned || len(sp.KeyDescriptors) != 1 || sp.KeyDescriptors[0].Use != "signing" {
		t.Fatalf("with signed requests: %+v", sp)
	}
	certificates := sp.KeyDescriptors[0].KeyInfo.X509Data.X509Certificates
	if len(certificates) != 1 || certificates[0].Data != base64Of(currentKey(t, m).Raw) {
		t.Errorf("the certificate is not the key's")
	}
	// Elements in the order of the schema, the key's in its own namespace.
	body := metadataBody(t, m)
	for _, want := range []string{`<KeyDescriptor use="signing">`, `<KeyInfo xmlns="http://www.w3.org/2000/09/xmldsig#">`, "<X509Data>", "<X509Certificate>", "<AssertionConsumerService "} {
		_, after, found := strings.Cut(body, want)
		if !found {
			t.Fatalf("no %s, or not where it belongs", want)
		}
		body = after
	}
	m.Must(engines.Update, "config", settings{"sign_authn_requests": false})
	if sp := decodeMetadata(t, m).SPSSODescriptor; sp.AuthnRequestsSigned || len(sp.KeyDescriptors) != 0 {
		t.Errorf("after signing was turned off: %+v", sp)
	}
}
