package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
)

// Redaction is what a listener keeps from clients without a token: the values are empty in what needs none.
type Redaction struct {
	Addresses, Version, ClusterName bool
}

type redactionKey struct{}

// WithRedaction returns the context of a request of a listener that redacts.
func WithRedaction(ctx context.Context, r Redaction) context.Context {
	return context.WithValue(ctx, redactionKey{}, r)
}

// redactable are the paths without a token that tell of the node and its cluster.
var redactable = map[string]bool{
	"sys/health": true, "sys/leader": true, "sys/seal-status": true, "sys/unseal": true,
	"sys/replication/status": true, "sys/replication/performance/status": true, "sys/replication/dr/status": true,
}

// redaction returns what is to be redacted in the response to this request.
func (x *exchange) redaction() Redaction {
	r, _ := x.r.Context().Value(redactionKey{}).(Redaction)
	return r
}

// redacted returns a JSON body without what the listener redacts.
func (x *exchange) redacted(body []byte) ([]byte, error) {
	if !redactable[x.req.Path] {
		return body, nil
	}
	r := x.redaction()
	if r == (Redaction{}) {
		return body, nil
	}
	var content any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&content); err != nil {
		return nil, err
	}
	r.apply(content)
	out, err := json.Marshal(content)
	return append(out, '\n'), err
}

// covers reports whether the field of a response is to be redacted.
func (r Redaction) covers(field string) bool {
	switch field {
	case "leader_address", "leader_cluster_address", "api_address", "cluster_address", "primary_cluster_addr", "known_primary_cluster_addrs":
		return r.Addresses
	case "version", "coffer_version", "build_date":
		return r.Version
	case "cluster_name":
		return r.ClusterName
	}
	return false
}

func (r Redaction) apply(content any) {
	switch content := content.(type) {
	case []any:
		for _, v := range content {
			r.apply(v)
		}
	case map[string]any:
		for field, v := range content {
			_, list := v.([]any)
			switch {
			case r.covers(field) && list:
				content[field] = []any{}
			case r.covers(field):
				content[field] = ""
			default:
				r.apply(v)
			}
		}
	}
}
