package repohosttest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// app is a GitHub App.
type app struct {
	key           *rsa.PublicKey
	installations []int64
}

const (
	tokenTTL        = time.Hour
	maxAssertionTTL = 10 * time.Minute
)

// AddInstallation has an app with a key be installed. A token of the installation may read and write all there is.
func (s *Server) AddInstallation(appID int64, key *rsa.PublicKey, installation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	iss := strconv.FormatInt(appID, 10)
	if s.apps[iss] == nil {
		s.apps[iss] = new(app)
	}
	s.apps[iss].key = key
	s.apps[iss].installations = append(s.apps[iss].installations, installation)
}

// RevokeTokens ends all tokens of installations.
func (s *Server) RevokeTokens() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tokens)
}

// AddWorkflow makes a workflow with the trigger workflow_dispatch on the branch main of a repository.
func (s *Server) AddWorkflow(owner, repo, file string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workflows[Repository(owner, repo)+"/actions/workflows/"+file] = true
}

// Runs returns the workflows that were started, as "repos/OWNER/NAME/actions/workflows/FILE@REF", and forgets them.
func (s *Server) Runs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.runs
	s.runs = nil
	return out
}

// issue exchanges the JSON Web Token of an app for a token of an installation. The lock is held.
func (s *Server) issue(w http.ResponseWriter, path, assertion string) {
	claims := jwt.RegisteredClaims{}
	var of *app
	_, err := jwt.NewParser(jwt.WithValidMethods([]string{"RS256"}), jwt.WithoutClaimsValidation()).ParseWithClaims(assertion, &claims, func(*jwt.Token) (any, error) {
		if of = s.apps[claims.Issuer]; of == nil {
			return nil, jwt.ErrTokenInvalidIssuer
		}
		return of.key, nil
	})
	id, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(path, "app/installations/"), "/access_tokens"), 10, 64)
	unauthorized := func(text string) { desttest.Respond(w, http.StatusUnauthorized, message(text)) }
	switch {
	case err != nil && of == nil && claims.Issuer != "":
		desttest.Respond(w, http.StatusNotFound, message("Integration not found"))
	case err != nil:
		unauthorized("A JSON web token could not be decoded")
	case claims.IssuedAt == nil || claims.IssuedAt.After(s.now):
		unauthorized("'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued.")
	case claims.ExpiresAt == nil || !claims.ExpiresAt.After(s.now):
		unauthorized("'Expiration time' claim ('exp') must be a numeric value representing the future time at which the assertion expires.")
	case claims.ExpiresAt.Sub(s.now) > maxAssertionTTL:
		unauthorized("'Expiration time' claim ('exp') is too far in the future")
	case !slices.Contains(of.installations, id):
		desttest.Respond(w, http.StatusNotFound, message("Not Found"))
	default:
		token := "ghs_" + rand.Text()
		s.tokens[token] = s.now.Add(tokenTTL)
		desttest.Respond(w, http.StatusCreated, map[string]any{
			"token": token, "expires_at": s.tokens[token].Format(time.RFC3339), "repository_selection": "all",
			"permissions": map[string]any{"actions": "write", "metadata": "read", "secrets": "write"},
		})
	}
}

// dispatch starts a workflow. The lock is held.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, path, token string) {
	of := strings.TrimSuffix(path, "/dispatches")
	var in struct {
		Ref string `json:"ref"`
	}
	switch {
	case !s.workflows[of]:
		desttest.Respond(w, http.StatusNotFound, message("Not Found"))
	case token == ReadOnly:
		desttest.Respond(w, http.StatusForbidden, message("Resource not accessible by personal access token"))
	case json.NewDecoder(r.Body).Decode(&in) != nil || in.Ref != "main":
		desttest.Respond(w, http.StatusUnprocessableEntity, message("No ref found for: "+in.Ref))
	default:
		s.runs = append(s.runs, of+"@"+in.Ref)
		desttest.Respond(w, http.StatusNoContent, nil)
	}
}
