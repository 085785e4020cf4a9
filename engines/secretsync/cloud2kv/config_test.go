package cloud2kv

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

func TestConfigTakesVaults(t *testing.T) {
	for _, test := range []struct{ uri, cloud, want string }{
		{"https://example.vault.azure.net", "", "https://example.vault.azure.net"},
		{"https://example.vault.azure.net/", "cloud", "https://example.vault.azure.net/"},
		{"HTTPS://Example.Vault.Azure.Net/", "AzurePublicCloud", "https://example.vault.azure.net/"},
		{"https://kv1.vault.usgovcloudapi.net", "AzureUSGovernment", "https://kv1.vault.usgovcloudapi.net"},
		{"https://kv1.vault.usgovcloudapi.net", "azuregovernment", "https://kv1.vault.usgovcloudapi.net"},
		{"https://my-kv-1.vault.azure.cn", "AzureChinaCloud", "https://my-kv-1.vault.azure.cn"},
	} {
		c := config()
		c.KeyVaultURI, c.Cloud = test.uri, test.cloud
		if problems := c.Check(); len(problems) > 0 || c.KeyVaultURI != test.want {
			t.Errorf("%s in %q: %v, kept as %s in %q", test.uri, test.cloud, problems, c.KeyVaultURI, c.Cloud)
		}
	}
}

// A caller who may configure a destination must not be able to send credentials or secrets to another host.
func TestConfigRefusesOtherHosts(t *testing.T) {
	for _, uri := range []string{
		"http://example.vault.azure.net", "example.vault.azure.net", "//example.vault.azure.net", "ftp://example.vault.azure.net",
		"https://example.com", "https://vault.azure.net", "https://.vault.azure.net", "https://example.vault.azure.net.evil.example",
		"https://evil.example/.vault.azure.net", "https://evil.example#.vault.azure.net", "https://evil.example?.vault.azure.net",
		"https://evil.example\\.vault.azure.net", "https://evil.example%2f.vault.azure.net", "https://evil.example%00.vault.azure.net",
		"https://user@example.vault.azure.net", "https://user:password@example.vault.azure.net", "https://example.vault.azure.net@evil.example",
		"https://example.vault.azure.net:443", "https://example.vault.azure.net:8443", "https://example.vault.azure.net:",
		"https://169.254.169.254", "https://127.0.0.1", "https://[::1]", "https://[::1].vault.azure.net", "https://2130706433", "https://localhost",
		"https://example.vault.azure.net.", "https://example..vault.azure.net", "https://a.b.vault.azure.net",
		"https://xn--exmple-cua.vault.azure.net", "https://exämple.vault.azure.net", "https://example.vault。azure.net",
		"https://example.vault.azure.net/secrets", "https://example.vault.azure.net//", "https://example.vault.azure.net/..",
		"https://example.vault.azure.net?x", "https://example.vault.azure.net?", "https://example.vault.azure.net#", "https://example.vault.azure.net/#x",
		" https://example.vault.azure.net", "https://example.vault.azure.net\r\nHost: evil.example", "https://example.vault.azure.net\n",
		"https://examplevault.azure.net", "https://example.vault.azure.cn", "https://example.vault.usgovcloudapi.net", "https://example.managedhsm.azure.net",
		"https://ex.vault.azure.net/x", "https://ab.vault.azure.net", "https://1ab.vault.azure.net", "https://ab-.vault.azure.net",
		"https://" + strings.Repeat("a", 25) + ".vault.azure.net", "https://a_b.vault.azure.net", "@/etc/passwd", "https:example.vault.azure.net",
	} {
		c := config()
		c.KeyVaultURI = uri
		problems := c.Check()
		if len(problems) != 1 || !strings.Contains(problems[0], "key_vault_uri") {
			t.Errorf("%q: %v", uri, problems)
		}
		if _, err := Type.Open(c, destination.Env{Client: http.DefaultClient}); err == nil {
			t.Errorf("%q is opened", uri)
		}
	}
	for uri, word := range map[string]string{"https://example.vault.azure.net:443": "port", "https://u@example.vault.azure.net": "user", "https://example.vault.azure.net/x": "path", "http://example.vault.azure.net": "https://"} {
		c := config()
		c.KeyVaultURI = uri
		if problems := c.Check(); len(problems) != 1 || !strings.Contains(problems[0], word) {
			t.Errorf("%s: %q does not say what to change", uri, problems)
		}
	}
	c := config()
	c.KeyVaultURI = "https://example.vault.azure.cn"
	if problems := c.Check(); len(problems) != 1 || !strings.Contains(problems[0], "set cloud to AzureChina") {
		t.Errorf("a vault of another cloud: %v", problems)
	}
}

func TestConfigSaysAllProblemsAtOnce(t *testing.T) {
	c := &Config{KeyVaultURI: "https://evil.example", ClientID: "an id", ClientSecret: "@secret-file", TenantID: "../common", Cloud: "AzureGermanCloud"}
	problems := c.Check()
	for _, field := range []string{"cloud", "key_vault_uri", "client_id", "tenant_id", "client_secret"} {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(p, field) }) {
			t.Errorf("nothing about %s in %q", field, problems)
		}
	}
	if len(problems) != 5 || strings.Contains(fmt.Sprint(problems), "secret-file") {
		t.Errorf("%q", problems)
	}
}

func TestConfigRefusesOddCredentials(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"a line feed at the end":   func(c *Config) { c.ClientSecret += "\n" },
		"a header in the secret":   func(c *Config) { c.ClientSecret += "\r\nX: y" },
		"a file":                   func(c *Config) { c.ClientSecret = "@/run/secrets/azure" },
		"any tenant":               func(c *Config) { c.TenantID = "common" },
		"any tenant, large":        func(c *Config) { c.TenantID = "Organizations" },
		"a path":                   func(c *Config) { c.TenantID = "contoso.com/x" },
		"a query":                  func(c *Config) { c.TenantID = "contoso.com?x" },
		"a tenant with line feeds": func(c *Config) { c.TenantID = "contoso.com\n" },
		"dots":                     func(c *Config) { c.TenantID = ".." },
		"a client with line feeds": func(c *Config) { c.ClientID = "a\r\nb" },
	} {
		c := config()
		change(c)
		if problems := c.Check(); len(problems) != 1 {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

func TestConfigShowsNoSecret(t *testing.T) {
	c := config()
	shown := c.Shown()
	text, err := json.Marshal(shown)
	if err != nil || strings.Contains(string(text), cloud2kvtest.ClientSecret) {
		t.Errorf("%s, %v", text, err)
	}
	if shown["client_secret"] != destination.Mask || shown["key_vault_uri"] != c.KeyVaultURI || shown["client_id"] != c.ClientID || shown["tenant_id"] != c.TenantID || shown["cloud"] != "cloud" {
		t.Errorf("%v", shown)
	}
	if shown := (&Config{Cloud: "cloud"}).Shown(); len(shown) != 1 {
		t.Errorf("what comes from the environment is shown: %v", shown)
	}
}

func TestPlaceIsTheVault(t *testing.T) {
	a := Config{KeyVaultURI: "https://Example.vault.azure.net/", ClientID: "one", Cloud: "cloud"}
	b := Config{KeyVaultURI: "https://example.vault.azure.net", ClientID: "two", Cloud: "AzurePublicCloud"}
	other := Config{KeyVaultURI: "https://other.vault.azure.net"}
	if a.Location() != b.Location() || a.Location() == other.Location() {
		t.Errorf("%q, %q, %q", a.Location(), b.Location(), other.Location())
	}
	if none := (&Config{}).Location(); none == "" || none == a.Location() {
		t.Errorf("without a vault: %q", none)
	}
}

func TestOpenAsksTheEnvironment(t *testing.T) {
	p := newFaultyVault(t)
	variables := map[string]string{
		"KEY_VAULT_URI": p.URI, "AZURE_CLIENT_ID": cloud2kvtest.ClientID, "AZURE_CLIENT_SECRET": cloud2kvtest.ClientSecret + "\n", "AZURE_TENANT_ID": cloud2kvtest.TenantID,
	}
	c := &Config{}
	v := opened(t, c, destination.Env{Client: p.Client(), Getenv: func(name string) string { return variables[name] }})
	if _, err := v.Read(t.Context(), "name"); err != nil {
		t.Error(err)
	}
	if c.ClientSecret != "" || c.KeyVaultURI != "" || c.ClientID != "" || c.TenantID != "" {
		t.Error("what the environment says is kept in the configuration")
	}

	_, err := Type.Open(&Config{}, destination.Env{Client: p.Client()})
	for _, word := range []string{"key_vault_uri", "KEY_VAULT_URI", "client_id", "client_secret", "AZURE_TENANT_ID"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("nothing about %s: %v", word, err)
		}
	}
	variables["KEY_VAULT_URI"] = "https://evil.example"
	if _, err := Type.Open(&Config{}, destination.Env{Client: p.Client(), Getenv: func(name string) string { return variables[name] }}); err == nil {
		t.Error("the environment may name any host")
	}
}

// The fields are those of the API, and can be declared as those of a path.
func TestConfigIsAnInput(t *testing.T) {
	route := engines.On(engines.NewRouter(), engines.Update, "destinations/cloud2-kv/:name", "Writes a destination.", 0,
		func(context.Context, *engines.Request, *Config) (*engines.Response, error) { return nil, nil })
	secret := map[string]bool{}
	for _, f := range route.Fields {
		secret[f.Name] = f.Sensitive
	}
	if want := map[string]bool{"key_vault_uri": false, "client_id": false, "client_secret": true, "identity_token_audience": true, "identity_token_ttl": false, "identity_token_key": true, "tenant_id": false, "cloud": false}; !maps.Equal(secret, want) {
		t.Errorf("the fields, and whether they are secret: %v", secret)
	}
}

func TestRulesOfNamesAndTags(t *testing.T) {
	r := Type.Rules
	if got := r.Normalise("vault-kv_1234-my/sécret.name"); got != "vault-kv-1234-my-s-cret-name" {
		t.Errorf("normalised to %s", got)
	}
	if r.Fold("My-Secret") != r.Fold("mY-sECRET") {
		t.Error("names that differ in case only are two")
	}
	for _, name := range []string{"a_b", "a.b", "a/b", "ä", "a b", "..", strings.Repeat("a", 128)} {
		if r.CheckName(name) == "" {
			t.Errorf("%q is legal", name)
		}
	}
	if problem := r.CheckName(strings.Repeat("a", 127)); problem != "" {
		t.Error(problem)
	}
	for key, value := range map[string]string{"": "v", "Coffer-Sync": "v", strings.Repeat("k", 257): "v", "k": strings.Repeat("v", 257), "line\n": "v", "l": "a\x00"} {
		if r.CheckTag(key, value) == "" {
			t.Errorf("the tag %.20q with %d bytes is legal", key, len(value))
		}
	}
	if problem := r.CheckTag("hashicorp:vault", ""); problem != "" {
		t.Error(problem)
	}
}

func FuzzVaultHost(f *testing.F) {
	for _, seed := range []string{"https://example.vault.azure.net/", "https://a@b.vault.azure.cn", "https://[::1]:443/", "https://x.vault.azure.net%2f", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		host, problem := vaultHost(uri, public)
		if (host == "") == (problem == "") {
			t.Fatalf("%q: host %q, problem %q", uri, host, problem)
		}
		if problem != "" {
			return
		}
		name, ok := strings.CutSuffix(host, ".vault.azure.net")
		if !ok || strings.ContainsFunc(name, func(r rune) bool { return !legal(r) }) || hostOf("https://"+host) != host {
			t.Fatalf("%q leads to %q", uri, host)
		}
		if u := strings.TrimSuffix(strings.ToLower(uri), "/"); u != "https://"+host {
			t.Fatalf("%q is taken for %q", uri, host)
		}
	})
}
