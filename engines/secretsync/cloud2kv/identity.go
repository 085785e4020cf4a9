package cloud2kv

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/machine"
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
	return &machine.Identity{Metadata: env.Metadata, ClientID: c.ClientID}, nil
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
