package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openbao/openbao/api/v2"
)

const samlStarted = `200 {"data":{"sso_service_url":"https://idp.test/sso?SAMLRequest=abc&RelayState=d","token_poll_id":"p1",` +
	`"verification_code":"ABCD-2345","expires_in":300,"role":"dev","short_url":"https://coffer.test/v1/auth/saml/go/xyz"}}`

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
	table := map[string]string{
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
			r := record(t, table)
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
	record(t, table)
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
			if got, _ := currentToken(); got != "" {
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
	info, err := os.Stat(filepath.Join(os.Getenv("HOME"), loginsFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", loginsFile, info, err)
	}
}

func TestSAMLLoginWrapped(t *testing.T) {
	table := map[string]string{"PUT auth/saml/sso_service_url": samlStarted, "PUT auth/saml/token": wrapped}
	r := record(t, table)
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
		if err := os.WriteFile(filepath.Join(os.Getenv("HOME"), loginsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, stderr, status := coffer(t, "", "login", "-method=saml", "role=dev"); status != 0 {
			t.Errorf("with %q: %s", text, stderr)
		}
		if last, ok := recallLogin(os.Getenv("COFFER_ADDR")); !ok || last.Role != "dev" {
			t.Errorf("with %q: remembers %v", text, last)
		}
	}
}

// refusedWith is the error of a request that the server answered with a status.
func refusedWith(status int) error {
	return &requestError{err: &api.ResponseError{StatusCode: status}}
}

// TestBrowserWait checks how long a login is asked for, and what ends that.
func TestBrowserWait(t *testing.T) {
	repeat := func(n int, err error) []error { return slices.Repeat([]error{err}, n) }
	pending, down := refusedWith(401), refusedWith(503)
	opened := func(err error) <-chan error {
		c := make(chan error, 1)
		c <- err
		return c
	}
	tests := []struct {
		name    string
		answers []error // of one request after the other; then it succeeds
		retry   time.Duration
		opened  <-chan error
		abort   bool
		asked   int
		took    time.Duration
		err     string // a part of it
		said    string
	}{
		{name: "at once", asked: 1},
		{name: "each second", answers: repeat(10, pending), asked: 11, took: 10 * time.Second},
		{name: "slower later", answers: repeat(30+45+10, pending), asked: 86, took: 30*time.Second + 90*time.Second + 30*time.Second},
		{name: "to the end", answers: repeat(1000, pending), asked: 30 + 45 + 60 + 1, took: 5 * time.Minute, err: "the login was not completed in time"},
		{name: "slowed down", answers: repeat(3, refusedWith(429)), retry: 7 * time.Second, asked: 4, took: 21 * time.Second},
		{name: "an election", answers: repeat(20, down), asked: 21, took: 20 * time.Second},
		{name: "down", answers: repeat(1000, down), asked: 32, took: 32 * time.Second, err: "503"},
		{name: "refused", answers: repeat(1, refusedWith(403)), asked: 1, err: "403"},
		{name: "gone", answers: append(repeat(2, pending), refusedWith(400)), asked: 3, took: 2 * time.Second, err: "400"},
		{name: "browser fails", answers: repeat(2, pending), opened: opened(errors.New("no such thing")), asked: 3, took: 2 * time.Second, said: "no such thing. Open the URL above"},
		{name: "browser opens", answers: repeat(2, pending), opened: opened(nil), abort: true, asked: 3, took: time.Second},
		{name: "abort", answers: repeat(9, pending), opened: opened(errors.New("no such thing")), abort: true, asked: 1, err: "no such thing; nothing was stored"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said bytes.Buffer
				asked, began := 0, time.Now()
				w := &browserWait{
					until: began.Add(5 * time.Minute), status: &waitStatus{w: &said}, opened: tt.opened, abort: tt.abort,
					retryAfter: func() time.Duration { return tt.retry },
					ask: func() (*answer, error) {
						if asked++; asked <= len(tt.answers) {
							return nil, tt.answers[asked-1]
						}
						return &answer{}, nil
					},
				}
				a, err := w.run(t.Context())
				if (err == nil) != (a != nil) || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("answer %v, error %v, want %q", a, err, tt.err)
				}
				if took := time.Since(began); asked != tt.asked || took != tt.took {
					t.Errorf("asked %d times in %v, want %d in %v", asked, took, tt.asked, tt.took)
				}
				if !strings.Contains(said.String(), tt.said) {
					t.Errorf("said %q, want %q", said.String(), tt.said)
				}
			})
		})
	}
}

// TestBrowserWaitInterrupted ends at once, whether it waits or asks, and says that nothing was stored.
func TestBrowserWaitInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		began := time.Now()
		w := &browserWait{
			until: began.Add(time.Minute), status: &waitStatus{w: new(bytes.Buffer)}, retryAfter: func() time.Duration { return 0 },
			ask: func() (*answer, error) { return nil, refusedWith(401) },
		}
		_, err := w.run(ctx)
		var said bytes.Buffer
		if status := report(&said, err); status != 1 || said.String() != "Error: interrupted; nothing was stored\n" || time.Since(began) != 2500*time.Millisecond {
			t.Errorf("status %d, said %q after %v", status, said.String(), time.Since(began))
		}
	})
}

// TestSpinner shows the time left, and leaves nothing behind.
func TestSpinner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &waitStatus{w: &out, term: true}
		s.begin(time.Now().Add(90 * time.Second))
		time.Sleep(31 * time.Second)
		s.sayf("A remark.")
		s.end()
		text := out.String()
		for _, want := range []string{"⠋ Waiting for you to sign in, 1:30 left", " 1:00 left", "\r\x1b[KA remark.\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("drew %q, want %q in it", text, want)
			}
		}
		if last := text[strings.LastIndex(text, "\n")+1:]; last != "" && !strings.HasSuffix(last, "\r\x1b[K") {
			t.Errorf("left %q behind", last)
		}
	})
	if got := waitLine(0, -time.Second); !strings.Contains(got, "0:00 left") {
		t.Errorf("after the end: %q", got)
	}
}

func TestNoBrowser(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		want string // a part of why not; "" if one is opened
	}{
		{"none of it", nil, "no display"},
		{"X", map[string]string{"DISPLAY": ":0"}, ""},
		{"Wayland", map[string]string{"WAYLAND_DISPLAY": "wayland-0"}, ""},
		{"WSL", map[string]string{"WSL_DISTRO_NAME": "Debian"}, ""},
		{"SSH", map[string]string{"DISPLAY": ":10", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "SSH session"},
		{"named", map[string]string{"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22", "BROWSER": "opener"}, ""},
		{"ours", map[string]string{"COFFER_BROWSER": "opener", "BROWSER": "none"}, ""},
		{"named none", map[string]string{"DISPLAY": ":0", "BROWSER": "none"}, "BROWSER is none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clearEnv(t)
			for _, name := range []string{"DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME", "SSH_CONNECTION", "BROWSER"} {
				t.Setenv(name, tt.env[name])
			}
			t.Setenv("COFFER_BROWSER", tt.env["COFFER_BROWSER"])
			if got := noBrowser(); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("noBrowser() = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestOpenNamed tries one command after the other, hands the URL over as one word and runs no shell.
func TestOpenNamed(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "opener")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '%s|' \"$@\" >"+dir+"/seen\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	page := "https://idp.test/sso?a=1&b=$(touch " + dir + "/evil);c"
	for _, tt := range []struct{ named, want string }{
		{script, page + "|"},
		{"/does/not/exist:" + script + " --new-window", "--new-window|" + page + "|"},
		{script + " --url=%s -x", "--url=" + page + "|-x|"},
	} {
		if err := openNamed(tt.named, page); err != nil {
			t.Fatal(err)
		}
		if seen, err := os.ReadFile(filepath.Join(dir, "seen")); err != nil || string(seen) != tt.want {
			t.Errorf("%q got %q, want %q", tt.named, seen, tt.want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "evil")); err == nil {
		t.Error("a shell saw the URL")
	}
	for _, named := range []string{"/does/not/exist", "/bin/false", ":", " "} {
		if err := openNamed(named, page); err == nil {
			t.Errorf("openNamed(%q) went well", named)
		}
	}
}

// TestQRText compares the picture of a known code square by square, in both ways of drawing.
func TestQRText(t *testing.T) {
	const link = "https://coffer.example.com/v1/auth/saml/go/4WZ6K9PQ3M"
	plain, err := qrText(link, false)
	if err != nil {
		t.Fatal(err)
	}
	colours, err := qrText(link, true)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(plain, "\n"), "\n")
	width := len([]rune(lines[0]))
	for i, line := range lines {
		if n := len([]rune(line)); n != width {
			t.Errorf("line %d has %d squares, want %d", i, n, width)
		}
	}
	if width > 60 || len(lines) != (width+1)/2 {
		t.Errorf("the code takes %d columns and %d lines", width, len(lines))
	}
	if first := strings.Repeat("█", width); lines[0] != first || lines[1] != first || !strings.HasPrefix(lines[5], "████") {
		t.Error("there is no light zone around the code")
	}
	// The finder pattern in the corner: dark frame, light ring, dark middle.
	if got := string([]rune(lines[2])[4:11]); got != " ▄▄▄▄▄ " {
		t.Errorf("the corner begins with %q", got)
	}
	inverse := strings.NewReplacer("█", " ", " ", "█", "▀", "▄", "▄", "▀").Replace(plain)
	stripped := strings.NewReplacer("\x1b[30;107m", "", "\x1b[0m", "").Replace(colours)
	if stripped != inverse {
		t.Error("with colours the code is another one")
	}
	if _, err := qrText(strings.Repeat("x", 5000), false); err == nil {
		t.Error("a text of 5000 characters fits")
	}
}
