package cloud2kv

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// withoutSecret is a configuration that has no client secret.
func withoutSecret(change func(*Config)) *Config {
	c := config()
	c.ClientSecret = ""
	if change != nil {
		change(c)
	}
	return c
}

// variables is what Getenv reads.
func variables(of map[string]string) func(string) string {
	return func(name string) string { return of[name] }
}

// metadataOf reaches a fake metadata service in place of the machine's.
func metadataOf(t *testing.T, h http.Handler) *http.Client {
	t.Helper()
	return &http.Client{Transport: handled{t, h}}
}

type handled struct {
	t *testing.T
	h http.Handler
}

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != "169.254.169.254" {
		h.t.Errorf("%s is called as the metadata service", r.URL.Host)
	}
	w := httptest.NewRecorder()
	h.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestWithoutSecret: the ways in that need no stored secret.
func TestWithoutSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(cloud2kvtest.IdentityToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		config *Config
		env    func(*cloud2kvtest.Vault) destination.Env
	}{
		{"a token of this server", withoutSecret(func(c *Config) { c.IdentityAudience = "api://AzureADTokenExchange" }), func(*cloud2kvtest.Vault) destination.Env {
			return destination.Env{IdentityToken: func(_ context.Context, audience string, _ time.Duration) (string, error) {
				if audience != "api://AzureADTokenExchange" {
					t.Errorf("a token for %q", audience)
				}
				return cloud2kvtest.IdentityToken, nil
			}}
		}},
		{"a token file", withoutSecret(func(c *Config) { c.ClientID, c.TenantID = "", "" }), func(*cloud2kvtest.Vault) destination.Env {
			return destination.Env{Getenv: variables(map[string]string{tokenFile: file, "AZURE_CLIENT_ID": cloud2kvtest.ClientID, "AZURE_TENANT_ID": cloud2kvtest.TenantID})}
		}},
		{"the machine's identity", withoutSecret(func(c *Config) { c.ClientID, c.TenantID = "", "" }), func(v *cloud2kvtest.Vault) destination.Env {
			return destination.Env{Getenv: variables(map[string]string{tokenSource: "ManagedIdentityCredential"}), Metadata: metadataOf(t, v.Metadata())}
		}},
		{"a user-assigned identity", withoutSecret(nil), func(v *cloud2kvtest.Vault) destination.Env {
			return destination.Env{Getenv: variables(map[string]string{tokenSource: "managedidentitycredential"}), Metadata: metadataOf(t, v.Metadata())}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newFaultyVault(t)
			env := test.env(p.Vault)
			env.Client = p.Client()
			d := opened(t, test.config, env)
			desttest.Write(t, d, destination.Item{Name: "one", Value: []byte("v"), OwnerTag: "mark", Token: strings.Repeat("0", 32)})
			if got, _ := p.Vault.Get("one"); got != "v" {
				t.Errorf("the value is %q", got)
			}
		})
	}
}

// TestWithoutSecretFails: the reason is named, and nothing of what was sent.
func TestWithoutSecretFails(t *testing.T) {
	for _, test := range []struct {
		name, want, code string
		config           *Config
		env              destination.Env
	}{
		{"another token", "federated credential with the subject", destination.Denied, withoutSecret(func(c *Config) { c.IdentityAudience = "a" }),
			destination.Env{IdentityToken: func(context.Context, string, time.Duration) (string, error) { return "another-token", nil }}},
		{"no issuer", "issues no identity tokens", destination.Denied, withoutSecret(func(c *Config) { c.IdentityAudience = "a" }), destination.Env{}},
		{"no file", tokenFile, destination.Denied, withoutSecret(nil), destination.Env{Getenv: variables(map[string]string{tokenFile: "/nowhere/token"})}},
		{"no identity", "no such managed identity", destination.Denied, withoutSecret(func(c *Config) { c.ClientID = "other" }),
			destination.Env{Getenv: variables(map[string]string{tokenSource: managedIdentity}), Metadata: metadataOf(t, new(cloud2kvtest.Vault).Metadata())}},
		{"no machine of Azure", "cannot be reached", destination.Unreachable, withoutSecret(nil),
			destination.Env{Getenv: variables(map[string]string{tokenSource: managedIdentity}), Metadata: &http.Client{Transport: broken{}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newFaultyVault(t)
			test.env.Client = p.Client()
			_, err := opened(t, test.config, test.env).Read(t.Context(), "one")
			var e *destination.Error
			if !errors.As(err, &e) || e.Code != test.code || !strings.Contains(e.Text, test.want) || strings.Contains(e.Text, "another-token") {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	// Without a word of the operator's, a forgotten secret is not replaced by the identity of the machine.
	p := newFaultyVault(t)
	if _, err := Type.Open(withoutSecret(nil), destination.Env{Client: p.Client(), Metadata: p.Client()}); err == nil || !strings.Contains(err.Error(), "client_secret is missing") {
		t.Errorf("opened without credentials: %v", err)
	}
	if _, err := Type.Open(withoutSecret(nil), destination.Env{Client: p.Client(), Getenv: variables(map[string]string{tokenSource: managedIdentity})}); err == nil {
		t.Error("the identity of the machine is used although the operator does not allow it")
	}
}

type broken struct{}

func (broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no route") }

func TestIdentityFieldsAreChecked(t *testing.T) {
	c := config()
	c.IdentityAudience = "a"
	if problems := strings.Join(c.Check(), "; "); !strings.Contains(problems, "takes the place of client_secret") {
		t.Error(problems)
	}
	c = withoutSecret(func(c *Config) {
		c.IdentityAudience, c.IdentityTTL = "a", engines.Duration(time.Hour)
	})
	if problems := c.Check(); problems != nil {
		t.Error(problems)
	}
	if shown := c.Shown(); shown["identity_token_audience"] != destination.Mask || shown["identity_token_ttl"] != int64(3600) {
		t.Errorf("shown as %v", shown)
	}
}
