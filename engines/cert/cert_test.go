package cert_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cert"
	"github.com/coffer-project/coffer/engines/cert/certtest"
	"github.com/coffer-project/coffer/engines/enginetest"
)

type fields = map[string]any

func mounted(t *testing.T) *enginetest.Mount {
	return enginetest.New(t, cert.New, enginetest.Options{Type: "cert", Path: "auth/cert/"})
}

// login logs in with what a client sends.
func login(t *testing.T, m *enginetest.Mount, c *certtest.Client, role string) (*engines.Login, error) {
	t.Helper()
	var sent []*x509.Certificate
	if c != nil {
		sent = c.Sent()
	}
	resp, err := m.Handle(engines.WithCertificates(t.Context(), sent), m.Request(engines.Update, "login", fields{"name": role}))
	if err != nil {
		var e *engines.Error
		if !errors.As(err, &e) || e.Kind != engines.KindInvalid {
			t.Errorf("a login failed with %v, want a 400", err)
		}
		return nil, err
	}
	return resp.Auth.Login, nil
}

func mustLogin(t *testing.T, m *enginetest.Mount, c *certtest.Client, role string) *engines.Login {
	t.Helper()
	l, err := login(t, m, c, role)
	if err != nil {
		t.Fatalf("login: %v", err)
	}
	return l
}

func refused(t *testing.T, m *enginetest.Mount, c *certtest.Client, role, cause string) {
	t.Helper()
	if l, err := login(t, m, c, role); err == nil || !strings.Contains(err.Error(), cause) {
		t.Errorf("a login that has to be refused for %q: %v, %v", cause, l, err)
	}
}

var staffOID = asn1.ObjectIdentifier{1, 2, 3, 45}

func text(t *testing.T, oid asn1.ObjectIdentifier, s string) pkix.Extension {
	der, err := asn1.MarshalWithParams(s, "utf8")
	if err != nil {
		t.Fatal(err)
	}
	return pkix.Extension{Id: oid, Value: der}
}

func TestLogin(t *testing.T) {
	m, ca := mounted(t), certtest.New(t, "ca")
	m.Must(engines.Update, "certs/Web", fields{
		"certificate": ca.PEM(), "display_name": "webs", "token_policies": "web", "allowed_metadata_extensions": "1.2.3.45", "alias_metadata": fields{"a": "b"},
	})
	c := ca.Issue("app", func(c *x509.Certificate) {
		c.SerialNumber, c.ExtraExtensions = big.NewInt(1234), []pkix.Extension{text(t, staffOID, "yes")}
	})
	l := mustLogin(t, m, c, "")
	if l.DisplayName != "webs" || l.Alias.Name != "app" || l.Role != "web" || l.Token.TokenPolicies[0] != "web" || l.Alias.Metadata["serial_number"] != "" || l.Alias.Metadata["a"] != "b" {
		t.Errorf("login = %+v", l)
	}
	for name, want := range map[string]string{
		"cert_name": "web", "common_name": "app", "serial_number": "1234", "subject_key_id": "01:02:ab", "1-2-3-45": "yes",
		"authority_key_id": strings.ReplaceAll(hexOf(ca.Cert.SubjectKeyId), " ", ":"),
	} {
		if l.Metadata[name] != want {
			t.Errorf("metadata %s = %q, want %q", name, l.Metadata[name], want)
		}
	}
	m.Must(engines.Update, "config", fields{"enable_identity_alias_metadata": true})
	if l := mustLogin(t, m, c, "WEB"); l.Alias.Metadata["serial_number"] != "1234" || l.Alias.Metadata["a"] != "b" {
		t.Errorf("alias = %+v", l.Alias)
	}
	named := m.Engine.(engines.RoleNamer)
	with := engines.WithCertificates(t.Context(), c.Sent())
	for body, want := range map[string]string{`{"name":"Web"}`: "web", `{}`: "web", ``: "web", `{"name":"none"}`: "", `[]`: "", `{"name":5}`: "", `{"NAME":"none"}`: "web"} {
		if got := named.LoginRole(with, m.Request(engines.Update, "login", body)); got != want {
			t.Errorf("LoginRole(%s) = %q, want %q", body, got, want)
		}
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var out []string
	for _, c := range b {
		out = append(out, string([]byte{digits[c>>4], digits[c&15]}))
	}
	return strings.Join(out, " ")
}

func TestLoginRefused(t *testing.T) {
	m, ca, other := mounted(t), certtest.New(t, "ca"), certtest.New(t, "ca")
	m.Must(engines.Update, "certs/web", fields{"certificate": ca.PEM()})
	m.Must(engines.Update, "certs/other", fields{"certificate": certtest.New(t, "another").PEM()})
	good := ca.Issue("app", nil)
	mustLogin(t, m, good, "")

	refused(t, m, nil, "", "missing client certificate")
	refused(t, m, good, "none", "no such role")
	refused(t, m, good, "other", "unknown authority")
	refused(t, m, other.Issue("app", nil), "", "unknown authority")
	refused(t, m, ca.Issue("app", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "", "expired")
	refused(t, m, ca.Issue("app", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), "", "expired or is not yet valid")
	refused(t, m, ca.Issue("app", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "", "key usage")
	refused(t, m, ca.Issue("app", func(c *x509.Certificate) { c.SerialNumber = new(big.Int).Lsh(big.NewInt(1), 1030) }), "", "serial number")

	below := ca.Below("below")
	issued := below.Issue("app", nil)
	refused(t, m, issued, "", "unknown authority")
	issued.Chain = []*x509.Certificate{below.Cert}
	mustLogin(t, m, issued, "")
	for range engines.MaxCertificates {
		issued.Chain = append(issued.Chain, certtest.New(t, "noise").Cert)
	}
	refused(t, m, issued, "", "more than")

	if err := func() error { _, err := login(t, m, good, "other"); return err }(); strings.Contains(err.(*engines.Error).Detail, "authority") {
		t.Errorf("the client sees why: %v", err)
	}
}

// What a stranger sends costs a bounded number of signatures: certificates that could all have issued each other.
func TestManyIssuersOfOneName(t *testing.T) {
	m := mounted(t)
	m.Must(engines.Update, "certs/web", fields{"certificate": certtest.New(t, "ca").PEM()})
	top := certtest.New(t, "same")
	c := top.Issue("app", nil)
	for range engines.MaxCertificates - 1 {
		c.Chain = append(c.Chain, top.Below("same").Cert)
	}
	refused(t, m, c, "", "")
}

func TestPinnedCertificate(t *testing.T) {
	m, ca := mounted(t), certtest.New(t, "ca")
	c := ca.Issue("app", nil)
	m.Must(engines.Update, "certs/one", fields{"certificate": certtest.PEM(c.Cert), "allowed_common_names": "a*"})
	mustLogin(t, m, c, "")
	// Another certificate with the same serial number, of a CA with the same name and key id.
	forged := certtest.New(t, "ca")
	refused(t, m, forged.IssueFor(c.Key, "app", func(f *x509.Certificate) {
		f.SerialNumber, f.AuthorityKeyId, f.SubjectKeyId = c.Cert.SerialNumber, c.Cert.AuthorityKeyId, c.Cert.SubjectKeyId
	}), "", "unknown authority")
	refused(t, m, ca.Issue("app", nil), "", "unknown authority")

	late := ca.Issue("app", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	m.Must(engines.Update, "certs/late", fields{"certificate": certtest.PEM(late.Cert)})
	refused(t, m, late, "late", "")
	resp := m.Must(engines.Update, "certs/one", fields{"certificate": certtest.PEM(c.Cert, ca.Cert)})
	if len(resp.Warnings) != 1 {
		t.Errorf("a certificate with a CA behind it: warnings %q", resp.Warnings)
	}
	refused(t, m, ca.Issue("app", nil), "one", "unknown authority")
	m.Must(engines.Update, "certs/ca", fields{"certificate": ca.PEM()})
	m.Must(engines.Update, "crls/ca", fields{"crl": ca.Revoke(c)})
	refused(t, m, c, "one", "revoked")
}

func TestConstraints(t *testing.T) {
	ca := certtest.New(t, "ca")
	c := ca.Issue("web.example.com", func(c *x509.Certificate) {
		c.DNSNames, c.EmailAddresses = []string{"a.example.com", "b.example.com"}, []string{"ada@example.com"}
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/web"}}
		c.Subject.OrganizationalUnit = []string{"staff"}
		c.ExtraExtensions = []pkix.Extension{text(t, staffOID, "yes"), {Id: asn1.ObjectIdentifier{1, 2, 3, 46}, Value: []byte{1, 1, 0xff}}}
	})
	for _, test := range []struct {
		field string
		value any
		fits  bool
	}{
		{"allowed_names", "web.example.com", true}, {"allowed_names", "b.*", true}, {"allowed_names", "ada@*", true}, {"allowed_names", "c.*", false},
		{"allowed_common_names", "*.example.com", true}, {"allowed_common_names", "a.example.com", false}, {"allowed_common_names", "web.example.co", false},
		{"allowed_common_names", []string{"x", "w*b*com"}, true}, {"allowed_common_names", "WEB.example.com", false},
		{"allowed_dns_sans", "*.example.com", true}, {"allowed_dns_sans", "web.example.com", false},
		{"allowed_email_sans", "*@example.com", true}, {"allowed_email_sans", "*@example.org", false},
		{"allowed_uri_sans", "spiffe://example.com/*", true}, {"allowed_uri_sans", "spiffe://example.org/*", false},
		{"allowed_organizational_units", "st*ff", true}, {"allowed_organizational_units", "sales", false},
		{"required_extensions", "1.2.3.45:y*", true}, {"required_extensions", []string{"1.2.3.45:yes", "1.2.3.99:*"}, false},
		{"required_extensions", "1.2.3.45:no", false}, {"required_extensions", "hex:1.2.3.46:0101F*", true}, {"required_extensions", "hex:1.2.3.46:010100", false},
	} {
		m := mounted(t)
		m.Must(engines.Update, "certs/web", fields{"certificate": ca.PEM(), test.field: test.value})
		if _, err := login(t, m, c, ""); (err == nil) != test.fits {
			t.Errorf("%s = %v: %v", test.field, test.value, err)
		} else if err != nil && !strings.Contains(err.Error(), test.field) {
			t.Errorf("%s = %v is refused with %v", test.field, test.value, err)
		}
	}
	// The first role, by name, whose constraints are met.
	m := mounted(t)
	m.Must(engines.Update, "certs/a", fields{"certificate": ca.PEM(), "allowed_common_names": "other"})
	m.Must(engines.Update, "certs/b", fields{"certificate": ca.PEM(), "allowed_dns_sans": "a.example.com"})
	if l := mustLogin(t, m, c, ""); l.Role != "b" {
		t.Errorf("role %q", l.Role)
	}
}

func TestRoles(t *testing.T) {
	m, ca := mounted(t), certtest.New(t, "ca")
	m.Must(engines.Update, "certs/Web", fields{"certificate": ca.PEM(), "policies": "p", "ttl": "1h", "allowed_names": "a,b", "ocsp_enabled": false})
	m.Must(engines.Update, "certs/web", fields{"allowed_dns_sans": "c", "display_name": ""})
	data := m.Data(m.Must(engines.Read, "certs/WEB", nil))
	for name, want := range map[string]any{"display_name": "web", "certificate": ca.PEM(), "ttl": 3600, "token_ttl": 3600, "ocsp_enabled": false} {
		if fmt.Sprint(data[name]) != fmt.Sprint(want) {
			t.Errorf("%s = %v, want %v", name, data[name], want)
		}
	}
	if list := data["allowed_names"].([]any); len(list) != 2 || len(data["allowed_dns_sans"].([]any)) != 1 || data["policies"].([]any)[0] != "p" {
		t.Errorf("role = %v", data)
	}
	if keys := m.Data(m.Must(engines.List, "certs/", nil))["keys"].([]any); len(keys) != 1 || keys[0] != "web" {
		t.Errorf("keys = %v", keys)
	}
	server := ca.Issue("server", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	for _, wrong := range []struct {
		body fields
		text string
	}{
		{fields{}, "is required"},
		{fields{"certificate": "x"}, "PEM"},
		{fields{"certificate": ca.Revoke()}, "PEM"},
		{fields{"certificate": strings.Repeat(ca.PEM(), 51)}, "more than 50"},
		{fields{"certificate": ca.PEM() + certtest.PEM(server.Cert)}, "CA certificates only"},
		{fields{"certificate": certtest.PEM(server.Cert)}, "client authentication"},
		{fields{"certificate": ca.PEM(), "required_extensions": "x"}, "OID:TEXT"},
		{fields{"certificate": ca.PEM(), "allowed_metadata_extensions": "1"}, "must be an OID"},
		{fields{"certificate": ca.PEM(), "ocsp_enabled": true}, "OCSP is not supported"},
		{fields{"certificate": ca.PEM(), "ocsp_servers_override": "http://x"}, "OCSP is not supported"},
		{fields{"certificate": ca.PEM(), "token_policies": "root"}, "token_policies"},
	} {
		if text := m.Fails(engines.KindInvalid, engines.Update, "certs/wrong", wrong.body); !strings.Contains(text, wrong.text) {
			t.Errorf("%v is refused with %q", wrong.body, text)
		}
	}
	c := ca.Issue("a", func(c *x509.Certificate) { c.DNSNames = []string{"c"} })
	mustLogin(t, m, c, "")
	m.Must(engines.Delete, "certs/web", nil)
	refused(t, m, c, "", "")
	m.Fails(engines.KindNotFound, engines.Read, "certs/web", nil)
	if got := m.Engine.(interface{ StoredPath(string) string }).StoredPath("certs/WEB"); got != "certs/web" {
		t.Errorf("StoredPath = %q", got)
	}
}

func TestConfig(t *testing.T) {
	m := mounted(t)
	if data := m.Data(m.Must(engines.Read, "config", nil)); data["disable_binding"] != false || data["role_cache_size"] != json.Number("200") {
		t.Errorf("config = %v", data)
	}
	m.Must(engines.Update, "config", fields{"disable_binding": true, "ocsp_cache_size": 100})
	m.Must(engines.Update, "config", fields{"enable_metadata_on_failures": true})
	if data := m.Data(m.Must(engines.Read, "config", nil)); data["disable_binding"] != true || data["enable_metadata_on_failures"] != true {
		t.Errorf("config = %v", data)
	}
	m.Fails(engines.KindInvalid, engines.Update, "config", fields{"ocsp_cache_size": 5})
	m.Fails(engines.KindInvalid, engines.Update, "config", fields{"role_cache_size": -1})
	_, err := login(t, m, certtest.New(t, "ca").Issue("who", func(c *x509.Certificate) { c.SerialNumber = big.NewInt(77) }), "")
	var e *engines.Error
	if !errors.As(err, &e) || !strings.Contains(e.Reason, `common_name="who" serial_number=77`) || strings.Contains(e.Detail, "who") {
		t.Errorf("a login that fails: %+v", e)
	}
}

func TestRevocationLists(t *testing.T) {
	m, ca, other := mounted(t), certtest.New(t, "ca"), certtest.New(t, "other")
	c, second := ca.Issue("app", nil), ca.Issue("second", nil)
	if text := m.Fails(engines.KindInvalid, engines.Update, "crls/ca", fields{"crl": ca.Revoke(c)}); !strings.Contains(text, "write the role first") {
		t.Errorf("a list before its role: %q", text)
	}
	m.Must(engines.Update, "certs/web", fields{"certificate": ca.PEM()})
	mustLogin(t, m, c, "")
	forged := certtest.New(t, "ca")
	forgedList := forged.Revoke(c)
	block, _ := pem.Decode([]byte(ca.Revoke(c)))
	damaged := append([]byte{}, block.Bytes...)
	damaged[len(damaged)-1] ^= 1
	for _, crl := range []string{
		"", "x", other.Revoke(c), forgedList, forgedList + forged.PEM(), base64.StdEncoding.EncodeToString(damaged),
		ca.PEM(), ca.Revoke(c) + ca.Revoke(c), ca.Revoke(c) + strings.Repeat(ca.PEM(), 11),
	} {
		m.Fails(engines.KindInvalid, engines.Update, "crls/ca", fields{"crl": crl})
	}
	if text := m.Fails(engines.KindInvalid, engines.Update, "crls/ca", fields{"url": "http://127.0.0.1/"}); !strings.Contains(text, "not fetched") {
		t.Errorf("url: %q", text)
	}
	mustLogin(t, m, c, "")

	m.Must(engines.Update, "crls/CA", fields{"crl": base64.StdEncoding.EncodeToString(block.Bytes)})
	refused(t, m, c, "", "revoked")
	mustLogin(t, m, second, "")
	data := m.Data(m.Must(engines.Read, "crls/ca", nil))
	if serials := data["serials"].(map[string]any); len(serials) != 1 || serials[c.Cert.SerialNumber.String()] == nil {
		t.Errorf("list = %v", data)
	}
	if keys := m.Data(m.Must(engines.List, "crls/", nil))["keys"].([]any); len(keys) != 1 {
		t.Errorf("keys = %v", keys)
	}
	// The same serial number of another CA is another certificate.
	m.Must(engines.Update, "certs/other", fields{"certificate": other.PEM()})
	mustLogin(t, m, other.Issue("app", func(o *x509.Certificate) { o.SerialNumber = c.Cert.SerialNumber }), "")
	m.Must(engines.Update, "crls/ca", fields{"crl": ca.Revoke()})
	mustLogin(t, m, c, "")
	m.Must(engines.Update, "crls/ca", fields{"crl": ca.Revoke(c)})
	m.Must(engines.Delete, "crls/ca", nil)
	mustLogin(t, m, c, "")

	// A CA between the role's and the client's.
	below := ca.Below("below")
	issued := below.Issue("app", nil)
	issued.Chain = []*x509.Certificate{below.Cert}
	mustLogin(t, m, issued, "")
	m.Fails(engines.KindInvalid, engines.Update, "crls/below", fields{"crl": below.Revoke(issued)})
	m.Must(engines.Update, "crls/below", fields{"crl": below.Revoke(issued) + below.PEM()})
	refused(t, m, issued, "", "revoked")
	m.Must(engines.Delete, "crls/below", nil)
	m.Must(engines.Update, "crls/ca", fields{"crl": ca.Revoke(&certtest.Client{Cert: below.Cert})})
	refused(t, m, issued, "", "revoked")
	m.Peer()
	refused(t, m.Peer(), issued, "", "revoked")
}

func TestRenewal(t *testing.T) {
	m, ca := mounted(t), certtest.New(t, "ca")
	m.Must(engines.Update, "certs/web", fields{"certificate": ca.PEM(), "token_policies": "web", "token_ttl": "1h"})
	c := ca.Issue("app", nil)
	l := mustLogin(t, m, c, "")
	renew := func(client *certtest.Client, waiting bool) error {
		ctx := t.Context()
		if client != nil {
			ctx = engines.WithCertificates(ctx, client.Sent())
		}
		_, err := m.Engine.(engines.Renewer).RenewLogin(ctx, m.Mount, engines.RenewedLogin{
			Role: l.Role, Internal: l.Internal, Metadata: l.Metadata, Policies: []string{"default", "web"}, Waiting: waiting,
		})
		return err
	}
	wants := func(err error, text string) {
		t.Helper()
		if text == "" && err != nil || text != "" && (err == nil || !strings.Contains(err.Error(), text)) {
			t.Errorf("renewal: %v, want %q", err, text)
		}
	}
	wants(renew(c, false), "")
	wants(renew(ca.IssueFor(c.Key, "app", nil), false), "") // a newer certificate for the same key
	wants(renew(ca.Issue("app", nil), false), "not matching")
	wants(renew(certtest.New(t, "ca").IssueFor(c.Key, "app", nil), false), "does not accept")
	wants(renew(nil, false), "missing client certificate")
	wants(renew(nil, true), "") // the second factor of the same login comes over any connection
	m.Must(engines.Update, "config", fields{"disable_binding": true})
	wants(renew(nil, false), "")
	m.Must(engines.Update, "crls/ca", fields{"crl": ca.Revoke(c)})
	wants(renew(nil, false), "revoked")
	wants(renew(nil, true), "revoked")
	m.Must(engines.Update, "config", fields{"disable_binding": false})
	wants(renew(c, false), "revoked")
	m.Must(engines.Delete, "crls/ca", nil)
	m.Must(engines.Update, "certs/web", fields{"allowed_common_names": "other"})
	wants(renew(c, false), "does not accept")
	m.Must(engines.Update, "certs/web", fields{"allowed_common_names": "", "token_policies": "more"})
	wants(renew(c, false), "policies have changed")
	m.Must(engines.Delete, "certs/web", nil)
	wants(renew(c, false), "does not exist any more")
}

func TestHostile(t *testing.T) {
	m, ca := mounted(t), certtest.New(t, "ca")
	m.Must(engines.Update, "certs/web", fields{"certificate": ca.PEM()})
	m.Must(engines.Update, "crls/ca", fields{"crl": ca.Revoke()})
	enginetest.Documented(t, m)
	enginetest.Hostile(t, m)
}
