package main

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/samltest"
)

const samlVerified = `200 {"data":{"entity_id":"https://idp.test/id","sso_url":"https://idp.test/sso","wants_signed_requests":true,` +
	`"fetched_at":"2026-01-02T03:04:05Z","certificates":[{"subject":"CN=idp","sha256_fingerprint":"00ff","not_before":"2026-01-01T00:00:00Z","not_after":"2027-01-01T00:00:00Z"}]},` +
	`"warnings":["the identity provider wants signed requests"]}`

const (
	samlRefusedLogin = `200 {"data":{"admitted":false,"subject":"ada@example.com","attributes":{"groups":["Dev","staff "]},"groups":["Dev","staff "],"policies":[],` +
		`"checks":[{"bound":"subject","name":"","type":"glob","expected":["*@example.com"],"given":["ada@example.com"],"passed":true,"hint":""},` +
		`{"bound":"attribute","name":"groups","type":"string","expected":["dev"],"given":["Dev","staff "],"passed":false,"hint":"expected is \"dev\", given is \"Dev\""}],` +
		`"refused":{"at":"2026-01-02T03:04:05Z","reason":"role","detail":"the attribute has none","address":"10.0.0.9"}}}`
	samlAdmitted = `200 {"data":{"admitted":true,"subject":"ada","attributes":{},"groups":[],"policies":["app","default"],"checks":[]}}`
	samlForged   = `200 {"data":{"admitted":false,"subject":"","attributes":{},"groups":[],"policies":[],"checks":[],` +
		`"refused":{"at":"2026-01-02T03:04:05Z","reason":"signature","detail":"no signature\u001b[2J","address":"10.0.0.9"}}}`
)

func TestSAMLCommands(t *testing.T) {
	p := samltest.New(t)
	dir := t.TempDir()
	metadata, response := filepath.Join(dir, "idp.xml"), filepath.Join(dir, "response.xml")
	encoded := p.Response(samltest.Response{
		User: samltest.User{Subject: "ada", Attributes: map[string][]string{"groups": {"dev", "ops"}}}, ACSURL: "https://c/cb", Audience: "https://c", RequestID: "_1",
	})
	document, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		metadata: string(p.MetadataXML()), response: string(document), response + ".b64": encoded,
		response + ".form": "RelayState=x&SAMLResponse=" + url.QueryEscape(encoded) + "&y=z", dir + "/bad.xml": "<a/>",
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const posted = `POST auth/saml/role/dev/explain {"attributes":{"groups":["dev","ops"]},"subject":"ada"}`
	const postedWhole = `POST auth/saml/role/dev/explain {"attributes":{"groups":["dev","ops"]},` +
		`"authn_context_class_refs":["urn:oasis:names:tc:SAML:2.0:ac:classes:PasswordProtectedTransport"],"subject":"ada"}`
	idp, err := json.Marshal(p.CertificatePEM())
	if err != nil {
		t.Fatal(err)
	}
	explicit := `"idp_cert":` + string(idp) + `,"idp_entity_id":"` + p.EntityID + `","idp_sso_url":"` + p.SSOURL + `"`
	lines := map[string]string{
		"GET auth/saml/config":            `200 {"data":{"entity_id":"https://c"}}`,
		"POST auth/saml/config":           "204",
		"POST auth/new/config":            `200 {"warnings":["a URL without TLS"]}`,
		"GET auth/hidden/config":          `403 {"errors":["permission denied"]}`,
		"POST auth/hidden/config":         "204",
		"POST auth/corp/config":           "204",
		"POST auth/saml/config/verify":    samlVerified,
		"POST auth/corp/config/verify":    `502 {"errors":["the metadata cannot be fetched"]}`,
		"GET auth/saml/metadata":          "200 <EntityDescriptor/>",
		"POST auth/saml/role/dev/explain": samlAdmitted,
		"POST auth/saml/role/ops/explain": samlRefusedLogin,
		"POST auth/saml/role/qa/explain":  samlForged,
	}
	tests := []struct {
		name, args     string // split at spaces
		stdin          string
		last           string // the last request; "" if there is none. ADDR is the server
		stdout, stderr string // parts
		status         int
	}{
		{name: "config", args: "config", last: "GET auth/saml/config", stdout: "entity_id    https://c"},
		{name: "no config", args: "config -path=new", last: "GET auth/new/config", stderr: "no configuration at auth/new/config", status: 2},
		{
			name: "settings", args: "config -acs-url=https://a/cb -acs-url=https://b/cb -sign-authn-requests -validate-response-signature=false -default-role= -entity-id=x",
			last:   `POST auth/saml/config {"acs_urls":["https://a/cb","https://b/cb"],"default_role":"","entity_id":"x","sign_authn_requests":true,"validate_response_signature":false}`,
			stdout: "Success! Data written to: auth/saml/config",
		},
		{name: "metadata URL", args: "config -metadata-url=https://idp.test/m", last: "POST auth/saml/config/verify", stdout: "Success!"},
		{name: "names", args: "config -name-id-format=persistent -case-sensitive-names", last: `POST auth/saml/config {"case_sensitive_names":true,"name_id_format":"persistent"}`},
		{name: "metadata URL where nothing is", args: "config -path=corp -entity-id=x -acs-url=https://a/cb -metadata-url=https://idp.test/m", last: "POST auth/corp/config/verify", stdout: "Success!", stderr: "logins will fail until the server can fetch the metadata: "},
		{name: "metadata", args: "config -metadata=" + metadata, last: "POST auth/saml/config {" + explicit + "}", stdout: "entity_id                " + p.EntityID},
		{name: "metadata, certificates", args: "config -metadata=" + metadata, last: "POST auth/saml/config {" + explicit + "}", stdout: "SHA-256\n"},
		{name: "metadata from stdin", args: "config -metadata=-", stdin: string(p.MetadataXML()), last: "POST auth/saml/config {" + explicit + "}"},
		{name: "metadata as JSON", args: "config -format=json -metadata=" + metadata, last: "POST auth/saml/config {" + explicit + "}", stdout: `"sha256_fingerprint": "`},
		{
			name: "first config", args: "config -path=new -default-role=dev",
			last:   `POST auth/new/config {"acs_urls":["ADDR/v1/auth/new/callback"],"default_role":"dev","entity_id":"ADDR/v1/auth/new/metadata"}`,
			stdout: "Success!", stderr: "Warning: a URL without TLS",
		},
		{name: "first config, namespace", args: "config -ns=a/b -path=new -entity-id=x -default-role=dev", stderr: "/v1/a/b/auth/new/callback", last: `POST auth/new/config {"acs_urls":["ADDR/v1/a/b/auth/new/callback"],"default_role":"dev","entity_id":"x"}`},
		{name: "config that cannot be read", args: "config -path=hidden -default-role=dev", last: `POST auth/hidden/config {"default_role":"dev"}`},
		{name: "bad metadata", args: "config -metadata=" + dir + "/bad.xml", stderr: "Error: -metadata: ", status: 1},
		{name: "no metadata", args: "config -metadata=" + dir + "/none", stderr: "no such file", status: 1},
		{name: "both", args: "config -metadata-url=https://a -metadata=" + metadata, stderr: "exclude each other", status: 1},
		{name: "verify", args: "verify", last: "POST auth/saml/config/verify", stdout: "CN=idp         2026-01-01T00:00:00Z    2027-01-01T00:00:00Z    00ff\n", stderr: "Warning: the identity provider wants"},
		{name: "verify a field", args: "verify -field=sso_url", last: "POST auth/saml/config/verify", stdout: "https://idp.test/sso"},
		{name: "verify as YAML", args: "verify -format=yaml", last: "POST auth/saml/config/verify", stdout: "sso_url: https://idp.test/sso"},
		{name: "verify fails", args: "verify -path=auth/corp", last: "POST auth/corp/config/verify", stderr: "cannot be fetched", status: 2},
		{name: "SP metadata", args: "metadata", last: "GET auth/saml/metadata", stdout: "<EntityDescriptor/>"},
		{name: "SP metadata into a file", args: "metadata -o " + dir + "/sp.xml", last: "GET auth/saml/metadata", stdout: "The metadata is in "},
		{name: "no SP metadata", args: "metadata -path=none", last: "GET auth/none/metadata", stderr: "not found", status: 2},
		{name: "explain", args: "explain dev", last: "POST auth/saml/role/dev/explain {}", stdout: "✓ The role dev lets ada in.\n"},
		{name: "explain a user", args: "explain dev subject=ada groups=dev groups=ops", last: posted, stdout: "Policies    \"app\", \"default\"\n"},
		{name: "explain odd names", args: "explain dev http://c/x=a=b", last: `POST auth/saml/role/dev/explain {"attributes":{"http://c/x":["a=b"]}}`},
		{name: "explain XML", args: "explain -assertion=" + response + " dev", last: postedWhole},
		{name: "explain base64", args: "explain -assertion=" + response + ".b64 dev", last: postedWhole},
		{name: "explain a form", args: "explain -assertion=" + response + ".form dev", last: postedWhole},
		{name: "explain stdin", args: "explain -assertion=- dev", stdin: encoded + "\n", last: postedWhole},
		{name: "explain rubbish", args: "explain -assertion=- dev", stdin: "rubbish!", stderr: "Error: -assertion: ", status: 1},
		{name: "explain both", args: "explain -assertion=" + response + " dev subject=x", stderr: "give no subject", status: 1},
		{name: "explain subjects", args: "explain dev subject=x subject=y", stderr: "subject is given more than once", status: 1},
		{name: "explain neither", args: "explain dev ada", stderr: `"ada" is neither`, status: 1},
		{name: "explain none", args: "explain none", last: "POST auth/saml/role/none/explain {}", stderr: "not found", status: 2},
		{name: "refused", args: "explain ops", last: "POST auth/saml/role/ops/explain {}", stdout: "✗ The role ops does not let ada@example.com in.\n", status: 2},
		{name: "refused, when", args: "explain ops", last: "POST auth/saml/role/ops/explain {}", stdout: "Refused at 2026-01-02T03:04:05Z, from 10.0.0.9: the attribute has none (role).\n", status: 2},
		{name: "refused, checks", args: "explain ops", last: "POST auth/saml/role/ops/explain {}", stdout: "\n✓    subject             glob      \"*@example.com\"    \"ada@example.com\"\n✗    attribute groups    string    \"dev\"              \"Dev\", \"staff \"\n\nattribute groups: expected is", status: 2},
		{name: "refused, a field", args: "explain -field=admitted ops", last: "POST auth/saml/role/ops/explain {}", stdout: "false", status: 2},
		{name: "rejected", args: "explain qa", last: "POST auth/saml/role/qa/explain {}", stdout: `no signature\x1b[2J (signature).` + "\nThe identity provider's response was rejected", status: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := record(t, lines)
			stdout, stderr, status := coffer(t, tt.stdin, append([]string{"saml"}, strings.Fields(tt.args)...)...)
			if status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d\nstdout %q\nstderr %q\nwant %d\n%q\n%q", status, stdout, stderr, tt.status, tt.stdout, tt.stderr)
			}
			last := ""
			if lines := r.lines(); len(lines) > 0 {
				last = lines[len(lines)-1]
			}
			if want := strings.ReplaceAll(tt.last, "ADDR", r.URL); last != want {
				t.Errorf("last request %q, want %q", last, want)
			}
		})
	}
	if got, err := os.ReadFile(dir + "/sp.xml"); err != nil || string(got) != "<EntityDescriptor/>" {
		t.Errorf("-o wrote %q, %v", got, err)
	}
}
