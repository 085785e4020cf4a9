package provider

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/saml/role"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// only is an engine with the paths of the configuration and of roles, and no others.
type only struct {
	*Provider
	router *engines.Router
}

func (o only) Router() *engines.Router { return o.router }

// build returns the factory of such engines, which log to log and count fetches that fail.
func build(log *slog.Logger, failures *atomic.Int64) engines.Factory {
	return func(engines.Mount) (engines.Engine, error) {
		o := only{New(log, failures), engines.NewRouter()}
		o.Provider.Routes(o.router)
		role.Routes(o.router)
		return o, nil
	}
}

func configMount(t testing.TB) *enginetest.Mount {
	return enginetest.New(t, build(slog.New(slog.DiscardHandler), new(atomic.Int64)), enginetest.Options{Type: "saml", Path: "auth/saml/"})
}

// settings are the input of a write.
type settings map[string]any

// with returns the settings with others added or replaced; a nil takes one away.
func (s settings) with(others settings) settings {
	all := settings{}
	for _, g := range []settings{s, others} {
		for name, value := range g {
			if all[name] = value; value == nil {
				delete(all, name)
			}
		}
	}
	return all
}

const (
	testACS    = "https://coffer.example.com/v1/auth/saml/callback"
	testEntity = "https://coffer.example.com/saml"
	testSource = "https://idp.example.com/metadata"
)

var byMetadata = settings{"idp_metadata_url": testSource, "entity_id": testEntity, "acs_urls": testACS, "name_id_format": "unspecified"}

func explicitFields(p *samltest.IdP) settings {
	return settings{
		"idp_sso_url": p.SSOURL, "idp_entity_id": p.EntityID, "idp_cert": p.CertificatePEM(),
		"entity_id": testEntity, "acs_urls": []string{testACS}, "name_id_format": "unspecified",
	}
}

// readConfigData returns what a read of the configuration answers, as decoded JSON.
func readConfigData(t *testing.T, m *enginetest.Mount) map[string]any {
	t.Helper()
	return m.Data(m.Must(engines.Read, "config", nil))
}

// wantFields compares some fields of data with JSON text.
func wantFields(t *testing.T, data map[string]any, want string) {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(want), &fields); err != nil {
		t.Fatal(err)
	}
	for name, text := range fields {
		got, err := json.Marshal(data[name])
		if err != nil {
			t.Fatal(err)
		}
		if _, there := data[name]; !there || string(got) != string(text) {
			t.Errorf("%s = %s, want %s", name, got, text)
		}
	}
}

func TestConfigIsMissingUntilItIsWritten(t *testing.T) {
	m := configMount(t)
	if text := m.Fails(engines.KindNotFound, engines.Read, "config", nil); text != "" {
		t.Errorf("a missing configuration is explained: %q", text)
	}
	if m.Exists("config") {
		t.Error("the configuration exists before it is written")
	}
	m.Fails(engines.KindInvalid, engines.Update, "config/verify", nil)
	m.Fails(engines.KindInvalid, engines.Update, "config/rotate-signing-key", nil)
	if resp := m.Must(engines.Update, "config", byMetadata); resp != nil {
		t.Errorf("a write without anything odd answers %+v, want 204", resp)
	}
	if !m.Exists("config") {
		t.Error("the configuration does not exist after it was written")
	}
}

func TestConfigReadAnswersWhatWasSet(t *testing.T) {
	p := samltest.New(t)
	const names = `"name_id_format":"urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified","case_sensitive_names":false,`
	tests := []struct {
		name string
		in   settings
		want string
	}{
		{"metadata", byMetadata, `{"acs_urls":["` + testACS + `"],"entity_id":"` + testEntity + `","idp_metadata_url":"` + testSource + `",` + names +
			`"allow_idp_initiated":false,"sign_authn_requests":false,"validate_assertion_signature":false,"validate_response_signature":false,"verbose_logging":false}`},
		{"explicit", explicitFields(p).with(settings{
			"acs_urls": testACS + ", https://b.example.com/cb," + testACS, "default_role": " Dev ", "validate_assertion_signature": "true",
			"validate_response_signature": 1, "allow_idp_initiated": true,
		}), `{"acs_urls":["` + testACS + `","https://b.example.com/cb"],"default_role":"dev","entity_id":"` + testEntity + `",` +
			`"idp_cert":` + quoted(t, p.CertificatePEM()) + `,"idp_entity_id":"` + p.EntityID + `","idp_sso_url":"` + p.SSOURL + `",` + names +
			`"allow_idp_initiated":true,"sign_authn_requests":false,"validate_assertion_signature":true,"validate_response_signature":true,"verbose_logging":false}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := configMount(t)
			m.Must(engines.Update, "config", tt.in)
			data := readConfigData(t, m)
			wantFields(t, data, tt.want)
			if n := strings.Count(tt.want, `":`); len(data) > n {
				t.Errorf("the read answers %v, with more than what was set", data)
			}
		})
	}
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	b, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestConfigWritesArePartial(t *testing.T) {
	m := configMount(t)
	m.Must(engines.Update, "config", byMetadata.with(settings{"default_role": "dev", "validate_response_signature": true}))
	before := readConfigData(t, m)
	m.Must(engines.Update, "config", settings{"verbose_logging": true})
	m.Must(engines.Update, "config", settings{"verbose_logging": false, "entity_id": nil})
	if after := readConfigData(t, m); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after writes of one field: %v, want %v", after, before)
	}
	m.Must(engines.Update, "config", settings{"default_role": "", "validate_response_signature": false, "acs_urls": "https://b.example.com/cb"})
	wantFields(t, readConfigData(t, m), `{"validate_response_signature":false,"acs_urls":["https://b.example.com/cb"],"idp_metadata_url":"`+testSource+`"}`)
	if _, there := readConfigData(t, m)["default_role"]; there {
		t.Error("an empty default_role does not unset it")
	}
}

func TestMetadataURLAndExplicitFieldsAreMutuallyExclusive(t *testing.T) {
	p := samltest.New(t)
	m := configMount(t)
	for _, field := range []string{"idp_sso_url", "idp_entity_id", "idp_cert"} {
		text := m.Fails(engines.KindInvalid, engines.Update, "config", byMetadata.with(settings{field: explicitFields(p)[field]}))
		if !strings.Contains(text, "mutually exclusive") || !strings.Contains(text, field) {
			t.Errorf("%s: %q", field, text)
		}
	}
	if text := m.Fails(engines.KindInvalid, engines.Update, "config", byMetadata.with(settings{"idp_issuer": "a"})); !strings.Contains(text, "mutually exclusive") {
		t.Errorf("idp_issuer: %q", text)
	}
	// What is empty is not given.
	m.Must(engines.Update, "config", byMetadata.with(settings{"idp_sso_url": "", "idp_entity_id": " ", "idp_issuer": "", "idp_cert": "\n"}))

	if text := m.Fails(engines.KindInvalid, engines.Update, "config", settings{"idp_sso_url": p.SSOURL}); !strings.Contains(text, "give all three") {
		t.Errorf("half of the other group: %q", text)
	}
	m.Must(engines.Update, "config", explicitFields(p).with(settings{"acs_urls": nil}))
	if data := readConfigData(t, m); data["idp_metadata_url"] != nil || data["idp_sso_url"] != p.SSOURL {
		t.Errorf("the explicit fields did not replace the URL: %v", data)
	}
	m.Must(engines.Update, "config", settings{"idp_sso_url": "https://other.example.com/sso"})
	m.Must(engines.Update, "config", settings{"idp_metadata_url": testSource})
	if data := readConfigData(t, m); data["idp_sso_url"] != nil || data["idp_cert"] != nil || data["idp_entity_id"] != nil {
		t.Errorf("the URL did not replace the explicit fields: %v", data)
	}
	m.Must(engines.Update, "config", explicitFields(p).with(settings{"idp_metadata_url": ""}))
	m.Fails(engines.KindInvalid, engines.Update, "config", settings{"idp_cert": ""})
}

func TestIDPIssuerIsAnotherNameOfIDPEntityID(t *testing.T) {
	p := samltest.New(t)
	m := configMount(t)
	m.Must(engines.Update, "config", explicitFields(p).with(settings{"idp_entity_id": nil, "idp_issuer": "urn:one"}))
	wantFields(t, readConfigData(t, m), `{"idp_entity_id":"urn:one"}`)
	m.Must(engines.Update, "config", settings{"idp_entity_id": "urn:two", "idp_issuer": "urn:two"})
	wantFields(t, readConfigData(t, m), `{"idp_entity_id":"urn:two"}`)
	if text := m.Fails(engines.KindInvalid, engines.Update, "config", settings{"idp_entity_id": "urn:two", "idp_issuer": "urn:three"}); !strings.Contains(text, `"idp_issuer"`) {
		t.Errorf("two names that differ: %q", text)
	}
}

func TestRejectedConfigs(t *testing.T) {
	explicit := explicitFields(samltest.New(t))
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprintf("https://coffer%d.example.com/v1/auth/saml/callback", i)
	}
	tests := []struct {
		name string
		in   settings
		want []string // in the one answer
	}{
		{"nothing", settings{}, []string{`"idp_metadata_url": is required, or`, `"entity_id": is required`, `"acs_urls": is required`}},
		{"one of three", byMetadata.with(settings{"idp_metadata_url": nil, "idp_entity_id": "a"}), []string{`"idp_sso_url": is required`, `"idp_cert": is required`}},
		{"two of three", explicit.with(settings{"idp_entity_id": nil}), []string{`"idp_entity_id": is required`}},
		{"blank entity id", byMetadata.with(settings{"entity_id": " "}), []string{`"entity_id": is required`}},
		{"entity id with a line break", byMetadata.with(settings{"entity_id": "a\nb"}), []string{`"entity_id": must not contain control characters`}},
		{"everything at once", settings{"idp_metadata_url": "idp", "entity_id": strings.Repeat("a", 1025), "acs_urls": "/callback", "allow_idp_initiated": true},
			[]string{`"idp_metadata_url": must be an absolute URL`, `"entity_id": is longer than`, `"acs_urls": element 1 must be an absolute URL`, `"allow_idp_initiated": needs a default_role`}},
		{"ACS URL with a fragment", byMetadata.with(settings{"acs_urls": []string{testACS, testACS + "#a"}}), []string{`"acs_urls": element 2 must be a URL without a fragment`}},
		{"ACS URL with a password", byMetadata.with(settings{"acs_urls": "https://a:b@coffer.example.com/"}), []string{`"acs_urls": element 1 must be a URL without user name`}},
		{"ACS URL without a host", byMetadata.with(settings{"acs_urls": "https:///callback"}), []string{`"acs_urls": element 1 must be a URL with a host`}},
		{"65 ACS URLs", byMetadata.with(settings{"acs_urls": many}), []string{`"acs_urls": has more than 64 elements`}},
		{"no ACS URL left", byMetadata.with(settings{"acs_urls": " , "}), []string{`"acs_urls": is required`}},
		{"SSO URL", explicit.with(settings{"idp_sso_url": "javascript:alert(1)"}), []string{`"idp_sso_url": must be an absolute URL`}},
		{"IdP entity id", explicit.with(settings{"idp_entity_id": "a\x00b"}), []string{`"idp_entity_id": must not contain control characters`}},
		{"not a certificate", explicit.with(settings{"idp_cert": "MIIB"}), []string{`"idp_cert": is base64 without its frame`}},
		{"a private key", explicit.with(settings{"idp_cert": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}), []string{`"idp_cert": contains a private key`}},
		{"wrong types", byMetadata.with(settings{"acs_urls": settings{}, "verbose_logging": "perhaps"}), []string{`"acs_urls": must be`, `"verbose_logging": must be a boolean`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := configMount(t).Fails(engines.KindInvalid, engines.Update, "config", tt.in)
			for _, want := range tt.want {
				if !strings.Contains(text, want) {
					t.Errorf("%q, want %q in it", text, want)
				}
			}
			if n := strings.Count(text, "field "); n != len(tt.want) {
				t.Errorf("%q: %d problems, want %d", text, n, len(tt.want))
			}
		})
	}
}

// TestRejectedConfigChangesNothing: a problem in one field keeps all of the old configuration.
func TestRejectedConfigChangesNothing(t *testing.T) {
	m := configMount(t)
	m.Must(engines.Update, "config", byMetadata)
	m.Fails(engines.KindInvalid, engines.Update, "config", settings{"entity_id": "urn:other", "acs_urls": "x", "sign_authn_requests": true})
	m.Fails(engines.KindInvalid, engines.Update, "config", settings{"entity_id": ""})
	m.Fails(engines.KindInvalid, engines.Update, "config", settings{"acs_urls": []string{}})
	m.Fails(engines.KindInvalid, engines.Update, "config", settings{"idp_metadata_url": ""})
	wantFields(t, readConfigData(t, m), `{"entity_id":"`+testEntity+`"}`)
}

func TestACSURLWithoutTLSIsAcceptedWithAWarning(t *testing.T) {
	m := configMount(t)
	resp := m.Must(engines.Update, "config", byMetadata.with(settings{"acs_urls": []string{testACS, "http://127.0.0.1:8200/v1/auth/saml/callback"}}))
	wantWarnings(t, resp, "acs_urls: http://127.0.0.1:8200/v1/auth/saml/callback is a URL without TLS: a response that is posted there can be read on the way")
	wantFields(t, readConfigData(t, m), `{"acs_urls":["`+testACS+`","http://127.0.0.1:8200/v1/auth/saml/callback"]}`)
}

// certified is a key with a certificate that is valid for a time counted from now.
func certified(t *testing.T, from, to time.Duration) *samltest.Key {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return samltest.Certify(signer, time.Now().Add(from), time.Now().Add(to))
}

func certifiedPEM(t *testing.T, from, to time.Duration) string {
	return samltest.New(t, samltest.WithKey(certified(t, from, to))).CertificatePEM()
}

func TestConfigWarnings(t *testing.T) {
	explicit := explicitFields(samltest.New(t))
	tests := []struct {
		name string
		in   settings
		want []string
	}{
		{"every URL without TLS", byMetadata.with(settings{"idp_metadata_url": "http://idp.example.com/", "acs_urls": "http://a.example.com/,http://b.example.com/"}),
			[]string{"idp_metadata_url: http://idp.example.com/ is", "acs_urls: http://a.example.com/ is", "acs_urls: http://b.example.com/ is"}},
		{"SSO URL without TLS", explicit.with(settings{"idp_sso_url": "http://idp.example.com/sso"}), []string{"idp_sso_url: http://idp.example.com/sso is a URL without TLS"}},
		{"expired certificate", explicit.with(settings{"idp_cert": certifiedPEM(t, -48*time.Hour, -time.Hour)}),
			[]string{"idp_cert: the identity provider's certificate \"CN=idp.example.com\" (SHA-256 ", "every login will be rejected"}},
		{"certificate of tomorrow", explicit.with(settings{"idp_cert": certifiedPEM(t, 24*time.Hour, 9000*time.Hour)}), []string{"is valid from", "every login will be rejected"}},
		{"one certificate of two expires soon", explicit.with(settings{"idp_cert": certifiedPEM(t, -time.Hour, 29*24*time.Hour) + certifiedPEM(t, -time.Hour, 31*24*time.Hour)}),
			[]string{"expires soon"}},
		{"verbose logging", byMetadata.with(settings{"verbose_logging": true}), []string{"not for production"}},
		{"default role that is not there", byMetadata.with(settings{"default_role": "ops"}), []string{`default_role: there is no role "ops"`}},
		{"default role that is there", byMetadata.with(settings{"default_role": "DEV"}), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := configMount(t)
			m.Must(engines.Update, "role/dev", `{"bound_subjects":"a"}`)
			resp := m.Must(engines.Update, "config", tt.in)
			if tt.want == nil {
				if resp != nil {
					t.Errorf("%+v, want 204", resp)
				}
				return
			}
			wantWarnings(t, resp, tt.want...)
		})
	}
}

// wantWarnings checks that the response has as many warnings, each with its text.
func wantWarnings(t *testing.T, resp *engines.Response, want ...string) {
	t.Helper()
	var got []string
	if resp != nil {
		got = resp.Warnings
	}
	if !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("warnings %q, want %q", got, want)
	}
}
