package azurekeyvault

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/coffer-project/coffer/server/seal"
)

// vault is Key Vault with one key, as an HTTP transport. It asks for a token first, as the real one does.
type vault struct {
	t     *testing.T
	mu    sync.Mutex
	kept  [][]byte
	fail  int
	asked int // requests without a token
}

const tenant = "11111111-2222-3333-4444-555555555555"

// GetToken implements azcore.TokenCredential.
func (v *vault) GetToken(_ context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	if len(o.Scopes) != 1 || o.Scopes[0] != "https://vault.azure.net/.default" || o.TenantID != tenant {
		v.t.Errorf("a token is asked for %v of %s", o.Scopes, o.TenantID)
	}
	return azcore.AccessToken{Token: "access", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// Do implements policy.Transporter.
func (v *vault) Do(r *http.Request) (*http.Response, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	answer := func(code int, body any) (*http.Response, error) {
		text, err := json.Marshal(body)
		return &http.Response{
			StatusCode: code, Status: http.StatusText(code), Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(bytes.NewReader(text)), Request: r,
		}, err
	}
	problem := func(code int, name string) (*http.Response, error) {
		return answer(code, map[string]any{"error": map[string]string{"code": name, "message": "as the test wants it"}})
	}
	if r.URL.Host != "coffer.vault.azure.net" || r.URL.Scheme != "https" || r.URL.Query().Get("api-version") == "" || r.Method != http.MethodPost {
		v.t.Errorf("%s %s", r.Method, r.URL)
	}
	switch r.Header.Get("Authorization") {
	case "Bearer access":
	case "":
		v.asked++
		resp, err := problem(http.StatusUnauthorized, "Unauthorized")
		resp.Header.Set("WWW-Authenticate", `Bearer authorization="https://login.microsoftonline.com/`+tenant+`", resource="https://vault.azure.net"`)
		return resp, err
	default:
		v.t.Error("another token")
	}
	if v.fail != 0 {
		return problem(v.fail, "Test")
	}
	var in struct{ Alg, Value string }
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Alg != "RSA-OAEP-256" {
		v.t.Errorf("the body has algorithm %q: %v", in.Alg, err)
	}
	value, err := base64.RawURLEncoding.DecodeString(in.Value)
	if err != nil {
		v.t.Error(err)
	}
	const id = "https://coffer.vault.azure.net/keys/root/abc123"
	switch r.URL.Path {
	case "/keys/root/wrapkey", "/keys/root//wrapkey":
		v.kept = append(v.kept, value)
		return answer(http.StatusOK, map[string]string{"kid": id, "value": base64.RawURLEncoding.EncodeToString([]byte{byte(len(v.kept) - 1)})})
	case "/keys/root/abc123/unwrapkey":
		if len(value) != 1 || int(value[0]) >= len(v.kept) {
			return problem(http.StatusBadRequest, "BadParameter")
		}
		return answer(http.StatusOK, map[string]string{"kid": id, "value": base64.RawURLEncoding.EncodeToString(v.kept[value[0]])})
	}
	v.t.Errorf("path %s", r.URL.Path)
	return problem(http.StatusNotFound, "KeyNotFound")
}

func newVault(t *testing.T) (*vault, seal.Wrapper) {
	t.Helper()
	v := &vault{t: t}
	w, err := newWrapper("https://coffer.vault.azure.net/", "root", v, v)
	if err != nil {
		t.Fatal(err)
	}
	return v, w
}

func TestWrap(t *testing.T) {
	v, w := newVault(t)
	if w.Type() != "azurekeyvault" || seal.KeyID(w) != "https://coffer.vault.azure.net/keys/root" {
		t.Errorf("type %q, key %q", w.Type(), seal.KeyID(w))
	}
	secret := bytes.Repeat([]byte{7}, 32)
	blob, err := w.Wrap(t.Context(), secret, "root key")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.Unwrap(t.Context(), blob, "root key"); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("Unwrap: %v", err)
	}
	if v.asked == 0 || bytes.Equal(v.kept[0], secret) {
		t.Errorf("asked %d times without a token, or the service sees the secret", v.asked)
	}
	// The algorithm binds nothing, the envelope does.
	if _, err := w.Unwrap(t.Context(), blob, "another"); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("another purpose: %v", err)
	}
	v.kept = nil
	if _, err := w.Unwrap(t.Context(), blob, "root key"); !errors.Is(err, seal.ErrWrongKey) || !strings.Contains(err.Error(), "BadParameter") {
		t.Errorf("what the key does not open: %v", err)
	}
	v.fail = http.StatusForbidden
	if _, err := w.Unwrap(t.Context(), blob, "root key"); err == nil || errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("a refusal: %v", err)
	}
}

func TestSettings(t *testing.T) {
	for _, name := range []string{"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_ENVIRONMENT", "AZURE_AD_RESOURCE", "VAULT_AZUREKEYVAULT_KEY_NAME"} {
		t.Setenv(name, "")
	}
	t.Setenv("VAULT_AZUREKEYVAULT_VAULT_NAME", "hsm")
	for want, values := range map[string]map[string]string{
		"https://hsm.vault.azure.net/keys/k":         {"tenant_id": tenant, "client_id": "c", "client_secret": "s"},
		"https://hsm.vault.usgovcloudapi.net/keys/k": {"environment": "AzureUSGovernmentCloud", "client_id": "managed"},
		"https://hsm.managedhsm.azure.net/keys/k":    {"resource": "https://managedhsm.azure.net", "client_id": "managed"},
	} {
		values["key_name"] = "k"
		if w, err := New(values); err != nil || seal.KeyID(w) != want {
			t.Errorf("New = %v, want the key %s", err, want)
		}
	}
	_, err := New(map[string]string{"environment": "Moon", "client_secret": "do-not-show", "vault": "x"})
	for _, want := range []string{"key_name must be set", "environment must be", "client_secret needs tenant_id", `unknown setting "vault"`} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "do-not-show") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
