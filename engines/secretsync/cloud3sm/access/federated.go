package access

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// The addresses of the vendor.
const (
	exchangeURL    = "https://sts.googleapis.com/v1/token" // #nosec G101 -- an address
	credentialsURL = "https://iamcredentials.googleapis.com"
)

var provider = engines.Pattern(`^(https:)?//iam\.googleapis\.com/projects/[0-9]{1,20}/locations/global/workloadIdentityPools/[a-z0-9-]{4,32}/providers/[a-z0-9-]{4,32}$`)

// IsProvider reports whether a text names a workload identity provider.
func IsProvider(text string) bool { return provider().MatchString(text) }

// Federated gets tokens for a token of another issuer, which a workload identity provider trusts: the token is exchanged, then a service
// account impersonated.
type Federated struct {
	Provider string // IsProvider
	Email    string // of the service account; "": the federated identity itself calls
	Subject  func(context.Context) (token string, err error)
	// URL is the token service, "" for the vendor's. Where it is another one, credentials of service accounts are at its host.
	URL string
}

// Who implements Source.
func (f *Federated) Who() string {
	if f.Email == "" {
		return "the federated identity"
	}
	return "the service account " + f.Email
}

func (f *Federated) issue(ctx context.Context, client *http.Client) (text string, life time.Duration, date string, err error) {
	subject, err := f.Subject(ctx)
	if err != nil {
		return "", 0, "", err
	}
	form := url.Values{
		"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "audience": {strings.TrimPrefix(f.Provider, "https:")}, "scope": {scope},
		"requested_token_type": {"urn:ietf:params:oauth:token-type:access_token"},
		"subject_token_type":   {"urn:ietf:params:oauth:token-type:jwt"}, "subject_token": {subject},
	}
	body, resp, err := post(ctx, client, cmp.Or(f.URL, exchangeURL), "application/x-www-form-urlencoded", form.Encode(), "")
	if err != nil {
		return "", 0, "", err
	}
	date = resp.Header.Get("Date")
	if resp.StatusCode != http.StatusOK {
		return "", 0, date, refusedToken(resp, body, "the workload identity provider does not take the identity token: see its issuer, audience and attribute condition, and whether the issuer (identity/oidc/config) can be reached from the internet")
	}
	text, life, ok := parseToken(body)
	switch {
	case !ok:
		return "", 0, date, errNoToken
	case f.Email == "":
		return text, life, date, nil
	}
	text, life, err = f.impersonate(ctx, client, text)
	return text, life, date, err
}

// impersonate gets a token of the service account with one of the federated identity.
func (f *Federated) impersonate(ctx context.Context, client *http.Client, bearer string) (text string, life time.Duration, err error) {
	base := credentialsURL
	if f.URL != "" {
		u, err := url.Parse(f.URL)
		if err != nil {
			return "", 0, &destination.Error{Class: destination.Client, Code: destination.BadRequest, Text: "the token_url of the server's configuration is not a URL"}
		}
		base = u.Scheme + "://" + u.Host
	}
	address := base + "/v1/projects/-/serviceAccounts/" + url.PathEscape(f.Email) + ":generateAccessToken"
	body, resp, err := post(ctx, client, address, "application/json", `{"scope":["`+scope+`"],"lifetime":"3600s"}`, bearer)
	if err != nil {
		return "", 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return "", 0, refusedToken(resp, body, "the federated identity needs the role Workload Identity User on service_account_email")
	}
	var out struct {
		Token   string    `json:"accessToken"`
		Expires time.Time `json:"expireTime"`
	}
	if json.Unmarshal(body, &out) != nil || !tokenText().MatchString(out.Token) {
		return "", 0, errNoToken
	}
	return out.Token, min(max(time.Until(out.Expires), 0), 24*time.Hour), nil
}
