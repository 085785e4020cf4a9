package cloud2kv

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Config is the configuration of a destination. Of the fields that are left out the environment of the server is asked,
// when the destination is opened: KEY_VAULT_URI, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and AZURE_TENANT_ID; in place of a client secret also
// AZURE_FEDERATED_TOKEN_FILE, and AZURE_TOKEN_CREDENTIALS for the managed identity of the machine.
type Config struct {
	KeyVaultURI  string            `json:"key_vault_uri" max:"512" help:"URI of the key vault, such as https://example.vault.azure.net."`
	ClientID     string            `json:"client_id" max:"256" help:"Client ID of an app registration."`
	ClientSecret engines.Sensitive `json:"client_secret" max:"1024" help:"Client secret of the app registration."`

	IdentityAudience engines.Sensitive `json:"identity_token_audience" help:"Instead of client_secret: audience of a token of this server, as the federated credential of the app registration has it, mostly api://AzureADTokenExchange. Its subject is plugin-identity:<namespace id>:sync:cloud2-kv/<name>."`
	IdentityTTL      engines.Duration  `json:"identity_token_ttl" help:"Lifetime of that token, an hour without it."`
	IdentityKey      engines.Sensitive `json:"identity_token_key" help:"Key that signs that token: only default."`

	TenantID string `json:"tenant_id" max:"256" help:"Tenant of the app registration and of the vault."`
	Cloud    string `json:"cloud" max:"64" help:"Cloud of the vault: cloud (the public one), AzureUSGovernment or AzureChina."`
}

// environment is one of the vendor's clouds.
type environment struct {
	name   string
	config cloud.Configuration
	suffix string // of the hosts of vaults
	// authorities are the hosts that issue tokens and say where tokens are issued.
	authorities []string
}

var (
	public = &environment{"cloud", cloud.AzurePublic, "vault.azure.net", []string{"login.microsoftonline.com", "login.windows.net", "login.microsoft.com"}}
	usGov  = &environment{"AzureUSGovernment", cloud.AzureGovernment, "vault.usgovcloudapi.net", []string{"login.microsoftonline.us"}}
	china  = &environment{"AzureChina", cloud.AzureChina, "vault.azure.cn", []string{"login.chinacloudapi.cn", "login.partner.microsoftonline.cn"}}
)

var environments = []*environment{public, usGov, china}

// environmentNames are all names of clouds that are understood, in small letters.
var environmentNames = map[string]*environment{
	"": public, "cloud": public, "public": public, "azurecloud": public, "azurepublic": public, "azurepubliccloud": public,
	"usgovernment": usGov, "azuregovernment": usGov, "azureusgovernment": usGov, "azureusgovernmentcloud": usGov,
	"china": china, "azurechina": china, "azurechinacloud": china,
}

func (c *Config) environment() *environment { return environmentNames[strings.ToLower(c.Cloud)] }

// Check implements destination.Config.
func (c *Config) Check() []string {
	var problems []string
	add := func(problem string) {
		if problem != "" {
			problems = append(problems, problem)
		}
	}
	env := c.environment()
	if env == nil {
		add("cloud must be cloud (the public one), AzureUSGovernment or AzureChina")
	}
	if c.KeyVaultURI != "" {
		_, problem := vaultHost(c.KeyVaultURI, env)
		add(problem)
		if problem == "" {
			c.KeyVaultURI = strings.ToLower(c.KeyVaultURI)
		}
	}
	add(checkClientID(c.ClientID))
	add(checkTenant(c.TenantID))
	add(checkSecret(c.ClientSecret))
	if c.IdentityAudience != "" && c.ClientSecret != "" {
		add("identity_token_audience takes the place of client_secret: give one or the other")
	}
	return append(problems, destination.CheckIdentity(&c.IdentityAudience, &c.IdentityKey, c.IdentityTTL)...)
}

var (
	vaultName = regexp.MustCompile(`^[a-z][a-z0-9-]{1,22}[a-z0-9]$`)
	tenant    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)
	guid      = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
)

// vaultHost returns the host of a vault's URI, in small letters, or why it is none. env nil is any cloud.
func vaultHost(uri string, env *environment) (host, problem string) {
	if strings.ContainsFunc(uri, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' || r == '%' }) {
		return "", "key_vault_uri must have neither spaces nor letters other than those of a host: write https://<name of the vault>." + suffixes(env)
	}
	u, err := url.Parse(uri)
	if err != nil {
		return "", "key_vault_uri is not a URI: write https://<name of the vault>." + suffixes(env)
	}
	switch {
	case u.Scheme != "https":
		return "", "key_vault_uri must begin with https://"
	case u.User != nil:
		return "", "key_vault_uri must not have a user or a password"
	case u.Host != u.Hostname():
		return "", "key_vault_uri must not have a port or an address: write the vault's own name"
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(uri, "#"):
		return "", "key_vault_uri must end after the host: take away the path, the query and the fragment"
	}
	host = strings.ToLower(u.Host)
	name, suffix, _ := strings.Cut(host, ".")
	switch {
	case env != nil && suffix != env.suffix && otherCloud(suffix) != "":
		return "", fmt.Sprintf("key_vault_uri is of the cloud %[1]s: set cloud to %[1]s, or write a vault that ends in .%[2]s", otherCloud(suffix), env.suffix)
	case env != nil && suffix != env.suffix, otherCloud(suffix) == "":
		return "", "key_vault_uri must be that of a vault: https://<name of the vault>." + suffixes(env)
	case !vaultName.MatchString(name) || strings.Contains(name, "--"):
		return "", "key_vault_uri: the name of a vault has 3 to 24 letters, digits and single \"-\", and begins with a letter"
	}
	return host, ""
}

// otherCloud returns the name of the cloud whose vaults end so, or "".
func otherCloud(suffix string) string {
	for _, e := range environments {
		if e.suffix == suffix {
			return e.name
		}
	}
	return ""
}

func suffixes(env *environment) string {
	if env != nil {
		return env.suffix
	}
	return public.suffix
}

func checkClientID(id string) string {
	if strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "client_id must be the client ID of an app registration, without spaces"
	}
	return ""
}

func checkTenant(id string) string {
	switch strings.ToLower(id) {
	case "":
		return ""
	case "common", "organizations", "consumers", "adfs":
		return "tenant_id must be one tenant, by its ID or its domain"
	}
	if !tenant.MatchString(id) {
		return "tenant_id must be the ID of a tenant or its domain: letters, digits, \"-\" and \".\" only"
	}
	return ""
}

func checkSecret(secret engines.Sensitive) string {
	switch s := secret.Reveal(); {
	case strings.HasPrefix(s, "@"):
		return "client_secret must be the secret itself: \"@file\" is expanded by the command line client, the server reads no files"
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "client_secret must not have line feeds or other control characters: look for one at its end"
	}
	return ""
}

// Location implements destination.Config. Destinations that take their vault from the environment share one.
func (c *Config) Location() string {
	host, problem := vaultHost(c.KeyVaultURI, nil)
	if problem != "" {
		host = "KEY_VAULT_URI"
	}
	return Type.Name + " " + host
}

// Owner implements destination.Owned.
func (c *Config) Owner() string { return c.Location() + " " + strings.ToLower(c.TenantID) }

// Shown implements destination.Config.
func (c *Config) Shown() map[string]any {
	shown := map[string]any{}
	for field, value := range map[string]string{"key_vault_uri": c.KeyVaultURI, "client_id": c.ClientID, "tenant_id": c.TenantID, "cloud": c.Cloud} {
		if value != "" {
			shown[field] = value
		}
	}
	for field, value := range map[string]engines.Sensitive{
		"client_secret": c.ClientSecret, "identity_token_audience": c.IdentityAudience, "identity_token_key": c.IdentityKey,
	} {
		if value != "" {
			shown[field] = destination.Mask
		}
	}
	if c.IdentityTTL != 0 {
		shown["identity_token_ttl"] = c.IdentityTTL.Seconds()
	}
	return shown
}
