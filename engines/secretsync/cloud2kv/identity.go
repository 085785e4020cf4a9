package cloud2kv

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// The variables of the vendor's own clients that name credentials of the server's environment.
const (
	tokenFile       = "AZURE_FEDERATED_TOKEN_FILE" // #nosec G101 -- a name
	tokenSource     = "AZURE_TOKEN_CREDENTIALS"    // #nosec G101 -- a name
	managedIdentity = "ManagedIdentityCredential"
	maxTokenFile    = 64 << 10
)

// hasIdentity reports whether the environment has credentials without a client secret. The identity of the machine is used only if the
// environment says so: a client_secret that was forgotten is not replaced by it.
func hasIdentity(getenv func(string) string) bool {
	return getenv(tokenFile) != "" || strings.EqualFold(getenv(tokenSource), managedIdentity)
}

// credentialOf returns the credential of a complete configuration.
func credentialOf(c *Config, env destination.Env, options policy.ClientOptions) (azcore.TokenCredential, error) {
	assertion := &azidentity.ClientAssertionCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true}
	switch {
	case c.IdentityAudience != "":
		return azidentity.NewClientAssertionCredential(c.TenantID, c.ClientID, func(ctx context.Context) (string, error) {
			token, err := env.Identity(ctx, c.IdentityAudience, c.IdentityTTL)
			if e, ok := err.(*destination.Error); ok { //nolint:errorlint // Identity returns no other
				return "", reject(ctx, e)
			}
			return token, nil
		}, assertion)
	case c.ClientSecret != "":
		return azidentity.NewClientSecretCredential(c.TenantID, c.ClientID, c.ClientSecret.Reveal(), &azidentity.ClientSecretCredentialOptions{
			ClientOptions: options,
			// Its hosts are known and fixed, so no challenge has to be checked.
			DisableInstanceDiscovery: true,
		})
	case env.Getenv(tokenFile) != "":
		return azidentity.NewClientAssertionCredential(c.TenantID, c.ClientID, func(ctx context.Context) (string, error) {
			token, err := readToken(env.Getenv(tokenFile))
			if err != nil || token == "" {
				return "", reject(ctx, denied("the file that the server's "+tokenFile+" names cannot be read, or is empty"))
			}
			return token, nil
		}, assertion)
	}
	if env.Metadata == nil {
		return nil, denied("the destination may not use the identity of the machine")
	}
	return &machine{env.Metadata, c.ClientID}, nil
}

func denied(text string) *destination.Error {
	return &destination.Error{Class: destination.Client, Code: destination.Denied, Text: text}
}

// readToken reads a file that the operator names: it is replaced before its token ends.
func readToken(name string) (string, error) {
	f, err := os.Open(name) // #nosec G304 -- the operator names it
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	return strings.TrimSpace(string(raw)), err
}

// machine is the managed identity of the machine, of which its metadata service gives tokens. The vendor's own client of that keeps
// tokens for the whole process, also those that were rejected.
type machine struct {
	metadata *http.Client
	clientID string // "": the identity that is assigned by the system
}

// metadataURL is the same on all machines.
const metadataURL = "http://169.254.169.254/metadata/identity/oauth2/token"

// GetToken implements azcore.TokenCredential.
func (m *machine) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	if len(o.Scopes) != 1 {
		return azcore.AccessToken{}, reject(ctx, unexpected("Key Vault asks for a token in an unexpected way"))
	}
	query := url.Values{"api-version": {"2018-02-01"}, "resource": {strings.TrimSuffix(o.Scopes[0], "/.default")}}
	if m.clientID != "" {
		query.Set("client_id", m.clientID)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, metadataURL+"?"+query.Encode(), nil)
	if err != nil {
		return azcore.AccessToken{}, err
	}
	r.Header.Set("Metadata", "true")
	resp, err := m.metadata.Do(r)
	if err != nil {
		return azcore.AccessToken{}, reject(ctx, &destination.Error{
			Class: destination.External, Code: destination.Unreachable,
			Text: "the metadata service, which has the managed identity, cannot be reached: only machines of Azure have one",
		})
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError:
		return azcore.AccessToken{}, reject(ctx, &destination.Error{
			Class: destination.External, Code: destination.Unavailable, RetryAfter: destination.RetryAfter(resp.Header),
			Text: "the metadata service of the machine gives no token now",
		})
	case resp.StatusCode != http.StatusOK:
		return azcore.AccessToken{}, reject(ctx, denied("the machine has no such managed identity: assign one to it, and see client_id, which a user-assigned one needs"))
	}
	var out struct {
		Token string `json:"access_token"`
		Life  string `json:"expires_in"` // seconds
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxTokenFile)).Decode(&out)
	life, wrong := strconv.ParseInt(out.Life, 10, 32)
	if err != nil || wrong != nil || life < 0 || out.Token == "" || strings.ContainsFunc(out.Token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return azcore.AccessToken{}, reject(ctx, unexpected("the metadata service of the machine gave an unexpected response"))
	}
	return azcore.AccessToken{Token: out.Token, ExpiresOn: time.Now().Add(time.Duration(life) * time.Second)}, nil
}
