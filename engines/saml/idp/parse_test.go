package idp_test

import (
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/idp"
)

// TestSamples reads metadata in the manner of the common identity providers.
func TestSamples(t *testing.T) {
	tests := []struct {
		file, entityID, sso string
		certificates        []string // common names
		signed              bool
		validUntil          string
		cache               time.Duration
	}{
		{file: "keycloak", entityID: "https://keycloak.example.com/realms/people", signed: true,
			sso: "https://keycloak.example.com/realms/people/protocol/saml", certificates: []string{"keycloak"}},
		{file: "adfs", entityID: "http://adfs.example.com/adfs/services/trust",
			sso: "https://adfs.example.com/adfs/ls/", certificates: []string{"adfs1", "adfs2"}},
		{file: "entra", entityID: "https://sts.windows.net/11111111-2222-3333-4444-555555555555/",
			sso: "https://login.example.com/11111111-2222-3333-4444-555555555555/saml2", certificates: []string{"entra1", "entra2"}},
		{file: "okta", entityID: "http://www.okta.example/exk1abcdefGHIJKLmn2",
			sso: "https://people.okta.example/app/people_coffer_1/exk1abcdefGHIJKLmn2/sso/saml", certificates: []string{"okta"}},
		{file: "simplesamlphp", entityID: "https://ssp.example.com/saml2/idp/metadata.php", signed: true,
			sso: "https://ssp.example.com/saml2/idp/SSOService.php?tenant=people&x=1", certificates: []string{"ssp"},
			validUntil: "2045-01-31T12:00:00Z", cache: 90 * time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			document, err := os.ReadFile(filepath.Join("testdata", tt.file+".xml"))
			if err != nil {
				t.Fatal(err)
			}
			d, err := idp.Parse(document)
			if err != nil {
				t.Fatal(err)
			}
			if d.EntityID != tt.entityID || d.SSOURL != tt.sso || d.WantsSignedRequests != tt.signed || d.CacheDuration != tt.cache {
				t.Errorf("Parse = %+v, want %+v", d, tt)
			}
			if until := d.ValidUntil.Format(time.RFC3339); d.ValidUntil.IsZero() != (tt.validUntil == "") || tt.validUntil != "" && until != tt.validUntil {
				t.Errorf("ValidUntil = %s, want %s", until, tt.validUntil)
			}
			var names []string
			for _, c := range d.Certificates {
				names = append(names, strings.TrimSuffix(c.Subject.CommonName, ".example.com"))
			}
			if fmt.Sprint(names) != fmt.Sprint(tt.certificates) {
				t.Errorf("certificates of %v, want %v", names, tt.certificates)
			}
		})
	}
}

const redirect = `<SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect" Location="https://idp.example.com/sso"/>`

// document is small metadata with the certificate.
func document(c *x509.Certificate) string {
	return `<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID="urn:idp">` +
		`<IDPSSODescriptor protocolSupportEnumeration="urn:oasis:names:tc:SAML:2.0:protocol">` +
		descriptor("signing", c) + redirect + `</IDPSSODescriptor></EntityDescriptor>`
}

func descriptor(use string, certificates ...*x509.Certificate) string {
	data := ""
	for _, c := range certificates {
		data += "<X509Certificate>" + base64.StdEncoding.EncodeToString(c.Raw) + "</X509Certificate>"
	}
	return `<KeyDescriptor use="` + use + `"><KeyInfo xmlns="http://www.w3.org/2000/09/xmldsig#"><X509Data>` + data + `</X509Data></KeyInfo></KeyDescriptor>`
}

func TestRefused(t *testing.T) {
	c := selfSigned(t, "idp")
	good := document(c)
	short, err := shortRSA()
	if err != nil {
		t.Fatal(err)
	}
	weak := issue(t, "weak", short, nil, nil)
	replace := func(old, with string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the document does not contain %q", old)
		}
		return strings.Replace(good, old, with, 1)
	}
	role := good[strings.Index(good, "<IDPSSO"):strings.Index(good, "</EntityDescriptor>")]
	group := `<EntitiesDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata">`
	tests := []struct{ name, document, want string }{
		{"nothing", "", "it is empty"},
		{"text", "metadata", "it is not XML"},
		{"JSON", `{"entity_id":"urn:idp"}`, "it is not XML"},
		{"HTML", "<!DOCTYPE html><html><body>log in</body></html>", "it is an HTML page"},
		{"HTML without a DOCTYPE", "<html><body>log in<br></body></html>", "it is an HTML page"},
		{"DOCTYPE", `<!DOCTYPE EntityDescriptor [<!ENTITY a "b">]>` + good, "it has a DOCTYPE"},
		{"entity", replace("urn:idp", "&a;"), "not well-formed"},
		{"cut off", good[:len(good)-10], "not well-formed"},
		{"other encoding", `<?xml version="1.0" encoding="ISO-8859-1"?>` + good, "only UTF-8 is read"},
		{"not UTF-8", replace("urn:idp", "urn:\xff"), "not well-formed"},
		{"two roots", good + good, "more than one root"},
		{"text after it", good + "x", "text outside the root"},
		{"other root", "<Response/>", `its root element is "Response"`},
		{"other namespace", replace("urn:oasis:names:tc:SAML:2.0:metadata", "urn:other"), "its root element is"},
		{"deep", replace(redirect, strings.Repeat("<a>", 50)+strings.Repeat("</a>", 50)), "nested deeper than 40"},
		{"large", good + strings.Repeat(" ", idp.MaxDocumentBytes), "larger than 1048576 bytes"},
		{"no provider", replace("IDPSSODescriptor", "SPSSODescriptor") + "", "not well-formed"},
		{"a service provider", strings.ReplaceAll(good, "IDPSSODescriptor", "SPSSODescriptor"), "describes no identity provider"},
		{"SAML 1.1", replace("urn:oasis:names:tc:SAML:2.0:protocol", "urn:oasis:names:tc:SAML:1.1:protocol"), "describes no identity provider"},
		{"an empty group", group + "</EntitiesDescriptor>", "describes no identity provider"},
		{"two providers", group + good + group + good + "</EntitiesDescriptor></EntitiesDescriptor>", "describes 2 identity providers: configure one of them with idp_sso_url"},
		{"two roles", replace("</EntityDescriptor>", role+"</EntityDescriptor>"), "describes 2 identity providers"},
		{"no entity id", replace(`entityID="urn:idp"`, ""), "no entity id"},
		{"blank entity id", replace("urn:idp", " "), "no entity id"},
		{"long entity id", replace("urn:idp", strings.Repeat("a", 1025)), "its entity id is longer"},
		{"no service", replace(redirect, ""), "no SingleSignOnService"},
		{"POST only", replace("HTTP-Redirect", "HTTP-POST"), "no requests by HTTP-Redirect, only by HTTP-POST"},
		{"relative service", replace("https://idp.example.com", ""), "its SingleSignOnService must be an absolute URL"},
		{"script", replace("https://idp.example.com/sso", "javascript:alert(1)"), "its SingleSignOnService must be an absolute URL"},
		{"no certificate", replace(descriptor("signing", c), ""), "no certificate for signing"},
		{"for encryption only", replace("signing", "encryption"), "no certificate for signing"},
		{"weak key", document(weak), "its certificate for signing has an RSA key of 1024 bits"},
		{"damaged certificate", replace("<X509Certificate>", "<X509Certificate>AA"), "its certificate for signing"},
		{"not base64", replace("<X509Certificate>", "<X509Certificate>!"), "is not base64"},
		{"many certificates", replace(descriptor("signing", c), descriptor("signing", make17(c)...)), "17 certificates for signing or more"},
		{"odd end", replace("<EntityDescriptor", `<EntityDescriptor validUntil="tomorrow"`), `its validUntil "tomorrow" is not a time`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := idp.Parse([]byte(tt.document))
			expect(t, "Parse", err, tt.want)
			if err != nil && (d != nil || len(err.Error()) > 400) {
				t.Errorf("Parse = %v and an error of %d bytes", d, len(err.Error()))
			}
		})
	}
	if _, err := idp.Parse([]byte(good)); err != nil {
		t.Errorf("the document itself: %v", err)
	}
}

func make17(c *x509.Certificate) []*x509.Certificate {
	all := make([]*x509.Certificate, 17)
	for i := range all {
		all[i] = c
	}
	return all
}

// TestKeys: every key for signing counts that can be used, whatever stands beside it.
func TestKeys(t *testing.T) {
	a, b := selfSigned(t, "idp"), selfSigned(t, "idp")
	short, err := shortRSA()
	if err != nil {
		t.Fatal(err)
	}
	weak := issue(t, "weak", short, nil, nil)
	authorityKey := newECDSA(t, elliptic.P256())
	authority := issue(t, "authority", authorityKey, nil, nil)
	issued := issue(t, "issued", newECDSA(t, elliptic.P256()), authority, authorityKey)
	tests := []struct {
		name, keys string
		want       []*x509.Certificate
	}{
		{"two keys", descriptor("signing", a) + descriptor("signing", b), []*x509.Certificate{a, b}},
		{"two in one", descriptor("signing", b, a), []*x509.Certificate{b, a}},
		{"the same twice", descriptor("signing", a) + descriptor("signing", a), []*x509.Certificate{a}},
		{"another for encryption", descriptor("encryption", b) + descriptor("signing", a), []*x509.Certificate{a}},
		{"an old weak one", descriptor("signing", weak) + descriptor("signing", a), []*x509.Certificate{a}},
		{"its authority", descriptor("signing", issued, authority), []*x509.Certificate{issued}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := idp.Parse([]byte(strings.Replace(document(a), descriptor("signing", a), tt.keys, 1)))
			if err != nil {
				t.Fatal(err)
			}
			equal(t, d.Certificates, tt.want)
			if !d.Has(tt.want[0]) || d.Has(weak) {
				t.Error("Has does not tell which certificates there are")
			}
		})
	}
}

// TestLifetime: the earliest end and the shortest duration count, wherever they are told.
func TestLifetime(t *testing.T) {
	good := document(selfSigned(t, "idp"))
	tests := []struct {
		entity, role string // attributes
		until        string
		cache        time.Duration
	}{
		{"", "", "", 0},
		{`validUntil="2030-01-31T12:00:00Z"`, "", "2030-01-31T12:00:00Z", 0},
		{`validUntil="2030-01-31T12:00:00Z"`, `validUntil="2029-01-31T12:00:00.5Z"`, "2029-01-31T12:00:00Z", 0},
		{`validUntil="2030-01-31T12:00:00"`, `validUntil="2030-01-31T12:00:00-05:00"`, "2030-01-31T12:00:00Z", 0},
		{`cacheDuration="PT15M"`, `cacheDuration="P1Y2M3DT4H5M6.7S"`, "", 15 * time.Minute},
		{`cacheDuration="P1DT1H1M1S"`, "", "", 25*time.Hour + time.Minute + time.Second},
		{`cacheDuration="P999999999Y"`, "", "", 365 * 24 * time.Hour},
		{`cacheDuration="an hour"`, `cacheDuration="-PT1H"`, "", 0},
		{`cacheDuration="PT0S"`, `cacheDuration="P"`, "", 0},
	}
	for _, tt := range tests {
		text := strings.Replace(strings.Replace(good, "<EntityDescriptor", "<EntityDescriptor "+tt.entity, 1), "<IDPSSODescriptor", "<IDPSSODescriptor "+tt.role, 1)
		d, err := idp.Parse([]byte(text))
		if err != nil {
			t.Errorf("%s %s: %v", tt.entity, tt.role, err)
			continue
		}
		until := ""
		if !d.ValidUntil.IsZero() {
			until = d.ValidUntil.Format(time.RFC3339)
		}
		if until != tt.until || d.CacheDuration != tt.cache {
			t.Errorf("%s %s: until %q, cache %v; want %q, %v", tt.entity, tt.role, until, d.CacheDuration, tt.until, tt.cache)
		}
	}
}

func FuzzParse(f *testing.F) {
	samples, err := filepath.Glob("testdata/*.xml")
	if err != nil || len(samples) == 0 {
		f.Fatalf("no samples: %v", err)
	}
	for _, name := range samples {
		document, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(document)
	}
	f.Add([]byte("<!DOCTYPE html><html/>"))
	f.Add([]byte(`<EntitiesDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" cacheDuration="PT1H" validUntil="2030-01-31T12:00:00"><EntityDescriptor entityID="a"/></EntitiesDescriptor>`))
	f.Fuzz(func(t *testing.T, document []byte) {
		d, err := idp.Parse(document)
		if err != nil {
			if d != nil || len(err.Error()) > 1000 {
				t.Fatalf("Parse = %v and an error of %d bytes", d, len(err.Error()))
			}
			return
		}
		if d.EntityID == "" || idp.CheckEntityID(d.EntityID) != nil || idp.CheckURL(d.SSOURL) != nil || d.CacheDuration < 0 {
			t.Errorf("Parse accepted %+v", d)
		}
		if n := len(d.Certificates); n == 0 || n > idp.MaxCertificates {
			t.Errorf("Parse found %d certificates", n)
		}
		for _, c := range d.Certificates {
			if _, err := idp.ParseCertificates(certPEM(c)); err != nil {
				t.Errorf("Parse accepted a certificate that %v", err)
			}
		}
	})
}
