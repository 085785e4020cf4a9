package provider

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/xml"

	"github.com/coffer-project/coffer/engines"
)

const metadataType = "application/samlmetadata+xml"

// The elements of a service provider's metadata (SAML metadata 2.4.4), in the order of the schema. There is no
// NameIDFormat: any will do. There is no key for encryption: nothing here decrypts.
type (
	spEntity struct {
		XMLName  xml.Name `xml:"urn:oasis:names:tc:SAML:2.0:metadata EntityDescriptor"`
		EntityID string   `xml:"entityID,attr"`
		Role     spRole   `xml:"SPSSODescriptor"`
	}
	spRole struct {
		RequestsSigned     bool    `xml:"AuthnRequestsSigned,attr"`
		WantAssertionsSign bool    `xml:"WantAssertionsSigned,attr"`
		Protocols          string  `xml:"protocolSupportEnumeration,attr"`
		Keys               []spKey `xml:"KeyDescriptor"`
		Consumers          []spACS `xml:"AssertionConsumerService"`
	}
	spKey struct {
		Use  string    `xml:"use,attr"`
		Info spKeyInfo `xml:"http://www.w3.org/2000/09/xmldsig# KeyInfo"`
	}
	spKeyInfo struct {
		Certificate string `xml:"X509Data>X509Certificate"`
	}
	spACS struct {
		Binding  string `xml:"Binding,attr"`
		Location string `xml:"Location,attr"`
		Index    int    `xml:"index,attr"`
		Default  bool   `xml:"isDefault,attr,omitempty"`
	}
)

// metadata returns what an identity provider has to know of this service provider.
func metadata(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	c := new(Config)
	found, err := engines.GetRecord(ctx, req.Mount.Storage, configKey, c)
	if err == nil && !found {
		err = engines.NotFound(errNotConfigured.Detail)
	}
	if err != nil {
		return nil, err
	}
	role := spRole{
		RequestsSigned: c.SignAuthnRequests,
		// A signed assertion fits every configuration that metadata can tell of: for a signed response it has no word.
		WantAssertionsSign: true,
		Protocols:          "urn:oasis:names:tc:SAML:2.0:protocol",
	}
	if c.SignAuthnRequests {
		_, certificate, err := SigningKey(ctx, req.Mount.Storage)
		if err != nil {
			return nil, err
		}
		role.Keys = []spKey{{Use: "signing", Info: spKeyInfo{base64.StdEncoding.EncodeToString(certificate.Raw)}}}
	}
	for i, u := range c.ACSURLs {
		role.Consumers = append(role.Consumers, spACS{
			Binding: "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST", Location: u, Index: i, Default: i == 0,
		})
	}
	document := bytes.NewBufferString(xml.Header)
	enc := xml.NewEncoder(document)
	enc.Indent("", "  ")
	if err := enc.Encode(spEntity{EntityID: c.EntityID, Role: role}); err != nil {
		return nil, err
	}
	return &engines.Response{Raw: &engines.Raw{ContentType: metadataType, Body: append(document.Bytes(), '\n')}}, nil
}
