// Package azurekeyvault is the seal whose key, an RSA one, Azure Key Vault keeps. Start reading at New.
package azurekeyvault

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"

	"github.com/coffer-project/coffer/server/seal"
)

// environments are the clouds there are, and the domain of their vaults.
var environments = map[string]struct {
	cloud  cloud.Configuration
	domain string
}{
	"AzurePublicCloud":       {cloud.AzurePublic, "vault.azure.net"},
	"AzureUSGovernmentCloud": {cloud.AzureGovernment, "vault.usgovcloudapi.net"},
	"AzureChinaCloud":        {cloud.AzureChina, "vault.azure.cn"},
}

// client is a seal.KMS.
type client struct {
	keys *azkeys.Client
	key  string
}

// New returns the seal from its stanza: vault_name, key_name, environment, resource, tenant_id, client_id,
// client_secret. With a client_secret it acts as that application, with a client_id only as that managed identity,
// else as the SDK's default chain finds. It makes no call yet.
func New(values map[string]string) (seal.Wrapper, error) {
	s := seal.NewSettings(seal.TypeAzureKeyVault, values)
	vault, key := s.Required("vault_name", "VAULT_AZUREKEYVAULT_VAULT_NAME"), s.Required("key_name", "VAULT_AZUREKEYVAULT_KEY_NAME")
	name := s.Text("environment", "AZURE_ENVIRONMENT")
	if name == "" {
		name = "AzurePublicCloud"
	}
	env, known := environments[name]
	if !known {
		s.Problem("environment must be AzurePublicCloud, AzureUSGovernmentCloud or AzureChinaCloud")
	}
	domain := s.Text("resource", "AZURE_AD_RESOURCE")
	if domain == "" {
		domain = env.domain
	}
	domain = strings.Trim(strings.TrimPrefix(domain, "https://"), "/")
	credential := newCredential(s, env.cloud)
	if err := s.Err(); err != nil {
		return nil, err
	}
	return newWrapper("https://"+vault+"."+domain+"/", key, credential, nil)
}

// newCredential returns who the node acts as.
func newCredential(s *seal.Settings, c cloud.Configuration) (credential azcore.TokenCredential) {
	tenant, id := s.Text("tenant_id", "AZURE_TENANT_ID"), s.Text("client_id", "AZURE_CLIENT_ID")
	secret := s.Secret("client_secret", "AZURE_CLIENT_SECRET")
	options := policy.ClientOptions{Cloud: c}
	var err error
	switch {
	case secret != "" && (tenant == "" || id == ""):
		s.Problem("client_secret needs tenant_id and client_id")
	case secret != "":
		credential, err = azidentity.NewClientSecretCredential(tenant, id, secret, &azidentity.ClientSecretCredentialOptions{ClientOptions: options})
	case id != "":
		credential, err = azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ClientOptions: options, ID: azidentity.ClientID(id)})
	default:
		credential, err = azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: options, TenantID: tenant})
	}
	if err != nil {
		s.Problem("tenant_id, client_id, client_secret: %v", err)
	}
	return credential
}

// newWrapper returns the seal of one key. transport nil is the SDK's.
func newWrapper(vault, key string, credential azcore.TokenCredential, transport policy.Transporter) (seal.Wrapper, error) {
	keys, err := azkeys.NewClient(vault, credential, &azkeys.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: transport}})
	if err != nil {
		return nil, fmt.Errorf("seal %q: %w", seal.TypeAzureKeyVault, err)
	}
	return seal.NewKMSWrapper(seal.TypeAzureKeyVault, vault+"keys/"+key, &client{keys: keys, key: key})
}

// algorithm has no additional data, so the purpose is bound by the envelope only.
const algorithm = azkeys.EncryptionAlgorithmRSAOAEP256

// Encrypt implements seal.KMS. The result begins with the version of the key, and a line feed.
func (c *client) Encrypt(ctx context.Context, plain []byte, _ string) ([]byte, error) {
	name := algorithm
	out, err := c.keys.WrapKey(ctx, c.key, "", azkeys.KeyOperationParameters{Algorithm: &name, Value: plain}, nil)
	if err != nil {
		return nil, err
	}
	if out.KID == nil || out.KID.Version() == "" {
		return nil, errors.New("the service does not say which version of the key it used")
	}
	return append([]byte(out.KID.Version()+"\n"), out.Result...), nil
}

// Decrypt implements seal.KMS.
func (c *client) Decrypt(ctx context.Context, ciphertext []byte, _ string) ([]byte, error) {
	version, wrapped, ok := bytes.Cut(ciphertext, []byte("\n"))
	if !ok {
		return nil, fmt.Errorf("%w: it names no version of the key", seal.ErrWrongKey)
	}
	name := algorithm
	out, err := c.keys.UnwrapKey(ctx, c.key, string(version), azkeys.KeyOperationParameters{Algorithm: &name, Value: wrapped}, nil)
	if answer, ok := errors.AsType[*azcore.ResponseError](err); ok && answer.StatusCode == http.StatusBadRequest {
		return nil, fmt.Errorf("%w: %w", seal.ErrWrongKey, err)
	}
	if err != nil {
		return nil, err
	}
	return out.Result, nil
}
