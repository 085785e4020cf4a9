package aws_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

func TestRetriesAreCounted(t *testing.T) {
	tests := []struct {
		name         string
		answer       script
		retries      int
		once, others int // attempts of CreateAccessKey, and of other calls
	}{
		{"the SDK's default", refusing(400, "Throttling", "slow"), -1, 3, 3},
		{"none", refusing(400, "Throttling", "slow"), 0, 1, 1},
		{"one", refusing(400, "Throttling", "slow"), 1, 2, 2},
		{"six", refusing(503, "RequestLimitExceeded", "slow"), 6, 7, 7},
		{"too many requests", refusing(429, "", ""), 2, 3, 3},
		{"concurrent modification", refusing(409, "ConcurrentModification", "soon"), 2, 3, 3},
		{"temporarily unmodifiable", refusing(409, "EntityTemporarilyUnmodifiable", "soon"), 2, 3, 3},
		{"trouble", refusing(500, "ServiceFailure", "sorry"), 2, 1, 3},
		{"a proxy's trouble", refusing(502, "", ""), 2, 1, 3},
		{"lost answers", broken, 2, 1, 3},
		{"not there", refusing(404, "NoSuchEntity", "no"), 6, 1, 1},
		{"a quota", refusing(409, "LimitExceeded", "no"), 6, 1, 1},
		{"denied", refusing(403, "AccessDenied", "no"), 6, 1, 1},
		{"a conflict", refusing(409, "DeleteConflict", "no"), 6, 1, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newScripted(t, test.answer)
			c := dial(t, s.URL, func(o *aws.Options) { o.MaxRetries = test.retries })
			for action, call := range calls() {
				if call(t, c) == nil {
					t.Errorf("%s succeeds", action)
				}
				want := test.others
				if action == "CreateAccessKey" {
					want = test.once
				}
				if got := s.count(action); got != want {
					t.Errorf("%d attempts of %s, want %d", got, action, want)
				}
			}
		})
	}
}

// A request whose connection was not accepted has done nothing, so it can be retried.
func TestCreateAccessKeyIsRepeatedWhenNobodyWasReached(t *testing.T) {
	var waits atomic.Int64
	c := dial(t, unreachable(), func(o *aws.Options) {
		o.MaxRetries = 2
		o.Backoff = func(int) time.Duration { waits.Add(1); return 0 }
	})
	if _, err := c.CreateAccessKey(t.Context(), "u"); aws.KindOf(err) != aws.Unavailable {
		t.Errorf("CreateAccessKey fails with %v, want Unavailable", err)
	}
	if got := waits.Load(); got != 2 {
		t.Errorf("%d repetitions, want 2", got)
	}
}

// TestMaxRetriesDoNotKeepACallForHours: neither the call, nor the one that it needs to get through a role.
func TestMaxRetriesDoNotKeepACallForHours(t *testing.T) {
	s := newScripted(t, refusing(503, "ServiceUnavailable", "sorry"))
	for _, roles := range [][]aws.AssumeRole{nil, {{RoleARN: "arn:aws:iam::123456789012:role/gate"}}} {
		c := dial(t, s.URL, func(o *aws.Options) {
			o.MaxRetries, o.CallTime, o.AssumeRoles = 1000, 10*time.Millisecond, roles
			o.Backoff = func(int) time.Duration { return time.Hour }
		})
		for action, call := range calls() {
			if err := call(t, c); aws.KindOf(err) != aws.Unavailable {
				t.Errorf("%s fails with %v, want Unavailable", action, err)
			}
		}
	}
}

// unreachable returns the URL of a port without a listener.
func unreachable() string {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	return s.URL
}

func TestRequestsSayWhoWeAre(t *testing.T) {
	var agent, authorization string
	s := newScripted(t, func(w http.ResponseWriter, r *http.Request, form url.Values) {
		agent, authorization = r.UserAgent(), r.Header.Get("Authorization")
		result(w, form.Get("Action"), "<Arn>arn:aws:iam::123456789012:user/u</Arn>")
	})
	c := dial(t, s.URL, nil)
	if _, err := c.CallerIdentity(t.Context(), aws.Credentials{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(agent, "coffer") || !strings.Contains(authorization, "/eu-west-1/sts/") {
		t.Errorf("user agent %q, authorization for %q", agent, authorization)
	}
}

func TestRegion(t *testing.T) {
	tests := []struct{ name, configured, region, fallback, want string }{
		{"configured", "eu-west-1", "eu-west-2", "eu-west-3", "eu-west-1"},
		{"AWS_REGION", "", "eu-west-2", "eu-west-3", "eu-west-2"},
		{"AWS_DEFAULT_REGION", "", "", "eu-west-3", "eu-west-3"},
		{"none", "", "", "", "us-east-1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bare(t)
			t.Setenv("AWS_REGION", test.region)
			t.Setenv("AWS_DEFAULT_REGION", test.fallback)
			write(t, "AWS_CONFIG_FILE", "[default]\nregion = ap-south-1\n")
			var got string
			s := newScripted(t, func(w http.ResponseWriter, r *http.Request, _ url.Values) {
				got = r.Header.Get("Authorization")
				refuse(w, 403, "AccessDenied", "no")
			})
			for _, key := range []string{testKey, ""} {
				t.Setenv("AWS_ACCESS_KEY_ID", testKey)
				t.Setenv("AWS_SECRET_ACCESS_KEY", testSecret)
				c := dial(t, s.URL, func(o *aws.Options) { o.Region, o.AccessKey = test.configured, key })
				_, _ = c.CallerIdentity(t.Context(), aws.Credentials{})
				if !strings.Contains(got, "/"+test.want+"/sts/") {
					t.Errorf("a request for %q, want region %q", got, test.want)
				}
			}
		})
	}
}

// bare takes what the machine has of credentials out of the environment.
func bare(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "config"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "credentials"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

// write makes a file that an environment variable names.
func write(t *testing.T, variable, text string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(variable, name)
}

func TestSourcesOfCredentials(t *testing.T) {
	machine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"AccessKeyId":"AKIAMACHINEMACHINEMA","SecretAccessKey":"m","Token":"t","Expiration":%q}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer machine.Close()
	static := func(o *aws.Options) { o.AccessKey, o.SecretKey = "AKIASTATICSTATICSTAT", "s" }
	env := func(t *testing.T) {
		t.Setenv("AWS_ACCESS_KEY_ID", "AKIAENVENVENVENVENVE")
		t.Setenv("AWS_SECRET_ACCESS_KEY", "e")
	}
	files := func(t *testing.T) {
		write(t, "AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id = AKIAFILEFILEFILEFILE\naws_secret_access_key = f\n[other]\naws_access_key_id = AKIAOTHEROTHEROTHERO\naws_secret_access_key = f\n")
	}
	role := func(t *testing.T) { t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", machine.URL) }
	tests := []struct {
		name    string
		options func(*aws.Options)
		sources []func(*testing.T)
		want    string
	}{
		{"static before all", static, []func(*testing.T){env, files, role}, "AKIASTATICSTATICSTAT"},
		{"static before a profile", static, []func(*testing.T){files, func(t *testing.T) { t.Setenv("AWS_PROFILE", "other") }}, "AKIASTATICSTATICSTAT"},
		{"environment before files", nil, []func(*testing.T){env, files, role}, "AKIAENVENVENVENVENVE"},
		{"files before the machine", nil, []func(*testing.T){files, role}, "AKIAFILEFILEFILEFILE"},
		{"a profile of the files", nil, []func(*testing.T){files, role, func(t *testing.T) { t.Setenv("AWS_PROFILE", "other") }}, "AKIAOTHEROTHEROTHERO"},
		{"the machine", nil, []func(*testing.T){role}, "AKIAMACHINEMACHINEMA"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bare(t)
			for _, source := range test.sources {
				source(t)
			}
			var signed string
			s := newScripted(t, func(w http.ResponseWriter, r *http.Request, _ url.Values) {
				signed = r.Header.Get("Authorization")
				refuse(w, 403, "AccessDenied", "no")
			})
			c := dial(t, s.URL, func(o *aws.Options) {
				o.AccessKey, o.SecretKey = "", ""
				if test.options != nil {
					test.options(o)
				}
			})
			for _, action := range []string{"GetUser", "GetCallerIdentity"} {
				if err := calls()[action](t, c); !strings.Contains(signed, "Credential="+test.want+"/") {
					t.Errorf("%s is signed %q (%v), want by %s", action, signed, err, test.want)
				}
			}
		})
	}
}

func TestNoCredentialsAnywhere(t *testing.T) {
	bare(t)
	s := newScripted(t, refusing(403, "AccessDenied", "no"))
	c := dial(t, s.URL, func(o *aws.Options) { o.AccessKey, o.SecretKey, o.MaxRetries = "", "", 3 })
	for _, action := range []string{"GetUser", "CreateUser", "GetCallerIdentity"} {
		err := calls()[action](t, c)
		if aws.KindOf(err) != aws.Denied || !strings.HasPrefix(err.Error(), "finding root credentials: ") {
			t.Errorf("%s fails with %v, want Denied for lack of credentials", action, err)
		}
		if s.count(action) != 0 {
			t.Errorf("%s is sent without credentials", action)
		}
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	bare(t)
	t.Setenv("AWS_PROFILE", "missing")
	_, err := aws.New(t.Context(), aws.Options{SecretKey: engines.Sensitive(testSecret)})
	if aws.KindOf(err) != aws.Invalid || strings.Contains(fmt.Sprintf("%#v", err), testSecret) {
		t.Errorf("New fails with %v, want Invalid", err)
	}
}
