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
	code, why := s.judge(r)
	if code != "" {
		answer(w, http.StatusBadRequest, map[string]any{"error": code, "error_description": why})
		return
	}
	answer(w, http.StatusOK, map[string]any{"access_token": s.Token(), "expires_in": int(maxLife.Seconds()) - 1, "token_type": "Bearer"})
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
