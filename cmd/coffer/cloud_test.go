package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	cloudUser = `200 {"lease_id":"cloud/creds/dev/1","lease_duration":3600,"renewable":true,"data":{"access_key":"AKIA1","secret_key":"s'1","security_token":null,"session_token":null}}`
	cloudSTS  = `200 {"lease_id":"","lease_duration":900,"data":{"access_key":"ASIA1","secret_key":"s1","security_token":"t1","session_token":"t1","ttl":899,"arn":"arn:aws:sts::123456789012:assumed-role/r/s"},"warnings":["mind"]}`
	cloudCN   = `200 {"data":{"access_key":"ASIA1","secret_key":"s1","session_token":"t1","ttl":899,"arn":"arn:aws-cn:sts::123456789012:assumed-role/r/s"}}`
	cloudIso  = `200 {"data":{"access_key":"ASIA1","secret_key":"s1","session_token":"t1","ttl":899,"arn":"arn:aws-iso:sts::123456789012:assumed-role/r/s"}}`
)

// cloudTable is what the server answers.
var cloudTable = map[string]string{
	"GET cloud/creds/dev":                cloudUser,
	"GET cloud/creds/run":                cloudSTS,
	"PUT cloud/creds/run":                cloudSTS,
	"GET a/b/sts/run":                    cloudSTS,
	"GET cloud/creds/cn":                 cloudCN,
	"GET cloud/creds/iso":                cloudIso,
	"GET cloud/creds/kv":                 `200 {"data":{"x":"1"}}`,
	"PUT sys/leases/revoke":              "204",
	"GET cloud/static-creds/bill":        `200 {"data":{"access_key":"AKIA2","secret_key":"s2","expiration":"2026-01-02T03:04:05Z"}}`,
	"PUT cloud/static-roles/bill/rotate": `200 {"data":{"name":"bill","next_rotation":"2026-01-02T03:04:05Z"}}`,
	"PUT cloud/config/rotate-root":       `200 {"data":{"access_key":"AKIA3"}}`,
	"PUT bad/config/rotate-root":         `400 {"errors":["the user has another key"]}`,
	"GET cloud/config/root":              `200 {"data":{"access_key":"AKIA0","key_created_at":"2020-01-02T03:04:05Z","next_rotation":"2026-02-03T04:05:06Z","rotation_period":86400,"rotation_failures":2,"rotation_last_error":"no\u001b[2J"}}`,
	"GET cloud/static-roles":             `200 {"data":{"keys":["bill","gone"]}}`,
	"GET cloud/static-roles/bill":        `200 {"data":{"name":"bill","username":"billing","rotation_period":3600,"last_rotation":"2026-01-02T02:04:05Z","next_rotation":"2026-01-02T03:04:05Z","rotation_failures":1,"last_error":"ListAccessKeys: Throttling"}}`,
	"GET cloud/rollbacks":                `200 {"data":{"keys":["1","2"]}}`,
	"GET half/config/root":               `403 {"errors":["permission denied"]}`,
	"GET half/static-roles":              `200 {"data":{"keys":["x"]}}`,
	"GET half/static-roles/x":            `403 {"errors":["permission denied"]}`,
	"GET half/rollbacks":                 `403 {"errors":["permission denied"]}`,
	"GET shut/config/root":               `403 {"errors":["permission denied"]}`,
	"GET shut/static-roles":              `403 {"errors":["permission denied"]}`,
	"GET shut/rollbacks":                 `403 {"errors":["permission denied"]}`,
	"GET machine/config/root":            `200 {"data":{"access_key":"","rotation_period":0}}`,
	"GET stopped/config/root":            `200 {"data":{"access_key":"AKIA0","disable_automated_rotation":true,"rotation_schedule":"@daily"}}`,
	"GET cron/config/root":               `200 {"data":{"access_key":"AKIA0","rotation_schedule":"0 3 * * SAT","next_rotation":"2026-02-03T03:00:00Z"}}`,
	"GET manual/config/root":             `200 {"data":{"access_key":"AKIA0"}}`,
	"GET refused/config/root":            `500 {"errors":["internal error"]}`,
}

func TestCloudCommands(t *testing.T) {
	const sts = "cloud/creds/run"
	tests := []struct {
		name, args     string // split at spaces
		last           string // the last request; "" if there is none
		stdout, stderr string // parts
		status         int
	}{
		{name: "creds", args: "creds dev", last: "GET cloud/creds/dev", stdout: "lease_id           cloud/creds/dev/1\n"},
		{name: "creds, a field", args: "creds -field=access_key dev", last: "GET cloud/creds/dev", stdout: "AKIA1"},
		{name: "creds as YAML", args: "creds -format=yaml dev", last: "GET cloud/creds/dev", stdout: "access_key: AKIA1"},
		{name: "creds elsewhere", args: "creds -mount=/a/b/ -sts run", last: "GET a/b/sts/run", stderr: "Warning: mind"},
		{
			name: "wishes", args: "creds -ttl=15m -role-arn=arn:aws:iam::123456789012:role/r -session-name=ada run",
			last: "GET " + sts + "?role_arn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fr&role_session_name=ada&ttl=15m",
		},
		{name: "a code is not in the URL", args: "creds -mfa-code=123456 -ttl=15m run", last: `PUT ` + sts + ` {"mfa_code":"123456","ttl":"15m"}`},
		{name: "no role", args: "creds none", last: "GET cloud/creds/none", stderr: "Error: not found", status: 2},
		{
			name: "env of a user", args: "creds -as=env dev", last: "GET cloud/creds/dev", stderr: "lease cloud/creds/dev/1, which ends at 2",
			stdout: "export AWS_ACCESS_KEY_ID='AKIA1'\nexport AWS_SECRET_ACCESS_KEY='s'\\''1'\nunset AWS_SESSION_TOKEN\nexport AWS_CREDENTIAL_EXPIRATION='2",
		},
		{name: "env of a session", args: "creds -as=env run", last: "GET " + sts, stdout: "export AWS_SESSION_TOKEN='t1'\n", stderr: "Warning: mind"},
		{name: "process", args: "creds -as=credential-process run", last: "GET " + sts, stdout: "{\n  \"Version\": 1,\n  \"AccessKeyId\": \"ASIA1\",\n  \"SecretAccessKey\": \"s1\",\n  \"SessionToken\": \"t1\",\n  \"Expiration\": \"2"},
		{name: "JSON", args: "creds -as=json dev", last: "GET cloud/creds/dev", stdout: `"lease_id": "cloud/creds/dev/1"`},
		{name: "as what", args: "creds -as=xml dev", stderr: `-as is "xml"; there are env, json and credential-process`, status: 1},
		{name: "as and format", args: "creds -as=env -format=json dev", stderr: "-as and -format exclude each other", status: 1},
		{name: "as and field", args: "static-creds -as=env -field=x bill", stderr: "-as and -field exclude each other", status: 1},
		{name: "as and wrap", args: "creds -as=env -wrap-ttl=60 dev", stderr: "-as and -wrap-ttl exclude each other", status: 1},
		{name: "another engine", args: "creds -as=env kv", last: "GET cloud/creds/kv", stderr: "holds no credentials", status: 2},
		{name: "static", args: "static-creds bill", last: "GET cloud/static-creds/bill", stdout: "expiration    2026-01-02T03:04:05Z"},
		{name: "static, process", args: "static-creds -as=credential-process bill", last: "GET cloud/static-creds/bill", stdout: "\"SecretAccessKey\": \"s2\",\n  \"Expiration\": \"2026-01-02T03:04:05Z\"\n"},
		{name: "static, none", args: "static-creds none", last: "GET cloud/static-creds/none", stderr: "no static role at cloud/static-creds/none", status: 2},
		{name: "rotate", args: "rotate bill", last: "PUT cloud/static-roles/bill/rotate", stdout: "next_rotation    2026-01-02T03:04:05Z"},
		{name: "rotate-root", args: "rotate-root", last: "PUT cloud/config/rotate-root", stdout: "Success! The root key is now AKIA3.\n"},
		{name: "rotate-root, a field", args: "rotate-root -field=access_key", last: "PUT cloud/config/rotate-root", stdout: "AKIA3"},
		{name: "rotate-root, refused", args: "rotate-root -mount=bad", last: "PUT bad/config/rotate-root", stderr: "the user has another key", status: 2},

		{name: "status, key", args: "status", last: "GET cloud/rollbacks?list=true", stdout: "Root Key         AKIA0\nCreated          2020-01-02T03:04:05Z, "},
		{name: "status, next", args: "status", last: "GET cloud/rollbacks?list=true", stdout: "Next Rotation    2026-02-03T04:05:06Z, every 24h\nFailures         2\nLast Error       no\\x1b[2J\nTo Be Removed    2\n"},
		{name: "status, static roles", args: "status", last: "GET cloud/rollbacks?list=true", stdout: "bill           billing    1h        2026-01-02T02:04:05Z    2026-01-02T03:04:05Z    1           ListAccessKeys: Throttling\n"},
		{name: "status as JSON", args: "status -format=json", last: "GET cloud/rollbacks?list=true", stdout: "\"rollbacks\": 2\n"},
		{name: "status of little", args: "status -mount=half", last: "GET half/rollbacks?list=true", stderr: "Left out: the token may not read half/config/root.\nLeft out: the token may not read half/static-roles/x.\nLeft out: the token may not read half/rollbacks.\n"},
		{name: "status of nothing", args: "status -mount=shut", last: "GET shut/rollbacks?list=true", stderr: "permission denied", status: 2},
		{name: "status without root", args: "status -mount=new", last: "GET new/rollbacks?list=true", stdout: "config/root is not written"},
		{name: "status of the machine's", args: "status -mount=machine", last: "GET machine/rollbacks?list=true", stdout: "none: the server's own credentials are used"},
		{name: "status, stopped", args: "status -mount=stopped", last: "GET stopped/rollbacks?list=true", stdout: "never: disable_automated_rotation is set"},
		{name: "status, by cron", args: "status -mount=cron", last: "GET cron/rollbacks?list=true", stdout: "2026-02-03T03:00:00Z, by 0 3 * * SAT\n"},
		{name: "status, by hand", args: "status -mount=manual", last: "GET manual/rollbacks?list=true", stdout: "not known: the key was not made by a rotation\nNext Rotation    never: neither"},
		{name: "status fails", args: "status -mount=refused", last: "GET refused/config/root", stderr: "internal error", status: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := record(t, cloudTable)
			stdout, stderr, status := coffer(t, "", append([]string{"cloud"}, strings.Fields(tt.args)...)...)
			if status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d\nstdout %q\nstderr %q\nwant %d\n%q\n%q", status, stdout, stderr, tt.status, tt.stdout, tt.stderr)
			}
			last := ""
			if lines := r.lines(); len(lines) > 0 {
				last = lines[len(lines)-1]
			}
			if last != tt.last {
				t.Errorf("last request %q, want %q", last, tt.last)
			}
		})
	}
}

// signin is a federation endpoint that notes what it was asked.
func signin(t *testing.T, status int, answer string) (*httptest.Server, *url.Values) {
	asked := new(url.Values)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = r.URL.Query()
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s, asked
}

func TestCloudLogin(t *testing.T) {
	r := record(t, cloudTable)
	s, asked := signin(t, 200, `{"SigninToken":"st&1"}`)
	stdout, stderr, status := coffer(t, "", "cloud", "login", "-print", "-ttl=15m", "-session-duration=1h", "-federation-endpoint="+s.URL+"/f", "run")
	if status != 0 || stderr != "Warning: mind\n" {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	if want := s.URL + "/f?Action=login&Destination=https%3A%2F%2Fconsole.aws.amazon.com%2F&Issuer=coffer&SigninToken=st%261\n"; stdout != want {
		t.Errorf("printed %q, want %q", stdout, want)
	}
	if asked.Get("Action") != "getSigninToken" || asked.Get("SessionDuration") != "3600" {
		t.Errorf("asked %v", asked)
	}
	var session map[string]string
	if err := json.Unmarshal([]byte(asked.Get("Session")), &session); err != nil || len(session) != 3 ||
		session["sessionId"] != "ASIA1" || session["sessionKey"] != "s1" || session["sessionToken"] != "t1" {
		t.Errorf("the session has the wrong credentials, or others: %v", err)
	}
	if got := r.lines(); len(got) != 1 || got[0] != "GET cloud/creds/run?ttl=15m" {
		t.Errorf("requests %q", got)
	}

	stdout, _, status = coffer(t, "", "cloud", "login", "-format=json", "-destination=https://c.example/s3", "-federation-endpoint="+s.URL, "iso")
	var login struct {
		URL       string
		ARN       string
		ExpiresAt time.Time `json:"expires_at"`
	}
	if err := json.Unmarshal([]byte(stdout), &login); err != nil || status != 0 || !strings.Contains(login.URL, "Destination=https%3A%2F%2Fc.example%2Fs3") ||
		login.ARN != "arn:aws-iso:sts::123456789012:assumed-role/r/s" || login.ExpiresAt.Before(time.Now()) {
		t.Errorf("as JSON: %d %q", status, stdout)
	}
}

// Where the browser cannot be opened the URL is printed.
func TestCloudLoginWithoutABrowser(t *testing.T) {
	for browser, why := range map[string]string{"none": "Not opening a browser: BROWSER is none.", "/does/not/exist": "The browser could not be opened: "} {
		record(t, cloudTable)
		t.Setenv("BROWSER", browser)
		s, _ := signin(t, 200, `{"SigninToken":"st"}`)
		stdout, stderr, status := coffer(t, "", "cloud", "login", "-federation-endpoint="+s.URL, "run")
		if status != 0 || !strings.HasPrefix(stdout, s.URL+"?Action=login&") || !strings.Contains(stderr, why) || !strings.Contains(stderr, "within 15 minutes") {
			t.Errorf("BROWSER=%s: %d\n%s\n%s", browser, status, stdout, stderr)
		}
	}
}

func TestCloudLoginFails(t *testing.T) {
	good := `{"SigninToken":"st"}`
	for _, tt := range []struct {
		name, args, stderr string
		status             int // of the sign-in
		answer             string
		code               int
	}{
		{name: "a user", args: "dev", stderr: "The user that was made is removed again", code: 2},
		{name: "refused", args: "run", status: 400, stderr: "refused the credentials with the status 400", code: 2},
		{name: "redirected", args: "run", status: 302, answer: good, stderr: "the status 302", code: 2},
		{name: "another page", args: "run", status: 200, answer: "<html>", stderr: "is not the console's sign-in", code: 2},
		{name: "no token", args: "run", status: 200, answer: "{}", stderr: "is not the console's sign-in", code: 2},
		{name: "an unknown partition", args: "iso", status: 200, answer: good, stderr: `"aws-iso" is not known: give -federation-endpoint and -destination`, code: 1},
		{name: "too long", args: "-session-duration=13h run", stderr: "from 15m to 12h", code: 1},
		{name: "no duration", args: "-session-duration=x run", stderr: "from 15m to 12h", code: 1},
		{name: "no page", args: "-destination=javascript:x run", stderr: "-destination must be a URL", code: 1},
		{name: "a format", args: "-format=xml run", stderr: `the format "xml" is unknown`, code: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := record(t, cloudTable)
			s, _ := signin(t, max(tt.status, 200), tt.answer)
			args := append([]string{"cloud", "login", "-print", "-federation-endpoint=" + s.URL}, strings.Fields(tt.args)...)
			stdout, stderr, code := coffer(t, "", args...)
			if code != tt.code || stdout != "" || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("%d %q %q, want %d and %q", code, stdout, stderr, tt.code, tt.stderr)
			}
			if lines := r.lines(); tt.code == 1 && tt.status == 0 && len(lines) > 0 {
				t.Errorf("asked the server although the flags are wrong: %q", lines)
			}
			if regexp.MustCompile(`\bs1\b|\bt1\b|ASIA1`).MatchString(stderr) {
				t.Errorf("the error shows credentials")
			}
		})
	}
}

// Credentials are not sent where everybody can read them, and do not get into the error of who did not answer.
func TestCloudLoginSendsToNobodyElse(t *testing.T) {
	r := record(t, cloudTable)
	for _, endpoint := range []string{"http://signin.example/", "ftp://a", "x"} {
		_, stderr, code := coffer(t, "", "cloud", "login", "-print", "-federation-endpoint="+endpoint, "run")
		if code != 1 || !strings.Contains(stderr, "must be a URL with https") {
			t.Errorf("%s: %d %q", endpoint, code, stderr)
		}
	}
	if lines := r.lines(); len(lines) > 0 {
		t.Errorf("requests %q", lines)
	}
	s, _ := signin(t, 200, "")
	s.Close()
	_, stderr, code := coffer(t, "", "cloud", "login", "-print", "-federation-endpoint="+s.URL, "run")
	if code != 2 || !strings.Contains(stderr, "was not reached") || strings.Contains(stderr, "sessionKey") || strings.Contains(stderr, "t1") {
		t.Errorf("unreachable: %d %q", code, stderr)
	}
}

// The policy in docs/cloud.md allows every call that is made, and no other.
func TestDocumentedPermissions(t *testing.T) {
	page, err := os.ReadFile("../../docs/cloud.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	text, _, _ := strings.Cut(rest, "```")
	var policy struct {
		Statement []struct{ Action any }
	}
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		t.Fatal(err)
	}
	allowed := map[string]bool{}
	for _, s := range policy.Statement {
		actions, ok := s.Action.([]any)
		if !ok {
			actions = []any{s.Action}
		}
		for _, a := range actions {
			allowed[fmt.Sprint(a)] = true
		}
	}
	// The first three need no permission, the last of them a trust policy; the others go with CreateUser and AssumeRole.
	called := map[string]bool{"sts:GetCallerIdentity": false, "sts:GetSessionToken": false, "sts:AssumeRoleWithWebIdentity": false, "iam:TagUser": true, "sts:TagSession": true}
	files, err := filepath.Glob("../../engines/cloud/aws/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b(iam|sts)\.([A-Z]\w*)Input\b`).FindAllSubmatch(source, -1) {
			name := string(m[1]) + ":" + string(m[2])
			if _, known := called[name]; !known {
				called[name] = true
			}
		}
	}
	for name, needed := range called {
		if needed != allowed[name] {
			t.Errorf("%s: needed %v, allowed %v", name, needed, allowed[name])
		}
	}
	for name := range allowed {
		if !called[name] {
			t.Errorf("%s is allowed, and never called", name)
		}
	}
}
