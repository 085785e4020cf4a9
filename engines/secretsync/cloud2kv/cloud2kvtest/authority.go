package cloud2kvtest

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// authority answers as Microsoft Entra ID does: where tokens are, and tokens for those who have a client's secret.
func (v *Vault) authority(w http.ResponseWriter, r *http.Request) {
	tenant, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if !strings.EqualFold(tenant, TenantID) && tenant != "example.onmicrosoft.com" {
		reject(w, http.StatusBadRequest, "invalid_tenant", "AADSTS90002: Tenant '"+tenant+"' not found.")
		return
	}
	switch {
	case path == "v2.0/.well-known/openid-configuration" && r.Method == http.MethodGet:
		base := "https://" + r.Host + "/" + tenant
		answer(w, http.StatusOK, map[string]string{
			"token_endpoint": base + "/oauth2/v2.0/token", "authorization_endpoint": base + "/oauth2/v2.0/authorize", "issuer": base + "/v2.0",
		})
	case path == "oauth2/v2.0/token" && r.Method == http.MethodPost:
		v.token(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (v *Vault) token(w http.ResponseWriter, r *http.Request) {
	if r.URL.RawQuery != "" || r.ParseForm() != nil {
		reject(w, http.StatusBadRequest, "invalid_request", "AADSTS900144: The request body must be a form.")
		return
	}
	switch f := r.PostForm; {
	case f.Get("grant_type") != "client_credentials":
		reject(w, http.StatusBadRequest, "unsupported_grant_type", "AADSTS70003: The app requested an unsupported grant type.")
	case f.Get("client_id") != ClientID:
		reject(w, http.StatusBadRequest, "unauthorized_client", "AADSTS700016: Application with identifier '"+f.Get("client_id")+"' was not found in the directory.")
	case f.Get("client_assertion") != "" && (f.Get("client_assertion") != IdentityToken || f.Get("client_assertion_type") != assertionType):
		reject(w, http.StatusUnauthorized, "invalid_client", "AADSTS700213: No matching federated identity record found for presented assertion subject '"+f.Get("client_assertion")+"'.")
	case f.Get("client_assertion") == "" && f.Get("client_secret") != ClientSecret:
		reject(w, http.StatusUnauthorized, "invalid_client", "AADSTS7000215: Invalid client secret provided: "+f.Get("client_secret"))
	case !slices.Contains(strings.Fields(f.Get("scope")), audience+"/.default"):
		reject(w, http.StatusBadRequest, "invalid_resource", "AADSTS500011: The resource principal named "+f.Get("scope")+" was not found in the tenant.")
	default:
		answer(w, http.StatusOK, map[string]any{"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": v.issue()})
	}
}

// IdentityToken is the token that the app registration has a federated credential for.
const (
	IdentityToken = "header.claims.signature"
	assertionType = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
)

// Metadata is the metadata service of a machine that has the app registration for its managed identity.
func (v *Vault) Metadata() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case r.URL.Path != "/metadata/identity/oauth2/token" || r.Header.Get("Metadata") != "true" || q.Get("resource") != audience:
			answer(w, http.StatusBadRequest, map[string]string{"error": "invalid_request"})
		case q.Get("client_id") != "" && q.Get("client_id") != ClientID:
			answer(w, http.StatusBadRequest, map[string]string{"error": "invalid_request", "error_description": "Identity not found"})
		default:
			answer(w, http.StatusOK, map[string]string{
				"token_type": "Bearer", "access_token": v.issue(), "resource": audience,
				"expires_in": "3599", "expires_on": strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10),
			})
		}
	})
}

func (v *Vault) issue() string {
	token := "token." + rand.Text()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.tokens[token] = true
	v.issued++
	return token
}

// reject answers as the token endpoint does. What it says holds what was sent, as the worst of vendors would.
func reject(w http.ResponseWriter, status int, code, description string) {
	answer(w, status, map[string]any{"error": code, "error_description": description})
}

func answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // it is made of texts and numbers
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client may have gone
}
