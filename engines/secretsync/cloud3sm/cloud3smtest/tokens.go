package cloud3smtest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// audience is what an assertion must be for, wherever the token service is asked.
const audience = "https://oauth2.googleapis.com/token"

const (
	grantType = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	allClouds = "https://www.googleapis.com/auth/cloud-platform"
	maxLife   = time.Hour
)

// issue is the token service.
func (s *Server) issue(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, ":generateAccessToken") {
		s.impersonate(w, r)
		return
	}
	if r.ParseForm() == nil && r.PostForm.Get("grant_type") == exchangeType {
		s.exchange(w, r)
		return
	}
	code, why := s.judge(r)
	if code != "" {
		answer(w, http.StatusBadRequest, map[string]any{"error": code, "error_description": why})
		return
	}
	answer(w, http.StatusOK, map[string]any{"access_token": s.Token(), "expires_in": int(maxLife.Seconds()) - 1, "token_type": "Bearer"})
}

// The provider of workload identities that there is, and the one token that it trusts.
const (
	Provider      = "//iam.googleapis.com/projects/" + Number + "/locations/global/workloadIdentityPools/coffer/providers/coffer"
	IdentityToken = "header.claims.signature"

	exchangeType = "urn:ietf:params:oauth:grant-type:token-exchange"
	jwtType      = "urn:ietf:params:oauth:token-type:jwt"
	accessType   = "urn:ietf:params:oauth:token-type:access_token"
)

// exchange is the Security Token Service. What it refuses holds what was sent, as the worst of vendors would.
func (s *Server) exchange(w http.ResponseWriter, r *http.Request) {
	f := r.PostForm
	switch {
	case f.Get("audience") != Provider:
		answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_target", "error_description": "The target service indicated by the \"audience\" parameters is invalid."})
	case f.Get("subject_token_type") != jwtType || f.Get("requested_token_type") != accessType || f.Get("scope") != allClouds:
		answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_request", "error_description": "a type or the scope is missing"})
	case f.Get("subject_token") != IdentityToken:
		answer(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant", "error_description": "Error connecting to the given credential's issuer: " + f.Get("subject_token")})
	default:
		s.mu.Lock()
		s.federated = "federated." + rand.Text()
		token := s.federated
		s.tokens[token] = time.Now().Add(maxLife)
		s.mu.Unlock()
		answer(w, http.StatusOK, map[string]any{"access_token": token, "issued_token_type": accessType, "token_type": "Bearer", "expires_in": 3599})
	}
}

// impersonate is the part of the IAM Credentials API that gives tokens of service accounts.
func (s *Server) impersonate(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Scope    []string
		Lifetime string
	}
	s.mu.Lock()
	federated := s.federated
	s.mu.Unlock()
	switch {
	case r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&in) != nil || len(in.Scope) != 1 || in.Scope[0] != allClouds || in.Lifetime != "3600s":
		answer(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"code": 400, "status": "INVALID_ARGUMENT"}})
	case federated == "" || r.Header.Get("Authorization") != "Bearer "+federated:
		answer(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": 401, "status": "UNAUTHENTICATED"}})
	case r.URL.Path != "/v1/projects/-/serviceAccounts/"+Email+":generateAccessToken":
		answer(w, http.StatusForbidden, map[string]any{"error": map[string]any{"code": 403, "status": "PERMISSION_DENIED"}})
	default:
		answer(w, http.StatusOK, map[string]any{"accessToken": s.Token(), "expireTime": time.Now().Add(maxLife).UTC().Format(time.RFC3339)})
	}
}

// Token issues a token without being asked for it over the wire.
func (s *Server) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := "ya29.c." + rand.Text() + rand.Text()
	s.tokens[text] = time.Now().Add(maxLife)
	s.issued++
	return text
}

// judge returns why there is no token, in the words of OAuth, "" if there is one.
func (s *Server) judge(r *http.Request) (code, why string) {
	if r.Method != http.MethodPost || r.URL.Path != "/token" || r.URL.RawQuery != "" || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.ParseForm() != nil {
		return "invalid_request", "not a form, or not for this address"
	}
	if r.PostForm.Get("grant_type") != grantType {
		return "unsupported_grant_type", "Invalid grant_type"
	}
	parts := strings.Split(r.PostForm.Get("assertion"), ".")
	if len(parts) != 3 {
		return "invalid_request", "Missing parameter: assertion"
	}
	var header struct{ Alg, Typ, Kid string }
	var claims struct {
		Iss, Scope, Aud string
		Iat, Exp        int64
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || !decode(parts[0], &header) || !decode(parts[1], &claims) {
		return "invalid_grant", "Invalid JWT: malformed"
	}
	s.mu.Lock()
	reject := s.reject
	s.mu.Unlock()
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	now := time.Now()
	issued, ends := time.Unix(claims.Iat, 0), time.Unix(claims.Exp, 0)
	switch {
	case claims.Iss != Email:
		return "invalid_grant", "Invalid grant: account not found"
	case reject || header.Alg != "RS256" || header.Kid != keyID || rsa.VerifyPKCS1v15(&key().PublicKey, crypto.SHA256, sum[:], signature) != nil:
		return "invalid_grant", "Invalid JWT Signature."
	case claims.Aud != audience:
		return "invalid_grant", "Invalid JWT: Failed audience check"
	case ends.Sub(issued) > maxLife || issued.After(now) || ends.Before(now):
		return "invalid_grant", "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
	case claims.Scope != allClouds:
		return "invalid_scope", "Invalid OAuth scope or ID token audience provided."
	}
	return "", ""
}

func decode(part string, into any) bool {
	raw, err := base64.RawURLEncoding.DecodeString(part)
	return err == nil && json.Unmarshal(raw, into) == nil
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
