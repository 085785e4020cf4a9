package destination

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Lifetimes of identity tokens.
const (
	minIdentityTTL = time.Minute
	maxIdentityTTL = 24 * time.Hour
)

// CheckIdentity returns what is wrong with the fields by which a destination proves to a provider who it is. It puts them into their usual
// form.
func CheckIdentity(audience, key *engines.Sensitive, ttl engines.Duration) (problems []string) {
	*audience = engines.Sensitive(strings.TrimSpace(audience.Reveal()))
	switch text := audience.Reveal(); {
	case len(text) > 1024 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		problems = append(problems, "identity_token_audience: must have only letters, digits and signs, without spaces, at most 1024")
	case text == "" && ttl != 0:
		problems = append(problems, "identity_token_ttl: is for identity tokens: give identity_token_audience, too, or leave it out")
	case ttl != 0 && (time.Duration(ttl) < minIdentityTTL || time.Duration(ttl) > maxIdentityTTL):
		problems = append(problems, fmt.Sprintf("identity_token_ttl: must be between %v and %v", minIdentityTTL, maxIdentityTTL))
	}
	switch k := key.Reveal(); {
	case k != "" && *audience == "":
		problems = append(problems, "identity_token_key: is for identity tokens: give identity_token_audience, too, or leave it out")
	case k != "" && k != "default":
		problems = append(problems, "identity_token_key: there is one key for identity tokens, \"default\": leave it out")
	}
	return problems
}

// Identity issues a token, or fails with an *Error.
func (e *Env) Identity(ctx context.Context, audience engines.Sensitive, ttl engines.Duration) (string, error) {
	if e.IdentityToken == nil {
		return "", &Error{Class: Client, Code: Denied, Text: "this server issues no identity tokens: give the destination credentials of its own"}
	}
	token, err := e.IdentityToken(ctx, audience.Reveal(), time.Duration(ttl))
	if err == nil {
		return token, nil
	}
	if _, ok := err.(*Error); ok { //nolint:errorlint // it is returned as it is
		return "", err
	}
	return "", &Error{Class: Internal, Code: Unavailable, Text: "no identity token could be issued; the log says more", Err: err}
}
