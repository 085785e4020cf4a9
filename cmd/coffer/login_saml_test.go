package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/local"
)

const samlStarted = `200 {"data":{"sso_service_url":"https://idp.test/sso?SAMLRequest=abc&RelayState=d","token_poll_id":"p1",` +
	`"verification_code":"ABCD-2345","expires_in":300,"role":"dev","short_url":"https://coffer.test/v1/auth/saml/go/xyz"}}`

const loginsHere = ".coffer-logins" // in the home directory

// noBrowserHere makes the test independent of the machine's screen.
func noBrowserHere(t *testing.T) {
	t.Helper()
	t.Setenv("BROWSER", "none")
	t.Setenv("COFFER_TOKEN", "")
}

func TestSAMLLogin(t *testing.T) {
	r := record(t, map[string]string{
		"PUT auth/saml/sso_service_url": samlStarted, "PUT auth/saml/token": created,
		"GET auth/token/lookup-self": `200 {"data":{"display_name":"saml-ada@example.com"}}`,
	})
	noBrowserHere(t)
	t.Setenv("COFFER_TOKEN", "old")
	stdout, stderr, status := coffer(t, "", "login", "-method=saml", "role=dev")
	if status != 0 {
		t.Fatal(stderr)
	}
	var start, redeem map[string]string
	if len(r.seen) < 2 || json.Unmarshal([]byte(r.seen[0].body), &start) != nil || json.Unmarshal([]byte(r.seen[1].body), &redeem) != nil {
		t.Fatalf("requests %q", r.lines())
	}
	digest := sha256.Sum256([]byte(redeem["client_verifier"]))
	if want := base64.StdEncoding.EncodeToString(digest[:]); start["client_challenge"] != want || len(redeem["client_verifier"]) < 43 {
		t.Errorf("the challenge %q is not the digest of a verifier of 32 bytes", start["client_challenge"])
	}
	if start["role"] != "dev" || start["client_type"] != "cli" || start["acs_url"] != r.URL+"/v1/auth/saml/callback" || redeem["token_poll_id"] != "p1" {
		t.Errorf("sent %v, then the poll id %q", start, redeem["token_poll_id"])
	}
	for _, s := range r.seen[:2] {
		if got := s.header.Get("X-Vault-Token"); got != "" {
			t.Errorf("%s carried a token", s.path)
		}
	}
	for _, want := range []string{
		"Logging in to " + r.URL + " with auth/saml/, as role dev.\n", "\nhttps://idp.test/sso?SAMLRequest=abc&RelayState=d\n",
		"code ABCD-2345", "BROWSER is none", "COFFER_TOKEN",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr is %q, want %q in it", stderr, want)
		}
	}
	for _, want := range []string{"You are logged in as ada@example.com.", "stored in ~/.coffer-token", "policies             [app]", "token_duration       1h"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("stdout is %q, want %q in it", stdout, want)
		}
	}
	stored, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), ".coffer-token"))
	if err != nil || string(stored) != "hvs.new" {
		t.Errorf("stored %q, %v", stored, err)
	}
}

// TestSAMLLoginArguments checks what is said and sent for arguments, good ones and others.
func TestSAMLLoginArguments(t *testing.T) {
	lines := map[string]string{
		"PUT auth/saml/sso_service_url": samlStarted, "PUT auth/saml/token": created,
		"PUT auth/corp/sso_service_url": samlStarted, "PUT auth/corp/token": created,
	}
	tests := []struct {
		name, args string
		first      string // a part of the first request
		requests   int
		stderr     string
		status     int
	}{
		{name: "path", args: "-path=auth/corp/", first: "PUT auth/corp/sso_service_url ", requests: 2},
		{name: "namespace", args: "-ns=team-a", first: "/v1/team-a/auth/saml/callback", requests: 2},
		{name: "acs_url", args: "acs_url=https://other/v1/auth/saml/callback", first: `"acs_url":"https://other/v1/auth/saml/callback"`, requests: 2},
		{name: "skip", args: "skip_browser=true", first: "sso_service_url", requests: 2, stderr: "skip_browser is set"},
		{name: "skip and abort", args: "skip_browser=true abort_on_error=true", requests: 2, stderr: "skip_browser is set"},
		{name: "abort", args: "abort_on_error=true", requests: 1, stderr: "nothing was stored", status: 1},
		{name: "QR code", args: "-qr", first: `"short_link":true`, requests: 2, stderr: "\n\nhttps://coffer.test/v1/auth/saml/go/xyz\n"},
		{name: "code", args: "code=WXYZ-6789", first: `PUT auth/saml/token {"code":"WXYZ-6789"}`, requests: 1},
		{name: "code with role", args: "code=WXYZ-6789 role=dev", stderr: "nothing else", status: 1},
		{name: "blank code", args: "code=", stderr: "nothing else", status: 1},
		{name: "unknown", args: "rol=dev", stderr: `no argument "rol"; it takes role, acs_url`, status: 1},
		{name: "twice", args: "role=dev role=ops", stderr: "role is given more than once", status: 1},
		{name: "not a bool", args: "skip_browser=maybe", stderr: `skip_browser is "maybe", want true or false`, status: 1},
		{name: "curl", args: "-output-curl-string", requests: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := record(t, lines)
			noBrowserHere(t)
			_, stderr, status := coffer(t, "", append([]string{"login", "-method=saml", "-no-print"}, strings.Fields(tt.args)...)...)
			if status != tt.status || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d, stderr %q; want %d and %q", status, stderr, tt.status, tt.stderr)
			}
			if lines := r.lines(); len(lines) != tt.requests || tt.requests > 0 && !strings.Contains(lines[0], tt.first) {
				t.Errorf("requests %q, want %d, the first with %q", lines, tt.requests, tt.first)
			}
		})
	}
	record(t, lines)
	if _, stderr, status := coffer(t, "", "login", "-qr", "-method=userpass", "username=ada"); status != 1 || !strings.Contains(stderr, "-qr is for -method=saml") {
		t.Errorf("-qr with userpass: %d, %q", status, stderr)
	}
}

// TestSAMLLoginRefused checks that refusals end the login with their reason, status 2 and nothing stored.
func TestSAMLLoginRefused(t *testing.T) {
	tests := []struct {
		name, start, token string
		stderr             string
	}{
		{"ACS URL", `400 {"errors":["acs_url is not one of the configured acs_urls"]}`, "", "/v1/auth/saml/callback\n\nor name one"},
		{"no role", `400 {"errors":["missing required 'role' parameter"]}`, "", "missing required 'role' parameter"},
		{"no mount", `403 {"errors":["missing client token"]}`, "", "No auth method is enabled at auth/saml/"},
		{"not SAML", `200 {"data":{"keys":[]}}`, "", "is there another method at auth/saml/?"},
		{"file URL", `200 {"data":{"sso_service_url":"file:///etc/passwd","token_poll_id":"p"}}`, "", "something else than the URL of a web page"},
		{"option", `200 {"data":{"sso_service_url":"-remote","token_poll_id":"p"}}`, "", "something else than the URL of a web page"},
		{"escapes", `200 {"data":{"sso_service_url":"https://a/\u001b[2J","token_poll_id":"p"}}`, "", "something else than the URL of a web page"},
		{"user in the URL", `200 {"data":{"sso_service_url":"https://idp.example.com@evil.test/","token_poll_id":"p"}}`, "", "something else than the URL of a web page"},
		{"direction of writing", `200 {"data":{"sso_service_url":"https://a/\u202ex","token_poll_id":"p"}}`, "", "something else than the URL of a web page"},
		{"escapes in an error", `400 {"errors":["bad \u001b[2Jthing \u202etxt"]}`, "", `bad \x1b[2Jthing \u202etxt`},
		{"entity is disabled", samlStarted, `403 {"errors":["permission denied"]}`, "your entity is disabled"},
		{"role refuses", samlStarted, `403 {"errors":["the attribute \"groups\" has none of the values that the role demands"]}`, "coffer saml explain"},
		{"too many", `429 {"errors":["too many logins are pending"]}`, "", "Try again in a moment"},
		{"expired", samlStarted, `400 {"errors":["the login is unknown or expired"]}`, "Start another"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			record(t, map[string]string{"PUT auth/saml/sso_service_url": tt.start, "PUT auth/saml/token": tt.token})
			noBrowserHere(t)
			stdout, stderr, status := coffer(t, "", "login", "-method=saml")
			if status != 2 || stdout != "" || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d, stdout %q, stderr %q; want 2, none and %q", status, stdout, stderr, tt.stderr)
			}
			if got, _ := local.CurrentToken(); got != "" {
				t.Errorf("stored %q", got)
			}
			if strings.Contains(stderr, "\x1b") {
				t.Errorf("the server steers the terminal: %q", stderr)
			}
		})
	}
}

// TestSAMLLoginRemembers checks that a login without arguments repeats the last one there, and says so.
func TestSAMLLoginRemembers(t *testing.T) {
	r := record(t, map[string]string{
		"PUT auth/saml/sso_service_url": strings.Replace(samlStarted, `"dev"`, `""`, 1), "PUT auth/saml/token": created,
		"PUT auth/corp/sso_service_url": strings.Replace(samlStarted, `"dev"`, `""`, 1), "PUT auth/corp/token": created,
	})
	noBrowserHere(t)
	steps := []struct {
		args, path, role string
		stderr           string // "" if nothing came from memory
	}{
		{"", "auth/saml/sso_service_url", "", ""},
		{"-token-only role=tmp", "auth/saml/sso_service_url", "tmp", ""}, // stores nothing, so remembers nothing
		{"", "auth/saml/sso_service_url", "", ""},
		{"role=dev", "auth/saml/sso_service_url", "dev", ""},
		{"", "auth/saml/sso_service_url", "dev", "role= takes another"},
		{"-ns=team", "auth/saml/sso_service_url", "", ""},
		{"-path=corp", "auth/corp/sso_service_url", "", ""}, // the role was another method's
		{"", "auth/corp/sso_service_url", "", "-path takes another"},
		{"role=ops", "auth/corp/sso_service_url", "ops", "-path takes another"},
		{"", "auth/corp/sso_service_url", "ops", "-path or role= takes another"},
		{"code=ABCD", "auth/saml/token", "", ""}, // the page would have said -path=corp
		{"", "auth/corp/sso_service_url", "ops", "-path or role= takes another"},
		{"role=", "auth/corp/sso_service_url", "", "-path takes another"},
		{"", "auth/corp/sso_service_url", "", "-path takes another"},
		{"-path=saml", "auth/saml/sso_service_url", "", ""},
	}
	for i, s := range steps {
		r.mu.Lock()
		r.seen = nil
		r.mu.Unlock()
		_, stderr, status := coffer(t, "", append([]string{"login", "-method=saml", "-ns=", "-token-only=false"}, strings.Fields(s.args)...)...)
		var start map[string]string
		if status != 0 || len(r.seen) == 0 || json.Unmarshal([]byte(r.seen[0].body), &start) != nil {
			t.Fatalf("step %d: %s", i, stderr)
		}
		if r.seen[0].path != s.path || start["role"] != s.role {
			t.Errorf("step %d: %s with role %q, want %s with %q", i, r.seen[0].path, start["role"], s.path, s.role)
		}
		if !strings.Contains(stderr, s.stderr) || strings.Contains(stderr, "As last time") != (s.stderr != "") {
			t.Errorf("step %d: said %q", i, stderr)
		}
	}
	info, err := os.Stat(filepath.Join(os.Getenv("HOME"), loginsHere))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", loginsHere, info, err)
	}
}

func TestSAMLLoginWrapped(t *testing.T) {
	lines := map[string]string{"PUT auth/saml/sso_service_url": samlStarted, "PUT auth/saml/token": wrapped}
	r := record(t, lines)
	noBrowserHere(t)
	stdout, stderr, status := coffer(t, "", "login", "-method=saml", "-wrap-ttl=60s", "-token-only")
	if status != 0 || stdout != "hvs.wrap" {
		t.Errorf("status %d, stdout %q, stderr %q", status, stdout, stderr)
	}
	if start, redeem := r.seen[0].header.Get("X-Vault-Wrap-TTL"), r.seen[1].header.Get("X-Vault-Wrap-TTL"); start != "" || redeem != "60s" {
		t.Errorf("wrapped the start for %q and the token for %q", start, redeem)
	}
}

func TestSAMLLoginUnreadableMemory(t *testing.T) {
	record(t, map[string]string{"PUT auth/saml/sso_service_url": samlStarted, "PUT auth/saml/token": created})
	noBrowserHere(t)
	for _, text := range []string{"", "null", "{", `{"format":2,"servers":{}}`, `{"format":1}`, `[]`} {
		if err := os.WriteFile(filepath.Join(os.Getenv("HOME"), loginsHere), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, stderr, status := coffer(t, "", "login", "-method=saml", "role=dev"); status != 0 {
			t.Errorf("with %q: %s", text, stderr)
		}
		if known, err := os.ReadFile(filepath.Join(os.Getenv("HOME"), loginsHere)); err != nil || !strings.Contains(string(known), `"dev"`) {
			t.Errorf("with %q: remembers %s, %v", text, known, err)
		}
	}
}
