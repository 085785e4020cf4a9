package cloud2kv

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// apiVersion is that of the vault's API. All clouds have it; the SDK's own choice is too new for some.
const apiVersion = "7.4"

// callTimeout ends calls that come without a deadline.
const callTimeout = 30 * time.Second

// vault is a destination.Destination.
type vault struct {
	secrets *azsecrets.Client
	wire    *wire
	// patience is how long a write waits for the vault to finish deleting or recovering a secret.
	patience time.Duration
}

// open is Type.Open.
func open(c destination.Config, env destination.Env) (destination.Destination, error) {
	given, ok := c.(*Config)
	if !ok || env.Client == nil {
		return nil, &destination.Error{Class: destination.Internal, Code: destination.BadRequest, Text: "the destination cannot be opened: it has no configuration or no client"}
	}
	full, err := complete(*given, env.Getenv)
	if err != nil {
		return nil, err
	}
	in := full.environment()
	base, authority := "https://"+mustHost(full.KeyVaultURI, in), in.config
	w := &wire{client: env.Client, authorities: in.authorities}
	if env.URL != "" {
		base = strings.TrimSuffix(env.URL, "/")
	}
	if env.AuthorityURL != "" {
		authority = cloud.Configuration{ActiveDirectoryAuthorityHost: env.AuthorityURL}
		w.authorities = []string{hostOf(env.AuthorityURL)}
	}
	w.vault = hostOf(base)
	options := policy.ClientOptions{
		Cloud: authority, Transport: w,
		Retry:     policy.RetryOptions{MaxRetries: -1},
		Telemetry: policy.TelemetryOptions{ApplicationID: "coffer"},
	}
	credentials := &tokens{tenant: full.TenantID, open: func() (azcore.TokenCredential, error) { return credentialOf(&full, env, options) }}
	if err := credentials.renew(); err != nil {
		return nil, unusable("the credentials cannot be used: look at tenant_id, client_id and client_secret")
	}
	w.rejected = credentials.renew
	forVault := options
	forVault.APIVersion = apiVersion
	secrets, err := azsecrets.NewClient(base, credentials, &azsecrets.ClientOptions{
		ClientOptions:                        forVault,
		DisableChallengeResourceVerification: env.URL != "",
	})
	if err != nil {
		return nil, unusable("the vault cannot be used: look at key_vault_uri")
	}
	return &vault{secrets: secrets, wire: w, patience: 20 * time.Second}, nil
}

func unusable(text string) error {
	return &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: text}
}

// complete fills in what the environment has to say, and returns what is still missing or wrong.
func complete(c Config, getenv func(string) string) (Config, error) {
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	var missing []string
	fill := func(value, field, variable string, required bool) string {
		if value == "" {
			value = strings.TrimSpace(getenv(variable))
		}
		if value == "" && required {
			missing = append(missing, field+" is missing: give it, or set "+variable+" for the server")
		}
		return value
	}
	c.KeyVaultURI = fill(c.KeyVaultURI, "key_vault_uri", "KEY_VAULT_URI", true)
	if c.IdentityAudience == "" {
		c.ClientSecret = engines.Sensitive(fill(c.ClientSecret.Reveal(), "client_secret", "AZURE_CLIENT_SECRET", !hasIdentity(getenv)))
	}
	machine := c.IdentityAudience == "" && c.ClientSecret == "" && getenv(tokenFile) == "" // its own identity
	c.ClientID = fill(c.ClientID, "client_id", "AZURE_CLIENT_ID", !machine || !hasIdentity(getenv))
	c.TenantID = fill(c.TenantID, "tenant_id", "AZURE_TENANT_ID", !machine || !hasIdentity(getenv))
	if problems := append(missing, c.Check()...); len(problems) > 0 {
		return c, unusable(strings.Join(problems, "; "))
	}
	return c, nil
}

// mustHost returns the host of a URI that has been checked.
func mustHost(uri string, env *environment) string {
	host, _ := vaultHost(uri, env)
	return host
}

// hostOf returns host and port of a URL, without a port that goes without saying; "" if it is none.
func hostOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(u.Host), ":443")
}

// tokens is the credential. It asks for tokens of the configured tenant only, whatever the vault says. The vendor's credential
// keeps a token until it ends, even if it is rejected: then another credential takes its place.
type tokens struct {
	tenant string
	open   func() (azcore.TokenCredential, error)

	mu      sync.Mutex
	current azcore.TokenCredential
}

// renew forgets all tokens.
func (t *tokens) renew() error {
	credential, err := t.open()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = credential
	return nil
}

// GetToken implements azcore.TokenCredential.
func (t *tokens) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	if guid.MatchString(o.TenantID) && guid.MatchString(t.tenant) && !strings.EqualFold(o.TenantID, t.tenant) {
		return azcore.AccessToken{}, reject(ctx, &destination.Error{
			Class: destination.Client, Code: destination.Denied,
			Text: "the vault belongs to the tenant " + o.TenantID + ", not to tenant_id: change tenant_id, client_id and client_secret",
		})
	}
	o.TenantID = ""
	t.mu.Lock()
	credential := t.current
	t.mu.Unlock()
	token, err := credential.GetToken(ctx, o)
	if e, ok := err.(*destination.Error); ok { //nolint:errorlint // of the machine's identity, which returns no other
		err = reject(ctx, e)
	}
	return token, err
}

// Close implements destination.Destination.
func (v *vault) Close() error {
	v.wire.client.CloseIdleConnections()
	return nil
}
