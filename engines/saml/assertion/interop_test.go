package assertion_test

import (
	"crypto"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// provider is a response in the manner of an identity provider's: namespaces, blanks, order and options are as that one
// writes them. It signs where samltest's marks are.
type provider struct {
	name       string
	key        samltest.Kind
	response   samltest.Signature
	assertion  samltest.Signature
	attributes map[string][]string
	text       string
}

const (
	rsaKeyValue = `<KeyValue><RSAKeyValue><Modulus>vqt=</Modulus><Exponent>AQAB</Exponent></RSAKeyValue></KeyValue>`
	certificate = `<X509Certificate>MIIC
8DCCAdigAwIBAgIQ
</X509Certificate>`
)

var providers = []provider{
	{
		name:      "Entra",
		assertion: samltest.Signature{Prefix: "-"},
		attributes: map[string][]string{
			"http://schemas.microsoft.com/identity/claims/tenantid":          {"00000000-1111"},
			"http://schemas.microsoft.com/ws/2008/06/identity/claims/groups": {"g1", "g2"},
		},
		text: `<samlp:Response ID="_response" Version="2.0" IssueInstant="NOW" Destination="ACS" InResponseTo="REQUEST" xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol"><Issuer xmlns="urn:oasis:names:tc:SAML:2.0:assertion">IDP</Issuer><samlp:Status><samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></samlp:Status><Assertion ID="_assertion" IssueInstant="NOW" Version="2.0" xmlns="urn:oasis:names:tc:SAML:2.0:assertion"><Issuer>IDP</Issuer>@@assertion@@<Subject><NameID Format="urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress">alice@example.com</NameID><SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><SubjectConfirmationData InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS"/></SubjectConfirmation></Subject><Conditions NotBefore="NOW" NotOnOrAfter="SOON"><AudienceRestriction><Audience>ENTITY</Audience></AudienceRestriction></Conditions><AttributeStatement><Attribute Name="http://schemas.microsoft.com/identity/claims/tenantid"><AttributeValue>00000000-1111</AttributeValue></Attribute><Attribute Name="http://schemas.microsoft.com/ws/2008/06/identity/claims/groups"><AttributeValue>g1</AttributeValue><AttributeValue>g2</AttributeValue></Attribute></AttributeStatement><AuthnStatement AuthnInstant="NOW" SessionIndex="_assertion"><AuthnContext><AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:Password</AuthnContextClassRef></AuthnContext></AuthnStatement></Assertion></samlp:Response>`,
	},
	{
		name:       "AD FS",
		assertion:  samltest.Signature{KeyInfo: `<KeyInfo xmlns="http://www.w3.org/2000/09/xmldsig#"><ds:X509Data>` + strings.ReplaceAll(strings.ReplaceAll(certificate, "<X", "<ds:X"), "</X", "</ds:X") + `</ds:X509Data></KeyInfo>`},
		response:   samltest.Signature{KeyInfo: `<KeyInfo xmlns="http://www.w3.org/2000/09/xmldsig#"><X509Data xmlns="http://www.w3.org/2000/09/xmldsig#">` + certificate + `</X509Data></KeyInfo>`},
		attributes: map[string][]string{"http://schemas.xmlsoap.org/ws/2005/05/identity/claims/upn": {"alice@corp"}},
		text:       `<samlp:Response ID="_response" Version="2.0" IssueInstant="NOW" Destination="ACS" Consent="urn:oasis:names:tc:SAML:2.0:consent:unspecified" InResponseTo="REQUEST" xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol"><Issuer xmlns="urn:oasis:names:tc:SAML:2.0:assertion">IDP</Issuer>@@response@@<samlp:Status><samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success" /></samlp:Status><Assertion ID="_assertion" IssueInstant="NOW" Version="2.0" xmlns="urn:oasis:names:tc:SAML:2.0:assertion"><Issuer>IDP</Issuer>@@assertion@@<Subject><NameID>alice@example.com</NameID><SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><SubjectConfirmationData InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS" /></SubjectConfirmation></Subject><Conditions NotBefore="NOW" NotOnOrAfter="SOON"><AudienceRestriction><Audience>ENTITY</Audience></AudienceRestriction></Conditions><AttributeStatement><Attribute Name="http://schemas.xmlsoap.org/ws/2005/05/identity/claims/upn" a:OriginalIssuer="urn:federation" xmlns:a="http://schemas.xmlsoap.org/ws/2009/09/identity/claims"><AttributeValue b:type="tn:string" xmlns:tn="http://www.w3.org/2001/XMLSchema" xmlns:b="http://www.w3.org/2001/XMLSchema-instance">alice@corp</AttributeValue></Attribute></AttributeStatement><AuthnStatement AuthnInstant="NOW" SessionIndex="_assertion"><AuthnContext><AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport</AuthnContextClassRef></AuthnContext></AuthnStatement></Assertion></samlp:Response>`,
	},
	{
		name:       "Okta",
		response:   samltest.Signature{Prefixes: "xs"},
		assertion:  samltest.Signature{Prefixes: "xs"},
		attributes: map[string][]string{"groups": {"Everyone", "Ops"}},
		text:       `<?xml version="1.0" encoding="UTF-8"?><saml2p:Response Destination="ACS" ID="_response" InResponseTo="REQUEST" IssueInstant="NOW" Version="2.0" xmlns:saml2p="urn:oasis:names:tc:SAML:2.0:protocol" xmlns:xs="http://www.w3.org/2001/XMLSchema"><saml2:Issuer Format="urn:oasis:names:tc:SAML:2.0:nameid-format:entity" xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion">IDP</saml2:Issuer>@@response@@<saml2p:Status xmlns:saml2p="urn:oasis:names:tc:SAML:2.0:protocol"><saml2p:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></saml2p:Status><saml2:Assertion ID="_assertion" IssueInstant="NOW" Version="2.0" xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion" xmlns:xs="http://www.w3.org/2001/XMLSchema"><saml2:Issuer Format="urn:oasis:names:tc:SAML:2.0:nameid-format:entity" xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion">IDP</saml2:Issuer>@@assertion@@<saml2:Subject xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion"><saml2:NameID Format="urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified">alice@example.com</saml2:NameID><saml2:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><saml2:SubjectConfirmationData InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS"/></saml2:SubjectConfirmation></saml2:Subject><saml2:Conditions NotBefore="NOW" NotOnOrAfter="SOON" xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion"><saml2:AudienceRestriction><saml2:Audience>ENTITY</saml2:Audience></saml2:AudienceRestriction></saml2:Conditions><saml2:AuthnStatement AuthnInstant="NOW" SessionIndex="_x" xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion"><saml2:AuthnContext><saml2:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport</saml2:AuthnContextClassRef></saml2:AuthnContext></saml2:AuthnStatement><saml2:AttributeStatement xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion"><saml2:Attribute Name="groups" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:unspecified"><saml2:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xs:string">Everyone</saml2:AttributeValue><saml2:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xs:string">Ops</saml2:AttributeValue></saml2:Attribute></saml2:AttributeStatement></saml2:Assertion></saml2p:Response>`,
	},
	{
		name:       "Keycloak",
		response:   samltest.Signature{Prefix: "dsig", KeyInfo: strings.NewReplacer("</", "</dsig:", "<", "<dsig:").Replace(`<KeyInfo><KeyName>abc</KeyName><X509Data>` + certificate + `</X509Data>` + rsaKeyValue + `</KeyInfo>`)},
		attributes: map[string][]string{"Role": {"offline_access", "ops"}},
		text:       `<samlp:Response xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" Destination="ACS" ID="_response" InResponseTo="REQUEST" IssueInstant="NOW" Version="2.0"><saml:Issuer>IDP</saml:Issuer>@@response@@<samlp:Extensions><kckey:KeyInfo xmlns:kckey="urn:keycloak:ext:key:1.0" MessageSigningKeyId="abc"/></samlp:Extensions><samlp:Status><samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></samlp:Status><saml:Assertion xmlns="urn:oasis:names:tc:SAML:2.0:assertion" ID="_assertion" IssueInstant="NOW" Version="2.0"><saml:Issuer>IDP</saml:Issuer><saml:Subject><saml:NameID Format="urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified">alice@example.com</saml:NameID><saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><saml:SubjectConfirmationData InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS"/></saml:SubjectConfirmation></saml:Subject><saml:Conditions NotBefore="NOW" NotOnOrAfter="SOON"><saml:AudienceRestriction><saml:Audience>ENTITY</saml:Audience></saml:AudienceRestriction><saml:OneTimeUse/></saml:Conditions><saml:AuthnStatement AuthnInstant="NOW" SessionIndex="a::b" SessionNotOnOrAfter="SOON"><saml:AuthnContext><saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:unspecified</saml:AuthnContextClassRef></saml:AuthnContext></saml:AuthnStatement><saml:AttributeStatement><saml:Attribute FriendlyName="r" Name="Role" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:basic"><saml:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xs:string">offline_access</saml:AttributeValue></saml:Attribute><saml:Attribute Name="Role" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:basic"><saml:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xs:string">ops</saml:AttributeValue></saml:Attribute></saml:AttributeStatement></saml:Assertion></samlp:Response>`,
	},
	{
		name: "Google",
		response: samltest.Signature{Wrap: true, KeyInfo: `<ds:KeyInfo><ds:X509Data><ds:X509SubjectName>ST=California,C=US,OU=Google For Work,CN=Google</ds:X509SubjectName><ds:X509Certificate>MIIDdDCC&#13;
AlygAw==</ds:X509Certificate></ds:X509Data></ds:KeyInfo>`},
		attributes: map[string][]string{"department": {"R&D"}},
		text: `<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<saml2p:Response xmlns:saml2p="urn:oasis:names:tc:SAML:2.0:protocol" Destination="ACS" ID="_response" InResponseTo="REQUEST" IssueInstant="NOW" Version="2.0">
    <saml2:Issuer xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion">IDP</saml2:Issuer>
    @@response@@
    <saml2p:Status>
        <saml2p:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/>
    </saml2p:Status>
    <saml2:Assertion xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion" ID="_assertion" IssueInstant="NOW" Version="2.0">
        <saml2:Issuer>IDP</saml2:Issuer>
        <saml2:Subject>
            <saml2:NameID>alice@example.com</saml2:NameID>
            <saml2:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer">
                <saml2:SubjectConfirmationData InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS"/>
            </saml2:SubjectConfirmation>
        </saml2:Subject>
        <saml2:Conditions NotBefore="NOW" NotOnOrAfter="SOON">
            <saml2:AudienceRestriction>
                <saml2:Audience>ENTITY</saml2:Audience>
            </saml2:AudienceRestriction>
        </saml2:Conditions>
        <saml2:AttributeStatement>
            <saml2:Attribute Name="department">
                <saml2:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xs:anyType">R&amp;D</saml2:AttributeValue>
            </saml2:Attribute>
            <saml2:Attribute Name="none"/>
        </saml2:AttributeStatement>
        <saml2:AuthnStatement AuthnInstant="NOW" SessionIndex="_x">
            <saml2:AuthnContext>
                <saml2:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:unspecified</saml2:AuthnContextClassRef>
            </saml2:AuthnContext>
        </saml2:AuthnStatement>
    </saml2:Assertion>
</saml2p:Response>
`,
	},
	{
		name: "Shibboleth", key: samltest.P384,
		response:  samltest.Signature{Hash: crypto.SHA384, Digest: crypto.SHA512, Wrap: true, KeyInfo: `<ds:KeyInfo><ds:KeyValue><dsig11:ECKeyValue xmlns:dsig11="http://www.w3.org/2009/xmldsig11#"><dsig11:NamedCurve URI="urn:oid:1.3.132.0.34"/><dsig11:PublicKey>BA==</dsig11:PublicKey></dsig11:ECKeyValue></ds:KeyValue><ds:X509Data><ds:X509IssuerSerial><ds:X509IssuerName>CN=x</ds:X509IssuerName><ds:X509SerialNumber>1</ds:X509SerialNumber></ds:X509IssuerSerial><ds:X509SKI>AA==</ds:X509SKI><ds:X509Certificate>AA==</ds:X509Certificate><ds:X509Certificate>AA==</ds:X509Certificate></ds:X509Data></ds:KeyInfo>`},
		assertion: samltest.Signature{Hash: crypto.SHA384, Prefixes: "xsd"},
		attributes: map[string][]string{
			"urn:oid:1.3.6.1.4.1.5923.1.1.1.10": {"opaque"}, "urn:oid:1.3.6.1.4.1.5923.1.1.1.9": {"staff@example.com"}, "urn:oid:2.5.4.3": {"Alice", "Älice"},
		},
		text: `<?xml version="1.0" encoding="UTF-8"?>
<saml2p:Response xmlns:saml2p="urn:oasis:names:tc:SAML:2.0:protocol" Destination="ACS" ID="_response" InResponseTo="REQUEST" IssueInstant="NOW" Version="2.0" xmlns:xsd="http://www.w3.org/2001/XMLSchema"><saml2:Issuer xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion">IDP</saml2:Issuer>@@response@@<saml2p:Status><saml2p:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></saml2p:Status><saml2:Assertion xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion" ID="_assertion" IssueInstant="NOW" Version="2.0"><saml2:Issuer>IDP</saml2:Issuer>@@assertion@@<saml2:Subject><saml2:NameID Format="urn:oasis:names:tc:SAML:2.0:nameid-format:persistent" NameQualifier="IDP" SPNameQualifier="ENTITY" SPProvidedID="x">alice@example.com</saml2:NameID><saml2:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><saml2:SubjectConfirmationData Address="192.0.2.1" InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS"/></saml2:SubjectConfirmation></saml2:Subject><saml2:Conditions NotBefore="NOW" NotOnOrAfter="SOON"><saml2:AudienceRestriction><saml2:Audience>ENTITY</saml2:Audience></saml2:AudienceRestriction></saml2:Conditions><saml2:AuthnStatement AuthnInstant="NOW" SessionIndex="_x"><saml2:SubjectLocality Address="192.0.2.1"/><saml2:AuthnContext><saml2:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport</saml2:AuthnContextClassRef><saml2:AuthenticatingAuthority>https://a.example.com</saml2:AuthenticatingAuthority><saml2:AuthenticatingAuthority>https://b.example.com</saml2:AuthenticatingAuthority></saml2:AuthnContext></saml2:AuthnStatement><saml2:AttributeStatement><saml2:Attribute FriendlyName="eduPersonTargetedID" Name="urn:oid:1.3.6.1.4.1.5923.1.1.1.10" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:uri"><saml2:AttributeValue><saml2:NameID Format="urn:oasis:names:tc:SAML:2.0:nameid-format:persistent" NameQualifier="IDP">opaque</saml2:NameID></saml2:AttributeValue></saml2:Attribute><saml2:Attribute FriendlyName="eduPersonScopedAffiliation" Name="urn:oid:1.3.6.1.4.1.5923.1.1.1.9" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:uri"><saml2:AttributeValue xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xsd:string">staff@example.com</saml2:AttributeValue></saml2:Attribute><saml2:Attribute xmlns:x500="urn:oasis:names:tc:SAML:2.0:profiles:attribute:X500" x500:Encoding="LDAP" Name="urn:oid:2.5.4.3"><saml2:AttributeValue xml:lang="en">Alice</saml2:AttributeValue><saml2:AttributeValue xml:lang="de">Älice</saml2:AttributeValue></saml2:Attribute></saml2:AttributeStatement></saml2:Assertion></saml2p:Response>`,
	},
	{
		name: "PingFederate", response: samltest.Signature{KeyInfo: `<ds:KeyInfo>` + strings.NewReplacer("</", "</ds:", "<", "<ds:").Replace(`<X509Data>`+certificate+`</X509Data>`+rsaKeyValue) + `</ds:KeyInfo>`},
		attributes: map[string][]string{"memberOf": {"CN=Ops,OU=Groups,DC=example,DC=com"}},
		text:       `<samlp:Response Version="2.0" ID="_response" IssueInstant="NOW" InResponseTo="REQUEST" Destination="ACS" xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol"><saml:Issuer xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion">IDP</saml:Issuer>@@response@@<samlp:Status><samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></samlp:Status><saml:Assertion ID="_assertion" IssueInstant="NOW" Version="2.0" xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion"><saml:Issuer>IDP</saml:Issuer><saml:Subject><saml:NameID Format="urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified">alice@example.com</saml:NameID><saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><saml:SubjectConfirmationData Recipient="ACS" NotOnOrAfter="SOON" InResponseTo="REQUEST"/></saml:SubjectConfirmation></saml:Subject><saml:Conditions NotBefore="NOW" NotOnOrAfter="SOON"><saml:AudienceRestriction><saml:Audience>ENTITY</saml:Audience></saml:AudienceRestriction><saml:AudienceRestriction><saml:Audience>x</saml:Audience><saml:Audience>ENTITY</saml:Audience></saml:AudienceRestriction><saml:ProxyRestriction Count="0"/></saml:Conditions><saml:AuthnStatement SessionIndex="x" AuthnInstant="NOW"><saml:AuthnContext><saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:unspecified</saml:AuthnContextClassRef></saml:AuthnContext></saml:AuthnStatement><saml:AttributeStatement xmlns:xs="http://www.w3.org/2001/XMLSchema"><saml:Attribute Name="memberOf" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:basic"><saml:AttributeValue xsi:type="xs:string" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">CN=Ops,OU=Groups,DC=example,DC=com</saml:AttributeValue></saml:Attribute></saml:AttributeStatement></saml:Assertion></samlp:Response>`,
	},
	{
		name: "one with prefixes that are declared inside of the signature", response: samltest.Signature{Prefixes: "ds saml samlp xs xsi"}, assertion: samltest.Signature{Prefixes: "#default ds saml samlp xs xsi", C14N: samltest.Exclusive},
		attributes: map[string][]string{"a": {"1"}},
		text:       `<samlp:Response xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" Destination="ACS" ID="_response" InResponseTo="REQUEST" IssueInstant="NOW" Version="2.0"><saml:Issuer xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" Format="urn:oasis:names:tc:SAML:2.0:nameid-format:entity">IDP</saml:Issuer>@@response@@<samlp:Status><samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success"/></samlp:Status><saml:Assertion xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" ID="_assertion" IssueInstant="NOW" Version="2.0"><saml:Issuer Format="urn:oasis:names:tc:SAML:2.0:nameid-format:entity">IDP</saml:Issuer>@@assertion@@<saml:Subject><saml:NameID>alice@example.com</saml:NameID><saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer"><saml:SubjectConfirmationData InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS"/></saml:SubjectConfirmation></saml:Subject><saml:Conditions NotBefore="NOW" NotOnOrAfter="SOON"><saml:AudienceRestriction><saml:Audience>ENTITY</saml:Audience></saml:AudienceRestriction></saml:Conditions><saml:AuthnStatement AuthnInstant="NOW"><saml:AuthnContext><saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:unspecified</saml:AuthnContextClassRef></saml:AuthnContext></saml:AuthnStatement><saml:AttributeStatement><saml:Attribute Name="a" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:unspecified"><saml:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xs:anyType">1</saml:AttributeValue></saml:Attribute></saml:AttributeStatement></saml:Assertion></samlp:Response>`,
	},
	{
		// As older servers write it: a line break after each tag, both inclusive, a namespace that nothing uses.
		name: "one with inclusive canonicalisation", response: samltest.Signature{C14N: samltest.Inclusive10}, assertion: samltest.Signature{C14N: samltest.Inclusive10},
		attributes: map[string][]string{"a": {"1", "1"}},
		text: `<samlp:Response xmlns:samlp="urn:oasis:names:tc:SAML:2.0:protocol" xmlns:saml="urn:oasis:names:tc:SAML:2.0:assertion" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:unused="urn:unused"
 xsi:schemaLocation="urn:oasis:names:tc:SAML:2.0:protocol saml-schema-protocol-2.0.xsd" Destination="ACS" ID="_response" InResponseTo="REQUEST" IssueInstant="NOW" Version="2.0">
<saml:Issuer>IDP</saml:Issuer>
@@response@@
<samlp:Status>
<samlp:StatusCode Value="urn:oasis:names:tc:SAML:2.0:status:Success">
</samlp:StatusCode>
</samlp:Status>
<saml:Assertion ID="_assertion" IssueInstant="NOW" Version="2.0">
<saml:Issuer>IDP</saml:Issuer>
@@assertion@@
<saml:Subject>
<saml:NameID>alice@example.com</saml:NameID>
<saml:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:bearer">
<saml:SubjectConfirmationData InResponseTo="REQUEST" NotOnOrAfter="SOON" Recipient="ACS">
</saml:SubjectConfirmationData>
</saml:SubjectConfirmation>
</saml:Subject>
<saml:Conditions NotBefore="NOW" NotOnOrAfter="SOON">
<saml:AudienceRestriction>
<saml:Audience>ENTITY</saml:Audience>
</saml:AudienceRestriction>
</saml:Conditions>
<saml:AuthnStatement AuthnInstant="NOW">
<saml:AuthnContext>
<saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:Password</saml:AuthnContextClassRef>
</saml:AuthnContext>
</saml:AuthnStatement>
<saml:AttributeStatement>
<saml:Attribute Name="a">
<saml:AttributeValue>1</saml:AttributeValue>
<saml:AttributeValue>1</saml:AttributeValue>
</saml:Attribute>
</saml:AttributeStatement>
</saml:Assertion>
</samlp:Response>`,
	},
}

// TestProviders: documents in the manner of real identity providers are accepted.
func TestProviders(t *testing.T) {
	t.Parallel()
	for _, test := range providers {
		t.Run(test.name, func(t *testing.T) {
			kind := test.key
			if kind == "" {
				kind = samltest.RSA2048
			}
			p := newIdP(t, samltest.WithKey(samltest.NewKey(kind, 0)))
			stamp := func(d time.Duration) string { return now.Add(d).Format("2006-01-02T15:04:05.0000000Z") }
			text := strings.NewReplacer("IDP", p.EntityID, "ACS", acs, "ENTITY", entity, "REQUEST", request, "NOW", stamp(0), "SOON", stamp(time.Hour)).Replace(test.text)
			var err error
			for _, sign := range []struct {
				signature  samltest.Signature
				marker, id string
			}{{test.assertion, samltest.AssertionMark, "_assertion"}, {test.response, samltest.ResponseMark, "_response"}} {
				if !strings.Contains(text, sign.marker) {
					continue
				}
				if text, err = sign.signature.Sign(text, sign.marker, sign.id, p.Key); err != nil {
					t.Fatal(err)
				}
			}
			mustAccept(t, encode([]byte(text)), expect(p), samltest.User{Subject: alice.Subject, Attributes: test.attributes})
		})
	}
}

// TestManyTypedAttributes: 1,500 groups fit in however many words they are said.
func TestManyTypedAttributes(t *testing.T) {
	t.Parallel()
	p, o := newIdP(t), good()
	o.User = samltest.User{Subject: alice.Subject}
	o.SignResponse = true
	o.Edit = sub("</saml:Assertion>", "<saml:AttributeStatement>"+strings.Repeat(`<saml:Attribute xmlns:x="urn:x" x:y="z" Name="groups" FriendlyName="g" NameFormat="urn:oasis:names:tc:SAML:2.0:attrname-format:basic">`+
		`<saml:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="xs:string">g</saml:AttributeValue></saml:Attribute>`, 1500)+
		"</saml:AttributeStatement></saml:Assertion>")
	mustAccept(t, p.Response(o), expect(p), samltest.User{Subject: alice.Subject, Attributes: map[string][]string{"groups": slices.Repeat([]string{"g"}, 1500)}})
}
