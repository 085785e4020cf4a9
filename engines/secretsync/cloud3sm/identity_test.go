package cloud3sm_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

func federated(audience, account string) *cloud3sm.Config {
	return &cloud3sm.Config{IdentityAudience: engines.Sensitive(audience), ServiceAccount: account, ProjectID: cloud3smtest.Project}
}

// TestIdentityToken: a token of this server is exchanged at the provider, with and without a service account.
func TestIdentityToken(t *testing.T) {
	for _, test := range []struct{ name, audience, account string }{
		{"a service account", cloud3smtest.Provider, cloud3smtest.Email},
		{"with https", "https:" + cloud3smtest.Provider, cloud3smtest.Email},
		{"the federated identity itself", cloud3smtest.Provider, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := cloud3smtest.New(t)
			env := s.Env()
			env.IdentityToken = func(_ context.Context, audience string, ttl time.Duration) (string, error) {
				if audience != test.audience || ttl != 0 {
					t.Errorf("a token for %q of %v", audience, ttl)
				}
				return cloud3smtest.IdentityToken, nil
			}
			c := federated(test.audience, test.account)
			if problems := c.Check(); problems != nil {
				t.Fatal(problems)
			}
			d := openWith(t, env, c)
			desttest.Write(t, d, item("one", "v"))
			if got, _ := s.Get("one"); got != "v" {
				t.Errorf("the value is %q", got)
			}
		})
	}
}

func TestIdentityTokenIsRefused(t *testing.T) {
	for _, test := range []struct{ token, account, want string }{
		{"another", cloud3smtest.Email, "workload identity provider does not take"},
		{cloud3smtest.IdentityToken, "other@coffer-tests.iam.gserviceaccount.com", "Workload Identity User"},
	} {
		s := cloud3smtest.New(t)
		env := s.Env()
		env.IdentityToken = func(context.Context, string, time.Duration) (string, error) { return test.token, nil }
		_, err := openWith(t, env, federated(cloud3smtest.Provider, test.account)).Read(t.Context(), "one")
		var e *destination.Error
		if !errors.As(err, &e) || e.Code != destination.Denied || !strings.Contains(e.Text, test.want) || strings.Contains(e.Text, test.token) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

// TestEnvironmentFederation: the operator's environment may name a token file; what callers of the API send has no file read.
func TestEnvironmentFederation(t *testing.T) {
	s := cloud3smtest.New(t)
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(`{"id_token":"`+cloud3smtest.IdentityToken+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(other map[string]any) string {
		fields := map[string]any{
			"type": "external_account", "audience": cloud3smtest.Provider, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
			"token_url":                         "https://sts.googleapis.com/v1/token",
			"service_account_impersonation_url": "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/" + cloud3smtest.Email + ":generateAccessToken",
			"credential_source":                 map[string]any{"file": token, "format": map[string]any{"type": "json", "subject_token_field_name": "id_token"}},
		}
		for name, value := range other {
			fields[name] = value
		}
		text, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, test := range []struct {
		other map[string]any
		want  string
	}{
		{nil, ""},
		{map[string]any{"token_url": "https://evil.example/"}, "token_url"},
		{map[string]any{"audience": "//evil.example/x"}, "audience"},
		{map[string]any{"service_account_impersonation_url": "https://evil.example/"}, "service_account_impersonation_url"},
		{map[string]any{"credential_source": map[string]any{"url": "http://169.254.169.254/"}}, "must name a file"},
	} {
		file := filepath.Join(dir, "config")
		if err := os.WriteFile(file, []byte(config(test.other)), 0o600); err != nil {
			t.Fatal(err)
		}
		env := s.Env()
		env.Getenv = func(string) string { return file }
		d, err := cloud3sm.Type.Open(&cloud3sm.Config{ProjectID: cloud3smtest.Project}, env)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "evil") {
				t.Errorf("%v: %v", test.other, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		desttest.Write(t, d, item("one", "v"))
	}
	c := &cloud3sm.Config{Credentials: engines.Sensitive(config(nil)), ProjectID: cloud3smtest.Project}
	if problems := strings.Join(c.Check(), "; "); !strings.Contains(problems, "external_account") {
		t.Errorf("credentials of a caller: %q", problems)
	}
}

func TestIdentityFieldsAreChecked(t *testing.T) {
	for _, test := range []struct {
		c    *cloud3sm.Config
		want string
	}{
		{federated("sts.amazonaws.com", ""), "identity_token_audience"},
		{federated("//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/../x", ""), "identity_token_audience"},
		{federated(cloud3smtest.Provider, "nobody"), "service_account_email"},
		{&cloud3sm.Config{IdentityAudience: cloud3smtest.Provider}, "project_id"},
		{configured(func(c *cloud3sm.Config) { c.IdentityAudience = cloud3smtest.Provider }), "takes the place of credentials"},
		{configured(func(c *cloud3sm.Config) { c.ServiceAccount = cloud3smtest.Email }), "service_account_email"},
		{&cloud3sm.Config{ProjectID: cloud3smtest.Project, IdentityKey: "default"}, "identity_token_key"},
	} {
		if problems := strings.Join(test.c.Check(), "; "); !strings.Contains(problems, test.want) {
			t.Errorf("%q, want %q", problems, test.want)
		}
	}
}
