// Package machine has the managed identity of a machine of Azure, of which the machine's metadata service gives tokens. The vendor's own client
// of that service keeps tokens for the whole process, also those that were rejected.
package machine

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Identity is a managed identity. It keeps no tokens. Safe for concurrent use.
type Identity struct {
	Metadata *http.Client // reaches the metadata service
	ClientID string       // "": the identity that is assigned by the system
}

// metadataURL is the same on all machines.
const metadataURL = "http://169.254.169.254/metadata/identity/oauth2/token"

const maxResponse = 64 << 10

var unexpected = &destination.Error{Class: destination.External, Code: destination.Unexpected, Text: "the metadata service of the machine gave an unexpected response"}

// GetToken implements azcore.TokenCredential. Its errors are *destination.Error.
func (i *Identity) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	if len(o.Scopes) != 1 {
		return azcore.AccessToken{}, unexpected
	}
	query := url.Values{"api-version": {"2018-02-01"}, "resource": {strings.TrimSuffix(o.Scopes[0], "/.default")}}
	if i.ClientID != "" {
		query.Set("client_id", i.ClientID)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, metadataURL+"?"+query.Encode(), nil)
	if err != nil {
		return azcore.AccessToken{}, unexpected
	}
	r.Header.Set("Metadata", "true")
	resp, err := i.Metadata.Do(r)
	if err != nil {
		return azcore.AccessToken{}, &destination.Error{
			Class: destination.External, Code: destination.Unreachable,
			Text: "the metadata service, which has the managed identity, cannot be reached: only machines of Azure have one",
		}
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= http.StatusInternalServerError:
		return azcore.AccessToken{}, &destination.Error{
			Class: destination.External, Code: destination.Unavailable, RetryAfter: destination.RetryAfter(resp.Header),
			Text: "the metadata service of the machine gives no token now",
		}
	case resp.StatusCode != http.StatusOK:
		return azcore.AccessToken{}, &destination.Error{
			Class: destination.Client, Code: destination.Denied,
			Text: "the machine has no such managed identity: assign one to it, and see client_id, which a user-assigned one needs",
		}
	}
	var out struct {
		Token string `json:"access_token"`
		Life  string `json:"expires_in"` // seconds
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&out)
	life, wrong := strconv.ParseInt(out.Life, 10, 32)
	if err != nil || wrong != nil || life < 0 || out.Token == "" || strings.ContainsFunc(out.Token, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return azcore.AccessToken{}, unexpected
	}
	return azcore.AccessToken{Token: out.Token, ExpiresOn: time.Now().Add(time.Duration(life) * time.Second)}, nil
}
