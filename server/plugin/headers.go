package plugin

import (
	"net/http"
	"slices"
	"strings"

	"github.com/openbao/openbao/sdk/v2/plugin/pb"
)

// Headers that no plugin sees, and that none sets.
var (
	hidden   = []string{"X-Vault-Token", "X-Vault-Mfa", "Cookie"}
	reserved = []string{"Content-Length", "Transfer-Encoding", "Connection", "Set-Cookie"}
)

// requestHeaders are those of passthrough_request_headers. A token of ours is not one.
func requestHeaders(h http.Header, names []string) map[string]*pb.Header {
	var out map[string]*pb.Header
	for _, name := range names {
		name = http.CanonicalHeaderKey(name)
		values := h[name]
		if name == "Authorization" {
			values = slices.DeleteFunc(slices.Clone(values), func(v string) bool {
				scheme, _, _ := strings.Cut(v, " ")
				return strings.EqualFold(scheme, "Bearer")
			})
		}
		if len(values) == 0 || slices.Contains(hidden, name) {
			continue
		}
		if out == nil {
			out = map[string]*pb.Header{}
		}
		out[name] = &pb.Header{Header: values}
	}
	return out
}

// responseHeaders are those of allowed_response_headers.
func responseHeaders(h map[string]*pb.Header, names []string) http.Header {
	var out http.Header
	for name, values := range h {
		name = http.CanonicalHeaderKey(name)
		allowed := slices.ContainsFunc(names, func(n string) bool { return http.CanonicalHeaderKey(n) == name })
		if !allowed || slices.Contains(reserved, name) || strings.HasPrefix(name, "X-Vault-") {
			continue
		}
		if out == nil {
			out = http.Header{}
		}
		out[name] = values.GetHeader()
	}
	return out
}
