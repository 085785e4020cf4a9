package access

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

var impersonation = engines.Pattern(`^https://iamcredentials\.googleapis\.com/v1/projects/-/serviceAccounts/([A-Za-z0-9._%+-]{1,128}@[A-Za-z0-9.-]{1,253}):generateAccessToken$`)

// ParseExternal reads the configuration of workload identity federation that the operator's environment names (type external_account), nil
// for other credentials. It has the server read a file, so it must never come from a caller of the API. Only the file that the token of the workload
// is in is supported as its source.
func ParseExternal(text string, read func(name string) ([]byte, error)) (f *Federated, problem string) {
	var in struct {
		Type          string `json:"type"`
		Audience      string `json:"audience"`
		TokenType     string `json:"subject_token_type"`
		TokenURL      string `json:"token_url"`
		Impersonation string `json:"service_account_impersonation_url"`
		Source        struct {
			File   string `json:"file"`
			Format struct {
				Type  string `json:"type"`
				Field string `json:"subject_token_field_name"`
			} `json:"format"`
		} `json:"credential_source"`
	}
	if json.Unmarshal([]byte(text), &in) != nil || in.Type != "external_account" {
		return nil, ""
	}
	f = &Federated{Provider: in.Audience}
	if in.Impersonation != "" {
		m := impersonation().FindStringSubmatch(in.Impersonation)
		if m == nil {
			return nil, "service_account_impersonation_url in it must be one of https://iamcredentials.googleapis.com"
		}
		f.Email = m[1]
	}
	switch {
	case !IsProvider(in.Audience):
		return nil, "audience in it must name a workload identity provider"
	case in.TokenURL != "" && in.TokenURL != exchangeURL:
		return nil, "token_url in it must be " + exchangeURL
	case in.TokenType != "urn:ietf:params:oauth:token-type:jwt":
		return nil, "subject_token_type in it must be urn:ietf:params:oauth:token-type:jwt"
	case in.Source.File == "":
		return nil, "credential_source in it must name a file: other sources are not supported"
	}
	f.Subject = func(context.Context) (string, error) {
		failed := &destination.Error{Class: destination.Client, Code: destination.Denied, Text: "the token file that GOOGLE_APPLICATION_CREDENTIALS leads to cannot be read, or has no token"}
		raw, err := read(in.Source.File)
		if err != nil {
			return "", failed
		}
		token := strings.TrimSpace(string(raw))
		if in.Source.Format.Type == "json" {
			var fields map[string]any
			if json.Unmarshal(raw, &fields) != nil {
				return "", failed
			}
			token, _ = fields[in.Source.Format.Field].(string)
		}
		if !tokenText().MatchString(token) {
			return "", failed
		}
		return token, nil
	}
	return f, ""
}
